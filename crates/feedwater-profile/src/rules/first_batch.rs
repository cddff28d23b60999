//! The first batch is late.
//!
//! **What it sees.** The first step waits for seconds, and many times as long as a usual step takes.
//! **Why it costs.** Once a run; it hurts where runs are short or restarted often.
//! **How to confirm.** Time from the start to the first batch, twice: the second time files are in the page cache.
//! **What to change.** A list of files instead of a folder to search; threads instead of processes that start anew.

use crate::{
    diagnosis::{Change, Facts, Finding, Kind},
    rules::millis,
};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let first = facts.record.steps.first()?;
    if first.wait_nanos < 2_000_000_000 || first.wait_nanos < 20 * facts.steps.p50_nanos {
        return None;
    }
    let idle = first.wait_nanos as f64 / facts.record.steps.len() as f64;
    let mut finding = facts.finding("first-batch", "slow first batch", Kind::Circumstance, idle);
    finding.evidence.push(format!("the first step waited {} ms", millis(first.wait_nanos as f64)));
    if let Some(blame) = first.input.as_ref().and_then(|input| input.waited_for.as_ref()) {
        finding.evidence.push(format!("for {} ({})", blame.key, blame.stage));
    }
    finding.changes.push(Change {
        what: "a manifest instead of a folder to search".to_owned(),
        setting: "feedwater profile manifest.jsonl".to_owned(),
        predicted: None,
    });
    "start again: with the files in the page cache it is shorter".clone_into(&mut finding.confirm);
    finding.no_help = vec!["a deeper queue", "a larger batch"];
    Some(finding)
}
