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
    source::{
        self, Source as _,
        part::{self, Part},
    },
};
use feedwater_profile::record::Cached;

use super::setup::Setup;
use crate::caching::{Caching, Kept};

/// Samples that are kept: as many as are made in this time, and no more than make so many bytes of batches.
const MAKING: Duration = Duration::from_millis(700);
const MOST_BYTES: f64 = 256e6;
/// Where samples take long, as many as a few batches need, in this time.
const MOST_MAKING: Duration = Duration::from_secs(3);
/// A smaller batch than this is not written as a larger one is, past the caches.
const LIKE_LARGER_BYTES: f64 = 5e6;
/// The first, which say how long one takes.
const FEW: u64 = 2;
/// Times that they are read back, twice each: enough for moments in which a machine is not alone to weigh as much as they do in a
/// run.
const ROUNDS: u32 = 3;
const MOST_ROUNDS: u32 = 25;
const ENOUGH: Duration = Duration::from_millis(300);
/// The first batches of a pass, which say nothing: a new pipeline has new memory, and one that goes on has made them before the
/// pass began. As many count at least.
const APART: u64 = 3;
/// More than a processor's caches hold, line by line.
const BEYOND_CACHES: f64 = 64e6;
const LINE: usize = 64;

/// Some samples of a dataset, kept.
pub(crate) struct Trial {
    setup: Setup,
    samples: Part,
    /// What a run reads besides before it comes to a sample again, as far as that matters.
    others_bytes: usize,
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
            prefetch: 1,
            caching: Caching { cache: Kept::Features, cache_dir, ..setup.caching.clone() },
            // Bad samples are told of the run itself.
            bad_ceiling: Some(1.0),
            ..setup.clone()
        };
        let open = || source::open(&setup.data).ok();
        let few = Self {
            samples: part::some(open()?, FEW),
            setup: Setup { batch_size: FEW.min(setup.batch_size), ..setup.clone() },
            others_bytes: 0,
        };
        let mut pipeline = few.pipeline()?;
        let began = Instant::now();
        let row_bytes = pass(&mut pipeline, 0, 0)?.bytes as f64 / FEW as f64;
        let each = began.elapsed().as_secs_f64() / FEW as f64;
        let alike = (LIKE_LARGER_BYTES / row_bytes).min(setup.batch_size as f64).ceil();
        let enough = (2.0 * APART as f64 * alike).min(MOST_MAKING.as_secs_f64() / each);
        let many = (MAKING.as_secs_f64() / each).min(MOST_BYTES / row_bytes);
        let whole = open()?;
        let length = whole.len();
        let samples = part::some(whole, (many.max(enough) as u64).max(2 * APART));
        let others = length - samples.len();
        let others_bytes = (others as f64 * row_bytes).min(BEYOND_CACHES) as usize;
        let whole = Self { samples, setup: Setup { batch_size: 1, ..setup.clone() }, others_bytes };
        // Clips that are cut are more than there were.
        let samples = whole.pipeline()?.samples();
        let batch_size = setup.batch_size.min(samples / (2 * APART)).max(1);
        Some(Self { setup: Setup { batch_size, ..setup }, ..whole })
    }

    fn pipeline(&self) -> Option<Pipeline> {
        self.setup.build_on(Box::new(self.samples.clone())).ok()
    }

    /// What a batch takes; nothing where samples could not be kept, or are too few.
    pub(crate) fn cached(&self) -> Option<Cached> {
        // Keeps them.
        pass(&mut self.pipeline()?, 0, 0)?;
        let mut passes = [Pass::default(), Pass::default()];
        // Not zeros, which may be memory that nobody has touched.
        let others = vec![1_u8; BEYOND_CACHES as usize];
        for round in 0..MOST_ROUNDS {
            let took = Duration::from_nanos(passes.iter().map(|pass| pass.nanos).sum());
            if round >= ROUNDS && took > ENOUGH {
                break;
            }
            // Which comes to them for the first time, as a run does that begins.
            let mut pipeline = self.pipeline()?;
            for (epoch, sum) in passes.iter_mut().enumerate() {
                // Read, not written: the pass would have to write it back.
                let others = if epoch == 0 { &others } else { &others[..self.others_bytes] };
                black_box(others.iter().step_by(LINE).fold(0, |sum, byte| sum ^ byte));
                sum.add(&pass(&mut pipeline, epoch as u64, APART)?);
            }
            // A disk without room keeps nothing.
            pipeline.report().cache.filter(|cache| cache.misses * 9 <= cache.hits)?;
        }
        let [first_nanos_per_mib, nanos_per_mib] = [0, 1].map(|epoch: usize| passes[epoch].nanos_per_mib());
        let [mut all, later] = passes;
        all.add(&later);
        let handover_nanos = Some(all.nanos.saturating_sub(all.work_nanos) as f64 / all.batches as f64);
        // Where no batch was left to count, it is no number.
        let is_one = [first_nanos_per_mib, nanos_per_mib].iter().all(|nanos| (1.0..=1e12).contains(nanos));
        is_one.then_some(Cached { first_nanos_per_mib, nanos_per_mib, handover_nanos })
    }
}

/// Epochs, but for their first batches.
#[derive(Default)]
struct Pass {
    /// How long they took, of which the worker worked.
    nanos: u64,
    work_nanos: u64,
    batches: u64,
    bytes: u64,
}

impl Pass {
    fn add(&mut self, other: &Self) {
        self.nanos += other.nanos;
        self.work_nanos += other.work_nanos;
        self.batches += other.batches;
        self.bytes += other.bytes;
    }

    /// What a mebibyte of a batch takes of a core; no number where there was none.
    fn nanos_per_mib(&self) -> f64 {
        self.work_nanos as f64 / (self.bytes as f64 / f64::from(1 << 20))
    }
}

fn pass(pipeline: &mut Pipeline, epoch: u64, apart: u64) -> Option<Pass> {
    let mut pass = Pass::default();
    let mut asked = Instant::now();
    for (number, batch) in (0..).zip(pipeline.epoch(epoch)) {
        let input = batch.ok()?.input.clone();
        let got = Instant::now();
        // A batch that nothing was done for belongs to the one before.
        if number >= apart && (pass.bytes > 0 || input.total_work_nanos() > 0) {
            pass.add(&Pass {
                nanos: (got - asked).as_nanos() as u64,
                work_nanos: input.total_work_nanos(),
                batches: 1,
                bytes: input.bytes,
            });
        }
        asked = got;
    }
    Some(pass)
}
