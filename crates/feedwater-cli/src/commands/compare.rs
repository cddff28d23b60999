//! `feedwater compare`: is it better than before?
//!
//! Two records, a table, and a word for each figure. What is only noise is said to be, since the first thing that anybody
//! does with two numbers is to believe the difference.

use std::path::PathBuf;

use feedwater_profile::Error;
use feedwater_profile::compare::{Comparison, Word, render};
use miette::{IntoDiagnostic, WrapErr};

use crate::commands::report::{open, print, with_damage};

const EXAMPLES: &str = "\
Examples:
  feedwater compare before.jsonl after.jsonl
  feedwater compare main.jsonl branch.jsonl --fail-if-worse

Exit codes:
  0  the records were compared
  1  with --fail-if-worse: AFTER is slower, beyond noise and by 1 % or more
  2  a record cannot be read or is too short, or the command line is wrong";

const JSON: &str = "\
The object of --json (fields may be added):
  steps       [before, after]: steps that count
  changed     [[setting, before, after]]
  notes       what to keep in mind
  decided_by  steps_per_second; samples_per_second where steps have different
              numbers of samples or do different tasks
  result      better, worse or no_difference, by that figure
  figures     [{figure, unit, before, after, change, change_unit, interval,
              word}]; figure: steps_per_second, samples_per_second, p50_ms,
              p99_ms, wait_ms, busy or variation; change_unit: % or points;
              interval: [low, high] of the change, 95 %; word: better, worse,
              no_difference or not_comparable

The interval comes of drawing the steps of both runs again, in blocks, always in
the same way. It is the noise within the runs: for the noise between runs,
compare two records of the same settings first.";

/// What to compare.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{JSON}"))]
pub(crate) struct Options {
    /// The record of the run before
    before: PathBuf,
    /// The record of the run after
    after: PathBuf,
    /// Print one JSON object; `--help` says what is in it
    #[arg(long)]
    json: bool,
    /// Exit with 1 when AFTER is slower, beyond noise
    #[arg(long)]
    fail_if_worse: bool,
}

/// Compares and prints.
pub(crate) fn run(options: &Options) -> miette::Result<u8> {
    let (before, after) = (open(&options.before)?, open(&options.after)?);
    let comparison = Comparison::of(&before, &after).map_err(|error| {
        // Which of the two it is that is too short, a person wants to know.
        let short = |record| Comparison::of(record, record).is_err();
        match (&error, short(&before)) {
            (Error::TooFewSteps { .. }, true) => {
                with_damage(&error, &before).wrap_err(options.before.display().to_string())
            }
            (Error::TooFewSteps { .. }, false) => {
                with_damage(&error, &after).wrap_err(options.after.display().to_string())
            }
            _ => miette::miette!("{error}"),
        }
    })?;
    print(&if options.json {
        serde_json::to_string(&comparison).into_diagnostic().wrap_err("could not write JSON")?
    } else {
        render(&comparison, &options.before.display().to_string(), &options.after.display().to_string())
    })?;
    let worse = options.fail_if_worse && comparison.result == Word::Worse;
    Ok(u8::from(worse))
}
