//! What can go wrong, in one sentence with a hint.

use std::{io, path::PathBuf};

/// What went wrong while training.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting, a file, a dataset: what the engine has a word for.
    #[error(transparent)]
    Feed(#[from] feedwater::Error),
    /// A checkpoint that is not what was written.
    #[error("the checkpoint `{}` cannot be used: {what}", path.display())]
    Checkpoint {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Training that went wrong in its numbers.
    #[error("{what}\nhint: {hint}")]
    Diverged {
        /// What was seen.
        what: String,
        /// What to do about it.
        hint: String,
    },
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn config(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Feed(feedwater::Error::config_hint(what, hint))
    }

    pub(crate) fn read(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Feed(feedwater::Error::read(path, source))
    }

    pub(crate) fn write(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Feed(feedwater::Error::Write { path: path.into(), source })
    }
}
