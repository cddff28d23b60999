//! The accelerator is what takes the time.
//!
//! **What it sees.** Less than 5 % of a step is waited for input.
//! **Why it costs.** It does not: a faster loader would change nothing.
//! **How to confirm.** Feed the same batch again and again; the pace stays as it is.
//! **What to change.** The model's side: precision, compilation, batch size, a faster device.

use crate::diagnosis::{Facts, Finding, INPUT_BOUND_SHARE, Kind};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let mean = &facts.steps.mean;
    let idle = (mean.wall_nanos - mean.busy_nanos) / mean.wall_nanos;
    if facts.wait_share() >= INPUT_BOUND_SHARE || (mean.busy_nanos > 0.0 && idle > 0.2) {
        return None;
    }
    let mut finding = facts.finding("compute-bound", "the accelerator is the limit", Kind::Cause, 0.0);
    finding.evidence.push(format!("{:.1} % of a step is waited for input", 100.0 * facts.wait_share()));
    if mean.busy_nanos > 0.0 {
        finding.evidence.push(format!("the accelerator is busy {:.1} % of the time", mean.busy_percent()));
    }
    "feed one cached batch again and again: the pace stays as it is".clone_into(&mut finding.confirm);
    finding.no_help = vec!["more threads", "a deeper queue", "a faster disk", "a feature cache"];
    Some(finding)
}
