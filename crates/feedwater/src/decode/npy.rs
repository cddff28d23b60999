//! What does a `.npy` file say?
//!
//! A header that is a Python dictionary, and then numbers. The header is parsed by hand: it has three keys, and
//! every fault in it gets its byte. Little-endian `f4` in C order, which is what features
//! are saved as, is read straight into the output. Objects are refused whatever they are: they are pickles, and a
//! pickle is a program.

use half::f16;

use super::plan::Limits;
use crate::{
    error::Fault,
    read::{ReadAt, read_exact_at, read_full_at},
};

/// No array has more dimensions: numpy itself stops at 64.
const MOST_DIMENSIONS: usize = 64;

/// Reads an array as `f32` in C order.
///
/// Any number type and byte order; Fortran order is transposed. The shape is checked against the bytes that are there
/// before anything is allocated. `out`, `shape` and `scratch` are overwritten; hand the same ones in again and nothing
/// is allocated.
pub fn npy(
    input: &dyn ReadAt,
    limits: &Limits,
    out: &mut Vec<f32>,
    shape: &mut Vec<usize>,
    scratch: &mut Vec<u8>,
) -> Result<(), Fault> {
    let header = Header::read(input)?;
    let count = header.check(input.size()?, limits)?;
    shape.clear();
    shape.extend_from_slice(&header.shape);
    // Not cleared first: all of it is going to be overwritten.
    out.resize(count, 0.0);
    let at = header.data_start;
    let straight =
        header.kind == Kind::Float && header.bytes == 4 && header.little && cfg!(target_endian = "little");
    if straight && header.c_order() {
        return read_exact_at(input, bytemuck::cast_slice_mut(out), at);
    }
    scratch.resize(count * header.bytes, 0);
    read_exact_at(input, scratch, at)?;
    if header.c_order() {
        convert(&header, scratch, out)
    } else {
        let mut fortran = vec![0.0; count];
        convert(&header, scratch, &mut fortran)?;
        transpose(&header.shape, &fortran, out);
        Ok(())
    }
}

/// The shape of an array, from its header alone. It is checked against the bytes that are there.
pub fn npy_shape(input: &dyn ReadAt) -> Result<Vec<usize>, Fault> {
    let header = Header::read(input)?;
    header.check(input.size()?, &Limits { max_bytes: u64::MAX, ..Limits::default() })?;
    Ok(header.shape)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Float,
    Signed,
    Unsigned,
    Bool,
}

#[derive(Debug)]
struct Header {
    kind: Kind,
    bytes: usize,
    little: bool,
    fortran: bool,
    shape: Vec<usize>,
    data_start: u64,
}

impl Header {
    fn read(input: &dyn ReadAt) -> Result<Self, Fault> {
        /// numpy's own headers are 128 bytes; a structured type with many fields could need more, but not here.
        const MOST_BYTES: usize = 64 * 1024;

        let mut head = [0; 256];
        let count = read_full_at(input, &mut head, 0)?;
        let head = &head[..count];
        if !head.starts_with(b"\x93NUMPY") {
            return Err(Fault::at_byte(0, "this is not a npy file"));
        }
        let (text_start, len) = match *head {
            [_, _, _, _, _, _, 1, _, a, b, ..] => (10, usize::from(u16::from_le_bytes([a, b]))),
            [_, _, _, _, _, _, 2 | 3, _, a, b, c, d, ..] => (12, u32::from_le_bytes([a, b, c, d]) as usize),
            [_, _, _, _, _, _, version, _, ..] => {
                return Err(Fault::at_byte(
                    6,
                    format!("version {version} of the npy format is not known here"),
                ));
            }
            _ => return Err(Fault::at_byte(count as u64, "the file ends inside of its header")),
        };
        if len > MOST_BYTES {
            return Err(Fault::at_byte(8, format!("a header of {len} bytes is not possible")));
        }
        let data_start = (text_start + len) as u64;
        if let Some(text) = head.get(text_start..text_start + len) {
            return Self::parse(text, text_start as u64, data_start);
        }
        let mut text = vec![0; len];
        read_exact_at(input, &mut text, text_start as u64)?;
        Self::parse(&text, text_start as u64, data_start)
    }

