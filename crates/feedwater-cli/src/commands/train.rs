//! `feedwater train`: a model from a folder, on this machine, without Python.

use std::path::{Path, PathBuf};

use feedwater::{
    Value as Given, field,
    source::{self, Source},
};
use feedwater_train::{
    device::{self, Devices},
    optimizer::{AdamW, Schedule},
    recipes::{
        Recipe,
        cnn_lstm::{CnnLstm, Task},
        fitting,
        whisper::{SIZES, Whisper},
    },
    split,
    trainer::{Ended, Settings, Summary},
    transcriber::model_in,
    vocabulary::Vocabulary,
    weights::{Weights, read_safetensors},
};
use miette::miette;
use serde_json::{Value, json};

use super::report::print;
use crate::train::{Job, interrupted, refuse_another, told, wrong_in_words};

const EXAMPLES: &str = "\
Examples:
  feedwater train cnn-lstm --data-dir data/morse --output-dir runs/morse
  feedwater train cnn-lstm --data-dir data/morse --output-dir runs/morse --resume
  feedwater train cnn-lstm --data-dir data/npy --encoder-epochs 2 --num-epochs 5
  feedwater train whisper --data-dir data/morse --model whisper-tiny --output-dir runs/whisper
  feedwater train whisper --data-dir data/morse --model-size tiny --max-seconds 12

One sample in twenty is held out, to see how the model does on what it never saw,
unless --eval-data names others. Ctrl-C ends the run after a checkpoint; --resume
goes on from there, with the same batches as if nothing had been.

Exit codes:
  0  trained
  2  the data, the settings or the checkpoint cannot be used
  130  stopped by Ctrl-C, after a checkpoint";

/// What to train.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(subcommand)]
    recipe: RecipeOptions,
}

#[derive(Debug, clap::Subcommand)]
enum RecipeOptions {
    /// Convolutions and an LSTM: transcribes sound with a CTC head, or classifies arrays
    #[command(after_help = EXAMPLES)]
    CnnLstm(CnnLstmOptions),
    /// Whisper, new or from a folder in Hugging Face's format, and saved in it
    #[command(after_help = EXAMPLES)]
    Whisper(WhisperOptions),
}

#[derive(Debug, clap::Args)]
struct CnnLstmOptions {
    #[command(flatten)]
    common: Common,
    /// What to learn; by what the samples are, unless given
    #[arg(long, value_enum)]
    task: Option<WhichTask>,
    /// Channels of the convolutions
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    channels: u16,
    /// Width of the recurrent layer
    #[arg(long, default_value_t = 96, value_parser = clap::value_parser!(u16).range(1..=4096))]
    hidden: u16,
    /// Times through the data before there is a classifier, in which hidden parts are guessed
    #[arg(long, alias = "encoder_epochs", default_value_t = 2.0, value_parser = epochs)]
    encoder_epochs: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum WhichTask {
    /// Sound to text
    Transcribe,
    /// Arrays to one of some classes
    Classify,
}

#[derive(Debug, clap::Args)]
struct WhisperOptions {
    #[command(flatten)]
    common: Common,
    /// Size of a new model, where there is no --model
    #[arg(long, alias = "model_size", default_value = "tiny",
          value_parser = clap::builder::PossibleValuesParser::new(SIZES.map(|(name, ..)| name)))]
    model_size: String,
    /// A new model's tokenizer.json; the letters of the data unless given
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Length of the clips that a new model hears
    #[arg(long, alias = "max_seconds", default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..=30))]
    max_seconds: u16,
    /// Language of the texts, for a model of several: `en`
    #[arg(long)]
    language: Option<String>,
    /// Cut clips that are longer, by the times of their words
    #[arg(long, alias = "use_chunking")]
    use_chunking: bool,
}

