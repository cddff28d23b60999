//! What the commands that train have in common. `train` has PyTorch do it ([`torch`]), or does it itself ([`native`]).

pub(crate) mod config;
#[cfg(feature = "train")]
mod job;
#[cfg(feature = "train")]
pub(crate) mod native;
#[cfg(feature = "train")]
mod progress;
pub(crate) mod torch;

#[cfg(feature = "train")]
pub(crate) use self::{
    job::{Job, interrupted, refuse_another, told},
    progress::wrong_in_words,
};
