//! Does every bad input give the error that was promised?
//!
//! One file a format. Each bad file is built here by hand, opened through the public API, and must give a fault that
//! names the file, the place in it and a reason in words; under `skip` it leaves a hole and a line in
//! `quarantine.jsonl`, under `fail` it stops the run. All of it happens under an allocator that counts, so a size that
//! a file only claims cannot be believed unnoticed.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod harness;
mod memory;

mod csv;
mod flac;
mod hdf5;
mod jsonl;
mod m4a;
mod mp3;
mod npy;
mod ogg;
mod parquet;
mod tar;
mod tfrecord;
mod wav;
