//! How long did reading take, and should it go on?

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Instant,
};

use crate::read::ReadAt;

/// An input that counts what is read from it, and stops giving when the work is cancelled: codecs that search through
/// a file on their own can be stopped no other way.
pub(super) struct Metered<'a> {
    input: &'a dyn ReadAt,
    cancel: &'a AtomicBool,
    read_nanos: AtomicU64,
    bytes_read: AtomicU64,
}

impl<'a> Metered<'a> {
    pub(super) fn new(input: &'a dyn ReadAt, cancel: &'a AtomicBool) -> Self {
        Self { input, cancel, read_nanos: AtomicU64::new(0), bytes_read: AtomicU64::new(0) }
    }

    pub(super) fn read_nanos(&self) -> u64 {
        self.read_nanos.load(Ordering::Relaxed)
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }
}

impl ReadAt for Metered<'_> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        /// A read of many megabytes from slow storage must still notice that nobody waits for it.
        const MOST_AT_ONCE: usize = 4 << 20;

        if self.cancel.load(Ordering::Relaxed) {
            return Err(io::Error::other("cancelled"));
        }
        let most = buf.len().min(MOST_AT_ONCE);
        let started = Instant::now();
        let result = self.input.read_at(&mut buf[..most], offset);
        self.read_nanos.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        if let Ok(count) = result {
            self.bytes_read.fetch_add(count as u64, Ordering::Relaxed);
        }
        result
    }

    fn size(&self) -> io::Result<u64> {
        self.input.size()
    }
}
