//! What does a model learn? Numbers under the names that PyTorch gives them, so that files travel both ways.
//!
//! Each weight is a flat leaf of the graph and gets its shape where it is used. So the optimizer, the clipping and the
//! files know of no shapes but the ones that are written down.

use std::collections::HashMap;

use burn_tensor::{Device, Gradients, Tensor, TensorData};
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;

pub use crate::tensors::{Named, read_safetensors, to_safetensors};

/// Named weights on a device.
pub struct Weights {
    device: Device,
    names: Vec<String>,
    shapes: Vec<Vec<usize>>,
    values: Vec<Tensor<1>>,
    places: HashMap<String, usize>,
    fixed: Vec<usize>,
}

/// How a new weight begins.
#[derive(Clone, Copy, Debug)]
pub enum Init {
    /// All the same.
    Constant(f32),
    /// Anything between minus and plus this, equally likely.
    Uniform(f32),
    /// A normal distribution with this deviation.
    Normal(f32),
}

impl Weights {
    /// None yet.
    pub fn new(device: &Device) -> Self {
        let (names, shapes, values) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            device: device.clone().autodiff(),
            names,
            shapes,
            values,
            places: HashMap::new(),
            fixed: Vec::new(),
        }
    }

    /// Adds one.
    pub fn add(&mut self, name: impl Into<String>, shape: &[usize], init: Init, rng: &mut Pcg64Mcg) {
        let count = shape.iter().product();
        let values = match init {
            Init::Constant(value) => vec![value; count],
            Init::Uniform(most) => (0..count).map(|_| (unit(rng) * 2.0 - 1.0) as f32 * most).collect(),
            Init::Normal(deviation) => (0..count).map(|_| normal(rng) as f32 * deviation).collect(),
        };
        self.insert(name.into(), shape.to_vec(), values);
    }

    /// Adds one with these numbers.
    pub fn put(&mut self, name: &str, shape: &[usize], values: Vec<f32>) {
        self.insert(name.to_owned(), shape.to_vec(), values);
    }

    fn insert(&mut self, name: String, shape: Vec<usize>, values: Vec<f32>) {
        self.places.insert(name.clone(), self.names.len());
        self.names.push(name);
        self.shapes.push(shape);
        self.values.push(leaf(values, &self.device));
    }

    /// The device they are on, with derivatives.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A tensor of the same device, to be computed with.
    pub(crate) fn near<const D: usize>(&self, tensor: &Tensor<D>) -> Tensor<D> {
        let tensor = tensor.clone();
        if self.device.is_autodiff() { tensor.autodiff() } else { tensor }
    }

    /// How many numbers there are.
    pub fn count(&self) -> usize {
        self.shapes.iter().map(|shape| shape.iter().product::<usize>()).sum()
    }

    /// Their names and shapes, in order.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.names.iter().map(String::as_str).zip(self.shapes.iter().map(Vec::as_slice))
    }

    /// Whether there is one of this name.
    pub fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// One of them, in its shape.
    ///
    /// # Panics
    ///
    /// Where there is none of this name and number of axes: a model asks for what it has made or checked.
    pub fn get<const D: usize>(&self, name: &str) -> Tensor<D> {
        let Some(place) = self.places.get(name) else { panic!("there is no weight `{name}`") };
        let shape: [usize; D] =
            self.shapes[*place].as_slice().try_into().expect("a weight is asked for with the axes it has");
        self.values[*place].clone().reshape(shape)
    }

    /// The gradients of all of them, on the host, in order; zeros where none reached a weight, or none may.
    pub(crate) fn gradients(&self, gradients: &mut Gradients) -> Vec<Vec<f32>> {
        let one = |(place, value): (usize, &Tensor<1>)| {
            let found = value.grad_remove(gradients).filter(|_| !self.fixed.contains(&place));
            found.map_or_else(|| vec![0.0; value.dims()[0]], on_host)
        };
        self.values.iter().enumerate().map(one).collect()
    }

    /// Changes all of them, each as numbers on the host.
    pub(crate) fn update(&mut self, mut change: impl FnMut(usize, &mut [f32])) {
        for (place, value) in self.values.iter_mut().enumerate() {
            if self.fixed.contains(&place) {
                continue;
            }
            let empty = Tensor::empty([0], &self.device);
            let mut numbers = on_host(std::mem::replace(value, empty).inner());
            change(place, &mut numbers);
            *value = leaf(numbers, &self.device);
        }
    }

    /// The same without derivatives: to use, not to learn.
    pub fn frozen(&self) -> Self {
        Self {
            device: self.device.clone().inner(),
            names: self.names.clone(),
            shapes: self.shapes.clone(),
            values: self.values.iter().map(|value| value.clone().inner()).collect(),
            places: self.places.clone(),
            fixed: self.fixed.clone(),
        }
    }

    /// All of them, on the host.
    pub fn named(&self) -> Vec<Named> {
        let each = self.names.iter().zip(&self.shapes).zip(&self.values);
        each.map(|((name, shape), value)| Named {
            name: name.clone(),
            shape: shape.clone(),
            values: on_host(value.clone().inner()),
        })
        .collect()
    }

    /// The same names in the same order, with other numbers; what is not among them stays, and what is not asked for is
    /// left out.
    #[must_use]
    pub fn with(&self, others: Vec<Named>) -> Self {
        let mut others: HashMap<String, Named> =
            others.into_iter().map(|other| (other.name.clone(), other)).collect();
        let mut weights = Self::new(&self.device);
        for own in self.named() {
            let other = others.remove(&own.name).filter(|other| other.shape == own.shape);
            let Named { name, shape, values } = other.unwrap_or(own);
            weights.insert(name, shape, values);
        }
        weights.fixed.clone_from(&self.fixed);
        weights
    }

    /// Learning leaves this one as it is.
    pub fn fix(&mut self, name: &str) {
        self.fixed.push(self.places[name]);
    }

    /// Whether these are the same names with the same shapes; otherwise, what differs.
    pub fn fits(&self, others: &[Named]) -> Result<(), String> {
        for (name, shape) in self.names.iter().zip(&self.shapes) {
            match others.iter().find(|other| other.name == *name) {
                None => return Err(format!("it has no `{name}`")),
                Some(other) if other.shape != *shape => {
                    return Err(format!("its `{name}` is {:?}, and {shape:?} is wanted", other.shape));
                }
                Some(_) => {}
            }
        }
        match others.iter().find(|other| !self.has(&other.name)) {
            Some(other) => Err(format!("it has a `{}`, which the model does not", other.name)),
            None => Ok(()),
        }
    }
}

fn leaf(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), device).require_grad()
}

/// A tensor's numbers.
pub(crate) fn on_host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data_as::<f32>().try_into_vec().expect("the numbers were made single precision")
}

fn unit(rng: &mut Pcg64Mcg) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

fn normal(rng: &mut Pcg64Mcg) -> f64 {
    let radius = (-2.0 * (1.0 - unit(rng)).ln()).sqrt();
    radius * (std::f64::consts::TAU * unit(rng)).cos()
}
