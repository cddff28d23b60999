//! Decoding is slow.
//!
//! **What it sees.** Steps wait, and what their samples wait for is decoding.
//! **Why it costs.** Compressed sound is decoded anew in every epoch; MP3 costs many times what WAV does.
//! **How to confirm.** Convert a hundred files to 16 kHz WAV and profile those.
//! **What to change.** More threads, up to the cores; decoded or finished features kept in a cache.

use crate::diagnosis::{Facts, Finding};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let mut finding = facts.stage_cause("decode", "decode", &["decode"])?;
    finding.changes.extend(facts.cache());
    "convert a hundred files to WAV and profile those".clone_into(&mut finding.confirm);
    finding.no_help = vec!["a larger batch", "a faster disk", "pinned memory"];
    Some(finding)
}
