//! Are the derivatives that are written by hand the true ones? Compared with differences, and with the same thing made of
//! Burn's own operations.

#![expect(clippy::unwrap_used, reason = "a test that fails may stop")]

use burn_tensor::{Device, Tensor, TensorData};
use feedwater_train::ops::{
    Direction, Heads, attention, conv1d, cross_entropy, ctc_greedy, ctc_loss, embedding, gelu, layer_norm,
    linear, lstm, mean_squared, plain,
};
use proptest::prelude::*;

fn device() -> Device {
    Device::flex().autodiff()
}

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1_u64 << 24) as f32 * 2.0 - 1.0
        })
        .collect()
}

fn leaf<const D: usize>(seed: u64, shape: [usize; D]) -> Tensor<D> {
    let count = shape.iter().product();
    Tensor::from_data(TensorData::new(numbers(seed, count), shape), &device()).require_grad()
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data_as::<f32>().try_into_vec().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_recurrent_layer_is_its_steps(
        seed in 1_u64..1000, hidden in 1_usize..5, lengths in prop::collection::vec(1_usize..6, 1..4)
    ) {
        let (rows, steps) = (lengths.len(), *lengths.iter().max().unwrap() + 1);
        let shape = [rows, steps, 4 * hidden];
        let (a, b) = (leaf(seed, shape), leaf(seed + 1, shape));
        let (u, v) = (leaf(seed + 2, [4 * hidden, hidden]), leaf(seed + 3, [4 * hidden, hidden]));
        let weigh = Tensor::<3>::from_data(
            TensorData::new(numbers(seed + 4, rows * steps * 2 * hidden), [rows, steps, 2 * hidden]), &device());

        let ours = lstm(
            Direction { gates: a.clone(), recurrent: u.clone() },
            Direction { gates: b.clone(), recurrent: v.clone() },
            &lengths,
        );
        let theirs = plain::lstm(
            Direction { gates: a.clone(), recurrent: u.clone() },
            Direction { gates: b.clone(), recurrent: v.clone() },
            &lengths,
        );
        for (ours, theirs) in values(ours.clone()).into_iter().zip(values(theirs.clone())) {
            prop_assert!((ours - theirs).abs() < 1e-5);
        }
        let mut one = (ours * weigh.clone()).sum().backward();
        let mut other = (theirs * weigh).sum().backward();
        macro_rules! same { ($leaf:expr) => {
            let (ours, theirs) = ($leaf.grad_remove(&mut one).unwrap(), $leaf.grad_remove(&mut other).unwrap());
            for (ours, theirs) in values(ours).into_iter().zip(values(theirs)) {
                prop_assert!((ours - theirs).abs() < 1e-5, "{} and {}", ours, theirs);
            }
        } }
        same!(a);
        same!(b);
        same!(u);
        same!(v);
    }
}

#[test]
fn the_gradient_of_ctc_is_that_of_differences() {
    let (rows, frames, classes) = (3, 7, 4);
    let (lengths, texts) = (vec![7, 5, 6], vec![vec![1, 1, 2], vec![], vec![3, 2]]);
    let start = numbers(5, rows * frames * classes);
    let loss = |values: &[f32]| {
        let logits = Tensor::<3>::from_data(
            TensorData::new(values.to_vec(), [rows, frames, classes]),
            &Device::flex(),
        );
        ctc_loss(logits, &lengths, &texts).into_scalar::<f64>()
    };
    let logits = Tensor::<3>::from_data(TensorData::new(start.clone(), [rows, frames, classes]), &device())
        .require_grad();
    let mut gradients = ctc_loss(logits.clone(), &lengths, &texts).backward();
    let gradient = values(logits.grad_remove(&mut gradients).unwrap());
    for at in 0..start.len() {
        let shifted = |by: f32| {
            let mut values = start.clone();
            values[at] += by;
            loss(&values)
        };
        let difference = (shifted(1e-2) - shifted(-1e-2)) / 2e-2;
        assert!(
            (difference - f64::from(gradient[at])).abs() < 2e-3,
            "at {at}: {difference} and {}",
            gradient[at]
        );
    }
}

#[test]
fn a_text_that_does_not_fit_counts_nothing() {
    let logits = leaf(3, [1, 2, 4]);
    let loss = ctc_loss(logits.clone(), &[2], &[vec![1, 1, 2]]);
    let mut gradients = loss.backward();
    assert!(loss.into_scalar::<f64>().abs() < 1e-9);
    assert!(values(logits.grad_remove(&mut gradients).unwrap()).iter().all(|value| *value == 0.0));
}

#[test]
fn repeats_and_blanks_are_left_out() {
    let classes = [0, 1, 1, 0, 1, 2, 2, 0, 3];
    let mut values = vec![0.0_f32; classes.len() * 4];
    for (frame, class) in classes.iter().enumerate() {
        values[frame * 4 + class] = 1.0;
    }
    let logits = Tensor::<3>::from_data(TensorData::new(values, [1, classes.len(), 4]), &Device::flex());
    assert_eq!(ctc_greedy(logits.clone(), &[classes.len()]), [[1, 1, 2, 3]]);
    assert_eq!(ctc_greedy(logits, &[4]), [[1]]);
}

