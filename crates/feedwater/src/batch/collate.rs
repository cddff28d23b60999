//! Samples into rows: padded, converted, side by side.
//!
//! A field whose shape is fixed before the sample is made (Whisper's features) has its buffer from the start, and each
//! worker writes its row as soon as it has it. All other fields are written when the batch's last sample is there and
//! the longest is known.

use std::{borrow::Cow, sync::Arc};

use half::{bf16, f16, slice::HalfFloatSliceExt};

use super::{Batch, DType, IGNORED_LABEL};
use crate::{
    deliver::{
        BatchTensor, Memory, ReadyBatch, Ring,
        stream::{self, By, Convert, Same, Widened},
    },
    error::Fault,
    pipeline::Pool,
    sample::{Sample, Tensor, Value, field},
    transform::simd,
};

/// A field whose shape is known before there is a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fixed {
    pub(crate) name: &'static str,
    pub(crate) shape: Vec<usize>,
}

/// Numbers of a field that are somewhere else than in the sample, in whatever type they are kept in.
#[derive(Clone, Copy)]
pub(crate) enum Numbers<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    BF16(&'a [bf16]),
}

impl Numbers<'_> {
    fn len(&self) -> usize {
        match self {
            Self::F32(numbers) => numbers.len(),
            Self::F16(numbers) => numbers.len(),
            Self::BF16(numbers) => numbers.len(),
        }
    }
}

/// A field's numbers that are not in the sample.
pub(crate) struct Apart<'a> {
    pub(crate) name: &'a str,
    pub(crate) numbers: Numbers<'a>,
    /// Told how many bytes of them have been read.
    pub(crate) read: &'a mut dyn FnMut(usize),
}

/// A batch that is being filled.
pub(crate) struct Filling {
    pub(crate) fixed: Vec<(Fixed, Memory)>,
}

/// What collating needs to know.
pub(crate) struct Collate {
    pub(crate) batch: Batch,
    pub(crate) fixed: Vec<Fixed>,
    pub(crate) ring: Arc<Ring>,
    pub(crate) buffers: Arc<Pool<Vec<f32>>>,
}

impl Collate {
    /// Whether any field has its place in the batch before there is a sample: a bad one leaves a masked row rather than none.
    pub(crate) fn has_fixed(&self) -> bool {
        !self.fixed.is_empty()
    }

    /// Buffers for the fields of fixed shape.
    pub(crate) fn begin(&self, rows: usize) -> Filling {
        let take = |fixed: &Fixed| {
            let bytes = rows * fixed.shape.iter().product::<usize>() * self.batch.dtype.bytes();
            (fixed.clone(), self.ring.take_fixed(bytes))
        };
        Filling { fixed: self.fixed.iter().map(take).collect() }
    }

    /// Whether this one has.
    pub(crate) fn is_fixed(&self, name: &str) -> bool {
        self.fixed.iter().any(|fixed| fixed.name == name)
    }

    /// Writes the fields of fixed shape of a sample into its row, and takes their numbers out of the sample; checks that
    /// the others can travel at all.
    ///
    /// # Safety
    /// Each row is placed by one thread only.
    pub(crate) unsafe fn place(
        &self,
        filling: &Filling,
        row: usize,
        sample: &mut Sample,
        mut apart: Option<Apart>,
    ) -> Result<(), Fault> {
        for (fixed, memory) in &filling.fixed {
            let Some(Value::Tensor(tensor)) = sample.get_mut(fixed.name) else {
                return Err(Fault::new(format!("the sample has no `{}`", fixed.name)));
            };
            let fits = tensor.shape.len() == fixed.shape.len()
                && tensor
                    .shape
                    .iter()
                    .zip(&fixed.shape)
                    .enumerate()
                    .all(|(axis, (is, row))| is == row || (axis == tensor.pad_axis && is < row));
            if !fits {
                return Err(Fault::new(format!(
                    "`{}` has the shape {:?}, not {:?}",
                    fixed.name, tensor.shape, fixed.shape
                )));
            }
            let count = match &apart {
                Some(apart) if apart.name == fixed.name => apart.numbers.len(),
                _ => tensor.data.len(),
            };
            has_all(fixed.name, count, tensor)?;
            let row_bytes = fixed.shape.iter().product::<usize>() * self.batch.dtype.bytes();
            // SAFETY: the caller places each row once; nobody looks at the whole before all rows are placed.
            let out = unsafe { memory.part_mut(row * row_bytes, row_bytes) };
            let into = Into { shape: &fixed.shape, dtype: self.batch.dtype, all_bytes: memory.len() };
            match &mut apart {
                Some(apart) if apart.name == fixed.name => {
                    write_row(tensor, apart.numbers, into, apart.read, out);
                }
                _ => {
                    write_row(tensor, Numbers::F32(&tensor.data), into, &mut |_| {}, out);
                    self.buffers.give(std::mem::take(&mut tensor.data));
                }
            }
        }
        for (name, value) in sample.fields() {
            if let Value::Media(_) | Value::Bytes(_) = value {
                return Err(Fault::new(format!(
                    "`{name}` is {} when the batch is made; add `.decode(…)` to the pipeline",
                    value.kind()
                )));
            }
            if let Value::Tensor(tensor) = value
                && !self.is_fixed(name)
            {
                has_all(name, tensor.data.len(), tensor)?;
            }
            if let Some(length) = padded_length(value)
                && self.batch.pad_of(batch_name(name)).length(length).is_none()
            {
                return Err(Fault::new(format!(
                    "`{name}` is {length} long, longer than the largest static shape"
                )));
            }
        }
        Ok(())
    }

