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
use feedwater_profile::record::Cached;

use super::setup::Setup;
use crate::caching::{Caching, Kept};

/// Samples that are kept: as many as are made in this time, and no more than make so many bytes of batches.
const MAKING: Duration = Duration::from_millis(700);
const MOST_BYTES: f64 = 256e6;
/// The first, which say how long one takes.
const FEW: u64 = 2;
/// Times that they are read back, twice each.
const ROUNDS: u8 = 9;
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
        if setup.caching.cache != Kept::Off {
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
        let bytes = pass(&mut pipeline, 0, 0)?.bytes as f64;
        let times = (MAKING.as_secs_f64() / began.elapsed().as_secs_f64()).min(MOST_BYTES / bytes);
        let there = source::open(&setup.data).ok()?.len();
        let samples = ((times * FEW as f64) as u64).clamp(FEW, there.max(FEW));
        // Most of the batches are to count.
        let batch_size = setup.batch_size.min(samples / (3 * apart(&setup) as u64)).max(1);
        Some(Self { setup: Setup { batch_size, ..setup }, samples: samples / batch_size * batch_size })
    }

    fn pipeline(&self) -> Option<Pipeline> {
        let data = source::open(&self.setup.data).ok()?;
        self.setup.build_on(Box::new(part::some(data, self.samples))).ok()
    }

    /// What a mebibyte of a batch takes of a core; nothing where they could not be kept.
    pub(crate) fn cached(&self) -> Option<Cached> {
        let apart = apart(&self.setup);
        // Keeps them.
        pass(&mut self.pipeline()?, 0, apart)?;
        let mut scratch = vec![0_u8; BEYOND_CACHES];
        let mut passes = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS {
            // Which comes to them for the first time, as a run does that begins.
            let mut pipeline = self.pipeline()?;
            for (epoch, passes) in passes.iter_mut().enumerate() {
                // As it is in a run, where much else has been read since.
                scratch.fill(round);
                black_box(&mut scratch);
                let read = pass(&mut pipeline, epoch as u64, apart)?;
                passes.push(read.nanos as f64 / (read.bytes as f64 / f64::from(1 << 20)));
            }
            // A disk without room keeps nothing.
            pipeline.report().cache.filter(|cache| cache.misses * 9 <= cache.hits)?;
        }
        let [first_nanos_per_mib, nanos_per_mib] = passes.map(|mut passes| {
            passes.sort_by(f64::total_cmp);
            passes[passes.len() / 2]
        });
        let cached = Cached { first_nanos_per_mib, nanos_per_mib };
        Some(cached).filter(|_| first_nanos_per_mib.is_finite() && nanos_per_mib.is_finite())
    }
}

/// The first batches of a pass say nothing: a new pipeline has new memory, and one that goes on has made them before the pass
/// began.
fn apart(setup: &Setup) -> usize {
    setup.prefetch + 2
}

/// What the workers did in an epoch, but for its first batches.
#[derive(Default)]
struct Pass {
    nanos: u64,
    bytes: u64,
}

fn pass(pipeline: &mut Pipeline, epoch: u64, apart: usize) -> Option<Pass> {
    let mut pass = Pass::default();
    for (number, batch) in pipeline.epoch(epoch).enumerate() {
        let batch = batch.ok()?;
        if number >= apart {
            pass.nanos += batch.input.total_work_nanos();
            pass.bytes += batch.input.bytes;
        }
    }
    Some(pass)
}
