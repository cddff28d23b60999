//! What can go wrong, sorted by what the caller does next.
//!
//! A [`Fault`] is what a reader or a decoder says about bytes: it knows where and why, not which sample it was. The
//! driver puts the sample's name to it and decides by policy: leave a hole and go on, or stop. Everything else is an
//! [`Error`], and stops.

use std::{fmt, io, path::PathBuf, time::Duration};

/// The result of anything that can stop a pipeline.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a pipeline could not be built, or stopped.
///
/// The variants are named for the caller's next move.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is wrong. Change it; nothing was started.
    #[error("{what}{}", hint_line(.hint.as_deref()))]
    Config {
        /// What is wrong, naming the setting.
        what: String,
        /// Something to paste.
        hint: Option<String>,
    },
    /// A file or folder that the whole dataset hangs on cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that describes the dataset (a manifest, an index, a tokenizer) is not what it must be.
    #[error("`{}` is not usable: {fault}{}", path.display(), hint_line(.hint.as_deref()))]
    Dataset {
        /// The file.
        path: PathBuf,
        /// Where and why.
        fault: Fault,
        /// What to do about it.
        hint: Option<String>,
    },
    /// A sample failed and the policy is to stop at the first one.
    #[error(
        "sample `{key}` failed in {stage}: {fault}{}",
        hint_line(Some("to leave bad samples out and go on, use the `skip` policy"))
    )]
    Sample {
        /// The sample's key.
        key: String,
        /// The stage that refused it.
        stage: &'static str,
        /// Where and why.
        fault: Fault,
    },
    /// More samples failed than the ceiling allows.
    #[error(
        "{bad} of {epoch_samples} samples failed, more than the ceiling of {allowed}; the last was `{key}` in {stage}: \
             {fault}{}",
        hint_line(Some(&format!(
            "see `{}` for each of them; a higher `--bad-ceiling`, or `Policy::skip_up_to`, allows more", list.display()
        )))
    )]
    TooManyBad {
        /// How many failed in this epoch so far.
        bad: u64,
        /// How many samples the epoch has.
        epoch_samples: u64,
        /// How many may fail.
        allowed: u64,
        /// The key of the last one.
        key: String,
        /// The stage that refused it.
        stage: &'static str,
        /// Where and why.
        fault: Box<Fault>,
        /// The file in which each of them is written down.
        list: PathBuf,
    },
    /// All samples of an epoch failed, whatever the ceiling is: there is nothing to train on.
    #[error(
        "{}; the first was `{key}` in {stage}: {fault}{}",
        if *bad == 1 { "the only sample failed".to_owned() } else { format!("all {bad} samples failed") },
        hint_line(Some("`feedwater inspect` on the dataset says what is wrong with it"))
    )]
    AllBad {
        /// How many there are.
        bad: u64,
        /// The key of the first one.
        key: String,
        /// The stage that refused it.
        stage: &'static str,
        /// Where and why.
        fault: Box<Fault>,
    },
    /// A stage has not come back within the limit. Its thread is left behind.
    #[error("stage {stage} has been working on sample `{key}` for {:.1} s, longer than the limit of {:.1} s{}",
        elapsed.as_secs_f64(), limit.as_secs_f64(),
        hint_line(Some("raise it with `stuck_after`, or look at that sample")))]
    Stuck {
        /// The stage.
        stage: &'static str,
        /// The sample.
        key: String,
        /// How long it has been at it.
        elapsed: Duration,
        /// The limit.
        limit: Duration,
    },
    /// Whoever waits was told to stop waiting (see `Builder::interrupt`). Nothing is lost; it can be asked again.
    #[error("interrupted while waiting for a batch")]
    Interrupted,
    /// A saved state does not belong to this pipeline.
    #[error("this state cannot be resumed here: {what}{}", hint_line(.hint.as_deref()))]
    State {
        /// What differs.
        what: String,
        /// What to do about it.
        hint: Option<String>,
    },
    /// Writing something (the quarantine list, a shard) failed. Losing it would be losing data, so it stops.
    #[error("cannot write `{}`: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// A wrong setting.
    pub fn config(what: impl Into<String>) -> Self {
        Self::Config { what: what.into(), hint: None }
    }

    /// A wrong setting, and what to paste instead.
    pub fn config_hint(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Config { what: what.into(), hint: Some(hint.into()) }
    }

    /// An unreadable file that the dataset hangs on.
    pub fn read(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Read { path: path.into(), source }
    }

    /// A file that cannot be written.
    pub fn write(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Write { path: path.into(), source }
    }

    /// A dataset file that is not what it must be.
    pub fn dataset(path: impl Into<PathBuf>, fault: Fault) -> Self {
        Self::Dataset { path: path.into(), fault, hint: None }
    }

    /// A dataset file that is not what it must be, and what to do about it.
    pub fn dataset_hint(path: impl Into<PathBuf>, fault: Fault, hint: impl Into<String>) -> Self {
        Self::Dataset { path: path.into(), fault, hint: Some(hint.into()) }
    }
}

fn hint_line(hint: Option<&str>) -> String {
    hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default()
}

/// What is wrong with some bytes: where, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The file, where it is known.
    pub path: Option<PathBuf>,
    /// Where in it.
    pub place: Place,
    /// Why, in lower case, without the place.
    pub reason: String,
}

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Place {
    /// The file as a whole.
    #[default]
    Whole,
    /// A byte offset, from 0.
    Byte(u64),
    /// A line, from 1.
    Line(u64),
    /// A member of an archive.
    Member(String),
    /// A row of a table, from 0.
    Row(u64),
}

impl Fault {
    /// A fault of the whole file.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { path: None, place: Place::Whole, reason: reason.into() }
    }

    /// A fault at a byte offset.
    pub fn at_byte(offset: u64, reason: impl Into<String>) -> Self {
        Self { place: Place::Byte(offset), ..Self::new(reason) }
    }

    /// A fault at a line, counted from 1.
    pub fn at_line(line: u64, reason: impl Into<String>) -> Self {
        Self { place: Place::Line(line), ..Self::new(reason) }
    }

    /// The same fault, with the file's name, unless it has one.
    pub fn in_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.path.get_or_insert_with(|| path.into());
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        let path = self.path.as_ref().map(|path| format!(" of `{}`", path.display())).unwrap_or_default();
        match &self.place {
            Place::Whole => match &self.path {
                Some(path) => write!(f, " (`{}`)", path.display()),
                None => Ok(()),
            },
            Place::Byte(offset) => write!(f, " (byte {offset}{path})"),
            Place::Line(line) => write!(f, " (line {line}{path})"),
            Place::Member(name) => write!(f, " (member `{name}`{path})"),
            Place::Row(row) => write!(f, " (row {row}{path})"),
        }
    }
}

impl std::error::Error for Fault {}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::new(error.to_string())
    }
}
