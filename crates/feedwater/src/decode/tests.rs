//! The formats together: what ffmpeg made of them, every truncation of them, windows of them, and what is refused.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::{path::Path, sync::atomic::AtomicBool};

use super::*;
use crate::error::Place;

const ALL: [&str; 20] = [
    "pcm_u8.wav",
    "pcm_s16le.wav",
    "pcm_s24le.wav",
    "pcm_s32le.wav",
    "pcm_f32le.wav",
    "pcm_f64le.wav",
    "stereo.wav",
    "rf64.wav",
    "extensible.wav",
    "streamed.wav",
    "mono16.flac",
    "stereo24.flac",
    "xing.mp3",
    "bare.mp3",
    "vbr.mp3",
    "mpeg2.mp3",
    "vorbis.ogg",
    "aac.m4a",
    "adts.aac",
    "opus.ogg",
];

pub(super) fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/audio").join(name);
    std::fs::read(path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub(super) fn decode_with(
    decoder: &mut Decoder,
    bytes: &[u8],
    rate: Option<u32>,
    window: Option<Window>,
) -> Result<(AudioInfo, Vec<f32>), Fault> {
    let mut out = Vec::new();
    let (info, _) =
        decoder.audio(&bytes, rate, window, &Limits::default(), &AtomicBool::new(false), &mut out)?;
    Ok((info, out))
}

/// Not `unwrap_err`, which would print all the samples.
fn refused(bytes: &[u8]) -> Fault {
    match decode_all(bytes) {
        Ok((info, samples)) => panic!("{} samples of {info:?} were not refused", samples.len()),
        Err(fault) => fault,
    }
}

pub(super) fn decode_all(bytes: &[u8]) -> Result<(AudioInfo, Vec<f32>), Fault> {
    decode_with(&mut Decoder::new(), bytes, None, None)
}

#[expect(clippy::unnecessary_wraps, reason = "it is what `Decoder::audio` takes")]
fn window(start_seconds: f64, length_seconds: f64) -> Option<Window> {
    Some(Window { start_seconds, length_seconds })
}

/// What the fixtures are made of, without the noise.
fn tone(frame: usize, rate: u32, channels: u16) -> f32 {
    let t = frame as f64 / f64::from(rate);
    let turn = std::f64::consts::TAU * t;
    let low: f64 = (0..channels).map(|channel| (turn * (440.0 + 110.0 * f64::from(channel))).sin()).sum();
    (0.4 * low / f64::from(channels) + 0.2 * (turn * 1500.0).sin()) as f32
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn lossless_formats_are_the_tone_that_was_written() {
    for (name, tolerance) in [
        ("pcm_u8.wav", 0.01),
        ("pcm_s16le.wav", 0.0011),
        ("pcm_s24le.wav", 0.0011),
        ("pcm_s32le.wav", 0.0011),
        ("pcm_f32le.wav", 0.0011),
        ("pcm_f64le.wav", 0.0011),
        ("stereo.wav", 0.0011),
        ("rf64.wav", 0.0011),
        ("streamed.wav", 0.0011),
        ("mono16.flac", 0.0011),
        ("stereo24.flac", 0.0011),
    ] {
        let (info, samples) = decode_all(&fixture(name)).unwrap();
        let expected: Vec<f32> = (0..samples.len()).map(|n| tone(n, info.rate, info.channels)).collect();
        let difference = largest_difference(&samples, &expected);
        assert!(difference < tolerance, "{name}: {difference}");
        assert_eq!(info.frames, Some(samples.len() as u64), "{name}");
        let seconds = if name.starts_with("pcm") { 0.25 } else { 0.6 };
        assert!((info.seconds().unwrap() - seconds).abs() < 1e-9, "{name}");
    }
}

#[test]
fn lossy_formats_are_what_ffmpeg_decodes_them_to() {
    for (name, rate, channels) in [
        ("mono16.flac", 16_000, 1),
        ("xing.mp3", 44_100, 1),
        ("bare.mp3", 44_100, 1),
        ("vbr.mp3", 44_100, 2),
        ("mpeg2.mp3", 16_000, 1),
        ("vorbis.ogg", 16_000, 1),
        ("aac.m4a", 44_100, 1),
        ("adts.aac", 44_100, 2),
    ] {
        let (info, samples) = decode_all(&fixture(name)).unwrap();
        assert_eq!((info.rate, info.channels), (rate, channels), "{name}");
        let reference = fixture(&format!("{name}.f32"));
        let (count, reference) = reference.split_first_chunk().unwrap();
        // ffmpeg 5.1, which made the references, leaves an M4A's padding on and loses the end of a Vorbis stream. The
        // counts here are those of what was encoded.
        let count = match name {
            "aac.m4a" => 26_460,
            "vorbis.ogg" => 9_600,
            _ => u32::from_le_bytes(*count) as usize,
        };
        assert_eq!(samples.len(), count, "{name}");
        let reference: Vec<f32> =
            reference.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        // ffmpeg and symphonia make up other noise where an AAC encoder left noise out.
        let tolerance = if name.contains("aac") { 0.01 } else { 2e-4 };
        let difference = largest_difference(&samples[8000..8400], &reference);
        assert!(difference < tolerance, "{name}: {difference}");
    }
}

#[test]
fn vorbis_is_the_tone_it_was_made_of() {
    let (info, samples) = decode_all(&fixture("vorbis.ogg")).unwrap();
    assert_eq!((info.rate, info.channels, samples.len()), (16_000, 1, 9600));
    let expected: Vec<f32> = (0..9600).map(|n| tone(n, 16_000, 1)).collect();
    let difference = largest_difference(&samples[1000..9000], &expected[1000..9000]);
    assert!(difference < 0.05, "{difference}");
}

#[test]
fn the_header_alone_says_what_decoding_finds() {
    for name in ALL {
        let bytes = fixture(name);
        let Ok((decoded, samples)) = decode_all(&bytes) else { continue };
        let (probed, counted) = (probe_audio(&bytes).unwrap(), count_frames(&bytes).unwrap());
        assert_eq!(
            (probed.format, probed.rate, probed.channels),
            (decoded.format, decoded.rate, decoded.channels)
        );
        assert_eq!(counted.frames, Some(samples.len() as u64), "{name}");
        let says = !matches!(name, "bare.mp3" | "adts.aac");
        assert_eq!(probed.frames, says.then_some(samples.len() as u64), "{name}");
    }
}

#[test]
fn a_window_is_the_same_slice_of_the_whole() {
    for name in ALL.into_iter().filter(|name| *name != "opus.ogg") {
        let bytes = fixture(name);
        let mut decoder = Decoder::new();
        let (info, whole) = decode_with(&mut decoder, &bytes, None, None).unwrap();
        let exact = name.ends_with("wav") || name.ends_with("flac");
        let seconds = whole.len() as f64 / f64::from(info.rate);
        for (start, length) in [(0.0, 0.05), (0.02, 0.1), (0.4 * seconds, 0.05), (0.9 * seconds, 9.0)] {
            let (_, part) = decode_with(&mut decoder, &bytes, None, window(start, length)).unwrap();
            let from = (start * f64::from(info.rate)).round() as usize;
            let to = (from + (length * f64::from(info.rate)).round() as usize).min(whole.len());
            assert_eq!(part.len(), to - from, "{name} from {start}");
            let difference = largest_difference(&part, &whole[from..to]);
            // AAC makes noise up as it goes, so where it starts has an influence.
            let tolerance = if exact {
                0.0
            } else if name.contains("aac") {
                0.01
            } else {
                1e-5
            };
            assert!(difference <= tolerance, "{name} from {start}: {difference}");
        }
        let fault = decode_with(&mut decoder, &bytes, None, window(5.0, 1.0)).unwrap_err();
        assert!(fault.reason.contains("window starts"), "{name}: {fault}");
    }
}

/// Frames that are all as long as each other can be repeated: that makes a long MP3. The samples of a WAV can, too.
#[test]
fn a_window_of_a_long_file_reads_little_of_it() {
    // 32 kbit/s at 16 kHz: every frame has 144 bytes.
    let short = fixture("mpeg2.mp3");
    let short = &short[short.len() - 18 * 144..];
    let tail = fixture("pcm_s16le.wav");
    let mut wav = tail[..tail.len() - 4000].to_vec();
    let size_at = memchr::memmem::find(&wav, b"data").unwrap() + 4;
    wav[size_at..size_at + 4].fill(0xFF);
    wav.extend_from_slice(&tail[tail.len() - 4000..].repeat(1500));
    for (name, long) in [("mp3", short.repeat(1500)), ("wav", wav)] {
        let mut decoder = Decoder::new();
        let (info, whole) = decode_with(&mut decoder, &long, None, None).unwrap();
        decoder.take_times();
        let (_, part) = decode_with(&mut decoder, &long, None, window(100.0, 2.0)).unwrap();
        let from = 100 * info.rate as usize;
        let difference = largest_difference(&part, &whole[from..from + 2 * info.rate as usize]);
        assert!(difference < 1e-5, "{name}: {difference}");
        let read = decoder.take_times().bytes_read;
        assert!(read < long.len() as u64 / 8, "{name}: {read} of {} bytes were read", long.len());
    }
}

#[test]
fn every_truncation_is_a_fault_or_a_shorter_recording() {
    let mut decoder = Decoder::new();
    for name in ALL {
        let bytes = fixture(name);
        let whole = decode_all(&bytes).map_or(0, |(_, samples)| samples.len());
        for len in 0..bytes.len() {
            let part = &bytes[..len];
            let may_be_shorter = name.ends_with("mp3") || name == "adts.aac" || name == "streamed.wav";
            match decode_with(&mut decoder, part, None, None) {
                Ok((_, samples)) => {
                    assert!(may_be_shorter || samples.len() == whole, "{name} cut to {len} bytes");
                    assert!(
                        !samples.is_empty() && samples.len() <= whole + 1152,
                        "{name} cut to {len} bytes"
                    );
                }
                Err(fault) => assert!(!fault.reason.contains("panicked"), "{name} cut to {len}: {fault}"),
            }
            if len % 7 == 0 {
                let _ = decode_with(&mut decoder, part, None, window(0.3, 0.1));
                let _ = count_frames(&part);
            }
        }
    }
}

#[test]
fn one_byte_changed_never_panics_and_our_buffers_stay_small() {
    let mut decoder = Decoder::new();
    for name in ALL {
        let mut bytes = fixture(name);
        for at in (0..bytes.len()).filter(|at| *at < 300 || at % 97 == 0) {
            for value in [0, 0xFF, bytes[at] ^ 0x10] {
                let before = std::mem::replace(&mut bytes[at], value);
                if let Err(fault) = decode_with(&mut decoder, &bytes, None, None) {
                    assert!(!fault.reason.contains("panicked"), "{name} byte {at} as {value}: {fault}");
                }
                let _ = decode_with(&mut decoder, &bytes, None, window(0.3, 0.1));
                bytes[at] = before;
            }
        }
        assert!(decoder.bytes.capacity() < 1 << 20, "{name}");
        assert!(decoder.at_file_rate.capacity() < 1 << 20, "{name}");
    }
}

#[test]
fn what_came_before_does_not_change_a_bit() {
    let names: Vec<&str> = ALL.into_iter().filter(|name| *name != "opus.ogg").collect();
    let fresh: Vec<Vec<f32>> = names
        .iter()
        .map(|name| decode_with(&mut Decoder::new(), &fixture(name), Some(16_000), None).unwrap().1)
        .collect();
    let mut used = Decoder::new();
    for _ in 0..2 {
        for (name, fresh) in names.iter().zip(&fresh).rev() {
            let bytes = fixture(name);
            let _ = decode_with(&mut used, &bytes, Some(16_000), window(0.1, 0.07)).unwrap();
            let _ = decode_with(&mut used, &bytes[..bytes.len() / 2], Some(16_000), None);
            let (_, again) = decode_with(&mut used, &bytes, Some(16_000), None).unwrap();
            let same = again.iter().map(|x| x.to_bits()).eq(fresh.iter().map(|x| x.to_bits()));
            assert!(same, "{name}");
        }
    }
}

#[test]
fn a_resampled_window_is_the_slice_of_the_resampled_whole() {
    for name in ["xing.mp3", "mono16.flac", "pcm_s16le.wav", "aac.m4a"] {
        let bytes = fixture(name);
        let mut decoder = Decoder::new();
        for rate in [11_025, 16_000, 22_050] {
            let (_, whole) = decode_with(&mut decoder, &bytes, Some(rate), None).unwrap();
            let (_, part) = decode_with(&mut decoder, &bytes, Some(rate), window(0.113, 0.1)).unwrap();
            let from = (0.113 * f64::from(rate)).round() as usize;
            let difference = largest_difference(&part, &whole[from..from + part.len()]);
            assert_eq!(part.len(), (0.1 * f64::from(rate)).round() as usize);
            assert!(difference < 1e-3, "{name} at {rate}: {difference}");
        }
    }
}

#[test]
fn refused_with_a_reason() {
    let reason = |bytes: &[u8]| refused(bytes).to_string();
    assert_eq!(reason(b""), "the file is empty (byte 0)");
    assert!(reason(&fixture("opus.ogg")).contains("Opus, which is not supported"));
    assert!(reason(b"hello, this is a text file and not audio").contains("no audio format"));
    assert!(reason(b"FORM\0\0\0\0AIFF").contains("AIFF"));
    assert!(reason(b"ID3\x04\0\0\0\0\0\0").contains("nothing behind the id3 tag"));
    let noise: Vec<u8> = (0..300_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    assert!(reason(&noise).contains("no audio format"));
    let mut false_sync = noise;
    false_sync[..4].copy_from_slice(&[0xFF, 0xFB, 0x90, 0x44]);
    assert!(reason(&false_sync).contains("no mp3 frames"));
}

#[test]
fn a_wrong_flac_is_refused() {
    let good = fixture("mono16.flac");
    let mut bad_crc = good.clone();
    let middle = good.len() / 2;
    bad_crc[middle] ^= 0x20;
    assert!(matches!(refused(&bad_crc).place, Place::Byte(_)));
    // The total of samples: 36 bits, from the 22nd byte on.
    let mut endless = good.clone();
    endless[21] |= 0x0F;
    endless[22..26].fill(0xFF);
    assert!(refused(&endless).reason.contains("more than the limit"));
    let mut last = good.clone();
    let end = last.len() - 5;
    last[end] ^= 1;
    assert!(matches!(refused(&last).place, Place::Byte(_)));
}

#[test]
fn an_ogg_is_chained_damaged_or_headless() {
    let good = fixture("vorbis.ogg");
    let (_, one) = decode_all(&good).unwrap();
    let (_, two) = decode_all(&[good.as_slice(), good.as_slice()].concat()).unwrap();
    assert_eq!(two.len(), 2 * one.len());
    assert_eq!(two[..one.len()], one);
    assert!(largest_difference(&two[one.len()..], &one) < 1e-6);
    let mut damaged = good.clone();
    let middle = good.len() / 2;
    damaged[middle] ^= 1;
    assert!(refused(&damaged).reason.contains("checksum"));
    let second = memchr::memmem::find(&good[4..], b"OggS").unwrap() + 4;
    assert!(refused(&good[second..]).reason.contains("first page"));
}

#[test]
fn an_mp3_has_tags_junk_and_other_streams() {
    let good = fixture("xing.mp3");
    let (_, samples) = decode_all(&good).unwrap();
    let with = |parts: &[&[u8]]| decode_all(&parts.concat()).map(|(_, samples)| samples);
    let id3 = [b"ID3\x04\0\0\0\0\x20\0".as_slice(), &[7; 4096]].concat();
    assert_eq!(with(&[&id3, &good]).unwrap(), samples, "id3v2 in front");
    assert_eq!(with(&[b"junk junk", &good]).unwrap(), samples, "junk in front");
    assert_eq!(with(&[&good, b"TAG", &[0; 125]]).unwrap(), samples, "id3v1 behind");
    assert_eq!(with(&[&good, &[0; 5000]]).unwrap(), samples, "zeros behind");
    let fault = with(&[&good, &fixture("mpeg2.mp3")]).unwrap_err();
    assert!(fault.reason.contains("format changes"), "{fault}");
    let fault = with(&[&good[..2000], &[0x55; 3000], &good[2000..]]).unwrap_err();
    assert!(
        fault.reason.contains("no mp3 frame") && matches!(fault.place, Place::Byte(1500..2600)),
        "{fault}"
    );
}

#[test]
fn cancelled_is_cancelled() {
    for name in ALL {
        let mut out = Vec::new();
        let cancel = AtomicBool::new(true);
        let bytes = fixture(name);
        let result = Decoder::new().audio(&bytes, Some(16_000), None, &Limits::default(), &cancel, &mut out);
        assert_eq!(result.unwrap_err().reason, "cancelled", "{name}");
    }
}

#[test]
fn limits_are_kept() {
    for name in ALL.into_iter().filter(|name| *name != "opus.ogg") {
        let mut out = Vec::new();
        let bytes = fixture(name);
        let never = AtomicBool::new(false);
        let limits = Limits { max_seconds: 0.1, ..Limits::default() };
        let fault = Decoder::new().audio(&bytes, None, None, &limits, &never, &mut out).unwrap_err();
        assert!(fault.reason.contains("more than the limit"), "{name}: {fault}");
        Decoder::new().audio(&bytes, None, window(0.05, 0.1), &limits, &never, &mut out).unwrap();
    }
}

#[test]
fn times_are_taken_once() {
    let bytes = fixture("xing.mp3");
    let mut decoder = Decoder::new();
    decode_with(&mut decoder, &bytes, Some(16_000), None).unwrap();
    let times = decoder.take_times();
    assert!(times.bytes_read >= bytes.len() as u64 && times.resample_nanos > 0);
    assert_eq!(decoder.take_times(), Times::default());
}
