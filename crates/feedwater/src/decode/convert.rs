//! How does a sample on disk become a number between -1 and 1?
//!
//! Written as plain loops over slices, which the compiler vectorises, and compiled once more for AVX2 where the
//! machine has it. Several channels become one by their mean.

use multiversion::multiversion;

use super::wav::Sample;

/// Converts the frames in `bytes` to one channel in `mono`, which has room for exactly as many.
pub(super) fn to_mono(sample: Sample, channels: usize, bytes: &[u8], mono: &mut [f32]) {
    match (sample, channels) {
        (Sample::I16, 1) => i16_mono(bytes, mono),
        (Sample::I16, 2) => i16_stereo(bytes, mono),
        (Sample::F32, 1) => f32_mono(bytes, mono),
        (Sample::I24, 1) => i24_mono(bytes, mono),
        (Sample::U8, _) => mean::<1>(channels, bytes, mono, |[a]| (f32::from(a) - 128.0) / 128.0),
        (Sample::I16, _) => mean(channels, bytes, mono, |b| f32::from(i16::from_le_bytes(b)) / 32_768.0),
        (Sample::I24, _) => mean(channels, bytes, mono, i24),
        (Sample::I32, _) => mean(channels, bytes, mono, |b| i32::from_le_bytes(b) as f32 / 2_147_483_648.0),
        (Sample::F32, _) => mean(channels, bytes, mono, f32::from_le_bytes),
        (Sample::F64, _) => mean(channels, bytes, mono, |b| f64::from_le_bytes(b) as f32),
    }
}

/// Louder than any sound is, whatever scale it was written in. Beyond it, the sums of a transform overflow: the
/// resampler panics on them, and features are infinite.
const LOUDEST: f32 = 1e10;

/// The first sample that is not a number, or larger than any can be.
pub(super) fn not_possible(samples: &[f32]) -> Option<usize> {
    // Zero times anything finite is zero, so the sum tells without a branch a sample; the search is for the bad case.
    let poison: f32 = zeroed_sum(samples);
    if poison == 0.0 {
        None
    } else {
        samples.iter().position(|sample| sample.is_nan() || sample.abs() > LOUDEST)
    }
}

#[multiversion(targets("x86_64+avx2"))]
fn zeroed_sum(samples: &[f32]) -> f32 {
    /// Makes what is larger than the loudest infinite.
    const SCALE: f32 = f32::MAX / LOUDEST;

    let mut sums = [0.0_f32; 16];
    let (blocks, rest) = samples.as_chunks::<16>();
    for block in blocks {
        for (sum, sample) in sums.iter_mut().zip(block) {
            *sum += sample * SCALE * 0.0;
        }
    }
    sums.iter().sum::<f32>() + rest.iter().map(|sample| sample * SCALE * 0.0).sum::<f32>()
}

#[multiversion(targets("x86_64+avx2"))]
fn i16_mono(bytes: &[u8], mono: &mut [f32]) {
    for (sample, bytes) in mono.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *sample = f32::from(i16::from_le_bytes(*bytes)) * (1.0 / 32_768.0);
    }
}

#[multiversion(targets("x86_64+avx2"))]
fn i16_stereo(bytes: &[u8], mono: &mut [f32]) {
    for (sample, [a, b, c, d]) in mono.iter_mut().zip(bytes.as_chunks::<4>().0) {
        let sum = i32::from(i16::from_le_bytes([*a, *b])) + i32::from(i16::from_le_bytes([*c, *d]));
        *sample = sum as f32 * (1.0 / 65_536.0);
    }
}

#[multiversion(targets("x86_64+avx2"))]
fn i24_mono(bytes: &[u8], mono: &mut [f32]) {
    for (sample, bytes) in mono.iter_mut().zip(bytes.as_chunks::<3>().0) {
        *sample = i24(*bytes);
    }
}

#[multiversion(targets("x86_64+avx2"))]
fn f32_mono(bytes: &[u8], mono: &mut [f32]) {
    for (sample, bytes) in mono.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *sample = f32::from_le_bytes(*bytes);
    }
}

#[inline]
fn i24([a, b, c]: [u8; 3]) -> f32 {
    // In the upper three bytes, so that the sign is where it belongs.
    i32::from_le_bytes([0, a, b, c]) as f32 / 2_147_483_648.0
}

fn mean<const N: usize>(channels: usize, bytes: &[u8], mono: &mut [f32], to_f32: impl Fn([u8; N]) -> f32) {
    let samples = bytes.as_chunks::<N>().0;
    for (sample, frame) in mono.iter_mut().zip(samples.chunks_exact(channels)) {
        *sample = frame.iter().map(|bytes| to_f32(*bytes)).sum::<f32>() / channels as f32;
    }
}
