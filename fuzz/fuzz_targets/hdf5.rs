//! An HDF5 file.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feedwater_fuzz::dataset("train.h5", bytes));
