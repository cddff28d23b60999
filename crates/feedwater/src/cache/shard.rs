//! How do kept samples lie on the disk?
//!
//! In pairs of files that are only ever appended to, each written by one process: `NAME.data` holds entries one behind the
//! other, `NAME.index` says of each where it is and what it must hash to. An entry counts when its record in the index is
//! there, which is written after it. No byte of either file is without a check, so whatever becomes of them is noticed:
//!
//! ```text
//! .data   magic 8 | version 4 | 0 4 | shard 16 | check 8 | 0 24 ║ entry │ entry │ entry …
//! .index  magic 8 | version 4 | length of words 4 | chain 32 | shard 16 | words … | check 8 ║ record │ record …
//! record  key 16 | offset 8 | length 4 | number 4 | check of the entry 8 | check of the record 8
//! ```
//!
//! The check of an entry is made of those of its blocks and begins with its key, and that of a record with the shard and its place in it: entries or records
//! that changed places are found out too.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::SystemTime,
};

use twox_hash::XxHash3_64;

use super::key::{Chain, Key};
use crate::read::{ReadAt, read_exact_at, read_full_at};

const MAGIC: &[u8; 8] = b"feedwatr";
const VERSION: u32 = 2;
pub(crate) const DATA_HEAD: u64 = 64;
pub(crate) const RECORD: usize = 48;
/// Longer words than this nobody wrote.
const MOST_WORDS: usize = 64 * 1024;

/// The name of a shard: which chain, when it was begun and by whom, so that no two are the same.
pub(crate) fn name(chain: &Chain, shard: u128) -> String {
    let prefix = prefix(chain);
    format!("{prefix}{shard:032x}")
}

/// How the names of a chain's shards begin.
pub(crate) fn prefix(chain: &Chain) -> String {
    let first = chain.hash.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    format!("{first:016x}-")
}

/// A number that no other shard has; later ones are larger.
pub(crate) fn new_number() -> u128 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    // The process and a count, for two that begin at the same moment.
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    (nanos & ((1 << 80) - 1)) << 48 | u128::from(std::process::id()) << 16 | u128::from(count & 0xffff)
}

/// The head of a `.data` file.
pub(crate) fn data_head(shard: u128) -> Vec<u8> {
    let mut head = Vec::with_capacity(DATA_HEAD as usize);
    head.extend(MAGIC);
    head.extend(VERSION.to_le_bytes());
    head.extend([0; 4]);
    head.extend(shard.to_le_bytes());
    head.resize(DATA_HEAD as usize - 8, 0);
    head.extend(xxh3_64_with_seed(&head, 0).to_le_bytes());
    head
}

/// The head of an `.index` file.
pub(crate) fn index_head(chain: &Chain, shard: u128) -> Vec<u8> {
    let mut head = Vec::new();
    head.extend(MAGIC);
    head.extend(VERSION.to_le_bytes());
    head.extend((chain.words.len() as u32).to_le_bytes());
    head.extend(chain.hash);
    head.extend(shard.to_le_bytes());
    head.extend(chain.words.as_bytes());
    head.extend(xxh3_64_with_seed(&head, 1).to_le_bytes());
    head
}

/// What an entry must hash to.
pub(crate) fn check(key: Key, entry: &[u8]) -> u64 {
    Checking::new(key, entry).finish()
}

/// The check of an entry, while it is used from its beginning to its end: block by block, when a block has been used and is in the
/// nearest cache. (Not before: what is lost between a look and a use would be missed.) Each block is hashed for itself, and the hash
/// of one begins with all before it.
pub(crate) struct Checking<'a> {
    hash: u64,
    /// What has not been looked at.
    left: &'a [u8],
    /// Of those, the bytes that have been used.
    used: usize,
}

impl<'a> Checking<'a> {
    const BLOCK: usize = 1024;

    pub(crate) fn new(key: Key, entry: &'a [u8]) -> Self {
        Self { hash: seed(key), left: entry, used: 0 }
    }

    /// So many bytes more have been used.
    pub(crate) fn uses(&mut self, bytes: usize) {
        self.used += bytes;
        while self.used >= Self::BLOCK && self.next() {
            self.used -= Self::BLOCK;
        }
    }