#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
struct Common {
    /// A dataset: `feedwater inspect` says what it is
    #[arg(long, alias = "data_dir", value_name = "DIR")]
    data_dir: PathBuf,
    /// Where checkpoints, the record and the model go [default: runs/RECIPE]
    #[arg(long, alias = "output_dir", value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Samples that the model is tried on, instead of some of --data-dir
    #[arg(long, alias = "eval_data", value_name = "DIR")]
    eval_data: Option<PathBuf>,
    /// A folder with a model to begin with
    #[arg(long, alias = "model_dir", alias = "model_name_or_path", value_name = "DIR")]
    model: Option<PathBuf>,
    /// Samples of a micro-batch
    #[arg(long, alias = "batch_size", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=4096))]
    batch_size: u64,
    /// Micro-batches of a step
    #[arg(long, alias = "gradient_accumulation_steps", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    gradient_accumulation_steps: u32,
    /// Steps of the run
    #[arg(long, alias = "max_steps", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_steps: Option<u64>,
    /// Times through the data, where --max-steps is not given
    #[arg(long, alias = "num_epochs", alias = "epochs", default_value_t = 10.0, value_parser = epochs)]
    num_epochs: f64,
    /// The highest rate [default: 3e-3 for cnn-lstm, 1e-4 for whisper]
    #[arg(long, alias = "learning_rate", alias = "lr")]
    learning_rate: Option<f64>,
    /// Steps in which the rate rises
    #[arg(long, alias = "warmup_steps", default_value_t = 50)]
    warmup_steps: u64,
    /// How the rate falls
    #[arg(long, alias = "lr_scheduler_type", value_enum, default_value_t = Falls::Cosine)]
    lr_scheduler_type: Falls,
    /// The share of a weight that each step takes away, times the rate
    #[arg(long, alias = "weight_decay", default_value_t = 0.01)]
    weight_decay: f64,
    /// The longest that a step's gradient may be; 0: any
    #[arg(long, alias = "max_grad_norm", default_value_t = 1.0)]
    max_grad_norm: f64,
    /// Steps between evaluations
    #[arg(long, alias = "eval_steps", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    eval_steps: u64,
    /// Steps between checkpoints
    #[arg(long, alias = "save_steps", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    save_steps: u64,
    /// Evaluations without a better one that end the run
    #[arg(long, alias = "early_stopping_patience", value_name = "N")]
    early_stopping_patience: Option<u32>,
    /// Threads that make batches; as many as there are cores unless given
    #[arg(
        long,
        alias = "dataloader_num_workers",
        alias = "num_workers",
        alias = "dataloader-num-workers",
        value_name = "N"
    )]
    threads: Option<u16>,
    /// Where the model is: cpu, or vulkan or vulkan:N where that was built in
    #[arg(long, alias = "model-device", alias = "model_device", default_value = "cpu")]
    device: String,
    /// Where batches are prepared, if not there
    #[arg(long, alias = "data_device", value_name = "DEVICE")]
    data_device: Option<String>,
    /// Numbers to compute with
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    precision: Precision,
    /// The same as --precision bf16
    #[arg(long)]
    bf16: bool,
    /// The same as --precision f16
    #[arg(long)]
    fp16: bool,
    /// Where all random numbers come from
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Go on from the newest checkpoint in --output-dir
    #[arg(long)]
    resume: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Falls {
    Constant,
    Linear,
    Cosine,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Precision {
    #[value(alias = "fp32")]
    F32,
    Bf16,
    #[value(alias = "fp16")]
    F16,
}

/// As a shell says that Ctrl-C ended a command.
pub(crate) const STOPPED: u8 = 130;

fn epochs(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(epochs) if epochs.is_finite() && epochs >= 0.0 => Ok(epochs),
        _ => Err("a number of epochs, 0 or more".to_owned()),
    }
}

/// Samples that say what a dataset is.
const LOOKED_AT: u64 = 32;

/// The data of a run.
struct Data {
    whole: Box<dyn Source>,
    tried: Option<Box<dyn Source>>,
}

impl Common {
    fn folder(&self, recipe: &str) -> PathBuf {
        self.output_dir.clone().unwrap_or_else(|| Path::new("runs").join(recipe))
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
        let model = device::named(&self.device).map_err(told)?;
        let data = self.data_device.as_deref().map(device::named).transpose().map_err(told)?;
        Ok(Devices { data: data.unwrap_or_else(|| model.clone()), model })
    }

    /// What is done with a wish that this device does not do fast: one line, and the run goes on.
    fn precision(&self) {
        let wish = match (self.precision, self.bf16, self.fp16) {
            (Precision::Bf16, ..) | (_, true, _) => "bf16",
            (Precision::F16, ..) | (_, _, true) => "f16",
            _ => return,
        };
        eprintln!("precision {wish} is not done faster than f32 by the native trainer: the run is in f32");
    }

