//! Putting batches together is slow.
//!
//! **What it sees.** Steps wait, and what their batches wait for is being padded and written.
//! **Why it costs.** Every number of a batch, padding too, is written to memory once; long padding is most of it.
//! **How to confirm.** Pad to the longest of a batch, or halve the width of the numbers, and profile again.
//! **What to change.** Length buckets, padding to the longest, f16 or bf16.

use crate::{
    diagnosis::{Facts, Finding},
    what_if::Wish,
};

const STAGES: &[&str] = &["deliver", "collate", "batch"];

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    // Called what the loader calls it: the parts of the wait have that name too.
    let stage = |stage: &&str| facts.stage_nanos(&[stage]);
    let title = STAGES.iter().max_by(|a, b| stage(a).total_cmp(&stage(b)))?;
    let mut finding = facts.stage_cause("collate", title, STAGES)?;
    facts.propose(
        &mut finding.changes,
        "pad to the longest",
        "--pad-longest".to_owned(),
        &Wish::PadToLongest,
    );
    facts.propose(&mut finding.changes, "half precision", "--half".to_owned(), &Wish::HalfPrecision);
    "pad to the longest of a batch and profile again".clone_into(&mut finding.confirm);
    finding.no_help = vec!["a faster disk", "a faster decoder"];
    Some(finding)
}