    /// Takes out the samples that cannot travel with the first of them: arrays must agree in all axes but the padded one.
    pub(crate) fn part(rows: &mut [Option<Sample>]) -> Vec<(usize, Fault)> {
        let Some(first) = rows.iter().position(Option::is_some) else { return Vec::new() };
        let (lead, others) = rows[first..].split_at_mut(1);
        let Some(lead) = &lead[0] else { return Vec::new() };
        let mut parted = Vec::new();
        for (at, row) in others.iter_mut().enumerate() {
            let Some(sample) = row else { continue };
            let fault = lead.fields().find_map(|(name, value)| match (value, sample.get(name)) {
                (Value::Tensor(lead), Some(Value::Tensor(tensor)))
                    if tensor.pad_axis != lead.pad_axis
                        || !same_but(&tensor.shape, &lead.shape, lead.pad_axis) =>
                {
                    Some(Fault::new(format!(
                        "`{name}` has the shape {:?}, which cannot be padded to travel with {:?}",
                        tensor.shape, lead.shape
                    )))
                }
                _ => None,
            });
            if let Some(fault) = fault {
                parted.push((first + 1 + at, fault));
                *row = None;
            }
        }
        parted
    }

    /// Puts a batch together. `None` stands for a bad sample.
    pub(crate) fn finish(
        &self,
        epoch: u64,
        step: u64,
        filling: Filling,
        rows: Vec<Option<Sample>>,
    ) -> ReadyBatch {
        let holes = self.has_fixed();
        let rows: Vec<Option<Sample>> =
            if holes { rows } else { rows.into_iter().flatten().map(Some).collect() };
        let valid: Vec<bool> = rows.iter().map(Option::is_some).collect();
        let mut keys = Vec::with_capacity(rows.len());
        let mut columns: Vec<(Cow<'static, str>, Vec<Option<Value>>)> = Vec::new();
        for (number, row) in rows.into_iter().enumerate() {
            let Some(mut sample) = row else {
                keys.push(String::new());
                continue;
            };
            keys.push(std::mem::take(&mut sample.key));
            for (name, value) in sample.into_fields() {
                let at = columns.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
                    columns.push((name, Vec::new()));
                    columns.len() - 1
                });
                columns[at].1.resize_with(number, || None);
                columns[at].1.push(Some(value));
            }
        }
        // By name, so that a batch does not depend on which field came first.
        columns.sort_by(|a, b| a.0.cmp(&b.0));
        let mut batch = ReadyBatch { epoch, step, keys, valid, ..ReadyBatch::default() };
        for (fixed, memory) in filling.fixed {
            let column = columns.iter_mut().find(|(name, _)| *name == fixed.name);
            let values = column.map(|(_, values)| std::mem::take(values)).unwrap_or_default();
            batch.tensors.push(self.fixed_tensor(&fixed, memory, &batch.valid, values));
        }
        for (name, mut values) in columns {
            values.resize_with(batch.valid.len(), || None);
            self.column(&name, values, &mut batch);
        }
        if self.batch.mask {
            let of = [field::INPUT_IDS, field::FEATURES, VALUES].iter().find_map(|name| batch.get(name));
            if let Some(mask) = of.map(|tensor| self.mask_of(tensor)) {
                batch.tensors.push(mask);
            }
        }
        batch
    }

    fn fixed_tensor(
        &self,
        fixed: &Fixed,
        mut memory: Memory,
        valid: &[bool],
        values: Vec<Option<Value>>,
    ) -> BatchTensor {
        let row_bytes = fixed.shape.iter().product::<usize>() * self.batch.dtype.bytes();
        let mut lengths = vec![0; valid.len()];
        let mut axis = fixed.shape.len();
        for (row, value) in values.into_iter().enumerate() {
            if let Some(Value::Tensor(tensor)) = value {
                lengths[row] = tensor.length();
                axis = tensor.pad_axis + 1;
            }
        }
        for (row, _) in valid.iter().enumerate().filter(|(_, valid)| !**valid) {
            memory.as_mut_slice()[row * row_bytes..][..row_bytes].fill(0);
        }
        let mut shape = vec![valid.len()];
        shape.extend(&fixed.shape);
        BatchTensor::new(fixed.name.to_owned(), self.batch.dtype, shape, lengths, memory, self.ring.clone())
            .padded_along(axis)
    }

    fn column(&self, name: &str, values: Vec<Option<Value>>, batch: &mut ReadyBatch) {
        match values.iter().flatten().next() {
            Some(Value::Tensor(_) | Value::Audio(_)) => {
                let tensors = values.into_iter().map(|value| match value {
                    Some(Value::Tensor(tensor)) => Some(tensor),
                    Some(Value::Audio(audio)) => {
                        let shape = vec![audio.samples.len()];
                        Some(Tensor::new(audio.samples, shape))
                    }
                    _ => None,
                });
                batch.tensors.push(self.tensors(batch_name(name), tensors.collect()));
            }
            Some(Value::Tokens(_)) => {
                let fill = if name == field::LABELS { IGNORED_LABEL } else { 0 };
                let tokens = values.into_iter().map(|value| match value {
                    Some(Value::Tokens(tokens)) => tokens,
                    _ => Vec::new(),
                });
                batch.tensors.push(self.tokens(name, &tokens.collect::<Vec<_>>(), fill));
            }
            Some(Value::Number(_)) => {
                let numbers: Vec<Option<f64>> = values
                    .into_iter()
                    .map(|value| match value {
                        Some(Value::Number(number)) => Some(number),
                        _ => None,
                    })
                    .collect();
                batch.tensors.push(self.numbers(name, &numbers));
            }
            Some(Value::Text(_)) => {
                let texts = values.into_iter().map(|value| match value {
                    Some(Value::Text(text)) => text,
                    _ => String::new(),
                });
                batch.texts.push((name.to_owned(), texts.collect()));
            }
            // Times are for cutting; nothing trains on them as they are. Media were refused before.
            Some(Value::Spans(_) | Value::Media(_) | Value::Bytes(_)) | None => {}
        }
    }

    fn tensors(&self, name: &str, rows: Vec<Option<Tensor>>) -> BatchTensor {
        let (mut row_shape, pad_axis) = rows
            .iter()
            .flatten()
            .next()
            .map(|tensor| (tensor.shape.clone(), tensor.pad_axis))
            .unwrap_or_default();
        let lengths: Vec<usize> = rows.iter().map(|row| row.as_ref().map_or(0, Tensor::length)).collect();
        let least = rows.iter().flatten().map(|tensor| tensor.pad_to).max().unwrap_or(0);
        let longest = lengths.iter().copied().max().unwrap_or(0).max(least);
        if let Some(axis) = row_shape.get_mut(pad_axis) {
            *axis = self.batch.pad_of(name).length(longest).unwrap_or(longest);
        }
        let dtype = self.batch.dtype;
        let row_bytes = row_shape.iter().product::<usize>() * dtype.bytes();
        let all_bytes = rows.len() * row_bytes;
        let mut memory = self.ring.take(all_bytes);
        if row_bytes > 0 {
            let into = Into { shape: &row_shape, dtype, all_bytes };
            for (row, out) in rows.iter().zip(memory.as_mut_slice().chunks_exact_mut(row_bytes)) {
                match row {
                    Some(tensor) => {
                        write_row(tensor, Numbers::F32(&tensor.data), into, &mut |_| {}, out);
                    }
                    None => out.fill(0),
                }
            }
        }
        for tensor in rows.into_iter().flatten() {
            self.buffers.give(tensor.data);
        }
        let mut shape = vec![lengths.len()];
        shape.extend(row_shape);
        BatchTensor::new(name.to_owned(), dtype, shape, lengths, memory, self.ring.clone())
            .padded_along(pad_axis + 1)
    }

    pub(crate) fn tokens(&self, name: &str, rows: &[Vec<u32>], fill: i64) -> BatchTensor {
        let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let width = self.batch.pad_of(name).length(longest).unwrap_or(longest);
        self.integers(name, vec![rows.len(), width], lengths, |row, out| {
            for (slot, token) in out.iter_mut().zip(&rows[row]) {
                *slot = i64::from(*token);
            }
            out[rows[row].len()..].fill(fill);
        })
    }

    /// A tensor of integers with two axes, a row at a time.
    pub(crate) fn integers(
        &self,
        name: &str,
        shape: Vec<usize>,
        lengths: Vec<usize>,
        mut write: impl FnMut(usize, &mut [i64]),
    ) -> BatchTensor {
        let (rows, width) = (shape[0], shape.get(1).copied().unwrap_or(1));
        let mut memory = self.ring.take(rows * width * 8);
        if width > 0 {
            let out: &mut [i64] = bytemuck::cast_slice_mut(&mut memory.as_mut_slice()[..rows * width * 8]);
            for (row, out) in out.chunks_exact_mut(width).enumerate() {
                write(row, out);
            }
        }
        BatchTensor::new(name.to_owned(), DType::I64, shape, lengths, memory, self.ring.clone())
    }

    /// Labels that are whole numbers are classes, and classes are integers; any other number stays one.
    fn numbers(&self, name: &str, rows: &[Option<f64>]) -> BatchTensor {
        if name == field::LABELS && rows.iter().flatten().all(|number| number.fract() == 0.0) {
            return self.integers(name, vec![rows.len()], vec![1; rows.len()], |row, out| {
                out[0] = rows[row].map_or(IGNORED_LABEL, |number| number as i64);
            });
        }
        let mut memory = self.ring.take(rows.len() * 4);
        let out: &mut [f32] = bytemuck::cast_slice_mut(&mut memory.as_mut_slice()[..rows.len() * 4]);
        for (slot, number) in out.iter_mut().zip(rows) {
            *slot = number.unwrap_or(f64::NAN) as f32;
        }
        BatchTensor::new(
            name.to_owned(),
            DType::F32,
            vec![rows.len()],
            vec![1; rows.len()],
            memory,
            self.ring.clone(),
        )
    }

    fn mask_of(&self, tensor: &BatchTensor) -> BatchTensor {
        let width = tensor.shape.get(tensor.padded_axis).copied().unwrap_or(1);
        let lengths = tensor.lengths.clone();
        self.integers(field::ATTENTION_MASK, vec![lengths.len(), width], lengths.clone(), |row, out| {
            let length = lengths[row].min(width);
            out[..length].fill(1);
            out[length..].fill(0);
        })
    }
}

