//! What happened in a run?
//!
//! A record is a file of JSON lines, so that it can be written as the run goes, survives a kill, and is read with any
//! tool. The first line says what it is and what the machine and the settings are; every further line is one thing that
//! happened. All times are whole nanoseconds, all sizes bytes, and the unit is in the name. A field that is not there is
//! not known, which is not the same as 0.
//!
//! ```json
//! {"record":"feedwater","version":1,"run":{"name":"whisper-small","settings":{"threads":2,"batch_size":16}}}
//! {"step":0,"wall_nanos":61000000,"wait_nanos":900000,"compute_nanos":60000000,"rows":16}
//! {"step":1,"wall_nanos":61200000,"wait_nanos":1000000,"compute_nanos":60100000,"rows":16,"mark":"checkpoint"}
//! {"device":{"index":0,"at_nanos":1000000000,"busy_percent":97}}
//! {"end":{"wall_nanos":122200000,"overhead_nanos":40000}}
//! ```
//!
//! Lines of a kind that is not known are left alone, and so are fields: both are how this version grows. What changes the
//! meaning of something gets a new version, and a reader refuses versions that it does not know.

mod announce;
mod check;
mod follow;
mod read;
mod write;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use announce::{Announcement, FOLDER_VARIABLE, live_runs};
pub use follow::Follow;
pub use write::Recorder;

/// The version that is written here.
pub const VERSION: u32 = 1;

/// Samples of a batch that are recorded one by one.
pub const SLOWEST: usize = 4;

/// A run, as its file says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Record {
    /// What was known before the first step.
    pub run: Run,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// How the devices did, now and then.
    pub devices: Vec<DeviceSample>,
    /// How the model did on what it does not learn from, now and then.
    pub scores: Vec<Score>,
    /// What the time of workers went into, by the lines of the user's own code; the dearest first.
    pub calls: Vec<Call>,
    /// What was known at the end; nothing where the run was killed.
    pub end: Option<End>,
    /// What could not be read, in words for people.
    pub damage: Vec<String>,
}

/// The first line of a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) record: String,
    pub(crate) version: u32,
    #[serde(default)]
    pub(crate) run: Run,
}

/// What is known before the first step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// What the run is called.
    pub name: String,
    /// What wrote the record, with its version.
    pub writer: String,
    /// Seconds since 1970.
    pub started_unix_seconds: u64,
    /// How steps were timed: `host`, or `host+events` where the device's own events were used.
    pub clock: String,
    /// How many steps the whole run will have, where that is known.
    pub planned_steps: Option<u64>,
    /// The machine.
    pub host: Host,
    /// The accelerators.
    pub devices: Vec<Device>,
    /// How the run was set up.
    pub settings: Settings,
}

/// The machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// The operating system.
    pub os: String,
    /// The processor.
    pub cpu: String,
    /// Logical cores of the machine.
    pub cores: Option<f64>,
    /// Cores that this process may use: affinity and container quota taken into account.
    pub usable_cores: Option<f64>,
    /// The container's quota, in cores.
    pub quota_cores: Option<f64>,
    /// Memory.
    pub memory_bytes: Option<u64>,
    /// How much longer a thread takes for the same work when all usable cores work: 1 where they share nothing.
    pub crowding: Option<f64>,
    /// What writing memory takes, for so much of it gone over in turn; the least first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fill: Vec<Fill>,
    /// What a batch takes where its samples are kept in a cache: tried on some of this dataset, where that was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached: Option<Cached>,
    /// What the data lies on, as far as that is known.
    pub disk: Option<String>,
}

/// What writing memory takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Fill {
    /// So much is gone over in turn.
    pub bytes: u64,
    /// A mebibyte of it takes so long.
    pub nanos_per_mib: f64,
}

