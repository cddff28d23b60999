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
        assert!(sigmoid(-200.0) < 1e-30 && sigmoid(200.0) >= 1.0 && tanh(-200.0) <= -1.0);
    }
}
