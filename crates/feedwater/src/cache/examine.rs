//! What lies in a folder, is it whole, and away with it: for people, and without a run.

use std::{collections::HashSet, io, path::Path, time::SystemTime};

use serde::Serialize;

use super::{
    disk::{names, remove, used},
    key::Key,
    shard::{self, Unusable, size},
};
use crate::read::{ReadAt, read_exact_at};

/// Bytes behind the last record are those of one entry, unless they are so many times as many as others have.
const A_FEW: u64 = 4;
const LEAST_LOST: u64 = 256 << 10;

/// What a folder holds of one chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Held {
    /// What was done to it, in words.
    pub what: String,
    /// Files, in pairs.
    pub shards: u64,
    /// Entries: of one that was made anew, the last.
    pub entries: u64,
    /// Bytes on the disk.
    pub bytes: u64,
    /// When it was last used, in seconds since 1970.
    pub used_unix_seconds: u64,
}

/// What a folder holds, chain by chain, the last used first.
pub fn held(folder: &Path) -> Vec<Held> {
    let mut all: Vec<([u8; 32], HashSet<Key>, Held)> = Vec::new();
    for name in names(folder, "") {
        let (chain, what, records) = match shard::open(folder, &name) {
            Ok((index, _, head)) => match shard::read_records(&index, &head, 0) {
                Ok(records) => (head.chain, head.words, records),
                Err(error) => ([0; 32], error.to_string(), Vec::new()),
            },
            Err(Unusable::NotThere) => continue,
            Err(Unusable::Damaged(_)) => ([0; 32], "damaged".to_owned(), Vec::new()),
            Err(Unusable::Elses(why)) => ([0; 32], why, Vec::new()),
        };
        let seconds =
            used(folder, &name).duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let same = |(known, _, held): &([u8; 32], HashSet<Key>, Held)| *known == chain && held.what == what;
        let at = all.iter().position(same).unwrap_or_else(|| {
            let held = Held { what, shards: 0, entries: 0, bytes: 0, used_unix_seconds: 0 };
            all.push((chain, HashSet::new(), held));
            all.len() - 1
        });
        let (_, keys, held) = &mut all[at];
        keys.extend(records.into_iter().flatten().map(|record| record.key));
        held.shards += 1;
        held.entries = keys.len() as u64;
        held.bytes += size(folder, &name);
        held.used_unix_seconds = held.used_unix_seconds.max(seconds);
    }
    all.sort_by_key(|(_, _, held)| std::cmp::Reverse(held.used_unix_seconds));
    all.into_iter().map(|(_, _, held)| held).collect()
}

/// What was found when every entry was read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Entries that are what was written.
    pub whole: u64,
    /// Entries and records that are not, and that nothing else stands for.
    pub damaged: u64,
    /// Entries that are not, and were made anew since.
    pub mended: u64,
    /// Shards whose writer was ended in the midst of an entry, or whose tail is lost: nothing in front of it is.
    pub torn: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// What is wrong with which shard.
    pub wrong: Vec<String>,
    /// The shards in which something is damaged; not those of another version, or that may not be read.
    pub damaged_shards: Vec<String>,
    /// Entries in these that are whole.
    pub whole_in_damaged: u64,
}

/// Reads everything in a folder. `shard` is told of every shard that is through.
pub fn verify(folder: &Path, mut shard: impl FnMut(u64, u64)) -> Verified {
    let mut verified = Verified::default();
    let names = names(folder, "");
    let count = names.len() as u64;
    let mut keys = Keys::default();
    for (number, name) in names.into_iter().enumerate() {
        let (before, whole) = (verified.damaged, verified.whole);
        let mut is_ours = true;
        let wrong = match verify_shard(folder, &name, &mut verified, &mut keys) {
            Ok(()) => None,
            Err(Unusable::NotThere) => {
                verified.torn += 1;
                None
            }
            Err(Unusable::Damaged(why)) => Some(why.to_owned()),
            Err(Unusable::Elses(why)) => {
                is_ours = false;
                Some(why)
            }
        };
        if let Some(why) = wrong {
            verified.damaged += 1;
            verified.wrong.push(format!("{name}: {why}"));
        }
        if is_ours && verified.damaged > before {
            verified.damaged_shards.push(name);
            verified.whole_in_damaged += verified.whole - whole;
        }
        shard(number as u64 + 1, count);
    }
    for (name, damaged) in keys.damaged {
        let mended = damaged.keys.iter().filter(|key| keys.whole.contains(key)).count() as u64;
        verified.mended += mended;
        verified.damaged -= mended;
        let left = damaged.count - mended;
        if left > 0 {
            verified.wrong.push(format!("{name}: {left} of {} entries are damaged", damaged.of));
        }
    }
    verified
}

