//! The same operations, made of Burn's own: for devices that are not the CPU's, and to compare the others with.

use burn_tensor::{
    Device, Int, Tensor, TensorData,
    activation::{gelu as burn_gelu, log_softmax, sigmoid, softmax, tanh},
    module::conv1d as burn_conv1d,
    ops::ConvOptions,
};

use super::{Direction, Heads};

/// As [`linear`](super::linear).
pub fn linear(x: Tensor<1>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<1> {
    let [outputs, inputs] = weight.dims();
    let rows = x.dims()[0] / inputs;
    let y = x.reshape([rows, inputs]).matmul(weight.transpose());
    let y = match bias {
        Some(bias) => y + bias.reshape([1, outputs]),
        None => y,
    };
    y.reshape([-1])
}

/// As [`conv1d`](super::conv1d).
pub fn conv1d(x: Tensor<3>, weight: Tensor<3>, bias: Tensor<1>, stride: usize) -> Tensor<3> {
    let [_, _, kernel] = weight.dims();
    let options = ConvOptions::new([stride], [kernel / 2], [1], 1);
    burn_conv1d(x.swap_dims(1, 2), weight, Some(bias), options).swap_dims(1, 2)
}

/// As [`embedding`](super::embedding).
pub fn embedding(table: Tensor<2>, places: &[u32]) -> Tensor<1> {
    let places = integers(places.iter().map(|place| i64::from(*place)), [places.len()], &table.device());
    table.select(0, places).reshape([-1])
}

/// As [`layer_norm`](super::layer_norm).
pub fn layer_norm(x: Tensor<1>, weight: Tensor<1>, bias: Tensor<1>) -> Tensor<1> {
    let width = weight.dims()[0];
    let rows = x.dims()[0] / width;
    let x = x.reshape([rows, width]);
    let centred = x.clone() - x.mean_dim(1);
    let deviation = ((centred.clone() * centred.clone()).mean_dim(1) + 1e-5).sqrt();
    (centred / deviation * weight.reshape([1, width]) + bias.reshape([1, width])).reshape([-1])
}

/// As [`gelu`](super::gelu).
pub fn gelu(x: Tensor<1>) -> Tensor<1> {
    burn_gelu(x)
}

/// As [`attention`](super::attention).
pub fn attention(q: Tensor<1>, k: Tensor<1>, v: Tensor<1>, heads: Heads, width: usize) -> Tensor<1> {
    let Heads { count, queries, keys, causal } = heads;
    let rows = q.dims()[0] / (queries * width).max(1);
    let device = q.device();
    let split = |x: Tensor<1>, steps: usize| x.reshape([rows, steps, count, width / count]).swap_dims(1, 2);
    let scale = ((width / count) as f64).sqrt();
    let mut scores = split(q, queries).matmul(split(k, keys).swap_dims(2, 3)) / scale;
    if causal {
        let hidden = (0..queries * keys).map(|at| {
            let sees = (keys + at / keys + 1).saturating_sub(queries);
            if at % keys < sees { 0.0 } else { -1e9 }
        });
        scores = scores + floats(hidden, [1, 1, queries, keys], &device);
    }
    softmax(scores, 3).matmul(split(v, keys)).swap_dims(1, 2).reshape([-1])
}

/// As [`cross_entropy`](super::cross_entropy).
pub fn cross_entropy(logits: Tensor<1>, classes: usize, right: &[i64]) -> Tensor<1> {
    let (rows, device) = (right.len(), logits.device());
    let counted = right.iter().filter(|right| **right >= 0).count();
    let weight = right.iter().map(|right| if *right < 0 { 0.0 } else { -1.0 / counted as f32 });
    let places = integers(right.iter().map(|right| (*right).max(0)), [rows, 1], &device);
    let logs = log_softmax(logits.reshape([rows, classes]), 1).gather(1, places);
    (logs * floats(weight, [rows, 1], &device)).sum()
}

/// As [`mean_squared`](super::mean_squared).
pub fn mean_squared(x: Tensor<1>, right: Vec<f32>, counted: &[bool]) -> Tensor<1> {
    let (count, device) = (counted.len(), x.device());
    let of = counted.iter().filter(|counted| **counted).count().max(1) as f32;
    let off = x - floats(right, [count], &device);
    let weight = counted.iter().map(|counted| if *counted { 1.0 / of } else { 0.0 });
    (off.clone() * off * floats(weight, [count], &device)).sum()
}

/// As [`lstm`](super::lstm).
pub fn lstm(forwards: Direction, backwards: Direction, lengths: &[usize]) -> Tensor<3> {
    Tensor::cat(vec![direction(forwards, lengths, false), direction(backwards, lengths, true)], 2)
}

fn direction(Direction { gates, recurrent }: Direction, lengths: &[usize], reverse: bool) -> Tensor<3> {
    let [rows, steps, wide] = gates.dims();
    let [_, hidden] = recurrent.dims();
    let device = gates.device();
    // Backwards, a row begins at its own end: its frames are taken in that order, and put back in it.
    let order = |wide: usize| {
        let at = lengths.iter().flat_map(|length| (0..steps).map(move |at| length.saturating_sub(at + 1)));
        integers(at.map(|at| at as i64), [rows, steps, 1], &device).expand([rows, steps, wide])
    };
    let gates = if reverse { gates.gather(1, order(wide)) } else { gates };
    let weights = recurrent.transpose();
    let (mut output, mut cell) =
        (Tensor::<2>::zeros([rows, hidden], &device), Tensor::<2>::zeros([rows, hidden], &device));
    let mut outputs = Vec::with_capacity(steps);
    for at in 0..steps {
        let given = gates.clone().slice([0..rows, at..at + 1]).reshape([rows, wide]);
        let sum = given + output.matmul(weights.clone());
        let gate = |k: usize| sum.clone().slice([0..rows, k * hidden..(k + 1) * hidden]);
        cell = sigmoid(gate(1)) * cell + sigmoid(gate(0)) * tanh(gate(2));
        output = sigmoid(gate(3)) * tanh(cell.clone());
        outputs.push(output.clone().unsqueeze_dim::<3>(1));
    }
    let outputs = Tensor::cat(outputs, 1);
    let outputs = if reverse { outputs.gather(1, order(hidden)) } else { outputs };
    let there = lengths.iter().flat_map(|length| (0..steps).map(move |at| f32::from(u8::from(at < *length))));
    outputs * floats(there, [rows, steps, 1], &device)
}

/// A loss that is known together with its gradient: what a way of its own through the host gives.
pub(super) fn given(x: Tensor<1>, loss: f32, gradient: Vec<f32>) -> Tensor<1> {
    let (count, device) = (gradient.len(), x.device());
    let gradient = floats(gradient, [count], &device);
    let here = (x.clone().detach() * gradient.clone()).sum();
    (x * gradient).sum() - here + floats([loss], [1], &device)
}

fn floats<const D: usize>(
    values: impl IntoIterator<Item = f32>,
    shape: [usize; D],
    device: &Device,
) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.into_iter().collect::<Vec<f32>>(), shape), device)
}

fn integers<const D: usize>(
    values: impl IntoIterator<Item = i64>,
    shape: [usize; D],
    device: &Device,
) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(values.into_iter().collect::<Vec<i64>>(), shape), device)
}
