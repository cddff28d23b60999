//! FLAC.

use feedwater::error::Place;

use crate::harness::{bad_sound, every_mutation, every_prefix, fixture, good_sound, try_sound};

/// Where the first frame is: behind the last block of metadata.
fn first_frame(bytes: &[u8]) -> usize {
    let mut at = 4;
    loop {
        let len = u32::from_be_bytes([0, bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize;
        let last = bytes[at] & 0x80 != 0;
        at += 4 + len;
        if last {
            return at;
        }
    }
}

/// The 36 bits that say how many samples there are.
fn with_total(mut bytes: Vec<u8>, total: u64) -> Vec<u8> {
    bytes[21] = bytes[21] & 0xF0 | (total >> 32) as u8;
    bytes[22..26].copy_from_slice(&(total as u32).to_be_bytes());
    bytes
}

#[test]
fn a_checksum_that_is_wrong() {
    let whole = fixture("mono16.flac");
    let start = first_frame(&whole);
    let mut header = whole.clone();
    header[start + 4] ^= 1;
    bad_sound(
        "bad.flac",
        &header,
        &Place::Byte(start as u64),
        "the checksum of a flac frame's header is wrong",
    );
    // Somewhere in the second half: the frame that it is in is named.
    let mut body = whole.clone();
    let at = whole.len() - 10;
    body[at] ^= 1;
    let folder = crate::harness::folder(&[("good.flac", whole), ("late.flac", body)]);
    let (key, fault) = crate::harness::failing(folder.path(), crate::harness::As::Sound);
    assert_eq!(key, "late.flac");
    let Place::Byte(byte) = fault.place else { panic!("{fault}") };
    assert!((start as u64..at as u64).contains(&byte), "{fault}");
}

#[test]
fn more_samples_than_there_could_be() {
    let whole = fixture("mono16.flac");
    let most = with_total(whole.clone(), (1 << 36) - 1);
    bad_sound("bad.flac", &most, &Place::Whole, "s of audio are more than the limit of 14400.0 s");
    // Within the limit, but not there: three hours.
    let hours = with_total(whole.clone(), 3 * 3600 * 16_000);
    bad_sound("bad.flac", &hours, &Place::Byte(whole.len() as u64), "frames too early");
    assert_eq!(good_sound(&with_total(whole, 0)).len(), 9600, "not known is not wrong");
}

#[test]
fn a_format_that_changes() {
    let (mono, stereo) = (with_total(fixture("mono16.flac"), 0), fixture("stereo24.flac"));
    let both = [mono.as_slice(), &stereo[first_frame(&stereo)..]].concat();
    bad_sound("bad.flac", &both, &Place::Byte(mono.len() as u64), "the format changes here");
}

#[test]
fn frames_that_are_missing() {
    // The first frame gone, the rest in place.
    let whole = fixture("mono16.flac");
    let start = first_frame(&whole);
    let sync = |at: &usize| {
        whole[*at] == 0xFF && whole[at + 1] == whole[start + 1] && whole[at + 2] == whole[start + 2]
    };
    let second = (start + 1..whole.len() - 3).find(sync).unwrap();
    let without = [&whole[..start], &whole[second..]].concat();
    bad_sound("bad.flac", &without, &Place::Byte(start as u64), "frames are missing before here");
}

#[test]
fn metadata_that_leap_out_of_the_file() {
    let mut file = fixture("mono16.flac");
    let second = 4 + 4 + 34;
    file[second + 1..second + 4].fill(0xFF);
    let end = file.len() as u64;
    bad_sound("bad.flac", &file, &Place::Byte(end), "ends inside of its header");
}

#[test]
fn every_truncation() {
    let whole = fixture("mono16.flac");
    every_prefix(
        &whole,
        |bytes| try_sound(&bytes),
        |length, good| {
            assert!(!good, "cut to {length} bytes it was taken");
        },
    );
}

#[test]
fn mutations() {
    for name in ["mono16.flac", "stereo24.flac"] {
        every_mutation(&fixture(name), 2000, |bytes| try_sound(&bytes));
    }
}