    /// Whether there was a block.
    fn next(&mut self) -> bool {
        let (block, left) = self.left.split_at(Self::BLOCK.min(self.left.len()));
        if block.is_empty() {
            return false;
        }
        // Without a seed: what a seed makes of the secret is written and read again, for which a processor waits until all stores
        // before it are done. What is multiplied is odd, so two blocks or two beginnings that differ give two hashes that do.
        self.hash =
            (self.hash.rotate_left(29) ^ XxHash3_64::oneshot(block)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.left = left;
        true
    }

    /// What the entry hashes to.
    pub(crate) fn finish(mut self) -> u64 {
        while self.next() {}
        self.hash
    }
}

fn seed(key: Key) -> u64 {
    key as u64 ^ (key >> 64) as u64
}

/// By the widest registers that the machine has, which `xxhash-rust` knows only when it is compiled.
fn xxh3_64_with_seed(bytes: &[u8], seed: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// Where an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) key: Key,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) check: u64,
}

impl Record {
    pub(crate) fn write(&self, shard: u128, number: u32) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        bytes[..16].copy_from_slice(&self.key.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_le_bytes());
        bytes[28..32].copy_from_slice(&number.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.check.to_le_bytes());
        let check = xxh3_64_with_seed(&bytes[..40], shard as u64 ^ (shard >> 64) as u64);
        bytes[40..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Nothing where it is not what was written there.
    pub(crate) fn read(bytes: &[u8; RECORD], shard: u128, number: u32) -> Option<Self> {
        let (key, rest) = bytes.split_first_chunk::<16>()?;
        let (offset, rest) = rest.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (check, _) = rest.get(4..)?.split_first_chunk::<8>()?;
        let record = Self {
            key: Key::from_le_bytes(*key),
            offset: u64::from_le_bytes(*offset),
            length: u32::from_le_bytes(*length),
            check: u64::from_le_bytes(*check),
        };
        (record.write(shard, number) == *bytes).then_some(record)
    }

    /// The byte behind the entry.
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.length))
    }
}

/// What stands at the head of an index.
pub(crate) struct Head {
    pub(crate) chain: [u8; 32],
    pub(crate) shard: u128,
    pub(crate) words: String,
    /// Where its records begin.
    pub(crate) bytes: u64,
}

pub(crate) const ANOTHER_VERSION: &str = "it was written by another version of Feedwater";

/// Why an index whose head cannot be read cannot be used.
pub(crate) fn why_not(index: &dyn ReadAt) -> &'static str {
    let mut begin = [0; 12];
    let known = read_exact_at(index, &mut begin, 0).is_ok() && begin.starts_with(MAGIC);
    if known && begin[8..] != VERSION.to_le_bytes() {
        ANOTHER_VERSION
    } else {
        "the head of its index is damaged"
    }
}

/// The head of an index; nothing where it is damaged or of another version.
pub(crate) fn read_head(index: &dyn ReadAt) -> Option<Head> {
    let mut fixed = [0; 64];
    read_exact_at(index, &mut fixed, 0).ok()?;
    let (magic, rest) = fixed.split_first_chunk::<8>()?;
    let (version, rest) = rest.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (chain, rest) = rest.split_first_chunk::<32>()?;
    let length = u32::from_le_bytes(*length) as usize;
    if magic != MAGIC || u32::from_le_bytes(*version) != VERSION || length > MOST_WORDS {
        return None;
    }
    let mut whole = fixed.to_vec();
    whole.resize(64 + length + 8, 0);
    read_exact_at(index, &mut whole[64..], 64).ok()?;
    let (head, stored) = whole.split_last_chunk::<8>()?;
    (xxh3_64_with_seed(head, 1) == u64::from_le_bytes(*stored)).then_some(())?;
    Some(Head {
        chain: *chain,
        shard: u128::from_le_bytes(*rest.first_chunk()?),
        words: String::from_utf8(head[64..].to_vec()).ok()?,
        bytes: whole.len() as u64,
    })
}

/// Whether a `.data` file is the one of this shard.
pub(crate) fn belongs(data: &dyn ReadAt, shard: u128) -> bool {
    let mut head = [0; DATA_HEAD as usize];
    read_exact_at(data, &mut head, 0).is_ok() && head[..] == data_head(shard)
}

