//! What did a sample take, stage by stage? The clock that a worker carries along, and what it adds up.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use feedwater_profile::record::SLOWEST;

use super::{flow::Flow, report::Meter, stage::Context};

/// What a worker is at, for others to see.
pub(super) struct Desk {
    pub(super) unit: AtomicU64,
    pub(super) row: AtomicUsize,
    pub(super) stage: AtomicU32,
    /// Nanoseconds since the engine began; 0 when it is at nothing.
    pub(super) since: AtomicU64,
}

/// What samples took: of one run while it is worked on, of a step when its runs are added up.
#[derive(Default)]
pub(super) struct Spent {
    /// By stage.
    pub(super) nanos: Vec<u64>,
    pub(super) read_bytes: u64,
    /// The longest first.
    pub(super) slowest: [Slowest; SLOWEST],
}

/// A sample that took long.
#[derive(Default, Clone, Copy)]
pub(super) struct Slowest {
    pub(super) nanos: u64,
    pub(super) row: usize,
    /// The stage that it spent the most time in.
    pub(super) stage: usize,
    /// How long its worker had no core.
    pub(super) queued_nanos: u64,
}

impl Spent {
    /// Adds `other` and leaves it empty.
    pub(super) fn add(&mut self, other: &mut Self) {
        self.nanos.resize(self.nanos.len().max(other.nanos.len()), 0);
        for (sum, nanos) in self.nanos.iter_mut().zip(&mut other.nanos) {
            *sum += std::mem::take(nanos);
        }
        self.read_bytes += std::mem::take(&mut other.read_bytes);
        for slowest in std::mem::take(&mut other.slowest) {
            self.sample(slowest);
        }
    }

    /// Notes a sample if it is one of the slowest.
    pub(super) fn sample(&mut self, mut sample: Slowest) {
        for place in &mut self.slowest {
            if sample.nanos > place.nanos {
                std::mem::swap(place, &mut sample);
            }
        }
    }
}

/// Takes the time of a sample's stages.
pub(super) struct Clock<'a> {
    pub(super) flow: &'a Flow,
    /// When the engine began.
    pub(super) began: Instant,
    pub(super) desk: &'a Desk,
    pub(super) meter: &'a Meter,
    pub(super) spent: &'a mut Spent,
    pub(super) last: Instant,
    pub(super) slowest: (usize, Duration),
}

impl Clock<'_> {
    pub(super) fn enter(&mut self, slot: usize) {
        self.desk.stage.store(slot as u32, Ordering::Relaxed);
        if self.flow.measure {
            let since = self.last.duration_since(self.began).as_nanos() as u64;
            self.desk.since.store(since.max(1), Ordering::Relaxed);
        }
    }

    pub(super) fn leave(&mut self, slot: usize, context: &mut Context, bytes: usize) {
        if !self.flow.measure {
            return;
        }
        let now = Instant::now();
        let mut own = now - self.last;
        self.last = now;
        for charge in context.charges.drain(..) {
            own = own.saturating_sub(charge.time);
            if let Some(slot) = self.meter.stage(charge.stage) {
                self.book(slot, charge.time, charge.bytes);
            }
        }
        self.book(slot, own, bytes as u64);
    }

    /// Books the time since in a stage that the sample was in before.
    pub(super) fn leave_again(&mut self, slot: usize) {
        if self.flow.measure {
            let now = Instant::now();
            let time = now - std::mem::replace(&mut self.last, now);
            self.meter.add_time(slot, time);
            self.spent.nanos[slot] += time.as_nanos() as u64;
        }
    }

    fn book(&mut self, slot: usize, time: Duration, bytes: u64) {
        self.meter.add(slot, time, bytes);
        self.spent.nanos[slot] += time.as_nanos() as u64;
        if self.flow.names[slot] == "read" {
            self.spent.read_bytes += bytes;
        }
        if time > self.slowest.1 {
            self.slowest = (slot, time);
        }
    }
}
