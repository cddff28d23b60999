//! Is there room for what is going to be written?
//!
//! A full disk is found out late, and takes everything else on it along: so the size is estimated from the settings before
//! the first byte is written, and compared with what is free.

use std::path::Path;

use feedwater_profile::machine;

use super::human_bytes;

/// More files than this are slow to list for every tool that meets them, and surely a slip of a finger.
pub(crate) const MOST_FILES: usize = 10_000_000;

/// What is left to everybody else on the disk.
const RESERVE_BYTES: u64 = 500_000_000;

/// An estimate of a file on disk: whole blocks.
pub(crate) fn on_disk(bytes: f64) -> f64 {
    const BLOCK: f64 = 4096.0;
    (bytes / BLOCK).ceil() * BLOCK
}

/// An error, with a hint, if `bytes` do not fit beside what is there. `replaced`: how many bytes of an earlier dataset
/// make room; it is asked only where that matters.
pub(crate) fn check(
    out: &Path,
    bytes: u64,
    replaced: impl FnOnce() -> u64,
    smaller: &str,
) -> miette::Result<()> {
    match machine::room(out) {
        Some(room) => fits(bytes, room.free_bytes, replaced, smaller),
        None => Ok(()),
    }
}

fn fits(bytes: u64, free: u64, replaced: impl FnOnce() -> u64, smaller: &str) -> miette::Result<()> {
    let room = free.saturating_sub(RESERVE_BYTES);
    if bytes <= room || bytes <= room.saturating_add(replaced()) {
        return Ok(());
    }
    Err(miette::miette!(
        help = format!("make it smaller, for example {smaller}, or choose an --out on a larger disk"),
        "the dataset would take about {}, and there is room for {} ({} free, {} of it kept in reserve)",
        human_bytes(bytes),
        human_bytes(room),
        human_bytes(free),
        human_bytes(RESERVE_BYTES.min(free)),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_unless_it_replaces_as_much() {
        let gigabytes = |count: u64| count * 1_000_000_000;
        assert!(fits(gigabytes(2), gigabytes(3), || 0, "--clips 1").is_ok());
        let refusal = fits(gigabytes(3), gigabytes(3), || 0, "--clips 1").unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "the dataset would take about 3.0 GB, and there is room for 2.5 GB (3.0 GB free, 500.0 MB of it kept in \
             reserve)"
        );
        assert!(refusal.help().unwrap().to_string().contains("--clips 1"));
        assert!(fits(gigabytes(3), gigabytes(3), || gigabytes(3), "--clips 1").is_ok());
        assert!(fits(1, 0, || 0, "--clips 1").is_err());
    }
}
