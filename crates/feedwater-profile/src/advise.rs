//! What to begin with, when there is no run to look at yet?
//!
//! Rules of thumb: what people wrote down who trained such models on such cards, as tables, and what lies between their rows
//! by interpolation. They are a place to start from, no measurement; every piece of advice says where it comes from and how
//! to check it. Memory is counted as on the box: 24 GB is a card that is sold as such.

use std::str::FromStr;

use serde::Serialize;

use crate::error::{Error, Result};

/// What is to be trained, and on what.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Asked {
    /// What is trained.
    pub task: Task,
    /// How large the model is.
    pub size: ModelSize,
    /// Memory of one GPU.
    pub gpu_memory_gigabytes: f64,
    /// How many GPUs there are.
    pub gpus: u32,
}

/// What is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Speech recognition with Whisper.
    Whisper,
    /// Speech synthesis, one device preparing data and one training.
    Tts,
    /// A language model, fine-tuned.
    Lm,
    /// A classifier of feature matrices.
    Npy,
}

/// How large a model is, in the words of Whisper's family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelSize {
    /// 39 million parameters.
    Tiny,
    /// 74 million.
    Base,
    /// 244 million.
    Small,
    /// 769 million.
    Medium,
    /// 1550 million.
    Large,
}

/// What to begin with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// What is trained.
    pub task: Task,
    /// How large the model is.
    pub model_size: ModelSize,
    /// Memory of one GPU.
    pub gpu_memory_gigabytes: f64,
    /// How many GPUs there are.
    pub gpus: u32,
    /// Whether the model, its gradients and the optimizer's state leave room for a sample.
    pub fits: bool,
    /// Samples of a step, on each GPU that trains.
    pub batch_size: u64,
    /// The most that may be worth a try.
    pub batch_size_most: u64,
    /// Steps whose gradients are added up before the optimizer's turn.
    pub gradient_accumulation_steps: u64,
    /// Samples that the optimizer sees at a time, all GPUs together.
    pub effective_batch_size: u64,
    /// `bf16`: everything here assumes half the bytes of f32 for activations.
    pub precision: &'static str,
    /// Whether activations are computed again instead of being kept.
    pub gradient_checkpointing: bool,
    /// Batches that are made ahead.
    pub prefetch: u64,
    /// The least of these that the table has.
    pub prefetch_least: u64,
    /// How the memory is shared out where one of two GPUs prepares data.
    pub split: Option<Split>,
    /// How far this is from what somebody wrote down.
    pub basis: Basis,
    /// Where it comes from, and what to know about it.
    pub notes: Vec<String>,
    /// To paste.
    pub settings: String,
    /// To paste instead, where one of two GPUs prepares data.
    pub settings_split: Option<String>,
    /// How to check it.
    pub check: String,
}

/// How two GPUs share the work: one prepares data, one trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Split {
    /// Samples of a step.
    pub batch_size: u64,
    /// The most that may be worth a try.
    pub batch_size_most: u64,
    /// What the GPU that prepares data may use, in MiB.
    pub data_gpu_memory_mebibytes: u64,
    /// What the GPU that trains may use, in MiB.
    pub model_gpu_memory_mebibytes: u64,
    /// Batches that are made ahead.
    pub prefetch: u64,
    /// The least of these that the table has.
    pub prefetch_least: u64,
}

/// How far advice is from what somebody wrote down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// A row of a table.
    Table,
    /// Between two rows.
    Interpolated,
    /// Beyond the rows.
    Extrapolated,
}

/// Sizes of cards that there are, with room on both sides.
const LEAST_GIGABYTES: f64 = 1.0;
const MOST_GIGABYTES: f64 = 1024.0;
const MOST_GPUS: u32 = 1024;
/// No advice goes beyond: where memory has room for more, it has long ceased to be the limit.
const MOST_BATCH: f64 = 256.0;

/// Whisper's batch sizes on 32 GB, in bf16 with gradient checkpointing: least and most.
const WHISPER_GIGABYTES: f64 = 32.0;
const WHISPER: [(ModelSize, f64, f64); 3] =
    [(ModelSize::Small, 48.0, 64.0), (ModelSize::Medium, 24.0, 32.0), (ModelSize::Large, 12.0, 16.0)];
/// What the optimizer sees at a time: 48 samples, twice.
const WHISPER_EFFECTIVE: u64 = 96;

