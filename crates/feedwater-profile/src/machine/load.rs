//! How hard do the cores, the memory and the disks of this machine work?
//!
//! The kernel counts since it was started, so a share is always one between two readings: [`Load`] keeps the last one.
//! Read from `/proc` with nothing but the standard library. On other systems a sample is empty, which its fields say.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use serde::{Deserialize, Serialize};

/// `/proc/diskstats` counts in these, whatever the disk has.
const SECTOR_BYTES: u64 = 512;
/// What is made of other block devices, or of memory: its traffic is counted where it ends up.
const NOT_A_DISK: [&str; 8] = ["loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd"];

/// What a machine is at. What is not known is `None`, or empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadSample {
    /// Each core's share of time at work since the last sample.
    pub cores_percent: Vec<f64>,
    /// Share of all cores' time in which they stood still because a disk had not answered.
    pub io_wait_percent: Option<f64>,
    /// Memory that is in use and could not be had at once: all but free memory and caches.
    pub memory_used_bytes: Option<u64>,
    /// All memory.
    pub memory_total_bytes: Option<u64>,
    /// Read from all disks.
    pub disk_read_bytes_per_second: Option<f64>,
    /// Written to all disks.
    pub disk_write_bytes_per_second: Option<f64>,
    /// Share of time in which the busiest disk had something to do.
    pub disk_busy_percent: Option<f64>,
    /// Which disk that is.
    pub disk_busiest: Option<String>,
}

impl LoadSample {
    /// The mean over all cores.
    pub fn cpu_percent(&self) -> Option<f64> {
        let cores = &self.cores_percent;
        (!cores.is_empty()).then(|| cores.iter().sum::<f64>() / cores.len() as f64)
    }
}

/// Samples the load of this machine.
#[derive(Debug)]
pub struct Load {
    root: PathBuf,
    last: Reading,
}

impl Load {
    /// Begins to watch. The first sample is about the time since now.
    pub fn new() -> Self {
        Self::at(Path::new("/"))
    }

    fn at(root: &Path) -> Self {
        Self { root: root.to_owned(), last: Reading::take(root) }
    }

    /// The load since the last sample.
    pub fn sample(&mut self) -> LoadSample {
        let now = Reading::take(&self.root);
        let seconds = now.at.saturating_duration_since(self.last.at).as_secs_f64();
        let sample = between(&self.last, &now, seconds);
        self.last = now;
        sample
    }
}

impl Default for Load {
    fn default() -> Self {
        Self::new()
    }
}

/// The kernel's counters at a moment.
#[derive(Debug, Clone)]
struct Reading {
    at: Instant,
    /// By number, since one that is switched off is not listed.
    cores: BTreeMap<u32, Core>,
    memory: Option<(u64, u64)>,
    disks: BTreeMap<String, Disk>,
}

/// In ticks of the kernel's clock.
#[derive(Debug, Clone, Copy, Default)]
struct Core {
    all: u64,
    idle: u64,
    io_wait: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Disk {
    read_sectors: u64,
    written_sectors: u64,
    busy_millis: u64,
}

impl Reading {
    fn take(root: &Path) -> Self {
        let read = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
        let mut disks = disks(&read("proc/diskstats"));
        // Partitions are in the same list, and are counted with their disk.
        let whole = root.join("sys/block");
        if whole.is_dir() {
            disks.retain(|name, _| whole.join(name.replace('/', "!")).exists());
        }
        Self {
            at: Instant::now(),
            cores: cores(&read("proc/stat")),
            memory: memory(&read("proc/meminfo")),
            disks,
        }
    }
}

fn cores(stat: &str) -> BTreeMap<u32, Core> {
    let core = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
        // The first line is the sum, and has no number.
        let number = words.next()?.parse().ok()?;
        if line.starts_with("cpu ") {
            return None;
        }
        // user nice system idle iowait irq softirq steal; guests are in `user` already.
        let ticks: Vec<u64> = words.take(8).map(|word| word.parse().unwrap_or(0)).collect();
        let (idle, io_wait) = (*ticks.get(3)?, ticks.get(4).copied().unwrap_or(0));
        Some((number, Core { all: ticks.iter().sum(), idle, io_wait }))
    };
    stat.lines().filter_map(core).collect()
}

/// What is in use, and all.
fn memory(meminfo: &str) -> Option<(u64, u64)> {
    let kibibytes = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').split_ascii_whitespace().next()?.parse().ok()
    };
    let total = kibibytes("MemTotal")?.saturating_mul(1024);
    let free = kibibytes("MemAvailable").or_else(|| kibibytes("MemFree"))?.saturating_mul(1024);
    Some((total.saturating_sub(free), total))
}

fn disks(diskstats: &str) -> BTreeMap<String, Disk> {
    let disk = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let name = *words.get(2)?;
        let number = |at: usize| words.get(at).and_then(|word| word.parse().ok());
        let disk = Disk { read_sectors: number(5)?, written_sectors: number(9)?, busy_millis: number(12)? };
        let is_disk = !NOT_A_DISK.iter().any(|prefix| name.starts_with(prefix));
        is_disk.then(|| (name.to_owned(), disk))
    };
    diskstats.lines().filter_map(disk).collect()
}

