//! Where does the time go? What each stage did, how long workers stood still, and whom every wait was for.
//!
//! Each worker counts for itself, so counting is an addition to memory that nobody else writes; a report adds them up.

use std::{
    collections::VecDeque,
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use serde::Serialize;

use super::tune::Decision;
use crate::{cache::CacheReport, read::ReadAt as _};

/// What a stage did since the pipeline started.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageReport {
    /// Its name.
    pub name: &'static str,
    /// Samples that went through it.
    pub items: u64,
    /// Bytes that it read or made.
    pub bytes: u64,
    /// Time spent in it, over all workers.
    pub busy_nanos: u64,
    /// Time that workers stood idle because nothing came from before: there was no sample to be had.
    pub starved_nanos: u64,
    /// Time that workers stood idle because what comes after was full: batches were ready and not taken.
    pub blocked_nanos: u64,
}

/// A wait of the consumer, and whom it was for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Wait {
    /// The epoch.
    pub epoch: u64,
    /// The step.
    pub step: u64,
    /// How long.
    pub wait_nanos: u64,
    /// The sample that came last.
    pub key: String,
    /// The stage in which it spent the most time; `batch`, where putting all of them together took longer than that.
    pub stage: &'static str,
}

/// What a pipeline has done so far.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The stages, in the order of the flow.
    pub stages: Vec<StageReport>,
    /// Batches that were taken.
    pub batches: u64,
    /// Samples that were taken.
    pub samples: u64,
    /// Bad samples among them.
    pub bad: u64,
    /// Different samples among those.
    pub bad_samples: u64,
    /// All waits of the consumer together.
    pub wait_nanos: u64,
    /// From the first time that a batch was asked for to the last that was taken.
    pub wall_nanos: u64,
    /// The last waits, oldest first (up to 4096 of them).
    pub waits: Vec<Wait>,
    /// Worker threads, as they are now.
    pub threads: usize,
    /// Steps that are made ahead, as they are now.
    pub prefetch: usize,
    /// What was changed while it ran, oldest first.
    pub tuning: Vec<Decision>,
    /// What the cache did, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheReport>,
}

impl Report {
    /// The longest wait among the last.
    pub fn worst_wait(&self) -> Option<&Wait> {
        self.waits.iter().max_by_key(|wait| wait.wait_nanos)
    }

    /// A stage by its name.
    pub fn stage(&self, name: &str) -> Option<&StageReport> {
        self.stages.iter().find(|stage| stage.name == name)
    }
}

