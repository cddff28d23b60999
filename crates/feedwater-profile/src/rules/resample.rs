//! Changing the sample rate is slow.
//!
//! **What it sees.** Steps wait, and what their samples wait for is resampling.
//! **Why it costs.** Every clip whose rate is not the model's is filtered anew in every epoch.
//! **How to confirm.** `feedwater inspect DATA` lists the rates; files of the model's own rate skip this stage.
//! **What to change.** Convert the files once, or keep features in a cache.

use crate::diagnosis::{Change, Facts, Finding};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let mut finding = facts.stage_cause("resample", "resample", &["resample"])?;
    finding.changes.extend(facts.cache());
    finding.changes.push(Change {
        what: "convert the files to 16 kHz once".to_owned(),
        setting: "ffmpeg -i IN -ar 16000 -ac 1 OUT.flac".to_owned(),
        predicted: None,
    });
    "`feedwater inspect DATA` lists the rates: clips at the model's own skip this"
        .clone_into(&mut finding.confirm);
    finding.no_help = vec!["a larger batch", "a faster disk", "pinned memory"];
    Some(finding)
}
