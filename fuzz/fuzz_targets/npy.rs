//! A `.npy` file.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feedwater_fuzz::array(&bytes));
