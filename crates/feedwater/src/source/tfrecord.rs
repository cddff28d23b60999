//! `TFRecord` files, in which records stand end to end, each with its length and checksums, and each a `tf.train.Example`.
//!
//! The lengths are walked once when a file is opened, and where each record begins is kept: 8 bytes a record. A record is
//! then read by its position, so records can be shuffled, which TensorFlow's own reader cannot do. A length is believed only
//! where its checksum is right and the bytes are there; the checksum of a record is looked at when it is read.

use std::{
    collections::BTreeSet,
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use xxhash_rust::xxh3::Xxh3;

use super::{Kind, Source, example, files_below, tfrecord_roles::Roles};
use crate::{
    error::{Error, Fault, Place, Result},
    read::{read_exact_at, read_full_at},
    sample::Sample,
};

/// The length of a record and its checksum, before it.
const HEAD_BYTES: u64 = 12;
/// Its checksum, behind it.
const TAIL_BYTES: u64 = 4;
/// A larger record is refused.
const MAX_RECORD_BYTES: u64 = 1 << 30;
/// Records that are looked at for what their features are called.
const LOOKED_AT: usize = 32;
/// Shards that are kept open; a system lets a program have a thousand or so.
const KEPT_OPEN: usize = 256;

/// `TFRecord` files.
pub struct TfRecord {
    shards: Vec<Shard>,
    /// How many samples stand before each shard.
    before: Vec<u64>,
    total: u64,
    fingerprint: u128,
    roles: Roles,
    classes: Vec<String>,
}

struct Shard {
    path: Arc<Path>,
    name: String,
    file: Option<File>,
    /// Where each record begins, and where the last ends.
    starts: Vec<u64>,
    /// What is wrong with the rest of the file. It is one bad sample, so that it is counted.
    torn: Option<Fault>,
}

impl TfRecord {
    /// Opens a file, or all files of a folder in the order of their names.
    pub fn open(path: &Path) -> Result<Self> {
        let paths: Vec<PathBuf> =
            if path.is_dir() { files_below(path, is_tfrecord)? } else { vec![path.to_owned()] };
        let base = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
        let (mut shards, mut before, mut total) = (Vec::new(), Vec::new(), 0);
        let mut hasher = Xxh3::new();
        for path in &paths {
            let name = path.strip_prefix(base).unwrap_or(path).to_string_lossy().replace('\\', "/");
            let mut shard = Shard::open(path, name)?;
            hasher.update(shard.name.as_bytes());
            hasher.update(bytemuck::cast_slice(&shard.starts));
            if shards.len() >= KEPT_OPEN {
                shard.file = None;
            }
            before.push(total);
            total += shard.len();
            shards.push(shard);
        }
        let fingerprint = hasher.digest128();
        let mut this =
            Self { shards, before, total, fingerprint, roles: Roles::default(), classes: Vec::new() };
        if this.total > 0 {
            this.roles = this.find_roles(path)?;
            this.classes = this.find_classes();
        }
        Ok(this)
    }

    /// Finds out what is what from the first records that can be read.
    fn find_roles(&self, path: &Path) -> Result<Roles> {
        let mut roles = Roles::default();
        let (mut looked_at, mut first_fault) = (0, None);
        // A file that is damaged in many places must not be read whole here.
        for index in 0..self.total.min(8 * LOOKED_AT as u64) {
            let looked = self.record(index).and_then(|(bytes, start)| {
                roles.look(&example::parse(&bytes, start)?);
                Ok(())
            });
            match looked {
                Ok(()) => looked_at += 1,
                Err(fault) => first_fault = first_fault.or(Some(fault)),
            }
            if looked_at == LOOKED_AT {
                break;
            }
        }
        match first_fault {
            Some(fault) if looked_at == 0 => Err(Error::dataset_hint(
                fault.path.clone().unwrap_or_else(|| path.to_owned()),
                Fault { path: None, ..fault },
                "it was cut off, holds something else than `tf.train.Example`, or is something else by that name (a Git \
                 LFS pointer, an error page): copy or download it again",
            )),
            _ => roles.choose(path),
        }
    }

    /// Labels that are names become numbers, in the order of the names. That takes a look at every record; labels that are
    /// numbers already do not.
    fn find_classes(&self) -> Vec<String> {
        if !self.roles.labels_are_names() {
            return Vec::new();
        }
        let mut names = BTreeSet::new();
        for index in 0..self.total {
            // A record that cannot be read is bad, and will be found to be when its turn comes.
            let Ok((bytes, start)) = self.record(index) else { continue };
            let Ok(features) = example::parse(&bytes, start) else { continue };
            names.extend(self.roles.label_name(&features).map(str::to_owned));
        }
        names.into_iter().collect()
    }

    /// The shard of a sample, and the number of its record there.
    fn place(&self, index: u64) -> (&Shard, u64) {
        let shard = self.before.partition_point(|before| *before <= index) - 1;
        (&self.shards[shard], index - self.before[shard])
    }

    /// A record, and its first byte in the file.
    fn record(&self, index: u64) -> Result<(Vec<u8>, u64), Fault> {
        let (shard, number) = self.place(index);
        shard.record(number as usize).map_err(|fault| fault.in_file(&*shard.path))
    }
}

impl Shard {
    fn open(path: &Path, name: String) -> Result<Self> {
        let file = File::open(path).map_err(|error| Error::read(path, error))?;
        let size = file.metadata().map_err(|error| Error::read(path, error))?.len();
        let (starts, torn) = walk(&file, size);
        if starts.len() == 1
            && let Some(compression) = compression(&file).filter(|_| torn.is_some())
        {
            return Err(Error::config_hint(
                format!(
                    "`{}` is compressed with {compression}, which cannot be read by position",
                    path.display()
                ),
                match compression {
                    "gzip" => "unpack it, for example `gzip -dc < a.tfrecord > b.tfrecord`",
                    _ => "write it anew without `options=\"ZLIB\"`",
                },
            ));
        }
        Ok(Self { path: path.into(), name, file: Some(file), starts, torn })
    }

    fn len(&self) -> u64 {
        (self.starts.len() - 1) as u64 + u64::from(self.torn.is_some())
    }

    fn record(&self, number: usize) -> Result<(Vec<u8>, u64), Fault> {
        let (Some(start), Some(end)) = (self.starts.get(number), self.starts.get(number + 1)) else {
            let fault = self.torn.clone();
            return Err(fault.unwrap_or_else(|| Fault::new("there is no such record")));
        };
        let data = start + HEAD_BYTES;
        let length = end - data - TAIL_BYTES;
        if length > MAX_RECORD_BYTES {
            return Err(Fault::at_byte(
                *start,
                format!("a record of {length} bytes is larger than the limit of {MAX_RECORD_BYTES}"),
            ));
        }
        let mut bytes = vec![0; (length + TAIL_BYTES) as usize];
        match &self.file {
            Some(file) => read_exact_at(file, &mut bytes, data)?,
            None => read_exact_at(&File::open(&self.path)?, &mut bytes, data)?,
        }
        let tail = bytes.split_off(length as usize);
        if tail != masked(&bytes).to_le_bytes() {
            return Err(Fault::at_byte(
                *start,
                format!("the checksum of a record of {length} bytes is wrong"),
            ));
        }
        Ok((bytes, data))
    }
}

/// Where records begin and the last one ends, and what is wrong with what stands behind it.
fn walk(file: &File, size: u64) -> (Vec<u64>, Option<Fault>) {
    /// Read at once where records are small.
    const WINDOW_BYTES: usize = 64 * 1024;

    let mut starts = vec![0];
    let mut window = Vec::new();
    let (mut window_at, mut at) = (0, 0);
    // How much of the file there is to read for a header: records that are large are jumped over.
    let mut ahead = WINDOW_BYTES;
    let rest =
        |at: u64, why: &str| Some(Fault::at_byte(at, format!("the rest of the file cannot be read: {why}")));
    while at < size {
        let inside = (at - window_at) as usize;
        if window.len() < inside + HEAD_BYTES as usize {
            window.resize(ahead, 0);
            match read_full_at(file, &mut window, at) {
                Ok(count) => window.truncate(count),
                Err(fault) => return (starts, Some(fault)),
            }
            window_at = at;
        }
        let head = &window[(at - window_at) as usize..];
        let Some((length, check)) = head.split_first_chunk::<8>() else {
            return (starts, rest(at, "it ends inside of the length of a record"));
        };
        let Some(check) = check.first_chunk::<4>() else {
            return (starts, rest(at, "it ends inside of the length of a record"));
        };
        if *check != masked(length).to_le_bytes() {
            return (starts, rest(at, "the checksum of a record's length is wrong"));
        }
        let length = u64::from_le_bytes(*length);
        let end = length.checked_add(HEAD_BYTES + TAIL_BYTES).and_then(|bytes| at.checked_add(bytes));
        let Some(end) = end.filter(|end| *end <= size) else {
            let why = format!("a record of {length} bytes begins {} bytes before the end", size - at);
            return (starts, rest(at, &why));
        };
        at = end;
        starts.push(at);
        ahead = if length < WINDOW_BYTES as u64 / 4 { WINDOW_BYTES } else { HEAD_BYTES as usize };
    }
    (starts, None)
}

/// What a file that has no record in it was compressed with.
fn compression(file: &File) -> Option<&'static str> {
    let mut head = [0; 2];
    read_exact_at(file, &mut head, 0).ok()?;
    match head {
        [0x1F, 0x8B] => Some("gzip"),
        // Deflate with a window of 32 KiB, and a check in the lowest bits.
        [0x78, _] if u16::from_be_bytes(head).is_multiple_of(31) => Some("zlib"),
        _ => None,
    }
}

