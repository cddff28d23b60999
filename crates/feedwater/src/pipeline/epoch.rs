//! What does the trainer see? Batches, one after the other, and a state that says which of them it has had.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use feedwater_profile::record::{Blame, Input};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    engine::{Engine, Taken},
    flow::Flow,
    plan::Cursor,
    policy::Quarantine,
    report::{self, Consumed, Report, Wait},
    state::State,
    tune::{Seen, Setting, Tuner},
    unit::Finished,
};
use crate::{
    batch::pack::{Packer, cursor_after},
    cache::CacheReport,
    deliver::ReadyBatch,
    error::{Error, Result},
};

/// A pipeline that is ready to run. Threads start when the first batch is asked for, and end when it is dropped.
pub struct Pipeline {
    flow: Arc<Flow>,
    engine: Option<Engine>,
    /// What was consumed.
    state: State,
    /// Whether `state` was put there from outside, so that the epoch is to be entered in its midst.
    restored: bool,
    quarantine: Quarantine,
    consumed: Consumed,
    tuner: Tuner,
    /// When the last batch was handed over.
    handed_over: Option<Instant>,
}

impl Pipeline {
    pub(crate) fn new(flow: Flow, state: State) -> Self {
        let quarantine = Quarantine::new(flow.policy.clone(), flow.rank, flow.world);
        let tuner = Tuner::new(flow.limits, flow.setting);
        Self {
            tuner,
            handed_over: None,
            flow: Arc::new(flow),
            engine: None,
            state,
            restored: false,
            quarantine,
            consumed: Consumed::default(),
        }
    }