fn between(old: &Reading, new: &Reading, seconds: f64) -> LoadSample {
    let mut sample = LoadSample {
        memory_used_bytes: new.memory.map(|(used, _)| used),
        memory_total_bytes: new.memory.map(|(_, total)| total),
        ..LoadSample::default()
    };
    // Counters may go back a little (`iowait` is known to), or begin again when a core or disk returns.
    let share = |part: u64, all: u64| (100.0 * part as f64 / all.max(1) as f64).clamp(0.0, 100.0);
    let (mut waited, mut passed) = (0, 0);
    for (number, core) in &new.cores {
        let before = old.cores.get(number).copied().unwrap_or(*core);
        let all = core.all.saturating_sub(before.all);
        let still = core.idle.saturating_sub(before.idle) + core.io_wait.saturating_sub(before.io_wait);
        sample.cores_percent.push(share(all.saturating_sub(still), all));
        waited += core.io_wait.saturating_sub(before.io_wait);
        passed += all;
    }
    if passed == 0 {
        // No tick of the clock since: nothing can be said, and 0 % would be wrong.
        sample.cores_percent.clear();
    } else {
        sample.io_wait_percent = Some(share(waited, passed));
    }
    if new.disks.is_empty() || seconds <= 0.0 {
        return sample;
    }
    let (mut read, mut written) = (0, 0);
    for (name, disk) in &new.disks {
        let before = old.disks.get(name).copied().unwrap_or(*disk);
        read += disk.read_sectors.saturating_sub(before.read_sectors);
        written += disk.written_sectors.saturating_sub(before.written_sectors);
        let busy = disk.busy_millis.saturating_sub(before.busy_millis) as f64 / (10.0 * seconds);
        if sample.disk_busy_percent.is_none_or(|most| busy > most) {
            sample.disk_busy_percent = Some(busy.min(100.0));
            sample.disk_busiest = Some(name.clone());
        }
    }
    sample.disk_read_bytes_per_second = Some((read * SECTOR_BYTES) as f64 / seconds);
    sample.disk_write_bytes_per_second = Some((written * SECTOR_BYTES) as f64 / seconds);
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, stat: &str, diskstats: &str) {
        for folder in ["proc", "sys/block/nvme0n1", "sys/block/sda"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("proc/stat"), stat).unwrap();
        fs::write(root.join("proc/diskstats"), diskstats).unwrap();
        let memory = "MemTotal:       16000 kB\nMemFree:  100 kB\nMemAvailable:    4000 kB\n";
        fs::write(root.join("proc/meminfo"), memory).unwrap();
    }

    #[test]
    fn shares_are_between_two_readings() {
        let root = tempfile::tempdir().unwrap();
        let disks = "\
 259 0 nvme0n1 10 0 1000 5 10 0 2000 5 0 500 10\n\
 259 1 nvme0n1p1 10 0 1000 5 10 0 2000 5 0 500 10\n\
   8 0 sda 0 0 0 0 0 0 0 0 0 0 0\n\
   7 0 loop0 9 0 9 9 9 0 9 9 0 9 9\n";
        write(
            root.path(),
            "cpu  0 0 0 0\ncpu0 100 0 0 900 0 0 0 0 50 0\ncpu1 0 0 0 0 0 0 0 0\nctxt 1\n",
            disks,
        );
        let mut load = Load::at(root.path());
        let disks = disks.replace("1000 5 10 0 2000 5 0 500", "3000 5 10 0 6000 5 0 1000");
        write(root.path(), "cpu  0 0 0 0\ncpu0 175 0 0 920 5 0 0 0 99 0\ncpu1 0 0 0 100 0 0 0 0\n", &disks);
        let now = Reading::take(root.path());
        let sample = between(&load.last, &now, 2.0);
        assert_eq!(sample.cores_percent, [75.0, 0.0]);
        assert_eq!(sample.cpu_percent(), Some(37.5));
        assert_eq!(sample.io_wait_percent, Some(2.5));
        assert_eq!(
            (sample.memory_used_bytes, sample.memory_total_bytes),
            (Some(12_288_000), Some(16_384_000))
        );
        // The partition is not counted again, and the loop device not at all.
        assert_eq!(sample.disk_read_bytes_per_second, Some(2000.0 * 512.0 / 2.0));
        assert_eq!(sample.disk_write_bytes_per_second, Some(4000.0 * 512.0 / 2.0));
        assert_eq!(sample.disk_busy_percent, Some(25.0));
        assert_eq!(sample.disk_busiest.as_deref(), Some("nvme0n1"));
        load.sample();
        assert_eq!(load.sample().cores_percent, [] as [f64; 0], "no tick has passed");
    }

    #[test]
    fn what_is_not_there_is_not_known() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Load::at(root.path()).sample(), LoadSample::default());
        write(root.path(), "cpu\ncpu0\ncpux 1 2\ncpu1 1 2 3\n", "1 2\n1 2 sda x\n");
        let sample = Load::at(root.path()).sample();
        assert_eq!((sample.cores_percent.len(), sample.disk_busy_percent), (0, None));
    }

    #[test]
    fn a_core_that_comes_and_counters_that_go_back_are_no_surprise() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "cpu0 500 0 0 500 100 0 0 0\n", "8 0 sda 0 0 900 0 0 0 0 0 0 900 0\n");
        let load = Load::at(root.path());
        write(
            root.path(),
            "cpu0 510 0 0 500 90 0 0 0\ncpu1 7 0 0 7 0 0 0 0\n",
            "8 0 sda 0 0 1 0 0 0 0 0 0 1 0\n",
        );
        let sample = between(&load.last, &Reading::take(root.path()), 1.0);
        assert_eq!(sample.disk_read_bytes_per_second, Some(0.0));
        assert!(sample.cores_percent.iter().all(|core| (0.0..=100.0).contains(core)));
    }
}
