//! What is kept of a sample? Its fields as bytes, and back.
//!
//! The numbers of the largest field come first, so that single precision is read straight into the buffer that travels on,
//! without a copy. Behind them are the other fields, and how many bytes those take. With as many zeros as make it a
//! multiple of eight, so that the numbers of the next entry stand where numbers may:
//!
//! ```text
//! numbers ┄┄┄ | fields ┄┄ | zeros | bytes of fields and zeros: u32
//! ```

use std::borrow::Cow;

use half::slice::HalfFloatSliceExt;

use crate::{
    batch::{DType, collate::Numbers},
    sample::{Sample, Span, Tensor, Value, Waveform, field},
    transform::simd,
};

const KEPT_OUT: u8 = 0;
const BYTES: u8 = 1;
const AUDIO: u8 = 2;
const TENSOR: u8 = 3;
const TEXT: u8 = 4;
const TOKENS: u8 = 5;
const NUMBER: u8 = 6;
const SPANS: u8 = 7;

/// An entry has a multiple of this many bytes.
const ALIGNED: usize = 8;

/// Nobody pads an axis to more.
const MOST_PADDED: usize = 1 << 24;

/// A sample as bytes. Media that nobody has decoded are only named: the source has them.
pub(crate) fn write(sample: &Sample, dtype: DType, out: &mut Vec<u8>) {
    out.clear();
    let mut fields: Vec<(&str, &Value)> = sample.fields().collect();
    fields.sort_by_key(|(name, _)| *name);
    let first = fields
        .iter()
        .filter_map(|(name, value)| Some((*name, numbers(value)?)))
        .max_by_key(|(_, numbers)| numbers.len());
    if let Some((_, numbers)) = first {
        write_numbers(numbers, dtype, out);
    }
    let begin = out.len();
    out.extend((fields.len() as u32).to_le_bytes());
    for (name, value) in fields {
        let is_first = first.is_some_and(|(first, _)| first == name);
        let floats = |data: &[f32], out: &mut Vec<u8>| {
            out.push(u8::from(is_first));
            out.extend((data.len() as u64).to_le_bytes());
            if !is_first {
                write_numbers(data, dtype, out);
            }
        };
        part(name.as_bytes(), out);
        match value {
            Value::Media(_) => out.push(KEPT_OUT),
            Value::Bytes(bytes) => {
                out.push(BYTES);
                part(bytes, out);
            }
            Value::Audio(Waveform { samples, rate }) => {
                out.push(AUDIO);
                out.extend(rate.to_le_bytes());
                floats(samples, out);
            }
            Value::Tensor(Tensor { data, shape, pad_axis, pad_to, fill }) => {
                out.push(TENSOR);
                out.extend((shape.len() as u32).to_le_bytes());
                for size in shape.iter().chain([pad_axis, pad_to]) {
                    out.extend((*size as u64).to_le_bytes());
                }
                out.extend(fill.to_le_bytes());
                floats(data, out);
            }
            Value::Text(text) => {
                out.push(TEXT);
                part(text.as_bytes(), out);
            }
            Value::Tokens(tokens) => {
                out.push(TOKENS);
                out.extend((tokens.len() as u64).to_le_bytes());
                out.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
            }
            Value::Number(number) => {
                out.push(NUMBER);
                out.extend(number.to_le_bytes());
            }
            Value::Spans(spans) => {
                out.push(SPANS);
                out.extend((spans.len() as u64).to_le_bytes());
                for span in spans {
                    out.extend(span.start_seconds.to_le_bytes());
                    out.extend(span.end_seconds.to_le_bytes());
                    part(span.text.as_bytes(), out);
                }
            }
        }
    }
    out.resize((out.len() + 4).next_multiple_of(ALIGNED) - 4, 0);
    out.extend(((out.len() - begin) as u32).to_le_bytes());
}

fn numbers(value: &Value) -> Option<&[f32]> {
    match value {
        Value::Audio(audio) => Some(&audio.samples),
        Value::Tensor(tensor) => Some(&tensor.data),
        _ => None,
    }
}

/// The same, to be changed in place.
pub(crate) fn numbers_mut(value: &mut Value) -> Option<&mut Vec<f32>> {
    match value {
        Value::Audio(audio) => Some(&mut audio.samples),
        Value::Tensor(tensor) => Some(&mut tensor.data),
        _ => None,
    }
}

/// Makes numbers as they are when they were kept.
pub(crate) fn round(numbers: &mut Vec<f32>, dtype: DType) {
    let mut bytes = Vec::with_capacity(numbers.len() * width(dtype));
    write_numbers(numbers, dtype, &mut bytes);
    read_numbers(&bytes, dtype, numbers, &mut |_| {});
}

