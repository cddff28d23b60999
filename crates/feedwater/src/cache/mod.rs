//! What need not be done again?
//!
//! Everything up to the first stage that is random gives the same for the same sample, epoch after epoch, run after run. It
//! is kept: the bytes of the file, the decoded sound, or what the model gets. What is kept is found by what it was made of
//! ([`key`]), so a changed file or setting never gives an old result; it lies in shards that are only ever appended to
//! ([`shard`], [`disk`]) or in memory ([`ram`]), and is checked on every read. Whatever goes wrong with it is counted, and
//! the sample is made anew: a cache can be lost, never a run.

mod choose;
mod disk;
pub(crate) mod entry;
mod examine;
pub(crate) mod key;
mod keep;
mod look;
mod ram;
pub(crate) mod shard;

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

pub use choose::{Choice, Cost, Costs, Room, choose};
pub use examine::{Held, Verified, clear, clear_damaged, held, verify};
pub use keep::CacheReport;
pub(crate) use keep::{Keeper, Kept, Outcome};

use crate::{
    batch::DType,
    error::{Error, Result},
    pipeline::Stage,
    source::Source,
};

/// How much of the flow is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Nothing.
    Off,
    /// The bytes of files: for disks that are slow, or far away.
    Raw,
    /// What was decoded.
    Decoded,
    /// All that is not random: features, token ids.
    Features,
    /// The same, in memory, for this run.
    Ram,
}

impl Level {
    /// Its name, as `--cache` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Raw => "raw",
            Self::Decoded => "decoded",
            Self::Features => "features",
            Self::Ram => "ram",
        }
    }
}

/// By what a file is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Identity {
    /// Its path, its size and when it was changed.
    #[default]
    Path,
    /// What is in it: it is read every time, and nothing else is done again. For files that are copied about.
    Content,
}

/// What is kept, and where.
#[derive(Debug, Clone)]
pub struct Cache {
    /// Nothing: what is best is found out by making a few samples.
    pub(crate) level: Option<Level>,
    pub(crate) folder: PathBuf,
    pub(crate) identity: Identity,
    pub(crate) dtype: Option<DType>,
    pub(crate) most_bytes: Option<u64>,
    /// So many processes of this run are on this machine, and share its memory.
    pub(crate) sharers: usize,
    /// How bytes are written, for tests in which that fails.
    pub(crate) write: disk::Write,
}

impl Cache {
    /// Keeps this much, in the user's folder for caches ([`Cache::in_folder`] for another).
    pub fn of(level: Level) -> Self {
        Self { level: Some(level), ..Self::auto() }
    }

    /// Keeps what pays, as a few samples tell.
    pub fn auto() -> Self {
        Self {
            level: None,
            folder: default_folder(),
            identity: Identity::default(),
            dtype: None,
            most_bytes: None,
            sharers: 1,
            write: disk::WRITE,
        }
    }

    /// What `--cache` was given: `off`, `auto`, `raw`, `decoded`, `features` or `ram`.
    pub fn named(name: &str) -> Result<Self> {
        let levels = [Level::Off, Level::Raw, Level::Decoded, Level::Features, Level::Ram];
        match levels.into_iter().find(|level| level.name() == name) {
            Some(level) => Ok(Self::of(level)),
            None if name == "auto" => Ok(Self::auto()),
            None => Err(Error::config_hint(
                format!("there is no cache `{name}`"),
                "`off`, `auto`, `raw`, `decoded`, `features` or `ram`",
            )),
        }
    }

    /// Where it lies. Several runs, and several processes of one, may use one folder.
    pub fn in_folder(mut self, folder: impl AsRef<Path>) -> Self {
        folder.as_ref().clone_into(&mut self.folder);
        self
    }

    /// By what files are known.
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// The numbers that are kept: half the bytes with [`DType::F16`] and [`DType::BF16`], and not quite the same numbers.
    /// Without it, they are as exact as the batch's where nothing is done to them any more, else single precision.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// How bytes are written: for tests in which that fails.
    #[doc(hidden)]
    pub fn written_by(mut self, write: fn(&File, &[u8], u64) -> io::Result<()>) -> Self {
        self.write = write;
        self
    }

    /// How many bytes it may take. What was not used for longest goes first; what this run uses does not.
    pub fn most_bytes(mut self, bytes: u64) -> Self {
        self.most_bytes = Some(bytes);
        self
    }
}

impl Cache {
    /// What keeps samples of these stages, if anything does; or why nothing is kept.
    pub(crate) fn keeper(
        &self,
        source: &dyn Source,
        stages: &[Arc<dyn Stage>],
        batch: DType,
    ) -> Result<Result<Keeper, Option<String>>> {
        if matches!(self.dtype, Some(DType::I64)) {
            return Err(Error::config_hint("a cache of integers", "`f32`, `f16` or `bf16`"));
        }
        let Some(level) = self.level else {
            let Choice { level, why } = look::look(self, source, stages, batch);
            return Ok(if level == Level::Off {
                Err(Some(why))
            } else {
                Ok(Keeper::new(self, level, stages, batch, Some(why)))
            });
        };
        if level == Level::Off {
            return Ok(Err(None));
        }
        if level != Level::Raw && keep::kept(level, stages) == 0 {
            let first = stages.first().map_or("batch", |stage| stage.name());
            return Err(Error::config_hint(
                format!(
                    "`cache` has nothing to keep: `{first}` stands first, and may give something else each time"
                ),
                "put `decode`, `log_mel` and `tokenize` before what is random",
            ));
        }
        Ok(Ok(Keeper::new(self, level, stages, batch, None)))
    }
}

/// Where caches lie unless somebody says otherwise: `FEEDWATER_CACHE`, or `feedwater` in the user's folder for caches.
pub fn default_folder() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("FEEDWATER_CACHE").unwrap_or_else(|| {
        let home = || set("HOME").map(|home| home.join(".cache"));
        let base = set("XDG_CACHE_HOME").or_else(|| set("LOCALAPPDATA")).or_else(home);
        base.unwrap_or_else(std::env::temp_dir).join("feedwater")
    })
}
