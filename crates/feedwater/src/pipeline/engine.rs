//! Who does the work? Threads that claim the next samples due and carry each through all its stages.
//!
//! There is one queue, of steps, in order. A worker takes the next samples of the earliest step that has any left, in
//! runs long enough that taking them is not what it spends its time on; the one that finishes the last sample of a step
//! puts the batch together and wakes the consumer. When the queue is full, workers sleep. When an epoch has been handed
//! out, they go on with the next, so that its first batches are ready when they are asked for.

use std::{
    any::Any,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use feedwater_profile::record::{Blame, Input};

use super::{
    build::Flow,
    clock::{Clock, Desk, Slowest, Spent},
    plan::{Cursor, EpochPlan, Step},
    policy::BadSample,
    report::{Meter, Scheduled},
    stage::Context,
    tune::Setting,
};
use crate::{
    batch::{
        collate::{Collate, Filling, Numbers},
        pack::Document,
    },
    cache::{Keeper, Kept, Outcome},
    deliver::ReadyBatch,
    error::{Error, Fault, Result},
    sample::{Sample, Value, field},
};

/// How often somebody who waits asks whether to go on waiting.
const INTERRUPT: Duration = Duration::from_millis(50);
/// A run of samples should take about this long: far more than claiming it costs, far less than anybody waits.
const RUN_NANOS: u64 = 300_000;
/// Where the cache is among what is measured, if there is one.
const CACHE: usize = 1;

pub(crate) struct Engine {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    flow: Arc<Flow>,
    queue: Mutex<Queue>,
    /// Told when there is work, or room for more.
    work: Condvar,
    /// Told when a step is ready.
    ready: Condvar,
    /// Told when more workers are wanted.
    wanted: Condvar,
    /// So many workers work, and so many steps are made ahead: both may change at any time.
    active: AtomicUsize,
    depth: AtomicUsize,
    planner: Mutex<Planner>,
    stop: Arc<AtomicBool>,
    desks: Vec<Desk>,
    /// What a sample costs, smoothed: for the length of runs.
    sample_nanos: AtomicU64,
    began: Instant,
}

struct Queue {
    entries: VecDeque<Entry>,
    next_unit: u64,
    planning: bool,
    /// Bytes of steps that are ready.
    ready_bytes: usize,
    /// Bytes of a step, smoothed.
    unit_bytes: usize,
}

struct Entry {
    unit: Arc<Unit>,
    claimed: usize,
    finished: Option<Finished>,
}

/// A step on its way.
#[derive(Default)]
struct Unit {
    number: u64,
    epoch: u64,
    /// `None`: here an epoch ends.
    step: Option<Step>,
    /// This rank's samples, a row each.
    samples: Vec<u64>,
    /// In which order they are taken: the longest first.
    order: Vec<u32>,
    left: AtomicUsize,
    filling: RwLock<Option<Filling>>,
    rows: Mutex<Rows>,
    spent: Mutex<Spent>,
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
    /// The sample that came last, and the stage that it spent the most time in.
    pub(crate) last: (String, &'static str),
    /// How it was made.
    pub(crate) input: Input,
    /// Putting the batch together failed: no sample's fault, and nothing to go on with.
    broken: Option<Fault>,
    bytes: usize,
}

/// What the consumer takes out.
pub(crate) struct Taken {
    pub(crate) epoch: u64,
    pub(crate) step: Option<Step>,
    pub(crate) finished: Finished,
    pub(crate) waited: Duration,
    /// Steps that were ready when it was asked for.
    pub(crate) ready: u64,
}

/// Where planning stands.
struct Planner {
    epoch: u64,
    at: Cursor,
    plan: Arc<EpochPlan>,
}

/// Samples to work on: rows `from..to` of the order of a unit.
struct Claim {
    unit: Arc<Unit>,
    from: usize,
    to: usize,
}

impl Engine {
    /// Starts at a place.
    pub(crate) fn start(flow: &Arc<Flow>, epoch: u64, at: Cursor, setting: Setting) -> Result<Self> {
        let desk = |_| Desk {
            unit: AtomicU64::new(0),
            row: AtomicUsize::new(0),
            stage: AtomicU32::new(0),
            since: AtomicU64::new(0),
        };
        let shared = Arc::new(Shared {
            flow: flow.clone(),
            queue: Mutex::new(Queue {
                entries: VecDeque::new(),
                next_unit: 0,
                planning: false,
                ready_bytes: 0,
                unit_bytes: 0,
            }),
            work: Condvar::new(),
            ready: Condvar::new(),
            wanted: Condvar::new(),
            active: AtomicUsize::new(0),
            depth: AtomicUsize::new(setting.depth),
            planner: Mutex::new(Planner { epoch, at, plan: Arc::new(flow.plan.epoch(epoch)) }),
            stop: Arc::default(),
            desks: (0..flow.meters.len()).map(desk).collect(),
            sample_nanos: AtomicU64::new(RUN_NANOS),
            began: Instant::now(),
        });
        let engine = Self { shared, threads: Mutex::default() };
        engine.set(setting)?;
        Ok(engine)
    }

    /// Works with so many threads, so far ahead, from here on.
    pub(crate) fn set(&self, setting: Setting) -> Result<()> {
        let mut threads = lock(&self.threads);
        for number in threads.len()..setting.threads.min(self.shared.desks.len()) {
            let shared = self.shared.clone();
            let spawned =
                thread::Builder::new().name(format!("feedwater-{number}")).spawn(move || shared.work(number));
            match spawned {
                Ok(thread) => threads.push(thread),
                Err(error) if threads.is_empty() => {
                    return Err(Error::config(format!("cannot start a thread: {error}")));
                }
                // Those that there are do it as well.
                Err(_) => break,
            }
        }
        let queue = lock(&self.shared.queue);
        self.shared.active.store(setting.threads.min(threads.len()), Ordering::Relaxed);
        self.shared.depth.store(setting.depth, Ordering::Relaxed);
        drop(queue);
        self.shared.wanted.notify_all();
        self.shared.work.notify_all();
        Ok(())
    }

    /// Whether the next step is ready.
    pub(crate) fn is_ready(&self) -> bool {
        lock(&self.shared.queue).entries.front().is_some_and(|entry| entry.finished.is_some())
    }

    /// The next step, when it is ready.
    pub(crate) fn take(&self) -> Result<Taken> {
        let shared = &*self.shared;
        let mut queue = lock(&shared.queue);
        let ready = queue.entries.iter().take_while(|entry| entry.finished.is_some()).count() as u64;
        let mut began = None;
        loop {
            if queue.entries.front().is_some_and(|entry| entry.finished.is_some()) {
                break;
            }
            began.get_or_insert_with(Instant::now);
            let patience = shared.flow.stuck_after.min(Duration::from_secs(2)) / 2;
            let patience = if shared.flow.interrupt.is_some() { patience.min(INTERRUPT) } else { patience };
            let (woken, waited) =
                shared.ready.wait_timeout(queue, patience).unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            if let Some(interrupt) = shared.flow.interrupt.as_ref().filter(|_| waited.timed_out()) {
                // Whoever is asked may wait for something that a worker holds.
                drop(queue);
                if interrupt() {
                    return Err(Error::Interrupted);
                }
                queue = lock(&shared.queue);
            }
            if let Some(stuck) = queue.entries.front().and_then(|entry| shared.stuck(&entry.unit)) {
                return Err(stuck);
            }
        }
        let waited = began.map(|began| began.elapsed()).unwrap_or_default();
        let entry = queue.entries.pop_front();
        let Some((unit, finished)) = entry.and_then(|entry| Some((entry.unit, entry.finished?))) else {
            return Err(Error::config("the queue lost a step"));
        };
        queue.ready_bytes -= finished.bytes;
        drop(queue);
        if let Some(fault) = finished.broken {
            let key = unit.samples.first().map_or_else(String::new, |index| shared.flow.source.key(*index));
            return Err(Error::Sample { key, stage: "batch", fault });
        }
        shared.work.notify_all();
        Ok(Taken { epoch: unit.epoch, step: unit.step.clone(), finished, waited, ready })
    }
}

impl Drop for Engine {
    /// Ends all threads. One that does not come back within a second is left behind: a stage of the user's that hangs
    /// must not hang the program.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.queue));
        self.shared.work.notify_all();
        self.shared.wanted.notify_all();
        let deadline = Instant::now() + Duration::from_secs(1);
        for thread in lock(&self.threads).drain(..) {
            while !thread.is_finished() && Instant::now() < deadline {
                thread::sleep(Duration::from_micros(200));
            }
            if thread.is_finished() {
                // A worker's panics are caught where they happen.
                let _ = thread.join();
            }
        }
    }
}

/// What a panic said.
fn said(panic: &(dyn Any + Send)) -> Fault {
    let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
    let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    Fault::new(format!("panicked: {said}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn work(&self, number: usize) {
        let flow = &*self.flow;
        let (desk, meter) = (&self.desks[number], &flow.meters[number]);
        let mut context = Context {
            seed: flow.seed,
            epoch: 0,
            stage: 0,
            cancel: self.stop.clone(),
            buffers: flow.collate.buffers.clone(),
            charges: Vec::new(),
        };
        let mut spent = Spent { nanos: vec![0; flow.names.len()], ..Spent::default() };
        let mut scheduled = Scheduled::new(flow.measure);
        while let Some(Claim { unit, from, to }) = self.claim(number, meter) {
            context.epoch = unit.epoch;
            let began = Instant::now();
            for at in from..to {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                let row = unit.order[at] as usize;
                desk.unit.store(unit.number, Ordering::Relaxed);
                desk.row.store(row, Ordering::Relaxed);
                let slowest =
                    self.sample(&unit, row, (desk, meter), &mut context, &mut spent, &mut scheduled);
                desk.since.store(0, Ordering::Relaxed);
                if at + 1 == to {
                    // Before the last of the run is counted off: whoever finishes the step must find it all there.
                    lock(&unit.spent).add(&mut spent);
                }
                if unit.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    let began = Instant::now();
                    let mut finished =
                        catch_unwind(AssertUnwindSafe(|| self.finish(&unit, row, slowest))).unwrap_or_else(
                            |panic| Finished { broken: Some(said(&*panic)), ..Finished::default() },
                        );
                    let took = began.elapsed();
                    meter.add_time(flow.names.len() - 1, took);
                    *finished.input.work_nanos.entry("batch".to_owned()).or_default() +=
                        took.as_nanos() as u64;
                    self.hand_over(unit.number, finished);
                    break;
                }
            }
            let each = began.elapsed().as_nanos() as u64 / (to - from).max(1) as u64;
            let known = self.sample_nanos.load(Ordering::Relaxed);
            self.sample_nanos.store((known * 7 + each) / 8, Ordering::Relaxed);
        }
    }

    /// The next samples due, of the earliest step that has any. Sleeps while there are none; nothing when it is over.
    fn claim(&self, number: usize, meter: &Meter) -> Option<Claim> {
        let mut queue = lock(&self.queue);
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            let active = self.active.load(Ordering::Relaxed);
            if number >= active {
                queue = self.wanted.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if let Some(entry) = queue.entries.iter_mut().find(|entry| entry.claimed < entry.unit.order.len())
            {
                let left = entry.unit.order.len() - entry.claimed;
                let worth = (RUN_NANOS / self.sample_nanos.load(Ordering::Relaxed).max(1)).max(1) as usize;
                // Not more than a fair share of what is left, or the last run keeps everybody waiting.
                let count = worth.min(left.div_ceil(active)).max(1);
                let from = entry.claimed;
                entry.claimed += count;
                return Some(Claim { unit: entry.unit.clone(), from, to: from + count });
            }
            let began = Instant::now();
            if queue.planning {
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                meter.starved_nanos.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
            } else if self.has_room(&queue) {
                queue.planning = true;
                drop(queue);
                let planned = catch_unwind(AssertUnwindSafe(|| self.plan())).map_err(|panic| said(&*panic));
                queue = lock(&self.queue);
                queue.planning = false;
                self.enqueue(&mut queue, planned);
            } else {
                drop(queue);
                let looked = self.look_ahead();
                queue = lock(&self.queue);
                if !looked && !self.has_room(&queue) && !self.stop.load(Ordering::Relaxed) {
                    queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                    meter.blocked_nanos.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
                }
            }
        }
    }

    fn has_room(&self, queue: &Queue) -> bool {
        let under_way = queue.entries.iter().filter(|entry| entry.finished.is_none()).count();
        let bytes = queue.ready_bytes + (under_way + 1) * queue.unit_bytes;
        // Until one was made, nobody knows how large they are.
        let fits = queue.unit_bytes > 0 && bytes <= self.flow.budget_bytes;
        queue.entries.is_empty() || (queue.entries.len() < self.depth.load(Ordering::Relaxed) && fits)
    }

    /// Plans the next step. Only one worker does at a time.
    fn plan(&self) -> Unit {
        let flow = &*self.flow;
        let mut planner = lock(&self.planner);
        let epoch = planner.epoch;
        let step = planner.plan.step(planner.at);
        if let Some(step) = &step {
            planner.at = step.next;
        } else {
            planner.epoch += 1;
            planner.at = Cursor::default();
            planner.plan = Arc::new(flow.plan.epoch(planner.epoch));
        }
        drop(planner);
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
        Unit {
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

    fn enqueue(&self, queue: &mut Queue, planned: Result<Unit, Fault>) {
        let (mut unit, broken) = match planned {
            Ok(unit) => (unit, None),
            Err(fault) => (Unit::default(), Some(fault)),
        };
        unit.number = queue.next_unit;
        queue.next_unit += 1;
        // A step without samples of this rank's, and an epoch's end, are ready as they are.
        let empty = unit.samples.is_empty();
        let finished = empty.then(|| Finished { broken, ..self.finish(&unit, 0, 0) });
        queue.entries.push_back(Entry { unit: Arc::new(unit), claimed: 0, finished });
        self.work.notify_all();
        if empty {
            self.ready.notify_all();
        }
    }

    /// Uses idle time to plan what comes next. Says whether there was anything to do.
    fn look_ahead(&self) -> bool {
        let planner = lock(&self.planner);
        let (plan, at) = (planner.plan.clone(), planner.at);
        drop(planner);
        plan.look_ahead(at)
    }

    /// Carries a sample through all stages and into its row. Returns the stage that it spent the most time in.
    fn sample(
        &self,
        unit: &Unit,
        row: usize,
        (desk, meter): (&Desk, &Meter),
        context: &mut Context,
        spent: &mut Spent,
        scheduled: &mut Scheduled,
    ) -> usize {
        let flow = &*self.flow;
        let index = unit.samples[row];
        let began = Instant::now();
        let mut clock =
            Clock { flow, began: self.began, desk, meter, spent, last: began, slowest: (0, Duration::ZERO) };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                if let Some(sample) = self.stages(unit, row, index, context, &mut clock)? {
                    return Ok(sample);
                }
                // It is not found like this again.
                flow.keeper.iter().for_each(Keeper::lost);
            }
        }));
        let result = outcome.unwrap_or_else(|panic| Err(said(&*panic)));
        let slowest = clock.slowest.0;
        let done = clock.last;
        let nanos = done.duration_since(began).as_nanos() as u64;
        spent.sample(Slowest { nanos, row, stage: slowest, queued_nanos: scheduled.note(meter, done) });
        let mut rows = lock(&unit.rows);
        match result {
            Ok(sample) => rows.samples[row] = Some(sample),
            Err(fault) => {
                let slot = desk.stage.load(Ordering::Relaxed) as usize;
                let by = flow.slots.iter().position(|known| *known == slot);
                let left_out = by.is_some_and(|number| flow.stages[number].leaves_out());
                let (key, stage) = (flow.source.key(index), flow.names[slot]);
                rows.bad.push((row, BadSample { key, stage, fault, left_out }));
            }
        }
        slowest
    }

    /// Nothing where what was kept of the sample turned out not to be whole: it is to be begun again.
    fn stages(
        &self,
        unit: &Unit,
        row: usize,
        index: u64,
        context: &mut Context,
        clock: &mut Clock,
    ) -> Result<Option<Sample>, Fault> {
        let flow = &*self.flow;
        clock.enter(0);
        let mut sample = flow.source.sample(index)?;
        clock.leave(0, context, sample.bytes());
        let (mut missing, mut whole) = (None, None);
        let mut done = 0;
        if let Some(keeper) = &flow.keeper {
            clock.enter(CACHE);
            // Nothing is done to it any more: its numbers go from where they are kept into the row.
            let last =
                keeper.stages == flow.stages.len() && flow.packed.is_none() && flow.collate.has_fixed();
            match keeper.fetch(&mut sample, context, last) {
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
        if let Some(filling) = &*unit.filling.read().unwrap_or_else(PoisonError::into_inner) {
            let bytes = sample.bytes();
            let place = |sample: &mut Sample, numbers: Option<(&str, Numbers)>| {
                // SAFETY: a row is claimed by one worker; the rows of a unit are distinct.
                unsafe { flow.collate.place(filling, row, sample, numbers) }
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
    fn finish(&self, unit: &Unit, last_row: usize, slowest: usize) -> Finished {
        let flow = &*self.flow;
        let (mut samples, mut bad) = {
            let mut rows = lock(&unit.rows);
            (std::mem::take(&mut rows.samples), std::mem::take(&mut rows.bad))
        };
        let key =
            |row: usize| unit.samples.get(row).map_or_else(String::new, |index| flow.source.key(*index));
        let last = key(last_row);
        let spent = std::mem::take(&mut *lock(&unit.spent));
        let mut input = Input { read_bytes: spent.read_bytes, ..Input::default() };
        for (name, nanos) in flow.names.iter().zip(&spent.nanos) {
            *input.work_nanos.entry((*name).to_owned()).or_default() += nanos;
        }
        let blame = |slow: Slowest| Blame {
            key: key(slow.row),
            stage: flow.names[slow.stage].to_owned(),
            nanos: slow.nanos,
            queued_nanos: slow.queued_nanos,
        };
        input.slowest = spent.slowest.into_iter().filter(|slow| slow.nanos > 0).map(blame).collect();
        let filling = unit.filling.write().unwrap_or_else(PoisonError::into_inner).take();
        let mut documents = Vec::new();
        let mut batch = None;
        if let (Some(step), Some(filling)) = (&unit.step, filling) {
            for (row, fault) in Collate::part(&mut samples) {
                let key = flow.source.key(unit.samples[row]);
                bad.push((row, BadSample { key, stage: "batch", fault, left_out: false }));
            }
            batch = Some(flow.collate.finish(unit.epoch, step.at.step, filling, samples));
        } else if let Some(step) = &unit.step {
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

    fn hand_over(&self, number: u64, finished: Finished) {
        let mut queue = lock(&self.queue);
        let first_of_all = queue.unit_bytes == 0;
        queue.ready_bytes += finished.bytes;
        queue.unit_bytes = if queue.unit_bytes == 0 {
            finished.bytes.max(1)
        } else {
            (queue.unit_bytes * 3 + finished.bytes) / 4
        };
        let first = queue.entries.front().map_or(number, |entry| entry.unit.number);
        if let Some(entry) = queue.entries.get_mut((number - first) as usize) {
            entry.finished = Some(finished);
        }
        let is_front = number == first;
        drop(queue);
        if first_of_all {
            // Now that its size is known, there may be room for more.
            self.work.notify_all();
        }
        if is_front {
            self.ready.notify_all();
        }
    }

    /// The error for a worker that has been in one stage of this step for too long.
    fn stuck(&self, unit: &Unit) -> Option<Error> {
        let now = self.began.elapsed().as_nanos() as u64;
        let limit = self.flow.stuck_after;
        self.desks.iter().find_map(|desk| {
            let since = desk.since.load(Ordering::Relaxed);
            let elapsed = Duration::from_nanos(now.saturating_sub(since));
            let here = since > 0 && desk.unit.load(Ordering::Relaxed) == unit.number && elapsed > limit;
            here.then(|| {
                let row = desk.row.load(Ordering::Relaxed);
                let key =
                    unit.samples.get(row).map_or_else(String::new, |index| self.flow.source.key(*index));
                let stage = self.flow.names[desk.stage.load(Ordering::Relaxed) as usize];
                Error::Stuck { stage, key, elapsed, limit }
            })
        })
    }
}
