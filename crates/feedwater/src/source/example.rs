//! What does a `tf.train.Example` say? Names, and a list of bytes, floats or integers each.
//!
//! Parsed by hand: it is four small messages, and every fault gets its byte in the file. A `SequenceExample` has the same
//! features in the same place (its context), and lists of features beside them, a feature a frame; so one parser reads both.
//! Nothing is copied but integers, which are stored in as few bytes as each takes.

use std::{borrow::Cow, collections::BTreeMap};

use super::array;
use crate::error::Fault;

/// The features of a record, by name.
pub(super) type Features<'a> = BTreeMap<&'a str, Feature<'a>>;

/// What stands under a name.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Feature<'a> {
    /// Neither of the three: TensorFlow writes that for what is missing.
    Nothing,
    Bytes(Vec<&'a [u8]>),
    /// Little-endian `f32`, as they are stored. `frames`: of how many features of a list they are.
    Floats {
        numbers: Cow<'a, [u8]>,
        frames: Option<usize>,
    },
    Ints(Vec<i64>),
}

impl Feature<'_> {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Bytes(_) => "bytes",
            Self::Floats { .. } => "floats",
            Self::Ints(_) => "integers",
        }
    }

    /// How many values.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Bytes(values) => values.len(),
            Self::Floats { numbers, .. } => numbers.len() / 4,
            Self::Ints(values) => values.len(),
        }
    }
}

/// Parses a record whose first byte is byte `start` of its file.
pub(super) fn parse(bytes: &[u8], start: u64) -> Result<Features<'_>, Fault> {
    let mut features = Features::new();
    let mut example = Wire { rest: bytes, end: start + bytes.len() as u64 };
    while let Some((number, field)) = example.field()? {
        match (number, field) {
            (1, Field::Bytes(map)) => entries(map, |name, value| {
                features.insert(name, feature(value)?);
                Ok(())
            })?,
            (2, Field::Bytes(map)) => entries(map, |name, value| {
                features.insert(name, feature_list(value)?);
                Ok(())
            })?,
            (1 | 2, _) => return Err(example.wrong("it is not a `tf.train.Example`")),
            _ => {}
        }
    }
    Ok(features)
}

/// Runs `each` on the entries of a map that is field 1 of a message.
fn entries<'a>(
    mut map: Wire<'a>,
    mut each: impl FnMut(&'a str, Wire<'a>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    while let Some((number, field)) = map.field()? {
        let (1, Field::Bytes(mut entry)) = (number, field) else { continue };
        let (mut name, mut value) = ("", Wire { rest: &[], end: entry.end });
        while let Some((number, field)) = entry.field()? {
            match (number, field) {
                (1, Field::Bytes(text)) => {
                    name = str::from_utf8(text.rest)
                        .map_err(|_| text.wrong("the name of a feature is not UTF-8"))?;
                }
                (2, Field::Bytes(message)) => value = message,
                _ => {}
            }
        }
        each(name, value)?;
    }
    Ok(())
}

