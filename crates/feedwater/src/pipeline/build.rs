//! How is a pipeline put together? It reads as the flow; whatever is wrong with it is said here, before anything runs.

use std::{path::Path, sync::Arc, time::Duration};

use xxhash_rust::xxh3::xxh3_64;

use super::{
    epoch::Pipeline,
    flow::{Flow, Interrupt, describe, fixed_fields, kept, measure, names},
    needs::{self, Need},
    plan::{Cursor, Grouping, Plan},
    policy::Policy,
    report::Meter,
    stage::{Context, Pool, Stage},
    state::{self, State},
    tune::{Limits, Setting},
};
use crate::{
    batch::{Batch, BudgetOf, Size, collate::Collate},
    cache::{Cache, Keeper},
    decode::{self, Decode},
    deliver::{Allocate, Memory, Ring},
    error::{Error, Fault, Result},
    sample::{Sample, field},
    source::{self, Source},
    transform::{
        Chunk, Gain, LogMel, Map, Noise, SpecAugment, TimeShift, Tokenize,
        chunk::{Chunks, Longest},
    },
};

/// How many documents a worker tokenizes between two looks at the queue, where documents are packed.
const PACKED_RUN: u64 = 32;
/// Samples whose lengths are compared under a budget.
const BUDGET_WINDOW: u64 = 4096;

/// Threads there may be a core, where samples wait for disks; and in all.
const THREADS_A_CORE: usize = 8;
const MOST_THREADS: usize = 128;
/// How many times as many batches may be made ahead as to begin with.
const DEEPER: usize = 16;

/// How many worker threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Threads {
    /// As many as steps need, found out while they run, and no more than this process may use cores: affinity and container
    /// limits are respected. Where samples wait for disks, more.
    #[default]
    Auto,
    /// So many.
    Exactly(usize),
}

impl From<usize> for Threads {
    fn from(threads: usize) -> Self {
        Self::Exactly(threads)
    }
}

/// A pipeline that is being put together.
pub struct Builder {
    source: Box<dyn Source>,
    steps: Vec<Arc<dyn Stage>>,
    chunk: Option<Chunk>,
    tokenizer: Option<Arc<Tokenize>>,
    log_mel: Option<LogMel>,
    /// What `decode` gives, where it is one rate for all.
    rate: Option<u32>,
    /// What the samples must bring along, as far as it is known: behind a stage of somebody else's it is not.
    needs: Vec<Need>,
    opaque: bool,
    batch: Batch,
    shuffle: bool,
    seed: u64,
    threads: Threads,
    prefetch: usize,
    start: Option<Setting>,
    cpu_ceiling: f64,
    sharers: usize,
    budget_bytes: usize,
    policy: Policy,
    stuck_after: Duration,
    rank: usize,
    world: usize,
    measure: bool,
    allocate: Allocate,
    interrupt: Option<Interrupt>,
    cache: Option<Cache>,
    /// The first thing that was wrong, said when the pipeline is built.
    wrong: Option<Error>,
}

impl Pipeline {
    /// Starts with what is at `path`, found by looking; see [`source::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Builder> {
        source::open(path).map(Self::from_source)
    }

    /// Starts with a source of one's own.
    pub fn from_source(source: Box<dyn Source>) -> Builder {
        Builder {
            source,
            steps: Vec::new(),
            chunk: None,
            tokenizer: None,
            log_mel: None,
            rate: None,
            needs: Vec::new(),
            opaque: false,
            batch: Batch::of(1),
            shuffle: true,
            seed: 0,
            threads: Threads::Auto,
            prefetch: 0,
            start: None,
            cpu_ceiling: 1.0,
            sharers: 1,
            budget_bytes: 2 << 30,
            policy: Policy::skip(),
            stuck_after: Duration::from_mins(5),
            rank: 0,
            world: 1,
            measure: true,
            allocate: Arc::new(Memory::new),
            interrupt: None,
            cache: None,
            wrong: None,
        }
    }
}

impl Builder {
    /// Decodes sound (`Audio::mono(16_000)`) or arrays (`Npy`).
    pub fn decode(mut self, decode: impl Into<Decode>) -> Self {
        let decode = decode.into();
        if self.log_mel.is_some() {
            return self.wrong(Error::config_hint(
                "`log_mel` stands before `decode`",
                "stages run in the order they are written: `.decode(…).log_mel(…)`",
            ));
        }
        let need = match &decode {
            Decode::Audio(audio) => {
                self.rate = audio.rate;
                Need::Sound
            }
            Decode::Npy => Need::Array,
        };
        self.need(need);
        match decode::DecodeStage::new(decode) {
            Ok(stage) => self.push(stage),
            Err(error) => self.wrong(error),
        }
    }

