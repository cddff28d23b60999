//! A Parquet table.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feedwater_fuzz::dataset("train.parquet", bytes));
