//! There are cores to spare.
//!
//! **What it sees.** Steps wait, workers compute all the time, and there are fewer of them than cores.
//! **Why it costs.** A core that does nothing could make batches.
//! **How to confirm.** `feedwater profile DATA --threads N --verify`.
//! **What to change.** As many threads as cores that this process may use.

use crate::{
    diagnosis::{Facts, Finding, Kind},
    what_if::Wish,
};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let threads = facts.split.crew?.threads;
    let cores = facts.usable_cores().floor() as usize;
    if threads >= cores || facts.wait_share() < crate::diagnosis::INPUT_BOUND_SHARE {
        return None;
    }
    let saves = facts.predict(&Wish::Threads(cores))?.saves_nanos.min(facts.steps.mean.wait_nanos);
    if saves < super::LEAST_GAIN * facts.steps.mean.wall_nanos {
        return None;
    }
    let mut finding = facts.finding("threads", "too few threads", Kind::Circumstance, saves);
    let plural = if threads == 1 { "" } else { "s" };
    finding.evidence.push(format!("{threads} thread{plural}, and {cores} cores that may be used"));
    finding.changes = facts.more_hands();
    finding.confirm = format!("feedwater profile DATA --threads {cores}");
    finding.no_help = vec!["a larger batch", "pinned memory"];
    Some(finding)
}
