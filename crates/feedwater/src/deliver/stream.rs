//! How are bytes written that nobody here reads again? Past the caches, a line at a time.
//!
//! An ordinary store first fetches the line that it writes to. Of a batch that is larger than the caches every line would be
//! fetched for nothing, and would push out what is still needed. A store past the caches fetches nothing, provided that a
//! line is written whole: half a line costs more than an ordinary store. So what ends in the midst of a line waits here
//! for what comes behind it. Where the processor has no such stores, these are ordinary ones.

use crate::transform::simd;

/// A batch of this many bytes has left the caches before anybody reads it.
pub(crate) const WORTH_BYTES: usize = 4 << 20;

/// The bytes of a line.
const LINE: usize = 64;

/// So many are written at a time: few enough for a processor to do something else while they leave it.
const SOME_BYTES: usize = 1024;

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

    /// Writes numbers, each of which becomes `each` bytes. `past` writes whole lines past the caches, `plainly` what is less than
    /// a line. Before some are read, `reads` is told how many bytes: what it does with them meanwhile, the stores hide.
    pub(crate) fn write<S>(
        &mut self,
        numbers: &[S],
        each: usize,
        past: impl Fn(&[S], &mut [u8]),
        plainly: impl Fn(&[S], &mut [u8]),
        reads: &mut dyn FnMut(usize),
    ) {
        let (first, rest) = numbers.split_at((self.until_line() / each).min(numbers.len()));
        let (whole, last) = rest.split_at(rest.len() * each / LINE * LINE / each);
        reads(size_of_val(first));
        self.part_of_line(first.len() * each, |out| plainly(first, out));
        for some in whole.chunks(SOME_BYTES / each) {
            reads(size_of_val(some));
            past(some, self.advance(some.len() * each));
        }
        reads(size_of_val(last));
        self.part_of_line(last.len() * each, |out| plainly(last, out));
    }

    /// Writes so many bytes of padding.
    pub(crate) fn pad(&mut self, bytes: usize) {
        let padding = self.padding;
        let first = self.until_line().min(bytes);
        // Any whole number of it is like any other.
        self.part_of_line(first, |out| out.copy_from_slice(&padding.0[..first]));
        let whole = (bytes - first) / LINE * LINE;
        wide::write(std::iter::repeat(&padding.0), self.advance(whole));
        let last = bytes - first - whole;
        self.part_of_line(last, |out| out.copy_from_slice(&padding.0[..last]));
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

    /// A few bytes, that do not go beyond the line.
    fn part_of_line(&mut self, bytes: usize, write: impl FnOnce(&mut [u8])) {
        if bytes == 0 {
            return;
        }
        if !self.head.is_empty() {
            let (now, later) = std::mem::take(&mut self.head).split_at_mut(bytes);
            self.head = later;
            return write(now);
        }
        write(&mut self.line.0[self.held..self.held + bytes]);
        self.held += bytes;
        if self.held == LINE {
            self.held = 0;
            let line = self.line;
            wide::write(std::iter::once(&line.0), self.advance(LINE));
        }
    }

    /// The next bytes, which are whole lines.
    fn advance(&mut self, bytes: usize) -> &'a mut [u8] {
        let (now, later) = std::mem::take(&mut self.out).split_at_mut(bytes);
        self.out = later;
        now
    }
}

/// Copies whole lines, to where a line begins. Both have the same length.
pub(crate) fn copy(from: &[u8], out: &mut [u8]) {
    wide::write(from.as_chunks().0.iter(), out);
}

/// Half precision to single, in whole lines, to where a line begins.
pub(crate) fn from_f16(numbers: &[half::f16], out: &mut [u8]) {
    if !wide::from_f16(numbers, out) {
        converted(numbers, out, 0.0, simd::from_f16);
    }
}

