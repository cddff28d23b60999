//! How does the driver use it? Before the stages, it asks whether a sample is kept; behind those that are, it hands it over.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use feedwater_profile::machine;
use serde::Serialize;

use super::{
    Cache, Identity, Level,
    choose::human,
    disk::{Found, Shards},
    entry::{self, Fields},
    key::{Chain, Key},
    ram::Ram,
};
use crate::{
    batch::{DType, collate::Apart},
    deliver::shelf::Piece,
    error::Fault,
    pipeline::{Context, Pool, Stage},
    read::{mapped::View, read_all},
    sample::{Media, MediaPlace, Sample, Value},
};

/// The share of the memory that can be had that `ram` takes at most.
const SHARE_OF_MEMORY: f64 = 0.5;
/// Larger files are not kept as they are.
const MOST_FILE_BYTES: u64 = 1 << 30;

/// What became of a sample.
pub(crate) enum Outcome {
    /// The stages that are kept are done.
    Found(Kept),
    /// It is to be made, and handed over under this key.
    Missing(Key),
    /// It is to be made, and that is all.
    Apart,
}

/// Keeps what the first stages make.
pub(crate) struct Keeper {
    level: Level,
    /// So many stages need not be done again.
    pub(crate) stages: usize,
    chain: Chain,
    identity: Identity,
    dtype: DType,
    /// Whether numbers come back other than they were.
    lossy: bool,
    store: Store,
    why: Option<String>,
    hits: AtomicU64,
    misses: AtomicU64,
    read_bytes: AtomicU64,
    bytes: Pool<Vec<u8>>,
    refused: Mutex<Option<String>>,
}

enum Store {
    Disk(Box<Shards>),
    Ram(Ram),
}

/// What a cache did since the pipeline was built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheReport {
    /// How much of the flow is kept.
    pub level: Level,
    /// Samples that were found.
    pub hits: u64,
    /// Samples that were made.
    pub misses: u64,
    /// Entries that were not what was written, each of which was made anew.
    pub damaged: u64,
    /// Entries that could not be written.
    pub failed: u64,
    /// Entries that were not written, for want of room or because a write had just failed.
    pub refused: u64,
    /// Entries there are.
    pub entries: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Why this level, where it was chosen.
    pub why: Option<String>,
    /// What went wrong first.
    pub trouble: Option<String>,
}

impl CacheReport {
    /// Nothing is kept.
    pub(crate) fn off(why: Option<String>) -> Self {
        Self {
            level: Level::Off,
            hits: 0,
            misses: 0,
            damaged: 0,
            failed: 0,
            refused: 0,
            entries: 0,
            read_bytes: 0,
            written_bytes: 0,
            why,
            trouble: None,
        }
    }
}

impl Keeper {
    /// Keeps what these stages make.
    pub(crate) fn new(
        cache: &Cache,
        level: Level,
        stages: &[Arc<dyn Stage>],
        batch: DType,
        why: Option<String>,
    ) -> Self {
        let count = kept(level, stages);
        let exact = exact(stages, count, batch);
        let why = why.or_else(|| behind(level, stages, count));
        let chain = chain(cache, level, stages, batch);
        let dtype = numbers(cache, level, exact);
        let store = if level == Level::Ram {
            let available = machine::memory().available_bytes.unwrap_or(2 << 30);
            let share = available as f64 * SHARE_OF_MEMORY / cache.sharers as f64;
            Store::Ram(Ram::new(cache.most_bytes.unwrap_or(u64::MAX).min(share as u64)))
        } else {
            Store::Disk(Box::new(Shards::open(&cache.folder, chain.clone(), cache.most_bytes, cache.write)))
        };
        Self {
            level,
            stages: count,
            chain,
            identity: cache.identity,
            dtype,
            lossy: dtype != DType::F32 && dtype != exact,
            store,
            why,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            bytes: Pool::default(),
            refused: Mutex::default(),
        }
    }

    /// How numbers come back other than they were, if they do: part of what a saved state is recognised by.
    pub(crate) fn changes(&self) -> Option<String> {
        self.lossy.then(|| format!("cache {}", self.dtype.name()))
    }

