//! `feedwater train`: a model from a folder; with PyTorch where that is there, else on this machine's own.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Serialize;

#[cfg(feature = "train")]
use crate::train::native;
use crate::{caching::Caching, train::torch};

const EXAMPLES: &str = "\
Examples:
  feedwater train cnn-lstm --data-dir data/morse --output-dir runs/morse
  feedwater train cnn-lstm --data-dir data/morse --output-dir runs/morse --resume
  feedwater train cnn-lstm --data-dir data/npy --encoder-epochs 2 --num-epochs 5
  feedwater train whisper --data-dir data/morse --model whisper-tiny --output-dir runs/whisper
  feedwater train whisper --data-dir data/morse --model-size tiny --max-seconds 12
  feedwater train lm --data-dir corpus.jsonl --model my-llama --bf16 --compile
  feedwater train tts --train-data LJSpeech-1.1 --data-gpu 0 --model-gpu 1
  torchrun --nproc-per-node 2 -m feedwater.train whisper --data-dir data/morse …

One sample in twenty is held out, to see how the model does on what it never saw,
unless --eval-data names others. Ctrl-C ends the run after a checkpoint; --resume
goes on from there, with the same batches as if nothing had been.

--engine torch needs Python with the packages feedwater and torch; it is taken
where they are, and the native trainer where they are not. FEEDWATER_PYTHON says
which Python. A flag of one engine is refused by the other.

Exit codes:
  0  trained
  2  the data, the settings or the checkpoint cannot be used
  130  stopped by Ctrl-C, after a checkpoint";

/// What to train.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) recipe: RecipeOptions,
}

#[derive(Debug, clap::Subcommand, Serialize)]
#[serde(tag = "recipe", rename_all = "kebab-case")]
pub(crate) enum RecipeOptions {
    /// Convolutions and an LSTM: transcribes sound with a CTC head, or classifies arrays
    #[command(after_help = EXAMPLES, args_override_self = true)]
    CnnLstm(CnnLstmOptions),
    /// Whisper, new or from a folder in Hugging Face's format, and saved in it
    #[command(after_help = EXAMPLES, args_override_self = true)]
    Whisper(WhisperOptions),
    /// A causal language model on text or JSON lines, with PyTorch
    #[command(after_help = EXAMPLES, args_override_self = true)]
    Lm(LmOptions),
    /// A compact text-to-mel model on sound with texts, with PyTorch
    #[command(after_help = EXAMPLES, args_override_self = true)]
    Tts(TtsOptions),
}

#[derive(Debug, clap::Args, Serialize)]
pub(crate) struct CnnLstmOptions {
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) common: Common,
    /// What to learn; by what the samples are, unless given
    #[arg(long, value_enum)]
    pub(crate) task: Option<WhichTask>,
    /// Channels of the convolutions
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) channels: u16,
    /// Width of the recurrent layer
    #[arg(long, default_value_t = 96, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) hidden: u16,
    /// Times through the data before there is a classifier, in which hidden parts are guessed
    #[arg(long, default_value_t = 2.0, value_parser = epochs)]
    pub(crate) encoder_epochs: f64,
    /// The same as --num-epochs, of the classifier
    #[arg(long, value_parser = epochs)]
    pub(crate) classifier_epochs: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WhichTask {
    /// Sound to text
    Transcribe,
    /// Arrays to one of some classes
    Classify,
}

#[derive(Debug, clap::Args, Serialize)]
pub(crate) struct WhisperOptions {
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) common: Common,
    /// Size of a new model, where there is no --model
    #[arg(long, value_enum, default_value_t = Size::Tiny)]
    pub(crate) model_size: Size,
    /// A new model's tokenizer.json; a token for each byte unless given
    #[arg(long, value_name = "FILE")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Length of the clips that a new model hears
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..=30))]
    pub(crate) max_seconds: u16,
    /// Language of the texts, for a model of several: `en`
    #[arg(long)]
    pub(crate) language: Option<String>,
    /// Cut clips that are longer, by the times of their words
    #[arg(long)]
    pub(crate) use_chunking: bool,
}

