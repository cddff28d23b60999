//! Numbers and text out of an HDF5 file, held to what the file can hold.
//!
//! The reader is pure Rust and reads by position. What a file says about sizes is bounded here before it is believed: nothing
//! that is stored can become more than the best compression there is makes of it. What panics all the same becomes a fault.

use std::{
    fs::File,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
};

use hdf5_reader::{
    ByteOrder, Dataset, Datatype, FileStorage, FilterRegistry, H5Type, Hdf5File, OpenOptions, RawAttribute,
    SliceInfo, SliceInfoElem, StringPadding, StringSize, VarLenKind, dtype_element_size,
    error::{Error as Hdf5Error, Result as Hdf5Result},
};

use crate::{decode::Limits, error::Fault};

/// No compression that is read here makes more out of a byte: this is deflate's, of zeros.
const MOST_RATIO: u64 = 1032;
/// No real chunk is larger.
const MAX_CHUNK_BYTES: u64 = 256 << 20;
/// The filter that h5py calls `lzf`.
const LZF: u16 = 32000;

/// Opens a file. `cache_bytes`: how much of it is kept decoded.
pub(super) fn open(path: &Path, cache_bytes: usize) -> Result<Hdf5File, Fault> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let possible = size.saturating_mul(MOST_RATIO);
    isolated(|| {
        let mut filters = FilterRegistry::new();
        filters.register(LZF, Box::new(|filter, data, _| lzf(data, filter.client_data.get(2).copied())));
        let options = OpenOptions::default()
            .with_chunk_cache_bytes(cache_bytes)
            .with_filter_registry(filters)
            .with_max_chunk_bytes(possible.min(MAX_CHUNK_BYTES) as usize)
            .with_max_read_bytes(possible.min(Limits::default().max_bytes) as usize)
            .with_max_object_header_bytes(size.min(64 << 20) as usize);
        let file = Hdf5File::from_storage_with_options(Arc::new(FileStorage::from_file(file)?), options)?;
        let said = file.superblock().eof_address;
        if said > size {
            let reason = format!("it was cut off: it is said to have {said} bytes, and there are {size}");
            return Err(invalid(reason));
        }
        Ok(file)
    })
}

/// Runs the reader, which has its limits, but may panic on a malformed file.
pub(super) fn isolated<T>(run: impl FnOnce() -> Hdf5Result<T>) -> Result<T, Fault> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|error| Fault::new(reason(&error))),
        Err(_) => Err(Fault::new("the reader panicked on it: the file is malformed")),
    }
}

fn reason(error: &Hdf5Error) -> String {
    let said = error.to_string();
    match (error, said.find("filter id ")) {
        (_, Some(at)) => format!("it is compressed in a way that is not read here ({})", &said[at..]),
        (Hdf5Error::InvalidData(what), None) => what.clone(),
        (_, None) => said,
    }
}

fn invalid(what: impl Into<String>) -> Hdf5Error {
    Hdf5Error::InvalidData(what.into())
}

/// How much a file of this size can hold, decoded.
pub(super) fn possible_bytes(file: &Hdf5File) -> u64 {
    file.storage().len().saturating_mul(MOST_RATIO)
}

/// A number type as numpy writes it, and its bytes.
pub(super) fn number_type(kind: &Datatype) -> Option<(&'static str, usize)> {
    use ByteOrder::{BigEndian as Big, LittleEndian as Little};

    let descr = match kind {
        // A bool of h5py's is one of two names for 0 and 1.
        Datatype::Enum { base, .. } => return number_type(base),
        Datatype::FloatingPoint { size, byte_order } => match (size, byte_order) {
            (2, Little) => "<f2",
            (2, Big) => ">f2",
            (4, Little) => "<f4",
            (4, Big) => ">f4",
            (8, Little) => "<f8",
            (8, Big) => ">f8",
            _ => return None,
        },
        Datatype::FixedPoint { size, signed, byte_order } => match (size, signed, byte_order) {
            (1, true, _) => "|i1",
            (1, false, _) => "|u1",
            (2, true, Little) => "<i2",
            (2, true, Big) => ">i2",
            (2, false, Little) => "<u2",
            (2, false, Big) => ">u2",
            (4, true, Little) => "<i4",
            (4, true, Big) => ">i4",
            (4, false, Little) => "<u4",
            (4, false, Big) => ">u4",
            (8, true, Little) => "<i8",
            (8, true, Big) => ">i8",
            (8, false, Little) => "<u8",
            (8, false, Big) => ">u8",
            _ => return None,
        },
        _ => return None,
    };
    Some((descr, usize::from(descr.as_bytes()[2] - b'0')))
}

