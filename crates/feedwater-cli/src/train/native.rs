//! How is a model trained by this program itself? What was asked for becomes a recipe, its data and its settings.

use std::path::{Path, PathBuf};

use feedwater::{
    Value as Given, field,
    source::{self, Source, part},
};
use feedwater_train::{
    device::{self, Devices},
    optimizer::{AdamW, Schedule},
    recipes::{
        Recipe,
        cnn_lstm::{CnnLstm, Task},
        fitting,
        whisper::Whisper,
    },
    trainer::{Ended, Score, Settings, Summary, Wrong},
    transcriber::model_in,
    vocabulary::Vocabulary,
    weights::{Weights, read_safetensors},
};
use miette::miette;
use serde_json::{Value, json};

use super::{Job, interrupted, refuse_another, told, wrong_in_words};
use crate::{
    caching,
    commands::{
        report::print,
        train::{
            Augment, BatchSize, CnnLstmOptions, Common, Falls, Precision, RecipeOptions, STOPPED, Strategy,
            Switch, WhichTask, WhisperOptions,
        },
    },
};

/// Samples that say what a dataset is.
const LOOKED_AT: u64 = 32;

/// The data of a run.
struct Data {
    whole: Box<dyn Source>,
    tried: Option<Box<dyn Source>>,
}

impl Common {
    fn folder(&self) -> PathBuf {
        self.output_dir.clone().unwrap_or_else(|| PathBuf::from("runs"))
    }

    fn where_the_model_is(&self) -> &str {
        self.device.as_deref().unwrap_or("cpu")
    }

    fn data(&self) -> miette::Result<Data> {
        let open = |path: &PathBuf| -> miette::Result<Box<dyn Source>> {
            let source = source::open(path).map_err(|error| miette!("{error}"))?;
            let has = |index: u64| {
                source.sample(index).is_ok_and(|sample| {
                    sample.get(field::AUDIO).is_some() || sample.get(field::FEATURES).is_some()
                })
            };
            if !(0..source.len().min(LOOKED_AT)).any(has) {
                return Err(miette!(
                    help = "`feedwater inspect` shows what is there; `feedwater generate morse` makes something to try",
                    "there is neither sound nor an array in `{}`",
                    path.display()
                ));
            }
            Ok(source)
        };
        if let Some(model) = self.model.as_ref().filter(|model| !model.is_dir()) {
            return Err(miette!(
                help = "a folder on this machine: `hf download openai/whisper-tiny --local-dir whisper-tiny` makes one",
                "there is no folder `{}`",
                model.display()
            ));
        }
        Ok(Data { whole: open(&self.data_dir)?, tried: self.eval_data.as_ref().map(open).transpose()? })
    }

    fn devices(&self) -> miette::Result<Devices> {
        let model = device::named(self.where_the_model_is()).map_err(told)?;
        let data = self.data_device.as_deref().map(device::named).transpose().map_err(told)?;
        Ok(Devices { data: data.unwrap_or_else(|| model.clone()), model })
    }

    /// What is done with a wish that this device does not do fast: one line, and the run goes on.
    fn precision(&self) {
        let wish = match self.precision {
            Some(Precision::Bf16) => "bf16",
            Some(Precision::F16) => "f16",
            Some(Precision::F32) | None => return,
        };
        eprintln!("precision {wish} is not done faster than f32 by the native trainer: the run is in f32");
    }

    /// Samples of a micro-batch, or what it refuses.
    fn samples(&self) -> miette::Result<u64> {
        if let Some(flag) = self.only_torch() {
            return Err(miette!(
                help = "--engine torch, with `pip install torch transformers` and the feedwater package",
                "{flag} is not for the native trainer"
            ));
        }
        match self.batch_size {
            BatchSize::Of(samples) => Ok(samples),
            BatchSize::Auto(_) => Err(miette!(
                help = "--batch-size 16, or --engine torch",
                "the native trainer does not look for a batch size"
            )),
        }
    }