#[derive(Debug, clap::Args, Serialize)]
pub(crate) struct LmOptions {
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) common: Common,
    /// Size of a new model, where there is no --model
    #[arg(long, value_enum, default_value_t = Size::Tiny)]
    pub(crate) model_size: Size,
    /// A new model's tokenizer.json; one made from the data unless given
    #[arg(long, value_name = "FILE")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Tokens of a row
    #[arg(long, alias = "max-length", alias = "block-size", default_value_t = 512, value_parser = clap::value_parser!(u32).range(8..))]
    pub(crate) length: u32,
    /// A row for each document, padded, instead of rows that are full
    #[arg(long)]
    pub(crate) no_packing: bool,
}

#[derive(Debug, clap::Args, Serialize)]
pub(crate) struct TtsOptions {
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) common: Common,
    /// Size of a new model, where there is no --model
    #[arg(long, value_enum, default_value_t = Size::Tiny)]
    pub(crate) model_size: Size,
    /// Longest clips that are learned from, in seconds
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..=30))]
    pub(crate) max_seconds: u16,
}

/// How large a new model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Size {
    Tiny,
    Base,
    Small,
    Medium,
    Large,
}

#[cfg(feature = "train")]
impl Size {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Base => "base",
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Large => "large",
        }
    }
}

#[derive(Debug, clap::Args, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Common {
    /// A dataset: `feedwater inspect` says what it is
    #[arg(long, visible_alias = "train-data", value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    /// Where checkpoints, the record and the model go [default: runs/RECIPE]
    #[arg(long, value_name = "DIR")]
    pub(crate) output_dir: Option<PathBuf>,
    /// Samples that the model is tried on, instead of some of --data-dir
    #[arg(long, value_name = "DIR")]
    pub(crate) eval_data: Option<PathBuf>,
    /// A folder with a model to begin with; with PyTorch, a name on the hub will do
    #[arg(long, alias = "model-dir", alias = "model-name-or-path", value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    /// What trains
    #[arg(long, value_enum, default_value_t = Engine::Auto)]
    pub(crate) engine: Engine,
    /// A YAML file with settings by the names of these flags, in sections or not; flags count more
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Samples of a micro-batch; with PyTorch, `auto` looks for the one that is fastest in the memory there is
    #[arg(long, default_value = "16", value_name = "N|auto", value_parser = batch_size)]
    pub(crate) batch_size: BatchSize,
    /// Micro-batches of a step
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) gradient_accumulation_steps: u32,
    /// Steps of the run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_steps: Option<u64>,
    /// Times through the data, where --max-steps is not given
    #[arg(long, alias = "epochs", default_value_t = 10.0, value_parser = epochs)]
    pub(crate) num_epochs: f64,
    /// The highest rate [default: 3e-3 for cnn-lstm, 1e-4 for whisper, 3e-4 for lm, 1e-3 for tts]
    #[arg(long, visible_alias = "lr")]
    pub(crate) learning_rate: Option<f64>,
    /// Steps in which the rate rises
    #[arg(long, default_value_t = 50)]
    pub(crate) warmup_steps: u64,
    /// How the rate falls
    #[arg(long, value_enum, default_value_t = Falls::Cosine)]
    pub(crate) lr_scheduler_type: Falls,
    /// The share of a weight that each step takes away, times the rate
    #[arg(long, default_value_t = 0.01)]
    pub(crate) weight_decay: f64,
    /// The longest that a step's gradient may be; 0: any
    #[arg(long, default_value_t = 1.0)]
    pub(crate) max_grad_norm: f64,
    /// Steps between evaluations
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) eval_steps: u64,
    /// Steps between checkpoints
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) save_steps: u64,
    /// Evaluations without a better one that end the run
    #[arg(long, value_name = "N")]
    pub(crate) early_stopping_patience: Option<u32>,
    /// Threads that make batches [default: found out while it trains; no more than cores]
    #[arg(long, alias = "dataloader-num-workers", alias = "num-workers", value_name = "N|auto", value_parser = or_auto)]
    pub(crate) threads: Option<OrAuto>,
    /// Batches made ahead [default: found out while it trains, from 3 on]
    #[arg(long, alias = "prefetch-buffer-size", value_name = "N|auto", value_parser = or_auto)]
    pub(crate) prefetch: Option<OrAuto>,
    /// The share of the cores that making batches may keep busy: 80% [default: all]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) cpu_ceiling: Option<f64>,
    /// Where the model is: cpu; native: vulkan or vulkan:N where that was built in; PyTorch: cuda:N, mps
    /// [default: cpu; with PyTorch a GPU, if there is one]
    #[arg(long, alias = "model-device")]
    pub(crate) device: Option<String>,
    /// Where batches are prepared, if not there
    #[arg(long, value_name = "DEVICE")]
    pub(crate) data_device: Option<String>,
    /// Numbers to compute with [default: f32; with PyTorch on a GPU bf16, or f16 where it has none]
    #[arg(long, value_enum, overrides_with_all = ["bf16", "fp16"])]
    pub(crate) precision: Option<Precision>,
    /// The same as --precision bf16
    #[arg(long, overrides_with_all = ["precision", "fp16"])]
    pub(crate) bf16: bool,
    /// The same as --precision f16
    #[arg(long, overrides_with_all = ["precision", "bf16"])]
    pub(crate) fp16: bool,
    /// The share of bad samples that are left out before the run stops: 5% [default: 1%]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) bad_ceiling: Option<f64>,
    /// Where all random numbers come from
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
    /// Go on from the newest checkpoint in --output-dir
    #[arg(long)]
    pub(crate) resume: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) caching: Caching,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) torch: TorchOptions,
}

