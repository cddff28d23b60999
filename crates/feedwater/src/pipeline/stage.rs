//! What is a stage? Something that changes a sample, on whatever thread the sample is on.
//!
//! Stages do not have threads or queues of their own: a worker carries a sample through all of them. They are a way to
//! describe and to measure. The driver takes the time of each, so none can forget to.

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use rand_pcg::Pcg64Mcg;
use xxhash_rust::xxh3::Xxh3;

use crate::{error::Fault, sample::Sample};

/// A step that every sample takes.
pub trait Stage: Send + Sync {
    /// Its name in reports and errors.
    fn name(&self) -> &'static str;

    /// Its settings, in words. Two stages that do not do the same must not describe themselves the same: this goes into
    /// the fingerprint by which a saved state is recognised.
    fn describe(&self) -> String;

    /// A number that changes whenever the same sample gives something else, where the same always gives the same. Nothing
    /// for what is random, or not known: it is never kept in a cache, nor is anything behind it.
    fn version(&self) -> Option<u32> {
        None
    }

    /// Whether samples that it refuses are as they should be, and only not wanted: they do not count as bad.
    fn leaves_out(&self) -> bool {
        false
    }

    /// The field and the shape that every sample has after this stage, where that is fixed. Such a field is written
    /// straight into its row of the batch.
    fn fixed_shape(&self) -> Option<(&'static str, Vec<usize>)> {
        None
    }

    /// The names under which it books part of its time ([`Context::charge`]): what comes before it, and after it.
    fn books(&self) -> (&'static [&'static str], &'static [&'static str]) {
        (&[], &[])
    }

    /// Does it.
    fn apply(&self, sample: &mut Sample, context: &mut Context) -> Result<(), Fault>;
}

/// What a stage is told and may use: one for each worker.
pub struct Context {
    pub(crate) seed: u64,
    pub(crate) epoch: u64,
    /// Which stage is running, so that two of the same kind draw different random numbers.
    pub(crate) stage: usize,
    pub(crate) cancel: Arc<AtomicBool>,
    pub(crate) buffers: Arc<Pool<Vec<f32>>>,
    /// Time and bytes that the running stage wants booked under another name.
    pub(crate) charges: Vec<Charge>,
}

pub(crate) struct Charge {
    pub(crate) stage: &'static str,
    pub(crate) time: Duration,
    pub(crate) bytes: u64,
}

impl Context {
    /// A generator of random numbers that depends on the seed, the epoch, the key and the stage, and on nothing else.
    pub fn rng(&self, key: &str) -> Pcg64Mcg {
        let mut hasher = Xxh3::with_seed(self.seed);
        hasher.update(&self.epoch.to_le_bytes());
        hasher.update(&(self.stage as u64).to_le_bytes());
        hasher.update(key.as_bytes());
        Pcg64Mcg::new(hasher.digest128())
    }

    /// The epoch that the sample is made for.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Set when the pipeline is being dropped: work that takes long should look at it now and then, and give up.
    pub fn cancelled(&self) -> &AtomicBool {
        &self.cancel
    }

    /// A buffer for numbers that an earlier sample left behind, with whatever it held: clearing it would mean zeroing it
    /// again when it is resized.
    pub fn floats(&self) -> Vec<f32> {
        self.buffers.take()
    }

    /// Gives a buffer back.
    pub fn recycle(&self, buffer: Vec<f32>) {
        self.buffers.give(buffer);
    }

    /// Books part of the running stage's time under another name: decoding reads files.
    pub fn charge(&mut self, stage: &'static str, time: Duration, bytes: u64) {
        if !time.is_zero() || bytes > 0 {
            self.charges.push(Charge { stage, time, bytes });
        }
    }

    /// For somebody who has a stage work outside a pipeline.
    pub(crate) fn alone() -> Self {
        let (cancel, buffers) = (Arc::default(), Arc::default());
        Self { seed: 0, epoch: 0, stage: 0, cancel, buffers, charges: Vec::new() }
    }

    #[cfg(test)]
    pub(crate) fn for_tests(seed: u64, epoch: u64) -> Self {
        Self { seed, epoch, ..Self::alone() }
    }
}

/// Things that are dear to make and can be used again.
///
/// Half of what a loader's CPU time goes into, where nobody looks, is the kernel handing out zeroed pages. Buffers that
/// are kept do not ask for any.
pub struct Pool<T>(Mutex<Vec<T>>);

/// More than this many idle things are let go.
const MOST_IDLE: usize = 256;

impl<T: Default> Pool<T> {
    /// One that was given back, or a new one.
    pub fn take(&self) -> T {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Gives one back.
    pub fn give(&self, thing: T) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE {
            idle.push(thing);
        }
    }
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}
