//! HDF5 files. There is no writer here: each bad file is one that h5py wrote, changed by hand.

use feedwater::{error::Place, source};

use crate::harness::{
    As, Scratch, bad_dataset, every_mutation, every_prefix, folder, only_bad, other_fixture, skipping,
};

fn h5(name: &str) -> Vec<u8> {
    other_fixture(&format!("hdf5/{name}.h5"))
}

/// The only place where these bytes stand.
#[track_caller]
fn find(file: &[u8], wanted: &[u8]) -> usize {
    let places: Vec<usize> = (0..file.len()).filter(|at| file[*at..].starts_with(wanted)).collect();
    assert_eq!(places.len(), 1, "{places:?}");
    places[0]
}

fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The file with some bytes in place of others.
#[track_caller]
fn with(file: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let at = find(file, old);
    let mut file = file.to_vec();
    file[at..at + new.len()].copy_from_slice(new);
    file
}

#[track_caller]
fn refused(bytes: &[u8], words: &str) {
    let folder = folder(&[("a.h5", bytes)]);
    bad_dataset(&folder.path().join("a.h5"), words);
}

#[track_caller]
fn bad(bytes: &[u8], place: &Place, words: &str) {
    let folder = folder(&[("a.h5", bytes)]);
    only_bad(&folder.path().join("a.h5"), As::Arrays, "a.h5", place, words);
}

#[test]
fn files_that_are_something_else() {
    refused(b"", "is not usable");
    refused(b"<html>not found</html>", "invalid HDF5 magic bytes");
    let whole = h5("rows");
    refused(&whole[..whole.len() - 1], "it was cut off: it is said to have 10240 bytes, and there are 10239");
    refused(&whole[..1000], "it was cut off");
    refused(&h5("text_only"), "holds no arrays, only notes");
    refused(&h5("records"), "holds no arrays, only features");
    refused(&h5("keys_twice"), "two samples have the key `a.h5/a`");
    refused(&h5("beside"), "does not say which of them it is about (member `labels`)");
}

#[test]
fn shapes_that_are_not_possible() {
    // Its rows are 4 × 6 × 4.
    let shape = numbers(&[4, 6, 4]);
    for (shape_too_large, words) in [
        ([1 << 40, 6, 4], "[1099511627776, 6, 4] is more than the file can hold"),
        ([1 << 62, 1 << 62, 4], "is more than the file can hold"),
        ([4, 1 << 50, 4], "is more than the file can hold"),
        ([4, 6, 0], "leaves no numbers for a row"),
        ([5, 6, 4], "its shape is [4] where `features` has 5 rows"),
    ] {
        let whole = h5("rows");
        let at = find(&whole, &[shape.clone(), shape.clone()].concat());
        let mut whole = whole;
        whole[at..at + 24].copy_from_slice(&numbers(&shape_too_large));
        whole[at + 24..at + 48].copy_from_slice(&numbers(&shape_too_large));
        refused(&whole, words);
    }
    // A dataset that is a sample: 3 × 4, and the others are good.
    let whole = h5("datasets");
    for length in [5, 1 << 20, 1 << 40, u64::MAX >> 1] {
        let old = numbers(&[3, 4, 3, 4]);
        let file = with(&whole, &old, &numbers(&[length, 4, length, 4]));
        let folder = folder(&[("a.h5", file)]);
        let run = skipping(&folder.path().join("a.h5"), As::Arrays);
        assert_eq!((run.good.len(), run.bad.len()), (2, 1), "{length}: {:?}", run.bad);
        assert_eq!(
            (run.bad[0].key.as_str(), &run.bad[0].line["member"]),
            ("a.h5/train/utt0", &"train/utt0".into())
        );
    }
}

#[test]
fn lengths_that_do_not_fit() {
    let whole = h5("rows");
    for length in [7, 0, u64::MAX] {
        let file = with(&whole, &numbers(&[3, 4, 5, 6]), &numbers(&[3, length, 5, 6]));
        bad(&file, &Place::Row(1), "and 6 frames are stored");
    }
    // Lists, the second of which is said to be of 3 × 5.
    let file = with(&h5("lists"), &numbers(&[2, 4, 3, 4, 4, 4]), &numbers(&[2, 4, 3, 5, 4, 4]));
    bad(&file, &Place::Row(1), "the list has 12 numbers, its shape is [3, 5]");
}