/// The checksum of a record: CRC-32C, turned so that the checksum of something with a checksum in it is still one.
fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

/// Whether a file is called what `TFRecord` files are called: `a.tfrecord`, `a.tfrecord-00000-of-00010`. What says that it is
/// compressed is one too, so that it can be said that it is not read.
pub(super) fn is_tfrecord(file: &Path) -> bool {
    let Some(name) = file.file_name().and_then(|name| name.to_str()) else { return false };
    let name = name.to_ascii_lowercase();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    let Some((_, ending)) = name.rsplit_once('.') else { return false };
    let ending = ending.split('-').next().unwrap_or_default();
    ENDINGS.contains(&ending)
}

/// File endings of `TFRecord` files; `-00000-of-00010` may follow.
const ENDINGS: [&str; 3] = ["tfrecord", "tfrecords", "tfrec"];

impl Source for TfRecord {
    fn kind(&self) -> Kind {
        Kind::TfRecord
    }

    fn len(&self) -> u64 {
        self.total
    }

    fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    fn key(&self, index: u64) -> String {
        let (shard, number) = self.place(index);
        format!("{}#{number}", shard.name)
    }

    fn sample(&self, index: u64) -> Result<Sample, Fault> {
        let (shard, _) = self.place(index);
        let (bytes, start) = self.record(index)?;
        let mut sample = Sample::new(self.key(index));
        example::parse(&bytes, start)
            .and_then(|features| {
                let filled = self.roles.fill(&features, &self.classes, &shard.path, &mut sample);
                filled.map_err(|reason| Fault { place: Place::Byte(start), ..Fault::new(reason) })
            })
            .map_err(|fault| fault.in_file(&*shard.path))?;
        Ok(sample)
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_kinds() {
        for name in
            ["a.tfrecord", "b.TFRecords", "c.tfrec", "d-train.tfrecord-00000-of-00010", "e.tfrecord.gz"]
        {
            assert!(is_tfrecord(Path::new(name)), "{name}");
        }
        for name in ["tfrecord", "a.tfrecord.index", "tfrecord-0.txt", "a.gz"] {
            assert!(!is_tfrecord(Path::new(name)), "{name}");
        }
    }
}
