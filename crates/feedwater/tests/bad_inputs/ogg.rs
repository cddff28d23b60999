//! Ogg.

use feedwater::error::Place;

use crate::harness::{bad_sound, every_mutation, every_prefix, fixture, good_sound, try_sound};

/// Where each page starts.
fn pages(bytes: &[u8]) -> Vec<usize> {
    let starts = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"OggS"));
    starts.collect()
}

fn with_checksum(mut page: Vec<u8>) -> Vec<u8> {
    page[22..26].fill(0);
    let crc = page.iter().fold(0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte) << 24, |crc, _| {
            crc << 1 ^ if crc >> 31 == 1 { 0x04C1_1DB7 } else { 0 }
        })
    });
    page[22..26].copy_from_slice(&crc.to_le_bytes());
    page
}

/// The last page, as two: each of its packets is one segment or more, the last of which is shorter than 255.
fn last_page_in_two(bytes: &[u8]) -> (Vec<u8>, usize) {
    let last = *pages(bytes).last().unwrap();
    let page = &bytes[last..];
    let segments = &page[27..27 + usize::from(page[26])];
    let body = &page[27 + segments.len()..];
    let half = (segments.len() / 2..segments.len()).find(|at| segments[*at - 1] < 255).unwrap();
    let cut: usize = segments[..half].iter().map(|&length| usize::from(length)).sum();
    let part = |segments: &[u8], body: &[u8], number: u8, flags: u8, granule: u64| {
        let mut head = page[..27].to_vec();
        (head[5], head[18], head[26]) = (flags, number, segments.len() as u8);
        head[6..14].copy_from_slice(&granule.to_le_bytes());
        with_checksum([head.as_slice(), segments, body].concat())
    };
    let end = u64::from_le_bytes(*page[6..].first_chunk().unwrap());
    let first = part(&segments[..half], &body[..cut], page[18], 0, end / 2);
    let second = part(&segments[half..], &body[cut..], page[18] + 1, 4, end);
    let boundary = last + first.len();
    ([&bytes[..last], &first, &second].concat(), boundary)
}

#[test]
fn a_checksum_that_is_wrong() {
    let mut file = fixture("vorbis.ogg");
    let last = *pages(&file).last().unwrap();
    file[last + 200] ^= 1;
    bad_sound("bad.ogg", &file, &Place::Byte(last as u64), "the checksum of an ogg page is wrong");
}

#[test]
fn a_first_page_that_is_missing() {
    let file = fixture("vorbis.ogg");
    let second = pages(&file)[1];
    bad_sound("bad.ogg", &file[second..], &Place::Byte(0), "the first page of an ogg stream is missing");
}

#[test]
fn a_last_page_that_is_missing() {
    let (whole, boundary) = last_page_in_two(&fixture("vorbis.ogg"));
    good_sound(&whole);
    bad_sound("bad.ogg", &whole[..boundary], &Place::Whole, "the ogg file ends too early");
}

#[test]
fn streams_that_are_chained() {
    let one = fixture("vorbis.ogg");
    let samples = good_sound(&one);
    let two = good_sound(&[one.clone(), one.clone()].concat());
    assert_eq!(two.len(), 2 * samples.len(), "both are taken");
    let with_junk = [one.as_slice(), b"junk between the streams", &one].concat();
    bad_sound("bad.ogg", &with_junk, &Place::Byte(one.len() as u64), "an ogg page is missing or damaged");
}

#[test]
fn opus_inside() {
    bad_sound(
        "bad.ogg",
        &fixture("opus.ogg"),
        &Place::Whole,
        "this is Opus, which is not supported; convert it",
    );
}

#[test]
fn every_truncation() {
    let whole = fixture("vorbis.ogg");
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
    let whole = fixture("vorbis.ogg");
    every_mutation(&whole, 1000, |bytes| try_sound(&bytes));
    // With the checksums right again, what is inside is reached.
    let starts = pages(&whole);
    every_mutation(&whole, 1000, |bytes| {
        let mut bytes = bytes.to_vec();
        if bytes.len() == whole.len() {
            let ends = starts[1..].iter().copied().chain([whole.len()]);
            bytes = starts
                .iter()
                .zip(ends)
                .flat_map(|(from, to)| with_checksum(bytes[*from..to].to_vec()))
                .collect();
        }
        try_sound(&bytes)
    });
}