/// What a batch takes where its samples are kept in a cache, with the run's own threads and batches ahead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cached {
    /// A mebibyte of it takes of a core, where a run comes to its samples for the first time: what is kept has to be found, and mapped.
    pub first_nanos_per_mib: f64,
    /// From then on.
    pub nanos_per_mib: f64,
    /// What a batch takes besides: to be planned, to wake who waits for it, which takes the longer the longer they
    /// wait, and to be packed where documents are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handover_nanos: Option<f64>,
}

/// An accelerator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// Its number.
    pub index: u32,
    /// What it is.
    pub name: String,
    /// How it is told apart from others.
    pub uuid: Option<String>,
    /// Its memory.
    pub memory_bytes: Option<u64>,
    /// Whether it is only pretended.
    pub simulated: bool,
    /// What it does in this run: `data` or `model`, where two share the work.
    pub role: Option<String>,
    /// How it is connected to others: device number to `PIX`, `PXB`, `PHB`, `NODE`, `SYS`, `NV4`, …
    pub links: BTreeMap<u32, String>,
}

/// How the run was set up.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// What makes the batches: `feedwater`, `torch`, …
    pub loader: String,
    /// `whisper`, `npy`, `text`, …
    pub task: Option<String>,
    /// Where the data lies.
    pub data: Option<String>,
    /// Threads or processes that make batches; 0: the training loop makes them itself.
    pub threads: Option<usize>,
    /// Whether a batch is the work of one of them (as torch's workers do it), not of all together.
    pub batch_at_a_time: bool,
    /// Batches that are made ahead.
    pub prefetch: Option<usize>,
    /// Samples of a step.
    pub batch_size: Option<u64>,
    /// The numbers that are delivered: `f32`, `f16`, `bf16`.
    pub dtype: Option<String>,
    /// How rows are padded: `30 s`, `longest`, …
    pub padding: Option<String>,
    /// Whether samples of like length are put together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buckets: Option<bool>,
    /// Whether batches lie in pinned memory.
    pub pinned: Option<bool>,
    /// Whether workers stay for the next epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_workers: Option<bool>,
    /// How much of the flow is kept in a cache: `features`, `ram`, …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// Whether long clips are cut.
    pub chunked: Option<bool>,
    /// The longest clip, in seconds, and how many exceed 30.
    pub longest_seconds: Option<f64>,
    /// Share of clips over 30 s.
    pub over_30s_share: Option<f64>,
    /// How long the accelerator was told to be busy, where it is pretended.
    pub step_nanos: Option<u64>,
}

/// One step: from asking for a batch to asking for the next.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Its number, counted over all epochs.
    pub step: u64,
    /// Its epoch.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch: u64,
    /// All of it.
    pub wall_nanos: u64,
    /// Standing still because there was no batch.
    pub wait_nanos: u64,
    /// Copying to the device, as far as nothing else happened meanwhile.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub copy_nanos: u64,
    /// The model's work: forward and backward.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub compute_nanos: u64,
    /// The optimizer's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub optimizer_nanos: u64,
    /// Waiting for other devices.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sync_nanos: u64,
    /// Samples of the batch.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rows: u64,
    /// How the batch was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Input>,
    /// What the model's guesses cost, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// What else happened in this step: `checkpoint`, `evaluation`, `compile`, …; such a step is listed apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<String>,
}

/// How a batch was made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Input {
    /// The time that workers spent on this batch, by stage.
    pub work_nanos: BTreeMap<String, u64>,
    /// Of the workers' time since the last step, how much they computed, where the system says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_nanos: Option<u64>,
    /// Of the workers' time since the last step, how long they could have computed and had no core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_nanos: Option<u64>,
    /// The sample that the step waited for, which came last, and the stage that it spent the most time in; `batch`, where
    /// putting all of them together took longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_for: Option<Blame>,
    /// The samples of this batch that took the longest, the longest first; [`SLOWEST`] of them at most.
    pub slowest: Vec<Blame>,
    /// Batches that were ready when this one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<u64>,
    /// Bytes of the batch.
    pub bytes: u64,
    /// Bytes of it that are padding.
    pub padding_bytes: u64,
    /// Bytes of it that would be padding if rows were as long as the longest of the batch.
    pub padding_to_longest_bytes: u64,
    /// Bytes that were read for it.
    pub read_bytes: u64,
    /// The share of the workers' time that they waited for one another's Python, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gil_wait_share: Option<f64>,
    /// Threads that there were when it was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Batches that were made ahead then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefetch: Option<usize>,
    /// What was found out about other numbers of them since the last batch, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tuned: Vec<String>,
}