/// What only PyTorch does.
#[derive(Debug, clap::Args, Serialize)]
#[command(next_help_heading = "With PyTorch")]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct TorchOptions {
    /// Compile the model: a minute or more at first, faster steps after
    #[arg(long, alias = "torch-compile")]
    pub(crate) compile: bool,
    /// Compute activations again instead of keeping them: less memory, a third more work [default: on for whisper]
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "on", value_name = "on|off")]
    pub(crate) gradient_checkpointing: Option<Switch>,
    /// Where noise and masks are made
    #[arg(long, value_enum, default_value_t = Augment::Host)]
    pub(crate) augment_on: Augment,
    /// Noise of this deviation on features
    #[arg(long, value_name = "DEVIATION")]
    pub(crate) noise: Option<f32>,
    /// Stretches of time that are masked in each sample
    #[arg(long, default_value_t = 0)]
    pub(crate) time_masks: u16,
    /// When memory does not suffice: stop and say what to change, or halve the micro-batch and go on
    #[arg(long, value_enum, default_value_t = OnOom::Stop)]
    pub(crate) on_oom: OnOom,
    /// How several processes share a model: copies, or shards
    #[arg(long, value_enum, default_value_t = Strategy::Ddp)]
    pub(crate) strategy: Strategy,
    /// Where curves go: tensorboard, wandb, mlflow, trackio, none
    #[arg(long, value_name = "NAME,…", default_value = "tensorboard", value_parser = report_to)]
    pub(crate) report_to: ReportTo,
    /// The GPU that makes features, where there are two
    #[arg(long, value_name = "N")]
    pub(crate) data_gpu: Option<u32>,
    /// The GPU that trains
    #[arg(long, value_name = "N")]
    pub(crate) model_gpu: Option<u32>,
    /// Hold each GPU to its ceiling of memory
    #[arg(long)]
    pub(crate) enable_memory_isolation: bool,
    /// Most memory of the data GPU, in MB
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) data_gpu_memory: Option<u64>,
    /// Most memory of the model's GPU, in MB
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) model_gpu_memory: Option<u64>,
    /// Pad batches to the same shape, or to few of them
    #[arg(long)]
    pub(crate) enable_static_shapes: bool,
    /// Read all files once before the first step, so that they are in memory
    #[arg(long)]
    pub(crate) cache_dataset: bool,
}

/// What trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Engine {
    /// PyTorch where it is, else native
    Auto,
    /// This program itself, on the CPU, without Python
    Native,
    /// PyTorch
    Torch,
}

/// Samples of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum BatchSize {
    Of(u64),
    Auto(Automatic),
}