    /// What was asked for that the native trainer does not do.
    fn only_torch(&self) -> Option<&'static str> {
        let torch = &self.torch;
        [
            (torch.compile, "--compile"),
            (torch.gradient_checkpointing == Some(Switch::On), "--gradient-checkpointing"),
            (torch.augment_on == Augment::Device, "--augment-on device"),
            (torch.noise.is_some(), "--noise"),
            (torch.time_masks > 0, "--time-masks"),
            (torch.strategy != Strategy::Ddp, "--strategy"),
            (torch.data_gpu.is_some(), "--data-gpu"),
            (torch.model_gpu.is_some(), "--model-gpu"),
            (torch.enable_memory_isolation, "--enable-memory-isolation"),
            (torch.enable_static_shapes, "--enable-static-shapes"),
        ]
        .into_iter()
        .find_map(|(asked, flag)| asked.then_some(flag))
    }

    fn settings(&self, samples: u64, epochs: f64, learning_rate: f64) -> miette::Result<Settings> {
        let batch_size = self.samples()?;
        let a_step = batch_size * u64::from(self.gradient_accumulation_steps);
        let an_epoch = samples.div_ceil(a_step).max(1);
        Ok(Settings {
            batch_size,
            accumulation: self.gradient_accumulation_steps,
            max_steps: (an_epoch as f64 * epochs).ceil().max(1.0) as u64,
            learning_rate: self.learning_rate.unwrap_or(learning_rate),
            warm_up: self.warmup_steps,
            schedule: match self.lr_scheduler_type {
                Falls::Constant => Schedule::Constant,
                Falls::Linear => Schedule::Linear,
                Falls::Cosine => Schedule::Cosine,
            },
            adamw: AdamW { weight_decay: self.weight_decay, ..AdamW::default() },
            clip: (self.max_grad_norm > 0.0).then_some(self.max_grad_norm),
            seed: self.seed,
            evaluate_every: self.eval_steps,
            checkpoint_every: self.save_steps,
            patience: self.early_stopping_patience,
            threads: self.threads.and_then(|threads| threads.0).map(usize::from),
            prefetch: self.prefetch.and_then(|prefetch| prefetch.0).map(usize::from),
            cpu_ceiling: self.cpu_ceiling,
            ..Settings::default()
        })
    }

    /// Trains, and says how it went.
    fn train(
        &self,
        recipe: &dyn Recipe,
        weights: Weights,
        data: Data,
        devices: &Devices,
        stage: Stage<'_>,
    ) -> miette::Result<(Summary, f64)> {
        let (training, held_out): (Box<dyn Source>, Box<dyn Source>) = if let Some(tried) = data.tried {
            (data.whole, tried)
        } else {
            let (training, held_out) = part::hold_out(data.whole, 20);
            (Box::new(training), Box::new(held_out))
        };
        let mut settings = self.settings(training.len(), stage.epochs, stage.learning_rate)?;
        if let Some(steps) = self.max_steps.filter(|_| stage.last) {
            settings.max_steps = steps;
        }
        if !self.json {
            let (samples, tried) = (training.len(), held_out.len());
            eprintln!("data      {samples} samples to learn from, {tried} held out");
            let where_ = if devices.are_one() {
                format!("one device for the data and the model, {}", self.where_the_model_is())
            } else {
                let model = self.where_the_model_is();
                format!("data on {}, the model on {model}", self.data_device.as_deref().unwrap_or(model))
            };
            eprintln!("model     {} numbers to learn; {where_}", weights.count());
        }
        let stop = interrupted()?;
        let folder = stage.folder.to_owned();
        let resume = self.resume;
        let job = Job {
            recipe,
            settings,
            devices: devices.clone(),
            weights,
            training,
            held_out,
            cache: self.caching.cache(),
            bad_ceiling: self.bad_ceiling,
            folder,
            resume,
            stop: &stop,
        };
        let (summary, seconds) = job.run()?;
        if !self.json {
            print(&as_text(&summary, seconds))?;
        }
        Ok((summary, seconds))
    }

    /// The folder with the model to begin with.
    fn begins_with(&self) -> miette::Result<Option<PathBuf>> {
        self.model.as_deref().map(model_in).transpose().map_err(told)
    }
}

/// A part of a run: where it goes, how long it is, and its rate unless that is given.
#[derive(Clone, Copy)]
struct Stage<'a> {
    folder: &'a Path,
    /// Whether it is what --max-steps is meant for.
    last: bool,
    epochs: f64,
    learning_rate: f64,
}

pub(crate) fn run(recipe: &RecipeOptions) -> miette::Result<u8> {
    let common = recipe.common();
    let stages = match recipe {
        RecipeOptions::CnnLstm(options) => cnn_lstm(options)?,
        RecipeOptions::Whisper(options) => whisper(options)?,
        RecipeOptions::Lm(_) | RecipeOptions::Tts(_) => {
            return Err(miette!(
                help = "--engine torch, with `pip install torch transformers` and the feedwater package",
                "the native trainer has no recipe `{}`",
                recipe.name()
            ));
        }
    };
    if common.json {
        let [before @ .., (summary, seconds)] = stages.as_slice() else { return Ok(0) };
        let mut object = as_json(summary, *seconds);
        let before: Vec<Value> = before.iter().map(|(summary, seconds)| as_json(summary, *seconds)).collect();
        object["encoder"] = before.into_iter().next().unwrap_or(Value::Null);
        print(&object.to_string())?;
    }
    let stopped = stages.iter().any(|(summary, _)| summary.ended == Ended::Asked);
    Ok(if stopped { STOPPED } else { 0 })
}

