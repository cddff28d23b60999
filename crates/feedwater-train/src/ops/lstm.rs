//! How does a recurrent layer run in both directions over rows of different lengths?
//!
//! What it gets of each time step (the input times `weight_ih`, with both biases) is computed for all steps in one matrix
//! product before. Here is what has to be done step by step: the product with `weight_hh` and the gates. Rows are as long
//! as they are: behind a row's end its output is zero, and backwards a row begins at its own end, as with PyTorch's packed
//! sequences. Both directions run at once.

use burn_tensor::Tensor;
use gemm::Parallelism;

use super::{
    Numbers, Operation, fast, is_here,
    linear::{Matrix, product},
    plain, run,
};

/// One direction: the input's part of the gates `[rows, steps, 4 hidden]` in PyTorch's order `i f g o`, and `weight_hh`
/// `[4 hidden, hidden]`.
pub struct Direction {
    /// The input's part.
    pub gates: Tensor<3>,
    /// The recurrent weights.
    pub recurrent: Tensor<2>,
}

/// A layer that reads forwards and backwards: `[rows, steps, 2 hidden]`, forwards first.
pub fn lstm(forwards: Direction, backwards: Direction, lengths: &[usize]) -> Tensor<3> {
    if !is_here(&forwards.gates) {
        return plain::lstm(forwards, backwards, lengths);
    }
    let [rows, steps, _] = forwards.gates.dims();
    let [_, hidden] = forwards.recurrent.dims();
    let operation = Both { shape: Shape { rows, steps, hidden }, lengths: lengths.to_vec() };
    let inputs = [forwards.gates, backwards.gates].map(|gates| gates.reshape([-1]));
    let weights = [forwards.recurrent, backwards.recurrent].map(|weight| weight.reshape([-1]));
    let ([a, b], [u, v]) = (inputs, weights);
    run(operation, [a, u, b, v]).reshape([rows, steps, 2 * hidden])
}

/// Both directions run at once: each has a thread.
const ONE: Parallelism = Parallelism::None;

#[derive(Clone, Copy, Debug)]
struct Shape {
    rows: usize,
    steps: usize,
    hidden: usize,
}

#[derive(Debug)]
struct Both {
    shape: Shape,
    lengths: Vec<usize>,
}

/// What one direction leaves: for each step in the order in which they were run, and each row, the gates, the cell and the
/// output. The first of cells and outputs are the zeros that it began with.
#[derive(Clone, Debug)]
struct Run {
    gates: Vec<f32>,
    cells: Vec<f32>,
    outputs: Vec<f32>,
    recurrent: Numbers,
}

impl Operation<4> for Both {
    type Kept = [Run; 2];

    fn forward(&self, [a, u, b, v]: [Numbers; 4]) -> (Vec<f32>, [Run; 2]) {
        let Shape { rows, steps, hidden } = self.shape;
        let (forwards, backwards) = rayon::join(
            || self.shape.forward(&a, u, &self.lengths, false),
            || self.shape.forward(&b, v, &self.lengths, true),
        );
        let mut output = vec![0.0; rows * steps * 2 * hidden];
        for (run, reverse) in [(&forwards, false), (&backwards, true)] {
            self.shape.each(&self.lengths, reverse, |at, row, step| {
                let from = &run.outputs[((at + 1) * rows + row) * hidden..][..hidden];
                let to = (row * steps + step) * 2 * hidden + if reverse { hidden } else { 0 };
                output[to..to + hidden].copy_from_slice(from);
            });
        }
        (output, [forwards, backwards])
    }

    fn backward(self, [forwards, backwards]: [Run; 2], gradient: Numbers, _: [bool; 4]) -> [Vec<f32>; 4] {
        let ((a, u), (b, v)) = rayon::join(
            || self.shape.backward(forwards, &gradient, &self.lengths, false),
            || self.shape.backward(backwards, &gradient, &self.lengths, true),
        );
        [a, u, b, v]
    }
}

