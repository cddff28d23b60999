//! The arithmetic of the hot loops, compiled once for each instruction set and chosen at run time.
//!
//! A function here is a plain loop that the compiler vectorises; `multiversion` makes an AVX2 copy of it beside the
//! baseline one, so one binary serves every machine. One has an instruction of its own that no compiler finds.

use multiversion::multiversion;
use rand_core::Rng;

/// `log10`, within 1.2e-6 of the exact value down to 1e-10: the last bit of the result.
///
/// The mantissa is brought to [√½, √2) and put through the polynomial that Cephes has for single precision. The input must
/// be normal and positive.
#[inline(always)]
#[allow(clippy::inline_always, reason = "it must be inlined into each copy that multiversion makes")]
pub(super) fn log10(x: f32) -> f32 {
    natural_log(x) * std::f32::consts::LOG10_E
}

#[inline(always)]
#[allow(clippy::inline_always, reason = "it must be inlined into each copy that multiversion makes")]
#[expect(
    clippy::unreadable_literal,
    clippy::excessive_precision,
    reason = "Cephes' coefficients as published"
)]
fn natural_log(x: f32) -> f32 {
    const SQRT_HALF: u32 = 0x3f35_04f3;
    let bits = x.to_bits().wrapping_sub(SQRT_HALF);
    let exponent = (bits as i32) >> 23;
    let m = f32::from_bits((bits & 0x007f_ffff).wrapping_add(SQRT_HALF)) - 1.0;
    let e = exponent as f32;
    let m2 = m * m;
    // Fused on every machine, so that the result is the same bits on all of them.
    let mut p = 7.0376836292e-2_f32;
    p = p.mul_add(m, -1.1514610310e-1);
    p = p.mul_add(m, 1.1676998740e-1);
    p = p.mul_add(m, -1.2420140846e-1);
    p = p.mul_add(m, 1.4249322787e-1);
    p = p.mul_add(m, -1.6668057665e-1);
    p = p.mul_add(m, 2.0000714765e-1);
    p = p.mul_add(m, -2.4999993993e-1);
    p = p.mul_add(m, 3.3333331174e-1);
    let tail = (p * m).mul_add(m2, e.mul_add(-2.12194440e-4, -0.5 * m2));
    e.mul_add(0.693359375, m + tail)
}

/// Random words, 64 side by side (fewer, and the compiler takes the loop apart): as many `xoshiro128+` generators, whose steps are shifts, adds and exclusive ors
/// that run over whole registers. Only the upper 24 bits of a word are used, which leaves its weak lowest bits out.
pub(crate) struct Words([[u32; LANES]; 4]);

const LANES: usize = 64;

impl Words {
    pub(crate) fn new(rng: &mut impl Rng) -> Self {
        Self(std::array::from_fn(|_| std::array::from_fn(|_| rng.next_u32())))
    }

    #[inline(always)]
    #[allow(clippy::inline_always, reason = "it must be inlined into each copy that multiversion makes")]
    fn next(&mut self, words: &mut [u32; LANES]) {
        let [a, b, c, d] = &mut self.0;
        for lane in 0..LANES {
            words[lane] = a[lane].wrapping_add(d[lane]);
            let shifted = b[lane] << 9;
            c[lane] ^= a[lane];
            d[lane] ^= b[lane];
            b[lane] ^= c[lane];
            a[lane] ^= d[lane];
            c[lane] ^= shifted;
            d[lane] = d[lane].rotate_left(11);
        }
    }
}

/// Half precision to single, exactly.
pub(crate) fn from_f16(numbers: &[half::f16], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("f16c") && is_x86_feature_detected!("avx") {
        // SAFETY: this processor has the instructions.
        return unsafe { from_f16_by_instruction(numbers, out) };
    }
    from_f16_by_arithmetic(numbers, out);
}

