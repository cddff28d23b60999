//! What becomes of a sample? Sound to features, text to tokens, and the same sample never quite the same twice.
//!
//! In the order of the flow: [`chunk`] cuts long clips, [`augment`] disturbs sound and features in place,
//! [`log_mel`] turns sound into features, [`tokenize`] text into ids. A transform is a [`Stage`](crate::pipeline::Stage);
//! a closure is one too ([`map`]).

pub mod augment;
pub mod chunk;
pub mod log_mel;
pub mod map;
pub mod tokenize;

mod bpe;
pub(crate) mod simd;
mod spectrum;

pub use augment::{Gain, Noise, SpecAugment, TimeShift};
pub use bpe::byte_character;
pub use chunk::{Chunk, WithoutTimes};
pub use log_mel::LogMel;
pub use map::Map;
pub use tokenize::Tokenize;
