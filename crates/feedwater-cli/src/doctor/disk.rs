//! How fast does the data come from where it lies?
//!
//! A bounded part of the user's own files is read, on one thread, as a loader would read them: whole files, spread over the
//! set. What the system still has in memory would be measured as memory, so each file is dropped from there first, and the
//! system is asked whether it was. Where that cannot be done or told, the figure is said to be of the cache.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use feedwater_profile::machine::{self, DiskKind};

use super::{Check, bytes};

/// No more than this is read, and no longer.
const MOST_BYTES: u64 = 256 << 20;
const MOST_TIME: Duration = Duration::from_secs(3);
/// Less says nothing.
const LEAST_BYTES: u64 = 4 << 20;
/// No more names than this are gathered.
const MOST_FILES: usize = 20_000;

/// Slow is what is slow by both: small files come slowly by the byte, large ones by the file.
const SLOW_BYTES_A_SECOND: f64 = 100e6;
const SLOW_FILE: Duration = Duration::from_millis(5);

/// What reading came to.
#[derive(Debug, Clone, Copy, Default)]
struct Read {
    bytes: u64,
    files: u64,
    took: Duration,
    /// Bytes of files that were not in memory when they were read.
    cold_bytes: u64,
}

/// Measures, and says what it means.
pub(super) fn speed(data: &Path) -> Check {
    let read = measure(&spread(files(data)), MOST_BYTES, MOST_TIME);
    judge(&read, machine::disk(data).as_ref())
}

fn judge(read: &Read, disk: Option<&machine::Disk>) -> Check {
    const ID: &str = "disk-speed";
    let on = disk.map(|disk| format!(" ({disk})")).unwrap_or_default();
    if read.bytes < LEAST_BYTES {
        let what =
            format!("{} of data{on}: too little to measure, and it will stay in memory", bytes(read.bytes));
        return Check::pass(ID, what);
    }
    let seconds = read.took.as_secs_f64().max(1e-9);
    let rate = read.bytes as f64 / seconds;
    let plural = if read.files == 1 { "" } else { "s" };
    let figures = format!(
        "{}/s, {:.1} ms a file{on}: {} of {} file{plural}",
        bytes(rate as u64),
        1000.0 * seconds / read.files as f64,
        bytes(read.bytes),
        read.files
    );
    // Half of it from memory is not the disk's speed any more.
    if read.cold_bytes * 2 < read.bytes {
        return Check::pass(ID, format!("{figures}, from the system's memory: the disk itself was not seen"))
            .with_hint("a set larger than memory, or the first run after a boot, shows the disk");
    }
    let slow = rate < SLOW_BYTES_A_SECOND && read.took / read.files.max(1) as u32 > SLOW_FILE;
    if !slow {
        return Check::pass(ID, figures);
    }
    let hint = match disk.map(|disk| disk.kind) {
        Some(DiskKind::Rotating) => "copy the data to a solid-state disk, or pack it into tar shards",
        Some(DiskKind::Network) => "copy the data to a local disk, or pack it into tar shards",
        _ => "copy the data to a faster disk, or pack small files into tar shards",
    };
    Check::warn(ID, format!("{figures}: slow"), hint)
}

/// The files of a dataset: of a folder, all below it; of a manifest, those of its folder too.
fn files(data: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    let is_folder = fs::metadata(data).is_ok_and(|data| data.is_dir());
    let small = fs::metadata(data).is_ok_and(|data| data.len() < LEAST_BYTES);
    let folder = match data.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("."),
    };
    let mut folders = Vec::new();
    if is_folder {
        folders.push(data.to_owned());
    } else {
        found.extend(fs::metadata(data).ok().map(|about| (data.to_owned(), about.len())));
        if small {
            folders.push(folder.to_owned());
        }
    }
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                folders.push(entry.path());
            } else if entry.path() != data {
                // A link to a file is a file; one to a folder may lead in a circle.
                let about = fs::metadata(entry.path()).ok().filter(fs::Metadata::is_file);
                found.extend(about.map(|about| (entry.path(), about.len())));
            }
            if found.len() >= MOST_FILES {
                return found;
            }
        }
    }
    found
}

/// Files from all over the set before their neighbours, so that a few seconds see more than one corner of a disk.
fn spread(mut files: Vec<(PathBuf, u64)>) -> Vec<PathBuf> {
    files.retain(|(_, size)| *size > 0);
    files.sort();
    let count = files.len();
    let stride = (count / 64).max(1);
    let order = (0..stride).flat_map(|first| (first..count).step_by(stride));
    order.map(|index| files[index].0.clone()).collect()
}

