//! `TFRecord` files.

use std::fs::{self, File};

use feedwater::error::Place;

use crate::harness::{
    As, Scratch, bad_dataset, every_mutation, every_prefix, fixture, folder, only_bad, other_fixture,
    skipping,
};

fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8).to_le_bytes()
}

fn head(length: u64) -> Vec<u8> {
    let length = length.to_le_bytes();
    [length.as_slice(), &masked(&length)].concat()
}

fn record(bytes: &[u8]) -> Vec<u8> {
    [head(bytes.len() as u64).as_slice(), bytes, &masked(bytes)].concat()
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A field of a message that is bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2], varint(bytes.len() as u64).as_slice(), bytes].concat()
}

fn bytes(values: &[&[u8]]) -> Vec<u8> {
    field(1, &values.iter().flat_map(|value| field(1, value)).collect::<Vec<u8>>())
}

fn floats(count: usize) -> Vec<u8> {
    field(2, &field(1, &vec![0; 4 * count]))
}

fn ints(values: &[i64]) -> Vec<u8> {
    field(3, &field(1, &values.iter().flat_map(|value| varint(*value as u64)).collect::<Vec<u8>>()))
}

fn example(features: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let entry =
        |(name, value): &(&str, Vec<u8>)| field(1, &[field(1, name.as_bytes()), field(2, value)].concat());
    field(1, &features.iter().flat_map(entry).collect::<Vec<u8>>())
}

fn sound(text: &[u8]) -> Vec<u8> {
    example(&[("audio", bytes(&[&fixture("pcm_s16le.wav")])), ("text", bytes(&[text]))])
}

fn good() -> Vec<u8> {
    record(&sound(b"words"))
}

#[track_caller]
fn bad(file: &[u8], samples_are: As, place: &Place, words: &str) {
    let folder = folder(&[("a.tfrecord", file)]);
    only_bad(&folder.path().join("a.tfrecord"), samples_are, "a.tfrecord", place, words);
}

/// Where the second record begins.
fn behind() -> Place {
    Place::Byte(good().len() as u64)
}

/// The first byte of what the second record holds.
fn inside() -> Place {
    Place::Byte(good().len() as u64 + 12)
}

#[test]
fn an_end_in_the_midst_of_a_record() {
    let whole = [good(), good()].concat();
    bad(&whole[..whole.len() - 1], As::Sound, &behind(), "bytes before the end");
    bad(&whole[..good().len() + 12], As::Sound, &behind(), "begins 12 bytes before the end");
    bad(&whole[..good().len() + 11], As::Sound, &behind(), "it ends inside of the length of a record");
    bad(&whole[..=good().len()], As::Sound, &behind(), "it ends inside of the length of a record");
}

#[test]
fn checksums_that_are_wrong() {
    let mut length = [good(), good(), good()].concat();
    length[good().len() + 3] ^= 1;
    bad(
        &length,
        As::Sound,
        &behind(),
        "the rest of the file cannot be read: the checksum of a record's length is wrong",
    );
    // What is behind a record whose bytes are damaged is good.
    let mut data = [good(), good(), good()].concat();
    data[good().len() + 100] ^= 1;
    bad(&data, As::Sound, &behind(), "the checksum of a record of");
    let mut check = [good(), good()].concat();
    *check.last_mut().unwrap() ^= 1;
    bad(&check, As::Sound, &behind(), "the checksum of a record of");
}

#[test]
fn lengths_that_are_not_possible() {
    for length in [u64::MAX, u64::MAX - 15, 1 << 62, 6 << 30] {
        let words = format!("a record of {length} bytes begins 12 bytes before the end");
        bad(&[good(), head(length)].concat(), As::Sound, &behind(), &words);
    }
    // A file that is one hole has the bytes.
    let folder = folder(&[("a.tfrecord", [good(), head(2 << 30)].concat())]);
    let path = folder.path().join("a.tfrecord");
    let size = fs::metadata(&path).unwrap().len() + (2 << 30) + 4;
    File::options().write(true).open(&path).unwrap().set_len(size).unwrap();
    only_bad(
        &path,
        As::Sound,
        "a.tfrecord",
        &behind(),
        "a record of 2147483648 bytes is larger than the limit",
    );
}