/// Whose entries are whole, and whose are not.
#[derive(Default)]
struct Keys {
    whole: HashSet<([u8; 32], Key)>,
    /// By the name of their shard.
    damaged: Vec<(String, Damaged)>,
}

/// Entries of a shard that are not what was written.
#[derive(Default)]
struct Damaged {
    count: u64,
    /// Of so many.
    of: usize,
    /// Whose they are, where their records say so.
    keys: Vec<([u8; 32], Key)>,
}

fn verify_shard(folder: &Path, name: &str, verified: &mut Verified, keys: &mut Keys) -> Result<(), Unusable> {
    let (index, data, head) = shard::open(folder, name)?;
    // Before its records are read: of what a run adds meanwhile, the record comes behind the entry.
    let written = data.size().unwrap_or(0);
    let records =
        shard::read_records(&index, &head, 0).map_err(|error| Unusable::Elses(error.to_string()))?;
    let mut damaged = Damaged { of: records.len(), ..Damaged::default() };
    let (mut end, mut longest) = (shard::DATA_HEAD, 0);
    let mut bytes = Vec::new();
    let rest = (index.size().unwrap_or(0).saturating_sub(head.bytes)) % shard::RECORD as u64;
    for record in &records {
        let Some(record) = record else {
            damaged.count += 1;
            continue;
        };
        end = end.max(record.end());
        longest = longest.max(u64::from(record.length));
        // What a record says of a length is not believed before the file has it.
        let there = record.end() <= data.size().unwrap_or(0);
        bytes.resize(if there { record.length as usize } else { 0 }, 0);
        let whole = there
            && read_exact_at(&data, &mut bytes, record.offset).is_ok()
            && shard::check(record.key, &bytes) == record.check;
        verified.bytes += bytes.len() as u64;
        let key = (head.chain, record.key);
        if whole {
            verified.whole += 1;
            keys.whole.insert(key);
        } else {
            damaged.count += 1;
            damaged.keys.push(key);
        }
    }
    let behind = written.saturating_sub(end);
    if !records.is_empty() && behind > A_FEW * longest.max(LEAST_LOST) {
        // Whoever was ended had written one entry that has no record.
        verified.damaged += 1;
        verified.wrong.push(format!("{name}: {behind} bytes of entries are in no index any more"));
    } else if rest > 0 || behind > 0 {
        verified.torn += 1;
    }
    if damaged.count > 0 {
        verified.damaged += damaged.count;
        keys.damaged.push((name.to_owned(), damaged));
    }
    Ok(())
}

/// Takes all shards of a folder away, and nothing else. How many bytes that were.
pub fn clear(folder: &Path) -> io::Result<u64> {
    drop_shards(folder, &names(folder, ""))
}

/// Takes those shards away in which something is damaged, also what is whole in them. How many bytes that were, and how many
/// entries that were whole.
pub fn clear_damaged(folder: &Path) -> io::Result<(u64, u64)> {
    let Verified { damaged_shards, whole_in_damaged, .. } = verify(folder, |_, _| {});
    Ok((drop_shards(folder, &damaged_shards)?, whole_in_damaged))
}

fn drop_shards(folder: &Path, names: &[String]) -> io::Result<u64> {
    let mut bytes = 0;
    for name in names {
        let held = size(folder, name);
        remove(folder, name)?;
        bytes += held;
    }
    Ok(bytes)
}