    /// Cuts long clips into windows. Wherever it stands among the stages, it decides what the samples are.
    pub fn chunk(mut self, chunk: Chunk) -> Self {
        self.chunk = Some(chunk);
        self
    }

    /// Adds noise.
    pub fn noise(self, noise: Noise) -> Self {
        let checked = noise.check();
        self.checked(checked, noise)
    }

    /// Makes it louder or softer.
    pub fn gain(self, gain: Gain) -> Self {
        let checked = gain.check();
        self.checked(checked, gain)
    }

    /// Moves sound in time.
    pub fn time_shift(self, shift: TimeShift) -> Self {
        let checked = shift.check();
        self.checked(checked, shift)
    }

    /// Sound to log-mel features.
    pub fn log_mel(mut self, log_mel: LogMel) -> Self {
        if let Some(rate) = self.rate.filter(|rate| *rate != LogMel::RATE) {
            return self.wrong(Error::config_hint(
                format!("`log_mel` takes {} samples a second, and `decode` gives {rate}", LogMel::RATE),
                "`.decode(Audio::mono(16_000)).log_mel(…)`",
            ));
        }
        self.log_mel = Some(log_mel.clone());
        self.need(Need::SoundForLogMel);
        match log_mel.build() {
            Ok(stage) => self.push(stage),
            Err(error) => self.wrong(error),
        }
    }

    /// Masks features in time and frequency.
    pub fn spec_augment(self, masks: SpecAugment) -> Self {
        let checked = masks.check();
        self.checked(checked, masks)
    }

    /// Text to token ids.
    pub fn tokenize(mut self, tokenize: Tokenize) -> Self {
        if self.tokenizer.is_some() {
            return self.wrong(Error::config_hint(
                "`tokenize` stands there twice",
                "one of them is enough; `map` can make other fields",
            ));
        }
        // Beside sound or features, text is what the model is to say; alone, it is what the model reads.
        let decodes = self.steps.iter().any(|stage| stage.name() == "decode");
        let default = if decodes { field::LABELS } else { field::INPUT_IDS };
        self.need(Need::Text);
        let tokenize = Arc::new(tokenize.settle(default));
        self.steps.push(tokenize.clone());
        self.tokenizer = Some(tokenize);
        self
    }

    /// A closure as a stage. The name stands in reports and errors, and for the closure in a saved state.
    pub fn map<F>(self, name: &'static str, run: F) -> Self
    where
        F: Fn(&mut Sample, &mut Context) -> Result<(), Fault> + Send + Sync + 'static,
    {
        self.stage(Map::new(name, run))
    }

    /// Clips that are longer than so many seconds are bad samples: what a model does not hear it must not learn to say.
    pub fn longest(self, seconds: f64) -> Self {
        self.push(Longest(seconds))
    }

    /// Any stage.
    pub fn stage(mut self, stage: impl Stage + 'static) -> Self {
        // It may make fields, or take them away.
        self.opaque = true;
        self.push(stage)
    }

    /// A stage of this crate.
    fn push(mut self, stage: impl Stage + 'static) -> Self {
        self.steps.push(Arc::new(stage));
        self
    }

    fn need(&mut self, need: Need) {
        if !self.opaque {
            self.needs.push(need);
        }
    }

    /// How samples travel together.
    pub fn batch(mut self, batch: Batch) -> Self {
        self.batch = batch;
        self
    }

    /// Whether samples come in another order each epoch. They do unless this says no.
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = shuffle;
        self
    }

    /// What all randomness follows from.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How many worker threads.
    pub fn threads(mut self, threads: impl Into<Threads>) -> Self {
        self.threads = threads.into();
        self
    }

    /// The share of this process' cores that threads may keep busy, where their number is not said. Default: all.
    pub fn cpu_ceiling(mut self, share: f64) -> Self {
        if !(share > 0.0 && share <= 1.0) {
            return self.wrong(Error::config_hint(
                format!("a ceiling of {share} of the cores"),
                "a share of them: `.cpu_ceiling(0.8)`",
            ));
        }
        self.cpu_ceiling = share;
        self
    }

