//! Convolutions over time, a layer that reads forwards and backwards, and a head.
//!
//! * To **transcribe**: the log-mel bins around a tone, and a class for each frame with a CTC loss. It learns Morse.
//! * To **classify** arrays of any length: the mean of what the layer says, and one class for each sample. Before that, the
//!   part below the head is trained by **reconstruction**: spans of frames are hidden, and what was there is to be guessed.
//!   That needs no labels, no second view of a sample and no large batches, as learning by contrast would.
//!
//! Rows are as long as they are: behind its end, a row is nothing to any layer. The names and shapes of weights are those
//! that PyTorch's `Conv1d`, `LSTM` and `Linear` have.

use std::{fs, path::Path};

use burn_tensor::{Tensor, TensorData, activation::relu};
use feedwater::{Audio, Builder, LogMel, Npy, Pipeline, ReadyBatch, source::Source};
use rand_core::Rng;
use rand_pcg::{Pcg64Mcg, rand_core::SeedableRng};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::{Learns, Prepared, Recipe, features_of, labels_of, read_config};
use crate::{
    Device, Error, Result,
    ops::{Direction, conv1d, cross_entropy, ctc_greedy, ctc_loss, linear, lstm, mean_squared},
    vocabulary::Vocabulary,
    weights::{Init, Weights},
};

/// What kind of model a folder is of.
pub const MODEL_TYPE: &str = "feedwater-cnn-lstm";

/// The model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What kind of model a file is of.
    pub model_type: String,
    /// Numbers of a frame: mel bins, of which those around the tone are looked at, or columns of an array.
    pub bins: usize,
    /// Channels of the convolutions.
    pub channels: usize,
    /// Width of the recurrent layer, in each direction.
    pub hidden: usize,
    /// What the head is for.
    pub task: Task,
}

/// What the head is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Letters of so many classes, the blank among them.
    Transcribe(usize),
    /// What was hidden.
    Reconstruct,
    /// One of these.
    Classify(Vec<String>),
}

const KERNEL: usize = 5;
const STRIDES: [usize; 2] = [2, 2];
/// Mel bins around the tone.
const WINDOW: usize = 9;
const LAYERS: [&str; 2] = ["conv1", "conv2"];
const DIRECTIONS: [&str; 2] = ["l0", "l0_reverse"];
/// Frames of the recurrent layer that are hidden at a time, and one span in how many.
const SPAN: usize = 4;
const HIDDEN_EVERY: u64 = 3;

/// A model with convolutions and a recurrent layer.
#[derive(Clone, Debug)]
pub struct CnnLstm {
    config: Config,
    vocabulary: Option<Vocabulary>,
}

impl CnnLstm {
    /// One that transcribes into these letters.
    pub fn transcriber(vocabulary: Vocabulary, channels: usize, hidden: usize) -> Self {
        let task = Task::Transcribe(vocabulary.classes());
        let config = Config { model_type: MODEL_TYPE.to_owned(), bins: 80, channels, hidden, task };
        Self { config, vocabulary: Some(vocabulary) }
    }

    /// One for arrays with so many columns, that reconstructs or classifies.
    pub fn of_arrays(bins: usize, channels: usize, hidden: usize, task: Task) -> Self {
        let config = Config { model_type: MODEL_TYPE.to_owned(), bins, channels, hidden, task };
        Self { config, vocabulary: None }
    }

    /// The one that learns what is below this one's head.
    pub fn encoder(&self) -> Self {
        let Config { bins, channels, hidden, .. } = self.config;
        Self::of_arrays(bins, channels, hidden, Task::Reconstruct)
    }

    /// The one that was saved in a folder.
    pub fn load(folder: &Path) -> Result<Self> {
        let wrong = |what: String| Error::Checkpoint { path: folder.join("config.json"), what };
        let config: Config =
            serde_json::from_value(read_config(folder)?).map_err(|error| wrong(error.to_string()))?;
        if config.bins == 0 || config.channels == 0 || config.hidden == 0 {
            return Err(wrong("one of its sizes is 0".to_owned()));
        }
        let vocabulary = match &config.task {
            Task::Transcribe(classes) => {
                let vocabulary = Vocabulary::load(folder)?;
                let has = vocabulary.classes();
                if has != *classes {
                    let what =
                        format!("it has {classes} classes, and the tokenizer.json beside it has {has}");
                    return Err(wrong(what));
                }
                Some(vocabulary)
            }
            _ => None,
        };
        Ok(Self { config, vocabulary })
    }

    /// Its sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Numbers of a frame that the first layer sees.
    fn inputs(&self) -> usize {
        if self.vocabulary.is_some() { WINDOW } else { self.config.bins }
    }

