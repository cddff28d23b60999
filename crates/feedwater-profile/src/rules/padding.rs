//! Much of a batch is padding.
//!
//! **What it sees.** A quarter of the delivered bytes or more is padding that rows as long as the longest would not need.
//! **Why it costs.** Padding is written, copied and computed on like data.
//! **How to confirm.** The record's `padding_bytes` against `bytes`.
//! **What to change.** Padding to the longest of a batch, length buckets, packing. Not where the model wants one shape: the
//! encoder of Whisper takes 30 s and nothing else.

use crate::{
    diagnosis::{Change, Facts, Finding, Kind},
    what_if::Wish,
};

const WASTE: f64 = 0.25;

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let steady = || facts.steps.of_record(facts.record).filter_map(|step| step.input.as_ref());
    let bytes = steady().map(|input| input.bytes).sum::<u64>() as f64;
    let padding = steady().map(|input| input.padding_bytes).sum::<u64>() as f64;
    let needed = steady().map(|input| input.padding_to_longest_bytes).sum::<u64>() as f64;
    if bytes == 0.0 || padding < WASTE * bytes {
        return None;
    }
    let predicted = facts.predict(&Wish::PadToLongest);
    let idle =
        predicted.map_or(0.0, |predicted| predicted.saves_nanos).clamp(0.0, facts.steps.mean.wait_nanos);
    let mut finding = facts.finding("padding", "padding", Kind::Circumstance, idle);
    finding.evidence.push(format!("{:.0} % of what is delivered is padding", 100.0 * padding / bytes));
    finding.evidence.push(format!(
        "{:.0} % with rows as long as the longest of a batch",
        100.0 * needed / (bytes - padding + needed)
    ));
    if padding - needed > 0.1 * bytes {
        finding.changes.push(Change {
            what: "pad to the longest (where the model takes any length)".to_owned(),
            setting: "--pad-longest".to_owned(),
            predicted,
        });
    }
    if needed > 0.15 * (bytes - padding + needed) {
        let (what, setting) = ("length buckets".to_owned(), "--buckets".to_owned());
        finding.changes.push(Change { what, setting, predicted: None });
    }
    "compare `padding_bytes` with `bytes` in the record".clone_into(&mut finding.confirm);
    finding.no_help = vec!["more threads", "a faster disk"];
    Some(finding)
}
