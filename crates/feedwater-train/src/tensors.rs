//! How do weights travel? As safetensors, under the names that PyTorch gives them.

use std::{borrow::Cow, collections::HashMap, fs, path::Path};

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors, View};

use crate::{Error, Result};

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