/// Two GPUs of one size, one for data and one for a tiny model.
struct Row {
    gigabytes: f64,
    batch: (f64, f64),
    data_mebibytes: f64,
    model_mebibytes: f64,
    prefetch: (f64, f64),
}

const TWO_GPUS: [Row; 3] = [
    Row {
        gigabytes: 12.0,
        batch: (8.0, 8.0),
        data_mebibytes: 4096.0,
        model_mebibytes: 8192.0,
        prefetch: (6.0, 8.0),
    },
    Row {
        gigabytes: 16.0,
        batch: (12.0, 12.0),
        data_mebibytes: 6144.0,
        model_mebibytes: 10240.0,
        prefetch: (4.0, 6.0),
    },
    Row {
        gigabytes: 24.0,
        batch: (16.0, 24.0),
        data_mebibytes: 8192.0,
        model_mebibytes: 16384.0,
        prefetch: (2.0, 4.0),
    },
];
/// What the largest row reaches at once.
const TTS_EFFECTIVE: u64 = 24;

/// A small language model on 24 GB: 4 to 8 samples, added up four times, 4 workers with 2 batches each.
const LM_GIGABYTES: f64 = 24.0;
const LM: (f64, f64) = (4.0, 8.0);
const LM_EFFECTIVE: u64 = 16;
const LM_PREFETCH: u64 = 8;

/// A CNN and LSTM on 8 GB: 64 samples took 2 of them.
const NPY_GIGABYTES: f64 = 8.0;
const NPY: f64 = 64.0;
const NPY_PREFETCH: u64 = 6;

/// What to begin with. Nonsense is an error with a hint.
pub fn advise(asked: &Asked) -> Result<Advice> {
    let Asked { task, size, gpu_memory_gigabytes: gigabytes, gpus } = *asked;
    check_gigabytes(gigabytes)?;
    if gpus == 0 || gpus > MOST_GPUS {
        return Err(Error::Setting(format!(
            "`--gpus {gpus}` cannot be\nhint: the number of GPUs in the run, for example --gpus 2"
        )));
    }
    let mut notes = Vec::new();
    let (range, basis) = match task {
        Task::Whisper => whisper(size, gigabytes, &mut notes),
        Task::Tts => tts(size, gigabytes, &mut notes),
        Task::Lm => lm(size, gigabytes, &mut notes),
        Task::Npy => npy(size, gigabytes, &mut notes),
    };
    let fits = range.0 >= 1.0;
    let (batch_size, batch_size_most) = round_batch(range);
    let split = (gpus == 2).then(|| split(size, task, range, gigabytes));
    // One of two that synthesise speech prepares data; in all other cases, each trains.
    let apart = task == Task::Tts && gpus == 2;
    let trainers = if apart { 1 } else { u64::from(gpus) };
    let wanted = match task {
        Task::Whisper => WHISPER_EFFECTIVE,
        Task::Tts => TTS_EFFECTIVE,
        Task::Lm => LM_EFFECTIVE,
        Task::Npy => NPY as u64,
    };
    let gradient_accumulation_steps = wanted.div_ceil(batch_size * trainers).max(1);
    let two = two_gpus(gigabytes).0;
    let (prefetch_least, prefetch) = match task {
        Task::Whisper | Task::Tts => round_prefetch(two.prefetch),
        Task::Lm => (LM_PREFETCH / 2, LM_PREFETCH),
        Task::Npy => (2, NPY_PREFETCH),
    };
    let gradient_checkpointing = match task {
        Task::Whisper => size >= ModelSize::Small,
        Task::Lm => size >= ModelSize::Medium,
        Task::Tts | Task::Npy => false,
    };
    if !fits {
        notes.push(format!(
            "does not fit: weights, gradients and Adam's state of {:.0} million parameters take about {:.0} GB. LoRA or an \
             8-bit optimizer is the way out; batch size 1 is where to begin",
            millions(size),
            state_gigabytes(size)
        ));
    }
    let mut advice = Advice {
        task,
        model_size: size,
        gpu_memory_gigabytes: gigabytes,
        gpus,
        fits,
        batch_size,
        batch_size_most,
        gradient_accumulation_steps,
        effective_batch_size: batch_size * trainers * gradient_accumulation_steps,
        precision: "bf16",
        gradient_checkpointing,
        prefetch,
        prefetch_least,
        split,
        basis,
        notes,
        settings: String::new(),
        settings_split: None,
        check: check(task, batch_size, apart),
    };
    advice.settings = settings(&advice, apart);
    // Said twice only where it differs.
    advice.settings_split =
        advice.split.filter(|_| !apart).map(|split| split_settings(&advice, split, wanted));
    Ok(advice)
}

