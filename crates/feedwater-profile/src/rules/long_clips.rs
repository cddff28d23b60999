//! Long clips are not cut.
//!
//! **What it sees.** Clips over 30 s in a task that takes 30 s at most, without chunking.
//! **Why it costs.** What is beyond 30 s is decoded and thrown away, and its text is learned without its sound.
//! **How to confirm.** `feedwater inspect DATA` shows the lengths.
//! **What to change.** `--use-chunking`, where the metadata has times.

use crate::diagnosis::{Change, Facts, Finding, Kind};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let settings = &facts.record.run.settings;
    let share = settings.over_30s_share.filter(|share| *share > 0.0)?;
    if settings.chunked == Some(true) {
        return None;
    }
    let mut finding = facts.finding("long-clips", "long clips are cut off", Kind::Circumstance, 0.0);
    finding.evidence.push(format!("{:.1} % of the clips are longer than 30 s", 100.0 * share));
    if let Some(longest) = settings.longest_seconds {
        finding.evidence.push(format!("the longest has {longest:.0} s"));
    }
    finding.changes.push(Change {
        what: "cut long clips into windows".to_owned(),
        setting: "--use-chunking".to_owned(),
        predicted: None,
    });
    "`feedwater inspect DATA` shows the lengths".clone_into(&mut finding.confirm);
    finding.no_help = vec!["a larger batch"];
    Some(finding)
}
