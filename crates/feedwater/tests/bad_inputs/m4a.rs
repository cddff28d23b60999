//! M4A and bare AAC: not much is promised of them, but they must not bring a run down.

use crate::harness::{every_mutation, every_prefix, fixture, try_sound};

#[test]
fn every_truncation() {
    for name in ["aac.m4a", "adts.aac"] {
        every_prefix(&fixture(name), |bytes| try_sound(&bytes), |_, _| {});
    }
}

#[test]
fn mutations() {
    for name in ["aac.m4a", "adts.aac"] {
        every_mutation(&fixture(name), 1000, |bytes| try_sound(&bytes));
    }
}
