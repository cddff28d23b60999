//! What would a batch take if its samples were kept in a cache?
//!
//! It depends on the machine's memory, on its file system, on how large samples are and on what is still done to them, and
//! none of that is known of a machine that nobody has measured. So some samples are kept for once, in a folder that is dropped,
//! and read back: what that takes is what predictions stand on.

use std::{
    hint::black_box,
    path::Path,
    time::{Duration, Instant},
};

use feedwater::{
    Pipeline,
    source::{self, part},
};

use super::setup::{Setup, Task};
use crate::caching::{Caching, Kept};

/// Samples that are kept: as many as are made in this time, and no more than make so many bytes of batches.
const MAKING: Duration = Duration::from_millis(700);
const MOST_BYTES: f64 = 256e6;
/// The first, which say how long one takes.
const FEW: u64 = 2;
/// Times that they are read back.
const PASSES: usize = 9;
/// More than a processor's caches hold.
const BEYOND_CACHES: usize = 64 << 20;

/// Some samples of a dataset, kept.
pub(crate) struct Trial {
    setup: Setup,
    samples: u64,
}

impl Trial {
    /// Makes a few, to see how many can be. Nothing where there is no cache to try, or nothing to try it on.
    pub(crate) fn new(setup: &Setup, folder: &Path) -> Option<Self> {
        if setup.caching.cache != Kept::Off || setup.task == Task::Text {
            return None;
        }
        let cache_dir = Some(folder.join("kept"));
        let setup = Setup {
            threads: 1,
            caching: Caching { cache: Kept::Features, cache_dir, ..setup.caching.clone() },
            // Bad samples are told of the run itself.
            bad_ceiling: Some(1.0),
            ..setup.clone()
        };
        let few =
            Self { setup: Setup { batch_size: setup.batch_size.min(FEW), ..setup.clone() }, samples: FEW };
        let mut pipeline = few.pipeline()?;
        let began = Instant::now();
        let bytes = pass(&mut pipeline, 0)?.bytes as f64;
        let times = (MAKING.as_secs_f64() / began.elapsed().as_secs_f64()).min(MOST_BYTES / bytes);
        let samples = ((times * FEW as f64) as u64).max(FEW);
        let batch_size = setup.batch_size.min(samples);
        Some(Self { setup: Setup { batch_size, ..setup }, samples: samples / batch_size * batch_size })
    }

    fn pipeline(&self) -> Option<Pipeline> {
        let data = source::open(&self.setup.data).ok()?;
        self.setup.build_on(Box::new(part::some(data, self.samples))).ok()
    }

    /// What a mebibyte of a batch takes of a core; nothing where they could not be kept.
    pub(crate) fn nanos_per_mib(&self) -> Option<f64> {
        let mut pipeline = self.pipeline()?;
        // Keeps them the first time.
        pass(&mut pipeline, 0)?;
        let mut scratch = vec![0_u8; BEYOND_CACHES];
        let (mut passes, mut rows) = (Vec::new(), 0);
        for epoch in 1..=PASSES {
            // As it is in a run, where much else has been read since.
            scratch.fill(epoch as u8);
            black_box(&mut scratch);
            let read = pass(&mut pipeline, epoch as u64)?;
            passes.push(read.nanos as f64 / (read.bytes as f64 / f64::from(1 << 20)));
            rows += read.rows;
        }
        passes.sort_by(f64::total_cmp);
        // A disk without room keeps nothing.
        let kept = pipeline.report().cache.is_some_and(|cache| cache.hits * 10 >= rows * 9);
        passes.get(PASSES / 2).copied().filter(|nanos| kept && nanos.is_finite())
    }
}

/// What the workers did in an epoch.
#[derive(Default)]
struct Pass {
    nanos: u64,
    bytes: u64,
    rows: u64,
}

fn pass(pipeline: &mut Pipeline, epoch: u64) -> Option<Pass> {
    let mut pass = Pass::default();
    for batch in pipeline.epoch(epoch) {
        let batch = batch.ok()?;
        pass.nanos += batch.input.total_work_nanos();
        pass.bytes += batch.input.bytes;
        pass.rows += batch.rows() as u64;
    }
    Some(pass)
}
