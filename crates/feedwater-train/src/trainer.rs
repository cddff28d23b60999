//! What happens from the first batch to the last? The loop: batches, loss, gradients, a step; now and then an evaluation
//! and a checkpoint. What it does is told in [`Event`]s, so that it prints nothing itself.

use std::{
    cmp::Ordering::Less,
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::Receiver,
    },
    time::{Duration, Instant},
};

use feedwater::{Batch, Pad, Pipeline, State, Threads};
use feedwater_profile::{
    Record,
    record::{self, Recorder, Run, Step},
};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    checkpoint::{Checkpoint, Checkpoints, Progress},
    device::Devices,
    metrics::{ErrorRate, cer, wer},
    optimizer::{AdamW, Optimizer, Schedule},
    recipes::{Learns, Recipe, has_samples},
    ring::{self, Ready},
    weights::Weights,
};

/// How a model is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Samples in a micro-batch.
    pub batch_size: u64,
    /// Micro-batches in a step.
    pub accumulation: u32,
    /// Steps in all.
    pub max_steps: u64,
    /// The highest rate.
    pub learning_rate: f64,
    /// Steps in which it rises.
    pub warm_up: u64,
    /// How it falls.
    pub schedule: Schedule,
    /// The optimizer.
    pub adamw: AdamW,
    /// The longest that a step's gradient may be.
    pub clip: Option<f64>,
    /// Where all random numbers come from.
    pub seed: u64,
    /// Steps between evaluations.
    pub evaluate_every: u64,
    /// Steps between checkpoints.
    pub checkpoint_every: u64,
    /// So many evaluations without a better one end the run.
    pub patience: Option<u32>,
    /// Windows of so many batches are sorted by length.
    pub buckets: u64,
    /// Threads that make batches; found out, unless given. What is learned does not depend on it.
    pub threads: Option<usize>,
    /// Batches made ahead; nor on this.
    pub prefetch: Option<usize>,
    /// The share of the cores that making batches may keep busy; nor on this.
    pub cpu_ceiling: Option<f64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch_size: 16,
            accumulation: 1,
            max_steps: 1_000,
            learning_rate: 1e-3,
            warm_up: 50,
            schedule: Schedule::Cosine,
            adamw: AdamW::default(),
            clip: Some(1.0),
            seed: 7,
            evaluate_every: 100,
            checkpoint_every: 100,
            patience: None,
            buckets: 8,
            threads: None,
            prefetch: None,
            cpu_ceiling: None,
        }
    }
}

/// The data of a run.
pub struct Feed {
    /// What is learned from.
    pub training: Pipeline,
    /// What it is tried on, where there is something.
    pub held_out: Option<Pipeline>,
}

/// A step that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Took {
    /// Its number, from 1.
    pub step: u64,
    /// The mean loss.
    pub loss: f64,
    /// The rate.
    pub rate: f64,
    /// The norm of the gradient, before it was clipped.
    pub norm: f64,
    /// How long it took.
    pub nanos: u64,
    /// How long of that it waited for batches.
    pub wait_nanos: u64,
    /// Samples in it.
    pub rows: u64,
}

/// How the model did on the samples that were held out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// After this step.
    pub step: u64,
    /// The mean loss.
    pub loss: f64,
    /// How many of its guesses are wrong.
    pub wrong: Wrong,
}

/// How many guesses are wrong, as shares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Wrong {
    /// Of transcripts.
    Texts {
        /// The character error rate.
        cer: f64,
        /// The word error rate.
        wer: f64,
    },
    /// Of classes.
    Classes {
        /// Samples whose class is wrong.
        error: f64,
    },
    /// There is nothing to be wrong about but the loss.
    Nothing,
}

impl Score {
    fn recorded(&self) -> record::Score {
        let named = |name: &str, value: f64| (name.to_owned(), value);
        let shares = match self.wrong {
            Wrong::Texts { cer, wer } => vec![named("cer", cer), named("wer", wer)],
            Wrong::Classes { error } => vec![named("error", error)],
            Wrong::Nothing => Vec::new(),
        };
        record::Score { steps: self.step, loss: Some(self.loss), shares: shares.into_iter().collect() }
    }

