//! How are bytes written that nobody here reads again? Past the caches, a line at a time.
//!
//! An ordinary store first fetches the line that it writes to. Of a batch that is larger than the caches every line would be
//! fetched for nothing, and would push out what is still needed. A store past the caches fetches nothing, provided that a
//! line is written whole: half a line costs more than an ordinary store. So a line that has the end of some numbers and the beginning of
//! padding is put together in registers. (Not in memory: to read what was written a moment ago in smaller pieces, a processor waits
//! for all stores before it, and these take long.) Where the processor has no such stores, these are ordinary ones.

use std::ops::Range;

use bytemuck::Pod;
use half::f16;

use crate::transform::simd;

/// A batch of this many bytes has left the caches before anybody reads it.
pub(crate) const WORTH_BYTES: usize = 4 << 20;

/// The bytes of a line.
const LINE: usize = 64;

/// So many are written at a time: few enough for a processor to do something else while they leave it.
const SOME_BYTES: usize = 1024;

/// What will be read so many bytes later is asked for: a page, at whose end a processor stops guessing.
const AHEAD_BYTES: usize = 4096;

/// A line.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line([u8; LINE]);

/// How numbers become those of a batch.
pub(crate) trait Convert<S, T: Pod> {
    /// As many as there are.
    fn plainly(&self, from: &[S], out: &mut [T]);

    /// Whole lines of them, past the caches, to where a line begins.
    fn past_cache(&self, from: &[S], out: &mut [u8]);

    /// One line of them, which may have to be made.
    fn line<'a>(&self, from: &'a [S], room: &'a mut [u8; LINE]) -> &'a [u8; LINE] {
        self.plainly(from, bytemuck::cast_slice_mut(room));
        room
    }
}

/// They are as they shall be.
pub(crate) struct Same;

impl<T: Pod> Convert<T, T> for Same {
    fn plainly(&self, from: &[T], out: &mut [T]) {
        out.copy_from_slice(from);
    }

    fn past_cache(&self, from: &[T], out: &mut [u8]) {
        wide::write(bytemuck::cast_slice(from).as_chunks().0.iter(), out);
    }

    fn line<'a>(&self, from: &'a [T], room: &'a mut [u8; LINE]) -> &'a [u8; LINE] {
        bytemuck::cast_slice(from).first_chunk().unwrap_or(room)
    }
}

/// Half precision to single.
pub(crate) struct Widened;

impl Convert<f16, f32> for Widened {
    fn plainly(&self, from: &[f16], out: &mut [f32]) {
        simd::from_f16(from, out);
    }

    fn past_cache(&self, from: &[f16], out: &mut [u8]) {
        if !wide::from_f16(from, out) {
            By(simd::from_f16).past_cache(from, out);
        }
    }
}

/// By a function.
pub(crate) struct By<F>(pub(crate) F);

impl<S, T: Pod, F: Fn(&[S], &mut [T])> Convert<S, T> for By<F> {
    fn plainly(&self, from: &[S], out: &mut [T]) {
        self.0(from, out);
    }

    fn past_cache(&self, from: &[S], out: &mut [u8]) {
        const COUNT: usize = SOME_BYTES / 2;
        let mut room = [T::zeroed(); COUNT];
        for (from, out) in from.chunks(COUNT).zip(out.chunks_mut(COUNT * size_of::<T>())) {
            let room = &mut room[..from.len()];
            self.0(from, room);
            Same.past_cache(room, out);
        }
    }
}

/// A row: stretches of numbers, each with padding behind it.
#[derive(Clone, Copy)]
pub(crate) struct Row<T> {
    /// The numbers of a stretch.
    pub(crate) stretch: usize,
    /// The same with its padding; one at least.
    pub(crate) whole: usize,
    /// What padding is.
    pub(crate) fill: T,
}

