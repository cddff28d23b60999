//! What is kept in memory? The same entries, as far as there is room, and for as long as nobody else needs it.

use std::{
    collections::BTreeSet,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use feedwater_profile::machine::{self, Memory};

use super::key::{ByKey, Key};
use crate::deliver::shelf::{Piece, Shelf};

/// Memory is looked at once in so many entries.
const LOOK_EVERY: u64 = 256;
/// With less than this share of all memory free, half of what is kept here goes.
const TIGHT: f64 = 1.0 / 16.0;

/// Entries in memory.
pub(super) struct Ram {
    entries: RwLock<ByKey<Piece>>,
    shelf: Shelf,
    most_bytes: AtomicU64,
    bytes: AtomicU64,
    asked: AtomicU64,
}

impl Ram {
    pub(super) fn new(most_bytes: u64) -> Self {
        Self {
            entries: RwLock::default(),
            shelf: Shelf::default(),
            most_bytes: AtomicU64::new(most_bytes),
            bytes: AtomicU64::new(0),
            asked: AtomicU64::new(0),
        }
    }

    pub(super) fn find(&self, key: Key) -> Option<Piece> {
        if self.asked.fetch_add(1, Relaxed) % LOOK_EVERY == LOOK_EVERY - 1 {
            self.look(&machine::memory());
        }
        self.entries.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    /// Adds an entry. Whether there was room for it.
    pub(super) fn append(&self, key: Key, entry: &[u8]) -> bool {
        let bytes = taken(entry.len());
        if self.bytes.fetch_add(bytes, Relaxed) + bytes > self.most_bytes.load(Relaxed) {
            self.bytes.fetch_sub(bytes, Relaxed);
            return false;
        }
        let mut space = self.shelf.take(entry.len());
        space.as_mut_slice().copy_from_slice(entry);
        let before = self.entries.write().unwrap_or_else(PoisonError::into_inner).insert(key, space.done());
        if let Some(before) = before {
            self.bytes.fetch_sub(taken(before.as_slice().len()), Relaxed);
        }
        true
    }

    /// Makes room where the machine has none left: others would be stopped for what can be made again.
    fn look(&self, memory: &Memory) {
        let all = memory.limit_bytes.into_iter().chain(memory.total_bytes).min();
        let tight =
            all.zip(memory.available_bytes).is_some_and(|(all, free)| (free as f64) < TIGHT * all as f64);
        if !tight {
            return;
        }
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        // Whole boards: memory that is shared with what stays does not become free.
        let boards: BTreeSet<*const u8> = entries.values().map(Piece::board).collect();
        let going: BTreeSet<*const u8> = boards.into_iter().step_by(2).collect();
        let mut gone = 0;
        entries.retain(|_, piece| {
            let stays = !going.contains(&piece.board());
            gone += if stays { 0 } else { taken(piece.as_slice().len()) };
            stays
        });
        entries.shrink_to_fit();
        let before = self.bytes.fetch_sub(gone, Relaxed);
        self.most_bytes.fetch_min(before - gone, Relaxed);
    }

    pub(super) fn len(&self) -> usize {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

/// The bytes of an entry, with what a table takes beside them.
fn taken(bytes: usize) -> u64 {
    bytes as u64 + 64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(entries: u64, bytes: usize) -> Ram {
        let ram = Ram::new(1 << 30);
        let entry = vec![7; bytes];
        (0..entries).for_each(|key| assert!(ram.append(Key::from(key), &entry)));
        ram
    }

    fn memory(free: u64) -> Memory {
        Memory { total_bytes: Some(64 << 30), limit_bytes: Some(16 << 30), available_bytes: Some(free) }
    }

    #[test]
    fn half_of_it_goes_when_memory_is_short_and_does_not_come_back() {
        // Four to a board.
        let ram = filled(10, 8 << 20);
        ram.look(&memory(2 << 30));
        assert_eq!(ram.len(), 10, "an eighth is free");
        ram.look(&memory(500 << 20));
        assert!((2..=6).contains(&ram.len()), "one or two boards of three stay: {}", ram.len());
        assert_eq!(ram.bytes(), ram.len() as u64 * taken(8 << 20));
        assert!(!ram.append(100, &[7; 100]), "there is no room for more");
        ram.look(&memory(500 << 20));
        ram.look(&memory(500 << 20));
        assert_eq!((ram.len(), ram.bytes()), (0, 0));
    }

    #[test]
    fn an_entry_that_is_added_again_is_counted_once() {
        let ram = filled(1, 100);
        assert!(ram.append(0, &[1; 50]));
        assert_eq!((ram.len(), ram.bytes()), (1, 114));
        assert_eq!(ram.find(0).expect("it is there").as_slice(), [1; 50]);
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let ram = Ram::new(300);
        assert!(ram.append(1, &[0; 200]));
        assert!(!ram.append(2, &[0; 200]));
        assert!(ram.find(2).is_none());
    }
}
