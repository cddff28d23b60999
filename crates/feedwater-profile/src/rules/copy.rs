//! Copies to the device are not hidden.
//!
//! **What it sees.** 5 % of a step or more is spent copying while nothing is computed.
//! **Why it costs.** A copy from ordinary memory makes the host wait; from pinned memory it runs beside the computing.
//! **How to confirm.** In a trace, the copies lie between the kernels and not beside them.
//! **What to change.** Pinned buffers, `non_blocking=True`, a copy stream; smaller numbers.

use crate::{
    diagnosis::{Change, Facts, Finding, Kind},
    rules::millis,
};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let mean = &facts.steps.mean;
    if mean.copy_nanos < 0.05 * mean.wall_nanos {
        return None;
    }
    let mut finding = facts.finding("copy", "copy not overlapped", Kind::Cause, mean.copy_nanos);
    let steady = || facts.steps.of_record(facts.record);
    let bytes: u64 = steady().filter_map(|step| step.input.as_ref()).map(|input| input.bytes).sum();
    let nanos: u64 = steady().map(|step| step.copy_nanos).sum();
    finding
        .evidence
        .push(format!("{} ms of a step are copies that nothing runs beside", millis(mean.copy_nanos)));
    if bytes > 0 && nanos > 0 {
        finding.evidence.push(format!("at {:.1} GB/s", bytes as f64 / nanos as f64));
    }
    if facts.record.run.settings.pinned == Some(false) {
        finding.evidence.push("batches do not lie in pinned memory".to_owned());
    }
    finding.changes.push(Change {
        what: "pinned memory and copies that do not block".to_owned(),
        setting: "pin_memory=True, and batch.to(device, non_blocking=True)".to_owned(),
        predicted: None,
    });
    "in a trace, the copies lie between the kernels".clone_into(&mut finding.confirm);
    finding.no_help = vec!["more threads", "a faster disk", "a feature cache"];
    Some(finding)
}
