//! Each epoch begins with a wait.
//!
//! **What it sees.** The first step of each epoch waits far longer than the others do.
//! **Why it costs.** torch's loader ends its workers with the epoch and starts new ones with the next: processes, imports,
//! a copy of the dataset, an empty queue. With few steps an epoch that can be most of the run.
//! **How to confirm.** The long steps are those with which epochs begin.
//! **What to change.** Workers that stay; a loader that goes on over the edge of an epoch.

use crate::{
    diagnosis::{Change, Facts, Finding, Kind},
    rules::{LEAST_SHARE, millis},
    what_if::Prediction,
};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let starts = &facts.steps.epoch_starts;
    let idle = starts.waited_nanos as f64 / facts.record.steps.len() as f64;
    let wall = facts.steps.mean.wall_nanos;
    if starts.count == 0 || idle < LEAST_SHARE * (wall + facts.steps.epoch_nanos()) {
        return None;
    }
    let settings = &facts.record.run.settings;
    let anew = settings.loader == "torch"
        && settings.threads.is_some_and(|threads| threads > 0)
        && settings.persistent_workers != Some(true);
    let title = if anew { "workers start anew each epoch" } else { "each epoch begins with a wait" };
    let mut finding = facts.finding("epochs", title, Kind::Cause, idle);
    let all: u64 = facts.record.steps.iter().map(|step| step.wall_nanos).sum();
    finding.evidence.push(format!(
        "the first step of an epoch waits {} ms longer, {} times: {:.0} % of the run",
        millis(starts.waited_nanos as f64 / starts.count as f64),
        starts.count,
        100.0 * starts.waited_nanos as f64 / all.max(1) as f64,
    ));
    finding.evidence.push(format!("between them a step takes {} ms", millis(wall)));
    if anew {
        let saved = wall + facts.steps.epoch_nanos() - idle;
        let rate = 1e9 / saved.max(1.0);
        finding.changes.push(Change {
            what: "workers that stay for the next epoch".to_owned(),
            setting: "DataLoader(..., persistent_workers=True)".to_owned(),
            // New workers also have an empty queue: how much of the wait is that is not known.
            predicted: Some(Prediction {
                samples_per_second: rate * facts.steps.mean.rows,
                steps_per_second: rate,
                low: 1e9 / (saved + 0.25 * idle),
                high: rate,
                uncertainty: 0.25,
                saves_nanos: idle,
            }),
        });
    }
    "the long steps are those with which epochs begin".clone_into(&mut finding.confirm);
    finding.no_help = vec!["more threads", "a deeper queue", "a faster disk"];
    Some(finding)
}