    /// What the head gives for a frame or a sample.
    fn outputs(&self) -> usize {
        match &self.config.task {
            Task::Transcribe(classes) => *classes,
            Task::Reconstruct => self.config.bins,
            Task::Classify(names) => names.len(),
        }
    }

    fn head(&self) -> &'static str {
        if self.config.task == Task::Reconstruct { "decoder" } else { "head" }
    }

    /// Weights to begin with: PyTorch's defaults.
    pub fn weights(&self, seed: u64, device: &Device) -> Weights {
        let Config { channels, hidden, .. } = self.config;
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let mut weights = Weights::new(device);
        let uniform = |inputs: usize| Init::Uniform(1.0 / (inputs as f32).sqrt());
        for (name, inputs) in LAYERS.into_iter().zip([self.inputs(), channels]) {
            let init = uniform(inputs * KERNEL);
            weights.add(format!("{name}.weight"), &[channels, inputs, KERNEL], init, &mut rng);
            weights.add(format!("{name}.bias"), &[channels], init, &mut rng);
        }
        for name in DIRECTIONS {
            let init = uniform(hidden);
            weights.add(format!("lstm.weight_ih_{name}"), &[4 * hidden, channels], init, &mut rng);
            weights.add(format!("lstm.weight_hh_{name}"), &[4 * hidden, hidden], init, &mut rng);
            weights.add(format!("lstm.bias_ih_{name}"), &[4 * hidden], init, &mut rng);
            weights.add(format!("lstm.bias_hh_{name}"), &[4 * hidden], init, &mut rng);
        }
        let (head, outputs, init) = (self.head(), self.outputs(), uniform(2 * hidden));
        weights.add(format!("{head}.weight"), &[outputs, 2 * hidden], init, &mut rng);
        weights.add(format!("{head}.bias"), &[outputs], init, &mut rng);
        weights
    }

    /// How many frames are left of this many.
    fn left(frames: usize) -> usize {
        STRIDES.iter().fold(frames, |frames, stride| frames.div_ceil(*stride))
    }

    /// What the recurrent layer says of features `[rows, frames, inputs]`: `[rows, frames / 4, 2 hidden]`, and how many
    /// frames each row has of it.
    fn encode(&self, weights: &Weights, features: Tensor<3>, lengths: &[usize]) -> (Tensor<3>, Vec<usize>) {
        let mut x = features;
        let mut lengths = lengths.to_vec();
        for (name, stride) in LAYERS.into_iter().zip(STRIDES) {
            let (weight, bias) =
                (weights.get(&format!("{name}.weight")), weights.get(&format!("{name}.bias")));
            x = relu(conv1d(x, weight, bias, stride));
            for length in &mut lengths {
                *length = length.div_ceil(stride);
            }
            // Behind its end a row is zeros again: the next layer looks a little beyond.
            let [rows, frames, _] = x.dims();
            let there = lengths
                .iter()
                .flat_map(|length| (0..frames).map(move |at| f32::from(u8::from(at < *length))));
            let there = TensorData::new(there.collect::<Vec<f32>>(), [rows, frames, 1]);
            x = x * Tensor::from_data(there, weights.device());
        }
        let [rows, frames, _] = x.dims();
        let x = x.reshape([-1]);
        let [forwards, backwards] = DIRECTIONS.map(|name| {
            let get = |kind: &str| weights.get::<1>(&format!("lstm.{kind}_{name}"));
            let gates = linear(
                x.clone(),
                weights.get(&format!("lstm.weight_ih_{name}")),
                Some(get("bias_ih") + get("bias_hh")),
            );
            let gates = gates.reshape([rows, frames, 4 * self.config.hidden]);
            Direction { gates, recurrent: weights.get(&format!("lstm.weight_hh_{name}")) }
        });
        (lstm(forwards, backwards, &lengths), lengths)
    }

    /// The head over flat frames or samples.
    fn answer(&self, weights: &Weights, x: Tensor<1>) -> Tensor<1> {
        let head = self.head();
        linear(x, weights.get(&format!("{head}.weight")), Some(weights.get(&format!("{head}.bias"))))
    }

    fn encoded(&self, weights: &Weights, batch: &Prepared) -> (Tensor<3>, Vec<usize>) {
        self.encode(weights, weights.near(&batch.features), &batch.lengths)
    }

    /// Logits of each frame, `[rows, frames, classes]`, and how many frames each row has.
    pub fn frames(&self, weights: &Weights, batch: &Prepared) -> (Tensor<3>, Vec<usize>) {
        let (x, lengths) = self.encoded(weights, batch);
        let [rows, frames, _] = x.dims();
        (self.answer(weights, x.reshape([-1])).reshape([rows, frames, self.outputs()]), lengths)
    }

    /// Logits of each sample, `[rows × classes]`.
    fn samples(&self, weights: &Weights, batch: &Prepared) -> Tensor<1> {
        let (x, lengths) = self.encoded(weights, batch);
        let rows = lengths.len();
        let over: Vec<f32> = lengths.iter().map(|length| 1.0 / (*length).max(1) as f32).collect();
        let over = Tensor::<2>::from_data(TensorData::new(over, [rows, 1]), weights.device());
        // Behind a row's end there are zeros.
        let mean = x.sum_dim(1).reshape([rows, 2 * self.config.hidden]) * over;
        self.answer(weights, mean.reshape([-1]))
    }

    /// Hides spans of arrays `[rows, frames, bins]`: what was there, and where.
    fn hide(
        values: &mut [f32],
        [rows, frames, bins]: [usize; 3],
        lengths: &[usize],
        batch: &ReadyBatch,
    ) -> (Vec<f32>, Vec<bool>) {
        let left = Self::left(frames);
        let stride: usize = STRIDES.iter().product();
        let (mut right, mut counted) = (vec![0.0; rows * left * bins], vec![false; rows * left * bins]);
        let keys = batch.keys.iter().map(|key| xxh3_64(key.as_bytes()));
        for ((row, length), key) in lengths.iter().enumerate().zip(keys) {
            // Of the sample and the epoch alone: the same on every machine, and after every resume.
            let mut rng = Pcg64Mcg::seed_from_u64(key ^ batch.epoch.rotate_left(32));
            for span in (0..Self::left(*length)).step_by(SPAN) {
                if !rng.next_u64().is_multiple_of(HIDDEN_EVERY) {
                    continue;
                }
                for at in span..(span + SPAN).min(Self::left(*length)) {
                    let to = (row * left + at) * bins;
                    let seen = at * stride..((at + 1) * stride).min(*length);
                    for frame in seen.clone() {
                        let from = (row * frames + frame) * bins;
                        for (sum, value) in right[to..to + bins].iter_mut().zip(&mut values[from..]) {
                            *sum += *value / seen.len() as f32;
                            *value = 0.0;
                        }
                    }
                    counted[to..to + bins].fill(true);
                }
            }
        }
        (right, counted)
    }

    fn letters(batch: &Prepared) -> Vec<Vec<u32>> {
        batch.rows().map(Iterator::collect).collect()
    }

    /// The one class of each row.
    fn classes(&self, batch: &Prepared) -> Result<Vec<i64>> {
        let most = self.outputs() as i64;
        if batch.labels.is_empty() {
            let hint = "a folder for each class, or a `label` in the metadata: `feedwater inspect` shows what is there";
            return Err(Error::config("the samples have no labels", hint));
        }
        let class = |row: &[i64]| match row {
            [class] if (0..most).contains(class) => Ok(*class),
            other => {
                let what = format!("a sample has the label {other:?}, and there are {most} classes");
                Err(Error::config(what, "one number from 0 on for each sample"))
            }
        };
        batch.labels.chunks_exact(batch.wide).map(class).collect()
    }

    fn class_name(&self, class: usize) -> String {
        match &self.config.task {
            Task::Classify(names) => names.get(class).cloned().unwrap_or_default(),
            _ => String::new(),
        }
    }
}

