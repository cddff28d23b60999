//! How is a step made? Each of its samples is carried through all stages and into its row; the last one done closes the
//! batch.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use feedwater_profile::record::{Blame, Input};

use super::{
    clock::{Clock, Desk, Slowest, Spent},
    engine::lock,
    flow::Flow,
    plan::Step,
    policy::BadSample,
    report::{Meter, Scheduled},
    stage::Context,
};
use crate::{
    batch::{
        collate::{Apart, Collate, Filling},
        pack::Document,
    },
    cache::{Keeper, Kept, Outcome},
    deliver::ReadyBatch,
    error::Fault,
    sample::{Sample, Value, field},
};

/// Where the cache is among what is measured, if there is one.
const CACHE: usize = 1;

/// A step on its way.
#[derive(Default)]
pub(super) struct Unit {
    pub(super) number: u64,
    pub(super) epoch: u64,
    /// `None`: here an epoch ends.
    pub(super) step: Option<Step>,
    /// This rank's samples, a row each.
    pub(super) samples: Vec<u64>,
    /// In which order they are taken: the longest first.
    pub(super) order: Vec<u32>,
    pub(super) left: AtomicUsize,
    filling: RwLock<Option<Filling>>,
    rows: Mutex<Rows>,
    pub(super) spent: Mutex<Spent>,
}

#[derive(Default)]
struct Rows {
    samples: Vec<Option<Sample>>,
    bad: Vec<(usize, BadSample)>,
}

/// A step that is ready.
#[derive(Default)]
pub(crate) struct Finished {
    pub(crate) batch: Option<ReadyBatch>,
    pub(crate) documents: Vec<Document>,
    pub(crate) bad: Vec<BadSample>,
    /// The sample that came last, and what took the most time from when it began.
    pub(crate) last: (String, &'static str),
    /// How it was made.
    pub(crate) input: Input,
    /// Putting the batch together failed: no sample's fault, and nothing to go on with.
    pub(super) broken: Option<Fault>,
    pub(super) bytes: usize,
}

/// What a thread has at hand.
pub(super) struct Worker<'a> {
    pub(super) flow: &'a Flow,
    /// When the engine began.
    pub(super) began: Instant,
    pub(super) desk: &'a Desk,
    pub(super) meter: &'a Meter,
    pub(super) context: Context,
    pub(super) spent: Spent,
    pub(super) scheduled: Scheduled,
}

impl Unit {
    /// A step of this rank's, or the end of an epoch.
    pub(super) fn new(flow: &Flow, epoch: u64, step: Option<Step>) -> Self {
        // Packed blocks are shared out when they are packed: every rank reads all documents.
        let (rank, world) = if flow.packed.is_some() { (0, 1) } else { (flow.rank, flow.world) };
        let every = |all: &Vec<u64>| all.iter().skip(rank).step_by(world).copied().collect::<Vec<_>>();
        let samples = step.as_ref().map(|step| every(&step.samples)).unwrap_or_default();
        let lengths = step.as_ref().map(|step| every(&step.lengths)).unwrap_or_default();
        let mut order: Vec<u32> = (0..samples.len() as u32).collect();
        if !lengths.is_empty() {
            order.sort_by_key(|row| std::cmp::Reverse(lengths[*row as usize]));
        }
        let filling = flow.packed.is_none().then(|| flow.collate.begin(samples.len()));
        Self {
            number: 0,
            epoch,
            step,
            left: AtomicUsize::new(samples.len()),
            rows: Mutex::new(Rows { samples: samples.iter().map(|_| None).collect(), bad: Vec::new() }),
            filling: RwLock::new(filling),
            spent: Mutex::default(),
            samples,
            order,
        }
    }

    /// The name of a row's sample.
    pub(super) fn key(&self, flow: &Flow, row: usize) -> String {
        self.samples.get(row).map_or_else(String::new, |index| flow.source.key(*index))
    }

    /// Nothing where what was kept of the sample turned out not to be whole: it is to be begun again.
    fn stages(
        &self,
        flow: &Flow,
        row: usize,
        context: &mut Context,
        clock: &mut Clock,
    ) -> Result<Option<Sample>, Fault> {
        clock.enter(0);
        let mut sample = flow.source.sample(self.samples[row])?;
        clock.leave(0, context, sample.bytes());
        let (mut missing, mut whole) = (None, None);
        let mut done = 0;
        if let Some(keeper) = &flow.keeper {
            clock.enter(CACHE);
            // Nothing is done to it any more: its numbers go from where they are kept into the row.
            let last =
                keeper.stages == flow.stages.len() && flow.packed.is_none() && flow.collate.has_fixed();
            match keeper.fetch(&mut sample, context) {
                Outcome::Found(kept) => {
                    done = keeper.stages;
                    if last && kept.field().is_some_and(|name| flow.collate.is_fixed(name)) {
                        whole = Some(kept);
                    } else if kept.unpack(&mut sample, context).is_none() {
                        return Ok(None);
                    }
                }
                Outcome::Missing(key) => missing = Some(key),
                Outcome::Apart => {}
            }
            clock.leave(CACHE, context, sample.bytes() + whole.as_ref().map_or(0, Kept::bytes));
        }
        for (number, stage) in flow.stages.iter().enumerate().skip(done) {
            let slot = flow.slots[number];
            clock.enter(slot);
            context.stage = number;
            context.charges.clear();
            stage.apply(&mut sample, context)?;
            clock.leave(slot, context, sample.bytes());
            if let Some(keeper) = flow.keeper.as_ref().filter(|keeper| keeper.stages == number + 1) {
                clock.enter(CACHE);
                if let Some(key) = missing.take() {
                    keeper.keep(key, &sample);
                }
                keeper.round(&mut sample);
                clock.leave_again(CACHE);
            }
        }
        let slot = flow.names.len() - 1;
        clock.enter(slot);
        context.charges.clear();
        if let Some(filling) = &*self.filling.read().unwrap_or_else(PoisonError::into_inner) {
            let bytes = sample.bytes();
            let place = |sample: &mut Sample, apart: Option<Apart>| {
                // SAFETY: a row is claimed by one worker; the rows of a unit are distinct.
                unsafe { flow.collate.place(filling, row, sample, apart) }
            };
            match whole {
                Some(kept) => match kept.unpack_with(&mut sample, context, place) {
                    Some(placed) => placed?,
                    None => return Ok(None),
                },
                None => place(&mut sample, None)?,
            }
            clock.leave(slot, context, bytes);
        }
        Ok(Some(sample))
    }

