//! MP3.

use feedwater::error::Place;

use crate::harness::{bad_sound, every_mutation, every_prefix, fixture, good_sound, try_sound};

/// An ID3 tag that says that it is this long.
fn id3(declared: u32, body: &[u8]) -> Vec<u8> {
    let seven = |shift: u32| (declared >> shift & 0x7F) as u8;
    [b"ID3\x04\x00\x00".as_slice(), &[seven(21), seven(14), seven(7), seven(0)], body].concat()
}

#[test]
fn a_giant_id3_tag() {
    let sound = fixture("bare.mp3");
    let most = (1 << 28) - 1;
    let claimed = [id3(most, &[0; 100]), sound.clone()].concat();
    bad_sound("bad.mp3", &claimed, &Place::Byte(10 + u64::from(most)), "there is nothing behind the id3 tag");
    // One that is as large as it says is stepped over.
    let picture = vec![0xFF; 1 << 20];
    assert_eq!(good_sound(&[id3(1 << 20, &picture), sound.clone()].concat()), good_sound(&sound));
    let tags: Vec<u8> = (0..50).flat_map(|_| id3(0, &[])).chain(sound).collect();
    bad_sound("bad.mp3", &tags, &Place::Byte(90), "too many id3 tags");
}

#[test]
fn a_sync_that_is_none() {
    let sound = fixture("bare.mp3");
    // The eleven bits, and even the whole header of a frame, with no frame behind it.
    let junk: Vec<u8> = [0xFF, 0xFB, 0x90, 0x64, 1, 2, 3].iter().copied().cycle().take(700).collect();
    let with_junk = [b"junk".as_slice(), &junk, &sound].concat();
    assert_eq!(good_sound(&with_junk), good_sound(&sound));
    bad_sound("bad.mp3", &junk, &Place::Whole, "no samples");
    bad_sound("bad.mp3", &[0xFF; 5000], &Place::Byte(0), "which is not decoded here");
}

#[test]
fn junk_in_the_middle() {
    let sound = fixture("bare.mp3");
    let is_frame = |at: &usize| sound[*at..].starts_with(&sound[..2]) && sound[at + 2] >> 4 == sound[2] >> 4;
    let fifth = (0..sound.len() - 4).filter(is_frame).nth(4).unwrap();
    let middle = [&sound[..fifth], &[0x55; 3000], &sound[fifth..]].concat();
    bad_sound("bad.mp3", &middle, &Place::Byte(fifth as u64), "what follows is no mp3 frame");
}

#[test]
fn a_last_frame_that_is_cut_off() {
    // Common, and harmless: all whole frames are taken.
    let sound = fixture("bare.mp3");
    let (whole, cut) = (good_sound(&sound), good_sound(&sound[..sound.len() - 50]));
    assert_eq!(whole.len() - cut.len(), 1152);
    assert_eq!(cut[..], whole[..cut.len()]);
}

/// What follows the cut was silently not there, though the file itself says how long it is.
#[test]
fn fewer_frames_than_the_header_says() {
    let sound = fixture("xing.mp3");
    let half = sound.len() / 2;
    bad_sound("bad.mp3", &sound[..half], &Place::Byte(half as u64), "mp3 frames too early");
    assert!(!good_sound(&sound[..sound.len() - 50]).is_empty(), "one may be cut off");
}

#[test]
fn a_name_that_lies() {
    let sound = fixture("bare.mp3");
    let folder = crate::harness::folder(&[("really an mp3.wav", sound)]);
    let run = crate::harness::skipping(folder.path(), crate::harness::As::Sound);
    assert_eq!((run.good.len(), run.bad.len()), (1, 0), "the bytes count, not the name");
    bad_sound("page.mp3", b"<!DOCTYPE html><title>404</title>", &Place::Byte(0), "this is no audio format");
    bad_sound("film.mp3", b"\x1A\x45\xDF\xA3 and so on", &Place::Byte(0), "this is Matroska or WebM");
}

#[test]
fn every_truncation() {
    for name in ["bare.mp3", "xing.mp3", "mpeg2.mp3"] {
        every_prefix(&fixture(name), |bytes| try_sound(&bytes), |_, _| {});
    }
}

#[test]
fn mutations() {
    for name in ["bare.mp3", "xing.mp3", "vbr.mp3", "mpeg2.mp3"] {
        every_mutation(&fixture(name), 1000, |bytes| try_sound(&bytes));
    }
}
