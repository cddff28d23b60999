//! Arrays that stand inside of something else, in the form of a `.npy` file: what decodes, measures, caches and inspects arrays
//! then has one form to know.

/// The bytes of a `.npy` file with these numbers, in C order. `descr` is the number type as numpy writes it: `<f4`.
pub(super) fn npy_form(descr: &str, shape: &[usize], numbers: &[u8]) -> Vec<u8> {
    /// Magic, version and length of what follows.
    const PREFIX: usize = 10;

    let lengths: Vec<String> = shape.iter().map(usize::to_string).collect();
    let lengths = lengths.join(", ");
    // With one length, the comma makes it a tuple.
    let comma = if shape.len() == 1 { "," } else { "" };
    let head = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({lengths}{comma}), }}");
    let whole = (PREFIX + head.len() + 1).next_multiple_of(64);
    let mut bytes = Vec::with_capacity(whole + numbers.len());
    bytes.extend_from_slice(b"\x93NUMPY\x01\x00");
    bytes.extend_from_slice(&((whole - PREFIX) as u16).to_le_bytes());
    bytes.extend_from_slice(head.as_bytes());
    bytes.resize(whole - 1, b' ');
    bytes.push(b'\n');
    bytes.extend_from_slice(numbers);
    bytes
}

/// How many numbers a shape has, where that can be said.
pub(super) fn count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |count, length| count.checked_mul(*length))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

    use super::*;
    use crate::decode::{Limits, npy};

    #[test]
    fn what_is_written_is_read() {
        let check = |descr: &str, shape: &[usize], numbers: &[u8], expected: &[f32]| {
            let file = npy_form(descr, shape, numbers);
            assert_eq!((file.len() - numbers.len()) % 64, 0);
            let (mut out, mut read_shape) = (Vec::new(), Vec::new());
            npy(&file, &Limits::default(), &mut out, &mut read_shape, &mut Vec::new()).unwrap();
            assert_eq!((out.as_slice(), read_shape.as_slice()), (expected, shape));
        };
        check("<f4", &[1, 2], &[1.5_f32.to_le_bytes(), 2.0_f32.to_le_bytes()].concat(), &[1.5, 2.0]);
        check(">i2", &[3], &[0, 1, 1, 0, 255, 255], &[1.0, 256.0, -1.0]);
        check("|u1", &[], &[7], &[7.0]);
        check("<f8", &[0, 5], &[], &[]);
        assert_eq!((count(&[3, 4]), count(&[]), count(&[usize::MAX, 2])), (Some(12), Some(1), None));
    }
}