/// The records of an index from `number` on: whole ones, each as it is or nothing where it is damaged.
pub(crate) fn read_records(index: &dyn ReadAt, head: &Head, number: u32) -> io::Result<Vec<Option<Record>>> {
    let at = head.bytes + u64::from(number) * RECORD as u64;
    let mut bytes = vec![0; usize::try_from(index.size()?.saturating_sub(at)).unwrap_or(0)];
    let count = read_full_at(index, &mut bytes, at).map_err(|fault| io::Error::other(fault.reason))?;
    let whole = bytes[..count].as_chunks::<RECORD>().0;
    let record = |(place, bytes)| Record::read(bytes, head.shard, number + place as u32);
    Ok(whole.iter().enumerate().map(record).collect())
}

/// Why a shard cannot be used.
pub(crate) enum Unusable {
    /// It was begun and no more, or is being taken away.
    NotThere,
    /// By anybody.
    Damaged(&'static str),
    /// By this user, or this version.
    Elses(String),
}

/// Opens a shard: its index, its data, and what stands at the head of both.
pub(crate) fn open(folder: &Path, name: &str) -> Result<(File, File, Head), Unusable> {
    let both = || -> io::Result<(File, File)> {
        let [index, data] = paths(folder, name);
        let (index, data) = (File::open(index)?, File::open(data)?);
        if index.size().unwrap_or(0) > 0 { Ok((index, data)) } else { Err(io::ErrorKind::NotFound.into()) }
    };
    // One that is begun, or taken away, at this moment has one file for a moment.
    let (index, data) = match both().or_else(|_| both()) {
        Ok(files) => files,
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Unusable::Elses(error.to_string()));
        }
        Err(_) if size(folder, name) > DATA_HEAD => {
            return Err(Unusable::Damaged("one of its two files is gone or empty"));
        }
        Err(_) => return Err(Unusable::NotThere),
    };
    let Some(head) = read_head(&index) else {
        let why = why_not(&index);
        return Err(if why == ANOTHER_VERSION {
            Unusable::Elses(why.to_owned())
        } else {
            Unusable::Damaged(why)
        });
    };
    if belongs(&data, head.shard) {
        Ok((index, data, head))
    } else {
        Err(Unusable::Damaged("its data are damaged, or another's"))
    }
}

/// The index and the data of a shard.
pub(crate) fn paths(folder: &Path, name: &str) -> [PathBuf; 2] {
    ["index", "data"].map(|ending| folder.join(format!("{name}.{ending}")))
}

/// The bytes of both.
pub(crate) fn size(folder: &Path, name: &str) -> u64 {
    paths(folder, name).iter().filter_map(|path| fs::metadata(path).ok()).map(|about| about.len()).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_entry_that_is_looked_at_while_it_is_used_has_the_same_check(
            entry in prop::collection::vec(any::<u8>(), 0..9000),
            key: u128,
            uses in prop::collection::vec(0_usize..3000, 0..8),
        ) {
            let mut checking = Checking::new(key, &entry);
            for bytes in uses {
                checking.uses(bytes);
            }
            prop_assert_eq!(checking.finish(), check(key, &entry));
        }

        #[test]
        fn an_entry_that_is_another_has_another_check(
            entry in prop::collection::vec(any::<u8>(), 2048..9000),
            key: u128,
            (at, bit, other) in (any::<prop::sample::Index>(), 0_u32..8, any::<prop::sample::Index>()),
        ) {
            let right = check(key, &entry);
            prop_assert_ne!(check(key ^ 1, &entry), right);
            prop_assert_ne!(check(key, &entry[..entry.len() - 1]), right);
            let mut flipped = entry.clone();
            flipped[at.index(entry.len())] ^= 1_u8 << bit;
            prop_assert_ne!(check(key, &flipped), right);
            // Two blocks that changed places.
            let blocks = entry.len() / Checking::BLOCK;
            let (a, b) = (at.index(blocks) * Checking::BLOCK, other.index(blocks) * Checking::BLOCK);
            let mut swapped = entry.clone();
            (0..Checking::BLOCK).for_each(|at| swapped.swap(a + at, b + at));
            prop_assert_eq!(check(key, &swapped) == right, swapped == entry);
        }
    }
}
