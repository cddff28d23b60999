//! `feedwater report`: what does a record say?
//!
//! A record is diagnosed where the run was, or anywhere else: the file has all that is needed. The text is the verdict;
//! the HTML file has the pictures and the reasons; the gate turns both into an exit code.

use std::fmt::Write as _;
use std::io::{ErrorKind, IsTerminal, Write as _};
use std::path::{Path, PathBuf};

use feedwater_profile::render::{html, text, trace};
use feedwater_profile::{Asked, Diagnosis, Record, gate};
use miette::{IntoDiagnostic, WrapErr};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  feedwater report run.jsonl
  feedwater report run.jsonl --html report.html
  feedwater report run.jsonl --gate \"busy>=90,variation<=20\"
  feedwater report run.jsonl --trace run.trace.json --trace-steps 200
  feedwater report run.jsonl --json | jq .headline

Exit codes:
  0  there is a verdict, and every condition of the gate holds
  1  a condition of the gate does not hold
  2  the record cannot be read or is too short, or the command line is wrong";

const JSON: &str = "\
The figures of --gate, with >=, <=, > or < and a number:
  busy                share of the time in which the accelerator works, in %
  variation           standard deviation of a step's time over its mean, in %
  robust_variation    the same from the median deviation, in %
  wait_share          share of the time that is waited for input, in %
  idle_ms             time a step in which the accelerator stands still
  steps_per_second, samples_per_second
  p50_ms, p99_ms      time of a step
  overhead            share of the run that measuring took, in %
A figure that the record does not have does not pass.

The object of --json (fields may be added; times are nanoseconds a step):
  bound         {by, part}; by: input, copy, sync, unknown or compute; part:
                what of the input, as the headline says it
  headline      the verdict in words
  target        below_minimum, minimum, good or excellent
  confidence    low, medium or high
  steps         steps that count
  busy_percent  null where there was no accelerator
  steps_per_second, samples_per_second
  ceiling_steps_per_second
                [the accelerator's own pace, how far that may be off], or null
  mean          {wall, wait, copy, sync, busy, unknown}_nanos and rows
  idle_nanos    [[why, nanoseconds]], the dearest first
  variation_percent, robust_variation_percent, p50_nanos, p99_nanos
  worst         {step, wait_nanos, key, stage}, or null
  findings      [{id, title, kind, idle_nanos, run_minutes, confidence,
                evidence, confirm, changes, no_help}]; kind: cause or
                circumstance; changes: [{what, setting, predicted}]; predicted:
                {samples_per_second, steps_per_second, low, high, uncertainty,
                saves_nanos}, or null
  decision      {do, …}; do: nothing_to_fix, let_it_finish, restart or unknown
  overhead_percent, coverage_percent
  apart         [{step, why, wall_nanos}]: steps that do not count
  tuned         what was changed while it ran, why, and what came of it
  damage        what of the record could not be read
  run           the record's first line, with the threads and the prefetch of the
                steps that count
  gate          {passed, conditions}, with --gate; conditions: [{condition,
                figure, unit, value, passed, why}]";

/// What to say of a record.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{JSON}"))]
pub(crate) struct Options {
    /// The record of a run
    record: PathBuf,
    /// Write a report for a browser: one file, which asks for nothing from the network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print one JSON object; `--help` says what is in it
    #[arg(long)]
    json: bool,
    /// Write steps as a timeline for ui.perfetto.dev, those around the longest wait
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// How many steps go into the timeline
    #[arg(long, value_name = "N", requires = "trace", default_value_t = trace::STEPS as u32,
          value_parser = clap::value_parser!(u32).range(1..=trace::MOST_STEPS as i64))]
    trace_steps: u32,
    /// Conditions that have to hold, such as "busy>=90,variation<=20"; `--help` has the names
    #[arg(long, value_name = "CONDITIONS")]
    gate: Option<String>,
    /// What starting the run again takes: imports, the model, the first batch [default: 120]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    restart_seconds: Option<f64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds >= 0.0 => Ok(seconds),
        _ => Err("a number of seconds, 0 or more".to_owned()),
    }
}