impl Recipe for CnnLstm {
    fn name(&self) -> &'static str {
        "cnn-lstm"
    }

    fn learns(&self) -> Learns {
        match self.config.task {
            Task::Transcribe(_) => Learns::Texts,
            Task::Reconstruct => Learns::Features,
            Task::Classify(_) => Learns::Classes,
        }
    }

    fn pipeline(&self, source: Box<dyn Source>, learning: bool) -> Result<Builder> {
        let open = Pipeline::from_source(source);
        let Some(vocabulary) = &self.vocabulary else { return Ok(open.decode(Npy)) };
        let flow = open.decode(Audio::mono(16_000)).log_mel(LogMel::any_length(self.config.bins));
        Ok(if learning { flow.tokenize(vocabulary.tokenize()?) } else { flow })
    }

    fn prepare(&self, batch: &ReadyBatch, device: &Device) -> Result<Prepared> {
        let (values, [rows, one, other], lengths) = features_of(batch)?;
        let (shape, mut values) = if self.vocabulary.is_some() {
            ([rows, other, WINDOW], around_the_tone(values, [rows, one, other], lengths))
        } else if other == self.config.bins {
            ([rows, one, other], level(values, [rows, one, other], lengths))
        } else {
            let what = format!("a sample has {other} columns, and the model is for {}", self.config.bins);
            return Err(Error::config(what, "all arrays have the same number of columns"));
        };
        let reconstructs = self.config.task == Task::Reconstruct;
        let hidden = reconstructs.then(|| Self::hide(&mut values, shape, lengths, batch));
        let features = Tensor::from_data(TensorData::new(values, shape), device);
        let (labels, wide) = labels_of(batch);
        Ok(Prepared { features, lengths: lengths.to_vec(), valid: batch.valid.clone(), labels, wide, hidden })
    }

    fn loss(&self, weights: &Weights, batch: &Prepared) -> Result<Tensor<1>> {
        match &self.config.task {
            Task::Transcribe(_) => {
                let (logits, lengths) = self.frames(weights, batch);
                Ok(ctc_loss(logits, &lengths, &Self::letters(batch)))
            }
            Task::Reconstruct => {
                let (right, counted) = batch.hidden.clone().unwrap_or_default();
                let (x, _) = self.encoded(weights, batch);
                Ok(mean_squared(self.answer(weights, x.reshape([-1])), right, counted))
            }
            Task::Classify(names) => {
                Ok(cross_entropy(self.samples(weights, batch), names.len(), &self.classes(batch)?))
            }
        }
    }

    fn guess(&self, weights: &Weights, batch: &Prepared) -> Result<Vec<String>> {
        if let Some(vocabulary) = &self.vocabulary {
            let (logits, lengths) = self.frames(weights, batch);
            let texts = ctc_greedy(logits, &lengths).into_iter();
            return Ok(texts.map(|classes| vocabulary.text(classes)).collect());
        }
        let logits = crate::weights::on_host(self.samples(weights, batch).inner());
        let best = |row: &[f32]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap_or(0);
        Ok(logits.chunks_exact(self.outputs()).map(|row| self.class_name(best(row))).collect())
    }

    fn right(&self, batch: &Prepared) -> Result<Vec<String>> {
        match &self.vocabulary {
            Some(vocabulary) => Ok(batch.rows().map(|classes| vocabulary.text(classes)).collect()),
            None => {
                Ok(self.classes(batch)?.into_iter().map(|class| self.class_name(class as usize)).collect())
            }
        }
    }

    fn save(&self, folder: &Path) -> Result<()> {
        let path = folder.join("config.json");
        let config = serde_json::to_string_pretty(&self.config).expect("a config is plain data");
        fs::write(&path, config + "\n").map_err(Error::write(&path))?;
        self.vocabulary.as_ref().map_or(Ok(()), |vocabulary| vocabulary.save(folder))
    }
}

