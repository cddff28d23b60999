//! Convolutions over the log-mel bins around a tone, then a layer that reads forwards and backwards, then a class for each
//! frame: for Morse.
//!
//! The names and shapes of weights are those that PyTorch's `Conv1d`, `LSTM` and `Linear` have.

use std::{fs, path::Path};

use burn_tensor::{Tensor, TensorData, activation::relu, module::conv1d, ops::ConvOptions};
use feedwater::{Audio, Builder, LogMel, Pipeline, ReadyBatch, field, source::Source};
use rand_pcg::{Pcg64Mcg, rand_core::SeedableRng};
use serde::{Deserialize, Serialize};

use super::Recipe;
use crate::{
    Device, Error, Result,
    ops::{Direction, ctc_greedy, ctc_loss, lstm},
    vocabulary::Vocabulary,
    weights::{Init, Weights},
};

/// The size of the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What kind of model a file is of.
    pub model_type: String,
    /// Mel bins.
    pub bins: usize,
    /// Channels of the convolutions.
    pub channels: usize,
    /// Width of the recurrent layer, in each direction.
    pub hidden: usize,
    /// Classes, the blank among them.
    pub classes: usize,
}

const MODEL_TYPE: &str = "feedwater-cnn-lstm";
const KERNEL: usize = 5;
const STRIDES: [usize; 2] = [2, 1];
/// Bins around the tone.
const WINDOW: usize = 9;
const LAYERS: [&str; 2] = ["conv1", "conv2"];
const DIRECTIONS: [&str; 2] = ["l0", "l0_reverse"];

/// Transcribes, with a CTC head.
#[derive(Clone, Debug)]
pub struct CnnLstm {
    config: Config,
    vocabulary: Vocabulary,
}

impl CnnLstm {
    /// A model of this size for these letters.
    pub fn new(vocabulary: Vocabulary, channels: usize, hidden: usize) -> Self {
        let classes = vocabulary.classes();
        let config = Config { model_type: MODEL_TYPE.to_owned(), bins: 80, channels, hidden, classes };
        Self { config, vocabulary }
    }

    /// The one that was saved in a folder.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let text = fs::read_to_string(&path).map_err(Error::read(&path))?;
        let wrong = |what: String| Error::Checkpoint { path: path.clone(), what };
        let config: Config = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        if config.model_type != MODEL_TYPE {
            return Err(wrong(format!(
                "its model_type is `{}`, and this reads `{MODEL_TYPE}`",
                config.model_type
            )));
        }
        let vocabulary = Vocabulary::load(folder)?;
        if vocabulary.classes() != config.classes {
            let (has, wants) = (vocabulary.classes(), config.classes);
            return Err(wrong(format!("it has {wants} classes, and the tokenizer.json beside it has {has}")));
        }
        Ok(Self { config, vocabulary })
    }

    /// Weights to begin with: PyTorch's defaults.
    pub fn weights(&self, seed: u64, device: &Device) -> Weights {
        let Config { channels, hidden, classes, .. } = self.config;
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let mut weights = Weights::new(device);
        let uniform = |inputs: usize| Init::Uniform(1.0 / (inputs as f32).sqrt());
        for (name, inputs) in LAYERS.into_iter().zip([WINDOW, channels]) {
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
        weights.add("head.weight", &[classes, 2 * hidden], uniform(2 * hidden), &mut rng);
        weights.add("head.bias", &[classes], uniform(2 * hidden), &mut rng);
        weights
    }

    /// How many frames are left of this many.
    fn left(frames: usize) -> usize {
        STRIDES.iter().fold(frames, |frames, stride| frames.div_ceil(*stride))
    }

    /// Logits `[rows, frames, classes]` of features `[rows, bins, frames]`, and how many frames each row has.
    pub fn forward(
        &self,
        weights: &Weights,
        features: Tensor<3>,
        lengths: &[usize],
    ) -> (Tensor<3>, Vec<usize>) {
        let mut x = features;
        for (name, stride) in LAYERS.into_iter().zip(STRIDES) {
            let (weight, bias) =
                (weights.get(&format!("{name}.weight")), weights.get(&format!("{name}.bias")));
            let options = ConvOptions::new([stride], [KERNEL / 2], [1], 1);
            x = relu(conv1d(x, weight, Some(bias), options));
        }
        let lengths: Vec<usize> = lengths.iter().map(|length| Self::left(*length)).collect();
        let x = x.swap_dims(1, 2);
        let [forwards, backwards] = DIRECTIONS.map(|name| {
            let get = |kind: &str| weights.get::<1>(&format!("lstm.{kind}_{name}"));
            let gates = linear(
                x.clone(),
                weights.get(&format!("lstm.weight_ih_{name}")),
                get("bias_ih") + get("bias_hh"),
            );
            Direction { gates, recurrent: weights.get(&format!("lstm.weight_hh_{name}")) }
        });
        let x = lstm(forwards, backwards, &lengths);
        (linear(x, weights.get("head.weight"), weights.get("head.bias")), lengths)
    }

    fn logits(&self, weights: &Weights, batch: &ReadyBatch) -> Result<(Tensor<3>, Vec<usize>)> {
        let features = batch.get(field::FEATURES).and_then(|tensor| Some((tensor, tensor.as_f32()?)));
        let (tensor, values) =
            features.ok_or_else(|| Error::config("a batch without features", "this is a bug"))?;
        let shape: [usize; 3] = tensor.shape.as_slice().try_into().map_err(|_| {
            Error::config(
                format!("features of shape {:?}", tensor.shape),
                "log-mel has a row, bins and frames",
            )
        })?;
        let [rows, _, frames] = shape;
        let features =
            TensorData::new(around_the_tone(values, shape, &tensor.lengths), [rows, WINDOW, frames]);
        Ok(self.forward(weights, Tensor::from_data(features, weights.device()), &tensor.lengths))
    }

    /// The classes of each row's text.
    fn texts(batch: &ReadyBatch) -> Result<Vec<Vec<u32>>> {
        let labels = batch.get(field::LABELS).and_then(|tensor| Some((tensor, tensor.as_i64()?)));
        let (tensor, values) =
            labels.ok_or_else(|| Error::config("a batch without labels", "this is a bug"))?;
        let width = tensor.shape[1].max(1);
        let row =
            |(row, length): (&[i64], &usize)| row.iter().take(*length).map(|class| *class as u32).collect();
        let mut texts: Vec<Vec<u32>> = values.chunks_exact(width).zip(&tensor.lengths).map(row).collect();
        texts.resize(tensor.lengths.len(), Vec::new());
        Ok(texts)
    }

    /// What is said in each row of a batch.
    pub fn hear(&self, weights: &Weights, batch: &ReadyBatch) -> Result<Vec<String>> {
        let (logits, lengths) = self.logits(weights, batch)?;
        Ok(ctc_greedy(logits, &lengths).into_iter().map(|classes| self.vocabulary.text(classes)).collect())
    }
}