/// Numbers that are converted before they are copied, in whole lines, to where a line begins.
pub(crate) fn converted<S, T: bytemuck::Pod>(
    numbers: &[S],
    out: &mut [u8],
    any: T,
    convert: impl Fn(&[S], &mut [T]),
) {
    const COUNT: usize = SOME_BYTES / 2;
    let mut some = [any; COUNT];
    let each = size_of::<T>();
    for (numbers, out) in numbers.chunks(COUNT).zip(out.chunks_mut(COUNT * each)) {
        let some = &mut some[..numbers.len()];
        convert(numbers, some);
        copy(bytemuck::cast_slice(some), out);
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m256i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128, _mm256_cvtph_ps, _mm256_loadu_si256,
        _mm256_stream_ps, _mm256_stream_si256,
    };

    use super::LINE;

    /// Numbers of one line after the other, or of one again and again.
    pub(super) fn write<'a>(from: impl Iterator<Item = &'a [u8; LINE]>, out: &mut [u8]) {
        debug_assert!(out.as_ptr().align_offset(LINE) == 0 && out.len().is_multiple_of(LINE), "whole lines");
        let out = out.as_chunks_mut::<LINE>().0;
        if is_x86_feature_detected!("avx") {
            // SAFETY: this processor has the instructions; lines begin where lines do.
            return unsafe { write_halves(from, out) };
        }
        for (from, out) in from.zip(out) {
            for (from, out) in from.as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<16>().0) {
                // SAFETY: both have 16 bytes, `out` at an address that 16 divides; every x86-64 has SSE2.
                unsafe { _mm_stream_si128(out.as_mut_ptr().cast(), _mm_loadu_si128(from.as_ptr().cast())) }
            }
        }
    }

    /// Half a line at a time.
    ///
    /// # Safety
    /// `out` begins where a line does.
    #[target_feature(enable = "avx")]
    unsafe fn write_halves<'a>(from: impl Iterator<Item = &'a [u8; LINE]>, out: &mut [[u8; LINE]]) {
        for (from, out) in from.zip(out) {
            let (from, out) = (from.as_ptr().cast::<__m256i>(), out.as_mut_ptr().cast::<__m256i>());
            // SAFETY: both have two halves, and the caller answers for where those of `out` begin.
            unsafe {
                let halves = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
                _mm256_stream_si256(out, halves.0);
                _mm256_stream_si256(out.add(1), halves.1);
            }
        }
    }

    /// Whether it was done: with an instruction that most processors have.
    pub(super) fn from_f16(numbers: &[half::f16], out: &mut [u8]) -> bool {
        debug_assert!(out.as_ptr().align_offset(LINE) == 0 && out.len().is_multiple_of(LINE), "whole lines");
        let has = is_x86_feature_detected!("f16c") && is_x86_feature_detected!("avx");
        if has {
            // SAFETY: this processor has the instructions; lines begin where lines do.
            unsafe { from_f16_by_instruction(numbers.as_chunks().0, out.as_chunks_mut().0) };
        }
        has
    }

    /// # Safety
    /// `out` begins where a line does.
    #[target_feature(enable = "avx,f16c")]
    unsafe fn from_f16_by_instruction(numbers: &[[half::f16; LINE / 4]], out: &mut [[u8; LINE]]) {
        for (numbers, out) in numbers.iter().zip(out) {
            let (numbers, out) = (numbers.as_ptr(), out.as_mut_ptr().cast::<f32>());
            // SAFETY: both have twice eight numbers, and the caller answers for where those of `out` begin.
            unsafe {
                let first = _mm256_cvtph_ps(_mm_loadu_si128(numbers.cast()));
                let last = _mm256_cvtph_ps(_mm_loadu_si128(numbers.add(8).cast()));
                _mm256_stream_ps(out, first);
                _mm256_stream_ps(out.add(8), last);
            }
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
    use super::LINE;

    pub(super) fn write<'a>(from: impl Iterator<Item = &'a [u8; LINE]>, out: &mut [u8]) {
        out.as_chunks_mut::<LINE>().0.iter_mut().zip(from).for_each(|(out, from)| *out = *from);
    }

    pub(super) fn from_f16(_numbers: &[half::f16], _out: &mut [u8]) -> bool {
        false
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
            let (mut lines, mut at, mut read, mut copied) = (Lines::new(&mut out[from..to], &number), from, 0, 0);
            for (bytes, copies) in &pieces {
                let place = &mut expected[at..at + whole(*bytes)];
                if *copies {
                    place.iter_mut().enumerate().for_each(|(at, out)| *out = at as u8 ^ byte);
                    let plainly = |from: &[u8], out: &mut [u8]| out.copy_from_slice(from);
                    lines.write(place, 1, copy, plainly, &mut |bytes| read += bytes);
                    copied += place.len();
                } else {
                    place.chunks_exact_mut(width).for_each(|place| place.copy_from_slice(&number));
                    lines.pad(place.len());
                }
                at += place.len();
            }
            lines.done();
            prop_assert_eq!(&*out, expected.as_slice());
            prop_assert_eq!(read, copied);
        }

        #[test]
        fn numbers_that_are_converted_are_what_they_are_one_by_one(
            from in 0_usize..20,
            numbers in prop::collection::vec(any::<u16>().prop_map(half::f16::from_bits), 0..2000),
            by_instruction: bool,
        ) {
            let mut memory = vec![0.0_f32; 2100];
            let out = &mut memory[from..from + numbers.len()];
            let mut lines = Lines::new(bytemuck::cast_slice_mut(out), &[0; 4]);
            let plainly = |numbers: &[half::f16], out: &mut [u8]| simd::from_f16(numbers, bytemuck::cast_slice_mut(out));
            if by_instruction {
                lines.write(&numbers, 4, from_f16, plainly, &mut |_| {});
            } else {
                let past = |numbers: &[half::f16], out: &mut [u8]| converted(numbers, out, 0.0, simd::from_f16);
                lines.write(&numbers, 4, past, plainly, &mut |_| {});
            }
            lines.done();
            for (out, number) in out.iter().zip(&numbers) {
                prop_assert!(*out == number.to_f32() || (out.is_nan() && number.is_nan()));
            }
        }
    }
}