fn write_numbers(numbers: &[f32], dtype: DType, out: &mut Vec<u8>) {
    let begin = out.len();
    match dtype {
        DType::F16 => {
            let mut half = vec![half::f16::ZERO; numbers.len()];
            half.convert_from_f32_slice(numbers);
            out.extend_from_slice(bytemuck::cast_slice(&half));
        }
        DType::BF16 => {
            let mut half = vec![half::bf16::ZERO; numbers.len()];
            half.convert_from_f32_slice(numbers);
            out.extend_from_slice(bytemuck::cast_slice(&half));
        }
        DType::F32 | DType::I64 => out.extend_from_slice(bytemuck::cast_slice(numbers)),
    }
    debug_assert_eq!(out.len() - begin, numbers.len() * width(dtype));
}

/// Bytes of a number that is kept.
fn width(dtype: DType) -> usize {
    if matches!(dtype, DType::F16 | DType::BF16) { 2 } else { 4 }
}

/// Numbers as they are computed with. `bytes` are of whole numbers; when some have been read, `read` is told how many.
pub(crate) fn read_numbers(bytes: &[u8], dtype: DType, into: &mut Vec<f32>, read: &mut dyn FnMut(usize)) {
    /// They stay in the nearest cache until `read` looks at them.
    const SOME: usize = 1024;
    into.resize(bytes.len() / width(dtype), 0.0);
    for (bytes, into) in bytes.chunks(SOME * width(dtype)).zip(into.chunks_mut(SOME)) {
        match dtype {
            DType::F16 => simd::from_f16(&aligned(bytes), into),
            DType::BF16 => simd::from_bf16(&aligned(bytes), into),
            DType::F32 | DType::I64 => bytemuck::cast_slice_mut(into).copy_from_slice(bytes),
        }
        read(bytes.len());
    }
}

/// Numbers as they were kept.
pub(crate) enum Held<'a> {
    F32(Cow<'a, [f32]>),
    F16(Cow<'a, [half::f16]>),
    BF16(Cow<'a, [half::bf16]>),
}

impl Held<'_> {
    pub(crate) fn as_ref(&self) -> Numbers<'_> {
        match self {
            Self::F32(numbers) => Numbers::F32(numbers),
            Self::F16(numbers) => Numbers::F16(numbers),
            Self::BF16(numbers) => Numbers::BF16(numbers),
        }
    }
}

/// `bytes` are of whole numbers; where they do not begin where numbers may, they are copied.
pub(crate) fn numbers_of(bytes: &[u8], dtype: DType) -> Held<'_> {
    match dtype {
        DType::F16 => Held::F16(aligned(bytes)),
        DType::BF16 => Held::BF16(aligned(bytes)),
        DType::F32 | DType::I64 => Held::F32(aligned(bytes)),
    }
}

fn aligned<T: bytemuck::Pod>(bytes: &[u8]) -> Cow<'_, [T]> {
    bytemuck::try_cast_slice(bytes).map_or_else(
        |_| Cow::Owned(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()),
        Cow::Borrowed,
    )
}