#[test]
fn records_that_say_nonsense() {
    let after = |second: &[u8]| [good(), record(second)].concat();
    let missing = example(&[("text", bytes(&[b"words"]))]);
    bad(&after(&missing), As::Sound, &inside(), "`audio` is missing");
    let two = example(&[("audio", bytes(&[b"a", b"b"])), ("text", bytes(&[b"words"]))]);
    bad(&after(&two), As::Sound, &inside(), "`audio` has 2 values where one is wanted");
    let other = example(&[("audio", ints(&[1])), ("text", bytes(&[b"words"]))]);
    bad(&after(&other), As::Sound, &inside(), "`audio` holds integers, not bytes");
    bad(&after(&sound(b"caf\xE9")), As::Sound, &inside(), "`text` is not UTF-8");
    let start = good().len() as u64 + 12;
    bad(&after(b"\xFF\xFF"), As::Sound, &Place::Byte(start), "a number does not end");
    bad(
        &after(&[0x0A, 0x7F, 1]),
        As::Sound,
        &Place::Byte(start + 2),
        "127 bytes are wanted where 1 are left",
    );
    bad(&after(&[0x08, 1]), As::Sound, &Place::Byte(start + 2), "it is not a `tf.train.Example`");
    bad(&after(&[0x0B]), As::Sound, &Place::Byte(start + 1), "3 is no kind of field in it");
    let claims = example(&[("audio", field(1, &[0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F]))]);
    let place = Place::Byte(start + claims.len() as u64);
    bad(&after(&claims), As::Sound, &place, "4294967295 bytes are wanted where 0 are left");
    let noise = example(&[("audio", bytes(&[b"RIFF"])), ("text", bytes(&[b"words"]))]);
    bad(&after(&noise), As::Sound, &Place::Whole, "not WAVE, which is not decoded here (byte 0 of it)");
}

#[test]
fn arrays_and_labels_that_do_not_fit() {
    let array = |count, shape: &[i64], label: &[i64]| {
        record(&example(&[("features", floats(count)), ("shape", ints(shape)), ("label", ints(label))]))
    };
    let good = array(6, &[3, 2], &[1]);
    let place = Place::Byte(good.len() as u64 + 12);
    let after = |second: Vec<u8>| [good.clone(), second].concat();
    for shape in [[3, 3].as_slice(), &[1 << 40, 1 << 40], &[0], &[]] {
        bad(&after(array(6, shape, &[1])), As::Arrays, &place, "`features` has 6 numbers, its shape is");
    }
    bad(&after(array(6, &[-3, -2], &[1])), As::Arrays, &place, "`shape` is [-3, -2], which is no shape");
    let no_label = record(&example(&[("features", floats(6)), ("shape", ints(&[3, 2]))]));
    bad(&after(no_label), As::Arrays, &place, "`label` is missing");
    let ids = |ids: &[i64]| record(&example(&[("input_ids", ints(ids))]));
    let file = [ids(&[1, 2]), ids(&[1, -100])].concat();
    let place = Place::Byte(ids(&[1, 2]).len() as u64 + 12);
    bad(&file, As::Text, &place, "-100 in `input_ids` is no token id");
    let torn = field(2, &field(1, &[0; 6]));
    let file = [good.clone(), record(&example(&[("features", torn)]))].concat();
    let folder = folder(&[("a.tfrecord", file)]);
    let run = skipping(&folder.path().join("a.tfrecord"), As::Arrays);
    assert!(run.bad[0].reason.contains("ends in the midst of one"), "{:?}", run.bad);
}