    /// The batches of an epoch; the rest of it where a state was restored in its midst.
    ///
    /// Epochs that are read one after the other flow into each other: the first batches of the next are made while the
    /// last of this one are consumed. Dropping an epoch before its end stops all threads; asking for it again starts it
    /// over, unless a state is restored first.
    pub fn epoch(&mut self, epoch: u64) -> Epoch<'_> {
        let reading = self.begin(epoch);
        Epoch { pipeline: self, reading }
    }

    /// The same as [`epoch`](Self::epoch), for who cannot hold on to a borrow: what it gives back goes into
    /// [`next`](Self::next), and [`stop`](Self::stop) is for who leaves early.
    pub fn begin(&mut self, epoch: u64) -> Reading {
        let here = self.state.epoch == epoch;
        let goes_on =
            here && (self.restored || (self.engine.is_some() && self.state.at == Cursor::default()));
        if !goes_on {
            self.engine = None;
            self.state = State { epoch, at: Cursor::default(), bad: 0, consumed: 0, ..self.state.clone() };
        }
        self.quarantine.begin_epoch(self.state.at != Cursor::default());
        self.restored = false;
        let packer = self.flow.packed.map(|(length, blocks)| Packing {
            packer: Packer::new(length, blocks as usize, self.state.at.within as usize),
            next: self.state.at.window,
            ended: false,
            input: Input::default(),
            wait_nanos: 0,
        });
        Reading { epoch, packing: packer, done: false }
    }

    /// The next batch of an epoch that was begun.
    pub fn next(&mut self, reading: &mut Reading) -> Option<Result<ReadyBatch>> {
        if reading.done {
            return None;
        }
        let own = self.handed_over.map(|at| at.elapsed());
        let mut next = self.read(reading).transpose();
        if let Some(Ok(batch)) = &mut next {
            let Setting { threads, depth } = self.tuner.setting;
            (batch.input.threads, batch.input.prefetch) = (Some(threads), Some(depth));
            if let Some(own) = own {
                batch.input.tuned = self.tune(batch, own);
            }
        }
        self.handed_over = Some(Instant::now());
        match &next {
            None => reading.done = true,
            // Nothing was lost: it can be asked again.
            Some(Ok(_) | Err(Error::Interrupted)) => {}
            Some(Err(_)) => {
                reading.done = true;
                self.engine = None;
            }
        }
        next
    }

    /// Whether the next batch is there, so that asking for it does not wait.
    pub fn is_ready(&self) -> bool {
        self.engine.as_ref().is_some_and(Engine::is_ready)
    }

    /// Ends all threads. What was made ahead is lost; what was consumed is not.
    pub fn stop(&mut self) {
        self.engine = None;
    }

    /// Looks at how a step went, and changes what would make the next ones shorter. Says what was found out.
    fn tune(&mut self, batch: &ReadyBatch, own: Duration) -> Vec<String> {
        let input = &batch.input;
        let computed = input.cpu_nanos.map(|cpu| (cpu + input.queued_nanos.unwrap_or(0)) as f64);
        let seen = Seen {
            wait: batch.wait_nanos as f64,
            own: own.as_nanos() as f64,
            work: input.total_work_nanos() as f64,
            computed,
        };
        if let (Some(setting), Some(engine)) = (self.tuner.step(seen), &self.engine) {
            // There is a thread already, so this cannot fail; if it did, all would stay as it is.
            if let Ok(setting) = engine.set(setting) {
                self.tuner.setting = setting;
            }
        }
        std::mem::take(&mut self.tuner.said)
    }

    fn read(&mut self, reading: &mut Reading) -> Result<Option<ReadyBatch>> {
        if reading.packing.is_some() {
            return self.read_packed(reading);
        }
        let mut taken = self.take()?;
        self.book(&taken)?;
        let input = self.input(&mut taken);
        let wait_nanos = taken.waited.as_nanos() as u64;
        let Taken { step, finished: Finished { batch, .. }, .. } = taken;
        let (Some(step), Some(mut batch)) = (step, batch) else {
            self.end_epoch()?;
            return Ok(None);
        };
        (batch.input, batch.wait_nanos) = (input, wait_nanos);
        self.advance(step.next, &step.samples, &mut batch);
        Ok(Some(batch))
    }

    fn read_packed(&mut self, reading: &mut Reading) -> Result<Option<ReadyBatch>> {
        let flow = self.flow.clone();
        let Some(packing) = &mut reading.packing else { return Ok(None) };
        while !packing.packer.is_full() && !packing.ended {
            let mut taken = self.take()?;
            self.book(&taken)?;
            packing.add(self.input(&mut taken), taken.waited);
            match &taken.step {
                Some(step) => packing.next = step.next.window,
                None => packing.ended = true,
            }
            for document in taken.finished.documents {
                packing.packer.push(document);
            }
        }
        let dropped = flow.plan.drop_last && !packing.packer.is_full();
        if packing.packer.is_empty() || dropped {
            self.end_epoch()?;
            return Ok(None);
        }
        let step = self.state.at.step;
        let mut batch = packing.packer.pack(&flow.collate, reading.epoch, step, flow.rank, flow.world);
        let next = cursor_after(&packing.packer, step + 1, packing.next);
        batch.input = std::mem::take(&mut packing.input);
        // What was left of the documents before may be enough for it: then it is known that nothing was done.
        if batch.input.work_nanos.is_empty() {
            batch.input.work_nanos = flow.names.iter().map(|name| ((*name).to_owned(), 0)).collect();
        }
        batch.wait_nanos = std::mem::take(&mut packing.wait_nanos);
        self.advance(next, &[next.window, next.within], &mut batch);
        Ok(Some(batch))
    }

    /// What was consumed so far: the place to go on from.
    pub fn state(&self) -> State {
        self.state.clone()
    }

    /// Goes on from a place: the next call of [`epoch`](Self::epoch) with the state's epoch gives the rest of it.
    ///
    /// The dataset, the stages, the seed and the samples of a step of all ranks together must be the same; threads,
    /// prefetch and the number of ranks need not.
    pub fn restore(&mut self, state: &State) -> Result<()> {
        state.check(&self.state)?;
        self.engine = None;
        if state.plan_world != self.state.plan_world {
            // Only a worker that hangs in a stage can still hold on to the flow.
            let busy = || Error::config("a stage still runs from before; build the pipeline anew to restore");
            Arc::get_mut(&mut self.flow).ok_or_else(busy)?.plan_for(state.plan_world);
        }
        self.state = state.clone();
        self.restored = true;
        Ok(())
    }

    /// How many steps an epoch has; not known before it is over where batches have a budget or documents are packed.
    pub fn steps(&self) -> Option<u64> {
        self.flow.plan.steps()
    }

    /// How many samples the dataset has, after long clips were cut.
    pub fn samples(&self) -> u64 {
        self.flow.plan.length
    }

    /// The names of the classes, where labels are names.
    pub fn classes(&self) -> &[String] {
        self.flow.source.classes()
    }

    /// What was done so far, and where the time went.
    pub fn report(&self) -> Report {
        let Consumed { batches, samples, bad, wait_nanos, waits, began, last, .. } = &self.consumed;
        let wall = began.zip(*last).map(|(began, last)| last.duration_since(began)).unwrap_or_default();
        Report {
            stages: report::stages(&self.flow.names, &self.flow.meters),
            batches: *batches,
            samples: *samples,
            bad: *bad,
            bad_samples: self.quarantine.bad,
            wait_nanos: *wait_nanos,
            wall_nanos: wall.as_nanos() as u64,
            waits: VecDeque::clone(waits).into(),
            threads: self.tuner.setting.threads,
            prefetch: self.tuner.setting.depth,
            tuning: self.tuner.decisions.clone(),
            cache: match (&self.flow.keeper, &self.flow.not_kept) {
                (Some(keeper), _) => Some(keeper.report()),
                (None, why) => why.clone().map(|why| CacheReport::off(Some(why))),
            },
        }
    }

    fn take(&mut self) -> Result<Taken> {
        if self.engine.is_none() {
            self.engine =
                Some(Engine::start(&self.flow, self.state.epoch, self.state.at, self.tuner.setting)?);
        }
        self.consumed.began.get_or_insert_with(Instant::now);
        match &self.engine {
            Some(engine) => engine.take(),
            None => Err(Error::config("the engine did not start")),
        }
    }

    /// Books what was taken out: waits, bad samples.
    fn book(&mut self, taken: &Taken) -> Result<()> {
        let Taken { epoch, step, finished, waited, .. } = taken;
        let number = step.as_ref().map_or(0, |step| step.at.step);
        if step.is_some() {
            let wait_nanos = waited.as_nanos() as u64;
            let (key, stage) = if waited.is_zero() {
                (String::new(), "")
            } else {
                (finished.last.0.clone(), finished.last.1)
            };
            self.consumed.wait(Wait { epoch: *epoch, step: number, wait_nanos, key, stage });
        }
        let mine = self.flow.plan.length.div_ceil(if self.flow.packed.is_some() {
            1
        } else {
            self.flow.world as u64
        });
        let travel = finished.batch.iter().flat_map(|batch| &batch.valid).filter(|valid| **valid).count();
        self.quarantine.note_good((travel + finished.documents.len()) as u64);
        for bad in &finished.bad {
            let counts = u64::from(!bad.left_out);
            self.state.bad += counts;
            self.consumed.bad += counts;
            self.quarantine.note(bad, (*epoch, number), self.state.bad, mine)?;
        }
        Ok(())
    }

    /// What a step that was taken out adds to what is known about how its batch was made.
    fn input(&mut self, taken: &mut Taken) -> Input {
        let mut input = std::mem::take(&mut taken.finished.input);
        input.ready = Some(taken.ready);
        if !taken.waited.is_zero() {
            let (key, stage) = &taken.finished.last;
            let nanos = taken.waited.as_nanos() as u64;
            input.waited_for =
                Some(Blame { key: key.clone(), stage: (*stage).to_owned(), nanos, queued_nanos: 0 });
        }
        if let Some(now) = report::scheduled(&self.flow.meters) {
            let last = std::mem::replace(&mut self.consumed.scheduled, now);
            input.cpu_nanos = Some(now.0.saturating_sub(last.0));
            input.queued_nanos = Some(now.1.saturating_sub(last.1));
        }
        input
    }

    fn advance(&mut self, next: Cursor, samples: &[u64], batch: &mut ReadyBatch) {
        (batch.input.bytes, batch.input.padding_bytes, batch.input.padding_to_longest_bytes) =
            batch.padding();
        self.state.consumed = xxh3_64_with_seed(bytemuck::cast_slice(samples), self.state.consumed);
        self.state.at = next;
        self.consumed.batches += 1;
        self.consumed.samples += batch.rows() as u64;
        self.consumed.last = Some(Instant::now());
    }

    fn end_epoch(&mut self) -> Result<()> {
        self.quarantine.end_epoch()?;
        let epoch = self.state.epoch + 1;
        self.state = State { epoch, at: Cursor::default(), bad: 0, consumed: 0, ..self.state.clone() };
        Ok(())
    }
}

/// Where in an epoch somebody is who reads it.
pub struct Reading {
    epoch: u64,
    packing: Option<Packing>,
    done: bool,
}

/// The batches of one epoch.
pub struct Epoch<'p> {
    pipeline: &'p mut Pipeline,
    reading: Reading,
}

struct Packing {
    packer: Packer,
    /// The position after the last document that was pushed.
    next: u64,
    ended: bool,
    /// How the documents since the last batch were made.
    input: Input,
    wait_nanos: u64,
}

impl Packing {
    /// Adds a run of documents to what the next batch is made of.
    fn add(&mut self, input: Input, waited: Duration) {
        self.wait_nanos += waited.as_nanos() as u64;
        self.input.merge(input);
    }
}

impl Epoch<'_> {
    /// What was consumed so far.
    pub fn state(&self) -> State {
        self.pipeline.state()
    }

    /// What was done so far, and where the time went.
    pub fn report(&self) -> Report {
        self.pipeline.report()
    }
}

impl Iterator for Epoch<'_> {
    type Item = Result<ReadyBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        self.pipeline.next(&mut self.reading)
    }
}

impl Drop for Epoch<'_> {
    fn drop(&mut self) {
        if !self.reading.done {
            self.pipeline.stop();
        }
    }
}
