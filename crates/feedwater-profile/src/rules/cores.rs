//! The workers have no core to run on.
//!
//! **What it sees.** Workers are ready to compute and wait for a core.
//! **Why it costs.** Another program, a container's quota, or more threads than cores take the time that batches need.
//! **How to confirm.** `feedwater monitor` shows what runs on each core; `feedwater doctor` shows quota and affinity.
//! **What to change.** Stop the other program, raise the quota, set the threads to the cores there are.

use crate::{
    diagnosis::{Change, Facts, Finding, INPUT_BOUND_SHARE, Kind},
    rules::LEAST_SHARE,
    split::Part,
};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let (share, idle) = (facts.split.queued_share, facts.part(&Part::NoCore));
    let threads = facts.split.crew.map_or(0, |crew| crew.threads);
    let cores = facts.usable_cores();
    let many = threads as f64 > cores.ceil() && share > 0.2;
    let costs = facts.wait_share() >= INPUT_BOUND_SHARE && idle >= LEAST_SHARE * facts.steps.mean.wall_nanos;
    if !costs && !many {
        return None;
    }
    let kind = if costs { Kind::Cause } else { Kind::Circumstance };
    let mut finding = facts.finding("cores", "no free core", kind, if costs { idle } else { 0.0 });
    finding
        .evidence
        .push(format!("workers stood ready without a core for {:.0} % of their time", 100.0 * share));
    finding.evidence.extend(facts.dearest_call());
    finding.evidence.push(match threads {
        0 => format!("the training loop makes its batches itself, on {cores} usable cores"),
        1 => format!("1 thread on {cores} usable cores"),
        _ => format!("{threads} threads on {cores} usable cores"),
    });
    if let Some(quota) = facts.record.run.host.quota_cores {
        finding.evidence.push(format!("the container may use {quota:.1} cores"));
    }
    if many {
        let fit = cores.floor().max(1.0) as usize;
        let (what, setting) = (format!("threads {fit}"), facts.threads_setting(fit));
        finding.changes.push(Change { what, setting, predicted: None });
    } else {
        let what = "free the cores: stop what else runs, or raise the quota".to_owned();
        finding.changes.push(Change { what, setting: "feedwater monitor".to_owned(), predicted: None });
    }
    "`feedwater monitor` shows who uses the cores".clone_into(&mut finding.confirm);
    finding.no_help = vec!["more threads", "a deeper queue", "a faster disk"];
    Some(finding)
}