fn whisper(size: ModelSize, gigabytes: f64, notes: &mut Vec<String>) -> ((f64, f64), Basis) {
    let row = WHISPER.iter().find(|(known, ..)| *known == size);
    let (least, most) = match (row, size) {
        (Some((_, least, most)), _) => (*least, *most),
        // The table doubles with each size downwards.
        (None, ModelSize::Base) => (96.0, 128.0),
        (None, _) => (192.0, 256.0),
    };
    notes.push(if row.is_some() {
        format!(
            "the table has {least}–{most} samples for {} on 32 GB, bf16, gradient checkpointing",
            size.name()
        )
    } else {
        format!("the table begins at small; twice the samples for each size below: {least}–{most} on 32 GB")
    });
    if same(gigabytes, WHISPER_GIGABYTES) {
        let basis = if row.is_some() { Basis::Table } else { Basis::Extrapolated };
        return ((least, most), basis);
    }
    let (left, memory) =
        (room(size, gigabytes) / room(size, WHISPER_GIGABYTES), gigabytes / WHISPER_GIGABYTES);
    notes.push(if left < memory {
        format!(
            "on {} GB: in proportion to what is left beside {:.1} GB for weights, gradients, Adam's state and CUDA",
            round(gigabytes),
            state_gigabytes(size)
        )
    } else {
        format!("on {} GB: in proportion to memory", round(gigabytes))
    });
    // The smaller of the two: what is left grows faster than memory, and nobody wrote down what is beyond the table.
    let share = left.min(memory);
    ((least * share, most * share), Basis::Extrapolated)
}

fn tts(size: ModelSize, gigabytes: f64, notes: &mut Vec<String>) -> ((f64, f64), Basis) {
    let (row, basis) = two_gpus(gigabytes);
    notes.push(match basis {
        Basis::Table => {
            format!("the table has this row: two GPUs of {} GB each, a tiny model", round(gigabytes))
        }
        Basis::Interpolated => {
            "the table has 12, 16 and 24 GB for a tiny model: between its rows in a line".to_owned()
        }
        Basis::Extrapolated => {
            "the table has 12, 16 and 24 GB for a tiny model: beyond it in proportion to the nearest row"
                .to_owned()
        }
    });
    let smaller = halvings(size, ModelSize::Tiny);
    if same(smaller, 1.0) {
        return (row.batch, basis);
    }
    notes.push(format!("{} is larger than tiny: half the samples for each size in between", size.name()));
    ((row.batch.0 * smaller, row.batch.1 * smaller), Basis::Extrapolated)
}

fn lm(size: ModelSize, gigabytes: f64, notes: &mut Vec<String>) -> ((f64, f64), Basis) {
    notes.push(
        "written down: 4–8 samples on 24 GB, added up 4 times, 4 workers with 2 batches each".to_owned(),
    );
    let share = gigabytes / LM_GIGABYTES * halvings(size, ModelSize::Small);
    let as_is = same(share, 1.0);
    if !as_is {
        notes.push("other sizes in proportion to memory, half the samples for each model size".to_owned());
    }
    // A model that leaves room gets one sample at least.
    let range = if room(size, gigabytes) > 0.0 {
        ((LM.0 * share).max(1.0), (LM.1 * share).max(1.0))
    } else {
        (0.0, 0.0)
    };
    (range, if as_is { Basis::Table } else { Basis::Extrapolated })
}

fn npy(size: ModelSize, gigabytes: f64, notes: &mut Vec<String>) -> ((f64, f64), Basis) {
    notes.push(
        "written down: 64 samples on 8 GB took 2 GB; what limits such a model is rarely memory".to_owned(),
    );
    let share = (gigabytes / NPY_GIGABYTES).min(4.0) * halvings(size, ModelSize::Small).min(1.0);
    let as_is = same(share, 1.0);
    if !as_is {
        notes.push("other sizes in proportion to memory, half the samples for each model size".to_owned());
    }
    let least = (NPY * share).max(1.0);
    ((least, 2.0 * least), if as_is { Basis::Table } else { Basis::Extrapolated })
}

