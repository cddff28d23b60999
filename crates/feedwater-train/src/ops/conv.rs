//! A convolution over time, as one matrix product: what each output sees of the input is laid out side by side before.

use burn_tensor::Tensor;
use rayon::prelude::*;

use super::{Numbers, Operation, is_here, linear, plain, run};

/// Of `x` `[rows, frames, channels]` and weights as PyTorch keeps them, `[outputs, channels, kernel]`: `[rows, frames /
/// stride, outputs]`. Zeros are put around, half a kernel on each side.
pub fn conv1d(x: Tensor<3>, weight: Tensor<3>, bias: Tensor<1>, stride: usize) -> Tensor<3> {
    if !is_here(&x) {
        return plain::conv1d(x, weight, bias, stride);
    }
    let [rows, frames, channels] = x.dims();
    let [outputs, _, kernel] = weight.dims();
    let left = frames.div_ceil(stride);
    let unfold = Unfold { frames, channels, kernel, stride };
    let seen = run(unfold, [x.reshape([-1])]);
    linear(seen, weight.reshape([outputs, channels * kernel]), Some(bias)).reshape([rows, left, outputs])
}

#[derive(Clone, Copy, Debug)]
struct Unfold {
    frames: usize,
    channels: usize,
    kernel: usize,
    stride: usize,
}

impl Unfold {
    /// The frames that an output sees, as places in its kernel and in the input.
    fn seen(self, at: usize) -> impl Iterator<Item = (usize, usize)> {
        let first = (at * self.stride) as isize - (self.kernel / 2) as isize;
        (0..self.kernel).filter_map(move |k| {
            let frame = first + k as isize;
            (frame >= 0 && (frame as usize) < self.frames).then_some((k, frame as usize))
        })
    }
}

impl Operation<1> for Unfold {
    type Kept = usize;

    fn forward(&self, [x]: [Numbers; 1]) -> (Vec<f32>, usize) {
        let Self { frames, channels, kernel, stride } = *self;
        let (size, wide) = (frames * channels, channels * kernel);
        let left = frames.div_ceil(stride);
        let mut seen = vec![0.0; x.len() / size.max(1) * left * wide];
        let each = x.par_chunks_exact(size.max(1)).zip(seen.par_chunks_exact_mut((left * wide).max(1)));
        each.for_each(|(x, seen)| {
            for (at, seen) in seen.chunks_exact_mut(wide).enumerate() {
                for (k, frame) in self.seen(at) {
                    for (channel, value) in x[frame * channels..][..channels].iter().enumerate() {
                        seen[channel * kernel + k] = *value;
                    }
                }
            }
        });
        (seen, x.len())
    }

    fn backward(self, count: usize, gradient: Numbers, [wanted]: [bool; 1]) -> [Vec<f32>; 1] {
        if !wanted {
            return [Vec::new()];
        }
        let Self { frames, channels, kernel, stride } = self;
        let (size, wide) = (frames * channels, channels * kernel);
        let left = frames.div_ceil(stride);
        let mut of_x = vec![0.0; count];
        let each =
            of_x.par_chunks_exact_mut(size.max(1)).zip(gradient.par_chunks_exact((left * wide).max(1)));
        each.for_each(|(of_x, gradient)| {
            for (at, gradient) in gradient.chunks_exact(wide).enumerate() {
                for (k, frame) in self.seen(at) {
                    for (channel, sum) in of_x[frame * channels..][..channels].iter_mut().enumerate() {
                        *sum += gradient[channel * kernel + k];
                    }
                }
            }
        });
        [of_x]
    }
}
