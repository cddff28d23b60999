//! What is trained? A recipe for each model: how its batches are made, what its loss is, and what it makes of a sample.

pub mod cnn_lstm;
pub mod whisper;

use std::{fs, path::Path};

use burn_tensor::{Device, Tensor};
use feedwater::{Builder, ReadyBatch, field, source::Source};
use serde_json::Value;

use crate::{
    Error, Result,
    checkpoint::MODEL,
    weights::{Weights, read_safetensors},
};

/// A model that can be trained.
pub trait Recipe: Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// What is learned, which is also how a guess is judged.
    fn learns(&self) -> Learns;

    /// The stages from files to samples; how they travel in batches is the trainer's. With what is to be learned, or to
    /// hear alone.
    fn pipeline(&self, source: Box<dyn Source>, learning: bool) -> Result<Builder>;

    /// A batch as the model takes it, on the data device.
    fn prepare(&self, batch: &ReadyBatch, device: &Device) -> Result<Prepared>;

    /// The mean loss of a batch.
    fn loss(&self, weights: &Weights, batch: &Prepared) -> Result<Tensor<1>>;

    /// What the model makes of each row.
    fn guess(&self, weights: &Weights, batch: &Prepared) -> Result<Vec<String>>;

    /// What each row is.
    fn right(&self, batch: &Prepared) -> Result<Vec<String>>;

    /// Writes all that is needed beside the weights to use the model.
    fn save(&self, folder: &Path) -> Result<()>;
}

/// A batch as a model takes it.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// `[rows, frames, inputs]`.
    pub features: Tensor<3>,
    /// Frames of each row.
    pub lengths: Vec<usize>,
    /// Whether each row holds a sample.
    pub valid: Vec<bool>,
    /// Labels `[rows, wide]`, those that count nothing negative; empty where there are none.
    pub labels: Vec<i64>,
    /// Labels of a row, padding included.
    pub wide: usize,
    /// What was hidden of the features, and where it counts.
    pub hidden: Option<(Vec<f32>, Vec<bool>)>,
}

impl Prepared {
    /// On another device, where it is another.
    #[must_use]
    pub fn to_device(mut self, device: &Device) -> Self {
        if self.features.device() != *device {
            self.features = self.features.to_device(device);
        }
        self
    }

    /// The labels of each row that count; of a row that has none, none.
    pub fn rows(&self) -> impl Iterator<Item = impl Iterator<Item = u32>> {
        let labels = |row: usize| self.labels.get(row * self.wide..(row + 1) * self.wide).unwrap_or_default();
        (0..self.valid.len())
            .map(move |row| labels(row).iter().filter_map(|label| u32::try_from(*label).ok()))
    }
}

/// The numbers and the shape of a batch's features.
pub(crate) fn features_of(batch: &ReadyBatch) -> Result<(&[f32], [usize; 3], &[usize])> {
    let found = batch.get(field::FEATURES).and_then(|tensor| Some((tensor, tensor.as_f32()?)));
    let (tensor, values) = found.ok_or_else(|| Error::config("a batch without features", "this is a bug"))?;
    let shape = tensor.shape.as_slice().try_into().map_err(|_| {
        let what = format!("features of shape {:?}", tensor.shape);
        Error::config(what, "a sample is an array of frames and columns")
    })?;
    Ok((values, shape, &tensor.lengths))
}

/// Whether a batch has a sample at all: where all of them are bad, it is empty.
pub(crate) fn has_samples(batch: &ReadyBatch) -> bool {
    batch.valid.iter().any(|valid| *valid)
}

/// The labels of a batch and how wide they are; none where it has none.
pub(crate) fn labels_of(batch: &ReadyBatch) -> (Vec<i64>, usize) {
    let found = batch.get(field::LABELS).and_then(|tensor| Some((tensor, tensor.as_i64()?)));
    // Where all texts are empty, they have no width.
    found.map_or((Vec::new(), 1), |(tensor, values)| {
        (values.to_vec(), tensor.shape.get(1).copied().unwrap_or(1))
    })
}

/// What a model learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learns {
    /// What is said in a clip: judged by letters and words that are wrong.
    Texts,
    /// Which of some classes a sample is of: judged by those that are wrong.
    Classes,
    /// What the samples look like: judged by the loss alone.
    Features,
}

/// The model in a folder, with its weights, to be used or trained further.
pub fn load(folder: &Path, device: &Device) -> Result<(Box<dyn Recipe>, Weights)> {
    let config = read_config(folder)?;
    match config["model_type"].as_str() {
        Some(cnn_lstm::MODEL_TYPE) => {
            let recipe = cnn_lstm::CnnLstm::load(folder)?;
            let weights = fitting(folder, &recipe.weights(0, device))?;
            Ok((Box::new(recipe), weights))
        }
        Some(whisper::MODEL_TYPE) => {
            let recipe = whisper::Whisper::load(folder)?;
            let weights = fitting(folder, &recipe.weights(0, device))?;
            Ok((Box::new(recipe), weights))
        }
        other => {
            let what = match other {
                Some(other) => format!("its model_type is `{other}`"),
                None => "it has no model_type".to_owned(),
            };
            let (one, two) = (cnn_lstm::MODEL_TYPE, whisper::MODEL_TYPE);
            let what = format!("{what}, and `{one}` and `{two}` can be used");
            Err(Error::Checkpoint { path: folder.join("config.json"), what })
        }
    }
}

/// The `config.json` of a folder.
pub(crate) fn read_config(folder: &Path) -> Result<Value> {
    let path = folder.join("config.json");
    let text = fs::read_to_string(&path).map_err(Error::read(&path))?;
    serde_json::from_str(&text).map_err(|error| Error::Checkpoint { path, what: error.to_string() })
}

/// The weights in a folder, where they are those of a model; in its order.
pub fn fitting(folder: &Path, model: &Weights) -> Result<Weights> {
    let path = folder.join(MODEL);
    let mut found = read_safetensors(&path)?;
    // Older files of transformers have the table of tokens twice.
    found.retain(|one| one.name != "proj_out.weight");
    model.fits(&found).map_err(|what| Error::Checkpoint { path, what })?;
    Ok(model.with(found))
}
