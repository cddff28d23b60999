//! `feedwater inspect`: what is this dataset, and what is wrong with it?
//!
//! Asked before a run, because a run finds out late: a file that ends early is met after an hour, a clip without times
//! when the pipeline is built. The looking is done in [`crate::inspect`]; this file reads the options and prints.

use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use miette::{IntoDiagnostic, WrapErr};

use crate::inspect::report::Report;
use crate::inspect::scan::Plan;
use crate::inspect::text;

const EXAMPLES: &str = "\
Examples:
  feedwater inspect data/morse
  feedwater inspect manifest.jsonl --decode
  feedwater inspect 'shards/train-{000..099}.tar' --limit 10000 --json

Exit codes:
  0  nothing is wrong, or there are only notes
  1  there are errors: samples would be lost or spoilt
  2  the dataset cannot be opened, or the command line is wrong";

const JSON: &str = "\
The object of --json (fields may be added while `version` is 1):
  version    1
  path       as given
  kind       audio-folder, manifest, lj-speech, audio, npy, npy-manifest,
             path-list, text, tar, parquet, tfrecord or hdf5
  title      the kind in words
  content    what most samples are: sound, arrays, text; null: none is readable
  samples    how many there are
  looked_at  how many were looked at: fewer with --limit, and then all that
             follows is said of these
  decoded    whether --decode was given
  hours      of sound, or null; with --limit, an estimate for all samples
  lengths    {unit, count, total, min, p50, p95, max, histogram}, or null; unit:
             seconds, frames or characters; histogram: [{from, to, count}],
             `to` excluded, null in a last bin without an end
  with_text, with_times, with_label
             how many samples have a text, word or segment times, a label
  formats, rates, channels, shapes, classes
             [{value, count}]; a shape is without its first axis
  problems   [{id, severity, count, what, examples, hint}]; severity: error or
             note; examples: [{key, file, place, reason}], at most 1000
  next       a command to go on with

The ids of problems:
  unreadable              a sample that a run would leave out
  duplicate-keys          a key that another sample has
  metadata-elsewhere      bare files, with metadata a folder above or below
  missing-text            no text where others have one, or none at all (note)
  empty-text              a text without a character
  missing-label           no label where others have one, or none at all (note)
  over-30s-without-times  longer than 30 s, with a text that cannot be cut
  over-30s                longer than 30 s, and can be cut; not counted above
  mixed-shapes            arrays that cannot travel in one batch
  mixed-formats           several formats; an error where sound, arrays and
                          text are mixed
  mixed-rates             several sample rates
  mixed-channels          several numbers of channels";

/// What to look at.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{JSON}"))]
pub(crate) struct Options {
    /// A folder, a manifest, a table, text, a shard or a pattern of shards
    path: PathBuf,
    /// Decode every sample, to find damage behind the headers
    #[arg(long)]
    decode: bool,
    /// Look at an even sample of N of the samples
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Threads; all cores unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Print one JSON object; `--help` says what is in it
    #[arg(long)]
    json: bool,
}

/// Looks, prints, and says by the exit code whether something has to be put right.
pub(crate) fn run(options: &Options) -> miette::Result<u8> {
    let source = feedwater::source::open(&options.path).map_err(|error| miette::miette!("{error}"))?;
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = options.threads.map_or_else(cores, usize::from);
    let plan = Plan { limit: options.limit, threads, decode: options.decode };
    let report = Report::of(&options.path, &*source, plan);
    let printed = if options.json {
        serde_json::to_string(&report).into_diagnostic().wrap_err("could not write the report as JSON")?
    } else {
        text::render(&report, text::width())
    };
    match writeln!(std::io::stdout(), "{printed}") {
        // Whoever reads has seen enough: `feedwater inspect … | head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        done => done.into_diagnostic().wrap_err("could not print the report")?,
    }
    Ok(u8::from(report.has_errors()))
}
