//! What is said in these files? A model that was trained, put to use.

use std::{
    fs,
    path::{Path, PathBuf},
};

use burn_tensor::Device;
use feedwater::{Batch, Pad, Policy, source::Source};
use serde_json::Value;

use crate::{
    Error, Result,
    checkpoint::Checkpoints,
    recipes::{self, Learns, Recipe, has_samples},
    weights::Weights,
};

/// A model with its weights, to be used.
pub struct Transcriber {
    recipe: Box<dyn Recipe>,
    weights: Weights,
}

/// What came of one sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The sample.
    pub key: String,
    /// What the model makes of it, or why it could not be read.
    pub text: Result<String, String>,
}

impl Transcriber {
    /// The model in a folder: one that was saved, or the best of a run.
    pub fn open(folder: &Path, device: &Device) -> Result<Self> {
        let folder = model_in(folder)?;
        let (recipe, weights) = recipes::load(&folder, device)?;
        if recipe.learns() == Learns::Features {
            let what = "it is an encoder alone, which says nothing";
            return Err(Error::Checkpoint { path: folder, what: what.to_owned() });
        }
        Ok(Self { recipe, weights: weights.frozen() })
    }

    /// All samples of a source, in their order. `tell` is called with each as soon as it is known; those that cannot be
    /// read come last.
    pub fn read(&self, source: Box<dyn Source>, tell: &mut dyn FnMut(Said)) -> Result<()> {
        let scratch = tempfile::tempdir().map_err(Error::write(std::env::temp_dir()))?;
        let bad = scratch.path().join("bad.jsonl");
        let mut pipeline = self
            .recipe
            .pipeline(source, false)?
            .batch(Batch::of(8).pad(Pad::Longest))
            .shuffle(false)
            .policy(Policy::skip_up_to(1.0).quarantine(&bad))
            .build()?;
        // A clip that is too long for the model comes in parts, one after another.
        let mut open: Option<(String, Vec<String>)> = None;
        let close = |open: &mut Option<(String, Vec<String>)>, tell: &mut dyn FnMut(Said)| {
            if let Some((key, parts)) = open.take() {
                tell(Said { key, text: Ok(parts.join(" ").trim().to_owned()) });
            }
        };
        for batch in pipeline.epoch(0) {
            let batch = match batch {
                Ok(batch) => batch,
                // None is left that can be read; what is wrong with them is told below.
                Err(feedwater::Error::AllBad { .. }) => break,
                Err(error) => return Err(error.into()),
            };
            if !has_samples(&batch) {
                continue;
            }
            let prepared = self.recipe.prepare(&batch, self.weights.device())?;
            let texts = self.recipe.guess(&self.weights, &prepared)?;
            for ((key, text), valid) in batch.keys.iter().zip(texts).zip(&batch.valid) {
                if !valid {
                    continue;
                }
                let whole = part_of(key);
                match &mut open {
                    Some((key, parts)) if key == whole => parts.push(text),
                    _ => {
                        close(&mut open, tell);
                        open = Some((whole.to_owned(), vec![text]));
                    }
                }
            }
        }
        close(&mut open, tell);
        for line in fs::read_to_string(&bad).unwrap_or_default().lines() {
            let said: Value = serde_json::from_str(line).unwrap_or_default();
            let get = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
            tell(Said { key: part_of(&get("key")).to_owned(), text: Err(get("reason")) });
        }
        Ok(())
    }
}

/// The clip that a part is of: the engine names parts by when they begin, `clip.wav@30.00`.
fn part_of(key: &str) -> &str {
    match key.rsplit_once('@') {
        Some((clip, seconds)) if seconds.parse::<f64>().is_ok() => clip,
        _ => key,
    }
}

/// Where the model is: in the folder itself, or the best or last of the run in it.
pub fn model_in(folder: &Path) -> Result<PathBuf> {
    if folder.join("config.json").is_file() {
        return Ok(folder.to_owned());
    }
    let checkpoints = Checkpoints::new(folder.join("checkpoints"));
    checkpoints.best().ok_or_else(|| {
        Error::config(
            format!("there is no model in `{}`", folder.display()),
            "a folder with a `config.json`, or the --output-dir of `feedwater train`",
        )
    })
}
