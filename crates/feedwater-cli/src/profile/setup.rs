//! What is run? A pipeline for a task, with settings that can be changed one at a time.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, PoisonError},
};

use feedwater::{
    Audio, Batch, Builder, DType, LogMel, Noise, Npy, Pipeline, Policy, SpecAugment, Tokenize, Value, field,
    source::{self, Source},
};
use feedwater_profile::{record::Settings, what_if::Wish};
use miette::miette;

use super::vocabulary;
use crate::caching::{Caching, Kept};

/// What the model that is fed would be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Task {
    /// Sound to log-mel features of 30 s
    Whisper,
    /// Arrays with noise and time masks, padded
    Npy,
    /// Text to token ids in packed blocks
    Text,
}

impl Task {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Whisper => "whisper",
            Self::Npy => "npy",
            Self::Text => "text",
        }
    }

    /// The task for what is there.
    pub(crate) fn of(path: &Path) -> miette::Result<Self> {
        let source = source::open(path).map_err(|error| miette!("{error}"))?;
        for index in 0..source.len().min(32) {
            let Ok(sample) = source.sample(index) else { continue };
            match (sample.get(field::AUDIO), sample.get(field::FEATURES)) {
                (Some(Value::Media(_)), _) => return Ok(Self::Whisper),
                (_, Some(Value::Media(_))) => return Ok(Self::Npy),
                _ if sample.text().is_some() => return Ok(Self::Text),
                _ => {}
            }
        }
        Err(miette!(
            help = "say it: --task whisper, npy or text",
            "`{}` does not say which task it is for: its first samples are neither sound, arrays nor text",
            path.display()
        ))
    }
}

/// The name of the stage in which a plain loop waits for its turn.
pub(crate) const GATE: &str = "turn";

/// Lets a plain loop's batches be made, or not.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    /// Opens or closes it.
    pub(crate) fn set(&self, open: bool) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = open;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(open, |open| !*open));
    }
}

/// Steps whose samples are sorted by length among each other.
pub(crate) const BUCKET_STEPS: u64 = 50;

/// Everything that a run depends on.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Setup {
    pub(crate) task: Task,
    pub(crate) data: PathBuf,
    pub(crate) tokenizer: Option<PathBuf>,
    pub(crate) batch_size: u64,
    pub(crate) threads: usize,
    pub(crate) prefetch: usize,
    pub(crate) half: bool,
    pub(crate) pad_to_longest: bool,
    pub(crate) chunk: bool,
    pub(crate) buckets: bool,
    pub(crate) seed: u64,
    /// Nothing is made while the accelerator works, as in a loop that makes its batches itself.
    pub(crate) plain: Option<Arc<Gate>>,
    /// How long the accelerator is busy with a batch of `step_rows`.
    pub(crate) step_nanos: u64,
    pub(crate) step_rows: u64,
    pub(crate) caching: Caching,
    /// The share of bad samples that are left out before it stops.
    pub(crate) bad_ceiling: Option<f64>,
}

impl Setup {
    /// The pipeline.
    pub(crate) fn build(&self) -> miette::Result<Pipeline> {
        let data = source::open(&self.data).map_err(|error| miette!("{error}"))?;
        self.build_on(data)
    }

    /// The pipeline, of other samples.
    pub(crate) fn build_on(&self, data: Box<dyn Source>) -> miette::Result<Pipeline> {
        self.builder(data)?.build().map_err(|error| {
            // Its hint is for who writes a pipeline; here a flag decides.
            let said = error.to_string();
            match said.split_once("\nhint: these are ") {
                Some((what, _)) => miette!(help = "leave out --task: it is found by looking", "{what}"),
                None => miette!("{said}"),
            }
        })
    }

