//! Shards of ours: what a cache lies in, holding a dataset. Made by [`convert`](crate::convert).
//!
//! One file: entries one behind the other, then where each is and what it must hash to, as [`crate::cache`] writes it, then
//! where that begins. Each of a sample's media is an entry, and behind them its other fields are one; the last entry names the
//! samples. Every byte is checked when it is read; what is damaged is a bad sample, and the others are as they were.
//!
//! ```text
//! head of the data 64 ║ media │ fields │ media │ fields │ … │ names ║ head of the index │ record │ … ║ where that begins 8 | check 8
//! ```

use std::{
    collections::HashSet,
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_128};

use super::{Kind, Source, ending, files_below};
use crate::{
    batch::DType,
    cache::{
        entry::{self, Fields},
        key::Chain,
        shard::{self, DATA_HEAD, Record},
    },
    error::{Error, Fault, Result},
    read::{ReadAt, Section, read_exact_at},
    sample::{Check, Media, MediaPlace, Sample, Value},
};

/// How the names of such files end.
pub(crate) const ENDING: &str = "feedwater";

/// So many files stay open: a process may have a thousand or so.
const KEPT_OPEN: usize = 256;

/// Where the index begins, and the check of that.
const TAIL: u64 = 16;

/// What the samples of a shard are called, and what else is known of all of them.
#[derive(Default, Serialize, Deserialize)]
struct Names {
    keys: Vec<String>,
    /// How many media each has.
    media: Vec<usize>,
    /// Seconds, where they are known.
    seconds: Vec<Option<f64>>,
    classes: Vec<String>,
}

/// What a shard says that it is.
fn chain() -> Chain {
    Chain::new(*blake3::hash(b"a dataset of samples").as_bytes(), "dataset".to_owned())
}

/// A shard that is being written.
pub(crate) struct Writer<W> {
    out: W,
    number: u128,
    end: u64,
    records: Vec<Record>,
    names: Names,
    bytes: Vec<u8>,
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(mut out: W, classes: &[String]) -> io::Result<Self> {
        let number = shard::new_number();
        out.write_all(&shard::data_head(number))?;
        let names = Names { classes: classes.to_vec(), ..Names::default() };
        Ok(Self { out, number, end: DATA_HEAD, records: Vec::new(), names, bytes: Vec::new() })
    }