/// What transformers call raw sound.
pub(crate) const VALUES: &str = "input_values";

fn batch_name(name: &str) -> &str {
    if name == field::AUDIO { VALUES } else { name }
}

fn padded_length(value: &Value) -> Option<usize> {
    match value {
        Value::Tensor(tensor) => Some(tensor.length().max(tensor.pad_to)),
        Value::Audio(audio) => Some(audio.samples.len()),
        Value::Tokens(tokens) => Some(tokens.len()),
        _ => None,
    }
}

/// Whether there are as many numbers as the shape says.
fn has_all(name: &str, count: usize, tensor: &Tensor) -> Result<(), Fault> {
    if count == tensor.shape.iter().product::<usize>() {
        return Ok(());
    }
    Err(Fault::new(format!("`{name}` has {count} numbers, and the shape {:?}", tensor.shape)))
}

fn same_but(shape: &[usize], row: &[usize], axis: usize) -> bool {
    shape.len() == row.len() && shape.iter().zip(row).enumerate().all(|(at, (a, b))| at == axis || a == b)
}

/// What a row is to be.
#[derive(Clone, Copy)]
struct Into<'a> {
    shape: &'a [usize],
    dtype: DType,
    /// Of the whole batch.
    all_bytes: usize,
}

/// Writes a tensor into a row, padding one axis. `read` is told how many bytes of the numbers have been read.
fn write_row(tensor: &Tensor, numbers: Numbers, into: Into, read: &mut dyn FnMut(usize), out: &mut [u8]) {
    // With the padded axis at `a`, the row is `before` stretches, each of `length · after` numbers and then padding.
    let after: usize = into.shape[tensor.pad_axis + 1..].iter().product();
    let row = Row {
        stretch: tensor.length() * after,
        whole: into.shape[tensor.pad_axis] * after,
        // What is larger than a cache is not read before it has left it.
        past_cache: into.all_bytes >= stream::WORTH_BYTES,
    };
    if row.whole == 0 {
        return;
    }
    let fill = tensor.fill;
    let (half, brief) = (f16::from_f32(fill), bf16::from_f32(fill));
    match (into.dtype, numbers) {
        (DType::F32, Numbers::F32(data)) => row.write(data, fill, out, &Same, read),
        (DType::F16, Numbers::F16(data)) => row.write(data, half, out, &Same, read),
        (DType::BF16, Numbers::BF16(data)) => row.write(data, brief, out, &Same, read),
        (DType::F32, Numbers::F16(data)) => row.write(data, fill, out, &Widened, read),
        (DType::F32, Numbers::BF16(data)) => row.write(data, fill, out, &By(simd::from_bf16), read),
        (DType::F16, Numbers::F32(data)) => {
            let convert = |data: &[f32], out: &mut [f16]| out.convert_from_f32_slice(data);
            row.write(data, half, out, &By(convert), read);
        }
        (DType::BF16, Numbers::F32(data)) => {
            let convert = |data: &[f32], out: &mut [bf16]| out.convert_from_f32_slice(data);
            row.write(data, brief, out, &By(convert), read);
        }
        (DType::F16, Numbers::BF16(data)) => {
            let convert = |data: &[bf16], out: &mut [f16]| {
                out.iter_mut().zip(data).for_each(|(out, number)| *out = f16::from_f32(number.to_f32()));
            };
            row.write(data, half, out, &By(convert), read);
        }
        (DType::BF16, Numbers::F16(data)) => {
            let convert = |data: &[f16], out: &mut [bf16]| {
                out.iter_mut().zip(data).for_each(|(out, number)| *out = bf16::from_f32(number.to_f32()));
            };
            row.write(data, brief, out, &By(convert), read);
        }
        (DType::I64, _) => unreachable!("features are never integers: refused when the pipeline was built"),
    }
}

