//! Feedwater keeps an accelerator fed while a model trains: files on disk to ready batches, in pure order, measured.
//!
//! The modules are the flow, in its order:
//!
//! ```text
//! source ─▶ read ─▶ decode ─▶ transform ─▶ batch ─▶ deliver
//! which     where   what do   what becomes who      how does it
//! samples?  are the the bytes of them?     travels  reach the
//!           bytes?  say?                   together device?
//! ```
//!
//! and [`pipeline`] drives it:
//!
//! ```no_run
//! use feedwater::{Audio, Batch, LogMel, Pipeline, Tokenize};
//!
//! let mut pipeline = Pipeline::open("data/morse")?
//!     .decode(Audio::mono(16_000))
//!     .log_mel(LogMel::whisper(80))
//!     .tokenize(Tokenize::file("tokenizer.json")?)
//!     .batch(Batch::of(16))
//!     .seed(7)
//!     .build()?;
//! for batch in pipeline.epoch(0) {
//!     let batch = batch?;
//!     let features = batch.get("input_features");
//! }
//! # Ok::<(), feedwater::Error>(())
//! ```

#![deny(missing_docs)]

pub mod error;
pub mod sample;

pub mod source;
pub mod read;
pub mod decode;
pub mod transform;
pub mod batch;
pub mod deliver;

pub mod cache;
pub mod convert;

pub mod pipeline;

pub use batch::{Batch, DType, Pad};
pub use cache::Cache;
pub use decode::{Audio, Decode, Npy};
pub use deliver::{BatchTensor, ReadyBatch};
pub use error::{Error, Fault, Result};
pub use pipeline::{Builder, Pipeline, Policy, Report, State, Threads};
pub use sample::{Sample, Value, field};
pub use transform::{Chunk, Gain, LogMel, Noise, SpecAugment, TimeShift, Tokenize, WithoutTimes};
