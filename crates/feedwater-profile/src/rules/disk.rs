//! Reading is slow.
//!
//! **What it sees.** Steps wait, and what their samples wait for is reading.
//! **Why it costs.** Every byte has to come from the disk before it can be decoded, in every epoch.
//! **How to confirm.** A second epoch from the page cache is much faster; `feedwater doctor DATA` measures the disk.
//! **What to change.** More reads at a time, data on a faster disk, or kept in memory; shards instead of many small files.

use crate::{
    diagnosis::{Change, Facts, Finding},
    what_if::Wish,
};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let mut finding = facts.stage_cause("disk", "read (disk)", &["source", "read"])?;
    let steady = || facts.steps.of_record(facts.record).filter_map(|step| step.input.as_ref());
    let bytes: u64 = steady().map(|input| input.read_bytes).sum();
    let nanos: u64 = steady().filter_map(|input| input.work_nanos.get("read")).sum();
    if bytes > 0 && nanos > 0 {
        let rate = bytes as f64 / nanos as f64 * 1e3;
        finding.evidence.push(format!("a reader gets {rate:.0} MB/s"));
    }
    // A reader that waits for the disk needs no core: more of them than cores are worth while.
    let now = facts.split.crew.map_or(1, |crew| crew.threads.max(1));
    let most = now * 4;
    if crate::what_if::cpu_share(facts.record) < 0.5 {
        finding.changes.clear();
        let setting = facts.threads_setting(most);
        facts.propose(
            &mut finding.changes,
            &format!("threads {most} (they wait, not compute)"),
            setting,
            &Wish::Threads(most),
        );
    }
    finding.changes.extend(facts.cache());
    finding.changes.push(Change {
        what: "a faster disk, or the data in memory".to_owned(),
        setting: "cp -r DATA /dev/shm/data".to_owned(),
        predicted: None,
    });
    "run the epoch again: from the page cache it is much faster".clone_into(&mut finding.confirm);
    finding.no_help = vec!["a larger batch", "a faster accelerator", "pinned memory"];
    Some(finding)
}