/// Numbers as they are stored, and their type.
pub(super) struct Numbers {
    pub(super) descr: &'static str,
    pub(super) bytes: Vec<u8>,
}

/// The number type of a dataset, where it is one that is read.
fn checked_type(dataset: &Dataset) -> Hdf5Result<(&'static str, usize)> {
    /// Where the exponent and the fraction of an IEEE half are: `bfloat16` is as wide.
    const HALF: [u8; 4] = [10, 5, 0, 10];

    let kind = number_type(dataset.dtype());
    let (descr, width) =
        kind.ok_or_else(|| invalid(format!("it holds {}, not numbers", name(dataset.dtype()))))?;
    if descr.ends_with("f2") && dataset.raw_datatype()?.get(12..16) != Some(&HALF) {
        return Err(invalid("its numbers of 16 bits are not IEEE halves; store them as `float32`"));
    }
    Ok((descr, width))
}

pub(super) fn is_text(kind: &Datatype) -> bool {
    matches!(kind, Datatype::String { .. } | Datatype::VarLen { kind: VarLenKind::String, .. })
}

/// What people call a type.
fn name(kind: &Datatype) -> &'static str {
    match kind {
        _ if is_text(kind) => "text",
        Datatype::VarLen { .. } => "lists",
        Datatype::Compound { .. } => "records of several fields",
        Datatype::Array { .. } => "arrays within an array",
        Datatype::Reference { .. } => "references",
        Datatype::FixedPoint { .. } | Datatype::FloatingPoint { .. } | Datatype::Enum { .. } => {
            "numbers of a width that is not read here"
        }
        Datatype::Opaque { .. } | Datatype::Bitfield { .. } | Datatype::String { .. } => {
            "bytes without a meaning"
        }
    }
}

/// All numbers of a dataset.
pub(super) fn all_numbers(dataset: &Dataset) -> Result<Numbers, Fault> {
    isolated(|| {
        let (descr, _) = checked_type(dataset)?;
        Ok(Numbers { descr, bytes: dataset.read_raw_bytes()? })
    })
}

/// The numbers of a row of a dataset: of its first `frames` frames, or of all.
pub(super) fn row_numbers(dataset: &Dataset, row: u64, frames: Option<u64>) -> Result<Numbers, Fault> {
    isolated(|| {
        let (descr, width) = checked_type(dataset)?;
        let mut selection = vec![SliceInfoElem::Index(row)];
        for (axis, &length) in dataset.shape().iter().skip(1).enumerate() {
            let end = if axis == 0 { frames.unwrap_or(length) } else { length };
            selection.push(SliceInfoElem::Slice { start: 0, end, step: 1 });
        }
        let selection = SliceInfo { selections: selection };
        let bytes = match width {
            1 => raw::<1>(dataset, &selection)?,
            2 => raw::<2>(dataset, &selection)?,
            4 => raw::<4>(dataset, &selection)?,
            _ => raw::<8>(dataset, &selection)?,
        };
        Ok(Numbers { descr, bytes })
    })
}

/// The numbers of a row that is a list of its own length.
pub(super) fn list_numbers(dataset: &Dataset, row: u64) -> Result<Numbers, Fault> {
    isolated(|| {
        let Datatype::VarLen { base, .. } = dataset.dtype() else { return Err(invalid("it holds no lists")) };
        let (descr, width) = number_type(base).ok_or_else(|| invalid("its lists are not of numbers"))?;
        let bytes = dataset.resolve_vlen_reference_bytes(&cell(dataset, row)?, width)?;
        Ok(Numbers { descr, bytes })
    })
}

/// The text of a row.
pub(super) fn row_text(dataset: &Dataset, row: u64) -> Result<String, Fault> {
    isolated(|| {
        let resolve = |cell: &[u8]| dataset.resolve_vlen_reference_bytes(cell, 1);
        text(dataset.dtype(), &cell(dataset, row)?, &resolve)
    })
}

fn raw<const N: usize>(dataset: &Dataset, selection: &SliceInfo) -> Hdf5Result<Vec<u8>> {
    let (numbers, _) = dataset.read_slice::<Raw<N>>(selection)?.into_raw_vec_and_offset();
    Ok(numbers.into_iter().map(|Raw(bytes)| bytes).collect::<Vec<[u8; N]>>().into_flattened())
}