    /// Adds a sample, whose media have been read.
    pub(crate) fn add(&mut self, mut sample: Sample, seconds: Option<f64>) -> io::Result<()> {
        let is_media =
            |(name, value): (&str, &Value)| matches!(value, Value::Bytes(_)).then(|| name.to_owned());
        let mut media: Vec<String> = sample.fields().filter_map(is_media).collect();
        // In the order in which an entry has its fields.
        media.sort();
        for name in &media {
            if let Some(Value::Bytes(bytes)) = sample.take(name) {
                self.put(xxh3_128(format!("{}\n{name}", sample.key).as_bytes()), &bytes)?;
            }
            // Of media, an entry has the names alone.
            sample.set(name.clone(), Media::file(""));
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        entry::write(&sample, DType::F32, &mut bytes);
        self.put(xxh3_128(sample.key.as_bytes()), &bytes)?;
        self.bytes = bytes;
        self.names.keys.push(sample.key);
        self.names.media.push(media.len());
        self.names.seconds.push(seconds);
        Ok(())
    }

    fn put(&mut self, key: u128, entry: &[u8]) -> io::Result<()> {
        let length = u32::try_from(entry.len()).map_err(|_| io::Error::other("a sample of over 4 GiB"))?;
        self.records.push(Record { key, offset: self.end, length, check: shard::check(key, entry) });
        self.end += u64::from(length);
        self.out.write_all(entry)
    }

    /// How many bytes it has so far.
    pub(crate) fn len(&self) -> u64 {
        self.end
    }

    /// Writes the names and the index.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        let names = serde_json::to_vec(&self.names)?;
        self.put(xxh3_128(&names), &names)?;
        self.out.write_all(&shard::index_head(&chain(), self.number))?;
        for (number, record) in self.records.iter().enumerate() {
            self.out.write_all(&record.write(self.number, number as u32))?;
        }
        let at = self.end.to_le_bytes();
        self.out.write_all(&at)?;
        self.out.write_all(&xxh3_64(&at).to_le_bytes())?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Shards of ours.
pub struct Shards {
    /// Beyond [`KEPT_OPEN`], a file is opened when it is asked for.
    files: Vec<(Arc<Path>, Option<Arc<File>>)>,
    /// All records of all files; nothing where one is damaged.
    records: Vec<Option<Record>>,
    samples: Vec<Place>,
    classes: Vec<String>,
    fingerprint: u128,
}

struct Place {
    file: u32,
    key: Box<str>,
    seconds: Option<f64>,
    /// Its record; those of its media stand before it.
    record: usize,
    media: usize,
}

impl Shards {
    /// Opens a shard, or all shards of a folder in the order of their names.
    pub fn open(path: &Path) -> Result<Self> {
        let paths: Vec<PathBuf> = if path.is_dir() {
            files_below(path, |file| ending(file) == ENDING)?
        } else {
            vec![path.to_owned()]
        };
        let mut this = Self {
            files: Vec::new(),
            records: Vec::new(),
            samples: Vec::new(),
            classes: Vec::new(),
            fingerprint: 0,
        };
        for path in paths {
            let file = File::open(&path).map_err(|error| Error::read(&path, error))?;
            let names = this.index(&file).map_err(|reason| {
                let hint =
                    "it was cut off or damaged: copy it again, or make it anew with `feedwater convert`";
                Error::dataset_hint(&path, Fault::new(reason), hint)
            })?;
            if this.classes != names && !this.files.is_empty() {
                let reason = "its classes are not those of the shards before it";
                return Err(Error::dataset(&path, Fault::new(reason)));
            }
            this.classes = names;
            let kept = (this.files.len() < KEPT_OPEN).then(|| Arc::new(file));
            this.files.push((path.into(), kept));
        }
        let mut hasher = Xxh3::new();
        let mut keys = HashSet::new();
        for place in &mut this.samples {
            // Two shards that were made apart may hold the same names.
            while !keys.insert(xxh3_64(place.key.as_bytes())) {
                place.key = format!("{}/{}", place.file, place.key).into();
            }
            hasher.update(place.key.as_bytes());
            for record in &this.records[place.record - place.media..=place.record] {
                hasher.update(&record.map_or(0, |record| record.check).to_le_bytes());
            }
        }
        this.fingerprint = hasher.digest128();
        Ok(this)
    }

    /// Notes the samples of a file. Returns its classes.
    fn index(&mut self, file: &File) -> Result<Vec<String>, String> {
        let size = file.size().map_err(|error| error.to_string())?;
        let mut tail = [0; TAIL as usize];
        let last = size.checked_sub(TAIL).ok_or("it is too short")?;
        read_exact_at(file, &mut tail, last).map_err(|fault| fault.reason)?;
        let (at, check) = tail.split_first_chunk::<8>().ok_or("it is too short")?;
        if check != xxh3_64(at).to_le_bytes() {
            return Err("its end is not that of a shard".to_owned());
        }
        let at = u64::from_le_bytes(*at).min(last);
        let index = Section::new(file, at, last - at);
        let head = shard::read_head(&index).ok_or_else(|| shard::why_not(&index))?;
        if head.chain != chain().hash {
            return Err("it is no dataset".to_owned());
        }
        if !shard::belongs(file, head.shard) {
            return Err("its head is damaged".to_owned());
        }
        let mut records = shard::read_records(&index, &head, 0).map_err(|error| error.to_string())?;
        let fits = |record: &Record| record.end() <= at;
        let last = records.pop().flatten().filter(fits).ok_or("the record of its names is damaged")?;
        let mut names = vec![0; last.length as usize];
        read_exact_at(file, &mut names, last.offset).map_err(|fault| fault.reason)?;
        if shard::check(last.key, &names) != last.check {
            return Err("the names of its samples are damaged".to_owned());
        }
        let names: Names = serde_json::from_slice(&names).map_err(|error| error.to_string())?;
        let Names { keys, media, seconds, classes } = names;
        let wanted = media.iter().try_fold(media.len(), |sum, count| sum.checked_add(*count));
        if keys.len() != media.len() || seconds.len() != media.len() || wanted != Some(records.len()) {
            return Err("it has another number of names than of samples".to_owned());
        }
        let number = self.files.len() as u32;
        let mut next = self.records.len();
        for ((key, media), seconds) in keys.into_iter().zip(media).zip(seconds) {
            next += media + 1;
            self.samples.push(Place { file: number, key: key.into(), seconds, record: next - 1, media });
        }
        self.records.extend(records.into_iter().map(|record| record.filter(fits)));
        Ok(classes)
    }
}

impl Source for Shards {
    fn kind(&self) -> Kind {
        Kind::Shard
    }

    fn len(&self) -> u64 {
        self.samples.len() as u64
    }

    fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    fn key(&self, index: u64) -> String {
        self.samples[index as usize].key.to_string()
    }

    fn sample(&self, index: u64) -> Result<Sample, Fault> {
        let place = &self.samples[index as usize];
        let (path, file) = &self.files[place.file as usize];
        let file = match file {
            Some(file) => file.clone(),
            None => Arc::new(File::open(path)?),
        };
        let damaged = |at: u64| Fault::at_byte(at, "it is not what was written there").in_file(&**path);
        let record = |at: usize| self.records[at].ok_or_else(|| damaged(0));
        let Record { key, offset, length, check } = record(place.record)?;
        let mut bytes = vec![0; length as usize];
        read_exact_at(&*file, &mut bytes, offset).map_err(|fault| fault.in_file(&**path))?;
        let whole = shard::check(key, &bytes) == check;
        let fields = Fields::read(&bytes, DType::F32).filter(|_| whole).ok_or_else(|| damaged(offset))?;
        let mut sample = Sample::new(&*place.key);
        let first = place.record - place.media;
        for (number, name) in fields.kept_out().take(place.media).enumerate() {
            let Record { key, offset, length, check } = record(first + number)?;
            let place = MediaPlace::Range {
                file: file.clone(),
                offset,
                length: u64::from(length),
                member: format!("{} of {}", name, place.key),
                check: Some(Check { key, hash: check }),
            };
            sample.set(name.clone(), Media { path: path.clone(), place, window: None });
        }
        let mut numbers = Vec::new();
        entry::read_numbers(&bytes[..fields.body], DType::F32, &mut numbers, &mut |_| {});
        fields.into_sample(&mut sample, numbers);
        Ok(sample)
    }

    fn seconds(&self, index: u64) -> Option<f64> {
        self.samples[index as usize].seconds
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }
}