/// Two GPUs of so much memory: a row, or what lies between two, or what the nearest comes to.
fn two_gpus(gigabytes: f64) -> (Row, Basis) {
    let scaled = |row: &Row, share: f64| Row {
        gigabytes,
        batch: (row.batch.0 * share, row.batch.1 * share),
        data_mebibytes: row.data_mebibytes * share,
        model_mebibytes: row.model_mebibytes * share,
        prefetch: row.prefetch,
    };
    let [first, .., last] = &TWO_GPUS;
    if gigabytes < first.gigabytes {
        return (scaled(first, gigabytes / first.gigabytes), Basis::Extrapolated);
    }
    if gigabytes > last.gigabytes {
        return (scaled(last, gigabytes / last.gigabytes), Basis::Extrapolated);
    }
    if let Some(row) = TWO_GPUS.iter().find(|row| same(row.gigabytes, gigabytes)) {
        return (scaled(row, 1.0), Basis::Table);
    }
    let pair = TWO_GPUS.windows(2).find(|pair| gigabytes < pair[1].gigabytes);
    let [below, above] = pair.map_or([last, last], |pair| [&pair[0], &pair[1]]);
    let share = (gigabytes - below.gigabytes) / (above.gigabytes - below.gigabytes).max(1.0);
    let between = |from: f64, to: f64| from + (to - from) * share;
    let row = Row {
        gigabytes,
        batch: (between(below.batch.0, above.batch.0), between(below.batch.1, above.batch.1)),
        data_mebibytes: between(below.data_mebibytes, above.data_mebibytes),
        model_mebibytes: between(below.model_mebibytes, above.model_mebibytes),
        prefetch: (between(below.prefetch.0, above.prefetch.0), between(below.prefetch.1, above.prefetch.1)),
    };
    (row, Basis::Interpolated)
}

fn split(size: ModelSize, task: Task, range: (f64, f64), gigabytes: f64) -> Split {
    let row = two_gpus(gigabytes).0;
    let (prefetch_least, prefetch) = round_prefetch(row.prefetch);
    let model_gigabytes = row.model_mebibytes / 1024.0;
    // The GPU that trains has less than a whole one: so do the batches.
    let range = match task {
        Task::Tts => range,
        Task::Whisper => whisper(size, model_gigabytes, &mut Vec::new()).0,
        Task::Lm => lm(size, model_gigabytes, &mut Vec::new()).0,
        Task::Npy => npy(size, model_gigabytes, &mut Vec::new()).0,
    };
    let (batch_size, batch_size_most) = round_batch(range);
    let steps = |mebibytes: f64| (mebibytes / 512.0).floor() as u64 * 512;
    Split {
        batch_size,
        batch_size_most,
        data_gpu_memory_mebibytes: steps(row.data_mebibytes),
        model_gpu_memory_mebibytes: steps(row.model_mebibytes),
        prefetch,
        prefetch_least,
    }
}

fn settings(advice: &Advice, apart: bool) -> String {
    match advice.split {
        Some(split) if apart => split_settings(advice, split, TTS_EFFECTIVE),
        _ => common_settings(advice, advice.batch_size, advice.gradient_accumulation_steps, advice.prefetch),
    }
}

fn split_settings(advice: &Advice, split: Split, wanted: u64) -> String {
    let accumulation = wanted.div_ceil(split.batch_size).max(1);
    format!(
        "{} --data-gpu 0 --model-gpu 1 --data-gpu-memory {} --model-gpu-memory {}",
        common_settings(advice, split.batch_size, accumulation, split.prefetch),
        split.data_gpu_memory_mebibytes,
        split.model_gpu_memory_mebibytes
    )
}

fn common_settings(advice: &Advice, batch_size: u64, accumulation: u64, prefetch: u64) -> String {
    let mut settings = format!(
        "--batch-size {batch_size} --gradient-accumulation-steps {accumulation} --prefetch-buffer-size {prefetch} --{}",
        advice.precision
    );
    if advice.gradient_checkpointing {
        settings.push_str(" --gradient-checkpointing");
    }
    settings
}

fn check(task: Task, batch_size: u64, apart: bool) -> String {
    let task = match task {
        Task::Whisper => " DATA --task whisper",
        Task::Tts => "",
        Task::Lm => " DATA --task text",
        Task::Npy => " DATA --task npy",
    };
    let devices = if apart { " --data-gpu 0 --model-gpu 1" } else { "" };
    format!("feedwater profile{task} --batch-size {batch_size} --num-steps 100{devices}")
}