/// The fields of an entry.
pub(crate) struct Fields {
    named: Vec<(Cow<'static, str>, Option<Value>)>,
    /// The one whose numbers stand first.
    first: Option<usize>,
    /// The bytes of those.
    pub(crate) body: usize,
}

impl Fields {
    /// All but the numbers that stand first. Nothing where the bytes are no entry. They may be any, and may change while they
    /// are looked at: they are looked at once.
    pub(crate) fn read(bytes: &[u8], dtype: DType) -> Option<Self> {
        let (rest, length) = bytes.split_last_chunk::<4>()?;
        let at = rest.len().checked_sub(u32::from_le_bytes(*length) as usize)?;
        let (body, fields) = rest.split_at(at);
        let fields = fields.to_vec();
        let rest = &mut fields.as_slice();
        let mut first = None;
        let mut named = Vec::new();
        for number in 0..u32_of(rest)? {
            let name = name(taken(rest)?)?;
            let floats = |rest: &mut &[u8]| -> Option<(bool, Vec<f32>)> {
                let is_first = byte_of(rest)? == 1;
                let count = usize::try_from(u64_of(rest)?).ok()?;
                let mut data = Vec::new();
                if is_first {
                    (count.checked_mul(width(dtype))? == body.len()).then_some(())?;
                } else {
                    let numbers = rest.split_off(..count.checked_mul(width(dtype))?)?;
                    read_numbers(numbers, dtype, &mut data, &mut |_| {});
                }
                Some((is_first, data))
            };
            let mut is_first = false;
            let value = match byte_of(rest)? {
                KEPT_OUT => None,
                BYTES => Some(Value::Bytes(taken(rest)?.to_vec())),
                AUDIO => {
                    let rate = u32_of(rest)?;
                    let samples;
                    (is_first, samples) = floats(rest)?;
                    Some(Value::Audio(Waveform { samples, rate }))
                }
                TENSOR => {
                    let axes = u32_of(rest)?;
                    let mut shape = Vec::new();
                    for _ in 0..axes.checked_add(2)? {
                        shape.push(usize::try_from(u64_of(rest)?).ok()?);
                    }
                    let (pad_to, pad_axis) = (shape.pop()?, shape.pop()?);
                    let fill = f32::from_le_bytes(*rest.split_off(..4)?.first_chunk()?);
                    let data;
                    let before = *rest;
                    (is_first, data) = floats(rest)?;
                    // What is said of the numbers must be true of them: a batch is laid out by it.
                    let count = before.get(1..9)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))?;
                    let product = shape.iter().try_fold(1_u64, |count, n| count.checked_mul(*n as u64));
                    let rows = shape.iter().try_fold(1_u64, |count, n| count.checked_mul((*n as u64).max(1)));
                    let fits = product == Some(count)
                        && pad_axis < shape.len()
                        && pad_to <= MOST_PADDED
                        && rows.is_some_and(|rows| rows <= 1 << 40);
                    fits.then_some(())?;
                    Some(Value::Tensor(Tensor { data, shape, pad_axis, pad_to, fill }))
                }
                TEXT => Some(Value::Text(String::from_utf8(taken(rest)?.to_vec()).ok()?)),
                TOKENS => {
                    let count = usize::try_from(u64_of(rest)?).ok()?;
                    let bytes = rest.split_off(..count.checked_mul(4)?)?;
                    let token = |bytes: &[u8]| bytes.first_chunk().map(|four| u32::from_le_bytes(*four));
                    Some(Value::Tokens(bytes.chunks_exact(4).filter_map(token).collect()))
                }
                NUMBER => Some(Value::Number(f64_of(rest)?)),
                SPANS => {
                    let mut spans = Vec::new();
                    for _ in 0..u64_of(rest)? {
                        let (start_seconds, end_seconds) = (f64_of(rest)?, f64_of(rest)?);
                        let text = String::from_utf8(taken(rest)?.to_vec()).ok()?;
                        spans.push(Span { start_seconds, end_seconds, text });
                    }
                    Some(Value::Spans(spans))
                }
                _ => return None,
            };
            // Numbers stand first once.
            if is_first && first.replace(number as usize).is_some() {
                return None;
            }
            named.push((name, value));
        }
        let ends = rest.len() < ALIGNED && rest.iter().all(|byte| *byte == 0);
        (ends && (first.is_some() || body.is_empty())).then_some(Self { named, first, body: body.len() })
    }

    /// The names of media that the source has.
    pub(crate) fn kept_out(&self) -> impl Iterator<Item = &Cow<'static, str>> {
        self.named.iter().filter(|(_, value)| value.is_none()).map(|(name, _)| name)
    }

    /// The name of the field whose numbers stand first.
    pub(crate) fn first_name(&self) -> Option<&str> {
        self.first.map(|at| &*self.named[at].0)
    }

    /// Puts the fields in place of the sample's. `numbers` are those that stand first.
    pub(crate) fn into_sample(self, sample: &mut Sample, numbers: Vec<f32>) {
        let key = std::mem::take(&mut sample.key);
        let mut source = std::mem::replace(sample, Sample::new(key)).into_fields();
        let mut numbers = Some(numbers);
        for (at, (name, value)) in self.named.into_iter().enumerate() {
            match value {
                None => {
                    if let Some(found) = source.iter().position(|(known, _)| *known == name) {
                        sample.set(name, source.swap_remove(found).1);
                    }
                }
                Some(mut value) => {
                    if self.first == Some(at) {
                        match &mut value {
                            Value::Audio(audio) => audio.samples = numbers.take().unwrap_or_default(),
                            Value::Tensor(tensor) => tensor.data = numbers.take().unwrap_or_default(),
                            _ => {}
                        }
                    }
                    sample.set(name, value);
                }
            }
        }
    }
}

/// The usual names are not copied.
fn name(bytes: &[u8]) -> Option<Cow<'static, str>> {
    let name = std::str::from_utf8(bytes).ok()?;
    let known = [field::AUDIO, field::TEXT, field::SPANS, field::FEATURES, field::INPUT_IDS, field::LABELS];
    Some(
        known
            .into_iter()
            .find(|known| *known == name)
            .map_or_else(|| Cow::Owned(name.to_owned()), Cow::Borrowed),
    )
}

fn part(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

fn taken<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let count = usize::try_from(u64_of(rest)?).ok()?;
    rest.split_off(..count)
}