/// One element of a dataset with one axis, as it is stored.
fn cell(dataset: &Dataset, row: u64) -> Hdf5Result<Vec<u8>> {
    let selection =
        SliceInfo { selections: vec![SliceInfoElem::Slice { start: row, end: row + 1, step: 1 }] };
    let (mut cells, _) = dataset.read_slice::<Cell>(&selection)?.into_raw_vec_and_offset();
    cells.pop().map(|Cell(bytes)| bytes).ok_or_else(|| invalid("the row is not there"))
}

/// A number of `N` bytes as it is stored: what it means is left to whoever reads arrays.
#[derive(Clone)]
#[repr(transparent)]
struct Raw<const N: usize>([u8; N]);

impl<const N: usize> H5Type for Raw<N> {
    fn hdf5_type() -> Datatype {
        Datatype::FixedPoint { size: N as u8, signed: false, byte_order: ByteOrder::LittleEndian }
    }

    fn from_bytes(bytes: &[u8], _: &Datatype) -> Hdf5Result<Self> {
        bytes.first_chunk().map(|bytes| Self(*bytes)).ok_or_else(|| invalid("a number is cut off"))
    }

    fn element_size(_: &Datatype) -> usize {
        N
    }

    fn native_copy_compatible(kind: &Datatype) -> bool {
        number_type(kind).is_some_and(|(_, width)| width == N)
    }
}

/// An element of any width.
#[derive(Clone)]
struct Cell(Vec<u8>);

impl H5Type for Cell {
    fn hdf5_type() -> Datatype {
        Raw::<1>::hdf5_type()
    }

    fn from_bytes(bytes: &[u8], _: &Datatype) -> Hdf5Result<Self> {
        Ok(Self(bytes.to_vec()))
    }

    fn element_size(kind: &Datatype) -> usize {
        dtype_element_size(kind).unwrap_or(0)
    }
}

/// What a small dataset or an attribute says.
pub(super) enum Values {
    Numbers(Vec<f64>),
    Texts(Vec<String>),
}

impl Values {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Numbers(values) => values.len(),
            Self::Texts(values) => values.len(),
        }
    }
}

/// All of a dataset that is kept in memory: labels, lengths, keys.
pub(super) fn values(dataset: &Dataset, file: &Hdf5File) -> Result<Values, Fault> {
    isolated(|| {
        let bytes = dataset.read_raw_bytes()?;
        let resolve = |cell: &[u8]| dataset.resolve_vlen_reference_bytes(cell, 1);
        let most = file.storage().len().saturating_add(bytes.len() as u64);
        decoded(dataset.dtype(), &bytes, dataset.raw_element_size()?, &resolve, most)
    })
}

/// What an attribute says, where it is one number, name or text, or a list of them.
pub(super) fn attribute_values(
    attribute: &RawAttribute,
    file: &Hdf5File,
    resolve: Resolve,
) -> Result<Values, Fault> {
    isolated(|| {
        let message = attribute.message();
        let count = usize::try_from(message.dataspace.num_elements().unwrap_or(0)).unwrap_or(usize::MAX);
        let width = message.raw_data.len().checked_div(count).unwrap_or(0);
        decoded(&message.datatype, &message.raw_data, width, resolve, file.storage().len())
    })
}

/// Where a text stands that has a length of its own.
pub(super) type Resolve<'a> = &'a dyn Fn(&[u8]) -> Hdf5Result<Vec<u8>>;

/// `most_bytes`: how much text there can be. Many elements may point to one long text.
fn decoded(
    kind: &Datatype,
    bytes: &[u8],
    width: usize,
    resolve: Resolve,
    most_bytes: u64,
) -> Hdf5Result<Values> {
    if let Some((descr, width)) = number_type(kind) {
        return Ok(Values::Numbers(bytes.chunks_exact(width).map(|number| to_f64(descr, number)).collect()));
    }
    let (mut texts, mut total) = (Vec::new(), 0);
    if width > 0 {
        for cell in bytes.chunks_exact(width) {
            let text = text(kind, cell, resolve)?;
            total += text.len() as u64;
            if total > most_bytes {
                return Err(invalid("its texts are longer together than the file"));
            }
            texts.push(text);
        }
    }
    Ok(Values::Texts(texts))
}

