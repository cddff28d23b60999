//! Trains small models from Feedwater's batches, without Python: the embedded default.
//!
//! ```text
//!  batches ─▶ device ─▶ forward ─▶ loss ─▶ backward ─▶ accumulate ─▶ clip ─▶ AdamW ─▶ checkpoint
//!  (engine)            (recipes)                                  (optimizer)        (checkpoint)
//! ```
//!
//! Tensors and derivatives are Burn's. What is here is the loop around them ([`trainer`]), the models ([`recipes`]), and
//! the few operations that are worth a derivative of their own ([`ops`]).

pub mod checkpoint;
pub mod device;
pub mod error;
pub mod metrics;
pub mod ops;
pub mod optimizer;
pub mod recipes;
pub mod ring;
pub mod split;
pub mod trainer;
pub mod transcriber;
pub mod vocabulary;
pub mod weights;

pub use burn_tensor::{Device, Tensor};
pub use error::{Error, Result};
