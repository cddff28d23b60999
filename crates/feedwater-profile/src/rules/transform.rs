//! Making features is slow.
//!
//! **What it sees.** Steps wait, and what their samples wait for is log-mel or a stage of the user's own.
//! **Why it costs.** It is done anew for every sample in every epoch.
//! **How to confirm.** Leave the stage out for a short profile: the wait goes away.
//! **What to change.** More threads, up to the cores; features kept in a cache; a faster closure.

use crate::{
    diagnosis::{Facts, Finding},
    rules::{AUGMENTS, NAMED},
    split::Part,
};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let own = |part: &Part| match part {
        Part::Stage(stage) if !NAMED.contains(&stage.as_str()) && !AUGMENTS.contains(&stage.as_str()) => {
            Some(stage.clone())
        }
        _ => None,
    };
    let stages: Vec<String> = facts.split.parts.iter().filter_map(|(part, _)| own(part)).collect();
    let stages: Vec<&str> = stages.iter().map(String::as_str).collect();
    let dearest = *stages.first()?;
    let mut finding = facts.stage_cause("transform", dearest, &stages)?;
    finding.changes.extend(facts.cache());
    finding.confirm = format!("leave `{dearest}` out for a short profile: the wait goes away");
    finding.no_help = vec!["a larger batch", "a faster disk", "pinned memory"];
    Some(finding)
}
