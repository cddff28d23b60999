//! Who does the work? Threads that claim the next samples due and carry each through all its stages.
//!
//! There is one queue, of steps, in order. A worker takes the next samples of the earliest step that has any left, in
//! runs long enough that taking them is not what it spends its time on; the one that finishes the last sample of a step
//! puts the batch together and wakes the consumer. When the queue is full, workers sleep. When an epoch has been handed
//! out, they go on with the next, so that its first batches are ready when they are asked for.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{
    clock::{Desk, Spent},
    flow::Flow,
    plan::{Cursor, EpochPlan, Step},
    report::{Meter, Scheduled},
    stage::Context,
    tune::Setting,
    unit::{Finished, Unit, Worker, said},
};
use crate::error::{Error, Fault, Result};

/// How often somebody who waits asks whether to go on waiting.
const INTERRUPT: Duration = Duration::from_millis(50);
/// A run of samples should take about this long: far more than claiming it costs, far less than anybody waits.
const RUN_NANOS: u64 = 300_000;

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

    /// Works with so many threads, so far ahead, from here on; or with as many as there can be.
    pub(crate) fn set(&self, setting: Setting) -> Result<Setting> {
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
        let setting = Setting { threads: setting.threads.min(threads.len()), ..setting };
        self.shared.active.store(setting.threads, Ordering::Relaxed);
        self.shared.depth.store(setting.depth, Ordering::Relaxed);
        drop(queue);
        self.shared.wanted.notify_all();
        self.shared.work.notify_all();
        Ok(setting)
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
            return Err(Error::Sample { key: unit.key(&shared.flow, 0), stage: "batch", fault });
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

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn work(&self, number: usize) {
        let flow = &*self.flow;
        let (desk, meter) = (&self.desks[number], &flow.meters[number]);
        let context = Context {
            seed: flow.seed,
            epoch: 0,
            stage: 0,
            cancel: self.stop.clone(),
            buffers: flow.collate.buffers.clone(),
            charges: Vec::new(),
        };
        let mut worker = Worker {
            flow,
            began: self.began,
            desk,
            meter,
            context,
            spent: Spent { nanos: vec![0; flow.names.len()], ..Spent::default() },
            scheduled: Scheduled::new(flow.measure),
        };
        while let Some(Claim { unit, from, to }) = self.claim(number, meter) {
            worker.context.epoch = unit.epoch;
            let began = Instant::now();
            for at in from..to {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                let row = unit.order[at] as usize;
                desk.unit.store(unit.number, Ordering::Relaxed);
                desk.row.store(row, Ordering::Relaxed);
                let (slowest, longest) = worker.sample(&unit, row);
                desk.since.store(0, Ordering::Relaxed);
                if at + 1 == to {
                    // Before the last of the run is counted off: whoever finishes the step must find it all there.
                    lock(&unit.spent).add(&mut worker.spent);
                }
                if unit.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    let began = Instant::now();
                    let mut finished =
                        catch_unwind(AssertUnwindSafe(|| unit.finish(flow, row, slowest))).unwrap_or_else(
                            |panic| Finished { broken: Some(said(&*panic)), ..Finished::default() },
                        );
                    let took = began.elapsed();
                    let batch = flow.names.len() - 1;
                    meter.add_time(batch, took);
                    if flow.measure && took > longest {
                        // What had to be done with all of them took longer than any stage of the sample that came last.
                        finished.last.1 = flow.names[batch];
                    }
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
        Unit::new(flow, epoch, step)
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
        let finished = empty.then(|| Finished { broken, ..unit.finish(&self.flow, 0, 0) });
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
                let key = unit.key(&self.flow, desk.row.load(Ordering::Relaxed));
                let stage = self.flow.names[desk.stage.load(Ordering::Relaxed) as usize];
                Error::Stuck { stage, key, elapsed, limit }
            })
        })
    }
}