/// A chunk has four rows, and all of them are gone with it.
#[test]
fn a_chunk_that_is_damaged() {
    for (name, words) in [("rows_gzip", ""), ("rows_lzf", "damaged")] {
        let mut file = h5(name);
        if name == "rows_gzip" {
            // The first that is written by zlib at h5py's level.
            let at = (0..file.len()).find(|at| file[*at..].starts_with(b"\x78\x5E")).unwrap();
            file[at + 20] ^= 0x10;
        } else {
            // Two literals come first; now it would copy from before its first byte.
            let at = (0..file.len()).find(|at| file[*at..].starts_with(b"\x00\x00\xE0")).unwrap();
            file[at - 1] = 0x3F;
        }
        let folder = folder(&[("a.h5", file)]);
        let run = skipping(&folder.path().join("a.h5"), As::Arrays);
        assert_eq!((run.good.len(), run.bad.len()), (6, 4), "{:?}", run.bad);
        for (row, bad) in run.bad.iter().enumerate() {
            assert!(bad.reason.contains(words), "{}", bad.reason);
            assert_eq!(bad.line["row"].as_u64().unwrap() % 4, row as u64);
        }
    }
}

#[test]
fn a_compression_that_is_not_read() {
    // Blosc is the next number behind LZF.
    let file = with(&h5("rows_lzf"), b"\x00\x7D\x08\x00", b"\x01\x7D");
    let folder = folder(&[("a.h5", file)]);
    let run = skipping(&folder.path().join("a.h5"), As::Arrays);
    assert_eq!((run.good.len(), run.bad.len()), (0, 10));
    let words = "it is compressed in a way that is not read here (filter id 32001";
    assert!(run.bad[0].reason.contains(words), "{}", run.bad[0].reason);
}

/// It was left out without a word.
#[test]
fn numbers_that_are_not_read() {
    bad(&h5("complex"), &Place::Member("utt2".to_owned()), "it holds records of several fields, not numbers");
}

/// `bfloat16` is as wide as a half.
#[test]
fn halves_that_are_none() {
    let file = h5("types");
    let folder_of = |file: Vec<u8>| folder(&[("a.h5", file)]);
    let half = [16, 0, 10, 5, 0, 10, 15, 0, 0, 0];
    let places: Vec<usize> = (0..file.len()).filter(|at| file[*at..].starts_with(&half)).collect();
    assert_eq!(places.len(), 2, "both byte orders");
    let mut file = file;
    file[places[0]..places[0] + 10].copy_from_slice(&[16, 0, 7, 8, 0, 7, 127, 0, 0, 0]);
    let folder = folder_of(file);
    let source = source::open(folder.path()).unwrap();
    let faults: Vec<String> =
        (0..source.len()).filter_map(|index| source.sample(index).err()).map(|fault| fault.reason).collect();
    assert_eq!(faults, ["its numbers of 16 bits are not IEEE halves; store them as `float32`"]);
}

#[test]
fn every_truncation() {
    let scratch = Scratch::new("a.h5");
    for name in ["single", "ids"] {
        let whole = h5(name);
        let all = scratch.try_dataset(&whole);
        assert!(all.0 > 0 && all.1 == 0);
        let check = |length: usize, same: bool| assert!(!same, "cut to {length} bytes nothing was missed");
        every_prefix(&whole, |bytes| scratch.try_dataset(bytes) == all, check);
    }
}

#[test]
fn mutations() {
    let scratch = Scratch::new("a.h5");
    for name in
        ["single", "datasets", "datasets_latest", "groups", "rows", "rows_gzip", "rows_lzf", "lists", "types"]
    {
        every_mutation(&h5(name), 1500, |bytes| scratch.try_dataset(bytes).0 > 0);
    }
}
