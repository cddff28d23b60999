//! What happens from the first batch to the last? The loop: batches, loss, gradients, a step; now and then an evaluation
//! and a checkpoint. What it does is told in [`Event`]s, so that it prints nothing itself.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use feedwater::{Batch, Pad, Pipeline, ReadyBatch, State, Threads};
use feedwater_profile::{
    Record,
    record::{self, Recorder, Run, Step},
};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    checkpoint::{Checkpoint, Checkpoints, Progress},
    metrics::{ErrorRate, cer, wer},
    optimizer::{AdamW, Optimizer, Schedule},
    recipes::{Learns, Recipe},
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
    /// Threads that make batches; as many as there are cores, unless given. What is learned does not depend on it.
    pub threads: Option<usize>,
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
    /// What the threads that make batches computed since the step before.
    pub loader_nanos: u64,
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
    /// How many cores' time making batches took, where the system says so.
    pub loader_cores: f64,
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
    Ok(builder.batch(batch).seed(settings.seed).shuffle(training).threads(threads).build()?)
}

/// A run.
pub struct Trainer<'a, R: ?Sized> {
    /// What is trained.
    pub recipe: &'a R,
    /// How.
    pub settings: &'a Settings,
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
            evaluations_since_best: 0,
            settings: serde_json::to_value(settings).expect("settings are plain data"),
        };
        if resume {
            let (found, wrong) = self.checkpoints.newest();
            for error in wrong {
                tell(Event::Warning(format!("{error}; the one before it is used")));
            }
            if let Some(checkpoint) = found {
                (weights, optimizer) = self.resume(&checkpoint, &weights)?;
                feed.training.restore(&State::from_json(&checkpoint.progress.feed)?)?;
                tell(Event::Resumed(&checkpoint.path, checkpoint.progress.step));
                progress = checkpoint.progress;
            }
        }
        let mut recorder = self.recorder(progress.step)?;

        let (mut ended, mut last) = (Ended::Steps, None);
        let (mut time, mut waited, mut loader) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let mut source = Source { epoch: feed.training.state().epoch(), reading: None };
        while progress.step < settings.max_steps {
            if self.stop.load(Ordering::Relaxed) {
                ended = Ended::Asked;
                break;
            }
            let (took, step) =
                self.step(&mut weights, &mut optimizer, &mut feed.training, &mut source, progress.step)?;
            progress.step = took.step;
            time += Duration::from_nanos(took.nanos);
            waited += Duration::from_nanos(took.wait_nanos);
            loader += Duration::from_nanos(took.loader_nanos);
            if let Some(Err(error)) = recorder.as_mut().map(|recorder| recorder.step(&step)) {
                tell(Event::Warning(format!("the record ends here: {error}")));
                recorder = None;
            }
            tell(Event::Step(took));

            let at_end = progress.step == settings.max_steps;
            let evaluate = at_end || progress.step.is_multiple_of(settings.evaluate_every.max(1));
            if evaluate && let Some(held_out) = &mut feed.held_out {
                let score = self.evaluate(&weights, held_out, progress.step)?;
                let better = progress.best.is_none_or(|(best, _)| score.judged() < best);
                progress.evaluations_since_best =
                    if better { 0 } else { progress.evaluations_since_best + 1 };
                if better {
                    progress.best = Some((score.judged(), progress.step));
                }
                last = Some(score);
                if let Some(Err(error)) = recorder.as_mut().map(|recorder| recorder.score(&score.recorded()))
                {
                    tell(Event::Warning(format!("the record ends here: {error}")));
                    recorder = None;
                }
                tell(Event::Evaluated(score, better));
                if better {
                    self.save(&mut progress, &weights, &optimizer, &feed.training, tell);
                }
                if settings.patience.is_some_and(|patience| progress.evaluations_since_best >= patience) {
                    ended = Ended::Patience;
                }
            }
            if at_end
                || ended != Ended::Steps
                || progress.step.is_multiple_of(settings.checkpoint_every.max(1))
            {
                self.save(&mut progress, &weights, &optimizer, &feed.training, tell);
            }
            if ended != Ended::Steps {
                break;
            }
        }
        if ended == Ended::Asked && progress.step > 0 {
            self.save(&mut progress, &weights, &optimizer, &feed.training, tell);
        }
        feed.training.stop();
        if let Some(Err(error)) = recorder.map(|recorder| recorder.end(Duration::ZERO)) {
            tell(Event::Warning(format!("the record has no end: {error}")));
        }
        let model = self.checkpoints.path(progress.best.map_or(progress.step, |(_, step)| step));
        let summary = Summary {
            steps: progress.step,
            last,
            best: progress.best,
            ended,
            model: model.is_dir().then_some(model),
            busy: 1.0 - waited.as_secs_f64() / time.as_secs_f64().max(1e-9),
            loader_cores: loader.as_secs_f64() / time.as_secs_f64().max(1e-9),
        };
        Ok((weights, summary))
    }

    /// The record, with what an earlier part of the run wrote of its first steps.
    fn recorder(&self, steps: u64) -> Result<Option<Recorder>> {
        let Some((path, run)) = &self.record else { return Ok(None) };
        let before = if steps > 0 { Record::open(path).ok() } else { None };
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
            for name in ["max_steps", "evaluate_every", "checkpoint_every", "patience", "threads"] {
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
        // In the order in which the model has them: the file's is another.
        let ordered = fresh
            .named()
            .into_iter()
            .filter_map(|fresh| checkpoint.model.iter().find(|kept| kept.name == fresh.name).cloned());
        let weights = Weights::from_named(ordered.collect(), fresh.device());
        let steps = checkpoint.progress.step;
        let optimizer = Optimizer::from_named(self.settings.adamw, steps, &checkpoint.optimizer, &weights)?;
        Ok((weights, optimizer))
    }

    fn step(
        &self,
        weights: &mut Weights,
        optimizer: &mut Optimizer,
        pipeline: &mut Pipeline,
        source: &mut Source,
        step: u64,
    ) -> Result<(Took, Step)> {
        let settings = self.settings;
        let began = Instant::now();
        let (mut loss, mut rows, mut wait, mut loader_nanos) = (0.0, 0, 0, 0);
        let mut record = Step::default();
        let parts = settings.accumulation.max(1);
        for _ in 0..parts {
            let batch = source.next(pipeline)?;
            wait += batch.wait_nanos;
            rows += batch.rows() as u64;
            loader_nanos += batch.input.cpu_nanos.unwrap_or_else(|| batch.input.total_work_nanos());
            let value = self.recipe.loss(weights, &batch)?;
            let mut gradients = value.backward();
            optimizer.add(weights.gradients(&mut gradients));
            loss += value.into_scalar::<f64>() / f64::from(parts);
            record.epoch = batch.epoch;
            // How one batch was made; of several that make a step, no one speaks for the others.
            record.input = (parts == 1).then(|| batch.input.clone());
        }
        if !loss.is_finite() {
            return Err(Error::Diverged {
                what: format!("the loss of step {} is {loss}", step + 1),
                hint: format!("a lower `--learning-rate` than {}", settings.learning_rate),
            });
        }
        let computed = Instant::now();
        let rate =
            settings.learning_rate * settings.schedule.share(step, settings.warm_up, settings.max_steps);
        let norm = optimizer.step(weights, rate, settings.clip);
        let nanos = began.elapsed().as_nanos() as u64;
        record.step = step;
        record.wall_nanos = nanos;
        record.wait_nanos = wait;
        record.optimizer_nanos = computed.elapsed().as_nanos() as u64;
        record.compute_nanos = nanos.saturating_sub(wait + record.optimizer_nanos);
        record.rows = rows;
        record.loss = Some(loss);
        Ok((Took { step: step + 1, loss, rate, norm, nanos, wait_nanos: wait, rows, loader_nanos }, record))
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
            loss += self.recipe.loss(&still, &batch)?.into_scalar::<f64>() * batch.rows() as f64;
            count += batch.rows();
            if learns == Learns::Features {
                continue;
            }
            let (right, guessed) = (self.recipe.right(&batch)?, self.recipe.guess(&still, &batch)?);
            for (right, guessed) in right.iter().zip(&guessed) {
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
        Ok(Score { step, loss: loss / count.max(1) as f64, wrong })
    }

    /// A checkpoint that cannot be written does not end the run: the one before is still there.
    fn save(
        &self,
        progress: &mut Progress,
        weights: &Weights,
        optimizer: &Optimizer,
        pipeline: &Pipeline,
        tell: &mut dyn FnMut(Event<'_>),
    ) {
        progress.feed = pipeline.state().to_json();
        let (model, state) = (weights.named(), optimizer.named(weights));
        match self.checkpoints.write(progress, &model, &state, |folder| self.recipe.save(folder)) {
            Ok(path) => tell(Event::Saved(&path)),
            Err(error) => {
                tell(Event::Warning(format!("{error}; the run goes on, with the checkpoint before")));
            }
        }
    }
}

/// Batches, epoch after epoch.
struct Source {
    epoch: u64,
    reading: Option<feedwater::pipeline::Reading>,
}

impl Source {
    fn next(&mut self, pipeline: &mut Pipeline) -> Result<ReadyBatch> {
        for _ in 0..2 {
            let reading = self.reading.get_or_insert_with(|| pipeline.begin(self.epoch));
            if let Some(batch) = pipeline.next(reading) {
                return Ok(batch?);
            }
            self.reading = None;
            self.epoch += 1;
        }
        Err(Error::config(
            "an epoch has no batches",
            "is every sample left out? `feedwater inspect` shows them",
        ))
    }
}
