//! `feedwater train`: a model from a folder, on this machine, without Python.

use std::{
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use feedwater::source::{self, Source};
use feedwater_profile::{machine, record};
use feedwater_train::{
    Device,
    checkpoint::Checkpoints,
    optimizer::Schedule,
    recipes::{Recipe, cnn_lstm::CnnLstm},
    split,
    trainer::{Ended, Feed, Settings, Summary, Trainer, batches},
    vocabulary::Vocabulary,
};
use miette::miette;
use serde_json::{Value, json};

use super::report::print;
use crate::train::{Progress, interrupted};

const EXAMPLES: &str = "\
Examples:
  feedwater train cnn-lstm --data-dir data/morse --output-dir runs/morse
  feedwater train cnn-lstm --data-dir data/morse --output-dir runs/morse --resume
  feedwater train cnn-lstm --data-dir data/morse --max-steps 2000 --learning-rate 2e-3

One sample in twenty is held out, to see how the model does on what it never saw,
unless --eval-data names others. Ctrl-C ends the run after a checkpoint; --resume
goes on from there, with the same batches as if nothing had been.

Exit codes:
  0  trained
  2  the data, the settings or the checkpoint cannot be used";

/// What to train.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(subcommand)]
    recipe: RecipeOptions,
}

#[derive(Debug, clap::Subcommand)]
enum RecipeOptions {
    /// Convolutions and an LSTM with a CTC head: transcribes
    #[command(after_help = EXAMPLES)]
    CnnLstm(CnnLstmOptions),
}

