//! Augmentation is slow.
//!
//! **What it sees.** Steps wait, and what their samples wait for is noise, gain, shifts or masks.
//! **Why it costs.** It is random, so it has to be done anew for every sample in every epoch and cannot be cached.
//! **How to confirm.** Profile once without augmentation.
//! **What to change.** More threads, up to the cores; noise made on the device, where there is room.

use crate::{
    diagnosis::{Facts, Finding},
    rules::AUGMENTS,
};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let mut finding = facts.stage_cause("augment", "augment", AUGMENTS)?;
    "profile once without augmentation".clone_into(&mut finding.confirm);
    finding.no_help = vec!["a feature cache", "a larger batch", "a faster disk"];
    Some(finding)
}
