//! A table: with commas and quotes, with tabs, or a line a file.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    feedwater_fuzz::dataset("train.csv", bytes);
    feedwater_fuzz::dataset("train.tsv", bytes);
    feedwater_fuzz::dataset("train.txt", bytes);
});
