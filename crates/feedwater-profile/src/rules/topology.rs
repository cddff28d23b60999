//! Two devices are far apart.
//!
//! **What it sees.** The device that prepares data and the one that trains are connected through the processor.
//! **Why it costs.** Every batch crosses the host's memory, and on two sockets the link between them.
//! **How to confirm.** `feedwater doctor` shows the links; PIX to PHB are near, NODE and SYS are not.
//! **What to change.** Slots under one switch; or one device for both.

use crate::diagnosis::{Change, Facts, Finding, Kind};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let devices = &facts.record.run.devices;
    let role = |role: &str| devices.iter().find(|device| device.role.as_deref() == Some(role));
    let (data, model) = (role("data")?, role("model")?);
    let link = data.links.get(&model.index)?;
    if !matches!(link.as_str(), "NODE" | "SYS") {
        return None;
    }
    let mut finding = facts.finding(
        "topology",
        "the two devices are far apart",
        Kind::Circumstance,
        facts.steps.mean.copy_nanos,
    );
    finding
        .evidence
        .push(format!("device {} and device {} are connected by {link}", data.index, model.index));
    finding.changes.push(Change {
        what: "put both under one switch, or use one device for both".to_owned(),
        setting: format!("--data-gpu {0} --model-gpu {0}", model.index),
        predicted: None,
    });
    "`feedwater doctor` shows the links".clone_into(&mut finding.confirm);
    finding.no_help = vec!["more threads", "a larger batch"];
    Some(finding)
}
