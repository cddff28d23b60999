//! WAV.

use feedwater::error::Place;

use crate::harness::{
    As, bad_sound, every_mutation, every_prefix, fixture, folder, good_sound, only_bad, try_sound,
};

fn chunk(id: [u8; 4], declared: u32, body: &[u8]) -> Vec<u8> {
    [id.as_slice(), &declared.to_le_bytes(), body].concat()
}

fn format(tag: u16, channels: u16, rate: u32, bits: u16) -> Vec<u8> {
    let align = channels.wrapping_mul(bits.div_ceil(8));
    let mut body = [tag.to_le_bytes(), channels.to_le_bytes()].concat();
    body.extend_from_slice(&rate.to_le_bytes());
    body.extend_from_slice(&rate.wrapping_mul(u32::from(align)).to_le_bytes());
    body.extend_from_slice(&align.to_le_bytes());
    body.extend_from_slice(&bits.to_le_bytes());
    chunk(*b"fmt ", 16, &body)
}

fn pcm16() -> Vec<u8> {
    format(1, 1, 16_000, 16)
}

fn riff(chunks: &[Vec<u8>]) -> Vec<u8> {
    let body = chunks.concat();
    [b"RIFF".as_slice(), &(body.len() as u32 + 4).to_le_bytes(), b"WAVE", &body].concat()
}

fn data(samples: usize) -> Vec<u8> {
    chunk(*b"data", samples as u32 * 2, &vec![1; samples * 2])
}

#[test]
fn empty_or_nothing_but_a_header() {
    bad_sound("bad.wav", b"", &Place::Byte(0), "the file is empty");
    bad_sound("bad.wav", &riff(&[]), &Place::Byte(12), "ends before a `fmt` chunk");
    bad_sound("bad.wav", &riff(&[pcm16()]), &Place::Byte(36), "ends before a `data` chunk");
    bad_sound("bad.wav", &riff(&[pcm16(), data(0)]), &Place::Byte(44), "no samples");
}

#[test]
fn the_size_of_the_data_is_only_a_claim() {
    let with = |declared| riff(&[pcm16(), chunk(*b"data", declared, &[1; 800])]);
    let end = Place::Byte(44 + 800);
    bad_sound("bad.wav", &with(802), &end, "the file ends here, 2 bytes before its `data` chunk does");
    bad_sound("bad.wav", &with(0xFFFF_FFF0), &end, "bytes before its `data` chunk does");
    // What a writer leaves there that cannot go back: what is there counts.
    for streamed in [0, u32::MAX] {
        assert_eq!(good_sound(&with(streamed)).len(), 400);
    }
}

#[test]
fn a_format_that_is_missing_or_there_twice() {
    bad_sound("bad.wav", &riff(&[data(4)]), &Place::Byte(12), "a `data` chunk before any `fmt` chunk");
    bad_sound("bad.wav", &riff(&[pcm16(), pcm16(), data(4)]), &Place::Byte(36), "a second `fmt` chunk");
    bad_sound(
        "bad.wav",
        &riff(&[chunk(*b"fmt ", 4, &[1, 0, 1, 0]), data(4)]),
        &Place::Byte(20),
        "4 bytes is too short",
    );
}

#[test]
fn channels_rates_and_depths_that_are_not_possible() {
    let with = |format| riff(&[format, data(400)]);
    let (channels, bits) = (Place::Byte(22), Place::Byte(34));
    bad_sound("bad.wav", &with(format(1, 0, 16_000, 16)), &channels, "0 channels are not possible");
    bad_sound("bad.wav", &with(format(1, 65_535, 16_000, 16)), &channels, "65535 channels are not possible");
    bad_sound("bad.wav", &with(format(1, 1, 0, 16)), &channels, "a rate of 0 Hz is not possible");
    bad_sound("bad.wav", &with(format(1, 1, u32::MAX, 16)), &channels, "Hz is not possible");
    for depth in [0, 1, 7, 12, 20, 48, 65_535] {
        let words = format!("samples of {depth} bits are not decoded here");
        bad_sound("bad.wav", &with(format(1, 1, 16_000, depth)), &bits, &words);
    }
    bad_sound(
        "bad.wav",
        &with(format(0x11, 1, 16_000, 4)),
        &Place::Byte(20),
        "the wav codec 0x0011 is not decoded",
    );
}

#[test]
fn samples_that_are_no_numbers() {
    for (bad, words) in [(f32::NAN, "a sample is NaN"), (f32::INFINITY, "a sample is inf")] {
        let samples: Vec<u8> = [0.5, 0.25, bad, 0.0].iter().flat_map(|sample| sample.to_le_bytes()).collect();
        let file = riff(&[format(3, 1, 16_000, 32), chunk(*b"data", 16, &samples)]);
        bad_sound("bad.wav", &file, &Place::Byte(44 + 8), words);
    }
}

/// A number, but of a size that overflows in every sum: the resampler panicked on it.
#[test]
fn samples_that_are_louder_than_anything() {
    for loud in [f32::MAX, -3e20] {
        let samples: Vec<u8> =
            [0.5, loud].repeat(4000).iter().flat_map(|sample| sample.to_le_bytes()).collect();
        let file = riff(&[format(3, 1, 8000, 32), chunk(*b"data", samples.len() as u32, &samples)]);
        bad_sound("bad.wav", &file, &Place::Byte(44 + 4), "a sample is ");
    }
}

#[test]
fn rf64_says_its_size_elsewhere() {
    let whole = fixture("rf64.wav");
    assert_eq!(good_sound(&whole).len(), 4800);
    // A terabyte, it says.
    let mut huge = whole.clone();
    huge[28..36].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    bad_sound("bad.wav", &huge, &Place::Byte(whole.len() as u64), "bytes before its `data` chunk does");
}

#[test]
fn a_chunk_that_leaps_out_of_the_file() {
    let file = riff(&[chunk(*b"LIST", u32::MAX, &[0; 8]), pcm16(), data(4)]);
    bad_sound("bad.wav", &file, &Place::Byte(file.len() as u64), "ends before a `fmt` chunk");
}

#[test]
fn a_file_that_is_not_there() {
    let manifest = "{\"audio_filepath\": \"good.wav\", \"text\": \"a\"}\n{\"audio_filepath\": \"gone.wav\", \"text\": \"b\"}\n";
    let folder = folder(&[("good.wav", fixture("pcm_s16le.wav")), ("train.jsonl", manifest.into())]);
    only_bad(&folder.path().join("train.jsonl"), As::Sound, "gone.wav", &Place::Whole, "No such file");
}

#[test]
fn every_truncation() {
    for name in ["pcm_s16le.wav", "extensible.wav", "rf64.wav"] {
        every_prefix(
            &fixture(name),
            |bytes| try_sound(&bytes),
            |length, good| {
                assert!(!good, "{name} cut to {length} bytes was taken");
            },
        );
    }
}

#[test]
fn mutations() {
    for name in ["pcm_s16le.wav", "pcm_f64le.wav", "extensible.wav", "rf64.wav", "streamed.wav"] {
        every_mutation(&fixture(name), 2000, |bytes| try_sound(&bytes));
    }
}