/// Eight at a time, with the instruction that most processors have for it. (`half` has it too, behind a call for each
/// eight, which takes longer than the instruction.)
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx,f16c")]
fn from_f16_by_instruction(numbers: &[half::f16], out: &mut [f32]) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};

    let count = numbers.len().min(out.len());
    let (eights, rest) = numbers[..count].as_chunks::<8>();
    let (out_eights, out_rest) = out[..count].as_chunks_mut::<8>();
    for (numbers, out) in eights.iter().zip(out_eights) {
        // SAFETY: each has eight numbers; no alignment is asked for.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(numbers.as_ptr().cast())));
        };
    }
    from_f16_by_arithmetic(rest, out_rest);
}

#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn from_f16_by_arithmetic(numbers: &[half::f16], out: &mut [f32]) {
    // 2¹¹²: what the exponents differ by. It also makes normal numbers of those that are not.
    const SCALE: f32 = f32::from_bits((127 + 112) << 23);
    for (out, number) in out.iter_mut().zip(numbers) {
        let bits = u32::from(number.to_bits());
        let size = (bits & 0x7fff) << 13;
        // Infinities and what is no number have the largest exponent there too.
        let largest = if size >= 0x7c00 << 13 { 0x7f80_0000 } else { 0 };
        let scaled = (f32::from_bits(size) * SCALE).to_bits() | largest;
        *out = f32::from_bits(scaled | (bits & 0x8000) << 16);
    }
}

/// The same of the other half precision, which is single precision cut off.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(crate) fn from_bf16(numbers: &[half::bf16], out: &mut [f32]) {
    for (out, number) in out.iter_mut().zip(numbers) {
        *out = f32::from_bits(u32::from(number.to_bits()) << 16);
    }
}

/// Adds gaussian noise of the given deviation to every number.
///
/// Box and Muller: two words give two gaussians. The first half of a block gets the cosines, the second the sines, so
/// that every loop runs over whole registers.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(crate) fn add_gaussian(values: &mut [f32], mut words: Words, deviation: f32) {
    let (mut us, mut vs) = ([0; LANES], [0; LANES]);
    let mut noise = [0.0_f32; 2 * LANES];
    let mut gaussians = |noise: &mut [f32; 2 * LANES]| {
        words.next(&mut us);
        words.next(&mut vs);
        for lane in 0..LANES {
            // 24 bits each; never 0, so the logarithm is finite.
            let u = ((us[lane] >> 8) as i32 as f32 + 0.5) * (1.0 / 16_777_216.0);
            let v = (vs[lane] >> 8) as i32 as f32 * (1.0 / 16_777_216.0) - 0.5;
            let radius = (-2.0 * natural_log(u)).sqrt() * deviation;
            let (sine, cosine) = sin_cos_turn(v);
            noise[lane] = radius * cosine;
            noise[lane + LANES] = radius * sine;
        }
    };
    let mut blocks = values.chunks_exact_mut(2 * LANES);
    for block in &mut blocks {
        gaussians(&mut noise);
        for (value, noise) in block.iter_mut().zip(&noise) {
            *value += noise;
        }
    }
    let rest = blocks.into_remainder();
    if !rest.is_empty() {
        gaussians(&mut noise);
        for (value, noise) in rest.iter_mut().zip(&noise) {
            *value += noise;
        }
    }
}

/// Sine and cosine of `turn` full turns, for `turn` in −½ … ½, within 1e-6: enough for noise, and it vectorises.
#[inline(always)]
#[allow(clippy::inline_always, reason = "it must be inlined into each copy that multiversion makes")]
fn sin_cos_turn(turn: f32) -> (f32, f32) {
    // Of a quarter of the angle, by their series; then doubled twice.
    let x = turn * (std::f32::consts::TAU / 4.0);
    let x2 = x * x;
    let mut s = (1.0 / 362_880.0_f32).mul_add(x2, -1.0 / 5040.0);
    let mut c = (1.0 / 40_320.0_f32).mul_add(x2, -1.0 / 720.0);
    s = s.mul_add(x2, 1.0 / 120.0).mul_add(x2, -1.0 / 6.0).mul_add(x2, 1.0) * x;
    c = c.mul_add(x2, 1.0 / 24.0).mul_add(x2, -0.5).mul_add(x2, 1.0);
    let (s2, c2) = (2.0 * s * c, 1.0 - 2.0 * s * s);
    (2.0 * s2 * c2, 1.0 - 2.0 * s2 * s2)
}