    /// What is kept of a sample.
    pub(crate) fn fetch(&self, sample: &mut Sample, context: &mut Context) -> Outcome {
        if self.level == Level::Raw {
            self.fetch_files(sample, context);
            return Outcome::Apart;
        }
        // A file that is not there will be found missing by whoever opens it.
        let Ok(key) = self.chain.key(sample, self.identity) else { return Outcome::Apart };
        let found = self.found(key, context);
        let count = if found.is_some() { &self.hits } else { &self.misses };
        count.fetch_add(1, Relaxed);
        found.map_or(Outcome::Missing(key), Outcome::Found)
    }

    /// What is kept under a key; nothing where it is not there or not whole.
    fn found(&self, key: Key, context: &Context) -> Option<Kept> {
        loop {
            let bytes = self.read(key, context)?;
            if let Some(fields) = Fields::read(bytes.as_slice(), self.dtype) {
                return Some(Kept { bytes, fields, dtype: self.dtype });
            }
            // An entry whose check is right and that is none was written by another program.
            let whole = bytes.is_whole();
            bytes.give_back(context);
            if whole {
                return None;
            }
        }
    }

    /// A sample that was found was lost while it was used.
    pub(crate) fn lost(&self) {
        self.hits.fetch_sub(1, Relaxed);
    }

    /// An entry; nothing where it is not there, or not whole as far as that is known already ([`Bytes::used`]).
    fn read(&self, key: Key, context: &Context) -> Option<Bytes> {
        let bytes = match &self.store {
            Store::Disk(shards) => {
                let found = shards.find(key)?;
                if let Some(view) = found.view() {
                    Bytes::Mapped(view, found)
                } else {
                    let mut floats = context.floats();
                    floats.resize(found.len().div_ceil(4), 0.0);
                    if !shards.read(&found, &mut bytemuck::cast_slice_mut(&mut floats)[..found.len()]) {
                        context.recycle(floats);
                        return None;
                    }
                    Bytes::Read(floats, found.len())
                }
            }
            Store::Ram(ram) => Bytes::Shared(ram.find(key)?),
        };
        self.read_bytes.fetch_add(bytes.as_slice().len() as u64, Relaxed);
        Some(bytes)
    }

    /// Keeps a sample as it is now.
    pub(crate) fn keep(&self, key: Key, sample: &Sample) {
        let mut bytes = self.bytes.take();
        entry::write(sample, self.dtype, &mut bytes);
        self.append(key, &bytes);
        self.bytes.give(bytes);
    }

    /// Makes numbers as they come back, where that is not what they were: a sample is the same whether it was found or made.
    pub(crate) fn round(&self, sample: &mut Sample) {
        if self.lossy {
            sample
                .values_mut()
                .filter_map(entry::numbers_mut)
                .for_each(|numbers| entry::round(numbers, self.dtype));
        }
    }

    fn append(&self, key: Key, bytes: &[u8]) {
        match &self.store {
            Store::Disk(shards) => {
                shards.append(key, bytes);
            }
            Store::Ram(ram) => {
                if !ram.append(key, bytes) {
                    let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
                    refused.get_or_insert_with(|| {
                        let held = human(ram.bytes() as f64);
                        format!("{held} are in memory, as much as may be: what does not fit is made anew")
                    });
                }
            }
        }
    }

    /// The bytes of a sample's files, from here or from where they lie.
    fn fetch_files(&self, sample: &mut Sample, context: &mut Context) {
        let names: Vec<String> = sample
            .fields()
            .filter(|(_, value)| matches!(value, Value::Media(_)))
            .map(|(name, _)| name.to_owned())
            .collect();
        for name in names {
            let Some(Value::Media(media)) = sample.get_mut(&name) else { continue };
            if matches!(media.place, MediaPlace::Bytes(_)) {
                continue;
            }
            // What cannot be read is told by whoever decodes it.
            if let Ok(bytes) = self.file(media, context) {
                media.place = MediaPlace::Bytes(bytes);
            }
        }
    }

    fn file(&self, media: &Media, context: &mut Context) -> Result<Vec<u8>, Fault> {
        let key = self.chain.key_of_file(media, self.identity)?;
        while let Some(found) = self.read(key, context) {
            let bytes = found.copied();
            found.give_back(context);
            if let Some(bytes) = bytes {
                self.hits.fetch_add(1, Relaxed);
                return Ok(bytes);
            }
        }
        let mut bytes = Vec::new();
        media.read(|input| read_all(input, &mut bytes, MOST_FILE_BYTES))?;
        self.misses.fetch_add(1, Relaxed);
        self.append(key, &bytes);
        Ok(bytes)
    }