/// Diagnoses, prints, writes, and says by the exit code whether the gate was passed.
pub(crate) fn run(options: &Options) -> miette::Result<u8> {
    // Before anything is read: a mistyped condition must not cost the time that a long record takes.
    let gate =
        options.gate.as_deref().map(gate::Gate::parse).transpose().map_err(|e| miette::miette!("{e}"))?;
    let record = open(&options.record)?;
    if let Some(path) = &options.trace {
        // A trace needs no verdict: a short record has one too.
        write(path, &trace::render(&record, options.trace_steps as usize))?;
    }
    let asked = Asked { restart_seconds: options.restart_seconds, ..Asked::default() };
    let diagnosis = Diagnosis::with(&record, asked).map_err(|error| with_damage(&error, &record))?;
    let checked = gate.map(|gate| gate.check(&diagnosis));
    if let Some(path) = &options.html {
        let page = html::render(&record, &diagnosis).map_err(|error| with_damage(&error, &record))?;
        write(path, &page)?;
    }
    print(&if options.json {
        as_json(&diagnosis, checked.as_deref())?
    } else {
        as_text(&diagnosis, checked.as_deref(), options)
    })?;
    let failed = checked.is_some_and(|checked| checked.iter().any(|condition| !condition.passed));
    Ok(u8::from(failed))
}

fn as_text(diagnosis: &Diagnosis, checked: Option<&[gate::Checked]>, options: &Options) -> String {
    let coloured =
        std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let colour = if coloured { text::Colour::Ansi } else { text::Colour::None };
    let mut printed = text::render(diagnosis, colour).trim_end().to_owned();
    for path in [&options.html, &options.trace].into_iter().flatten() {
        let _ = write!(printed, "\nwrote      {}", path.display());
    }
    if let Some(checked) = checked {
        let _ = write!(printed, "\n\n{}", gate::render(checked));
    }
    printed
}

fn as_json(diagnosis: &Diagnosis, checked: Option<&[gate::Checked]>) -> miette::Result<String> {
    let mut object = serde_json::to_value(diagnosis).into_diagnostic().wrap_err("could not write JSON")?;
    if let (Value::Object(object), Some(checked)) = (&mut object, checked) {
        let passed = checked.iter().all(|condition| condition.passed);
        object.insert("gate".to_owned(), json!({ "passed": passed, "conditions": checked }));
    }
    Ok(object.to_string())
}

/// Opens a record, in the words of all commands.
pub(crate) fn open(path: &Path) -> miette::Result<Record> {
    Record::open(path).map_err(|error| miette::miette!("{error}"))
}

/// Why there is no verdict; where the record is damaged, that is likely to be why.
pub(crate) fn with_damage(error: &feedwater_profile::Error, record: &Record) -> miette::Report {
    let said = error.to_string();
    if record.damage.is_empty() {
        return miette::miette!("{said}");
    }
    let (what, hint) = said.split_once("\nhint: ").map_or((said.as_str(), ""), |(what, hint)| (what, hint));
    let damage: Vec<String> = record.damage.iter().map(|damage| format!("\n  damaged: {damage}")).collect();
    let damage = damage.concat();
    let hint = if hint.is_empty() { String::new() } else { format!("\nhint: {hint}") };
    miette::miette!("{what}{damage}{hint}")
}

pub(crate) fn write(path: &Path, text: &str) -> miette::Result<()> {
    std::fs::write(path, text).map_err(|error| miette::miette!("cannot write `{}`: {error}", path.display()))
}

/// Prints, and takes it well when whoever reads has seen enough: `feedwater report … | head`.
pub(crate) fn print(text: &str) -> miette::Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        done => done.into_diagnostic().wrap_err("could not print"),
    }
}
