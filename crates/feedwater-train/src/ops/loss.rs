//! What does a guess cost?

use burn_tensor::Tensor;
use rayon::prelude::*;

use super::{Numbers, Operation, fast, is_here, plain, run};

/// The mean cross entropy of logits `[…, classes]`, flat, against classes; negative ones (−100) are left out. As PyTorch's.
pub fn cross_entropy(logits: Tensor<1>, classes: usize, right: &[i64]) -> Tensor<1> {
    if !is_here(&logits) {
        return plain::cross_entropy(logits, classes, right);
    }
    run(CrossEntropy { classes, right: right.to_vec() }, [logits])
}

#[derive(Debug)]
struct CrossEntropy {
    classes: usize,
    right: Vec<i64>,
}

impl Operation<1> for CrossEntropy {
    /// The gradient: it falls out on the way.
    type Kept = Vec<f32>;

    fn forward(&self, [logits]: [Numbers; 1]) -> (Vec<f32>, Vec<f32>) {
        let counted = self.right.iter().filter(|right| **right >= 0).count();
        let scale = 1.0 / counted as f32;
        let mut gradient = logits.into_vec();
        let rows = gradient.par_chunks_exact_mut(self.classes).zip(&self.right);
        let losses: Vec<f64> = rows
            .map(|(row, right)| {
                if *right < 0 {
                    row.fill(0.0);
                    return 0.0;
                }
                let right = *right as usize;
                let chosen = f64::from(row[right]);
                let (most, sum) = fast::softmax(row, scale);
                row[right] -= scale;
                f64::from(most) + sum.ln() - chosen
            })
            .collect();
        (vec![(losses.iter().sum::<f64>() / counted as f64) as f32], gradient)
    }

    fn backward(self, mut kept: Vec<f32>, gradient: Numbers, _: [bool; 1]) -> [Vec<f32>; 1] {
        scale(&mut kept, gradient[0]);
        [kept]
    }
}

/// The mean square of the differences between `x` and what it should be, where `counted` says that it counts.
pub fn mean_squared(x: Tensor<1>, right: Vec<f32>, counted: Vec<bool>) -> Tensor<1> {
    if !is_here(&x) {
        return plain::mean_squared(x, right, &counted);
    }
    run(MeanSquared { right, counted }, [x])
}

#[derive(Debug)]
struct MeanSquared {
    right: Vec<f32>,
    counted: Vec<bool>,
}

impl Operation<1> for MeanSquared {
    type Kept = Vec<f32>;

    fn forward(&self, [x]: [Numbers; 1]) -> (Vec<f32>, Vec<f32>) {
        let count = self.counted.iter().filter(|counted| **counted).count().max(1) as f32;
        let x: &[f32] = &x;
        let mut sum = 0.0;
        let mut gradient = vec![0.0; x.len()];
        for (at, counted) in self.counted.iter().enumerate() {
            if *counted {
                let off = x[at] - self.right[at];
                sum += f64::from(off) * f64::from(off);
                gradient[at] = 2.0 * off / count;
            }
        }
        (vec![(sum / f64::from(count)) as f32], gradient)
    }

    fn backward(self, mut kept: Vec<f32>, gradient: Numbers, _: [bool; 1]) -> [Vec<f32>; 1] {
        scale(&mut kept, gradient[0]);
        [kept]
    }
}

pub(super) fn scale(values: &mut [f32], by: f32) {
    if by.to_bits() != 1.0_f32.to_bits() {
        for value in values {
            *value *= by;
        }
    }
}