/// The word for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Automatic {
    Auto,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Switch {
    #[value(alias = "true")]
    On,
    #[value(alias = "false")]
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Augment {
    /// On the cores, keyed by the sample
    Host,
    /// On the device, keyed by the step
    Device,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnOom {
    Stop,
    Split,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Strategy {
    /// A copy of the model in each process
    Ddp,
    /// A shard of it, by PyTorch's FSDP2
    Fsdp,
    /// A shard of it, by `DeepSpeed`
    Deepspeed,
}

/// Where curves go. One value, so that a flag takes the place of what a file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ReportTo(Vec<String>);

fn report_to(text: &str) -> Result<ReportTo, String> {
    let names = ["tensorboard", "wandb", "mlflow", "trackio", "none"];
    match text.split(',').find(|name| !names.contains(name)) {
        Some(name) => Err(format!("`{name}` is none of {}", names.join(", "))),
        None => Ok(ReportTo(text.split(',').map(str::to_owned).collect())),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Falls {
    Constant,
    Linear,
    Cosine,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Precision {
    #[value(alias = "fp32")]
    F32,
    Bf16,
    #[value(alias = "fp16")]
    F16,
}

/// A number, or that it is to be found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct OrAuto(pub(crate) Option<u16>);

/// `0` is what other programs have for no workers: here there are threads, as many as it takes.
pub(crate) fn or_auto(text: &str) -> Result<OrAuto, String> {
    match text.parse::<u16>() {
        Ok(number) => Ok(OrAuto((number > 0).then_some(number))),
        Err(_) if text == "auto" => Ok(OrAuto(None)),
        Err(_) => Err("a number, or `auto`".to_owned()),
    }
}

pub(crate) fn share(text: &str) -> Result<f64, String> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    match number.trim().parse::<f64>().map(|number| number / scale) {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("a share: 80%, or 0.8".to_owned()),
    }
}

/// As a shell says that Ctrl-C ended a command.
#[cfg(feature = "train")]
pub(crate) const STOPPED: u8 = 130;

fn epochs(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(epochs) if epochs.is_finite() && epochs >= 0.0 => Ok(epochs),
        _ => Err("a number of epochs, 0 or more".to_owned()),
    }
}

fn batch_size(text: &str) -> Result<BatchSize, String> {
    match text.parse::<u64>() {
        Ok(size @ 1..=4096) => Ok(BatchSize::Of(size)),
        _ if text == "auto" => Ok(BatchSize::Auto(Automatic::Auto)),
        _ => Err("a number from 1 to 4096, or auto".to_owned()),
    }
}

impl RecipeOptions {
    pub(crate) fn common(&self) -> &Common {
        match self {
            Self::CnnLstm(options) => &options.common,
            Self::Whisper(options) => &options.common,
            Self::Lm(options) => &options.common,
            Self::Tts(options) => &options.common,
        }
    }

    fn common_mut(&mut self) -> &mut Common {
        match self {
            Self::CnnLstm(options) => &mut options.common,
            Self::Whisper(options) => &mut options.common,
            Self::Lm(options) => &mut options.common,
            Self::Tts(options) => &mut options.common,
        }
    }

    /// What it is called on the command line.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::CnnLstm(_) => "cnn-lstm",
            Self::Whisper(_) => "whisper",
            Self::Lm(_) => "lm",
            Self::Tts(_) => "tts",
        }
    }

    /// Puts what has two spellings into one.
    fn settle(&mut self) {
        if let Self::CnnLstm(options) = self
            && let Some(epochs) = options.classifier_epochs
        {
            options.common.num_epochs = epochs;
        }
        let name = self.name();
        let common = self.common_mut();
        let _ = common.output_dir.get_or_insert_with(|| Path::new("runs").join(name));
        if common.bf16 {
            common.precision = Some(Precision::Bf16);
        }
        if common.fp16 {
            common.precision = Some(Precision::F16);
        }
    }
}

impl Options {
    /// Everything as it is meant.
    pub(crate) fn settled(mut self) -> Self {
        self.recipe.settle();
        self
    }
}

pub(crate) fn run(options: Options, arguments: &[std::ffi::OsString]) -> miette::Result<u8> {
    let options = options.settled();
    let common = options.recipe.common();
    common.caching.warn();
    if let (Some(_), Some(OrAuto(Some(threads)))) = (common.cpu_ceiling, common.threads) {
        eprintln!(
            "warning: --cpu-ceiling is for threads that are found out: there are {threads}, as was said"
        );
    }
    match torch::chosen(&options.recipe)? {
        Some(python) => torch::run(&python, arguments),
        #[cfg(feature = "train")]
        None => native::run(&options.recipe),
        #[cfg(not(feature = "train"))]
        None => Err(miette::miette!(
            help = "--engine torch, with `pip install torch transformers`; or the command of a clone: `cargo run --release --`",
            "the native trainer is not in this program"
        )),
    }
}
