//! The project's own chores: `cargo xtask test`, `python`, `check`, `bench`, `fuzz`.
//!
//! A program and not a shell script, so that the same line works on Linux, macOS and Windows; without dependencies, so
//! that it is there a second after the clone. Steps are printed to stderr as they begin, as lines that can be pasted.

mod bench;
mod check;
mod fuzz;
mod python;
mod shell;
mod test;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask <chore>

  test  [-- FILTER]                     every test, the stage benches once, the examples on generated data,
                                        and the Python package (needs Python 3.10 or newer)
  python [PYTEST ARGUMENTS]             the Python package alone: its wheel, its types, its tests (needs Python 3.10)
  check                                 formatting, and clippy with warnings denied
  bench [--quick] [--lanes audio,npy,text] [FLAGS OF compare.py]
                                        Feedwater and its peers side by side (needs Python 3.11 or newer)
  fuzz  [--seconds 30] [TARGET...]      each fuzz target for a bounded time (needs nightly and cargo-fuzz)";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let chore = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let done = match chore.as_str() {
        "test" => test::run(&rest),
        "python" => python::test(&rest),
        "check" => check::run(&rest),
        "bench" => bench::run(&rest),
        "fuzz" => fuzz::run(&rest),
        "help" | "--help" | "-h" => {
            eprintln!("{USAGE}");
            Ok(())
        }
        "" => Err(USAGE.to_owned()),
        other => Err(format!("there is no chore `{other}`\n\n{USAGE}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