fn feature(mut message: Wire<'_>) -> Result<Feature<'_>, Fault> {
    let mut feature = Feature::Nothing;
    while let Some((number, field)) = message.field()? {
        let Field::Bytes(list) = field else { continue };
        feature = match number {
            1 => bytes_list(list)?,
            2 => float_list(list)?,
            3 => int64_list(list)?,
            _ => continue,
        };
    }
    Ok(feature)
}

fn bytes_list(mut list: Wire<'_>) -> Result<Feature<'_>, Fault> {
    let mut values = Vec::new();
    while let Some((number, field)) = list.field()? {
        if let (1, Field::Bytes(value)) = (number, field) {
            values.push(value.rest);
        }
    }
    Ok(Feature::Bytes(values))
}

/// One packed list, as every writer of today makes it; or numbers one by one, which older ones made.
fn float_list(mut list: Wire<'_>) -> Result<Feature<'_>, Fault> {
    let mut numbers: Cow<[u8]> = Cow::Borrowed(&[]);
    while let Some((number, field)) = list.field()? {
        match (number, field) {
            (1, Field::Bytes(packed)) => {
                if !packed.rest.len().is_multiple_of(4) {
                    return Err(packed.wrong("a list of floats ends in the midst of one"));
                }
                if numbers.is_empty() {
                    numbers = Cow::Borrowed(packed.rest);
                } else {
                    numbers.to_mut().extend_from_slice(packed.rest);
                }
            }
            (1, Field::Fixed32(number)) => numbers.to_mut().extend_from_slice(&number),
            _ => {}
        }
    }
    Ok(Feature::Floats { numbers, frames: None })
}

fn int64_list(mut list: Wire<'_>) -> Result<Feature<'_>, Fault> {
    let mut values = Vec::new();
    while let Some((number, field)) = list.field()? {
        match (number, field) {
            (1, Field::Bytes(mut packed)) => {
                while !packed.rest.is_empty() {
                    values.push(packed.varint()? as i64);
                }
            }
            (1, Field::Varint(value)) => values.push(value as i64),
            _ => {}
        }
    }
    Ok(Feature::Ints(values))
}

/// A feature a frame becomes one of all frames.
fn feature_list(mut list: Wire<'_>) -> Result<Feature<'_>, Fault> {
    let mut whole = Feature::Nothing;
    let mut count = 0;
    while let Some((number, field)) = list.field()? {
        let (1, Field::Bytes(message)) = (number, field) else { continue };
        let at = message.clone();
        let frame = feature(message)?;
        let width = frame.len();
        match (&mut whole, frame) {
            (Feature::Nothing, first) if count == 0 => whole = first,
            (Feature::Bytes(all), Feature::Bytes(more)) => all.extend(more),
            (Feature::Ints(all), Feature::Ints(more)) => all.extend(more),
            (Feature::Floats { numbers, .. }, Feature::Floats { numbers: more, .. }) => {
                if count * width * 4 != numbers.len() {
                    return Err(at.wrong(&format!(
                        "frame {count} of a list has {width} floats, those before have others"
                    )));
                }
                numbers.to_mut().extend_from_slice(&more);
            }
            (all, other) => {
                return Err(at.wrong(&format!("a list has {} and {} in it", all.kind(), other.kind())));
            }
        }
        count += 1;
    }
    if let Feature::Floats { frames, .. } = &mut whole {
        *frames = Some(count);
    }
    Ok(whole)
}

/// A tensor as `tf.io.serialize_tensor` writes it, in the form of a `.npy` file; `None` where it is none.
pub(super) fn tensor(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut message = Wire { rest: bytes, end: bytes.len() as u64 };
    let (mut descr, mut shape, mut content, mut floats) = (None, Vec::new(), None, None);
    while let Some((number, field)) = message.field().ok()? {
        match (number, field) {
            (1, Field::Varint(kind)) => descr = number_type(kind),
            (2, Field::Bytes(mut dims)) => {
                while let Some((number, field)) = dims.field().ok()? {
                    let (2, Field::Bytes(mut dim)) = (number, field) else { continue };
                    let mut length = 0;
                    while let Some((number, field)) = dim.field().ok()? {
                        if let (1, Field::Varint(value)) = (number, field) {
                            length = usize::try_from(value).ok()?;
                        }
                    }
                    shape.push(length);
                }
            }
            (4, Field::Bytes(bytes)) => content = Some(bytes.rest),
            (5, Field::Bytes(packed)) => floats = Some(packed.rest),
            _ => {}
        }
    }
    let (descr, width) = descr?;
    let numbers = content.or(floats.filter(|_| descr == "<f4"))?;
    let whole = array::count(&shape)?.checked_mul(width)? == numbers.len();
    whole.then(|| array::npy_form(descr, &shape, numbers))
}

/// A `DataType` of TensorFlow's, as numpy calls it, and its bytes.
fn number_type(kind: u64) -> Option<(&'static str, usize)> {
    Some(match kind {
        1 => ("<f4", 4),
        2 => ("<f8", 8),
        3 => ("<i4", 4),
        4 => ("|u1", 1),
        5 => ("<i2", 2),
        6 => ("|i1", 1),
        9 => ("<i8", 8),
        17 => ("<u2", 2),
        19 => ("<f2", 2),
        22 => ("<u4", 4),
        23 => ("<u8", 8),
        _ => return None,
    })
}

/// A protobuf message, from left to right.
#[derive(Clone)]
struct Wire<'a> {
    rest: &'a [u8],
    /// The byte of the file behind it.
    end: u64,
}

enum Field<'a> {
    Varint(u64),
    Fixed64,
    Bytes(Wire<'a>),
    Fixed32([u8; 4]),
}

impl<'a> Wire<'a> {
    fn at(&self) -> u64 {
        self.end - self.rest.len() as u64
    }

    fn wrong(&self, what: &str) -> Fault {
        Fault::at_byte(self.at(), what)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Fault> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            return Err(self.wrong(&format!(
                "the record is damaged: {count} bytes are wanted where {} are left",
                self.rest.len()
            )));
        };
        self.rest = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Fault> {
        let mut value = 0;
        for (at, byte) in self.rest.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7F) << (7 * at);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[at + 1..];
                return Ok(value);
            }
        }
        Err(self.wrong("the record is damaged: a number does not end"))
    }

    /// The next field and its number.
    fn field(&mut self) -> Result<Option<(u64, Field<'a>)>, Fault> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Varint(self.varint()?),
            1 => self.take(8).map(|_| Field::Fixed64)?,
            2 => {
                let count = self.varint()?;
                let rest = self.take(usize::try_from(count).unwrap_or(usize::MAX))?;
                Field::Bytes(Wire { rest, end: self.at() })
            }
            5 => {
                let mut number = [0; 4];
                number.copy_from_slice(self.take(4)?);
                Field::Fixed32(number)
            }
            kind => {
                return Err(self.wrong(&format!("the record is damaged: {kind} is no kind of field in it")));
            }
        };
        Ok(Some((tag >> 3, field)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

    use super::*;
    use crate::error::Place;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        assert!(bytes.len() < 128);
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    fn example(name: &str, feature: &[u8]) -> Vec<u8> {
        field(1, &field(1, &[field(1, name.as_bytes()), field(2, feature)].concat()))
    }

    #[test]
    fn packed_and_one_by_one() {
        let expected = Feature::Ints(vec![1, -1, 300]);
        let minus_one = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1].as_slice();
        let packed = field(3, &field(1, &[&[1], minus_one, &[0xAC, 2]].concat()));
        let single = field(3, &[&[8, 1, 8], minus_one, &[8, 0xAC, 2]].concat());
        for list in [packed, single] {
            assert_eq!(parse(&example("n", &list), 0).unwrap()["n"], expected);
        }
        let (a, b) = (1.5_f32.to_le_bytes(), 2.5_f32.to_le_bytes());
        let packed = field(2, &field(1, &[a, b].concat()));
        let single = field(2, &[&[13], a.as_slice(), &[13], &b].concat());
        for list in [packed, single] {
            let whole = example("n", &list);
            let features = parse(&whole, 0).unwrap();
            assert_eq!(features["n"], Feature::Floats { numbers: [a, b].concat().into(), frames: None });
        }
    }

    #[test]
    fn a_list_of_frames_is_one_array() {
        let frame =
            |a: f32, b: f32| field(1, &field(2, &field(1, &[a.to_le_bytes(), b.to_le_bytes()].concat())));
        let list = |frames: &[Vec<u8>]| {
            field(2, &field(1, &[field(1, b"mel"), field(2, &frames.concat())].concat()))
        };
        let good = list(&[frame(1.0, 2.0), frame(3.0, 4.0)]);
        let Feature::Floats { numbers, frames } = &parse(&good, 0).unwrap()["mel"] else { panic!() };
        assert_eq!((numbers.len(), *frames), (16, Some(2)));
        let short = field(1, &field(2, &field(1, &1.0_f32.to_le_bytes())));
        let fault = parse(&list(&[frame(1.0, 2.0), short]), 0).unwrap_err();
        assert!(fault.reason.contains("frame 1 of a list has 1 floats"), "{fault}");
    }

    #[test]
    fn a_fault_names_its_byte() {
        let good = example("n", &field(3, &field(1, &[1])));
        assert_eq!(parse(&good, 100).unwrap().len(), 1);
        let mut bad = good.clone();
        // The length of the name, which now reaches beyond its entry.
        bad[5] = 120;
        let fault = parse(&bad, 100).unwrap_err();
        assert_eq!(fault.place, Place::Byte(106), "{fault}");
        for length in 1..good.len() {
            assert!(parse(&good[..length], 0).is_err(), "cut to {length}");
        }
        assert!(parse(&[], 0).unwrap().is_empty());
    }
}
