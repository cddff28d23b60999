//! What is kept in memory? The same entries, as far as there is room.

use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::key::Key;

/// Entries in memory.
pub(super) struct Ram {
    entries: RwLock<HashMap<Key, Arc<[u8]>>>,
    most_bytes: u64,
    bytes: AtomicU64,
}

impl Ram {
    pub(super) fn new(most_bytes: u64) -> Self {
        Self { entries: RwLock::default(), most_bytes, bytes: AtomicU64::new(0) }
    }

    pub(super) fn find(&self, key: Key) -> Option<Arc<[u8]>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    /// Adds an entry. Whether there was room for it.
    pub(super) fn append(&self, key: Key, entry: &[u8]) -> bool {
        // What a table and an allocation take beside the bytes.
        let bytes = entry.len() as u64 + 64;
        if self.bytes.fetch_add(bytes, Relaxed) + bytes > self.most_bytes {
            self.bytes.fetch_sub(bytes, Relaxed);
            return false;
        }
        self.entries.write().unwrap_or_else(PoisonError::into_inner).insert(key, entry.into());
        true
    }

    pub(super) fn len(&self) -> usize {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}