/// Down to a number that people use, and kernels like.
fn round_batch((least, most): (f64, f64)) -> (u64, u64) {
    let down = |batch: f64| {
        // A hair below 48 is 48.
        let batch = (batch.clamp(1.0, MOST_BATCH) + 1e-6).floor() as u64;
        let step = match batch {
            32.. => 8,
            16.. => 4,
            4.. => 2,
            _ => 1,
        };
        batch / step * step
    };
    (down(least), down(most))
}

fn round_prefetch((least, most): (f64, f64)) -> (u64, u64) {
    (least.round() as u64, most.round() as u64)
}

/// Half for each size above, twice for each below.
fn halvings(size: ModelSize, from: ModelSize) -> f64 {
    0.5_f64.powi(size as i32 - from as i32)
}

fn millions(size: ModelSize) -> f64 {
    match size {
        ModelSize::Tiny => 39.0,
        ModelSize::Base => 74.0,
        ModelSize::Small => 244.0,
        ModelSize::Medium => 769.0,
        ModelSize::Large => 1550.0,
    }
}

/// Weights, gradients and two moments in f32 are 16 bytes a parameter; CUDA itself takes about a gigabyte.
fn state_gigabytes(size: ModelSize) -> f64 {
    millions(size) * 16e6 / f64::from(1 << 30) + 1.0
}

/// What is left for activations.
fn room(size: ModelSize, gigabytes: f64) -> f64 {
    (gigabytes - state_gigabytes(size)).max(0.0)
}

/// For people: no more than a tenth.
fn round(gigabytes: f64) -> f64 {
    (gigabytes * 10.0).round() / 10.0
}

fn same(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

fn check_gigabytes(gigabytes: f64) -> Result<()> {
    if (LEAST_GIGABYTES..=MOST_GIGABYTES).contains(&gigabytes) {
        return Ok(());
    }
    let hint = if gigabytes > MOST_GIGABYTES {
        format!("one GPU's memory; is {gigabytes}MB meant?")
    } else {
        "one GPU's memory, for example 24GB".to_owned()
    };
    Err(Error::Setting(format!("no GPU has {gigabytes} GB of memory\nhint: {hint}")))
}

/// Reads `24GB`, `24`, `24GiB` or `24576MB`: what is printed on the box, so that GB and GiB are the same here.
pub fn gigabytes(text: &str) -> Result<f64> {
    let text = text.trim();
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let wrong = || {
        Error::Setting(format!(
            "`{text}` is not an amount of memory\nhint: one GPU's memory, for example 24GB"
        ))
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let gigabytes = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "g" | "gb" | "gib" => number,
        "m" | "mb" | "mib" => number / 1024.0,
        "t" | "tb" | "tib" => number * 1024.0,
        _ => return Err(wrong()),
    };
    check_gigabytes(gigabytes)?;
    Ok(gigabytes)
}

impl Task {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Whisper => "whisper",
            Self::Tts => "tts",
            Self::Lm => "lm",
            Self::Npy => "npy",
        }
    }
}

impl FromStr for Task {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let all = [Self::Whisper, Self::Tts, Self::Lm, Self::Npy];
        let named = all.into_iter().find(|task| task.name().eq_ignore_ascii_case(text));
        named.ok_or_else(|| {
            Error::Setting(format!("there is no advice for the task `{text}`\nhint: whisper, tts, lm or npy"))
        })
    }
}

impl ModelSize {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Base => "base",
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Large => "large",
        }
    }
}

impl FromStr for ModelSize {
    type Err = Error;

    /// Also as in `openai/whisper-large-v3`, `small.en`.
    fn from_str(text: &str) -> Result<Self> {
        let lower = text.to_ascii_lowercase();
        let word = lower.rsplit("whisper-").next().unwrap_or_default();
        let word = word.split(['.', '-']).next().unwrap_or_default();
        let all = [Self::Tiny, Self::Base, Self::Small, Self::Medium, Self::Large];
        all.into_iter().find(|size| size.name() == word).ok_or_else(|| {
            Error::Setting(format!("`{text}` is not a model size\nhint: tiny, base, small, medium or large"))
        })
    }
}

#[cfg(test)]
mod tests;
