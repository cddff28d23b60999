//! What can go wrong, in one sentence with a hint.

use std::{fmt, io, path::PathBuf};

/// What went wrong while training.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The batches.
    #[error(transparent)]
    Feed(#[from] feedwater::Error),
    /// A setting, a model or a dataset that cannot be trained.
    #[error("{what}{}", Hint(hint))]
    Config {
        /// What is wrong.
        what: String,
        /// What to do about it.
        hint: Option<String>,
    },
    /// A file that cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file that cannot be written.
    #[error("cannot write `{}`: {source}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A checkpoint that is not what was written.
    #[error("the checkpoint `{}` cannot be used: {what}", path.display())]
    Checkpoint {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Training that went wrong in its numbers.
    #[error("{what}{}", Hint(hint))]
    Diverged {
        /// What was seen.
        what: String,
        /// What to do about it.
        hint: Option<String>,
    },
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn config(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Config { what: what.into(), hint: Some(hint.into()) }
    }

    pub(crate) fn read(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Read { path: path.into(), source }
    }

    pub(crate) fn write(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Write { path: path.into(), source }
    }
}

struct Hint<'a>(&'a Option<String>);

impl fmt::Display for Hint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |hint| write!(f, "\nhint: {hint}"))
    }
}