/// The gradients of the weighted sum of two results, of all leaves, are the same.
fn same_gradients(ours: Tensor<1>, theirs: Tensor<1>, leaves: &[Tensor<1>], within: f32) {
    let count = ours.dims()[0];
    for (ours, theirs) in values(ours.clone()).into_iter().zip(values(theirs.clone())) {
        assert!((ours - theirs).abs() < within, "{ours} and {theirs}");
    }
    let weigh = Tensor::<1>::from_data(TensorData::new(numbers(99, count), [count]), &device());
    let mut one = (ours * weigh.clone()).sum().backward();
    let mut other = (theirs * weigh).sum().backward();
    for (place, leaf) in leaves.iter().enumerate() {
        let (ours, theirs) = (leaf.grad_remove(&mut one).unwrap(), leaf.grad_remove(&mut other).unwrap());
        for (ours, theirs) in values(ours).into_iter().zip(values(theirs)) {
            assert!((ours - theirs).abs() < within, "leaf {place}: {ours} and {theirs}");
        }
    }
}

fn flat(seed: u64, count: usize) -> Tensor<1> {
    leaf(seed, [count])
}

#[test]
fn a_linear_layer_a_convolution_and_a_table_are_what_burn_makes_of_them() {
    let (rows, inputs, outputs) = (7, 5, 4);
    let (x, w, b) = (flat(1, rows * inputs), flat(2, outputs * inputs), flat(3, outputs));
    let weight = || w.clone().reshape([outputs, inputs]);
    let ours = linear(x.clone(), weight(), Some(b.clone()));
    let theirs = plain::linear(x.clone(), weight(), Some(b.clone()));
    same_gradients(ours, theirs, &[x, w, b], 1e-5);

    for (frames, stride) in [(9, 1), (9, 2), (8, 2)] {
        let (rows, channels, outputs, kernel) = (2, 3, 4, 5);
        let (x, w, b) =
            (flat(4, rows * frames * channels), flat(5, outputs * channels * kernel), flat(6, outputs));
        let (input, weight) = (
            || x.clone().reshape([rows, frames, channels]),
            || w.clone().reshape([outputs, channels, kernel]),
        );
        let ours = conv1d(input(), weight(), b.clone(), stride).reshape([-1]);
        let theirs = plain::conv1d(input(), weight(), b.clone(), stride).reshape([-1]);
        same_gradients(ours, theirs, &[x, w, b], 1e-5);
    }

    let (table, places) = (flat(7, 6 * 3), vec![5, 0, 0, 2]);
    let ours = embedding(table.clone().reshape([6, 3]), places.clone());
    same_gradients(ours, plain::embedding(table.clone().reshape([6, 3]), &places), &[table], 1e-6);
}

#[test]
fn a_normalisation_and_gelu_are_what_burn_makes_of_them() {
    let (x, w, b) = (flat(1, 6 * 11), flat(2, 11), flat(3, 11));
    let ours = layer_norm(x.clone(), w.clone(), b.clone());
    let theirs = plain::layer_norm(x.clone(), w.clone(), b.clone());
    same_gradients(ours, theirs, &[x, w, b], 1e-4);
    let x = flat(4, 300);
    same_gradients(gelu(x.clone() * 6.0), plain::gelu(x.clone() * 6.0), &[x], 2e-5);
}

#[test]
fn attention_is_what_burn_makes_of_it() {
    for (queries, keys, causal) in [(70, 70, true), (5, 9, false), (1, 4, true), (130, 3, false)] {
        let (rows, count, width) = (2, 2, 6);
        let heads = Heads { count, queries, keys, causal };
        let (q, k, v) =
            (flat(1, rows * queries * width), flat(2, rows * keys * width), flat(3, rows * keys * width));
        let ours = attention(q.clone(), k.clone(), v.clone(), heads, width);
        let theirs = plain::attention(q.clone(), k.clone(), v.clone(), heads, width);
        same_gradients(ours, theirs, &[q, k, v], 2e-5);
    }
}

#[test]
fn losses_leave_out_what_does_not_count() {
    let (classes, right) = (5, [2, -100, 0, 4]);
    let x = flat(1, right.len() * classes);
    let ours = cross_entropy(x.clone() * 3.0, classes, &right);
    same_gradients(ours, plain::cross_entropy(x.clone() * 3.0, classes, &right), &[x], 1e-6);
    let (x, counted) = (flat(2, 6), vec![true, false, true, true, false, true]);
    let ours = mean_squared(x.clone(), numbers(3, 6), counted.clone());
    same_gradients(ours, plain::mean_squared(x.clone(), numbers(3, 6), &counted), &[x], 1e-6);
}