    /// What makes one score better than another: less of it.
    pub fn judged(&self) -> f64 {
        match self.wrong {
            Wrong::Texts { cer, .. } => cer,
            Wrong::Classes { error } => error,
            Wrong::Nothing => self.loss,
        }
    }
}

/// What happened.
#[derive(Debug)]
pub enum Event<'a> {
    /// The run goes on from here.
    Resumed(&'a Path, u64),
    /// A step.
    Step(Took),
    /// An evaluation; whether it is the best so far.
    Evaluated(Score, bool),
    /// A checkpoint was written.
    Saved(&'a Path),
    /// Something that the user should know, and that does not end the run.
    Warning(String),
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Steps in all, those before it was resumed among them.
    pub steps: u64,
    /// The last evaluation.
    pub last: Option<Score>,
    /// The best, by what is wrong, and its step.
    pub best: Option<(f64, u64)>,
    /// Why it ended.
    pub ended: Ended,
    /// The folder of the best weights, or of the last.
    pub model: Option<PathBuf>,
    /// The share of the time in which steps did not wait for batches.
    pub busy: f64,
    /// The share of the time in which the data device prepared batches.
    pub data_busy: f64,
    /// How many cores' time making batches took, where the system says so.
    pub loader_cores: f64,
    /// What the loader did: its cache, and what it changed while it ran.
    pub loader: feedwater::Report,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All steps were taken.
    Steps,
    /// It got no better.
    Patience,
    /// Somebody asked.
    Asked,
}

/// The batches of a recipe's pipeline, as a run wants them.
pub fn batches(builder: feedwater::Builder, settings: &Settings, training: bool) -> Result<Pipeline> {
    let batch = Batch::of(settings.batch_size).buckets(settings.buckets).pad(Pad::Longest);
    let threads = settings.threads.map_or(Threads::Auto, Threads::Exactly);
    let builder = builder.batch(batch).seed(settings.seed).shuffle(training);
    let mut builder = builder.threads(threads).cpu_ceiling(settings.cpu_ceiling.unwrap_or(1.0));
    if let Some(batches) = settings.prefetch {
        builder = builder.prefetch(batches);
    }
    Ok(builder.build()?)
}

/// What a run that goes on may have otherwise.
const FREE: [&str; 7] =
    ["max_steps", "evaluate_every", "checkpoint_every", "patience", "threads", "prefetch", "cpu_ceiling"];

/// A run.
pub struct Trainer<'a, R: ?Sized> {
    /// What is trained.
    pub recipe: &'a R,
    /// How.
    pub settings: &'a Settings,
    /// Where the data is prepared, and where the model is.
    pub devices: Devices,
    /// Where its checkpoints are.
    pub checkpoints: Checkpoints,
    /// Where its record goes.
    pub record: Option<(PathBuf, Run)>,
    /// Set by whoever wants it to end after the step that it is at.
    pub stop: &'a AtomicBool,
}

