//! JSON lines: text, or a manifest.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feedwater_fuzz::dataset("train.jsonl", bytes));
