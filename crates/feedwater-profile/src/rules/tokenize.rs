//! Tokenizing is slow.
//!
//! **What it sees.** Steps wait, and what their samples wait for is tokenizing.
//! **Why it costs.** Text is cut into the same tokens in every epoch, often by the thread that also trains.
//! **How to confirm.** Tokenize once to a file and train from that.
//! **What to change.** More threads, up to the cores; token ids kept in a cache; packed blocks instead of padded rows.

use crate::diagnosis::{Facts, Finding};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let mut finding = facts.stage_cause("tokenize", "tokenize", &["tokenize"])?;
    finding.changes.extend(facts.cache());
    "tokenize once to a file and train from that".clone_into(&mut finding.confirm);
    finding.no_help = vec!["a larger batch", "a faster disk", "pinned memory"];
    Some(finding)
}
