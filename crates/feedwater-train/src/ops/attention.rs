//! Who listens to whom?
//!
//! Scaled dot-product attention of several heads. The scores of a block of queries are made, used and forgotten, on the way
//! there and again on the way back: all of them together are the largest thing in a Whisper encoder by far.

use burn_tensor::Tensor;
use gemm::Parallelism;
use rayon::prelude::*;

use super::{
    Numbers, Operation, fast, is_here,
    linear::{Matrix, product, scaled_product},
    plain, run,
};

/// How queries and keys are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Heads.
    pub count: usize,
    /// Queries of a row.
    pub queries: usize,
    /// Keys of a row.
    pub keys: usize,
    /// Whether the last query sees all keys, the one before it one less, and so on.
    pub causal: bool,
}

/// Of queries `[rows, queries, width]`, keys and values `[rows, keys, width]`, all flat: `[rows, queries, width]`, flat.
pub fn attention(q: Tensor<1>, k: Tensor<1>, v: Tensor<1>, heads: Heads, width: usize) -> Tensor<1> {
    if !is_here(&q) {
        return plain::attention(q, k, v, heads, width);
    }
    run(Attention { heads, width }, [q, k, v])
}

#[derive(Clone, Copy, Debug)]
struct Attention {
    heads: Heads,
    width: usize,
}

/// So many queries at a time: their scores stay in the cache.
const BLOCK: usize = 64;
const ONE: Parallelism = Parallelism::None;

impl Attention {
    fn dim(self) -> usize {
        self.width / self.heads.count
    }

    /// Each row and head.
    fn each(self, q: &[f32]) -> impl IndexedParallelIterator<Item = (usize, usize)> {
        let rows = q.len() / (self.heads.queries * self.width).max(1);
        let heads = self.heads.count;
        (0..rows * heads).into_par_iter().map(move |at| (at / heads, at % heads))
    }

    /// One head of one row, from a place on.
    fn head(self, values: &[f32], per_row: usize, row: usize, head: usize, from: usize) -> Matrix<'_> {
        let start = (row * per_row + from) * self.width + head * self.dim();
        Matrix { values: &values[start..], row: self.width, column: 1 }
    }

    /// How many keys the last query of a block sees, and how many a query does.
    fn sees(self, query: usize) -> usize {
        let Heads { queries, keys, causal, .. } = self.heads;
        if causal { (keys + query + 1).saturating_sub(queries).min(keys) } else { keys }
    }

    /// The weights that a block of queries gives to keys, `[block, seen]`; and how many keys it sees.
    fn weights(
        self,
        scores: &mut Vec<f32>,
        q: Matrix<'_>,
        k: Matrix<'_>,
        from: usize,
        block: usize,
    ) -> usize {
        let seen = self.sees(from + block - 1);
        let scale = 1.0 / (self.dim() as f32).sqrt();
        scores.clear();
        scores.resize(block * seen, 0.0);
        scaled_product([block, seen, self.dim()], (scores, seen), q, k.turned(), false, scale, ONE);
        for (at, row) in scores.chunks_exact_mut(seen).enumerate() {
            let (sees, hidden) = row.split_at_mut(self.sees(from + at));
            fast::softmax(sees, 1.0);
            hidden.fill(0.0);
        }
        seen
    }

    /// Puts what each head made back side by side.
    fn together(self, parts: &[&[f32]], per_row: usize) -> Vec<f32> {
        let (dim, heads) = (self.dim(), self.heads.count);
        let mut whole = vec![0.0; parts.len() / heads * per_row * self.width];
        whole.par_chunks_exact_mut(per_row * self.width).enumerate().for_each(|(row, whole)| {
            for head in 0..heads {
                let part = parts[row * heads + head].chunks_exact(dim);
                for (to, from) in whole.chunks_exact_mut(self.width).zip(part) {
                    to[head * dim..][..dim].copy_from_slice(from);
                }
            }
        });
        whole
    }
}

impl Operation<3> for Attention {
    type Kept = [Numbers; 3];

    fn forward(&self, [q, k, v]: [Numbers; 3]) -> (Vec<f32>, Self::Kept) {
        let Heads { queries, keys, .. } = self.heads;
        let dim = self.dim();
        let parts: Vec<Vec<f32>> = self
            .each(&q)
            .map(|(row, head)| {
                let (mut scores, mut out) = (Vec::new(), vec![0.0; queries * dim]);
                let (k, v) = (self.head(&k, keys, row, head, 0), self.head(&v, keys, row, head, 0));
                for from in (0..queries).step_by(BLOCK) {
                    let block = BLOCK.min(queries - from);
                    let q = self.head(&q, queries, row, head, from);
                    let seen = self.weights(&mut scores, q, k, from, block);
                    let out = &mut out[from * dim..][..block * dim];
                    product([block, dim, seen], out, Matrix::of(&scores, seen), v, false, ONE);
                }
                out
            })
            .collect();
        let parts: Vec<&[f32]> = parts.iter().map(Vec::as_slice).collect();
        (self.together(&parts, queries), [q, k, v])
    }

    fn backward(self, [q, k, v]: [Numbers; 3], gradient: Numbers, _: [bool; 3]) -> [Vec<f32>; 3] {
        let Heads { queries, keys, .. } = self.heads;
        let dim = self.dim();
        let scale = 1.0 / (dim as f32).sqrt();
        let parts: Vec<[Vec<f32>; 3]> = self
            .each(&q)
            .map(|(row, head)| {
                let (mut weights, mut of_weights) = (Vec::new(), Vec::new());
                let mut of_q = vec![0.0; queries * dim];
                let (mut of_k, mut of_v) = (vec![0.0; keys * dim], vec![0.0; keys * dim]);
                let (k, v) = (self.head(&k, keys, row, head, 0), self.head(&v, keys, row, head, 0));
                for from in (0..queries).step_by(BLOCK) {
                    let block = BLOCK.min(queries - from);
                    let q = self.head(&q, queries, row, head, from);
                    let seen = self.weights(&mut weights, q, k, from, block);
                    let given = self.head(&gradient, queries, row, head, from);
                    let turned = Matrix::of(&weights, seen).turned();
                    product([seen, dim, block], &mut of_v, turned, given, true, ONE);
                    of_weights.clear();
                    of_weights.resize(block * seen, 0.0);
                    product([block, seen, dim], &mut of_weights, given, v.turned(), false, ONE);
                    for (weights, of) in weights.chunks_exact(seen).zip(of_weights.chunks_exact_mut(seen)) {
                        fast::softmax_back(weights, of, scale);
                    }
                    let of_scores = Matrix::of(&of_weights, seen);
                    let to = &mut of_q[from * dim..][..block * dim];
                    product([block, dim, seen], to, of_scores, k, false, ONE);
                    product([seen, dim, block], &mut of_k, of_scores.turned(), q, true, ONE);
                }
                [of_q, of_k, of_v]
            })
            .collect();
        let of = |which: usize, per_row: usize| {
            let parts: Vec<&[f32]> = parts.iter().map(|part| part[which].as_slice()).collect();
            self.together(&parts, per_row)
        };
        [of(0, queries), of(1, keys), of(2, keys)]
    }
}
