//! A `tokenizer.json`, and a text for it behind a byte of zero.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(bytes.get(end + 1..).unwrap_or_default());
    feedwater_fuzz::tokenizer(&bytes[..end], &text);
});
