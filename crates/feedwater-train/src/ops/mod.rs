//! Which operations are worth a derivative of their own?
//!
//! Those that would be hundreds of small ones otherwise: a recurrent layer is a few per time step, a CTC loss a few per
//! time step and label. Here each is one node of the graph, computed on the host.

mod ctc;
mod fast;
mod lstm;

use std::fmt::Debug;

use burn_autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn_flex::{Flex, FlexTensor};
use burn_tensor::{Tensor, TensorData};

pub use ctc::{ctc_greedy, ctc_loss};
pub use lstm::{Direction, lstm};

use crate::weights::on_host;

/// An operation from numbers to numbers, all of them on the host.
trait Operation<const N: usize>: Debug + Send + 'static {
    /// What the way back needs of the way there.
    type Kept: Clone + Debug + Send + 'static;

    fn forward(&self, inputs: [Vec<f32>; N]) -> (Vec<f32>, Self::Kept);

    /// The gradients of the inputs, from what was kept and the gradient of the output.
    fn backward(self, kept: Self::Kept, gradient: Vec<f32>) -> [Vec<f32>; N];
}

/// Runs an operation on flat tensors, and puts it into the graph where there is one.
fn run<const N: usize, O: Operation<N>>(operation: O, inputs: [Tensor<1>; N]) -> Tensor<1> {
    let device = inputs[0].device();
    if inputs.iter().all(|input| !input.is_autodiff()) {
        let (output, _) = operation.forward(inputs.map(on_host));
        let count = output.len();
        return Tensor::from_data(TensorData::new(output, [count]), &device);
    }
    let parts = inputs.map(|input| {
        let input = input.autodiff().try_into_primitive::<Autodiff<Flex>>();
        input.expect("training is on the CPU's device").into_parts()
    });
    let (values, nodes) = split(parts);
    let (output, kept) = operation.forward(values.map(numbers));
    let output = tensor(output);
    let output = match Node(operation).prepare::<NoCheckpointing>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(kept, output),
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    };
    Tensor::from_primitive::<Autodiff<Flex>>(output)
}

fn split<A, B, const N: usize>(pairs: [(A, B); N]) -> ([A; N], [B; N]) {
    let mut second = Vec::with_capacity(N);
    let first = pairs.map(|(a, b)| {
        second.push(b);
        a
    });
    (first, second.try_into().unwrap_or_else(|_| unreachable!("as many as there were pairs")))
}

fn numbers(tensor: FlexTensor) -> Vec<f32> {
    tensor.into_data().try_into_vec().expect("training is in single precision")
}

fn tensor(values: Vec<f32>) -> FlexTensor {
    let count = values.len();
    FlexTensor::from_data(TensorData::new(values, [count]))
}

/// An operation as a node of the graph.
#[derive(Debug)]
struct Node<O>(O);

impl<const N: usize, O: Operation<N>> Backward<Flex, N> for Node<O> {
    type State = O::Kept;

    fn backward(self, ops: Ops<O::Kept, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<Flex>(&ops.node);
        let found = self.0.backward(ops.state, numbers(gradient));
        for (node, gradient) in ops.parents.into_iter().zip(found) {
            if let Some(node) = node {
                gradients.register::<Flex>(node.id, tensor(gradient));
            }
        }
    }
}
