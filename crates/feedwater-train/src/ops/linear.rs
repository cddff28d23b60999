//! Matrix products, with and without a bias.

use burn_tensor::Tensor;
use gemm::Parallelism;
use rayon::prelude::*;

use super::{Numbers, Operation, is_here, plain, run};

/// `x` `[…, inputs]`, flat, times the weights as PyTorch keeps them, `[outputs, inputs]`, and the bias.
pub fn linear(x: Tensor<1>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<1> {
    if !is_here(&x) {
        return plain::linear(x, weight, bias);
    }
    let [outputs, inputs] = weight.dims();
    let weight = weight.reshape([-1]);
    match bias {
        Some(bias) => run(Linear { inputs, outputs }, [x, weight, bias]),
        None => run(Linear { inputs, outputs }, [x, weight]),
    }
}

#[derive(Clone, Copy, Debug)]
struct Linear {
    inputs: usize,
    outputs: usize,
}

impl Linear {
    fn there(self, x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let rows = x.len() / self.inputs;
        let mut y = Vec::with_capacity(rows * self.outputs);
        match bias {
            Some(bias) => (0..rows).for_each(|_| y.extend_from_slice(bias)),
            None => y.resize(rows * self.outputs, 0.0),
        }
        let shape = [rows, self.outputs, self.inputs];
        let (x, weight) = (Matrix::of(x, self.inputs), Matrix::of(weight, self.inputs).turned());
        product(shape, &mut y, x, weight, bias.is_some(), ALL);
        y
    }

    fn back(self, x: &[f32], weight: &[f32], gradient: &[f32], wanted: bool) -> (Vec<f32>, Vec<f32>) {
        let Self { inputs, outputs } = self;
        let rows = x.len() / inputs;
        let mut of_x = Vec::new();
        if wanted {
            of_x.resize(x.len(), 0.0);
            let (g, w) = (Matrix::of(gradient, outputs), Matrix::of(weight, inputs));
            product([rows, inputs, outputs], &mut of_x, g, w, false, ALL);
        }
        let mut of_weight = vec![0.0; weight.len()];
        let turned = Matrix::of(gradient, outputs).turned();
        product([outputs, inputs, rows], &mut of_weight, turned, Matrix::of(x, inputs), false, ALL);
        (of_x, of_weight)
    }
}

impl Operation<3> for Linear {
    type Kept = (Numbers, Numbers);

    fn forward(&self, [x, weight, bias]: [Numbers; 3]) -> (Vec<f32>, Self::Kept) {
        (self.there(&x, &weight, Some(&bias)), (x, weight))
    }

    fn backward(self, (x, weight): Self::Kept, gradient: Numbers, wanted: [bool; 3]) -> [Vec<f32>; 3] {
        let (of_x, of_weight) = self.back(&x, &weight, &gradient, wanted[0]);
        [of_x, of_weight, column_sums(&gradient, self.outputs)]
    }
}

impl Operation<2> for Linear {
    type Kept = (Numbers, Numbers);

    fn forward(&self, [x, weight]: [Numbers; 2]) -> (Vec<f32>, Self::Kept) {
        (self.there(&x, &weight, None), (x, weight))
    }

    fn backward(self, (x, weight): Self::Kept, gradient: Numbers, wanted: [bool; 2]) -> [Vec<f32>; 2] {
        let (of_x, of_weight) = self.back(&x, &weight, &gradient, wanted[0]);
        [of_x, of_weight]
    }
}

/// So many rows are summed by one thread; fixed, so that the sum is the same on any number of threads.
const PIECE: usize = 256;

/// The sums of the columns of a matrix.
pub(super) fn column_sums(values: &[f32], columns: usize) -> Vec<f32> {
    let pieces: Vec<Vec<f32>> = values
        .par_chunks(PIECE * columns)
        .map(|piece| {
            let mut sums = vec![0.0_f32; columns];
            for row in piece.chunks_exact(columns) {
                for (sum, value) in sums.iter_mut().zip(row) {
                    *sum += value;
                }
            }
            sums
        })
        .collect();
    let mut sums = vec![0.0; columns];
    for piece in pieces {
        for (sum, value) in sums.iter_mut().zip(piece) {
            *sum += value;
        }
    }
    sums
}

/// All threads.
pub(super) const ALL: Parallelism = Parallelism::Rayon(0);

/// Numbers with the distances between rows and between columns.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub(super) values: &'a [f32],
    pub(super) row: usize,
    pub(super) column: usize,
}

impl<'a> Matrix<'a> {
    /// Rows one after another.
    pub(super) fn of(values: &'a [f32], columns: usize) -> Self {
        Self { values, row: columns, column: 1 }
    }

    /// Rows and columns exchanged.
    pub(super) fn turned(self) -> Self {
        Self { values: self.values, row: self.column, column: self.row }
    }

    fn reaches(&self, rows: usize, columns: usize) -> bool {
        rows == 0 || columns == 0 || (rows - 1) * self.row + (columns - 1) * self.column < self.values.len()
    }
}

/// `into` `[m, n]` = (`into` if `add`) + `left` `[m, k]` × `right` `[k, n]`.
pub(super) fn product(
    shape: [usize; 3],
    into: &mut [f32],
    left: Matrix<'_>,
    right: Matrix<'_>,
    add: bool,
    threads: Parallelism,
) {
    let columns = shape[1];
    scaled_product(shape, (into, columns), left, right, add, 1.0, threads);
}

/// The same with the product scaled, and with rows of `into` that are further apart.
pub(super) fn scaled_product(
    [m, n, k]: [usize; 3],
    (into, distance): (&mut [f32], usize),
    left: Matrix<'_>,
    right: Matrix<'_>,
    add: bool,
    scale: f32,
    threads: Parallelism,
) {
    assert!(Matrix { values: into, row: distance, column: 1 }.reaches(m, n));
    assert!(left.reaches(m, k) && right.reaches(k, n) && distance >= n);
    // SAFETY: the last element of each matrix lies within its slice, as was just looked at; `into` is borrowed for
    // writing, so it overlaps neither of the others, and its rows do not overlap each other.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            into.as_mut_ptr(),
            1,
            distance as isize,
            add,
            left.values.as_ptr(),
            left.column as isize,
            left.row as isize,
            right.values.as_ptr(),
            right.column as isize,
            right.row as isize,
            1.0,
            scale,
            false,
            false,
            false,
            threads,
        );
    }
}
