//! Which operations are worth a derivative of their own?
//!
//! Those that would be hundreds of small ones otherwise (a recurrent layer is a few per time step, a CTC loss a few per
//! time step and label), and those whose steps would each write all numbers to memory once more (a linear layer with its
//! bias, a normalisation, attention). Here each is one node of the graph, computed on the CPU. On another device they are
//! made of Burn's own operations, in [`plain`].

mod attention;
mod conv;
mod ctc;
mod embedding;
mod fast;
mod linear;
mod lstm;
mod loss;
mod norm;
pub mod plain;

use std::{fmt::Debug, ops::Deref};

use burn_autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn_flex::{Flex, FlexTensor};
use burn_tensor::{Device, Tensor, TensorData};

pub use attention::{Heads, attention};
pub use conv::conv1d;
pub use ctc::{ctc_greedy, ctc_loss};
pub use embedding::embedding;
pub use linear::linear;
pub use loss::{cross_entropy, mean_squared};
pub use lstm::{Direction, lstm};
pub use norm::{gelu, layer_norm};

/// Whether a tensor is where these operations are. Elsewhere they are [`plain`].
fn is_here<const D: usize>(tensor: &Tensor<D>) -> bool {
    tensor.device().inner() == Device::flex()
}

/// The numbers of a tensor, one after another; a second holder costs nothing.
#[derive(Clone, Debug)]
struct Numbers(FlexTensor);

impl Numbers {
    fn of(tensor: FlexTensor) -> Self {
        Self(if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() })
    }

    /// To be changed: copied only where somebody else holds them too.
    fn into_vec(self) -> Vec<f32> {
        self.0.into_data().try_into_vec().expect("training is in single precision")
    }
}

impl Deref for Numbers {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        self.0.as_slice().expect("training is in single precision, one number after another")
    }
}

/// An operation from numbers to numbers, all of them on the host.
trait Operation<const N: usize>: Debug + Send + 'static {
    /// What the way back needs of the way there.
    type Kept: Clone + Debug + Send + 'static;

    fn forward(&self, inputs: [Numbers; N]) -> (Vec<f32>, Self::Kept);

    /// The gradients of the inputs, from what was kept and the gradient of the output. Those that nobody wants may be empty.
    fn backward(self, kept: Self::Kept, gradient: Numbers, wanted: [bool; N]) -> [Vec<f32>; N];
}

/// Runs an operation on flat tensors, and puts it into the graph where there is one.
fn run<const N: usize, O: Operation<N>>(operation: O, inputs: [Tensor<1>; N]) -> Tensor<1> {
    if inputs.iter().all(|input| !input.is_autodiff()) {
        let values = inputs.map(|input| {
            let input = input.try_into_primitive::<Flex>().expect("training is on the CPU's device");
            Numbers::of(input)
        });
        return Tensor::from_primitive::<Flex>(tensor(operation.forward(values).0));
    }
    let parts = inputs.map(|input| {
        let input = input.autodiff().try_into_primitive::<Autodiff<Flex>>();
        input.expect("training is on the CPU's device").into_parts()
    });
    let (values, nodes) = split(parts);
    let (output, kept) = operation.forward(values.map(Numbers::of));
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
        let wanted = std::array::from_fn(|place| ops.parents[place].is_some());
        let found = self.0.backward(ops.state, Numbers::of(gradient), wanted);
        for (node, gradient) in ops.parents.into_iter().zip(found) {
            if let Some(node) = node {
                gradients.register::<Flex>(node.id, tensor(gradient));
            }
        }
    }
}