#[derive(Debug, clap::Args)]
struct CnnLstmOptions {
    /// A dataset with sound and texts
    #[arg(long, alias = "data_dir", value_name = "DIR")]
    data_dir: PathBuf,
    /// Where checkpoints, the record and the model go
    #[arg(long, alias = "output_dir", value_name = "DIR", default_value = "runs/cnn-lstm")]
    output_dir: PathBuf,
    /// Samples that the model is tried on, instead of some of --data-dir
    #[arg(long, alias = "eval_data", value_name = "DIR")]
    eval_data: Option<PathBuf>,
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
    #[arg(long, alias = "num_epochs", default_value_t = 10.0)]
    num_epochs: f64,
    /// The highest rate
    #[arg(long, alias = "learning_rate", default_value_t = 3e-3)]
    learning_rate: f64,
    /// Steps in which the rate rises
    #[arg(long, alias = "warmup_steps", default_value_t = 50)]
    warmup_steps: u64,
    /// How the rate falls
    #[arg(long, alias = "lr_scheduler_type", value_enum, default_value_t = Falls::Cosine)]
    lr_scheduler_type: Falls,
    /// Steps between evaluations
    #[arg(long, alias = "eval_steps", default_value_t = 100)]
    eval_steps: u64,
    /// Steps between checkpoints
    #[arg(long, alias = "save_steps", default_value_t = 100)]
    save_steps: u64,
    /// Evaluations without a better one that end the run
    #[arg(long, alias = "early_stopping_patience", value_name = "N")]
    early_stopping_patience: Option<u32>,
    /// Channels of the convolutions
    #[arg(long, default_value_t = 64)]
    channels: usize,
    /// Width of the recurrent layer
    #[arg(long, default_value_t = 96)]
    hidden: usize,
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

/// A run.
struct Job {
    recipe: CnnLstm,
    settings: Settings,
    training: Box<dyn Source>,
    held_out: Box<dyn Source>,
    folder: PathBuf,
    resume: bool,
}

impl Job {
    /// Trains, and shows how it goes on. How it ended, and how many seconds it took.
    fn run(self) -> miette::Result<(Summary, f64)> {
        let told = |error: feedwater_train::Error| miette!("{error}");
        let Self { recipe, settings, training, held_out, folder, resume } = self;
        std::fs::create_dir_all(&folder)
            .map_err(|error| miette!("cannot make `{}`: {error}", folder.display()))?;
        let feed = Feed {
            training: batches(recipe.pipeline(training).map_err(told)?, &settings, true).map_err(told)?,
            held_out: Some(
                batches(recipe.pipeline(held_out).map_err(told)?, &settings, false).map_err(told)?,
            ),
        };
        let stop = interrupted()?;
        let device = Device::flex();
        let run = record::Run {
            name: format!("train {}", recipe.name()),
            writer: format!("feedwater {}", env!("CARGO_PKG_VERSION")),
            started_unix_seconds: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            clock: "host".to_owned(),
            planned_steps: Some(settings.max_steps),
            host: machine::host(),
            settings: record::Settings {
                loader: "feedwater".to_owned(),
                batch_size: Some(settings.batch_size),
                ..record::Settings::default()
            },
            ..record::Run::default()
        };
        let trainer = Trainer {
            recipe: &recipe,
            settings: &settings,
            checkpoints: Checkpoints::new(folder.join("checkpoints")),
            record: Some((folder.join("record.jsonl"), run)),
            stop: &stop,
        };
        let mut progress = Progress::new(settings.max_steps);
        let weights = recipe.weights(settings.seed, &device);
        let done = trainer.run(weights, feed, resume, &mut |event| progress.tell(&event));
        let seconds = progress.finish().as_secs_f64();
        let (_, summary) = done.map_err(told)?;
        Ok((summary, seconds))
    }
}

pub(crate) fn run(options: &Options) -> miette::Result<u8> {
    let RecipeOptions::CnnLstm(options) = &options.recipe;
    let told = |error: feedwater_train::Error| miette!("{error}");
    let open = |path: &PathBuf| source::open(path).map_err(|error| miette!("{error}"));
    let whole = open(&options.data_dir)?;
    let vocabulary = Vocabulary::of(&*whole).map_err(told)?;
    let (training, held_out): (Box<dyn Source>, Box<dyn Source>) = if let Some(path) = &options.eval_data {
        (whole, open(path)?)
    } else {
        let (training, held_out) = split::hold_out(whole, 20);
        (Box::new(training), Box::new(held_out))
    };
    let a_step = options.batch_size * u64::from(options.gradient_accumulation_steps);
    let an_epoch = training.len().div_ceil(a_step).max(1);
    let settings = Settings {
        batch_size: options.batch_size,
        accumulation: options.gradient_accumulation_steps,
        max_steps: options.max_steps.unwrap_or((an_epoch as f64 * options.num_epochs).ceil().max(1.0) as u64),
        learning_rate: options.learning_rate,
        warm_up: options.warmup_steps,
        schedule: match options.lr_scheduler_type {
            Falls::Constant => Schedule::Constant,
            Falls::Linear => Schedule::Linear,
            Falls::Cosine => Schedule::Cosine,
        },
        seed: options.seed,
        evaluate_every: options.eval_steps,
        checkpoint_every: options.save_steps,
        patience: options.early_stopping_patience,
        ..Settings::default()
    };
    let recipe = CnnLstm::new(vocabulary, options.channels, options.hidden);
    let (samples, tried) = (training.len(), held_out.len());
    if !options.json {
        eprintln!("data      {samples} samples to learn from, {tried} held out");
    }
    let folder = options.output_dir.clone();
    let (summary, seconds) =
        Job { recipe, settings, training, held_out, folder, resume: options.resume }.run()?;
    let said = if options.json { as_json(&summary, seconds).to_string() } else { as_text(&summary, seconds) };
    print(&said)?;
    Ok(0)
}

fn as_json(summary: &Summary, seconds: f64) -> Value {
    json!({
        "version": 1,
        "steps": summary.steps,
        "seconds": seconds,
        "busy": summary.busy,
        "cer": summary.last.map(|score| score.cer),
        "wer": summary.last.map(|score| score.wer),
        "best_cer": summary.best.map(|(cer, _)| cer),
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
    let mut lines =
        vec![format!("trained   {} steps in {seconds:.0} s, busy {busy:.1} %{why}", summary.steps)];
    if let Some(score) = summary.last {
        let (letters, words) = (100.0 * score.cer, 100.0 * score.wer);
        lines.push(format!("held out  {letters:.1} % of letters wrong, {words:.1} % of words"));
    }
    if let Some(model) = &summary.model {
        lines.push(format!("model     {}", model.display()));
    }
    lines.join("\n")
}