fn cnn_lstm(options: &CnnLstmOptions) -> miette::Result<Vec<(Summary, f64)>> {
    let common = &options.common;
    common.precision();
    let data = common.data()?;
    let model = common.begins_with()?;
    let devices = common.devices()?;
    let folder = common.folder();
    refuse_another(&folder, common.resume)?;
    let learning_rate = 3e-3;
    let stage = Stage { folder: &folder, last: true, epochs: common.num_epochs, learning_rate };
    let begin = |recipe: &CnnLstm| match &model {
        Some(folder) => fitting(folder, &recipe.weights(common.seed, &devices.model)).map_err(told),
        None => Ok(recipe.weights(common.seed, &devices.model)),
    };
    let classifier = of_arrays(options, &*data.whole)?;
    let Some(classifier) = classifier else {
        let recipe = match &model {
            Some(folder) => CnnLstm::load(folder).map_err(told)?,
            None => transcriber(options, &*data.whole)?,
        };
        let weights = begin(&recipe)?;
        return Ok(vec![common.train(&recipe, weights, data, &devices, stage)?]);
    };

    let mut weights = begin(&classifier)?;
    let mut done = Vec::new();
    if options.encoder_epochs > 0.0 && model.is_none() {
        let encoder = classifier.encoder();
        let folder = folder.join("encoder");
        if !common.json {
            eprintln!("encoder   learns to guess what is hidden; --encoder-epochs 0 leaves it out");
        }
        let stage = Stage { folder: &folder, last: false, epochs: options.encoder_epochs, learning_rate };
        let (summary, seconds) = common.train(
            &encoder,
            encoder.weights(common.seed, &devices.model),
            common.data()?,
            &devices,
            stage,
        )?;
        let model = summary.model.clone();
        let stopped = summary.ended == Ended::Asked;
        done.push((summary, seconds));
        if stopped {
            return Ok(done);
        }
        let model = model.ok_or_else(|| miette!("the encoder could not be saved"))?;
        let learned = read_safetensors(&model.join("model.safetensors")).map_err(told)?;
        weights = weights.with(learned);
        if !common.json {
            eprintln!("classifier");
        }
    }
    done.push(common.train(&classifier, weights, data, &devices, stage)?);
    Ok(done)
}

/// A classifier of the arrays of a dataset; nothing where it has sound.
fn of_arrays(options: &CnnLstmOptions, data: &dyn Source) -> miette::Result<Option<CnnLstm>> {
    let columns = columns(data)?;
    let fits = if columns.is_some() { WhichTask::Classify } else { WhichTask::Transcribe };
    if options.task.is_some_and(|task| task != fits) {
        let (has, can) = match fits {
            WhichTask::Classify => ("arrays", "classify"),
            WhichTask::Transcribe => ("sound", "transcribe"),
        };
        return Err(miette!(
            help = format!("--task {can}, or leave it out"),
            "the data is {has}, which is not for that task"
        ));
    }
    let Some(bins) = columns else { return Ok(None) };
    let (channels, hidden) = (usize::from(options.channels), usize::from(options.hidden));
    Ok(Some(CnnLstm::of_arrays(bins, channels, hidden, Task::Classify(classes(data)?))))
}

fn transcriber(options: &CnnLstmOptions, data: &dyn Source) -> miette::Result<CnnLstm> {
    let letters = Vocabulary::of(data).map_err(told)?;
    Ok(CnnLstm::transcriber(letters, usize::from(options.channels), usize::from(options.hidden)))
}

fn new_whisper(options: &WhisperOptions, data: &dyn Source) -> miette::Result<Whisper> {
    // Is there any text to learn?
    Vocabulary::of(data).map_err(told)?;
    let seconds = usize::from(options.max_seconds);
    Whisper::new(options.model_size.name(), seconds, options.tokenizer.as_deref()).map_err(told)
}

