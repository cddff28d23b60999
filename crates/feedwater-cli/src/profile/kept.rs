//! What would a batch take if its samples were kept in a cache?
//!
//! It depends on the machine's memory, on its file system, on how large samples are and on what is still done to them, and
//! none of that is known of a machine that nobody has measured. So some samples are kept for once, in a folder that is dropped,
//! and short runs are made of them: what those take is what predictions stand on. They are runs like any other, recorded and judged
//! in the same way, with the threads and the queue that were asked for: whatever else a step takes is in them too.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use feedwater::{
    Pipeline,
    source::{
        self, Source as _,
        part::{self, Part},
    },
};
use feedwater_profile::{
    Record,
    record::{Cached, Host},
};
use indicatif::ProgressBar;

use super::{
    run::{self, Job},
    setup::Setup,
};
use crate::caching::{Caching, Kept};

/// Samples that are kept: so many that a processor's caches do not hold what is kept of them, and so many batches at least, which is more
/// than lie at an epoch's edges.
const BEYOND_CACHES: f64 = 64e6;
const BATCHES: u64 = 6;
/// But no more than are made in this time, or take so many bytes.
const MOST_MAKING: Duration = Duration::from_secs(3);
const MOST_BYTES: f64 = 256e6;
/// The first, which say how long one takes.
const FEW: u64 = 4;
/// Runs, whose middle counts, and epochs of each, so that samples come again.
const RUNS: usize = 3;
const MOST_RUNS: usize = 25;
const ENOUGH: Duration = Duration::from_millis(500);
const EPOCHS: u64 = 2;
/// How long the accelerator is busy at most: threads that slept meanwhile are not as fast as others, however long they slept.
const MOST_STEP_NANOS: u64 = 5_000_000;

/// Some samples of a dataset, kept.
pub(crate) struct Trial {
    setup: Setup,
    samples: Part,
    /// Where its runs are recorded.
    record: PathBuf,
}

impl Trial {
    /// Makes a few, to see how many can be. Nothing where there is no cache to try, or nothing to try it on.
    pub(crate) fn new(setup: &Setup, folder: &Path) -> Option<Self> {
        if setup.caching.cache != Kept::Off {
            return None;
        }
        let cache_dir = Some(folder.join("kept"));
        let setup = Setup {
            step_nanos: setup.step_nanos.min(MOST_STEP_NANOS),
            caching: Caching { cache: Kept::Features, cache_dir, ..setup.caching.clone() },
            // Bad samples are told of the run itself.
            bad_ceiling: Some(1.0),
            ..setup.clone()
        };
        let open = || source::open(&setup.data).ok();
        let record = folder.join("kept.jsonl");
        let samples = part::some(open()?, FEW);
        let few = samples.len() as f64;
        let trial = Self { samples, setup: setup.clone(), record };
        let mut pipeline = trial.pipeline()?;
        let began = Instant::now();
        steps(&mut pipeline)?;
        let each = began.elapsed().as_secs_f64() / few;
        let kept_bytes = (pipeline.report().cache?.written_bytes as f64 / few).max(1.0);
        let many = (BEYOND_CACHES / kept_bytes).max((BATCHES * setup.batch_size) as f64);
        let most = (MOST_MAKING.as_secs_f64() / each).min(MOST_BYTES / kept_bytes);
        let many = (many.min(most) as u64).max(BATCHES);
        // A short batch would be at each edge.
        let whole_batches = many.next_multiple_of(setup.batch_size.min(many / BATCHES));
        let trial = Self { samples: part::some(open()?, whole_batches), ..trial };
        if trial.samples.len() < whole_batches {
            // That is all there are.
            return Some(trial);
        }
        // Clips that are cut are more than there were.
        let samples = trial.pipeline()?.samples();
        let batch_size = setup.batch_size.min(samples / BATCHES).max(1);
        Some(Self { setup: Setup { batch_size, ..setup }, ..trial })
    }

    fn pipeline(&self) -> Option<Pipeline> {
        self.setup.build_on(Box::new(self.samples.clone())).ok()
    }

    /// What a batch takes in a run of so many steps; nothing where samples could not be kept, or are too few.
    pub(crate) fn cached(&self, steps: u64) -> Option<Cached> {
        // Keeps them.
        let epoch = self::steps(&mut self.pipeline()?)?;
        let steps = steps.max(EPOCHS * epoch);
        let (mut runs, mut took) = (Vec::new(), Duration::ZERO);
        while runs.len() < RUNS || (runs.len() < MOST_RUNS && took < ENOUGH) {
            let record = self.run(steps)?;
            took += Duration::from_nanos(record.steps.iter().map(|step| step.wall_nanos).sum());
            runs.push(Cached::of(&record)?);
        }
        Cached::middle(&runs)
    }

    /// A run from the cache.
    fn run(&self, steps: u64) -> Option<Record> {
        let (host, progress) = (Host::default(), ProgressBar::hidden());
        let (name, record) = ("from a cache", &self.record);
        let job = Job { name, host: &host, devices: &[], steps, record, progress: &progress };
        let (record, report) = run::run_on(&self.setup, self.pipeline()?, &job).ok()?;
        // A disk without room keeps nothing.
        report.cache.filter(|cache| cache.misses * 9 <= cache.hits)?;
        Some(record)
    }
}

/// Goes through an epoch. How many batches it has; nothing where it has none.
fn steps(pipeline: &mut Pipeline) -> Option<u64> {
    let mut steps = 0;
    for batch in pipeline.epoch(0) {
        batch.ok()?;
        steps += 1;
    }
    (steps > 0).then_some(steps)
}