fn text(kind: &Datatype, cell: &[u8], resolve: Resolve) -> Hdf5Result<String> {
    let bytes = match kind {
        Datatype::String { size: StringSize::Fixed(_), padding, .. } => {
            let end = match padding {
                StringPadding::NullTerminate => cell.iter().position(|byte| *byte == 0),
                StringPadding::NullPad | StringPadding::SpacePad => None,
            };
            let cell = &cell[..end.unwrap_or(cell.len())];
            let padded = |byte: &u8| *byte == 0 || *byte == b' ' && *padding == StringPadding::SpacePad;
            let length = cell.iter().rposition(|byte| !padded(byte)).map_or(0, |last| last + 1);
            cell[..length].to_vec()
        }
        Datatype::String { size: StringSize::Variable, .. }
        | Datatype::VarLen { kind: VarLenKind::String, .. } => {
            let mut bytes = resolve(cell)?;
            bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
            bytes
        }
        other => return Err(invalid(format!("it holds {}, neither text nor numbers", name(other)))),
    };
    String::from_utf8(bytes).map_err(|_| invalid("its text is not UTF-8"))
}

fn to_f64(descr: &str, number: &[u8]) -> f64 {
    let mut bytes = [0; 8];
    let width = number.len().min(8);
    bytes[..width].copy_from_slice(&number[..width]);
    if descr.starts_with('>') {
        bytes[..width].reverse();
    }
    let [a, b, c, d, ..] = bytes;
    match &descr[1..] {
        "f2" => half::f16::from_le_bytes([a, b]).to_f64(),
        "f4" => f64::from(f32::from_le_bytes([a, b, c, d])),
        "f8" => f64::from_le_bytes(bytes),
        "i1" => f64::from(i8::from_le_bytes([a])),
        "i2" => f64::from(i16::from_le_bytes([a, b])),
        "i4" => f64::from(i32::from_le_bytes([a, b, c, d])),
        "i8" => i64::from_le_bytes(bytes) as f64,
        _ => u64::from_le_bytes(bytes) as f64,
    }
}

/// Undoes LZF: literals, and copies of what stands up to 8 KiB before. `length` is what the writer says comes out.
fn lzf(input: &[u8], length: Option<u32>) -> Hdf5Result<Vec<u8>> {
    let damaged = || invalid("a chunk that is compressed with LZF is damaged");
    let most = length.map_or(usize::MAX, |length| length as usize).min(MAX_CHUNK_BYTES as usize);
    let (mut out, mut rest) = (Vec::new(), input);
    while let Some((&control, behind)) = rest.split_first() {
        if control < 32 {
            let (literals, behind) = behind.split_at_checked(usize::from(control) + 1).ok_or_else(damaged)?;
            out.extend_from_slice(literals);
            rest = behind;
        } else {
            let (more, behind) = match control >> 5 {
                7 => behind
                    .split_first()
                    .map(|(more, behind)| (usize::from(*more), behind))
                    .ok_or_else(damaged)?,
                _ => (0, behind),
            };
            let (&low, behind) = behind.split_first().ok_or_else(damaged)?;
            let back = (usize::from(control & 31) << 8 | usize::from(low)) + 1;
            let from = out.len().checked_sub(back).ok_or_else(damaged)?;
            // What is copied may reach into what is being written.
            for at in from..from + usize::from(control >> 5) + 2 + more {
                out.push(out[at]);
            }
            rest = behind;
        }
        if out.len() > most {
            return Err(damaged());
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

    use super::*;

    #[test]
    fn lzf_is_undone_and_never_runs_over() {
        // Literals `abc`, then 9 + 1 bytes from 3 back.
        let packed = [2, b'a', b'b', b'c', 0xE0, 1, 2];
        assert_eq!(lzf(&packed, Some(13)).unwrap(), b"abcabcabcabca");
        assert!(lzf(&packed, Some(12)).is_err());
        for wrong in [&packed[..2], &packed[..5], &packed[..6], &[0x20, 0], &[31]] {
            assert!(lzf(wrong, None).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn numbers_of_every_type() {
        let cases: [(&str, &[u8], f64); 10] = [
            ("<f2", &[0, 0x3C], 1.0),
            (">f4", &[0x3F, 0x80, 0, 0], 1.0),
            ("<f8", &[0, 0, 0, 0, 0, 0, 0xF0, 0x3F], 1.0),
            ("|i1", &[255], -1.0),
            ("|u1", &[255], 255.0),
            (">i2", &[255, 254], -2.0),
            ("<u2", &[1, 1], 257.0),
            ("<i4", &[255, 255, 255, 255], -1.0),
            (">u4", &[0, 0, 1, 0], 256.0),
            ("<i8", &[254, 255, 255, 255, 255, 255, 255, 255], -2.0),
        ];
        for (descr, bytes, expected) in cases {
            assert!((to_f64(descr, bytes) - expected).abs() < 1e-9, "{descr}");
        }
    }
}
