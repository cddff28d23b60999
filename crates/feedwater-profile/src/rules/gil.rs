//! Python lets only one thread work at a time.
//!
//! **What it sees.** Steps wait, and the threads that make batches wait for one another to be let into Python.
//! **Why it costs.** Where the work is in Python itself, more threads do not make it faster; they only take turns.
//! **How to confirm.** Half the threads give the same pace.
//! **What to change.** Work that libraries do without Python (decoding, features, tokenizing) moved into the pipeline;
//! arrays at once instead of loops over numbers.

use crate::{
    diagnosis::{Change, Facts, Finding, INPUT_BOUND_SHARE, Kind},
    rules::millis,
};

/// Less waiting than this is the usual give and take.
const LEAST: f64 = 0.25;

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    if facts.wait_share() < INPUT_BOUND_SHARE {
        return None;
    }
    let inputs = || facts.steps.of_record(facts.record).filter_map(|step| step.input.as_ref());
    let work: f64 = inputs().map(|input| input.total_work_nanos() as f64).sum();
    let booked: f64 =
        inputs().filter_map(|input| input.work_nanos.get("gil")).map(|nanos| *nanos as f64).sum();
    let told: f64 =
        inputs().map(|input| input.gil_wait_share.unwrap_or(0.0) * input.total_work_nanos() as f64).sum();
    let share = booked.max(told) / work.max(1.0);
    if share < LEAST {
        return None;
    }
    let idle = share * facts.steps.mean.wait_nanos;
    let mut finding = facts.finding("gil", "Python, one thread at a time", Kind::Cause, idle);
    finding.evidence.push(format!(
        "{:.0} % of the threads' time they wait to be let into Python: {} ms a batch",
        100.0 * share,
        millis(share * work / inputs().count().max(1) as f64)
    ));
    finding.evidence.extend(facts.called(&["dataset", "transform", "augment"]));
    "halve the threads: the pace stays".clone_into(&mut finding.confirm);
    finding.changes.push(Change {
        what: "move decoding, features and tokenizing into the pipeline".to_owned(),
        setting: "fw.open(DATA).decode(16_000).log_mel(80).batch(16).torch()".to_owned(),
        predicted: None,
    });
    finding.no_help = vec!["more threads", "a deeper queue", "pinned memory"];
    Some(finding)
}
