//! Reading back what was kept is slow.
//!
//! **What it sees.** Steps wait, and what their samples wait for is the cache.
//! **Why it costs.** What is kept is larger than the files it was made of, and memory does not hold all of it.
//! **How to confirm.** Profile once with `--cache off`: where that is not slower, the cache does not pay.
//! **What to change.** Numbers of half precision, which take half the bytes; a faster disk for it; another level.

use crate::diagnosis::{Change, Facts, Finding};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let mut finding = facts.stage_cause("cache", "reading from the cache", &["cache"])?;
    finding.changes.push(Change {
        what: "keep half precision, in half the bytes".to_owned(),
        setting: "--cache-dtype f16".to_owned(),
        predicted: None,
    });
    "profile once with --cache off: is that slower?".clone_into(&mut finding.confirm);
    finding.no_help = vec!["a larger batch", "a faster decoder"];
    Some(finding)
}
