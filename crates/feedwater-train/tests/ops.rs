//! Are the derivatives that are written by hand the true ones? Compared with differences, and with the same thing made of
//! Burn's own operations.

#![expect(clippy::unwrap_used, reason = "a test that fails may stop")]

use burn_tensor::{
    Device, Tensor, TensorData,
    activation::{sigmoid, tanh},
};
use feedwater_train::ops::{
    Direction, Heads, attention, conv1d, cross_entropy, ctc_greedy, ctc_loss, embedding, gelu, layer_norm,
    linear, lstm,
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

/// One direction, a step at a time, of Burn's operations.
fn plain(gates: &Tensor<3>, recurrent: &Tensor<2>, lengths: &[usize], reverse: bool) -> Tensor<3> {
    let [_, steps, _] = gates.dims();
    let [_, hidden] = recurrent.dims();
    let mut all = Vec::new();
    for (row, &length) in lengths.iter().enumerate() {
        let mut output = Tensor::<2>::zeros([1, hidden], &device());
        let mut cell = Tensor::<2>::zeros([1, hidden], &device());
        let mut outputs = vec![Tensor::<2>::zeros([1, hidden], &device()); steps];
        for at in 0..length {
            let step = if reverse { length - 1 - at } else { at };
            let given = gates.clone().slice([row..row + 1, step..step + 1]).reshape([1, 4 * hidden]);
            let sum = given + output.matmul(recurrent.clone().transpose());
            let gate = |k: usize| sum.clone().slice([0..1, k * hidden..(k + 1) * hidden]);
            cell = sigmoid(gate(1)) * cell + sigmoid(gate(0)) * tanh(gate(2));
            output = sigmoid(gate(3)) * tanh(cell.clone());
            outputs[step] = output.clone();
        }
        all.push(Tensor::cat(outputs, 0).unsqueeze_dim::<3>(0));
    }
    Tensor::cat(all, 0)
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
        let theirs = Tensor::cat(
            vec![plain(&a, &u, &lengths, false), plain(&b, &v, &lengths, true)], 2);
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
    let ours = linear(x.clone(), w.clone().reshape([outputs, inputs]), Some(b.clone()));
    let theirs = x.clone().reshape([rows, inputs]).matmul(w.clone().reshape([outputs, inputs]).transpose())
        + b.clone().reshape([1, outputs]);
    same_gradients(ours, theirs.reshape([-1]), &[x, w, b], 1e-5);

    for (frames, stride) in [(9, 1), (9, 2), (8, 2)] {
        let (rows, channels, outputs, kernel) = (2, 3, 4, 5);
        let (x, b) = (flat(4, rows * frames * channels), flat(6, outputs));
        let w = flat(5, outputs * channels * kernel);
        let shaped = || w.clone().reshape([outputs, channels, kernel]);
        let ours = conv1d(x.clone().reshape([rows, frames, channels]), shaped(), b.clone(), stride);
        let theirs = burn_tensor::module::conv1d(
            x.clone().reshape([rows, frames, channels]).swap_dims(1, 2),
            shaped(),
            Some(b.clone()),
            burn_tensor::ops::ConvOptions::new([stride], [kernel / 2], [1], 1),
        );
        same_gradients(ours.reshape([-1]), theirs.swap_dims(1, 2).reshape([-1]), &[x, w, b], 1e-5);
    }

    let (table, places) = (flat(7, 6 * 3), vec![5, 0, 0, 2]);
    let ours = embedding(table.clone().reshape([6, 3]), places.clone());
    let rows = places.iter().map(|place| {
        let place = *place as usize;
        table.clone().reshape([6, 3]).slice([place..place + 1, 0..3])
    });
    let theirs = Tensor::cat(rows.collect(), 0).reshape([-1]);
    same_gradients(ours, theirs, &[table], 1e-6);
}

#[test]
fn a_normalisation_and_gelu_are_what_burn_makes_of_them() {
    let (rows, width) = (6, 11);
    let (x, w, b) = (flat(1, rows * width), flat(2, width), flat(3, width));
    let ours = layer_norm(x.clone(), w.clone(), b.clone());
    let rowed = x.clone().reshape([rows, width]);
    let centred = rowed.clone() - rowed.mean_dim(1);
    let deviation = ((centred.clone() * centred.clone()).mean_dim(1) + 1e-5).sqrt();
    let theirs = centred / deviation * w.clone().reshape([1, width]) + b.clone().reshape([1, width]);
    same_gradients(ours, theirs.reshape([-1]), &[x, w, b], 1e-4);

    let x = flat(4, 300);
    same_gradients(gelu(x.clone() * 6.0), burn_tensor::activation::gelu(x.clone() * 6.0), &[x], 2e-5);
}

#[test]
fn attention_is_what_burn_makes_of_it() {
    for (queries, keys, causal) in [(70, 70, true), (5, 9, false), (1, 4, true), (130, 3, false)] {
        let (rows, count, width) = (2, 2, 6);
        let heads = Heads { count, queries, keys, causal };
        let (q, k, v) =
            (flat(1, rows * queries * width), flat(2, rows * keys * width), flat(3, rows * keys * width));
        let ours = attention(q.clone(), k.clone(), v.clone(), heads, width);
        let split = |x: &Tensor<1>, steps: usize| {
            x.clone().reshape([rows, steps, count, width / count]).swap_dims(1, 2)
        };
        let mut scores =
            split(&q, queries).matmul(split(&k, keys).swap_dims(2, 3)) / ((width / count) as f64).sqrt();
        if causal {
            let hidden: Vec<f32> = (0..queries * keys)
                .map(|at| if at % keys > at / keys + keys - queries { -1e9 } else { 0.0 })
                .collect();
            scores =
                scores + Tensor::<4>::from_data(TensorData::new(hidden, [1, 1, queries, keys]), &device());
        }
        let theirs = burn_tensor::activation::softmax(scores, 3).matmul(split(&v, keys)).swap_dims(1, 2);
        same_gradients(ours, theirs.reshape([-1]), &[q, k, v], 2e-5);
    }
}

#[test]
fn a_cross_entropy_leaves_out_what_has_no_class() {
    let (rows, classes) = (4, 5);
    let x = flat(1, rows * classes);
    let ours = cross_entropy(x.clone() * 3.0, classes, &[2, -100, 0, 4]);
    let logs = burn_tensor::activation::log_softmax((x.clone() * 3.0).reshape([rows, classes]), 1);
    let pick = |row: usize, class: usize| logs.clone().slice([row..row + 1, class..class + 1]).reshape([1]);
    let theirs = (pick(0, 2) + pick(2, 0) + pick(3, 4)) * (-1.0 / 3.0);
    same_gradients(ours, theirs, &[x], 1e-6);
}