    fn settings(&self, samples: u64, epochs: f64, learning_rate: f64) -> Settings {
        let a_step = self.batch_size * u64::from(self.gradient_accumulation_steps);
        let an_epoch = samples.div_ceil(a_step).max(1);
        Settings {
            batch_size: self.batch_size,
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
            threads: self.threads.map(usize::from).filter(|threads| *threads > 0),
            ..Settings::default()
        }
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
            let (training, held_out) = split::hold_out(data.whole, 20);
            (Box::new(training), Box::new(held_out))
        };
        let mut settings = self.settings(training.len(), stage.epochs, stage.learning_rate);
        if let Some(steps) = self.max_steps.filter(|_| stage.last) {
            settings.max_steps = steps;
        }
        if !self.json {
            let (samples, tried) = (training.len(), held_out.len());
            eprintln!("data      {samples} samples to learn from, {tried} held out");
            let where_ = if devices.are_one() {
                format!("one device for the data and the model, {}", self.device)
            } else {
                let data = self.data_device.as_deref().unwrap_or(&self.device);
                format!("data on {data}, the model on {}", self.device)
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

pub(crate) fn run(options: &Options) -> miette::Result<u8> {
    let (common, stages) = match &options.recipe {
        RecipeOptions::CnnLstm(options) => (&options.common, cnn_lstm(options)?),
        RecipeOptions::Whisper(options) => (&options.common, whisper(options)?),
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
    let (channels, hidden) = (usize::from(options.channels), usize::from(options.hidden));
    let devices = common.devices()?;
    let folder = common.folder("cnn-lstm");
    refuse_another(&folder, common.resume)?;
    let learning_rate = 3e-3;
    let stage = Stage { folder: &folder, last: true, epochs: common.num_epochs, learning_rate };
    let begin = |recipe: &CnnLstm| match &model {
        Some(folder) => fitting(folder, &recipe.weights(common.seed, &devices.model)).map_err(told),
        None => Ok(recipe.weights(common.seed, &devices.model)),
    };
    let columns = columns(&*data.whole)?;
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
    let Some(bins) = columns else {
        let recipe = match &model {
            Some(folder) => CnnLstm::load(folder).map_err(told)?,
            None => CnnLstm::transcriber(Vocabulary::of(&*data.whole).map_err(told)?, channels, hidden),
        };
        let weights = begin(&recipe)?;
        return Ok(vec![common.train(&recipe, weights, data, &devices, stage)?]);
    };

    let names = classes(&*data.whole)?;
    let classifier = CnnLstm::of_arrays(bins, channels, hidden, Task::Classify(names));
    let mut weights = begin(&classifier)?;
    let mut done = Vec::new();
    if options.encoder_epochs > 0.0 && model.is_none() {
        let encoder = CnnLstm::of_arrays(bins, channels, hidden, Task::Reconstruct);
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

/// The columns of the arrays of a dataset; nothing where it has sound.
fn columns(source: &dyn Source) -> miette::Result<Option<usize>> {
    for index in 0..source.len().min(LOOKED_AT) {
        let Ok(sample) = source.sample(index) else { continue };
        if sample.get(field::AUDIO).is_some() {
            return Ok(None);
        }
        let Some(Given::Media(_)) = sample.get(field::FEATURES) else { continue };
        // By way of the pipeline: it reads arrays wherever they are.
        let mut first = feedwater::Pipeline::from_source(split::only(source, index))
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
    let seconds = usize::from(options.max_seconds);
    let letters = Vocabulary::of(&*data.whole).map_err(told)?;
    let mut recipe = match &model {
        Some(folder) => Whisper::load(folder),
        None => Whisper::new(&options.model_size, seconds, options.tokenizer.as_deref(), &letters),
    }
    .map_err(told)?;
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
    let folder = common.folder("whisper");
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
    if let Some(score) = &summary.last {
        lines.push(format!("held out  loss {:.3}{}", score.loss, wrong_in_words(score)));
    }
    if let Some(model) = &summary.model {
        lines.push(format!("model     {}", model.display()));
    }
    lines.join("\n")
}
