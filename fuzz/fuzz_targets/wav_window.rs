//! Any window of a WAV file, at any rate: the first bytes say which.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some(([a, b, c, d], file)) = bytes.split_first_chunk() else { return };
    let seconds = |byte: u8| f64::from(byte) * f64::from(byte) / 1000.0;
    let rate = match c {
        0..=127 => None,
        _ => Some(4000 + u32::from(*c) * u32::from(*d)),
    };
    feedwater_fuzz::window(&file, seconds(*a), seconds(*b), rate);
});
