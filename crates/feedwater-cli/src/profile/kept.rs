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

/// Samples that are kept: as many as the run comes to, but about as many as are made in this time, or take so many bytes.
const MOST_MAKING: f64 = 3.0;
const MOST_BYTES: f64 = 256e6;
/// So many batches at least that few of them lie at an epoch's edges, and no more steps than this.
const BATCHES: u64 = 9;
const MOST_STEPS: u64 = 300;
/// The first, which say how long one takes; where that is long, one says it.
const FEW: [u64; 2] = [1, 4];
const LONG: f64 = 0.3;
/// Runs, whose middle counts, and epochs of each, so that samples come again.
const RUNS: usize = 3;
const MOST_RUNS: usize = 25;
const ENOUGH: Duration = Duration::from_millis(500);
const ENOUGH_RUNS: Duration = Duration::from_secs(2);
const EPOCHS: u64 = 2;
/// How long the accelerator is busy at most: threads that slept meanwhile are not as fast as others, however long they slept.
const MOST_STEP_NANOS: u64 = 2_000_000;

/// Some samples of a dataset, kept.
pub(crate) struct Trial {
    setup: Setup,
    samples: Part,
    /// Steps of a run.
    steps: u64,
    /// Where its runs are recorded.
    record: PathBuf,
}

impl Trial {
    /// Makes a few samples, to see how many can be, and then these, for a run of so many steps. Nothing where there is no cache to try, or
    /// nothing to try it on.
    pub(crate) fn new(setup: &Setup, run_steps: u64, folder: &Path) -> Option<Self> {
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
        let open = |count| Some(part::some(source::open(&setup.data).ok()?, count));
        let record = folder.join("kept.jsonl");
        let mut trial = Self { samples: open(0)?, setup: setup.clone(), steps: 0, record };
        let mut each = Each::default();
        for few in FEW {
            trial.samples = open(few)?;
            let mut pipeline = trial.pipeline()?;
            let began = Instant::now();
            steps(&mut pipeline)?;
            let seconds = began.elapsed().as_secs_f64();
            let cache = pipeline.report().cache.filter(|cache| cache.written_bytes > 0);
            // Nothing is written where all were made before, or where there is no room.
            let Some(cache) = cache else { break };
            let files = trial.samples.len() as f64;
            let rows = (pipeline.samples() as f64 / files).max(1.0);
            let made = cache.misses as f64 / rows;
            each = Each { seconds: seconds / made, kept_bytes: cache.written_bytes as f64 / made, rows };
            if seconds > LONG {
                break;
            }
        }
        let batches = BATCHES.max(2 * setup.prefetch as u64 + 2);
        let (files, batch_size) = each.enough(setup.batch_size, batches, run_steps)?;
        trial.samples = open(files)?;
        let is_part = trial.samples.len() == files;
        if is_part {
            trial.setup.batch_size = batch_size;
        }
        let mut epoch = steps(&mut trial.pipeline()?)?;
        // Documents are packed into blocks, of which nobody knows how many they make.
        if is_part && epoch < batches && batch_size > 1 {
            trial.setup.batch_size = (batch_size * epoch / batches).max(1);
            epoch = steps(&mut trial.pipeline()?)?;
        }
        trial.steps = (EPOCHS * epoch).max(run_steps).min(MOST_STEPS);
        Some(trial)
    }

    fn pipeline(&self) -> Option<Pipeline> {
        self.setup.build_on(Box::new(self.samples.clone())).ok()
    }

    /// What a batch takes; nothing where samples could not be kept, or are too few.
    pub(crate) fn cached(&self) -> Option<Cached> {
        let (mut runs, mut took) = (Vec::new(), Duration::ZERO);
        let began = Instant::now();
        while runs.len() < RUNS || (runs.len() < MOST_RUNS && took < ENOUGH && began.elapsed() < ENOUGH_RUNS)
        {
            let record = self.run()?;
            took += Duration::from_nanos(record.steps.iter().map(|step| step.wall_nanos).sum());
            runs.push(Cached::of(&record)?);
        }
        Cached::middle(&runs)
    }

    /// A run from the cache.
    fn run(&self) -> Option<Record> {
        let (host, progress) = (Host::default(), ProgressBar::hidden());
        let (name, record, steps) = ("from a cache", &self.record, self.steps);
        let job =
            Job { name, host: &host, devices: &[], steps, record, progress: &progress, announced: false };
        let (record, report) = run::run_on(&self.setup, self.pipeline()?, &job).ok()?;
        // A disk without room keeps nothing.
        report.cache.filter(|cache| cache.misses * 9 <= cache.hits)?;
        Some(record)
    }
}

/// What a file takes to make, what is kept of it, and how many samples it gives.
#[derive(Default)]
struct Each {
    seconds: f64,
    kept_bytes: f64,
    rows: f64,
}

impl Each {
    /// How many files are enough, in batches of which size, for so many of these and a run of so many; nothing where nothing can be kept.
    fn enough(&self, batch_size: u64, batches: u64, run_steps: u64) -> Option<(u64, u64)> {
        let Self { seconds, kept_bytes, rows } = *self;
        if kept_bytes <= 0.0 {
            return None;
        }
        let wanted = (run_steps.min(MOST_STEPS / EPOCHS).max(batches) * batch_size) as f64 / rows;
        let most = (MOST_MAKING / seconds).min(MOST_BYTES / kept_bytes);
        let files = wanted.min(most).max((batches as f64 / rows).ceil()) as u64;
        let batch_size = batch_size.min((files as f64 * rows) as u64 / batches).max(1);
        // A short batch would be one more edge.
        let whole = if rows > 1.0 { files } else { files / batch_size * batch_size };
        Some((whole, batch_size))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn enough(seconds: f64, kept_bytes: f64, rows: f64, batch_size: u64) -> Option<(u64, u64)> {
        Each { seconds, kept_bytes, rows }.enough(batch_size, BATCHES, 100)
    }

    #[test]
    fn what_is_kept_is_enough_and_not_too_much() {
        assert_eq!(enough(0.000_02, 1e3, 1.0, 16), Some((1600, 16)), "what a run comes to");
        assert_eq!(enough(0.001, 480e3, 1.0, 16), Some((528, 16)), "256 MB");
        assert_eq!(enough(0.015, 480e3, 1.0, 16), Some((192, 16)), "3 s");
        // Where time is short, batches are smaller, and all are whole.
        assert_eq!(enough(0.05, 480e3, 1.0, 16), Some((60, 6)));
        assert_eq!(enough(2.0, 480e3, 1.0, 64), Some((9, 1)));
        assert_eq!(enough(0.000_1, 226e3, 1.0, 256), Some((1125, 125)));
        // An hour of sound is 120 samples.
        assert_eq!(enough(8.0, 50e6, 120.0, 16), Some((1, 13)));
        assert_eq!(enough(0.001, 0.0, 1.0, 16), None, "there is no room");
        let many_steps = Each { seconds: 1e-5, kept_bytes: 1e3, rows: 1.0 }.enough(16, BATCHES, 100_000);
        assert_eq!(many_steps, Some((2400, 16)));
    }
}