/// Of features `[rows, bins, frames]`, the bins around the tone, `[rows, frames, WINDOW]`: the bin that changes most and those
/// beside it, less what each has all the time, and with a deviation of 1. So a tone that comes and goes looks the same
/// whatever its pitch, its strength and the noise. Padding is zero.
fn around_the_tone(values: &[f32], [rows, bins, frames]: [usize; 3], lengths: &[usize]) -> Vec<f32> {
    let mut around = vec![0.0; rows * WINDOW * frames];
    let each = values.chunks_exact(bins * frames).zip(around.chunks_exact_mut(WINDOW * frames));
    for ((values, around), length) in each.zip(lengths) {
        let count = (*length).min(frames).max(1);
        let about: Vec<(f64, f64)> =
            values.chunks_exact(frames).map(|bin| mean_and_square(&bin[..count])).collect();
        let tone = (0..bins).max_by(|a, b| about[*a].1.total_cmp(&about[*b].1)).unwrap_or(0);
        let scale = 1.0 / about.get(tone).map_or(1.0, |(_, square)| square.sqrt()).max(1e-5);
        for place in 0..WINDOW {
            let Some(bin) = (tone + place).checked_sub(WINDOW / 2).filter(|bin| *bin < bins) else {
                continue;
            };
            for (to, from) in around.chunks_exact_mut(WINDOW).zip(&values[bin * frames..][..count]) {
                to[place] = ((f64::from(*from) - about[bin].0) * scale) as f32;
            }
        }
    }
    around
}

/// Arrays `[rows, frames, bins]`, each less its mean and with a deviation of 1. Padding is zero.
fn level(values: &[f32], [_, frames, bins]: [usize; 3], lengths: &[usize]) -> Vec<f32> {
    let mut level = vec![0.0; values.len()];
    let size = (frames * bins).max(1);
    for ((from, to), length) in values.chunks_exact(size).zip(level.chunks_exact_mut(size)).zip(lengths) {
        let from = &from[..(*length).min(frames) * bins];
        if from.is_empty() {
            continue;
        }
        let (mean, square) = mean_and_square(from);
        let scale = 1.0 / square.sqrt().max(1e-5);
        for (to, from) in to.iter_mut().zip(from) {
            *to = ((f64::from(*from) - mean) * scale) as f32;
        }
    }
    level
}

fn mean_and_square(values: &[f32]) -> (f64, f64) {
    let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / values.len() as f64;
    let square =
        values.iter().map(|value| (f64::from(*value) - mean).powi(2)).sum::<f64>() / values.len() as f64;
    (mean, square)
}
