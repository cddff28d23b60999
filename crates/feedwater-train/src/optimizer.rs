//! How do gradients become a step? Mean over micro-batches, clip by the norm of all of them together, `AdamW` as PyTorch has
//! it, and a rate that warms up and then falls.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::{
    weights::{Named, Weights},
    {Error, Result},
};

/// The settings of `AdamW`; PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamW {
    /// How much the mean of gradients remembers.
    pub beta1: f64,
    /// How much the mean of their squares remembers.
    pub beta2: f64,
    /// What keeps the quotient finite.
    pub epsilon: f64,
    /// The share of a weight that each step takes away, times the rate.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }
    }
}

/// How the rate changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// Not at all, after the warm-up.
    Constant,
    /// In a straight line to zero.
    Linear,
    /// Along half a cosine to zero.
    Cosine,
}

impl Schedule {
    /// The share of the highest rate that the step with this number has, counted from 0, as transformers' schedules do.
    pub fn share(self, step: u64, warm_up: u64, steps: u64) -> f64 {
        if step < warm_up {
            return step as f64 / warm_up.max(1) as f64;
        }
        let done = ((step - warm_up) as f64 / steps.saturating_sub(warm_up).max(1) as f64).min(1.0);
        match self {
            Self::Constant => 1.0,
            Self::Linear => 1.0 - done,
            Self::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
        }
    }
}

/// What the optimizer knows: the means, and how many steps they are of.
#[derive(Debug)]
pub struct Optimizer {
    settings: AdamW,
    steps: u64,
    means: Vec<Vec<f32>>,
    squares: Vec<Vec<f32>>,
    summed: Vec<Vec<f32>>,
    parts: u32,
}

/// So many numbers are enough work for a thread.
const PIECE: usize = 1 << 14;

impl Optimizer {
    /// One that has seen nothing.
    pub fn new(settings: AdamW, weights: &Weights) -> Self {
        let zeros: Vec<Vec<f32>> =
            weights.shapes().map(|(_, shape)| vec![0.0; shape.iter().product()]).collect();
        Self { settings, steps: 0, means: zeros.clone(), squares: zeros, summed: Vec::new(), parts: 0 }
    }

    /// Adds the gradients of a micro-batch.
    pub fn add(&mut self, gradients: Vec<Vec<f32>>) {
        self.parts += 1;
        if self.summed.is_empty() {
            self.summed = gradients;
            return;
        }
        for (sum, more) in self.summed.iter_mut().zip(gradients) {
            sum.par_chunks_mut(PIECE).zip(more.par_chunks(PIECE)).for_each(|(sum, more)| {
                for (sum, more) in sum.iter_mut().zip(more) {
                    *sum += more;
                }
            });
        }
    }

    /// Takes a step along the mean of what was added; gives back its norm before it was clipped.
    pub fn step(&mut self, weights: &mut Weights, rate: f64, clip: Option<f64>) -> f64 {
        let gradients = std::mem::take(&mut self.summed);
        let mut scale = 1.0 / f64::from(self.parts.max(1));
        self.parts = 0;
        // In pieces of fixed size, and those in order: the same sum on any number of threads.
        let squares = |values: &Vec<f32>| {
            let pieces: Vec<f64> = values.par_chunks(PIECE).map(sum_of_squares).collect();
            pieces.iter().sum::<f64>()
        };
        let norm = scale * gradients.iter().map(squares).sum::<f64>().sqrt();
        if !norm.is_finite() {
            // The weights stay what they are.
            return norm;
        }
        if let Some(most) = clip {
            // As `clip_grad_norm_`: with a little more below, so that nothing is divided by zero.
            scale *= (most / (norm + 1e-6)).min(1.0);
        }

        self.steps += 1;
        let AdamW { beta1, beta2, epsilon, weight_decay } = self.settings;
        let step = self.steps as f64;
        let (of_mean, of_square) = (1.0 - beta1.powf(step), 1.0 - beta2.powf(step));
        let constants = Constants {
            scale: scale as f32,
            kept: (1.0 - rate * weight_decay) as f32,
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            rate: (rate / of_mean) as f32,
            root: of_square.sqrt() as f32,
            epsilon: epsilon as f32,
        };
        weights.update(|place, values| {
            let (mean, square) = (&mut self.means[place], &mut self.squares[place]);
            let each = values.par_chunks_mut(PIECE).zip(gradients[place].par_chunks(PIECE));
            let each = each.zip(mean.par_chunks_mut(PIECE)).zip(square.par_chunks_mut(PIECE));
            each.for_each(|(((values, gradient), mean), square)| {
                update(values, gradient, mean, square, constants);
            });
        });
        norm
    }

    /// How many steps it took.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// What it knows, to be kept.
    pub fn named(&self, weights: &Weights) -> Vec<Named> {
        let mut named = Vec::new();
        for (place, (weight, shape)) in weights.shapes().enumerate() {
            let of = |kind: &str, values: &[Vec<f32>]| Named {
                name: format!("{weight}.{kind}"),
                shape: shape.to_vec(),
                values: values[place].clone(),
            };
            named.push(of("exp_avg", &self.means));
            named.push(of("exp_avg_sq", &self.squares));
        }
        named
    }

    /// One that knows what was kept.
    pub fn from_named(settings: AdamW, steps: u64, named: &[Named], weights: &Weights) -> Result<Self> {
        let mut optimizer = Self::new(settings, weights);
        optimizer.steps = steps;
        for (place, (weight, shape)) in weights.shapes().enumerate() {
            for (kind, into) in [("exp_avg", &mut optimizer.means), ("exp_avg_sq", &mut optimizer.squares)] {
                let name = format!("{weight}.{kind}");
                let kept = named.iter().find(|named| named.name == name && named.shape == shape);
                let kept = kept.ok_or_else(|| {
                    Error::config(format!("the optimizer's state has no `{name}`"), "it is of another model")
                })?;
                into[place].clone_from(&kept.values);
            }
        }
        Ok(optimizer)
    }
}

#[derive(Clone, Copy)]
struct Constants {
    scale: f32,
    kept: f32,
    beta1: f32,
    beta2: f32,
    rate: f32,
    root: f32,
    epsilon: f32,
}

#[multiversion::multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn update(values: &mut [f32], gradient: &[f32], mean: &mut [f32], square: &mut [f32], by: Constants) {
    let count = values.len();
    let (gradient, mean, square) = (&gradient[..count], &mut mean[..count], &mut square[..count]);
    for k in 0..count {
        let g = gradient[k] * by.scale;
        mean[k] = by.beta1 * mean[k] + (1.0 - by.beta1) * g;
        square[k] = by.beta2 * square[k] + (1.0 - by.beta2) * g * g;
        values[k] = by.kept * values[k] - by.rate * mean[k] / (square[k].sqrt() / by.root + by.epsilon);
    }
}

fn sum_of_squares(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value) * f64::from(*value)).sum()
}