fn measure(files: &[PathBuf], most_bytes: u64, most_time: Duration) -> Read {
    let mut buffer = vec![0_u8; 1 << 20];
    let mut read = Read::default();
    for path in files {
        let Ok(dropped) = File::open(path) else { continue };
        drop_from_memory(&dropped);
        let cold = !in_memory(&dropped);
        drop(dropped);
        // Opening is part of what a loader waits for.
        let began = Instant::now();
        let Ok(mut file) = File::open(path) else { continue };
        let mut got = 0;
        while let Ok(count) = file.read(&mut buffer) {
            got += count as u64;
            if count == 0 || read.bytes + got >= most_bytes || read.took + began.elapsed() >= most_time {
                break;
            }
        }
        read.took += began.elapsed();
        read.bytes += got;
        read.files += 1;
        read.cold_bytes += if cold { got } else { 0 };
        if read.bytes >= most_bytes || read.took >= most_time {
            break;
        }
    }
    read
}

/// Only what is safe on disk can be dropped, so that is seen to first.
#[cfg(target_os = "linux")]
fn drop_from_memory(file: &File) {
    let _ = file.sync_data();
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}

#[cfg(not(target_os = "linux"))]
fn drop_from_memory(_: &File) {}

/// Whether the file's first bytes can be had without asking the disk. Where the system does not tell, they can.
#[cfg(target_os = "linux")]
fn in_memory(file: &File) -> bool {
    let mut byte = [0_u8; 1];
    let mut slices = [std::io::IoSliceMut::new(&mut byte)];
    let probe = rustix::io::preadv2(file, &mut slices, 0, rustix::io::ReadWriteFlags::NOWAIT);
    probe != Err(rustix::io::Errno::AGAIN)
}

#[cfg(not(target_os = "linux"))]
fn in_memory(_: &File) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    fn read(bytes: u64, files: u64, millis: u64, cold: bool) -> Read {
        Read { bytes, files, took: Duration::from_millis(millis), cold_bytes: if cold { bytes } else { 0 } }
    }

    #[test]
    fn slow_is_slow_by_the_byte_and_by_the_file() {
        let outcome = |read: Read| judge(&read, None).outcome;
        assert_eq!(outcome(read(200 << 20, 400, 500, true)), Outcome::Pass);
        // A rotating disk, file after file.
        assert_eq!(outcome(read(16 << 20, 250, 3000, true)), Outcome::Warn);
        // Small files, quickly.
        assert_eq!(outcome(read(8 << 20, 4000, 1000, true)), Outcome::Pass);
        assert_eq!(outcome(read(1 << 20, 1, 3000, true)), Outcome::Pass);
    }

    #[test]
    fn what_came_from_memory_is_said_to() {
        let check = judge(&read(200 << 20, 400, 50, false), None);
        assert!(check.what.contains("the disk itself was not seen"), "{}", check.what);
    }

    #[test]
    fn no_more_is_read_than_was_said() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..8 {
            fs::write(folder.path().join(format!("{number}.bin")), vec![7; 1 << 20]).unwrap();
        }
        fs::create_dir(folder.path().join("deeper")).unwrap();
        fs::write(folder.path().join("deeper/9.bin"), vec![7; 1000]).unwrap();
        fs::write(folder.path().join("empty"), []).unwrap();
        let all = spread(files(folder.path()));
        assert_eq!(all.len(), 9);
        let whole = measure(&all, MOST_BYTES, MOST_TIME);
        assert_eq!((whole.bytes, whole.files), ((8 << 20) + 1000, 9));
        let part = measure(&all, 3 << 20, MOST_TIME);
        assert!(part.bytes >= 3 << 20 && part.bytes <= 4 << 20, "{}", part.bytes);
        // A manifest stands for its folder.
        let manifest = folder.path().join("metadata.jsonl");
        fs::write(&manifest, "{}").unwrap();
        assert_eq!(files(&manifest).iter().filter(|(path, _)| *path == manifest).count(), 1);
        assert_eq!(spread(files(&manifest)).len(), 10);
    }

    #[test]
    fn files_are_read_from_all_over_the_set() {
        let files: Vec<(PathBuf, u64)> =
            (0..1000).map(|number| (PathBuf::from(format!("{number:04}")), 1)).collect();
        let order = spread(files);
        assert_eq!(order.len(), 1000);
        assert_eq!(order[1].to_str(), Some("0015"));
    }
}
