//! What is trained? A recipe for each model: how its batches are made, what its loss is, and what it makes of a sample.

pub mod cnn_lstm;
pub mod whisper;

use std::{fs, path::Path};

use burn_tensor::{Device, Tensor};
use feedwater::{Builder, ReadyBatch, source::Source};
use serde_json::Value;

use crate::{
    Error, Result,
    checkpoint::MODEL,
    weights::{Weights, read_safetensors},
};

/// A model that can be trained.
pub trait Recipe {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// What is learned, which is also how a guess is judged.
    fn learns(&self) -> Learns;

    /// The stages from files to samples; how they travel in batches is the trainer's. With what is to be learned, or to
    /// hear alone.
    fn pipeline(&self, source: Box<dyn Source>, learning: bool) -> Result<Builder>;

    /// The mean loss of a batch.
    fn loss(&self, weights: &Weights, batch: &ReadyBatch) -> Result<Tensor<1>>;

    /// What the model makes of each row.
    fn guess(&self, weights: &Weights, batch: &ReadyBatch) -> Result<Vec<String>>;

    /// What each row is.
    fn right(&self, batch: &ReadyBatch) -> Result<Vec<String>>;

    /// Writes all that is needed beside the weights to use the model.
    fn save(&self, folder: &Path) -> Result<()>;
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