impl Shape {
    /// Which step of which row is run when.
    fn each(&self, lengths: &[usize], reverse: bool, mut visit: impl FnMut(usize, usize, usize)) {
        for at in 0..self.steps {
            for (row, length) in lengths.iter().enumerate() {
                if at < *length {
                    visit(at, row, if reverse { length - 1 - at } else { at });
                }
            }
        }
    }

    fn forward(&self, gates: &[f32], recurrent: Numbers, lengths: &[usize], reverse: bool) -> Run {
        let Self { rows, steps, hidden } = *self;
        let wide = 4 * hidden;
        let mut run = Run {
            gates: vec![0.0; steps * rows * wide],
            cells: vec![0.0; (steps + 1) * rows * hidden],
            outputs: vec![0.0; (steps + 1) * rows * hidden],
            recurrent,
        };
        self.each(lengths, reverse, |at, row, step| {
            let from = &gates[(row * steps + step) * wide..][..wide];
            run.gates[(at * rows + row) * wide..][..wide].copy_from_slice(from);
        });
        for at in 0..steps {
            let (before, after) = run.outputs.split_at_mut((at + 1) * rows * hidden);
            let before = &before[at * rows * hidden..];
            let gates = &mut run.gates[at * rows * wide..][..rows * wide];
            // gates += before × recurrentᵀ
            let weights = Matrix::of(&run.recurrent, hidden).turned();
            product([rows, wide, hidden], gates, Matrix::of(before, hidden), weights, true, ONE);
            let (old, new) = run.cells.split_at_mut((at + 1) * rows * hidden);
            for (row, length) in lengths.iter().enumerate() {
                if at < *length {
                    let here = row * hidden..(row + 1) * hidden;
                    fast::lstm_cell(
                        &mut gates[row * wide..][..wide],
                        &old[at * rows * hidden..][here.clone()],
                        &mut new[here.clone()],
                        &mut after[here],
                    );
                }
            }
        }
        run
    }

    /// The gradients of the gates' part of the input and of the recurrent weights.
    fn backward(&self, run: Run, gradient: &[f32], lengths: &[usize], reverse: bool) -> (Vec<f32>, Vec<f32>) {
        let Self { rows, steps, hidden } = *self;
        let wide = 4 * hidden;
        let Run { mut gates, cells, outputs, recurrent } = run;
        // Of the output and of the cell, from the step after.
        let mut from_after = vec![0.0; rows * hidden];
        let mut ahead = vec![0.0; rows * hidden];
        for at in (0..steps).rev() {
            let gates = &mut gates[at * rows * wide..][..rows * wide];
            for (row, length) in lengths.iter().enumerate() {
                let here = row * hidden..(row + 1) * hidden;
                let gate = &mut gates[row * wide..][..wide];
                if at >= *length {
                    gate.fill(0.0);
                    continue;
                }
                let step = if reverse { length - 1 - at } else { at };
                let given = (row * steps + step) * 2 * hidden + if reverse { hidden } else { 0 };
                for (sum, given) in from_after[here.clone()].iter_mut().zip(&gradient[given..given + hidden])
                {
                    *sum += given;
                }
                fast::lstm_cell_back(
                    gate,
                    &cells[at * rows * hidden..][here.clone()],
                    &cells[(at + 1) * rows * hidden..][here.clone()],
                    &from_after[here.clone()],
                    &mut ahead[here],
                );
            }
            // from_after = gates × recurrent
            let (gates, weights) = (Matrix::of(gates, wide), Matrix::of(&recurrent, hidden));
            product([rows, hidden, wide], &mut from_after, gates, weights, false, ONE);
        }
        // gatesᵀ × outputs of the step before, all steps at once.
        let mut of_weights = vec![0.0; wide * hidden];
        let (given, before) = (Matrix::of(&gates, wide).turned(), Matrix::of(&outputs, hidden));
        product([wide, hidden, steps * rows], &mut of_weights, given, before, false, ONE);
        let mut of_input = vec![0.0; rows * steps * wide];
        self.each(lengths, reverse, |at, row, step| {
            let from = &gates[(at * rows + row) * wide..][..wide];
            of_input[(row * steps + step) * wide..][..wide].copy_from_slice(from);
        });
        (of_input, of_weights)
    }
}
