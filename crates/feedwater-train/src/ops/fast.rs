//! Exponentials of many numbers at once, as vectors of whatever width the processor has.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for the wider vectors")]

use multiversion::multiversion;

/// `exp`, to within 2 units in the last place between -87 and 88; clamped outside.
#[inline(always)]
fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.0, 88.0);
    // x = n ln 2 + r, in two pieces so that r keeps its digits.
    let n = (x * std::f32::consts::LOG2_E + 12_582_912.0) - 12_582_912.0;
    let r = n * -0.693_359_4 + x;
    let r = n * 2.121_944_4e-4 + r;
    let mut p = 1.987_569_1e-4_f32;
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p * r + c;
    }
    let p = p * (r * r) + (r + 1.0);
    p * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[inline(always)]
fn tanh(x: f32) -> f32 {
    2.0 / (1.0 + exp(-2.0 * x)) - 1.0
}

/// One row of an LSTM's step: gates `i f g o` become what they let through; the cell and the output are written.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn lstm_cell(gates: &mut [f32], before: &[f32], cell: &mut [f32], output: &mut [f32]) {
    let hidden = cell.len();
    let (i, rest) = gates.split_at_mut(hidden);
    let (f, rest) = rest.split_at_mut(hidden);
    let (g, o) = rest.split_at_mut(hidden);
    let (f, g, o) = (&mut f[..hidden], &mut g[..hidden], &mut o[..hidden]);
    let (before, output) = (&before[..hidden], &mut output[..hidden]);
    for k in 0..hidden {
        i[k] = sigmoid(i[k]);
        f[k] = sigmoid(f[k]);
        g[k] = tanh(g[k]);
        o[k] = sigmoid(o[k]);
        cell[k] = f[k] * before[k] + i[k] * g[k];
        output[k] = o[k] * tanh(cell[k]);
    }
}

/// The way back through one row of an LSTM's step. `gates` has what they let through and gets their gradients; `ahead` is
/// the gradient of the cell, from the step after and for the step before.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn lstm_cell_back(
    gates: &mut [f32],
    before: &[f32],
    cell: &[f32],
    output: &[f32],
    ahead: &mut [f32],
) {
    let hidden = cell.len();
    let (i, rest) = gates.split_at_mut(hidden);
    let (f, rest) = rest.split_at_mut(hidden);
    let (g, o) = rest.split_at_mut(hidden);
    let (f, g, o) = (&mut f[..hidden], &mut g[..hidden], &mut o[..hidden]);
    let (before, output, ahead) = (&before[..hidden], &output[..hidden], &mut ahead[..hidden]);
    for k in 0..hidden {
        let squashed = tanh(cell[k]);
        let of_cell = ahead[k] + output[k] * o[k] * (1.0 - squashed * squashed);
        let (let_in, kept, new) = (i[k], f[k], g[k]);
        i[k] = of_cell * new * let_in * (1.0 - let_in);
        f[k] = of_cell * before[k] * kept * (1.0 - kept);
        g[k] = of_cell * let_in * (1.0 - new * new);
        o[k] = output[k] * squashed * o[k] * (1.0 - o[k]);
        ahead[k] = of_cell * kept;
    }
}

/// The error function, to within 4e-7.
#[inline(always)]
fn erf(x: f32) -> f32 {
    let a = x.abs();
    // Abramowitz and Stegun 7.1.26 is good to 1.5e-7; below, where that is much of the value, its series.
    let t = 1.0 / (1.0 + 0.327_591_1 * a);
    let mut p = 1.061_405_4_f32;
    for c in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        p = p * t + c;
    }
    let far = 1.0 - p * t * exp(-a * a);
    let square = a * a;
    let mut q = -7.853_861e-4_f32;
    for c in [5.223_978e-3, -2.686_617e-2, 1.128_379_2e-1, -3.761_264e-1, std::f32::consts::FRAC_2_SQRT_PI] {
        q = q * square + c;
    }
    let near = a * q;
    let value = if a < 0.5 { near } else { far };
    if x < 0.0 { -value } else { value }
}

/// The exact GELU.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn gelu(y: &mut [f32], x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
    }
}

/// The way back through GELU.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn gelu_back(of_x: &mut [f32], x: &[f32], gradient: &[f32]) {
    for ((of_x, x), gradient) in of_x.iter_mut().zip(x).zip(gradient) {
        let less = 0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
        // The density of a normal number: 1 / sqrt(2 pi).
        *of_x = gradient * (less + x * 0.398_942_3 * exp(-0.5 * x * x));
    }
}

/// A row becomes its softmax, times a scale. What was subtracted before exponentiating, and the sum of the exponentials.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn softmax(row: &mut [f32], scale: f32) -> (f32, f64) {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0_f32; 8];
    let mut whole = row.chunks_exact_mut(8);
    for eight in &mut whole {
        for (sum, value) in sums.iter_mut().zip(eight) {
            *value = exp(*value - most);
            *sum += *value;
        }
    }
    let mut sum: f64 = 0.0;
    for value in whole.into_remainder() {
        *value = exp(*value - most);
        sum += f64::from(*value);
    }
    sum += sums.iter().copied().map(f64::from).sum::<f64>();
    let by = (f64::from(scale) / sum) as f32;
    for value in row {
        *value *= by;
    }
    (most, sum)
}

/// The way back through a softmax: the gradients of its outputs become those of its inputs, times a scale.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn softmax_back(outputs: &[f32], gradient: &mut [f32], scale: f32) {
    let mut sums = [0.0_f32; 8];
    let (a, b) = (outputs.chunks_exact(8), gradient.chunks_exact(8));
    let mut mean: f32 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a.zip(b) {
        for k in 0..8 {
            sums[k] += a[k] * b[k];
        }
    }
    mean += sums.iter().sum::<f32>();
    for (output, gradient) in outputs.iter().zip(gradient) {
        *gradient = output * (*gradient - mean) * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_exponentials() {
        for step in -8_000..8_000 {
            let x = step as f32 / 100.0;
            let right = f64::from(x).exp();
            assert!((f64::from(exp(x)) / right - 1.0).abs() < 3e-7, "exp({x}) is {} and not {right}", exp(x));
            let x = x / 8.0;
            assert!((tanh(x) - x.tanh()).abs() < 3e-7, "tanh({x})");
        }
        // By the series of the error function, in double precision.
        let right = |x: f64| {
            let (mut term, mut sum) = (x, x);
            for n in 1..200 {
                term *= -x * x / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            sum * std::f64::consts::FRAC_2_SQRT_PI
        };
        for step in -450..450 {
            let x = step as f32 / 100.0;
            let off = f64::from(erf(x)) - right(f64::from(x));
            assert!(off.abs() < 4e-7, "erf({x}) is off by {off}");
        }
        assert!(sigmoid(-200.0) < 1e-30 && sigmoid(200.0) >= 1.0 && tanh(-200.0) <= -1.0);
    }
}