    fn parse(text: &[u8], start: u64, data_start: u64) -> Result<Self, Fault> {
        let mut text = Text { rest: text, len: text.len(), start };
        let (mut dtype, mut fortran, mut shape) = (None, None, None);
        text.expect(b'{')?;
        while !text.accept(b'}') {
            let at = text.at();
            let key = text.string()?;
            text.expect(b':')?;
            match key {
                b"descr" if dtype.is_none() => dtype = Some(text.dtype()?),
                b"fortran_order" if fortran.is_none() => fortran = Some(text.boolean()?),
                b"shape" if shape.is_none() => shape = Some(text.shape()?),
                _ => {
                    let key = String::from_utf8_lossy(key);
                    return Err(Fault::at_byte(
                        at,
                        format!("the header's key `{key}` is unknown or there twice"),
                    ));
                }
            }
            if !text.accept(b',') {
                text.expect(b'}')?;
                break;
            }
        }
        let (Some((kind, bytes, little)), Some(fortran), Some(shape)) = (dtype, fortran, shape) else {
            return Err(Fault::at_byte(start, "the header lacks one of `descr`, `fortran_order`, `shape`"));
        };
        Ok(Self { kind, bytes, little, fortran, shape, data_start })
    }

    /// The number of elements, if the bytes that are there are exactly those.
    fn check(&self, size: u64, limits: &Limits) -> Result<usize, Fault> {
        let count = self.shape.iter().try_fold(1_u64, |count, &n| count.checked_mul(n as u64));
        let overflow = || Fault::at_byte(0, format!("the shape {:?} is larger than any file", self.shape));
        let count = count.ok_or_else(overflow)?;
        let bytes = count.checked_mul(self.bytes as u64).ok_or_else(overflow)?;
        let there = size.saturating_sub(self.data_start);
        if bytes > there {
            let reason = format!("the shape {:?} needs {bytes} bytes, but there are {there}", self.shape);
            return Err(Fault::at_byte(size, reason));
        }
        if bytes < there {
            return Err(Fault::at_byte(self.data_start + bytes, format!("{} bytes too many", there - bytes)));
        }
        // The array in memory can be larger than the file: `f4` from `i1`.
        let largest = bytes.max(count.saturating_mul(4));
        if largest > limits.max_bytes {
            return Err(Fault::new(format!(
                "{largest} bytes are more than the limit of {}",
                limits.max_bytes
            )));
        }
        // An axis of nothing makes nothing of any other: what is padded along that is as long as it says.
        let rows = self.shape.iter().try_fold(1_u64, |count, &n| count.checked_mul((n as u64).max(1)));
        if rows.is_none_or(|rows| rows.saturating_mul(4) > limits.max_bytes) {
            return Err(Fault::new(format!(
                "the shape {:?} is more than the limit of {} bytes",
                self.shape, limits.max_bytes
            )));
        }
        usize::try_from(count).map_err(|_| overflow())
    }

    /// Whether the numbers lie in C order: an array of one dimension does, whatever its header says.
    fn c_order(&self) -> bool {
        !self.fortran || self.shape.iter().filter(|&&n| n != 1).count() < 2
    }
}

/// The header's text, from left to right.
struct Text<'a> {
    rest: &'a [u8],
    len: usize,
    start: u64,
}

impl<'a> Text<'a> {
    fn at(&self) -> u64 {
        self.start + (self.len - self.rest.len()) as u64
    }

    fn accept(&mut self, byte: u8) -> bool {
        self.rest = self.rest.trim_ascii_start();
        let found = self.rest.first() == Some(&byte);
        if found {
            self.rest = &self.rest[1..];
        }
        found
    }

    fn expect(&mut self, byte: u8) -> Result<(), Fault> {
        if self.accept(byte) {
            Ok(())
        } else {
            Err(self.wrong(&format!("`{}` is missing", char::from(byte))))
        }
    }

    fn wrong(&self, what: &str) -> Fault {
        Fault::at_byte(self.at(), format!("the header is damaged: {what}"))
    }