/// A sample, the stage it spent the most time in, and that time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Blame {
    /// The sample's key.
    pub key: String,
    /// The stage.
    pub stage: String,
    /// The time of all its stages.
    #[serde(default)]
    pub nanos: u64,
    /// Of it, how long the worker had no core.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub queued_nanos: u64,
}

/// How a device did at a moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceSample {
    /// Which.
    pub index: u32,
    /// When, since the run began.
    pub at_nanos: u64,
    /// Share of the last moments in which any kernel ran.
    #[serde(default)]
    pub busy_percent: Option<f64>,
    /// Share of the last moments in which its memory was read or written.
    #[serde(default)]
    pub memory_busy_percent: Option<f64>,
    /// Memory in use.
    #[serde(default)]
    pub memory_used_bytes: Option<u64>,
}

/// How a model did on samples that it does not learn from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// After so many steps.
    pub steps: u64,
    /// What its guesses cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// What is measured besides, by its name: `cer`, `wer`, `error`, each a share.
    #[serde(flatten)]
    pub shares: BTreeMap<String, f64>,
}

/// A call in the user's own code that takes time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The stage that it counts as.
    pub stage: String,
    /// What is called: `librosa.load`.
    pub call: String,
    /// From where: `dataset.py:41`.
    pub at: String,
    /// How long, all together.
    pub nanos: u64,
}

/// What is known at the end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// The whole run.
    pub wall_nanos: u64,
    /// What measuring and recording took of it.
    #[serde(default)]
    pub overhead_nanos: Option<u64>,
}

impl Step {
    /// What the accelerator was at.
    pub fn busy_nanos(&self) -> u64 {
        self.compute_nanos + self.optimizer_nanos
    }

    /// What nobody accounts for.
    pub fn unknown_nanos(&self) -> u64 {
        self.wall_nanos
            .saturating_sub(self.wait_nanos + self.copy_nanos + self.sync_nanos + self.busy_nanos())
    }
}

impl Input {
    /// The workers' time for this batch.
    pub fn total_work_nanos(&self) -> u64 {
        self.work_nanos.values().sum()
    }

    /// Adds another part of the same batch.
    pub fn merge(&mut self, other: Self) {
        for (stage, nanos) in other.work_nanos {
            *self.work_nanos.entry(stage).or_default() += nanos;
        }
        let sum = |a: Option<u64>, b: Option<u64>| a.map_or(b, |a| Some(a + b.unwrap_or(0)));
        self.cpu_nanos = sum(self.cpu_nanos, other.cpu_nanos);
        self.queued_nanos = sum(self.queued_nanos, other.queued_nanos);
        self.ready = self.ready.or(other.ready);
        self.waited_for = match (self.waited_for.take(), other.waited_for) {
            (Some(a), Some(b)) => Some(if b.nanos > a.nanos { b } else { a }),
            (a, b) => a.or(b),
        };
        self.slowest.extend(other.slowest);
        self.slowest.sort_by_key(|slow| std::cmp::Reverse(slow.nanos));
        self.slowest.truncate(SLOWEST);
        self.bytes += other.bytes;
        self.padding_bytes += other.padding_bytes;
        self.padding_to_longest_bytes += other.padding_to_longest_bytes;
        self.read_bytes += other.read_bytes;
        self.threads = other.threads.or(self.threads);
        self.prefetch = other.prefetch.or(self.prefetch);
        self.tuned.extend(other.tuned);
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde hands in")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}