impl<T: Pod> Row<T> {
    /// Writes the row past the caches, to an address that a number may have. When some numbers have been read, `read` is told of how
    /// many bytes: they are in the nearest cache, and what it does with them, the stores hide.
    pub(crate) fn write<S>(
        self,
        data: &[S],
        out: &mut [u8],
        convert: &impl Convert<S, T>,
        read: &mut dyn FnMut(usize),
    ) {
        let each = size_of::<T>();
        let all = out.len() / each / self.whole * self.whole;
        // Without padding, it is one stretch.
        let row = if self.stretch == self.whole { Self { stretch: all, whole: all, ..self } } else { self };
        let out = &mut out[..all * each];
        // What comes before the first whole line, and behind the last.
        let head = (out.as_ptr().align_offset(LINE) / each).min(all);
        let lines = (all - head) * each / LINE;
        let tail = head + lines * LINE / each;
        row.ordinary(0..head, data, &mut out[..head * each], convert, read);
        row.lines(head, data, &mut out[head * each..tail * each], convert, read);
        row.ordinary(tail..all, data, &mut out[tail * each..], convert, read);
        wide::done();
    }

    /// Whole lines, from a place in the row on.
    fn lines<S>(
        self,
        from: usize,
        data: &[S],
        out: &mut [u8],
        convert: &impl Convert<S, T>,
        read: &mut dyn FnMut(usize),
    ) {
        let Self { stretch, whole, fill } = self;
        let each = size_of::<T>();
        let of_line = LINE / each;
        let mut padding = Line([0; LINE]);
        bytemuck::cast_slice_mut(&mut padding.0).fill(fill);
        let mut room = Line([0; LINE]);
        let (end, mut at) = (from + out.len() / each, from);
        let place = |at: usize, lines: usize| (at - from) * each..(at - from) * each + lines * LINE;
        for number in from / whole.max(1).. {
            if at >= end {
                break;
            }
            // Where its numbers begin, where they end, and where its padding does.
            let begin = number * whole;
            let (data_end, next) = (begin + stretch, begin + whole);
            let source = |at: usize| number * stretch + (at - begin);
            let mut left = (data_end.min(end).saturating_sub(at)) / of_line;
            while left > 0 {
                let lines = left.min(SOME_BYTES / LINE);
                let some = &data[source(at)..][..lines * of_line];
                let later = data.get(source(at) + AHEAD_BYTES / size_of::<S>()..).unwrap_or_default();
                wide::fetch(&later[..some.len().min(later.len())]);
                convert.past_cache(some, &mut out[place(at, lines)]);
                read(size_of_val(some));
                (at, left) = (at + lines * of_line, left - lines);
            }
            if at < data_end && at < end {
                // Numbers, and then padding. The numbers behind these are the next stretch's, and are covered.
                let some = data.get(source(at)..source(at) + of_line).filter(|_| at + of_line <= next);
                let out = &mut out[place(at, 1)];
                if let Some(some) = some {
                    wide::join(convert.line(some, &mut room.0), &padding.0, (data_end - at) * each, out);
                    read((data_end - at) * size_of::<S>());
                } else {
                    self.ordinary(at..at + of_line, data, &mut room.0, convert, read);
                    wide::write(std::iter::once(&room.0), out);
                }
                at += of_line;
            }
            let lines = (next.min(end).saturating_sub(at)) / of_line;
            wide::write(std::iter::repeat(&padding.0), &mut out[place(at, lines)]);
            at += lines * of_line;
            if at < next && at < end {
                // Padding, and then numbers. Those before these are the last stretch's.
                let first = (number + 1) * stretch;
                let some = first.checked_sub(next - at).and_then(|first| data.get(first..first + of_line));
                let out = &mut out[place(at, 1)];
                if let Some(some) = some.filter(|_| at + of_line <= next + stretch) {
                    wide::join(&padding.0, convert.line(some, &mut room.0), (next - at) * each, out);
                    read((at + of_line - next) * size_of::<S>());
                } else {
                    self.ordinary(at..at + of_line, data, &mut room.0, convert, read);
                    wide::write(std::iter::once(&room.0), out);
                }
                at += of_line;
            }
        }
    }

