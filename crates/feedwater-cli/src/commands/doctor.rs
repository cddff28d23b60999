//! `feedwater doctor`: is this machine fit to feed an accelerator?
//!
//! Asked before a run, or when one is slow and the machine may be why. The looking and the packing are done in
//! [`crate::doctor`]; this file reads the options, asks before it writes, and prints.

use std::io::{ErrorKind, IsTerminal, Write};
use std::path::PathBuf;

use miette::{IntoDiagnostic, WrapErr};

use crate::doctor::bundle::{Bundle, check_target};
use crate::doctor::{Examination, text};
use crate::inspect::text::width;

const EXAMPLES: &str = "\
Examples:
  feedwater doctor
  feedwater doctor data/morse
  feedwater doctor data/morse --bundle feedwater.zip --record run.jsonl

A bundle is for somebody who wants to help. Home folders, names of users and
hosts, secrets and passwords in addresses are taken out of every file in it,
and of the environment only what is on a list goes in. What it holds is shown
before it is written.

Exit codes:
  0  everything passes
  1  there are warnings
  2  something fails, or the command line is wrong";

const JSON: &str = "\
The object of --json (fields may be added while `version` is 1):
  version  1
  outcome  the worst of the checks: pass, warn or fail
  checks   [{id, outcome, what, hint}]; hint may be null
  host     {os, cpu, cores, usable_cores, quota_cores, memory_bytes, disk, …}
  devices  [{index, name, uuid, memory_bytes, links, …}]; links: number of the
           other device to PIX, PXB, PHB, NODE, SYS, NV4, …

The ids of checks:
  gpu            GPUs that answer; none is fine
  driver         NVIDIA's driver and the CUDA it can serve
  topology       what lies between GPUs; NODE and SYS are far
  cpu-quota      cores that a container may use
  affinity       cores that this process may run on
  memory         what is free of it
  shared-memory  /dev/shm, which PyTorch's workers need
  disk-speed     reading where DATA lies: at most 256 MB, at most 3 s
  disk-free      room where DATA lies
  python         the interpreter
  torch          PyTorch, and whether it sees the GPUs
  versions       of everything";

/// What to look at.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{JSON}"))]
pub(crate) struct Options {
    /// Data to measure the disk with: a folder, or a file of it
    data: Option<PathBuf>,
    /// Print one JSON object; `--help` says what is in it
    #[arg(long)]
    json: bool,
    /// Pack all of it into a zip to send to somebody
    #[arg(long, value_name = "FILE.zip")]
    bundle: Option<PathBuf>,
    /// A record of a run, for the bundle
    #[arg(long, value_name = "FILE", requires = "bundle")]
    record: Option<PathBuf>,
    /// A report of a run, for the bundle
    #[arg(long, value_name = "FILE.html", requires = "bundle")]
    report: Option<PathBuf>,
    /// Write the bundle without asking
    #[arg(long, requires = "bundle")]
    yes: bool,
}

/// Looks, prints, packs if asked to, and says by the exit code how it is.
pub(crate) fn run(options: &Options) -> miette::Result<u8> {
    if let Some(data) = options.data.as_ref().filter(|data| !data.exists()) {
        return Err(miette::miette!(
            help = "leave it out to look at the machine alone",
            "there is no `{}`",
            data.display()
        ));
    }
    if let Some(path) = &options.bundle {
        check_target(path)?;
    }
    let examination = Examination::of(options.data.as_deref());
    let printed = if options.json {
        serde_json::to_string(&examination)
            .into_diagnostic()
            .wrap_err("could not write the checks as JSON")?
    } else {
        text::render(&examination, width())
    };
    match writeln!(std::io::stdout(), "{printed}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        done => done.into_diagnostic().wrap_err("could not print the checks")?,
    }
    if let Some(path) = &options.bundle {
        let bundle = Bundle::of(&examination, options.record.as_deref(), options.report.as_deref())?;
        eprintln!("{}", bundle.shown(path));
        if !options.yes && !confirmed()? {
            eprintln!("nothing was written");
        } else {
            bundle.write(path)?;
            eprintln!("written");
        }
    }
    Ok(examination.exit_code())
}

/// Whether the person at the terminal wants it.
fn confirmed() -> miette::Result<bool> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        return Err(miette::miette!(
            help = "add --yes to write it",
            "nobody is here to say whether the bundle may be written"
        ));
    }
    eprint!("write it? [y/N] ");
    let mut answer = String::new();
    input.read_line(&mut answer).into_diagnostic().wrap_err("could not read the answer")?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
