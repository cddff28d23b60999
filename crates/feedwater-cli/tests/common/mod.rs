//! The command itself, for tests that start it.

#![allow(dead_code, reason = "each test file uses its part")]

use std::{
    path::Path,
    process::{Command, Output},
};

pub(crate) const FEEDWATER: &str = env!("CARGO_BIN_EXE_feedwater");

pub(crate) fn feedwater(arguments: &[&str]) -> Output {
    Command::new(FEEDWATER).args(arguments).output().unwrap()
}

/// What it prints, where it ends well.
pub(crate) fn ok(arguments: &[&str]) -> String {
    let done = feedwater(arguments);
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
