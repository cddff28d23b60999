//! The input is late, and the record does not say why.
//!
//! **What it sees.** Steps wait, and how their batches were made is not recorded.
//! **Why it costs.** The accelerator stands still as long as its batch is not there.
//! **How to confirm.** Record the run through Feedwater's loader, which splits the wait by stage.
//! **What to change.** More workers is the usual first try.

use crate::{
    diagnosis::{Change, Facts, Finding, INPUT_BOUND_SHARE, Kind},
    rules::millis,
};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let rest = facts.split.rest_nanos;
    if !facts.split.parts.is_empty() || facts.wait_share() < INPUT_BOUND_SHARE {
        return None;
    }
    let mut finding = facts.finding("input", "input, stage not recorded", Kind::Cause, rest);
    finding.evidence.push(format!("a step waits {} ms for its batch", millis(rest)));
    "record the run with Feedwater's loader: it says which stage".clone_into(&mut finding.confirm);
    let cores = facts.usable_cores().floor() as usize;
    if facts.steps.crew.threads.is_some_and(|threads| threads < cores) {
        let setting = facts.threads_setting(cores);
        finding.changes.push(Change { what: format!("threads {cores}"), setting, predicted: None });
    }
    finding.no_help = vec!["a faster accelerator"];
    Some(finding)
}