impl<R: Recipe + ?Sized> Trainer<'_, R> {
    /// Trains from these weights, or from where the newest checkpoint is.
    ///
    /// # Panics
    ///
    /// Never: settings are plain data.
    pub fn run(
        &self,
        mut weights: Weights,
        mut feed: Feed,
        resume: bool,
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<(Weights, Summary)> {
        let settings = self.settings;
        let mut optimizer = Optimizer::new(settings.adamw, &weights);
        let mut progress = Progress {
            step: 0,
            feed: String::new(),
            best: None,
            best_loss: None,
            evaluations_since_best: 0,
            settings: serde_json::to_value(settings).expect("settings are plain data"),
        };
        if resume {
            let (found, wrong) = self.checkpoints.newest();
            let torn = wrong.len();
            for error in wrong {
                tell(Event::Warning(format!("{error}; the one before it is looked at")));
            }
            match found {
                None if torn > 0 => {
                    return Err(Error::config(
                        "none of the checkpoints can be used",
                        "another --output-dir, to begin anew",
                    ));
                }
                None => {
                    tell(Event::Warning("there is no checkpoint to go on from: it begins anew".to_owned()));
                }
                Some(_) => {}
            }
            if let Some(checkpoint) = found {
                (weights, optimizer) = self.resume(&checkpoint, &weights)?;
                feed.training.restore(&State::from_json(&checkpoint.progress.feed)?)?;
                tell(Event::Resumed(&checkpoint.path, checkpoint.progress.step));
                progress = checkpoint.progress;
            }
        }
        let Feed { mut training, mut held_out } = feed;
        let mut run = Underway {
            recorder: self.recorder(progress.step, tell)?,
            state: training.state(),
            saved: (resume && progress.step > 0).then_some(progress.step),
            ended: Ended::Steps,
            last: None,
            time: Spent::default(),
            weights,
            optimizer,
            progress,
        };
        let left = settings
            .max_steps
            .saturating_sub(run.progress.step)
            .saturating_mul(u64::from(settings.accumulation.max(1)));
        std::thread::scope(|scope| {
            let batches = ring::start(scope, self.recipe, &mut training, left, &self.devices);
            self.steps(&mut run, &batches, held_out.as_mut(), tell)
        })?;
        let Underway { weights, progress, recorder, ended, last, time, .. } = run;
        if let Some(Err(error)) = recorder.map(|recorder| recorder.end(Duration::ZERO)) {
            tell(Event::Warning(format!("the record has no end: {error}")));
        }
        let model = self.checkpoints.model(&progress);
        let share = |nanos: u64| nanos as f64 / time.all.max(1) as f64;
        let summary = Summary {
            steps: progress.step,
            last,
            best: progress.best,
            ended,
            model,
            busy: 1.0 - share(time.wait),
            data_busy: share(time.prepare),
            loader_cores: share(time.loader),
            loader: training.report(),
        };
        Ok((weights, summary))
    }

    /// All steps, with what happens between them.
    fn steps(
        &self,
        run: &mut Underway,
        batches: &Receiver<Result<Ready>>,
        mut held_out: Option<&mut Pipeline>,
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<()> {
        let settings = self.settings;
        while run.progress.step < settings.max_steps {
            if self.stop.load(Ordering::Relaxed) {
                run.ended = Ended::Asked;
                if run.progress.step > 0 {
                    self.save(run, tell);
                }
                return Ok(());
            }
            let (took, step) = self.step(run, batches)?;
            run.progress.step = took.step;
            run.record(tell, |recorder| recorder.step(&step));
            tell(Event::Step(took));

            let at_end = run.progress.step == settings.max_steps;
            let due = |every: u64| at_end || took.step.is_multiple_of(every.max(1));
            let mut save = due(settings.checkpoint_every);
            if due(settings.evaluate_every)
                && let Some(held_out) = held_out.as_deref_mut()
            {
                let score = self.evaluate(&run.weights, held_out, took.step)?;
                let best = &mut run.progress.best;
                let before = run.progress.best_loss.unwrap_or(f64::INFINITY);
                // As long as all is wrong, a smaller loss is how it gets better.
                let better = best.is_none_or(|(best, _)| {
                    (score.judged(), score.loss).partial_cmp(&(best, before)) == Some(Less)
                });
                run.progress.evaluations_since_best += 1;
                if better {
                    *best = Some((score.judged(), took.step));
                    run.progress.best_loss = Some(score.loss);
                    run.progress.evaluations_since_best = 0;
                }
                save |= better;
                run.last = Some(score);
                run.record(tell, |recorder| recorder.score(&score.recorded()));
                tell(Event::Evaluated(score, better));
                if settings.patience.is_some_and(|patience| run.progress.evaluations_since_best >= patience) {
                    run.ended = Ended::Patience;
                    save = true;
                }
            }
            if save {
                self.save(run, tell);
            }
            if run.ended != Ended::Steps {
                break;
            }
        }
        Ok(())
    }

    /// The record, with what an earlier part of the run wrote of its first steps.
    fn recorder(&self, steps: u64, tell: &mut dyn FnMut(Event<'_>)) -> Result<Option<Recorder>> {
        let Some((path, run)) = &self.record else { return Ok(None) };
        if steps >= self.settings.max_steps {
            // There is nothing to add to what is there.
            return Ok(None);
        }
        let before = (steps > 0).then(|| Record::open(path)).and_then(|opened| {
            let told =
                |error| tell(Event::Warning(format!("the record of the first steps is lost: {error}")));
            opened.map_err(told).ok()
        });
        let begin = || -> feedwater_profile::Result<Recorder> {
            let mut recorder = Recorder::create(path, run)?;
            let Some(before) = before else { return Ok(recorder) };
            let mut scores = before.scores.iter().filter(|score| score.steps <= steps).peekable();
            for step in before.steps.iter().filter(|step| step.step < steps) {
                recorder.step(step)?;
                while let Some(score) = scores.next_if(|score| score.steps <= step.step + 1) {
                    recorder.score(score)?;
                }
            }
            recorder.flush()?;
            Ok(recorder)
        };
        begin().map(Some).map_err(|error| {
            Error::config(format!("no record can be written: {error}"), "leave it out, or name another file")
        })
    }

    fn resume(&self, checkpoint: &Checkpoint, fresh: &Weights) -> Result<(Weights, Optimizer)> {
        let wrong = |what: String| Error::Checkpoint { path: checkpoint.path.clone(), what };
        fresh.fits(&checkpoint.model).map_err(|what| wrong(format!("{what}; it is of another model")))?;
        let (kept, mut now) = (checkpoint.progress.settings.clone(), serde_json::to_value(self.settings));
        // How long it lasts and how often it is looked at may change; what it learns may not.
        if let Ok(now) = &mut now {
            for name in FREE {
                now[name] = kept[name].clone();
            }
            if let Some(changed) =
                kept.as_object().and_then(|kept| kept.iter().find(|(name, old)| now[name] != **old))
            {
                let (name, old) = changed;
                return Err(Error::config(
                    format!("the run that is resumed has `{name}` {old}, and here it is {}", now[name]),
                    "the same settings, or another folder for another run",
                ));
            }
        }
        let weights = fresh.with(checkpoint.model.clone());
        let steps = checkpoint.progress.step;
        let optimizer = Optimizer::from_named(self.settings.adamw, steps, &checkpoint.optimizer, &weights)?;
        Ok((weights, optimizer))
    }

    fn step(&self, run: &mut Underway, batches: &Receiver<Result<Ready>>) -> Result<(Took, Step)> {
        let settings = self.settings;
        let began = Instant::now();
        let (mut loss, mut rows, mut spent) = (0.0, 0, Spent::default());
        let mut record = Step::default();
        let parts = settings.accumulation.max(1);
        for _ in 0..parts {
            let asked = Instant::now();
            let Ok(ready) = batches.recv() else {
                return Err(Error::config("the batches ended before the run", "this is a bug"));
            };
            let Ready { batch, state, input, epoch, rows: of_batch, prepare_nanos } = ready?;
            spent.wait += asked.elapsed().as_nanos() as u64;
            spent.loader += input.cpu_nanos.unwrap_or_else(|| input.total_work_nanos());
            spent.prepare += prepare_nanos;
            rows += of_batch;
            let value = self.recipe.loss(&run.weights, &batch)?;
            let mut gradients = value.backward();
            run.optimizer.add(run.weights.gradients(&mut gradients));
            loss += value.into_scalar::<f64>() / f64::from(parts);
            run.state = state;
            record.epoch = epoch;
            record.input.get_or_insert_default().merge(input);
        }
        let step = run.progress.step;
        if !loss.is_finite() {
            return Err(Error::Diverged {
                what: format!("the loss of step {} is {loss}", step + 1),
                hint: format!("a lower `--learning-rate` than {}", settings.learning_rate),
            });
        }
        let computed = Instant::now();
        let rate =
            settings.learning_rate * settings.schedule.share(step, settings.warm_up, settings.max_steps);
        let norm = run.optimizer.step(&mut run.weights, rate, settings.clip);
        if !norm.is_finite() {
            return Err(Error::Diverged {
                what: format!("the gradient of step {} is {norm}", step + 1),
                hint: format!("a lower `--learning-rate` than {}", settings.learning_rate),
            });
        }
        spent.all = began.elapsed().as_nanos() as u64;
        run.time.add(spent);
        record.step = step;
        record.wall_nanos = spent.all;
        record.wait_nanos = spent.wait;
        record.optimizer_nanos = computed.elapsed().as_nanos() as u64;
        record.compute_nanos = spent.all.saturating_sub(spent.wait + record.optimizer_nanos);
        record.rows = rows;
        record.loss = Some(loss);
        let took = Took { step: step + 1, loss, rate, norm, nanos: spent.all, wait_nanos: spent.wait, rows };
        Ok((took, record))
    }

    /// How the weights do on what was held out.
    pub fn evaluate(&self, weights: &Weights, held_out: &mut Pipeline, step: u64) -> Result<Score> {
        let still = weights.frozen();
        let (mut loss, mut count) = (0.0, 0_usize);
        let (mut letters, mut words, mut classes) =
            (ErrorRate::default(), ErrorRate::default(), ErrorRate::default());
        let learns = self.recipe.learns();
        for batch in held_out.epoch(0) {
            let batch = batch?;
            if !has_samples(&batch) {
                continue;
            }
            let rows = batch.valid.iter().filter(|valid| **valid).count();
            let batch = self.recipe.prepare(&batch, &self.devices.data)?.to_device(&self.devices.model);
            loss += self.recipe.loss(&still, &batch)?.into_scalar::<f64>() * rows as f64;
            count += rows;
            if learns == Learns::Features {
                continue;
            }
            let (right, guessed) = (self.recipe.right(&batch)?, self.recipe.guess(&still, &batch)?);
            for ((right, guessed), valid) in right.iter().zip(&guessed).zip(&batch.valid) {
                if !valid {
                    continue;
                }
                letters += cer([(right.as_str(), guessed.as_str())]);
                words += wer([(right.as_str(), guessed.as_str())]);
                classes += ErrorRate { errors: u64::from(right != guessed), of: 1 };
            }
        }
        // It has begun with the next epoch, which nobody will ask for.
        held_out.stop();
        let wrong = match learns {
            Learns::Texts => Wrong::Texts { cer: letters.share(), wer: words.share() },
            Learns::Classes => Wrong::Classes { error: classes.share() },
            Learns::Features => Wrong::Nothing,
        };
        let loss = loss / count.max(1) as f64;
        if !loss.is_finite() {
            return Err(Error::Diverged {
                what: format!("after step {step}, the loss of what was held out is {loss}"),
                hint: "is there a NaN in the data? `feedwater inspect --decode` looks".to_owned(),
            });
        }
        Ok(Score { step, loss, wrong })
    }

    /// A checkpoint that cannot be written does not end the run: the one before is still there.
    fn save(&self, run: &mut Underway, tell: &mut dyn FnMut(Event<'_>)) {
        if run.saved == Some(run.progress.step) {
            return;
        }
        // What a checkpoint is the end of must not lack in the record.
        run.record(tell, Recorder::flush);
        run.progress.feed = run.state.to_json();
        let (model, state) = (run.weights.named(), run.optimizer.named(&run.weights));
        match self.checkpoints.write(&run.progress, &model, &state, |folder| self.recipe.save(folder)) {
            Ok(path) => {
                run.saved = Some(run.progress.step);
                tell(Event::Saved(&path));
            }
            Err(error) => {
                tell(Event::Warning(format!("{error}; the run goes on, with the checkpoint before")));
            }
        }
    }
}

/// A run while it goes on.
struct Underway {
    weights: Weights,
    optimizer: Optimizer,
    progress: Progress,
    /// The state of the data after the last batch that was learned from.
    state: State,
    recorder: Option<Recorder>,
    /// The step of the newest checkpoint.
    saved: Option<u64>,
    ended: Ended,
    last: Option<Score>,
    time: Spent,
}

impl Underway {
    /// Writes to the record, while that can be done.
    fn record(
        &mut self,
        tell: &mut dyn FnMut(Event<'_>),
        write: impl FnOnce(&mut Recorder) -> feedwater_profile::Result<()>,
    ) {
        if let Some(Err(error)) = self.recorder.as_mut().map(write) {
            tell(Event::Warning(format!("the record ends here: {error}")));
            self.recorder = None;
        }
    }
}

/// Nanoseconds of steps: all, those that were waited, and what was done meanwhile to make and to prepare batches.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    all: u64,
    wait: u64,
    loader: u64,
    prepare: u64,
}

impl Spent {
    fn add(&mut self, more: Self) {
        self.all += more.all;
        self.wait += more.wait;
        self.loader += more.loader;
        self.prepare += more.prepare;
    }
}