    /// Puts a step together. Called once for each, when its last sample is done.
    pub(super) fn finish(&self, flow: &Flow, last_row: usize, slowest: usize) -> Finished {
        let (mut samples, mut bad) = {
            let mut rows = lock(&self.rows);
            (std::mem::take(&mut rows.samples), std::mem::take(&mut rows.bad))
        };
        let last = self.key(flow, last_row);
        let spent = std::mem::take(&mut *lock(&self.spent));
        let mut input = Input { read_bytes: spent.read_bytes, ..Input::default() };
        for (name, nanos) in flow.names.iter().zip(&spent.nanos) {
            *input.work_nanos.entry((*name).to_owned()).or_default() += nanos;
        }
        let blame = |slow: Slowest| Blame {
            key: self.key(flow, slow.row),
            stage: flow.names[slow.stage].to_owned(),
            nanos: slow.nanos,
            queued_nanos: slow.queued_nanos,
        };
        input.slowest = spent.slowest.into_iter().filter(|slow| slow.nanos > 0).map(blame).collect();
        let filling = self.filling.write().unwrap_or_else(PoisonError::into_inner).take();
        let mut documents = Vec::new();
        let mut batch = None;
        if let (Some(step), Some(filling)) = (&self.step, filling) {
            for (row, fault) in Collate::part(&mut samples) {
                let key = self.key(flow, row);
                bad.push((row, BadSample { key, stage: "batch", fault, left_out: false }));
            }
            batch = Some(flow.collate.finish(self.epoch, step.at.step, filling, samples));
        } else if let Some(step) = &self.step {
            let tokens = |sample: &mut Sample| match sample.take(field::INPUT_IDS) {
                Some(Value::Tokens(tokens)) => tokens,
                _ => Vec::new(),
            };
            for (row, sample) in samples.into_iter().enumerate() {
                let Some(mut sample) = sample else { continue };
                let (position, tokens) = (step.at.window + row as u64, tokens(&mut sample));
                documents.push(Document { key: sample.key, position, tokens });
            }
        }
        bad.sort_by_key(|(row, _)| *row);
        let bytes = batch.as_ref().map_or(0, ReadyBatch::bytes)
            + documents.iter().map(|document| document.tokens.len() * 4).sum::<usize>();
        Finished {
            batch,
            documents,
            bad: bad.into_iter().map(|(_, bad)| bad).collect(),
            last: (last, flow.names[slowest]),
            input,
            broken: None,
            bytes,
        }
    }
}

impl Worker<'_> {
    /// Carries a sample through all stages and into its row. Returns the stage that it spent the most time in, and how much.
    pub(super) fn sample(&mut self, unit: &Unit, row: usize) -> (usize, Duration) {
        let Self { flow, began: epoch, desk, meter, context, spent, scheduled } = self;
        let began = Instant::now();
        let slowest = (0, Duration::ZERO);
        let mut clock = Clock { flow, began: *epoch, desk, meter, spent, last: began, slowest };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                if let Some(sample) = unit.stages(flow, row, context, &mut clock)? {
                    return Ok(sample);
                }
                // It is not found like this again.
                flow.keeper.iter().for_each(Keeper::lost);
            }
        }));
        let result = outcome.unwrap_or_else(|panic| Err(said(&*panic)));
        let slowest = clock.slowest;
        let done = clock.last;
        let nanos = done.duration_since(began).as_nanos() as u64;
        spent.sample(Slowest { nanos, row, stage: slowest.0, queued_nanos: scheduled.note(meter, done) });
        let mut rows = lock(&unit.rows);
        match result {
            Ok(sample) => rows.samples[row] = Some(sample),
            Err(fault) => {
                let slot = desk.stage.load(Ordering::Relaxed) as usize;
                let by = flow.slots.iter().position(|known| *known == slot);
                let left_out = by.is_some_and(|number| flow.stages[number].leaves_out());
                let (key, stage) = (unit.key(flow, row), flow.names[slot]);
                rows.bad.push((row, BadSample { key, stage, fault, left_out }));
            }
        }
        slowest
    }
}

/// What a panic said.
pub(super) fn said(panic: &(dyn Any + Send)) -> Fault {
    let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
    let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    Fault::new(format!("panicked: {said}"))
}