    /// So many processes of this run are on this machine and share its cores.
    pub fn share_cores(mut self, processes: usize) -> Self {
        self.sharers = processes.max(1);
        self
    }

    /// Where looking for the number of threads and of batches ahead begins.
    #[doc(hidden)]
    pub fn start_from(mut self, threads: usize, batches: usize) -> Self {
        self.start = Some(Setting { threads: threads.max(1), depth: batches.max(1) });
        self
    }

    /// How many batches are made ahead. Default: 3 to begin with, and more where that makes steps shorter.
    pub fn prefetch(mut self, batches: usize) -> Self {
        if batches == 0 {
            return self
                .wrong(Error::config_hint("a prefetch of 0 batches", "1 is the least: `.prefetch(1)`"));
        }
        self.prefetch = batches;
        self
    }

    /// Keeps what the first stages make, as far as it is the same each time: see [`Cache`].
    pub fn cache(mut self, cache: impl Into<Option<Cache>>) -> Self {
        self.cache = cache.into();
        self
    }

    /// How many bytes the batches that are ready or under way may take. One is always made, however large.
    pub fn budget_bytes(mut self, bytes: usize) -> Self {
        self.budget_bytes = bytes;
        self
    }

    /// What becomes of bad samples.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// How long a stage may take for one sample before the run stops with an error that names both. Default: 5 minutes.
    pub fn stuck_after(mut self, limit: Duration) -> Self {
        self.stuck_after = limit;
        self
    }

    /// This process is one of several that train together: it gets every `world`-th sample of each step.
    pub fn ranks(mut self, rank: usize, world: usize) -> Self {
        (self.rank, self.world) = (rank, world);
        self
    }

    /// Where the memory of batches comes from: pinned memory, for example.
    pub fn buffers(mut self, allocate: impl Fn(usize) -> Memory + Send + Sync + 'static) -> Self {
        self.allocate = Arc::new(allocate);
        self
    }

    /// Asked now and then while a batch is waited for; yes ends the wait with [`Error::Interrupted`]. It is how Ctrl-C
    /// reaches a program in another language.
    pub fn interrupt(mut self, asked: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.interrupt = Some(Arc::new(asked));
        self
    }

    /// Whether stages are timed. For measuring what measuring costs; without it, no wait has a name.
    #[doc(hidden)]
    pub fn measure(mut self, measure: bool) -> Self {
        self.measure = measure;
        self
    }

    fn checked(self, checked: Result<()>, stage: impl Stage + 'static) -> Self {
        match checked {
            Ok(()) => self.push(stage),
            Err(error) => self.wrong(error),
        }
    }

    fn wrong(mut self, error: Error) -> Self {
        self.wrong.get_or_insert(error);
        self
    }