    fn string(&mut self) -> Result<&'a [u8], Fault> {
        let quote = if self.accept(b'"') { b'"' } else { b'\'' };
        if quote == b'\'' {
            self.expect(quote)?;
        }
        let end = self
            .rest
            .iter()
            .position(|&byte| byte == quote)
            .ok_or_else(|| self.wrong("a quote is not closed"))?;
        let (string, rest) = self.rest.split_at(end);
        self.rest = &rest[1..];
        Ok(string)
    }

    fn boolean(&mut self) -> Result<bool, Fault> {
        self.rest = self.rest.trim_ascii_start();
        for (word, value) in [(b"True".as_slice(), true), (b"False".as_slice(), false)] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err(self.wrong("`True` or `False` is missing"))
    }

    fn shape(&mut self) -> Result<Vec<usize>, Fault> {
        let mut shape = Vec::new();
        self.expect(b'(')?;
        while !self.accept(b')') {
            let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let (number, rest) = self.rest.split_at(digits);
            let number = str::from_utf8(number).ok().and_then(|number| number.parse().ok());
            shape.push(number.ok_or_else(|| self.wrong("a length is not a number, or too large"))?);
            // Python 2 wrote a long as `3L`.
            self.rest = rest.strip_prefix(b"L").unwrap_or(rest);
            if shape.len() > MOST_DIMENSIONS {
                return Err(self.wrong("too many dimensions"));
            }
            if !self.accept(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Ok(shape)
    }

    fn dtype(&mut self) -> Result<(Kind, usize, bool), Fault> {
        let at = self.at();
        if self.accept(b'[') {
            return Err(Fault::at_byte(at, "a structured array has no one number type"));
        }
        let descr = self.string()?;
        let name = String::from_utf8_lossy(descr);
        if descr.contains(&b'O') {
            return Err(Fault::at_byte(
                at,
                format!("objects (`{name}`) are never read: they are pickled programs"),
            ));
        }
        let parts = match descr {
            [order @ (b'<' | b'>' | b'|' | b'='), kind, bytes @ b'1'..=b'8'] => {
                Some((*order, *kind, bytes - b'0'))
            }
            _ => None,
        };
        let known = parts.and_then(|(order, kind, bytes)| {
            let kind = match (kind, bytes) {
                (b'f', 2 | 4 | 8) => Kind::Float,
                (b'i', 1 | 2 | 4 | 8) => Kind::Signed,
                (b'u', 1 | 2 | 4 | 8) => Kind::Unsigned,
                (b'b', 1) => Kind::Bool,
                _ => return None,
            };
            // `|` says that the order has no meaning, which is true of one byte only.
            (order != b'|' || bytes == 1).then_some((kind, usize::from(bytes), order != b'>'))
        });
        known.ok_or_else(|| Fault::at_byte(at, format!("the number type `{name}` is not read here")))
    }
}

fn convert(header: &Header, bytes: &[u8], out: &mut [f32]) -> Result<(), Fault> {
    fn each<const N: usize>(bytes: &[u8], little: bool, out: &mut [f32], to_f32: impl Fn([u8; N]) -> f32) {
        let numbers = bytes.as_chunks::<N>().0;
        if little {
            out.iter_mut().zip(numbers).for_each(|(out, number)| *out = to_f32(*number));
        } else {
            for (out, number) in out.iter_mut().zip(numbers) {
                let mut number = *number;
                number.reverse();
                *out = to_f32(number);
            }
        }
    }

    let little = header.little;
    match (header.kind, header.bytes) {
        (Kind::Float, 2) => each(bytes, little, out, |b| f16::from_le_bytes(b).to_f32()),
        (Kind::Float, 4) => each(bytes, little, out, f32::from_le_bytes),
        (Kind::Float, _) => each(bytes, little, out, |b| f64::from_le_bytes(b) as f32),
        (Kind::Signed, 1) => each(bytes, little, out, |b| f32::from(i8::from_le_bytes(b))),
        (Kind::Signed, 2) => each(bytes, little, out, |b| f32::from(i16::from_le_bytes(b))),
        (Kind::Signed, 4) => each(bytes, little, out, |b| i32::from_le_bytes(b) as f32),
        (Kind::Signed, _) => each(bytes, little, out, |b| i64::from_le_bytes(b) as f32),
        (Kind::Unsigned, 1) => each(bytes, little, out, |b| f32::from(u8::from_le_bytes(b))),
        (Kind::Unsigned, 2) => each(bytes, little, out, |b| f32::from(u16::from_le_bytes(b))),
        (Kind::Unsigned, 4) => each(bytes, little, out, |b| u32::from_le_bytes(b) as f32),
        (Kind::Unsigned, _) => each(bytes, little, out, |b| u64::from_le_bytes(b) as f32),
        (Kind::Bool, _) => {
            if let Some(at) = bytes.iter().position(|&byte| byte > 1) {
                return Err(Fault::at_byte(
                    header.data_start + at as u64,
                    format!("{} is not a bool", bytes[at]),
                ));
            }
            each(bytes, little, out, |[byte]| f32::from(byte));
        }
    }
    Ok(())
}

/// Copies an array in Fortran order (first index fastest) to one in C order (last index fastest).
fn transpose(shape: &[usize], fortran: &[f32], out: &mut [f32]) {
    let Some((&inner, outer)) = shape.split_last() else { return };
    let stride: usize = outer.iter().product();
    let mut index = vec![0; outer.len()];
    for row in out.chunks_exact_mut(inner.max(1)) {
        let start = index.iter().zip(outer).rev().fold(0, |start, (&i, &n)| start * n + i);
        for (k, out) in row.iter_mut().enumerate() {
            *out = fortran[start + k * stride];
        }
        for (i, &n) in index.iter_mut().zip(outer).rev() {
            *i += 1;
            if *i < n {
                break;
            }
            *i = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

    use super::*;
    use crate::error::Place;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut text = header.as_bytes().to_vec();
        while !(10 + text.len() + 1).is_multiple_of(64) {
            text.push(b' ');
        }
        text.push(b'\n');
        [b"\x93NUMPY\x01\x00".as_slice(), &(text.len() as u16).to_le_bytes(), &text, data].concat()
    }

    fn array(descr: &str, fortran: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        file(&format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}"), data)
    }

    fn read(bytes: &[u8]) -> Result<(Vec<f32>, Vec<usize>), Fault> {
        // Left over from another file: all of it must be gone.
        let (mut out, mut shape, mut scratch) = (vec![9.0; 50], vec![9; 5], vec![9; 500]);
        npy(&bytes, &Limits::default(), &mut out, &mut shape, &mut scratch)?;
        Ok((out, shape))
    }

    fn reason(bytes: &[u8]) -> String {
        read(bytes).unwrap_err().to_string()
    }

    #[test]
    fn every_number_type_in_both_orders() {
        macro_rules! check {
            ($($kind:literal $type:ty),*) => {$(
                let numbers: [$type; 3] = [<$type>::from(1_u8), <$type>::from(2_u8), <$type>::from(100_u8)];
                let little: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
                let big: Vec<u8> = numbers.iter().flat_map(|n| n.to_be_bytes()).collect();
                let expected = (vec![1.0, 2.0, 100.0], vec![3]);
                assert_eq!(read(&array(concat!("<", $kind), "False", "(3,)", &little)).unwrap(), expected);
                assert_eq!(read(&array(concat!(">", $kind), "False", "(3,)", &big)).unwrap(), expected);
            )*};
        }
        check!("f2" f16, "f4" f32, "f8" f64, "i2" i16, "i4" i32, "i8" i64, "u1" u8, "u2" u16, "u4" u32, "u8" u64);
        assert_eq!(read(&array("|i1", "False", "(2,)", &[255, 3])).unwrap().0, [-1.0, 3.0]);
        assert_eq!(read(&array("|b1", "False", "(2,)", &[1, 0])).unwrap().0, [1.0, 0.0]);
        assert!(reason(&array("|b1", "False", "(2,)", &[1, 2])).contains("2 is not a bool"));
    }

    #[test]
    fn fortran_order_is_turned() {
        let (shape, count) = ([2, 3, 4], 24);
        // In C order the array counts up; written in Fortran order the first index runs fastest.
        let fortran: Vec<u8> = (0..count)
            .map(|n| (n % 2, n / 2 % 3, n / 6))
            .flat_map(|(i, j, k)| ((i * 12 + j * 4 + k) as f32).to_le_bytes())
            .collect();
        let (out, read_shape) = read(&array("<f4", "True", "(2, 3, 4)", &fortran)).unwrap();
        assert_eq!((out, read_shape), ((0..count).map(|n| n as f32).collect(), shape.to_vec()));
    }

    #[test]
    fn shapes_of_every_kind() {
        let one = 7.0_f32.to_le_bytes();
        assert_eq!(read(&array("<f4", "False", "()", &one)).unwrap(), (vec![7.0], vec![]));
        assert_eq!(read(&array("<f4", "False", "(0, 5)", &[])).unwrap(), (vec![], vec![0, 5]));
        assert_eq!(read(&array("<f4", "True", "(1, 1L)", &one)).unwrap(), (vec![7.0], vec![1, 1]));
        assert_eq!(npy_shape(&array("<f4", "False", "(1,)", &one)).unwrap(), [1]);
        let other_order = file(r#"{"shape":(1,),"fortran_order":False,"descr":"<f4"}"#, &one);
        assert_eq!(read(&other_order).unwrap().1, [1]);
    }

    #[test]
    fn refused_with_a_reason() {
        let one = [0; 4];
        assert!(reason(b"not numpy at all").contains("not a npy file"));
        assert!(reason(b"").contains("not a npy file"));
        assert!(reason(b"\x93NUMPY\x09\x00\x10\x00").contains("version 9"));
        assert!(reason(b"\x93NUMPY\x02\x00\xFF\xFF\xFF\xFF").contains("4294967295 bytes"));
        assert!(reason(&array("|O", "False", "(1,)", &one)).contains("pickled"));
        assert!(reason(&array("<c8", "False", "(1,)", &one)).contains("`<c8`"));
        assert!(reason(&array("<U4", "False", "(1,)", &one)).contains("`<U4`"));
        let fields = file("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", &one);
        assert!(reason(&fields).contains("structured"));
        assert!(
            reason(&array("<f4", "False", "(4611686018427387904, 16)", &one))
                .contains("larger than any file")
        );
        assert!(reason(&array("<f4", "False", "(99999999999999999999999,)", &one)).contains("too large"));
        assert!(reason(&array("<f4", "False", "(-1,)", &one)).contains("not a number"));
        assert!(
            reason(&array("<f4", "False", "(1000000000000,)", &one)).contains("needs 4000000000000 bytes")
        );
        assert!(reason(&array("<f4", "Maybe", "(1,)", &one)).contains("`True` or `False`"));
        assert!(reason(&file("{'descr': '<f4', 'shape': (1,), }", &one)).contains("lacks one of"));
        let trailing = read(&array("<f4", "False", "(1,)", &[0; 6])).unwrap_err();
        assert_eq!((trailing.place, trailing.reason.as_str()), (Place::Byte(132), "2 bytes too many"));
    }

    #[test]
    fn every_truncation_is_a_fault() {
        let whole = array("<f4", "False", "(3, 2)", &[1; 24]);
        read(&whole).unwrap();
        for len in 0..whole.len() {
            assert!(read(&whole[..len]).is_err(), "cut to {len} bytes");
        }
    }

    #[test]
    fn the_limit_is_of_memory() {
        let bytes = array("|u1", "False", "(100,)", &[1; 100]);
        let limits = Limits { max_bytes: 399, ..Limits::default() };
        let fault = npy(&bytes, &limits, &mut vec![], &mut vec![], &mut vec![]).unwrap_err();
        assert!(fault.reason.contains("400 bytes are more than the limit of 399"));
        // No numbers at all, and an axis along which a batch would be padded.
        let empty = array("<f4", "False", "(1000000000000, 0)", &[]);
        assert!(reason(&empty).contains("is more than the limit of"), "{}", reason(&empty));
    }
}
