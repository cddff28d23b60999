//! The `feedwater` program.

use std::{env, process::ExitCode};

// In a library that Python loads, it would break on "static TLS block"; so it is the program's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    feedwater_cli::main(env::args_os()).into()
}