    /// Checks everything and puts it together. No thread is started yet.
    pub fn build(mut self) -> Result<Pipeline> {
        if let Some(error) = self.wrong.take() {
            return Err(error);
        }
        self.check()?;
        let (setting, limits) = self.setting();
        let source: Arc<dyn Source> = match self.chunk.take() {
            Some(chunk) => Arc::new(Chunks::new(self.source.into(), chunk)?),
            None => self.source.into(),
        };
        let length = source.len();
        if length == 0 {
            return Err(Error::config("the dataset is empty"));
        }
        let world = self.world as u64;
        let measure = || {
            measure(source.clone(), self.tokenizer.clone(), self.log_mel.as_ref().and_then(LogMel::frames))
        };
        let (grouping, packed, global_batch) = match (self.batch.size, self.batch.bucket_window) {
            (Size::Count(count), None) => (Grouping::Count(count * world), None, count * world),
            (Size::Count(count), Some(window_steps)) => (
                Grouping::Buckets { count: count * world, window_steps, measure: measure() },
                None,
                count * world,
            ),
            (Size::Budget(budget, _), _) => {
                let window = BUDGET_WINDOW;
                (Grouping::Budget { budget, world, window, measure: measure() }, None, budget * world)
            }
            (Size::Packed { length, blocks }, _) => {
                (Grouping::Runs(PACKED_RUN), Some((length, blocks * world)), blocks * world)
            }
        };
        let fingerprint = source.fingerprint();
        let plan = Arc::new(Plan {
            length,
            grouping,
            drop_last: self.batch.drop_last,
            shuffle: self.shuffle,
            blocks: source.blocks().map(<[u64]>::to_vec),
            fingerprint,
            seed: self.seed,
        });
        if plan.steps() == Some(0) {
            return Err(Error::config_hint(
                format!("{length} samples do not fill one batch of {global_batch}, and the last is dropped"),
                "make the batch smaller, or leave out `.drop_last()`",
            ));
        }
        // Packed blocks take the tokens of a sample and leave the rest.
        needs::check(&*source, &self.needs, self.opaque || packed.is_some())?;
        let (keeper, not_kept) =
            kept(self.cache.take(), self.sharers, &*source, &self.steps, self.batch.dtype)?;
        let lossy = keeper.as_ref().and_then(Keeper::changes).unwrap_or_default();
        let state = State {
            version: state::VERSION,
            fingerprint: format!("{fingerprint:032x}"),
            pipeline: format!(
                "{:016x}",
                xxh3_64((describe(&self.steps, &self.batch, self.shuffle) + &lossy).as_bytes())
            ),
            seed: self.seed,
            epoch: 0,
            at: Cursor::default(),
            global_batch,
            plan_world: if matches!(self.batch.size, Size::Budget(..)) { world } else { 1 },
            bad: 0,
            consumed: 0,
        };
        let (names, slots) = names(&self.steps, keeper.is_some());
        let fixed = fixed_fields(&self.steps, &self.batch);
        let ring = Arc::new(Ring::new(self.allocate, (setting.depth.min(8) + 2) * 4));
        let flow = Flow {
            source,
            meters: (0..limits.threads).map(|_| Meter::new(names.clone())).collect(),
            stages: self.steps,
            names,
            slots,
            plan,
            collate: Collate { batch: self.batch, fixed, ring, buffers: Arc::new(Pool::default()) },
            keeper,
            not_kept,
            packed,
            policy: self.policy,
            seed: self.seed,
            rank: self.rank,
            world: self.world,
            setting,
            limits,
            budget_bytes: self.budget_bytes,
            stuck_after: self.stuck_after,
            measure: self.measure,
            interrupt: self.interrupt,
        };
        Ok(Pipeline::new(flow, state))
    }

    /// Threads and batches ahead to begin with, and how far they may be changed.
    fn setting(&self) -> (Setting, Limits) {
        let all = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let cores = (all as f64 * self.cpu_ceiling / self.sharers as f64).max(1.0);
        let threads = match self.threads {
            Threads::Auto => self.start.map_or(cores as usize, |start| start.threads),
            Threads::Exactly(threads) => threads,
        };
        let batches = match self.prefetch {
            0 => self.start.map_or(3, |start| start.depth),
            batches => batches,
        };
        let depth = match self.batch.size {
            // Steps are runs of documents here, many of which go into a batch.
            Size::Packed { length, blocks } => {
                let documents = batches.max(3) * length * blocks as usize * self.world / 256;
                documents.div_ceil(PACKED_RUN as usize).max(2 * threads).max(4)
            }
            _ => batches,
        };
        let tune_threads = self.threads == Threads::Auto;
        let limits = Limits {
            threads: if tune_threads {
                (all * THREADS_A_CORE).clamp(threads, MOST_THREADS.max(threads))
            } else {
                threads
            },
            cores,
            depth: depth * DEEPER,
            tune_threads,
            tune_depth: self.prefetch == 0,
        };
        (Setting { threads, depth }, limits)
    }

    fn check(&self) -> Result<()> {
        self.batch.check()?;
        self.policy.check()?;
        if self.world == 0 || self.rank >= self.world {
            return Err(Error::config_hint(
                format!("rank {} of {}", self.rank, self.world),
                "ranks are counted from 0: `.ranks(0, 2)` and `.ranks(1, 2)`",
            ));
        }
        if self.threads == Threads::Exactly(0) {
            return Err(Error::config_hint("0 threads", "1 is the least: `.threads(1)`, or `Threads::Auto`"));
        }
        let tokens = matches!(self.batch.size, Size::Budget(_, BudgetOf::Tokens) | Size::Packed { .. });
        if tokens && self.tokenizer.is_none() {
            return Err(Error::config_hint(
                "the batch counts tokens, and nothing makes any",
                "add `.tokenize(Tokenize::file(\"tokenizer.json\")?)` before `.batch(…)`",
            ));
        }
        Ok(())
    }
}
