//! The `feedwater` program.

use std::{env, process::ExitCode};

// In a library that Python loads, it would break on "static TLS block"; so it is the program's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long freed memory is kept before the system gets it back, in milliseconds. A training step frees what the next one
/// asks for; with the allocator's usual 10 ms, the system would clear every page anew in every step.
const KEPT_MILLISECONDS: std::ffi::c_long = 10_000;
/// `mi_option_purge_delay` of mimalloc.h, in version 2 as in 3.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

fn main() -> ExitCode {
    // SAFETY: it stores a number in the allocator's table of settings.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, KEPT_MILLISECONDS) };
    feedwater_cli::main(env::args_os()).into()
}
