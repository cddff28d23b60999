//! How is a diagnosis shown? One [`Diagnosis`](crate::Diagnosis), several renderers; JSON is the diagnosis itself.

pub mod text;
