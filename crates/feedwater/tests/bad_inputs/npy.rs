//! `.npy` arrays.

use std::fs::File;

use feedwater::error::Place;

use crate::harness::{As, every_mutation, every_prefix, folder, only_bad, skipping, try_array};

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

fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn good() -> Vec<u8> {
    array("<f4", "False", "(3, 2)", &floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
}

#[track_caller]
fn bad(bytes: &[u8], place: &Place, words: &str) {
    let folder = folder(&[("a good one.npy", good().as_slice()), ("bad.npy", bytes)]);
    only_bad(folder.path(), As::Arrays, "bad.npy", place, words);
}

#[test]
fn a_magic_that_is_wrong() {
    bad(b"", &Place::Byte(0), "this is not a npy file");
    bad(b"PK\x03\x04 this is an npz", &Place::Byte(0), "this is not a npy file");
    bad(b"\x93NUMPY\x07\x00\x10\x00", &Place::Byte(6), "version 7 of the npy format is not known");
}

#[test]
fn a_header_of_four_gigabytes() {
    let claim = [b"\x93NUMPY\x02\x00".as_slice(), &u32::MAX.to_le_bytes(), b"{'descr': '<f4'"].concat();
    bad(&claim, &Place::Byte(8), "a header of 4294967295 bytes is not possible");
    // Also where the bytes are there: the file is a hole, and takes no room on the disk.
    let folder = folder(&[("a good one.npy", good()), ("bad.npy", claim)]);
    File::options().write(true).open(folder.path().join("bad.npy")).unwrap().set_len(5 << 30).unwrap();
    only_bad(
        folder.path(),
        As::Arrays,
        "bad.npy",
        &Place::Byte(8),
        "a header of 4294967295 bytes is not possible",
    );
}

#[test]
fn a_shape_that_overflows() {
    let with = |shape: &str| array("<f4", "False", shape, &floats(&[1.0]));
    bad(&with("(4611686018427387904, 16)"), &Place::Byte(0), "is larger than any file");
    bad(&with("(4294967296, 4294967296, 2)"), &Place::Byte(0), "is larger than any file");
    bad(&with("(4611686018427387904,)"), &Place::Byte(0), "is larger than any file");
    let end = Place::Byte(132);
    bad(&with("(1000000000000,)"), &end, "needs 4000000000000 bytes, but there are 4");
    let many = with(&format!("({})", "1,".repeat(70)));
    let folder = folder(&[("a good one.npy", good()), ("bad.npy", many)]);
    let run = skipping(folder.path(), As::Arrays);
    assert!(run.bad[0].reason.contains("too many dimensions"), "{:?}", run.bad);
}

/// An axis without any length makes everything else in the shape free: nothing may be allocated or counted over it.
#[test]
fn a_shape_with_nothing_in_it() {
    for fortran in ["False", "True"] {
        let nothing = array("<f4", fortran, "(9000000000000000000, 0)", &[]);
        let folder = folder(&[("a good one.npy", good()), ("bad.npy", nothing)]);
        let run = skipping(folder.path(), As::Arrays);
        assert_eq!(run.good, ["a good one.npy"]);
        assert_eq!(run.bad.len(), 1);
    }
}

#[test]
fn objects_are_never_read() {
    bad(
        &array("|O", "False", "(1,)", b"cos\nsystem\n"),
        &Place::Byte(19),
        "never read: they are pickled programs",
    );
    let fields = "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,), }";
    bad(&file(fields, &[0; 8]), &Place::Byte(19), "a structured array has no one number type");
    bad(&array("<c8", "False", "(1,)", &[0; 8]), &Place::Byte(19), "the number type `<c8` is not read here");
}

#[test]
fn other_orders_are_taken() {
    let numbers = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let big: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
    let fortran = floats(&[1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
    let folder = folder(&[
        ("a.npy", good()),
        ("big.npy", array(">f4", "False", "(3, 2)", &big)),
        ("fortran.npy", array("<f4", "True", "(3, 2)", &fortran)),
    ]);
    let run = skipping(folder.path(), As::Arrays);
    assert_eq!((run.good.len(), run.bad.len()), (3, 0), "{:?}", run.bad);
    let read = |name: &str| {
        let (mut out, mut shape, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
        let file = File::open(folder.path().join(name)).unwrap();
        feedwater::decode::npy(
            &file,
            &feedwater::decode::Limits::default(),
            &mut out,
            &mut shape,
            &mut scratch,
        )
        .unwrap();
        out
    };
    assert_eq!((read("big.npy"), read("fortran.npy")), (numbers.to_vec(), numbers.to_vec()));
}

#[test]
fn bytes_too_many_or_too_few() {
    let mut long = good();
    long.extend_from_slice(b"more");
    bad(&long, &Place::Byte(128 + 24), "4 bytes too many");
    let short = &good()[..150];
    bad(short, &Place::Byte(150), "needs 24 bytes, but there are 22");
}

#[test]
fn every_truncation() {
    every_prefix(
        &good(),
        |bytes| try_array(&bytes),
        |length, good| {
            assert!(!good, "cut to {length} bytes it was taken");
        },
    );
}

#[test]
fn mutations() {
    every_mutation(&good(), 5000, |bytes| try_array(&bytes));
    let fortran = array(">i2", "True", "(3, 2, 2)", &[1; 24]);
    every_mutation(&fortran, 5000, |bytes| try_array(&bytes));
}
