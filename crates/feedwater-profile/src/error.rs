use std::{io, path::PathBuf};

/// What can go wrong with a record.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read.
    #[error("cannot read `{path}`: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file could not be written.
    #[error("cannot write `{path}`: {source}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is no record, or one of a version that is not known here.
    #[error("`{path}` is not a record that can be read: {reason}\nhint: {hint}", path = path.display())]
    NotARecord {
        /// The file.
        path: PathBuf,
        /// What was found instead.
        reason: String,
        /// What to do.
        hint: String,
    },
    /// The record is too short to say anything that is true.
    #[error(
        "the record has {steps} steps that count, and {needed} are the least for a verdict\n\
         hint: record 50 steps or more: warm-up and the edges of epochs do not count"
    )]
    TooFewSteps {
        /// Steps that count.
        steps: usize,
        /// Steps that are needed.
        needed: usize,
        /// Steps that are left out at the beginning.
        warm_up: usize,
    },
    /// A setting that makes no sense.
    #[error("{0}")]
    Setting(String),
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;
