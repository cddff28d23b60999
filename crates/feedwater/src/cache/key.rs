//! By what is a kept sample found? By everything that it was made of.
//!
//! A key is a hash of the chain of stages (their names, settings and versions, and the numbers that are kept) and of all
//! that the source says of a sample: its text, its labels, its window, and of each file who it is. Keys never lie: what was
//! made of something else has another.

use std::{
    collections::HashMap,
    fs::{File, Metadata},
    hash::{BuildHasherDefault, Hasher},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::UNIX_EPOCH,
};

use super::Identity;
use crate::{
    batch::DType,
    decode::Window,
    error::Fault,
    pipeline::Stage,
    read::ReadAt,
    sample::{Media, MediaPlace, Sample, Value},
};

/// The name of a kept sample.
pub(crate) type Key = u128;

/// Something of each key.
pub(super) type ByKey<T> = HashMap<Key, T, BuildHasherDefault<AsItIs>>;

/// Keys are hashes already.
#[derive(Default)]
pub(super) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.first_chunk().map_or(0, |eight| u64::from_le_bytes(*eight));
    }

    fn write_u128(&mut self, number: u128) {
        self.0 = number as u64;
    }
}

/// Changes when entries are written otherwise.
const FORMAT: u32 = 2;

/// What is done to a sample before it is kept.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    pub(crate) hash: [u8; 32],
    /// In words, for people.
    pub(crate) words: String,
    folders: Folders,
}

/// Where folders and shards really are: one file has many paths, by `..` and by links. Asked once for each.
#[derive(Debug, Clone, Default)]
struct Folders(Arc<RwLock<HashMap<PathBuf, PathBuf>>>);

impl Folders {
    /// From the root on, and by no link: two folders may hold the same names. The last name may be a link.
    fn beside(&self, path: &Path) -> PathBuf {
        match (path.parent(), path.file_name()) {
            (Some(folder), Some(name)) if folder.as_os_str().is_empty() => {
                self.real(Path::new(".")).join(name)
            }
            (Some(folder), Some(name)) => self.real(folder).join(name),
            _ => path.to_owned(),
        }
    }

    /// By no link at all.
    fn real(&self, path: &Path) -> PathBuf {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).get(path).cloned();
        known.unwrap_or_else(|| {
            let real = real(path);
            self.0.write().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned(), real.clone());
            real
        })
    }
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

impl Chain {
    /// Of this hash.
    pub(crate) fn new(hash: [u8; 32], words: String) -> Self {
        Self { hash, words, folders: Folders::default() }
    }

    /// Of these stages. The last word is the type of the numbers.
    pub(crate) fn of(stages: &[Arc<dyn Stage>], dtype: DType) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&FORMAT.to_le_bytes());
        let mut names = Vec::new();
        for stage in stages {
            part(&mut hasher, stage.name().as_bytes());
            part(&mut hasher, stage.describe().as_bytes());
            hasher.update(&stage.version().unwrap_or(0).to_le_bytes());
            names.push(stage.name());
        }
        part(&mut hasher, dtype.name().as_bytes());
        let what = if names.is_empty() { "files".to_owned() } else { names.join(", ") };
        Self::new(*hasher.finalize().as_bytes(), format!("{what}: {}", dtype.name()))
    }

    /// The key of a sample as its source gives it.
    pub(crate) fn key(&self, sample: &Sample, identity: Identity) -> Result<Key, Fault> {
        let mut hasher = blake3::Hasher::new_keyed(&self.hash);
        let mut fields: Vec<(&str, &Value)> = sample.fields().collect();
        fields.sort_by_key(|(name, _)| *name);
        for (name, value) in fields {
            part(&mut hasher, name.as_bytes());
            value_of(&mut hasher, value, identity, &self.folders)?;
        }
        Ok(short(&hasher))
    }

    /// The key of a file's bytes, whichever part of it is wanted.
    pub(crate) fn key_of_file(&self, media: &Media, identity: Identity) -> Result<Key, Fault> {
        let mut hasher = blake3::Hasher::new_keyed(&self.hash);
        media_of(&mut hasher, media, identity, &self.folders)?;
        Ok(short(&hasher))
    }
}