/// The counters of one worker.
pub(crate) struct Meter {
    names: Arc<[&'static str]>,
    counts: Box<[Count]>,
    pub(crate) starved_nanos: AtomicU64,
    pub(crate) blocked_nanos: AtomicU64,
    cpu_nanos: AtomicU64,
    queued_nanos: AtomicU64,
}

#[derive(Default)]
struct Count {
    items: AtomicU64,
    bytes: AtomicU64,
    busy_nanos: AtomicU64,
}

impl Meter {
    pub(crate) fn new(names: Arc<[&'static str]>) -> Self {
        let counts = names.iter().map(|_| Count::default()).collect();
        let [starved_nanos, blocked_nanos, cpu_nanos, queued_nanos] = [const { AtomicU64::new(0) }; 4];
        Self { names, counts, starved_nanos, blocked_nanos, cpu_nanos, queued_nanos }
    }

    pub(crate) fn add(&self, stage: usize, busy: Duration, bytes: u64) {
        // Only this worker writes here, so no read-modify-write is needed.
        let count = &self.counts[stage];
        count.items.store(count.items.load(Relaxed) + 1, Relaxed);
        count.bytes.store(count.bytes.load(Relaxed) + bytes, Relaxed);
        count.busy_nanos.store(count.busy_nanos.load(Relaxed) + busy.as_nanos() as u64, Relaxed);
    }

    /// Time in a stage that belongs to no one sample.
    pub(crate) fn add_time(&self, stage: usize, busy: Duration) {
        let count = &self.counts[stage].busy_nanos;
        count.store(count.load(Relaxed) + busy.as_nanos() as u64, Relaxed);
    }

    pub(crate) fn stage(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| *known == name)
    }
}

/// Adds up the counters of all workers.
pub(crate) fn stages(names: &[&'static str], meters: &[Meter]) -> Vec<StageReport> {
    let empty = |name: &&'static str| StageReport {
        name,
        items: 0,
        bytes: 0,
        busy_nanos: 0,
        starved_nanos: 0,
        blocked_nanos: 0,
    };
    let mut stages: Vec<StageReport> = names.iter().map(empty).collect();
    for meter in meters {
        for (stage, count) in stages.iter_mut().zip(&meter.counts) {
            stage.items += count.items.load(Relaxed);
            stage.bytes += count.bytes.load(Relaxed);
            stage.busy_nanos += count.busy_nanos.load(Relaxed);
        }
        // A worker carries a sample through all stages, so it can only stand still before the first and after the last.
        if let Some(first) = stages.first_mut() {
            first.starved_nanos += meter.starved_nanos.load(Relaxed);
        }
        if let Some(last) = stages.last_mut() {
            last.blocked_nanos += meter.blocked_nanos.load(Relaxed);
        }
    }
    stages
}

/// How the system let a worker run, as the system counts it.
///
/// Wall time alone cannot tell a slow stage from a worker that had no core. Linux counts both for every thread, in a file
/// that takes a microsecond to read; elsewhere this is not known.
pub(crate) struct Scheduled {
    file: Option<File>,
    last: (u64, u64),
    read: Instant,
}

/// A worker looks at most this often.
const LOOK_EVERY: Duration = Duration::from_millis(5);

impl Scheduled {
    /// For the thread that calls this.
    pub(crate) fn new(measure: bool) -> Self {
        let linux = cfg!(target_os = "linux") && measure;
        let file = linux.then(|| File::open("/proc/thread-self/schedstat").ok()).flatten();
        let mut scheduled = Self { file, last: (0, 0), read: Instant::now() };
        scheduled.last = scheduled.look().unwrap_or_default();
        scheduled
    }

    fn look(&self) -> Option<(u64, u64)> {
        let mut text = [0; 96];
        let count = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..count]).ok()?;
        let mut numbers = text.split_ascii_whitespace().map_while(|number| number.parse().ok());
        Some((numbers.next()?, numbers.next()?))
    }

    /// Adds what came since the last look to the worker's counters, and says how much of it was without a core. Looks
    /// after every sample that took long, so that its share is known.
    pub(crate) fn note(&mut self, meter: &Meter, at: Instant) -> u64 {
        if self.file.is_none() || at.saturating_duration_since(self.read) < LOOK_EVERY {
            return 0;
        }
        self.read = at;
        let Some(now) = self.look() else { return 0 };
        let queued = now.1.saturating_sub(self.last.1);
        meter.cpu_nanos.fetch_add(now.0.saturating_sub(self.last.0), Relaxed);
        meter.queued_nanos.fetch_add(queued, Relaxed);
        self.last = now;
        queued
    }
}

/// How long all workers computed, and how long they could have and had no core; nothing where nobody counts.
pub(crate) fn scheduled(meters: &[Meter]) -> Option<(u64, u64)> {
    let sum = |of: fn(&Meter) -> &AtomicU64| meters.iter().map(|meter| of(meter).load(Relaxed)).sum::<u64>();
    let cpu = sum(|meter| &meter.cpu_nanos);
    (cpu > 0).then(|| (cpu, sum(|meter| &meter.queued_nanos)))
}

/// What the consumer's side remembers.
#[derive(Default)]
pub(crate) struct Consumed {
    pub(crate) batches: u64,
    pub(crate) samples: u64,
    pub(crate) bad: u64,
    pub(crate) wait_nanos: u64,
    pub(crate) waits: VecDeque<Wait>,
    pub(crate) scheduled: (u64, u64),
    pub(crate) began: Option<Instant>,
    pub(crate) last: Option<Instant>,
}

/// Waits that are remembered one by one.
const WAITS_KEPT: usize = 4096;

impl Consumed {
    pub(crate) fn wait(&mut self, wait: Wait) {
        self.wait_nanos += wait.wait_nanos;
        if self.waits.len() == WAITS_KEPT {
            self.waits.pop_front();
        }
        self.waits.push_back(wait);
    }
}