    /// What it did.
    pub(crate) fn report(&self) -> CacheReport {
        let count = |of: &AtomicU64| of.load(Relaxed);
        let mut report = CacheReport {
            level: self.level,
            hits: count(&self.hits),
            misses: count(&self.misses),
            read_bytes: count(&self.read_bytes),
            ..CacheReport::off(self.why.clone())
        };
        match &self.store {
            Store::Disk(shards) => {
                report.damaged = count(&shards.counts.damaged);
                report.failed = count(&shards.counts.failed);
                report.refused = count(&shards.counts.refused);
                report.written_bytes = count(&shards.counts.written_bytes);
                report.entries = shards.len() as u64;
                report.trouble = shards.first_trouble();
            }
            Store::Ram(ram) => {
                (report.entries, report.written_bytes) = (ram.len() as u64, ram.bytes());
                let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
                report.trouble.clone_from(&refused);
            }
        }
        report
    }
}

/// An entry as it was read.
enum Bytes {
    /// In a buffer for numbers, so many bytes of it.
    Read(Vec<f32>, usize),
    /// In the file, not checked.
    Mapped(View, Found),
    /// In memory.
    Shared(Piece),
}

impl Bytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Read(floats, length) => &bytemuck::cast_slice(floats)[..*length],
            Self::Mapped(view, _) => view.as_slice(),
            Self::Shared(bytes) => bytes.as_slice(),
        }
    }

    /// Gives them to be used from the beginning to the end, and says whether they are what was written. They are looked at while
    /// they are used: to do the one and then the other, far away as they are in memory, would take the time of both. Where they are
    /// not, they are not found like this again.
    fn used<T>(&self, with: impl FnOnce(&[u8], &mut dyn FnMut(usize)) -> T) -> (T, bool) {
        match self {
            Self::Mapped(view, found) => {
                let mut checking = found.checking(view.as_slice());
                let done = with(view.as_slice(), &mut |bytes| checking.uses(bytes));
                (done, found.is(checking.finish(), view))
            }
            Self::Read(..) | Self::Shared(_) => (with(self.as_slice(), &mut |_| {}), true),
        }
    }

    /// Whether they are what was written.
    fn is_whole(&self) -> bool {
        self.used(|_, _| ()).1
    }

    /// A copy of them, if they are what was written: of the copy, which nobody changes any more.
    fn copied(&self) -> Option<Vec<u8>> {
        let copy = self.as_slice().to_vec();
        let whole = match self {
            Self::Mapped(view, found) => found.is(found.checking(&copy).finish(), view),
            Self::Read(..) | Self::Shared(_) => true,
        };
        whole.then_some(copy)
    }

    fn give_back(self, context: &Context) {
        if let Self::Read(floats, _) = self {
            context.recycle(floats);
        }
    }
}

/// A sample that was found, its numbers as they were kept.
pub(crate) struct Kept {
    bytes: Bytes,
    fields: Fields,
    dtype: DType,
}

impl Kept {
    /// The field that has most of the numbers.
    pub(crate) fn field(&self) -> Option<&str> {
        self.fields.first_name()
    }

    /// The bytes of the entry.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.as_slice().len()
    }

    /// Puts it in the place of what the source gave. Nothing where it turns out not to be whole: the sample is to be begun again.
    pub(crate) fn unpack(self, sample: &mut Sample, context: &Context) -> Option<()> {
        let body = self.fields.body;
        let (numbers, whole) = match self.bytes {
            Bytes::Read(mut floats, _) if self.dtype == DType::F32 => {
                floats.truncate(body / 4);
                (floats, true)
            }
            bytes => {
                let mut numbers = context.floats();
                let ((), whole) = bytes.used(|bytes, read| {
                    entry::read_numbers(&bytes[..body], self.dtype, &mut numbers, read);
                });
                bytes.give_back(context);
                (numbers, whole)
            }
        };
        self.fields.into_sample(sample, numbers);
        whole.then_some(())
    }

    /// The same but for the numbers of [`Kept::field`], which `with` gets as they were kept.
    pub(crate) fn unpack_with<T>(
        self,
        sample: &mut Sample,
        context: &Context,
        with: impl FnOnce(&mut Sample, Option<Apart>) -> T,
    ) -> Option<T> {
        let Self { bytes, fields, dtype } = self;
        let (body, name) = (fields.body, fields.first_name().map(str::to_owned));
        fields.into_sample(sample, Vec::new());
        let (done, whole) = bytes.used(|bytes, read| {
            let numbers = entry::numbers_of(&bytes[..body], dtype);
            let apart = name.as_deref().map(|name| Apart { name, numbers: numbers.as_ref(), read });
            with(sample, apart)
        });
        bytes.give_back(context);
        whole.then_some(done)
    }
}

