//! Where is the run? A few hundred bytes that say what the trainer has consumed, and from which the identical rest of the
//! stream can be made.

use serde::{Deserialize, Serialize};

use super::plan::Cursor;
use crate::error::{Error, Result};

/// A place in a run, to be saved with a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub(crate) version: u32,
    /// The dataset and its order.
    pub(crate) fingerprint: String,
    /// The stages and their settings.
    pub(crate) pipeline: String,
    pub(crate) seed: u64,
    pub(crate) epoch: u64,
    pub(crate) at: Cursor,
    /// Samples, budget or blocks of a step of all ranks together.
    pub(crate) global_batch: u64,
    /// Ranks when the run began: under a budget, the plan depends on it.
    pub(crate) plan_world: u64,
    /// Bad samples of this epoch so far.
    pub(crate) bad: u64,
    /// A rolling hash of the samples that were consumed in this epoch: two runs that agree in it have seen the same.
    pub(crate) consumed: u64,
}

/// Changes when a state is written that an earlier version could not go on from.
pub(crate) const VERSION: u32 = 1;

impl State {
    /// The epoch to go on with.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How many steps of it were consumed.
    pub fn step(&self) -> u64 {
        self.at.step
    }

    /// As JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// From JSON.
    pub fn from_json(json: &str) -> Result<Self> {
        serde_json::from_str(json).map_err(|error| Error::State {
            what: format!("it is not a state of this program: {error}"),
            hint: None,
        })
    }

    /// Whether a run that is as `here` says can go on from this.
    pub(crate) fn check(&self, here: &Self) -> Result<()> {
        let refuse = |what: String, hint: &str| Err(Error::State { what, hint: Some(hint.to_owned()) });
        if self.version != here.version {
            return refuse(
                format!("it is of version {}, and this is version {}", self.version, here.version),
                "finish the run with the version that began it",
            );
        }
        if self.fingerprint != here.fingerprint {
            return refuse(
                "the dataset is not the one that the run began with: samples were added, removed or renamed"
                    .to_owned(),
                "put the dataset back as it was, or start a new run",
            );
        }
        if self.pipeline != here.pipeline {
            return refuse(
                "the pipeline's stages or settings are not the ones that the run began with".to_owned(),
                "put them back, or start a new run; threads, prefetch and ranks may change",
            );
        }
        if self.seed != here.seed {
            return refuse(
                format!("the seed was {}, and here it is {}", self.seed, here.seed),
                &format!("`.seed({})`", self.seed),
            );
        }
        if self.global_batch != here.global_batch {
            return refuse(
                format!(
                    "a step had {} in all ranks together, and here it has {}",
                    self.global_batch, here.global_batch
                ),
                "on another number of ranks, change the batch of each so that all together stay the same",
            );
        }
        Ok(())
    }
}
