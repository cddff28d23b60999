//! How are bytes written that nobody here reads again? Past the caches, a line at a time.
//!
//! An ordinary store first fetches the line that it writes to. Of a batch that is larger than the caches every line would be
//! fetched for nothing, and would push out what is still needed. A store past the caches fetches nothing, provided that a
//! line is written whole: half a line costs more than an ordinary store. So what ends in the midst of a line waits here
//! for what comes behind it. Where the processor has no such stores, these are ordinary ones.

/// A batch of this many bytes has left the caches before anybody reads it.
pub(crate) const WORTH_BYTES: usize = 4 << 20;

/// The bytes of a line.
const LINE: usize = 64;

/// A line.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line([u8; LINE]);

/// Memory that is written from its beginning to its end: numbers, and padding between them.
pub(crate) struct Lines<'a> {
    /// What comes before the first whole line.
    head: &'a mut [u8],
    /// What is left, from the beginning of a line on.
    out: &'a mut [u8],
    /// The beginning of the next line.
    line: Line,
    held: usize,
    /// A line of padding.
    padding: Line,
}

impl<'a> Lines<'a> {
    /// Padding is one number again and again, of 1, 2, 4 or 8 bytes. Only whole numbers of that size are written, to an
    /// address that it divides.
    pub(crate) fn new(out: &'a mut [u8], padding: &[u8]) -> Self {
        let before = out.as_ptr().align_offset(LINE);
        debug_assert!(before.is_multiple_of(padding.len()), "memory that begins in the midst of a number");
        let (head, out) = out.split_at_mut(before.min(out.len()));
        let mut line = Line([0; LINE]);
        line.0.chunks_exact_mut(padding.len()).for_each(|place| place.copy_from_slice(padding));
        Self { head, out, line, held: 0, padding: line }
    }

    /// Copies bytes.
    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        let (first, bytes) = bytes.split_at(self.until_line().min(bytes.len()));
        self.put(first);
        let (whole, last) = bytes.split_at(bytes.len() / LINE * LINE);
        wide::copy(whole, self.advance(whole.len()));
        self.put(last);
    }

    /// Writes so many bytes of padding.
    pub(crate) fn pad(&mut self, bytes: usize) {
        let padding = self.padding;
        let first = self.until_line().min(bytes);
        // Any whole number of it is like any other.
        self.put(&padding.0[..first]);
        let whole = (bytes - first) / LINE * LINE;
        wide::fill(self.advance(whole), &padding);
        self.put(&padding.0[..bytes - first - whole]);
    }

    /// What is held back of the last line is written, and all of it is seen by whoever is told of it from here on.
    pub(crate) fn done(self) {
        self.out[..self.held].copy_from_slice(&self.line.0[..self.held]);
        wide::done();
    }

    /// How many bytes there are until a line begins.
    fn until_line(&self) -> usize {
        if self.head.is_empty() { (LINE - self.held) % LINE } else { self.head.len() }
    }

    /// Writes a few bytes, that do not go beyond the line.
    fn put(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if !self.head.is_empty() {
            let (now, later) = std::mem::take(&mut self.head).split_at_mut(bytes.len());
            self.head = later;
            return now.copy_from_slice(bytes);
        }
        self.line.0[self.held..self.held + bytes.len()].copy_from_slice(bytes);
        self.held += bytes.len();
        if self.held == LINE {
            self.held = 0;
            let line = self.line;
            wide::fill(self.advance(LINE), &line);
        }
    }

    /// The next bytes, which are whole lines.
    fn advance(&mut self, bytes: usize) -> &'a mut [u8] {
        let (now, later) = std::mem::take(&mut self.out).split_at_mut(bytes);
        self.out = later;
        now
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    use super::{LINE, Line};

    /// The bytes of one store.
    const WIDE: usize = 16;

    /// `out` begins where a line does and has whole ones; `from` is as long.
    pub(super) fn copy(from: &[u8], out: &mut [u8]) {
        debug_assert!(out.as_ptr().align_offset(LINE) == 0 && out.len().is_multiple_of(LINE), "whole lines");
        for (from, out) in from.chunks_exact(WIDE).zip(out.chunks_exact_mut(WIDE)) {
            // SAFETY: both have 16 bytes, `out` at an address that 16 divides; every x86-64 has SSE2.
            unsafe { _mm_stream_si128(out.as_mut_ptr().cast(), _mm_loadu_si128(from.as_ptr().cast())) }
        }
    }

    pub(super) fn fill(out: &mut [u8], line: &Line) {
        for out in out.chunks_exact_mut(LINE) {
            copy(&line.0, out);
        }
    }

    pub(super) fn done() {
        // Such stores keep no order with those by which another thread is told.
        // SAFETY: every x86-64 has SSE.
        unsafe { _mm_sfence() };
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod wide {
    use super::{LINE, Line};

    pub(super) fn copy(from: &[u8], out: &mut [u8]) {
        out.copy_from_slice(from);
    }

    pub(super) fn fill(out: &mut [u8], line: &Line) {
        out.chunks_exact_mut(LINE).for_each(|place| place.copy_from_slice(&line.0));
    }

    pub(super) fn done() {}
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_writes_what_ordinary_stores_write(
            from in 0_usize..80,
            width in 0_u32..4,
            pieces in prop::collection::vec((0_usize..300, any::<bool>()), 0..12),
            byte: u8,
        ) {
            let width = 1 << width;
            let whole = |bytes: usize| bytes / width * width;
            let number: Vec<u8> = (0..width as u8).map(|at| byte.wrapping_add(at)).collect();
            let from = whole(from);
            let to = from + pieces.iter().map(|(bytes, _)| whole(*bytes)).sum::<usize>();
            // Of numbers, so that it begins where one may.
            let mut memory = vec![0x0707_0707_0707_0707_u64; 600];
            let out: &mut [u8] = bytemuck::cast_slice_mut(&mut memory);
            let mut expected = out.to_vec();
            let (mut lines, mut at) = (Lines::new(&mut out[from..to], &number), from);
            for (bytes, copies) in &pieces {
                let place = &mut expected[at..at + whole(*bytes)];
                if *copies {
                    place.iter_mut().enumerate().for_each(|(at, out)| *out = at as u8 ^ byte);
                    lines.copy(place);
                } else {
                    place.chunks_exact_mut(width).for_each(|place| place.copy_from_slice(&number));
                    lines.pad(place.len());
                }
                at += place.len();
            }
            lines.done();
            prop_assert_eq!(&*out, expected.as_slice());
        }
    }
}
