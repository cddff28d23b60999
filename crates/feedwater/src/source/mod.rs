//! Which samples are there? A source knows how many, names each, and says where its bytes are.
//!
//! What a path holds is found by looking ([`open`]): a folder with a metadata file, a manifest, shards, a table,
//! records, a bare folder of sound, arrays or text. A source never reads media; it holds as little as finds a sample again (an offset
//! for a line, a path for a file), so a manifest of millions opens in the time it takes to read it once.

use std::path::{Path, PathBuf};

use crate::{
    convert::unfinished,
    error::{Error, Fault, Result},
    sample::Sample,
};

mod array;
mod example;
mod files;
mod hdf5;
mod hdf5_layout;
mod hdf5_read;
mod lines;
mod parquet;
mod parquet_pages;
pub mod part;
mod row;
pub(crate) mod shard;
mod sniff;
mod table;
mod tar;
mod tar_walk;
mod text;
mod tfrecord;
mod tfrecord_roles;

pub use self::{
    files::Files,
    hdf5::Hdf5,
    lines::Lines,
    parquet::Parquet,
    shard::Shards,
    sniff::{Kind, detect},
    table::Table,
    tar::Tar,
    text::Text,
    tfrecord::TfRecord,
};

/// A dataset: so many samples, each with a key and fields.
pub trait Source: Send + Sync {
    /// What kind of dataset it is, for messages.
    fn kind(&self) -> Kind;

    /// How many samples.
    fn len(&self) -> u64;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A hash of what the dataset is: the same for the same data, another when samples are added, removed or renamed.
    fn fingerprint(&self) -> u128;

    /// The key of a sample: stable, and unique in the dataset. It must be there even where the sample is bad.
    fn key(&self, index: u64) -> String;

    /// What is known of a sample without reading its media.
    fn sample(&self, index: u64) -> Result<Sample, Fault>;

    /// How long it is said to be, in seconds, where the metadata say.
    fn seconds(&self, _index: u64) -> Option<f64> {
        None
    }

    /// The names of the classes, where labels are names: the label is an index into this.
    fn classes(&self) -> &[String] {
        &[]
    }

    /// Where the samples are stored in blocks that are dear to enter (row groups), the first index of each. Shuffling
    /// then stays within a few blocks at a time.
    fn blocks(&self) -> Option<&[u64]> {
        None
    }
}

/// Opens what is at `path`: a file, a folder, or a brace pattern such as `shard-{000..099}.tar`.
pub fn open(path: impl AsRef<Path>) -> Result<Box<dyn Source>> {
    let path = path.as_ref();
    open_as(path, detect(path)?)
}

/// Opens `path` as a dataset of this kind.
pub fn open_as(path: impl AsRef<Path>, kind: Kind) -> Result<Box<dyn Source>> {
    let path = path.as_ref();
    let source: Box<dyn Source> = match kind {
        Kind::AudioFolder | Kind::LjSpeech | Kind::Manifest | Kind::NpyManifest | Kind::PathList => {
            Box::new(Table::open(path, kind)?)
        }
        Kind::Audio | Kind::Npy => Box::new(Files::open(path, kind)?),
        Kind::Text => Box::new(Text::open(path)?),
        Kind::Tar | Kind::Shard if !unfinished(path).is_empty() => return Err(not_finished(path)),
        Kind::Tar => Box::new(Tar::open(path)?),
        Kind::Parquet => Box::new(Parquet::open(path)?),
        Kind::Shard => Box::new(Shards::open(path)?),
        Kind::TfRecord => Box::new(TfRecord::open(path)?),
        Kind::Hdf5 => Box::new(Hdf5::open(path)?),
    };
    if source.is_empty() {
        return Err(Error::config_hint(
            format!("`{}` holds no samples", path.display()),
            "`feedwater generate morse --out data/morse` makes a dataset to try",
        ));
    }
    Ok(source)
}

fn not_finished(folder: &Path) -> Error {
    Error::config_hint(
        format!("`{}` is a conversion that was not finished", folder.display()),
        "convert it once more with `--force`; what ends in `.part` is of no use",
    )
}

/// File endings of sound that can be decoded.
pub const AUDIO_ENDINGS: [&str; 8] = ["wav", "flac", "mp3", "ogg", "oga", "m4a", "mp4", "aac"];

/// All files below a folder that pass `wanted`, in the order of their names. A folder that cannot be read is an error: its
/// samples would be lost without a word.
pub(crate) fn files_below(folder: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in walk(folder) {
        let entry = entry.map_err(|error| {
            let at = error.path().unwrap_or(folder).to_owned();
            Error::read(at, error.into_io_error().unwrap_or_else(|| std::io::Error::other("a loop of links")))
        })?;
        // A link to a file is one: that is how Hugging Face's cache is laid out. A link to nothing is a file that is
        // missing, and is found to be when its turn comes.
        let (kind, path) = (entry.file_type(), entry.path());
        let is_file = kind.is_file() || kind.is_symlink() && (path.is_file() || !path.exists());
        if is_file && wanted(path) {
            files.push(entry.into_path());
        }
    }
    Ok(files)
}

/// What is below a folder, sorted, without what is hidden: `._clip.wav`, which macOS writes beside `clip.wav`, is no sound.
fn walk(folder: &Path) -> impl Iterator<Item = walkdir::Result<walkdir::DirEntry>> {
    let hidden = |entry: &walkdir::DirEntry| {
        entry.depth() > 0 && entry.file_name().as_encoded_bytes().starts_with(b".")
    };
    walkdir::WalkDir::new(folder).sort_by_file_name().into_iter().filter_entry(move |entry| !hidden(entry))
}

pub(crate) fn ending(path: &Path) -> String {
    path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase()
}

pub(crate) fn is_audio(path: &Path) -> bool {
    AUDIO_ENDINGS.contains(&ending(path).as_str())
}
