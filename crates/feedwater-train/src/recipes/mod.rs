//! What is trained? A recipe for each model: how its batches are made, what its loss is, and what it says of a clip.

pub mod cnn_lstm;

use burn_tensor::Tensor;
use feedwater::{Builder, ReadyBatch, source::Source};
use std::path::Path;

use crate::{Result, weights::Weights};

/// A model that can be trained.
pub trait Recipe {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// The stages from files to samples; how they travel in batches is the trainer's.
    fn pipeline(&self, source: Box<dyn Source>) -> Result<Builder>;

    /// The mean loss of a batch.
    fn loss(&self, weights: &Weights, batch: &ReadyBatch) -> Result<Tensor<1>>;

    /// What each row should be, and what the model makes of it.
    fn transcribe(&self, weights: &Weights, batch: &ReadyBatch) -> Result<Vec<(String, String)>>;

    /// Writes all that is needed beside the weights to use the model.
    fn save(&self, folder: &Path) -> Result<()>;
}