/// Multiplies every number by `gain`.
#[multiversion(targets("x86_64+avx2", "aarch64+neon"))]
pub(crate) fn scale(values: &mut [f32], gain: f32) {
    for value in values {
        *value *= gain;
    }
}

/// The mean of the squares.
#[multiversion(targets("x86_64+avx2", "aarch64+neon"))]
pub(crate) fn mean_square(values: &[f32]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let mut total = 0.0_f64;
    for block in values.chunks(4096) {
        let mut lanes = [0.0_f32; 16];
        let mut chunks = block.chunks_exact(16);
        for chunk in &mut chunks {
            for (lane, value) in lanes.iter_mut().zip(chunk) {
                *lane += value * value;
            }
        }
        total += lanes.iter().map(|lane| f64::from(*lane)).sum::<f64>();
        total += chunks.remainder().iter().map(|value| f64::from(*value) * f64::from(*value)).sum::<f64>();
    }
    total / values.len() as f64
}

/// `max(value, floor)`, then `· 0.25 + 1`, in place: the last step of Whisper's features.
#[multiversion(targets("x86_64+avx2", "aarch64+neon"))]
pub(crate) fn clamp_and_scale(values: &mut [f32], floor: f32) {
    for value in values {
        let clamped = if *value > floor { *value } else { floor };
        *value = (clamped + 4.0) * 0.25;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log10_is_exact_to_single_precision() {
        let mut worst = 0.0_f64;
        let mut x = 1e-10_f32;
        while x < 1e6 {
            worst = worst.max((f64::from(log10(x)) - f64::from(x).log10()).abs());
            x *= 1.000_37;
        }
        assert!(worst < 1.2e-6, "{worst}");
    }

    #[test]
    fn every_number_of_half_precision_is_what_the_library_says() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        let mut out = vec![0.0; all.len()];
        let same = |out: &[f32], expected: fn(u16) -> f32| {
            for (bits, number) in all.iter().zip(out) {
                let expected = expected(*bits);
                assert!(
                    number.to_bits() == expected.to_bits() || number.is_nan() && expected.is_nan(),
                    "{bits:#x}"
                );
            }
        };
        let f16 = |bits| half::f16::from_bits(bits).to_f32();
        from_f16(bytemuck::cast_slice(&all), &mut out);
        same(&out, f16);
        from_f16_by_arithmetic(bytemuck::cast_slice(&all), &mut out);
        same(&out, f16);
        from_bf16(bytemuck::cast_slice(&all), &mut out);
        same(&out, |bits| half::bf16::from_bits(bits).to_f32());
    }

    #[test]
    fn noise_is_gaussian() {
        let words = Words::new(&mut rand_pcg::Pcg64Mcg::new(7));
        let mut values = vec![0.0_f32; 400_000];
        add_gaussian(&mut values, words, 1.0);
        let n = values.len() as f64;
        let moment = |p: i32| values.iter().map(|v| f64::from(*v).powi(p)).sum::<f64>() / n;
        assert!(moment(1).abs() < 0.01, "mean {}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.01, "variance {}", moment(2));
        assert!(moment(3).abs() < 0.03, "skew {}", moment(3));
        assert!((moment(4) - 3.0).abs() < 0.06, "kurtosis {}", moment(4));
        let beyond_two = values.iter().filter(|v| v.abs() > 2.0).count() as f64 / n;
        assert!((beyond_two - 0.0455).abs() < 0.002, "tail {beyond_two}");
        // The two gaussians of a pair must not depend on each other.
        let pairs = values.chunks(32).flat_map(|block| (0..16).map(|i| f64::from(block[i] * block[i + 16])));
        assert!((pairs.sum::<f64>() / (n / 2.0)).abs() < 0.01);
    }

    #[test]
    fn sine_and_cosine() {
        for i in -500..=500 {
            let turn = i as f32 / 1000.0;
            let (s, c) = sin_cos_turn(turn);
            let exact = (f64::from(turn) * std::f64::consts::TAU).sin_cos();
            assert!((f64::from(s) - exact.0).abs() < 2e-6 && (f64::from(c) - exact.1).abs() < 2e-6, "{turn}");
        }
    }
}