/// How a row is laid out: stretches of numbers, each with padding behind it.
#[derive(Clone, Copy)]
struct Row {
    stretch: usize,
    whole: usize,
    past_cache: bool,
}

impl Row {
    fn write<S, T: bytemuck::Pod>(
        self,
        data: &[S],
        fill: T,
        out: &mut [u8],
        convert: &impl Convert<S, T>,
        read: &mut dyn FnMut(usize),
    ) {
        let Self { stretch, whole, past_cache } = self;
        if past_cache {
            return stream::Row { stretch, whole, fill }.write(data, out, convert, read);
        }
        // A tensor without numbers has no stretches, yet its row has.
        let mut data = data.chunks_exact(stretch.max(1));
        for out in out.chunks_exact_mut(whole * size_of::<T>()) {
            let data = data.next().unwrap_or_default();
            let (numbers, padding) = bytemuck::cast_slice_mut(out).split_at_mut(data.len());
            convert.plainly(data, numbers);
            read(size_of_val(data));
            // Padding is most of a batch of uneven lengths, and mostly zeros, which the C library writes faster than a loop.
            if bytemuck::bytes_of(&fill).iter().all(|byte| *byte == 0) {
                bytemuck::cast_slice_mut::<T, u8>(padding).fill(0);
            } else {
                padding.fill(fill);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(numbers: usize, shape: &[usize], pad_axis: usize) -> Tensor {
        Tensor { data: vec![0.5; numbers], shape: shape.to_vec(), pad_axis, pad_to: 0, fill: 0.0 }
    }

    #[test]
    fn a_tensor_that_has_fewer_numbers_than_it_says_is_a_bad_sample() {
        let ring = Arc::new(Ring::new(Arc::new(Memory::new), 2));
        let fixed = vec![Fixed { name: "x", shape: vec![2, 8] }];
        let collate = Collate { batch: Batch::of(1), fixed, ring, buffers: Arc::default() };
        for (name, numbers, said) in [
            ("x", 12, None),
            ("x", 11, Some("`x` has 11 numbers, and the shape [2, 6]")),
            ("y", 11, Some("`y` has 11 numbers, and the shape [2, 6]")),
        ] {
            let mut sample = Sample::new("a").with("x", tensor(12, &[2, 6], 1));
            sample.set(name, tensor(numbers, &[2, 6], 1));
            let filling = collate.begin(1);
            // SAFETY: one row, placed once.
            let placed = unsafe { collate.place(&filling, 0, &mut sample, None) };
            assert_eq!(placed.err().map(|fault| fault.reason).as_deref(), said);
        }
    }

    #[test]
    fn tensors_that_are_padded_along_different_axes_do_not_travel_together() {
        let sample = |pad_axis| Some(Sample::new("a").with("x", tensor(9, &[3, 3], pad_axis)));
        assert_eq!(Collate::part(&mut [sample(0), sample(0)]).len(), 0);
        assert_eq!(Collate::part(&mut [sample(0), sample(1)]).len(), 1);
    }
}