/// The columns of the arrays of a dataset; nothing where it has sound.
fn columns(source: &dyn Source) -> miette::Result<Option<usize>> {
    for index in 0..source.len().min(LOOKED_AT) {
        let Ok(sample) = source.sample(index) else { continue };
        if sample.get(field::AUDIO).is_some() {
            return Ok(None);
        }
        let Some(Given::Media(_)) = sample.get(field::FEATURES) else { continue };
        // By way of the pipeline: it reads arrays wherever they are.
        let mut first = feedwater::Pipeline::from_source(part::only(source, index))
            .decode(feedwater::Npy)
            .batch(feedwater::Batch::of(1))
            .build()
            .map_err(|error| miette!("{error}"))?;
        let batch = first.epoch(0).next();
        if let Some(Ok(batch)) = batch
            && let Some([_, _, columns]) = batch.get(field::FEATURES).map(|tensor| tensor.shape.as_slice())
        {
            return Ok(Some(*columns));
        }
    }
    Ok(None)
}

/// More classes than this are numbers of something else.
const MOST_CLASSES: u64 = 100_000;

/// The names of the classes of a dataset.
fn classes(source: &dyn Source) -> miette::Result<Vec<String>> {
    if !source.classes().is_empty() {
        return Ok(source.classes().to_vec());
    }
    let mut most = None;
    for index in 0..source.len() {
        if let Ok(sample) = source.sample(index)
            && let Some(Given::Number(label)) = sample.get(field::LABELS)
        {
            most = most.max(Some(*label as u64));
        }
    }
    let most = most.ok_or_else(|| {
        miette!(
            help = "a folder for each class, or a `label` in the metadata: `feedwater inspect` shows what is there",
            "the samples have no labels to learn"
        )
    })?;
    if most >= MOST_CLASSES {
        return Err(miette!(
            help = "labels are numbers from 0 on, without gaps",
            "a sample has the label {most}, and there can be {MOST_CLASSES} classes"
        ));
    }
    Ok((0..=most).map(|class| class.to_string()).collect())
}

fn whisper(options: &WhisperOptions) -> miette::Result<Vec<(Summary, f64)>> {
    let common = &options.common;
    common.precision();
    let data = common.data()?;
    let model = common.begins_with()?;
    let devices = common.devices()?;
    let mut recipe = match &model {
        Some(folder) => Whisper::load(folder).map_err(told)?,
        None => new_whisper(options, &*data.whole)?,
    };
    if let Some(language) = &options.language {
        recipe = recipe.language(language).map_err(told)?;
    }
    if options.use_chunking {
        recipe = recipe.chunked();
    }
    let fresh = recipe.weights(common.seed, &devices.model);
    let weights = match &model {
        Some(folder) => fitting(folder, &fresh).map_err(told)?,
        None => fresh,
    };
    let folder = common.folder();
    let stage = Stage { folder: &folder, last: true, epochs: common.num_epochs, learning_rate: 1e-4 };
    Ok(vec![common.train(&recipe, weights, data, &devices, stage)?])
}

fn as_json(summary: &Summary, seconds: f64) -> Value {
    json!({
        "version": 1,
        "steps": summary.steps,
        "seconds": seconds,
        "busy": summary.busy,
        "data_busy": summary.data_busy,
        "loader_cores": summary.loader_cores,
        "cache": summary.loader.cache,
        "tuning": summary.loader.tuning,
        "held_out": summary.last,
        "best": summary.best.map(|(wrong, step)| json!({ "wrong": wrong, "step": step })),
        "model": summary.model,
        "ended": match summary.ended { Ended::Steps => "steps", Ended::Patience => "patience", Ended::Asked => "asked" },
    })
}

fn as_text(summary: &Summary, seconds: f64) -> String {
    let why = match summary.ended {
        Ended::Steps => "",
        Ended::Patience => ", it got no better",
        Ended::Asked => ", stopped: --resume goes on",
    };
    let busy = 100.0 * summary.busy;
    let mut lines = vec![format!(
        "trained   {} steps in {seconds:.0} s, busy {busy:.1} %, the loader used {:.0} % of a core{why}",
        summary.steps,
        100.0 * summary.loader_cores
    )];
    lines.extend(summary.loader.cache.as_ref().map(caching::told));
    lines.extend(summary.loader.tuning.iter().map(|decision| format!("tuned     {decision}")));
    if let Some(score) = &summary.last {
        lines.push(format!("held out  loss {:.3}{}", score.loss, wrong_in_words(score)));
    }
    if let Some(Score { wrong: Wrong::Texts { cer, .. }, .. }) = &summary.last
        && *cer > 0.99
    {
        lines.push("hint      nothing is right yet: train longer (--max-steps), or on more clips".to_owned());
    }
    if let Some(model) = &summary.model {
        lines.push(format!("model     {}", model.display()));
    }
    lines.join("\n")
}
