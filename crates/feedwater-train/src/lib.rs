//! Trains small models from Feedwater's batches, without Python: the embedded default.
//!
//! ```text
//!  batches ─▶ device ─▶ forward ─▶ loss ─▶ backward ─▶ accumulate ─▶ clip ─▶ AdamW ─▶ checkpoint
//!  (engine)            (recipes)                                  (optimizer)        (checkpoint)
//! ```
//!
//! Tensors and derivatives are Burn's. What is here is the loop around them ([`trainer`]), the models ([`recipes`]), and
//! the few operations that are worth a derivative of their own ([`ops`]). Without the feature `native` there is only what
//! PyTorch's runs use too: [`checkpoint`], [`metrics`], [`vocabulary`].

pub mod checkpoint;
#[cfg(feature = "native")]
pub mod device;
pub mod error;
pub mod metrics;
#[cfg(feature = "native")]
pub mod ops;
#[cfg(feature = "native")]
pub mod optimizer;
#[cfg(feature = "native")]
pub mod recipes;
#[cfg(feature = "native")]
pub mod ring;
pub mod tensors;
#[cfg(feature = "native")]
pub mod trainer;
#[cfg(feature = "native")]
pub mod transcriber;
pub mod vocabulary;
#[cfg(feature = "native")]
pub mod weights;

#[cfg(feature = "native")]
pub use burn_tensor::{Device, Tensor};
pub use error::{Error, Result};
