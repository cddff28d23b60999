//! What does a model learn? Numbers under the names that PyTorch gives them, so that files travel both ways.
//!
//! Each weight is a flat leaf of the graph and gets its shape where it is used. So the optimizer, the clipping and the
//! files know of no shapes but the ones that are written down.

use std::{borrow::Cow, collections::HashMap, fs, path::Path};

use burn_tensor::{Device, Gradients, Tensor, TensorData};
use half::{bf16, f16};
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use safetensors::{Dtype, SafeTensors, View};

use crate::{Error, Result};

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

/// Numbers with a name and a shape, on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// The name.
    pub name: String,
    /// The shape.
    pub shape: Vec<usize>,
    /// The numbers.
    pub values: Vec<f32>,
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

struct Bytes<'a>(&'a Named);

impl View for Bytes<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(bytemuck::cast_slice(&self.0.values))
    }

    fn data_len(&self) -> usize {
        self.0.values.len() * 4
    }
}

/// Numbers as a safetensors file.
pub fn to_safetensors(named: &[Named]) -> Result<Vec<u8>> {
    let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let each = named.iter().map(|named| (named.name.as_str(), Bytes(named)));
    safetensors::serialize(each, Some(about))
        .map_err(|error| Error::config(format!("the weights make no file: {error}"), "a weight is too large"))
}

/// The numbers of a safetensors file, as single precision.
pub fn read_safetensors(path: &Path) -> Result<Vec<Named>> {
    let bytes = fs::read(path).map_err(Error::read(path))?;
    let wrong = |what: String| Error::Checkpoint { path: path.to_owned(), what };
    let file = SafeTensors::deserialize(&bytes).map_err(|error| wrong(error.to_string()))?;
    let mut found = Vec::new();
    for (name, view) in file.iter() {
        let bytes = view.data();
        let values: Vec<f32> = match view.dtype() {
            Dtype::F32 => {
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
            Dtype::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            Dtype::BF16 => {
                bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
            }
            // Counters, as of normalisation: none of our models has them.
            Dtype::I64 => continue,
            other => {
                return Err(wrong(format!("`{name}` is of type {other:?}; F32, F16 or BF16 can be read")));
            }
        };
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            let hint = "training went wrong before it was saved: take an earlier checkpoint";
            return Err(wrong(format!("`{name}` has a {} at {at}\nhint: {hint}", values[at])));
        }
        found.push(Named { name: name.to_owned(), shape: view.shape().to_vec(), values });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}