fn byte_of(rest: &mut &[u8]) -> Option<u8> {
    rest.split_off_first().copied()
}

fn u32_of(rest: &mut &[u8]) -> Option<u32> {
    rest.split_off(..4)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_of(rest: &mut &[u8]) -> Option<u64> {
    rest.split_off(..8)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

fn f64_of(rest: &mut &[u8]) -> Option<f64> {
    u64_of(rest).map(f64::from_bits)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use proptest::prelude::*;

    use super::*;
    use crate::sample::Media;

    fn value() -> impl Strategy<Value = Value> {
        let numbers = || prop::collection::vec(-1e4_f32..1e4, 0..40);
        prop_oneof![
            Just(Value::Media(Media::file("somewhere.wav"))),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Bytes),
            (numbers(), any::<u32>()).prop_map(|(samples, rate)| Value::Audio(Waveform { samples, rate })),
            (numbers(), 0_usize..9, any::<f32>()).prop_map(|(data, pad_to, fill)| {
                let shape = vec![1, data.len()];
                Value::Tensor(Tensor { data, shape, pad_axis: 1, pad_to, fill })
            }),
            ".{0,12}".prop_map(Value::Text),
            prop::collection::vec(any::<u32>(), 0..40).prop_map(Value::Tokens),
            any::<f64>().prop_map(Value::Number),
            prop::collection::vec((0.0..9.0, 0.0..9.0, ".{0,5}"), 0..4).prop_map(|spans| {
                let span = |(start_seconds, end_seconds, text)| Span { start_seconds, end_seconds, text };
                Value::Spans(spans.into_iter().map(span).collect())
            }),
        ]
    }

    fn read(bytes: &[u8], dtype: DType, sample: &mut Sample) -> Option<()> {
        let fields = Fields::read(bytes, dtype)?;
        let mut numbers = Vec::new();
        read_numbers(&bytes[..fields.body], dtype, &mut numbers, &mut |_| {});
        fields.into_sample(sample, numbers);
        Some(())
    }

    /// In one order, so that two can be compared.
    fn shown(sample: &Sample) -> Vec<String> {
        let mut fields: Vec<String> =
            sample.fields().map(|(name, value)| format!("{name}: {value:?}")).collect();
        fields.sort();
        fields
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            fields in prop::collection::vec(("[a-e]", value()), 0..5),
            dtype in prop::sample::select(vec![DType::F32, DType::F16, DType::BF16]),
        ) {
            let mut sample = Sample::new("key");
            for (name, value) in fields {
                sample.set(name, value);
            }
            let mut bytes = Vec::new();
            write(&sample, dtype, &mut bytes);
            let mut back = Sample::new("key");
            for (name, value) in sample.fields().filter(|(_, value)| matches!(value, Value::Media(_))) {
                back.set(name.to_owned(), value.clone());
            }
            back.set("text", "of the source, which the stages have taken away".to_owned());
            prop_assert!(read(&bytes, dtype, &mut back).is_some());
            if dtype == DType::F32 {
                prop_assert_eq!(shown(&back), shown(&sample));
            } else {
                // Numbers that were rounded once are not rounded again.
                let mut again = Vec::new();
                write(&back, dtype, &mut again);
                prop_assert_eq!(again, bytes);
            }
        }

        #[test]
        fn bytes_that_are_no_entry_are_refused_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            fields in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let _ = read(&bytes, DType::F32, &mut Sample::new("key"));
            // With a length that is right, so that what stands before it is looked at.
            let length = (fields.len() as u32).to_le_bytes();
            let _ = read(&[&bytes[..], &fields, &length].concat(), DType::F32, &mut Sample::new("key"));
        }

        #[test]
        fn an_entry_in_which_a_byte_is_another_never_says_more_than_it_has(
            (data, at, byte) in (prop::collection::vec(-1.0_f32..1.0, 1..20), any::<prop::sample::Index>(), any::<u8>()),
        ) {
            let shape = vec![1, data.len()];
            let tensor = Tensor { data, shape, pad_axis: 1, pad_to: 3, fill: 0.5 };
            let mut bytes = Vec::new();
            write(&Sample::new("key").with("x", tensor), DType::F32, &mut bytes);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let mut back = Sample::new("key");
            if read(&bytes, DType::F32, &mut back).is_some() {
                for (_, value) in back.fields() {
                    if let Value::Tensor(tensor) = value {
                        prop_assert_eq!(tensor.shape.iter().product::<usize>(), tensor.data.len());
                        prop_assert!(tensor.pad_axis < tensor.shape.len() && tensor.pad_to <= MOST_PADDED);
                    }
                }
            }
        }
    }
}