impl Recipe for CnnLstm {
    fn name(&self) -> &'static str {
        "cnn-lstm"
    }

    fn pipeline(&self, source: Box<dyn Source>) -> Result<Builder> {
        Ok(Pipeline::from_source(source)
            .decode(Audio::mono(16_000))
            .log_mel(LogMel::any_length(self.config.bins))
            .tokenize(self.vocabulary.tokenize()?))
    }

    fn loss(&self, weights: &Weights, batch: &ReadyBatch) -> Result<Tensor<1>> {
        let (logits, lengths) = self.logits(weights, batch)?;
        Ok(ctc_loss(logits, &lengths, &Self::texts(batch)?))
    }

    fn transcribe(&self, weights: &Weights, batch: &ReadyBatch) -> Result<Vec<(String, String)>> {
        let heard = self.hear(weights, batch)?;
        let texts = Self::texts(batch)?.into_iter().map(|classes| self.vocabulary.text(classes));
        Ok(texts.zip(heard).collect())
    }

    fn save(&self, folder: &Path) -> Result<()> {
        let path = folder.join("config.json");
        let config = serde_json::to_string_pretty(&self.config).expect("a config is plain data");
        fs::write(&path, config + "\n").map_err(Error::write(&path))?;
        self.vocabulary.save(folder)
    }
}

/// Of features `[rows, bins, frames]`, the bins around the tone, `[rows, WINDOW, frames]`: the bin that changes most and those
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
        for (place, to) in around.chunks_exact_mut(frames).enumerate() {
            let Some(bin) = (tone + place).checked_sub(WINDOW / 2).filter(|bin| *bin < bins) else {
                continue;
            };
            for (to, from) in to[..count].iter_mut().zip(&values[bin * frames..]) {
                *to = ((f64::from(*from) - about[bin].0) * scale) as f32;
            }
        }
    }
    around
}

fn mean_and_square(values: &[f32]) -> (f64, f64) {
    let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / values.len() as f64;
    let square =
        values.iter().map(|value| (f64::from(*value) - mean).powi(2)).sum::<f64>() / values.len() as f64;
    (mean, square)
}

/// `x` times the weights as PyTorch keeps them, `[outputs, inputs]`, and the bias.
fn linear(x: Tensor<3>, weight: Tensor<2>, bias: Tensor<1>) -> Tensor<3> {
    let [rows, steps, inputs] = x.dims();
    let [outputs, _] = weight.dims();
    let flat = x.reshape([rows * steps, inputs]).matmul(weight.transpose());
    (flat + bias.reshape([1, outputs])).reshape([rows, steps, outputs])
}