#[test]
fn files_that_are_something_else() {
    let refused = |bytes: &[u8], words: &str| {
        let folder = folder(&[("a.tfrecord", bytes)]);
        bad_dataset(&folder.path().join("a.tfrecord"), words);
    };
    refused(&other_fixture("tfrecord/gzip.tfrecord"), "is compressed with gzip");
    refused(&other_fixture("tfrecord/zlib.tfrecord"), "is compressed with zlib");
    refused(b"version https://git-lfs.github.com/spec/v1\n", "the checksum of a record's length is wrong");
    refused(b"", "holds no samples");
    refused(b"1234567", "it ends inside of the length of a record");
    refused(&other_fixture("tfrecord/raw.tfrecord"), "the record is damaged");
    refused(
        &other_fixture("tfrecord/other.tfrecord"),
        "has neither sound, text, arrays nor tokens, only image (bytes), weight (floats)",
    );
}

/// A shard that is garbage from its first byte on is one bad sample of a dataset of several.
#[test]
fn a_shard_that_is_something_else() {
    let folder = folder(&[("a.tfrecord", good()), ("b.tfrecord", b"<html>not found</html>".to_vec())]);
    let words = "the checksum of a record's length is wrong";
    only_bad(folder.path(), As::Sound, "b.tfrecord", &Place::Byte(0), words);
}

fn small() -> Vec<u8> {
    let one =
        example(&[("audio", bytes(&[b"RIFF"])), ("text", bytes(&[b"one"])), ("label", ints(&[7, 300]))]);
    let two = example(&[("mel", floats(6)), ("frames", ints(&[3])), ("text", bytes(&[b"two"]))]);
    let both =
        [("audio", bytes(&[b"RIFF"])), ("mel", floats(2)), ("frames", ints(&[1])), ("text", bytes(&[b"x"]))];
    let all = [&both[..], &[("label", ints(&[1]))]].concat();
    [record(&example(&all)), record(&one), record(&two), record(&example(&all))].concat()
}

#[test]
fn every_truncation() {
    let whole = small();
    let scratch = Scratch::new("a.tfrecord");
    let all = scratch.try_dataset(&whole);
    assert_eq!(all, (2, 2));
    let check = |length: usize, same: bool| assert!(!same, "cut to {length} bytes nothing was missed");
    every_prefix(&whole, |bytes| scratch.try_dataset(bytes) == all, check);
}

#[test]
fn mutations() {
    let whole = small();
    let scratch = Scratch::new("a.tfrecord");
    every_mutation(&whole, 2000, |bytes| scratch.try_dataset(bytes).0 > 0);
    // With the checksums right again, what the records say is reached.
    every_mutation(&whole, 6000, |bytes| scratch.try_dataset(&mended(bytes)).0 > 0);
    for name in ["sequence.tfrecord", "tensors.tfrecord", "tokens.tfrec"] {
        let whole = other_fixture(&format!("tfrecord/{name}"));
        every_mutation(&whole, 2000, |bytes| scratch.try_dataset(&mended(bytes)).0 > 0);
    }
}

/// Puts every checksum right that can be found.
fn mended(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let mut at = 0;
    while let Some(length) = bytes.get(at..at + 8) {
        // What the length should have been, where it was changed to more than there is.
        let length = u64::from_le_bytes(*length.first_chunk().unwrap()).min(bytes.len() as u64) as usize;
        let check = masked(&bytes[at..at + 8]);
        let Some(slot) = bytes.get_mut(at + 8..at + 12) else { break };
        slot.copy_from_slice(&check);
        let Some(data) = bytes.get(at + 12..at + 12 + length) else { break };
        let check = masked(data);
        let Some(slot) = bytes.get_mut(at + 12 + length..at + 16 + length) else { break };
        slot.copy_from_slice(&check);
        at += 16 + length;
    }
    bytes
}