    fn builder(&self, data: Box<dyn Source>) -> miette::Result<Builder> {
        let open = Pipeline::from_source(data);
        let open = match &self.plain {
            Some(gate) => {
                let gate = Arc::clone(gate);
                open.map(GATE, move |_, _| {
                    gate.pass();
                    Ok(())
                })
            }
            None => open,
        };
        let dtype = if self.half { DType::F16 } else { DType::F32 };
        let mut batch = Batch::of(self.batch_size).output(dtype);
        if self.buckets {
            batch = batch.buckets(BUCKET_STEPS);
        }
        let flow = match self.task {
            Task::Whisper => {
                let mel = if self.pad_to_longest { LogMel::any_length(80) } else { LogMel::whisper(80) };
                let mut flow = open.decode(Audio::mono(16_000));
                if self.chunk {
                    flow = flow.chunk(feedwater::Chunk::seconds(30.0));
                }
                flow = flow.log_mel(mel);
                if let Some(file) = &self.tokenizer {
                    flow = flow.tokenize(Tokenize::file(file).map_err(|error| miette!("{error}"))?);
                }
                flow.batch(batch)
            }
            Task::Npy => open
                .decode(Npy)
                .noise(Noise::deviation(0.01))
                .spec_augment(SpecAugment::new().time(2, 0.1))
                .batch(batch),
            Task::Text => {
                let tokenize = match &self.tokenizer {
                    Some(file) => Tokenize::file(file).map_err(|error| miette!("{error}"))?,
                    None => Tokenize::json(vocabulary::made_from(&self.data)?.as_bytes())
                        .map_err(|fault| miette!("{fault}"))?,
                };
                open.tokenize(tokenize).batch(Batch::packed(512, self.batch_size))
            }
        };
        let policy = self.bad_ceiling.map_or_else(Policy::skip, Policy::skip_up_to);
        let flow = flow.cache(self.caching.cache()).policy(policy);
        Ok(flow.threads(self.threads).prefetch(self.prefetch).seed(self.seed))
    }

    /// The same with another setting.
    pub(crate) fn with(&self, wish: &Wish) -> Self {
        let mut setup = self.clone();
        match wish {
            Wish::Threads(threads) => setup.threads = *threads,
            Wish::Prefetch(prefetch) => setup.prefetch = *prefetch,
            Wish::Crew(threads, prefetch) => (setup.threads, setup.prefetch) = (*threads, *prefetch),
            Wish::BatchSize(rows) => setup.batch_size = *rows,
            Wish::HalfPrecision => setup.half = true,
            Wish::PadToLongest => setup.pad_to_longest = true,
            Wish::Cache => setup.caching.cache = Kept::Features,
        }
        setup
    }

    /// How long the accelerator is busy with a batch: as long as it was told for the size it was told for, and in
    /// proportion for others.
    pub(crate) fn busy_nanos(&self, rows: u64) -> u64 {
        (self.step_nanos as f64 * rows as f64 / self.step_rows.max(1) as f64) as u64
    }

    /// What the record says of it.
    pub(crate) fn settings(&self) -> Settings {
        let padding = match self.task {
            Task::Whisper if !self.pad_to_longest => "30 s",
            Task::Text => "packed",
            _ => "longest",
        };
        Settings {
            loader: "feedwater".to_owned(),
            task: Some(self.task.name().to_owned()),
            data: Some(self.data.display().to_string()),
            threads: Some(if self.plain.is_some() { 0 } else { self.threads }),
            prefetch: Some(if self.plain.is_some() { 0 } else { self.prefetch }),
            batch_size: Some(self.batch_size),
            dtype: Some(if self.half { "f16" } else { "f32" }.to_owned()),
            padding: Some(padding.to_owned()),
            buckets: self.buckets.then_some(true),
            cache: (self.caching.cache != Kept::Off).then(|| self.caching.cache.name().to_owned()),
            chunked: Some(self.chunk),
            step_nanos: (self.step_nanos > 0).then_some(self.step_nanos),
            ..Settings::default()
        }
    }
}
