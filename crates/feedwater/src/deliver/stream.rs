//! How are bytes written that nobody here reads again? Past the caches.
//!
//! An ordinary store first fetches the line that it writes to. Of a batch that is larger than the caches every line would be
//! fetched for nothing, and would push out what is still needed. Where the processor has no such stores, these are ordinary
//! ones.

/// A batch of this many bytes has left the caches before anybody reads it.
pub(crate) const WORTH_BYTES: usize = 4 << 20;

/// The bytes of one store.
const WIDE: usize = 16;

/// Copies bytes.
pub(crate) fn copy(from: &[u8], out: &mut [u8]) {
    assert_eq!(from.len(), out.len(), "as many bytes as there is room for");
    let (head, middle, tail) = parts(out);
    let (from_head, rest) = from.split_at(head.len());
    let (from_middle, from_tail) = rest.split_at(middle.len());
    head.copy_from_slice(from_head);
    wide::copy(from_middle, middle);
    tail.copy_from_slice(from_tail);
}

/// Writes the same few bytes again and again: a number of 1, 2, 4 or 8 bytes. `out` begins at an address that they divide.
pub(crate) fn fill(out: &mut [u8], number: &[u8]) {
    let mut pattern = [0; WIDE];
    pattern.chunks_exact_mut(number.len()).for_each(|place| place.copy_from_slice(number));
    let (head, middle, tail) = parts(out);
    // The ends are whole numbers too: a store's bytes are.
    debug_assert!(head.len().is_multiple_of(number.len()), "memory that begins in the midst of a number");
    head.chunks_exact_mut(number.len()).for_each(|place| place.copy_from_slice(number));
    wide::fill(middle, pattern);
    tail.chunks_exact_mut(number.len()).for_each(|place| place.copy_from_slice(number));
}

/// All that was written is seen by whoever is told of it from here on.
pub(crate) fn done() {
    wide::done();
}

/// What lies in front of the first whole store, whole stores, and the rest.
fn parts(out: &mut [u8]) -> (&mut [u8], &mut [u8], &mut [u8]) {
    let before = out.as_ptr().align_offset(WIDE).min(out.len());
    let (head, rest) = out.split_at_mut(before);
    let whole = rest.len() / WIDE * WIDE;
    let (middle, tail) = rest.split_at_mut(whole);
    (head, middle, tail)
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    use super::WIDE;

    /// `out` begins at a whole store and has whole ones; `from` is as long.
    pub(super) fn copy(from: &[u8], out: &mut [u8]) {
        for (from, out) in from.chunks_exact(WIDE).zip(out.chunks_exact_mut(WIDE)) {
            // SAFETY: both have 16 bytes, `out` at an address that 16 divides (`parts`); every x86-64 has SSE2.
            unsafe { _mm_stream_si128(out.as_mut_ptr().cast(), _mm_loadu_si128(from.as_ptr().cast())) }
        }
    }

    pub(super) fn fill(out: &mut [u8], pattern: [u8; WIDE]) {
        // SAFETY: it has 16 bytes; no alignment is asked for.
        let pattern = unsafe { _mm_loadu_si128(pattern.as_ptr().cast()) };
        for out in out.chunks_exact_mut(WIDE) {
            // SAFETY: as in `copy`.
            unsafe { _mm_stream_si128(out.as_mut_ptr().cast(), pattern) };
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
    use super::WIDE;

    pub(super) fn copy(from: &[u8], out: &mut [u8]) {
        out.copy_from_slice(from);
    }

    pub(super) fn fill(out: &mut [u8], pattern: [u8; WIDE]) {
        out.chunks_exact_mut(WIDE).for_each(|place| place.copy_from_slice(&pattern));
    }

    pub(super) fn done() {}
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_writes_what_an_ordinary_store_writes(from in 0_usize..40, length in 0_usize..300, width in 0_u32..4, byte: u8) {
            let width = 1 << width;
            let (from, length) = (from / width * width, length / width * width);
            let number: Vec<u8> = (0..width as u8).map(|at| byte.wrapping_add(at)).collect();
            let source: Vec<u8> = (0..length).map(|at| at as u8 ^ byte).collect();
            let (mut copied, mut filled) = (vec![7_u8; 400], vec![7_u8; 400]);
            let mut expected = (copied.clone(), filled.clone());
            copy(&source, &mut copied[from..from + length]);
            fill(&mut filled[from..from + length], &number);
            done();
            expected.0[from..from + length].copy_from_slice(&source);
            expected.1[from..from + length].chunks_exact_mut(width).for_each(|place| place.copy_from_slice(&number));
            prop_assert_eq!((copied, filled), expected);
        }
    }
}
