//! The queue is too shallow.
//!
//! **What it sees.** The input is fast enough on average, and steps wait all the same.
//! **Why it costs.** With few batches ahead, one slow batch is felt at once.
//! **How to confirm.** The queue is often empty, although workers also stand idle because it is full.
//! **What to change.** More batches ahead, as far as memory allows.

use crate::{
    diagnosis::{Facts, Finding, Kind},
    what_if::Wish,
};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let crew = facts.split.crew?;
    let deeper = (crew.prefetch * 2).max(8);
    let saves = facts.predict(&Wish::Prefetch(deeper))?.saves_nanos.min(facts.steps.mean.wait_nanos);
    if saves < super::LEAST_GAIN * facts.steps.mean.wall_nanos {
        return None;
    }
    let mut finding = facts.finding("queue", "queue too shallow", Kind::Circumstance, saves);
    let steady = || facts.steps.of_record(facts.record).filter_map(|step| step.input.as_ref()?.ready);
    let (count, empty) = (steady().count(), steady().filter(|ready| *ready == 0).count());
    finding.evidence.push(format!("{} batches ahead; empty at {empty} of {count} steps", crew.prefetch));
    let (what, setting) = (format!("prefetch {deeper}"), format!("--prefetch {deeper}"));
    facts.propose(&mut finding.changes, &what, setting, &Wish::Prefetch(deeper));
    "the queue is empty at some steps and full at others".clone_into(&mut finding.confirm);
    finding.no_help = vec!["a larger batch", "a faster disk"];
    Some(finding)
}
