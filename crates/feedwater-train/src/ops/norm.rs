//! Layer normalisation and GELU, each in one pass.

use burn_tensor::Tensor;
use rayon::prelude::*;

use super::{Numbers, Operation, fast, is_here, linear::column_sums, plain, run};

/// `x` `[…, width]`, flat: each row less its mean, over its deviation, times the weights and with the bias. As PyTorch's
/// `LayerNorm` with its ε of 1e-5.
pub fn layer_norm(x: Tensor<1>, weight: Tensor<1>, bias: Tensor<1>) -> Tensor<1> {
    if !is_here(&x) {
        return plain::layer_norm(x, weight, bias);
    }
    run(LayerNorm, [x, weight, bias])
}

const EPSILON: f32 = 1e-5;

#[derive(Clone, Copy, Debug)]
struct LayerNorm;

impl Operation<3> for LayerNorm {
    type Kept = (Numbers, Numbers);

    fn forward(&self, [x, weight, bias]: [Numbers; 3]) -> (Vec<f32>, Self::Kept) {
        let width = weight.len();
        let (each_weight, bias): (&[f32], &[f32]) = (&weight, &bias);
        let mut y = vec![0.0; x.len()];
        y.par_chunks_exact_mut(width).zip(x.par_chunks_exact(width)).with_min_len(16).for_each(|(y, x)| {
            let (mean, scale) = mean_and_scale(x);
            for k in 0..width {
                y[k] = (x[k] - mean) * scale * each_weight[k] + bias[k];
            }
        });
        (y, (x, weight))
    }

    fn backward(self, (x, weight): Self::Kept, gradient: Numbers, _: [bool; 3]) -> [Vec<f32>; 3] {
        let width = weight.len();
        let weight: &[f32] = &weight;
        let mut of_x = vec![0.0; x.len()];
        // What each row gives to the weights; summed afterwards.
        let mut shares = vec![0.0; x.len()];
        let rows = x.par_chunks_exact(width).zip(gradient.par_chunks_exact(width));
        let rows = rows.zip(of_x.par_chunks_exact_mut(width)).zip(shares.par_chunks_exact_mut(width));
        rows.with_min_len(16).for_each(|(((x, gradient), of_x), share)| {
            let (mean, scale) = mean_and_scale(x);
            let (mut sum, mut product) = (0.0, 0.0);
            for k in 0..width {
                let normal = (x[k] - mean) * scale;
                let given = gradient[k] * weight[k];
                share[k] = gradient[k] * normal;
                sum += given;
                product += given * normal;
            }
            let (sum, product) = (sum / width as f32, product / width as f32);
            for k in 0..width {
                let normal = (x[k] - mean) * scale;
                of_x[k] = (gradient[k] * weight[k] - sum - normal * product) * scale;
            }
        });
        [of_x, column_sums(&shares, width), column_sums(&gradient, width)]
    }
}

fn mean_and_scale(row: &[f32]) -> (f32, f32) {
    let count = row.len() as f32;
    let mean = lanes(row, |value| value) / count;
    let square = lanes(row, |value| (value - mean) * (value - mean)) / count;
    (mean, 1.0 / (square + EPSILON).sqrt())
}

/// A sum in eight lanes: quick, and more exact than one after another.
fn lanes(row: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0_f32; 8];
    let whole = row.chunks_exact(8);
    let rest: f32 = whole.remainder().iter().map(|value| of(*value)).sum();
    for eight in whole {
        for (sum, value) in sums.iter_mut().zip(eight) {
            *sum += of(*value);
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// The exact GELU: each number times how likely a normal one is less.
pub fn gelu(x: Tensor<1>) -> Tensor<1> {
    if !is_here(&x) {
        return plain::gelu(x);
    }
    run(Gelu, [x])
}

#[derive(Clone, Copy, Debug)]
struct Gelu;

const PIECE: usize = 1 << 12;

impl Operation<1> for Gelu {
    type Kept = Numbers;

    fn forward(&self, [x]: [Numbers; 1]) -> (Vec<f32>, Numbers) {
        let mut y = vec![0.0; x.len()];
        y.par_chunks_mut(PIECE).zip(x.par_chunks(PIECE)).for_each(|(y, x)| fast::gelu(y, x));
        (y, x)
    }

    fn backward(self, x: Numbers, gradient: Numbers, _: [bool; 1]) -> [Vec<f32>; 1] {
        let mut of_x = vec![0.0; x.len()];
        let each = of_x.par_chunks_mut(PIECE).zip(x.par_chunks(PIECE)).zip(gradient.par_chunks(PIECE));
        each.for_each(|((of_x, x), gradient)| fast::gelu_back(of_x, x, gradient));
        [of_x]
    }
}
