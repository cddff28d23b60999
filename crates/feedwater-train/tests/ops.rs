//! Are the derivatives that are written by hand the true ones? Compared with differences, and with the same thing made of
//! Burn's own operations.

#![expect(clippy::unwrap_used, reason = "a test that fails may stop")]

use burn_tensor::{
    Device, Tensor, TensorData,
    activation::{sigmoid, tanh},
};
use feedwater_train::ops::{Direction, ctc_greedy, ctc_loss, lstm};
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