    /// A part of the row, by ordinary stores.
    fn ordinary<S>(
        self,
        part: Range<usize>,
        data: &[S],
        out: &mut [u8],
        convert: &impl Convert<S, T>,
        read: &mut dyn FnMut(usize),
    ) {
        let mut out: &mut [T] = bytemuck::cast_slice_mut(out);
        let mut at = part.start;
        while at < part.end {
            let (number, within) = (at / self.whole, at % self.whole);
            let numbers = self.stretch.saturating_sub(within);
            let count = (part.end - at).min(if numbers > 0 { numbers } else { self.whole - within });
            let (now, later) = out.split_at_mut(count);
            if numbers > 0 {
                let some = &data[number * self.stretch + within..][..count];
                convert.plainly(some, now);
                read(size_of_val(some));
            } else {
                now.fill(self.fill);
            }
            (out, at) = (later, at + count);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128, _mm256_blendv_epi8,
        _mm256_cvtph_ps, _mm256_loadu_si256, _mm256_stream_ps, _mm256_stream_si256,
    };

    use super::LINE;

    /// The bytes of half a line, which a register has.
    const HALF: usize = LINE / 2;

    /// Numbers of one line after the other, or of one again and again.
    pub(super) fn write<'a>(from: impl Iterator<Item = &'a [u8; LINE]>, out: &mut [u8]) {
        assert!(out.as_ptr().align_offset(LINE) == 0 && out.len().is_multiple_of(LINE), "whole lines");
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
            let (from, out) = (from.as_ptr(), out.as_mut_ptr());
            // SAFETY: both have two halves, and the caller answers for where those of `out` begin.
            unsafe {
                let halves = (_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(HALF).cast()));
                _mm256_stream_si256(out.cast(), halves.0);
                _mm256_stream_si256(out.add(HALF).cast(), halves.1);
            }
        }
    }

    /// A line that has so many bytes of one and the rest of another, each at its place.
    pub(super) fn join(first: &[u8; LINE], second: &[u8; LINE], split: usize, out: &mut [u8]) {
        assert!(out.as_ptr().align_offset(LINE) == 0 && out.len() == LINE && split <= LINE, "one line");
        if is_x86_feature_detected!("avx2")
            && let Some(out) = out.first_chunk_mut()
            && let Some(mask) = MASK.get(LINE - split..).and_then(|mask| mask.first_chunk())
        {
            // SAFETY: this processor has the instructions; the line begins where lines do.
            return unsafe { join_halves([first, second, mask], out) };
        }
        let mut line = *second;
        line[..split].copy_from_slice(&first[..split]);
        write(std::iter::once(&line), out);
    }

    /// Where it is 255, a byte is the first's.
    static MASK: [u8; 2 * LINE] = {
        let mut mask = [0; 2 * LINE];
        let mut at = 0;
        while at < LINE {
            mask[at] = 255;
            at += 1;
        }
        mask
    };

    /// # Safety
    /// `out` begins where a line does.
    #[target_feature(enable = "avx2")]
    unsafe fn join_halves([first, second, mask]: [&[u8; LINE]; 3], out: &mut [u8; LINE]) {
        let half = |line: &[u8; LINE], at: usize| {
            // SAFETY: a line has two halves.
            unsafe { _mm256_loadu_si256(line.as_ptr().add(at).cast()) }
        };
        for at in [0, HALF] {
            let joined = _mm256_blendv_epi8(half(second, at), half(first, at), half(mask, at));
            // SAFETY: a line has two halves, and the caller answers for where it begins.
            unsafe { _mm256_stream_si256(out.as_mut_ptr().add(at).cast(), joined) };
        }
    }

    /// Whether it was done: with an instruction that most processors have.
    pub(super) fn from_f16(numbers: &[half::f16], out: &mut [u8]) -> bool {
        assert!(out.as_ptr().align_offset(LINE) == 0 && out.len().is_multiple_of(LINE), "whole lines");
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
            let (numbers, out) = (numbers.as_ptr(), out.as_mut_ptr());
            // SAFETY: both have twice eight numbers, and the caller answers for where those of `out` begin.
            unsafe {
                let first = _mm256_cvtph_ps(_mm_loadu_si128(numbers.cast()));
                let last = _mm256_cvtph_ps(_mm_loadu_si128(numbers.add(8).cast()));
                _mm256_stream_ps(out.cast(), first);
                _mm256_stream_ps(out.add(HALF).cast(), last);
            }
        }
    }

    /// Asks for what will be read soon.
    pub(super) fn fetch<T>(numbers: &[T]) {
        let range = numbers.as_ptr_range();
        let mut at = range.start.cast::<i8>();
        while at < range.end.cast() {
            // SAFETY: it reads nothing, whatever the address; every x86-64 has SSE.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at) };
            at = at.wrapping_add(LINE);
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

    pub(super) fn join(first: &[u8; LINE], second: &[u8; LINE], split: usize, out: &mut [u8]) {
        out[..split].copy_from_slice(&first[..split]);
        out[split..].copy_from_slice(&second[split..]);
    }

    pub(super) fn from_f16(_numbers: &[half::f16], _out: &mut [u8]) -> bool {
        false
    }

    pub(super) fn fetch<T>(_numbers: &[T]) {}

    pub(super) fn done() {}
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Writes a row whose first number is so many behind the beginning of a line, and compares it, and what lies around it.
    fn is_written<S: Copy, T: Pod + PartialEq + std::fmt::Debug>(
        (from, count): (usize, usize),
        row: Row<T>,
        data: &[S],
        convert: &impl Convert<S, T>,
        one: impl Fn(S) -> T,
    ) -> Result<(), TestCaseError> {
        let mut lines = vec![Line([7; LINE]); (from + count * row.whole) * size_of::<T>() / LINE + 2];
        let bytes = lines.len() * LINE;
        // SAFETY: lines are bytes, one behind the other.
        let memory = unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<u8>(), bytes) };
        let memory: &mut [T] = bytemuck::cast_slice_mut(memory);
        let mut expected = memory.to_vec();
        for number in 0..count {
            let place = &mut expected[from + number * row.whole..][..row.whole];
            place.fill(row.fill);
            let data = &data[number * row.stretch..][..row.stretch];
            place.iter_mut().zip(data).for_each(|(place, number)| *place = one(*number));
        }
        let mut read = 0;
        let out = bytemuck::cast_slice_mut(&mut memory[from..from + count * row.whole]);
        row.write(data, out, convert, &mut |bytes| read += bytes);
        prop_assert_eq!(&*memory, expected.as_slice());
        prop_assert_eq!(read, count * row.stretch * size_of::<S>());
        Ok(())
    }

    proptest! {
        #[test]
        fn it_writes_what_ordinary_stores_write(
            from in 0_usize..40,
            count in 0_usize..9,
            stretch in prop_oneof![0_usize..40, 0_usize..700],
            padding in prop_oneof![Just(0_usize), 1_usize..40, 1_usize..500],
            seed: u16,
        ) {
            let whole = (stretch + padding).max(1);
            let stretch = stretch.min(whole);
            // Numbers, all of which are what they are in half precision.
            let number = |at: usize| ((at * 37 + usize::from(seed)) % 2048) as f32;
            let single: Vec<f32> = (0..count * stretch).map(number).collect();
            let half: Vec<f16> = single.iter().map(|number| f16::from_f32(*number)).collect();
            let (row, narrow) = (Row { stretch, whole, fill: 0.3_f32 }, Row { stretch, whole, fill: f16::ONE });
            is_written((from, count), row, &single, &Same, |number| number)?;
            is_written((from, count), narrow, &half, &Same, |number| number)?;
            is_written((from, count), row, &half, &Widened, f16::to_f32)?;
            is_written((from, count), row, &half, &By(simd::from_f16), f16::to_f32)?;
            let bytes: Vec<u8> = single.iter().map(|number| *number as u8).collect();
            is_written((from, count), Row { stretch, whole, fill: 9_u8 }, &bytes, &Same, |byte| byte)?;
        }
    }
}
