//! Batches that are ready take long to arrive.
//!
//! **What it sees.** A step asks for a batch, one is ready, and the step waits all the same.
//! **Why it costs.** A worker that is a process hands a batch over through shared memory and a queue; the training loop
//! takes it from there itself, while it trains nothing.
//! **How to confirm.** More workers make it no shorter; a smaller batch does.
//! **What to change.** Threads instead of processes: they hand over an address.

use crate::{
    diagnosis::{Change, Facts, Finding, INPUT_BOUND_SHARE, Kind},
    rules::{LEAST_SHARE, millis},
};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let settings = &facts.record.run.settings;
    if facts.wait_share() < INPUT_BOUND_SHARE || settings.loader != "torch" || settings.threads == Some(0) {
        return None;
    }
    let ready = |step: &&crate::record::Step| {
        step.input.as_ref().and_then(|input| input.ready).is_some_and(|ready| ready > 0)
    };
    let waits: Vec<f64> =
        facts.steps.of_record(facts.record).filter(ready).map(|step| step.wait_nanos as f64).collect();
    let all: f64 = waits.iter().sum();
    let idle = (all / facts.steps.steady.len() as f64).min(facts.split.rest_nanos);
    if idle < LEAST_SHARE * facts.steps.mean.wall_nanos {
        return None;
    }
    let mut finding = facts.finding("handover", "batches come late from worker processes", Kind::Cause, idle);
    finding.evidence.push(format!(
        "in {:.0} % of the steps a batch is ready, and takes {} ms to arrive",
        100.0 * waits.len() as f64 / facts.steps.steady.len() as f64,
        millis(all / waits.len() as f64),
    ));
    finding.changes.push(Change {
        what: "threads instead of processes".to_owned(),
        setting: "from feedwater.torch import DataLoader".to_owned(),
        predicted: None,
    });
    "more workers make it no shorter, smaller batches do".clone_into(&mut finding.confirm);
    finding.no_help = vec!["more threads", "a deeper queue", "a faster disk"];
    Some(finding)
}