/// Says of stages that could be kept that they are not, because of what stands before them.
fn behind(level: Level, stages: &[Arc<dyn Stage>], count: usize) -> Option<String> {
    let random = stages.get(count).filter(|_| matches!(level, Level::Features | Level::Ram))?.name();
    let late = stages[count..].iter().find(|stage| ["log_mel", "tokenize"].contains(&stage.name()))?.name();
    Some(format!("`{random}` may give something else each time, so `{late}` behind it is not kept"))
}

/// The numbers that are kept without a loss: as exact as the batch's where nothing is done to them any more.
pub(super) fn exact(stages: &[Arc<dyn Stage>], count: usize, batch: DType) -> DType {
    if count == stages.len() && count > 0 { batch } else { DType::F32 }
}

fn numbers(cache: &Cache, level: Level, exact: DType) -> DType {
    cache.dtype.filter(|_| level != Level::Raw).unwrap_or(exact)
}

/// What is done to samples before this level keeps them.
pub(super) fn chain(cache: &Cache, level: Level, stages: &[Arc<dyn Stage>], batch: DType) -> Chain {
    let count = kept(level, stages);
    Chain::of(&stages[..count], numbers(cache, level, exact(stages, count, batch)))
}

/// How many stages a level keeps.
pub(crate) fn kept(level: Level, stages: &[Arc<dyn Stage>]) -> usize {
    let same = stages.iter().take_while(|stage| stage.version().is_some()).count();
    match level {
        Level::Off | Level::Raw => 0,
        Level::Decoded => {
            stages[..same].iter().position(|stage| stage.name() == "decode").map_or(same, |at| at + 1)
        }
        Level::Features | Level::Ram => same,
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;
    use crate::{
        batch::collate::Numbers,
        cache::disk::{self, WRITE},
        sample::Tensor,
    };

    /// A sample that was found where it lies, and its file.
    fn found(folder: &std::path::Path) -> (Kept, std::fs::File) {
        let (data, shape) = (vec![1.5; 50_000], vec![50_000]);
        let tensor = Tensor { data, shape, pad_axis: 0, pad_to: 0, fill: 0.0 };
        let mut entry = Vec::new();
        entry::write(&Sample::new("a").with("x", tensor), DType::F32, &mut entry);
        let shards = Shards::open(folder, Chain::of(&[], DType::F32), None, WRITE);
        assert!(shards.append(1, &entry));
        let found = shards.find(1).unwrap();
        let view = found.view().unwrap();
        let fields = Fields::read(view.as_slice(), DType::F32).unwrap();
        let path = folder.join(format!("{}.data", disk::names(folder, "")[0]));
        let file = std::fs::File::options().write(true).open(path).unwrap();
        (Kept { bytes: Bytes::Mapped(view, found), fields, dtype: DType::F32 }, file)
    }

    #[test]
    fn what_is_lost_while_it_is_used_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let context = Context::for_tests(0, 0);
        let sum = |_: &mut Sample, apart: Option<Apart>| match apart.unwrap().numbers {
            Numbers::F32(numbers) => numbers.iter().sum::<f32>(),
            _ => unreachable!("it was kept so"),
        };
        let (kept, _) = found(&folder.path().join("a"));
        assert_eq!(kept.unpack_with(&mut Sample::new("a"), &context, sum), Some(75_000.0));
        let (kept, file) = found(&folder.path().join("b"));
        file.set_len(0).unwrap();
        assert_eq!(kept.unpack_with(&mut Sample::new("a"), &context, sum), None);
        let (kept, file) = found(&folder.path().join("c"));
        file.set_len(0).unwrap();
        assert_eq!(kept.unpack(&mut Sample::new("a"), &context), None);
        let (kept, _) = found(&folder.path().join("d"));
        assert_eq!(kept.unpack(&mut Sample::new("a"), &context), Some(()));
    }
}