fn short(hasher: &blake3::Hasher) -> Key {
    let mut key = [0; 16];
    key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    Key::from_le_bytes(key)
}

/// With its length, so that two parts are never taken for two others.
fn part(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

fn value_of(
    hasher: &mut blake3::Hasher,
    value: &Value,
    identity: Identity,
    folders: &Folders,
) -> Result<(), Fault> {
    match value {
        Value::Media(media) => {
            hasher.update(&[0]);
            media_of(hasher, media, identity, folders)?;
            hasher.update(&[u8::from(media.window.is_some())]);
            if let Some(Window { start_seconds, length_seconds }) = media.window {
                hasher.update(&start_seconds.to_le_bytes());
                hasher.update(&length_seconds.to_le_bytes());
            }
        }
        Value::Bytes(bytes) => {
            hasher.update(&[1]);
            part(hasher, bytes);
        }
        Value::Audio(audio) => {
            hasher.update(&[2]);
            hasher.update(&audio.rate.to_le_bytes());
            part(hasher, bytemuck::cast_slice(&audio.samples));
        }
        Value::Tensor(tensor) => {
            hasher.update(&[3]);
            for size in &tensor.shape {
                hasher.update(&(*size as u64).to_le_bytes());
            }
            hasher.update(&(tensor.pad_axis as u64).to_le_bytes());
            hasher.update(&(tensor.pad_to as u64).to_le_bytes());
            hasher.update(&tensor.fill.to_le_bytes());
            part(hasher, bytemuck::cast_slice(&tensor.data));
        }
        Value::Text(text) => {
            hasher.update(&[4]);
            part(hasher, text.as_bytes());
        }
        Value::Tokens(tokens) => {
            hasher.update(&[5]);
            part(hasher, bytemuck::cast_slice(tokens));
        }
        Value::Number(number) => {
            hasher.update(&[6]);
            hasher.update(&number.to_le_bytes());
        }
        Value::Spans(spans) => {
            hasher.update(&[7]);
            hasher.update(&(spans.len() as u64).to_le_bytes());
            for span in spans {
                hasher.update(&span.start_seconds.to_le_bytes());
                hasher.update(&span.end_seconds.to_le_bytes());
                part(hasher, span.text.as_bytes());
            }
        }
    }
    Ok(())
}

fn media_of(
    hasher: &mut blake3::Hasher,
    media: &Media,
    identity: Identity,
    folders: &Folders,
) -> Result<(), Fault> {
    match (&media.place, identity) {
        (MediaPlace::Bytes(bytes), _) => part(hasher, bytes),
        (_, Identity::Content) => return media.read(|input| content_of(hasher, input)),
        (MediaPlace::File, Identity::Path) => {
            let mut metadata = std::fs::symlink_metadata(&media.path)?;
            let mut path = folders.beside(&media.path);
            // A link may lead elsewhere by the next epoch.
            if metadata.is_symlink() {
                (metadata, path) = (std::fs::metadata(&media.path)?, real(&media.path));
            }
            part(hasher, path.as_os_str().as_encoded_bytes());
            about(hasher, &metadata);
        }
        (MediaPlace::Range { file, offset, length, member, .. }, Identity::Path) => {
            // It was opened once.
            part(hasher, folders.real(&media.path).as_os_str().as_encoded_bytes());
            about(hasher, &File::metadata(file)?);
            hasher.update(&offset.to_le_bytes());
            hasher.update(&length.to_le_bytes());
            part(hasher, member.as_bytes());
        }
    }
    Ok(())
}

fn about(hasher: &mut blake3::Hasher, metadata: &Metadata) {
    hasher.update(&metadata.len().to_le_bytes());
    let changed = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    hasher.update(&changed.map_or(0, |since| since.as_nanos()).to_le_bytes());
}

fn content_of(hasher: &mut blake3::Hasher, input: &dyn ReadAt) -> Result<(), Fault> {
    let mut piece = vec![0; 256 * 1024];
    let mut at = 0;
    loop {
        let count = crate::read::read_full_at(input, &mut piece, at)?;
        hasher.update(&piece[..count]);
        at += count as u64;
        if count < piece.len() {
            hasher.update(&at.to_le_bytes());
            return Ok(());
        }
    }
}
