//! The device has room for more a step.
//!
//! **What it sees.** The run is not short of input, and the device's memory is less than half used; or its memory is what
//! is busy all the time.
//! **Why it costs.** Small batches leave most of a device idle inside each kernel, which no busy figure shows.
//! **How to confirm.** Double the batch: samples a second rise by more than a tenth.
//! **What to change.** A larger batch with the learning rate to go with it; where memory is the limit, bf16 and accumulation.

use crate::diagnosis::{Change, Facts, Finding, Kind};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let record = facts.record;
    let device = record
        .run
        .devices
        .iter()
        .find(|device| !device.simulated && device.role.as_deref() != Some("data"))?;
    let samples = || record.devices.iter().filter(|sample| sample.index == device.index);
    let mean = |of: fn(&crate::record::DeviceSample) -> Option<f64>| {
        let values: Vec<f64> = samples().filter_map(of).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let used = samples().filter_map(|sample| sample.memory_used_bytes).max().zip(device.memory_bytes);
    let used_share = used.map(|(used, all)| used as f64 / all.max(1) as f64);
    let memory_busy = mean(|sample| sample.memory_busy_percent);
    let batch = record.run.settings.batch_size?;
    let title = if memory_busy.is_some_and(|busy| busy >= 80.0) {
        "the device's memory is the limit"
    } else if facts.wait_share() < 0.05 && used_share.is_some_and(|share| share < 0.5) {
        "batch too small"
    } else {
        return None;
    };
    let mut finding = facts.finding("batch-size", title, Kind::Circumstance, 0.0);
    if let Some(share) = used_share {
        finding.evidence.push(format!(
            "{:.0} % of the device's memory is used, with {batch} samples a step",
            100.0 * share
        ));
    }
    if let Some(busy) = memory_busy {
        finding.evidence.push(format!("its memory is busy {busy:.0} % of the time"));
    }
    let (what, setting) = if title.starts_with("batch") {
        (format!("batch size {}", batch * 2), format!("--batch-size {}", batch * 2))
    } else {
        ("bf16".to_owned(), "--bf16".to_owned())
    };
    finding.changes.push(Change { what, setting, predicted: None });
    "double the batch: samples a second rise by more than a tenth".clone_into(&mut finding.confirm);
    finding.no_help = vec!["more threads", "a faster disk", "a deeper queue"];
    Some(finding)
}
