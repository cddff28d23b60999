//! A FLAC file, whole and by windows.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    feedwater_fuzz::sound(&bytes);
    feedwater_fuzz::window(&bytes, 0.25, 0.1, None);
});
