//! `feedwater profile`: will this data keep an accelerator fed, and if not, why?
//!
//! Two short runs against a pretended accelerator: one as a plain loop with one thread has it, one with the settings that
//! this machine wants. The first is what is diagnosed; the second shows whether the diagnosis was right.

use std::{
    ffi::OsString,
    fmt::Write as _,
    io::IsTerminal,
    path::{Path, PathBuf},
};

use feedwater::Report;
use feedwater_profile::{
    Diagnosis, Record,
    diagnosis::Facts,
    machine,
    record::{Device, Host},
    render::{
        html,
        text::{self, Colour},
        trace,
    },
    what_if::{Prediction, Wish},
};
use indicatif::{ProgressBar, ProgressStyle};
use miette::{IntoDiagnostic, WrapErr, miette};
use serde_json::json;

use super::report::{print, write};
use crate::caching::{self, Caching};
use crate::profile::{
    attach, cold,
    kept::Trial,
    run::{self, Job},
    setup::{Setup, Task},
    verify, vocabulary,
};

const EXAMPLES: &str = "\
Examples:
  feedwater profile data/morse
  feedwater profile data/speech --batch-size 16 --num-steps 200 --step-ms 120
  feedwater profile data/features --task npy --step-ms 0
  feedwater profile --batch-size 16 --num-steps 100
  feedwater profile data/morse --verify
  feedwater profile data/morse --record run.jsonl --html report.html
  feedwater profile -- python train.py --epochs 3
  feedwater profile --max-steps 200 -- python train.py

The accelerator is pretended: busy for --step-ms with each batch, and using no
core. With --step-ms 0 there is none, and the pace is that of the input alone.

A command's output and exit code stay as they are; what was found is printed after
it, to stderr, or with --json to stdout.

Exit codes:
  0  measured
  2  the data cannot be read, or the command line is wrong
  of a command: its own";

/// What to measure.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Options {
    /// A folder, a manifest, a table, text or shards; a small set is generated where it is left out
    data: Option<PathBuf>,
    /// What the model would be; found by looking where it is left out
    #[arg(long, value_enum)]
    task: Option<Task>,
    /// The tokenizer of a text task, or of the transcripts of a Whisper task
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Samples of a step (blocks of 512 tokens for text)
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    batch_size: u64,
    /// Steps of a run, 30 or more: the first, and those at an epoch's edges, do not count
    #[arg(long, default_value_t = 100, value_parser = steps)]
    num_steps: u64,
    /// How long the accelerator is busy with a batch; 0: there is none
    #[arg(long, default_value_t = 50.0, value_parser = milliseconds)]
    step_ms: f64,
    /// Threads of the first run, which is the one that is diagnosed
    #[arg(long, alias = "num-workers", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Batches made ahead in the first run
    #[arg(long, alias = "prefetch-buffer-size", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    prefetch: u16,
    /// Deliver half precision
    #[arg(long)]
    half: bool,
    /// Pad to the longest of a batch instead of 30 s
    #[arg(long)]
    pad_longest: bool,
    /// Put samples of like length together
    #[arg(long)]
    buckets: bool,
    /// Cut clips over 30 s into windows
    #[arg(long)]
    use_chunking: bool,
    /// How many steps the real run would have: for what a change saves in minutes
    #[arg(long, value_name = "N")]
    total_steps: Option<u64>,
    #[command(flatten)]
    caching: Caching,
    /// The share of bad samples that are left out before it stops: 5% [default: 1%]
    #[arg(long, value_name = "SHARE", value_parser = super::train::share)]
    bad_ceiling: Option<f64>,
    /// Drop the data from the page cache before each run, as far as the system allows
    #[arg(long)]
    cold: bool,
    /// Try other settings, and compare with what was predicted for them: more threads, a larger batch, half precision,
    /// less padding, a cache. Takes minutes: of each seven rounds, more where these lie apart, at most ROUNDS [default: 21]
    #[arg(long, value_name = "ROUNDS", num_args = 0..=1, require_equals = true, default_missing_value = "21",
          value_parser = clap::value_parser!(u16).range(1..=999))]
    verify: Option<u16>,
    /// The device that prepares data, where there are two
    #[arg(long, value_name = "N")]
    data_gpu: Option<u32>,
    /// The device that trains, where there are two
    #[arg(long, value_name = "N")]
    model_gpu: Option<u32>,
    /// What the order of samples follows from
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Keep the record of the first run, for `feedwater report`
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Write a report of the first run for a browser
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write steps of the first run as a timeline for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print one JSON object: `{version, data, generated, run, tuned, verified, cache, bad_samples}`; `tuned` is null where
    /// the run had those settings already
    #[arg(long)]
    json: bool,
    /// Stop the script of a command after so many steps, with a few more on batches from before: for the ceiling
    #[arg(long, value_name = "N", requires = "command", value_parser = clap::value_parser!(u64).range(20..))]
    max_steps: Option<u64>,
    /// A command that trains with PyTorch, observed without being changed
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["data", "verify", "cold"])]
    command: Vec<OsString>,
}

/// Fewer steps say nothing.
pub(crate) const LEAST_STEPS: u64 = 30;

pub(crate) fn steps(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(steps) if steps >= LEAST_STEPS => Ok(steps),
        _ => Err(format!(
            "a number, {LEAST_STEPS} or more: the first steps, and those at an epoch's edges, do not count"
        )),
    }
}

pub(crate) fn milliseconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=600_000.0).contains(&value) => Ok(value),
        _ => Err("a number of milliseconds between 0 and 600000".to_owned()),
    }
}

/// A run and what it means.
struct Measured {
    record: Record,
    diagnosis: Diagnosis,
    report: Report,
}

pub(crate) fn run(options: &Options) -> miette::Result<u8> {
    if !options.command.is_empty() {
        return attached(options);
    }
    let scratch = tempfile::tempdir().into_diagnostic().wrap_err("could not make a folder for records")?;
    let (data, generated) = data(options, scratch.path())?;
    if options.verify.is_none() {
        options.caching.warn();
    }
    let task = options.task.map_or_else(|| Task::of(&data), Ok)?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let host = Host { fill: machine::fill(), ..machine::host_with_data(&data) };
    let devices = &devices(options)?;
    let first = asked_for(options, task, data);
    let first = Setup { tokenizer: vocabulary::of(&first, scratch.path())?, ..first };
    let trial = Trial::new(&first, options.num_steps, scratch.path());
    let tuned = Setup { threads: cores, prefetch: first.prefetch.max(4), ..first.clone() };
    let progress = progress_bar();
    let record = |setup: &Setup, name: &str, file: &Path, host: &Host| {
        // A larger batch goes through the data faster; as many samples are as good as as many steps.
        let steps =
            (options.num_steps * options.batch_size / setup.batch_size).max(40).min(options.num_steps);
        if options.cold {
            cold::forget(&setup.data)?;
        }
        let job = Job { name, host, devices, steps, record: file, progress: &progress, announced: true };
        let (mut record, report) = run::run(setup, &job)?;
        record.run.planned_steps = options.total_steps;
        Ok::<_, miette::Report>((record, report))
    };
    // What predictions stand on is asked before each run that they are made from: it drifts.
    let asked = |trial: Option<&Trial>| Host {
        crowding: Some(machine::crowding(cores)),
        cached: trial.and_then(Trial::cached),
        ..host.clone()
    };
    let measure = |setup: &Setup, name: &str, file: PathBuf, trial: Option<&Trial>| {
        let (record, report) = record(setup, name, &file, &asked(trial))?;
        let diagnosis = Diagnosis::of(&record).map_err(|error| miette!("{error}"))?;
        Ok::<_, miette::Report>(Measured { record, diagnosis, report })
    };
    let kept = options.record.clone().unwrap_or_else(|| scratch.path().join("first.jsonl"));
    let one = measure(&first, "as a plain loop", kept, trial.as_ref())?;
    let is_tuned = (first.threads, first.prefetch) == (tuned.threads, tuned.prefetch);
    let two = if is_tuned {
        None
    } else {
        Some(measure(&tuned, "tuned", scratch.path().join("tuned.jsonl"), None)?)
    };
    // Of the first run, unless something went wrong only later.
    let cached = [two.as_ref(), Some(&one)].into_iter().flatten().filter_map(|one| one.report.cache.as_ref());
    let cached = cached.max_by_key(|cache| cache.trouble.is_some());
    let mut verified = Vec::new();
    if let Some(rounds) = options.verify {
        for (what, wish) in verify::wishes(&first, cores) {
            if progress.is_hidden() {
                eprintln!("verify    {what}, at most {rounds} rounds");
            }
            let mut other = first.with(&wish);
            let file = scratch.path().join("verify.jsonl");
            let run = |setup, host: &Host| Ok(record(setup, &what, &file, host)?.0);
            let trial = trial.as_ref().filter(|_| wish == Wish::Cache);
            if wish == Wish::Cache {
                // What is promised is what it brings when everything is there. The user's own is left alone.
                other.caching.cache_dir = Some(scratch.path().join("cache"));
                run(&other, &host)?;
            }
            let (before, after) = (|| run(&first, &asked(trial)), || run(&other, &host));
            verified.extend(verify::verify(&what, &wish, rounds.into(), before, after)?);
        }
    }
    progress.finish_and_clear();
    if let Some(cache) = cached {
        eprintln!("{}", caching::told(cache));
    }
    if let Some(said) = one.report.cache.as_ref().and_then(caching::filled) {
        eprintln!("{said}");
    }
    for said in [run::left_out(&one.report), run::too_large(&first, &one.record)].into_iter().flatten() {
        eprintln!("{said}");
    }
    if let Some(path) = &options.html {
        write(path, &html::render(&one.record, &one.diagnosis).map_err(|error| miette!("{error}"))?)?;
    }
    if let Some(path) = &options.trace {
        write(path, &trace::render(&one.record, trace::STEPS))?;
    }
    let printed = if options.json {
        let object = json!({
            "version": 1, "data": options.data, "generated": generated,
            "run": one.diagnosis, "tuned": two.as_ref().map(|two| &two.diagnosis),
            "verified": verified, "cache": cached, "bad_samples": one.report.bad_samples,
        });
        object.to_string()
    } else {
        shown(options, &first, &tuned, &one, two.as_ref(), &verified, devices)
    };
    print(printed.trim_end())?;
    Ok(0)
}

/// The run that was asked for.
fn asked_for(options: &Options, task: Task, data: PathBuf) -> Setup {
    Setup {
        task,
        data,
        tokenizer: options.tokenizer.clone(),
        batch_size: options.batch_size,
        threads: usize::from(options.threads),
        prefetch: usize::from(options.prefetch),
        half: options.half,
        pad_to_longest: options.pad_longest,
        chunk: options.use_chunking,
        buckets: options.buckets,
        seed: options.seed,
        plain: None,
        step_nanos: (options.step_ms * 1e6) as u64,
        step_rows: options.batch_size,
        caching: options.caching.clone(),
        bad_ceiling: options.bad_ceiling,
    }
}

/// What is profiled, and whether it was made for that.
fn data(options: &Options, scratch: &Path) -> miette::Result<(PathBuf, bool)> {
    if let Some(data) = &options.data {
        return Ok((data.clone(), false));
    }
    let out = scratch.join("data");
    let kind = match options.task.unwrap_or(Task::Whisper) {
        Task::Whisper => "morse",
        Task::Npy => "npy",
        Task::Text => "text",
    };
    super::generate::quietly(kind, &out, &[])?;
    Ok((out, true))
}

/// Runs somebody else's command, observed, and says what was found.
fn attached(options: &Options) -> miette::Result<u8> {
    let scratch = tempfile::tempdir().into_diagnostic()?;
    let kept = options.record.clone().unwrap_or_else(|| scratch.path().join("record.jsonl"));
    let kept = std::path::absolute(&kept).into_diagnostic()?;
    let done = attach::run(&options.command, &kept, options.max_steps, scratch.path())?;
    let record = match done.record {
        Ok(record) => record,
        Err(why) => {
            eprintln!("\nfeedwater: no verdict: {why}");
            return Ok(done.exit_code);
        }
    };
    let diagnosis = match Diagnosis::of(&record) {
        Ok(diagnosis) => diagnosis,
        Err(error) => {
            eprintln!("\nfeedwater: no verdict: {error}");
            return Ok(done.exit_code);
        }
    };
    if let Some(path) = &options.html {
        write(path, &html::render(&record, &diagnosis).map_err(|error| miette!("{error}"))?)?;
    }
    if let Some(path) = &options.trace {
        write(path, &trace::render(&record, trace::STEPS))?;
    }
    if options.json {
        print(&json!({ "version": 1, "command": done.exit_code, "run": diagnosis }).to_string())?;
    } else {
        let colour = if std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
            Colour::Ansi
        } else {
            Colour::None
        };
        eprint!("\n{}", text::render(&diagnosis, colour));
        for path in [&options.record, &options.html, &options.trace].into_iter().flatten() {
            eprint!("{}", text::line("wrote", &path.display().to_string(), colour));
        }
    }
    Ok(done.exit_code)
}

/// The devices that were named, with what each does and how they are connected; none where there is no driver.
fn devices(options: &Options) -> miette::Result<Vec<Device>> {
    let roles = [("data", options.data_gpu), ("model", options.model_gpu)];
    if roles.iter().all(|(_, index)| index.is_none()) {
        return Ok(Vec::new());
    }
    let Some(gpus) = machine::Gpus::open() else { return Ok(Vec::new()) };
    let known = gpus.devices();
    let mut devices = Vec::new();
    for (role, index) in roles {
        let Some(index) = index else { continue };
        let Some(device) = known.iter().find(|device| device.index == index) else {
            return Err(miette!(
                help = "`feedwater doctor` lists the devices",
                "there is no GPU {index}: this machine has {}",
                known.len()
            ));
        };
        devices.push(Device { role: Some(role.to_owned()), ..device.clone() });
    }
    Ok(devices)
}

/// The screen.
fn shown(
    options: &Options,
    first: &Setup,
    tuned: &Setup,
    one: &Measured,
    two: Option<&Measured>,
    verified: &[verify::Verified],
    devices: &[Device],
) -> String {
    let colour = if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        Colour::Ansi
    } else {
        Colour::None
    };
    let mut out = String::new();
    let name = options
        .data
        .as_ref()
        .map_or_else(|| "a small generated set".to_owned(), |data| data.display().to_string());
    let plural = if first.threads == 1 { "" } else { "s" };
    out += &text::line(
        "RUN",
        &format!(
            "{name}: {}, batch {}, {} thread{plural}, {} ahead",
            first.task.name(),
            first.batch_size,
            first.threads,
            first.prefetch
        ),
        colour,
    );
    if options.data.is_none() {
        out += &text::line("", "no DATA was given; say `feedwater profile DATA` for your own", colour);
    }
    if options.data_gpu.is_some() || options.model_gpu.is_some() {
        let told = if devices.is_empty() {
            "no NVIDIA driver here: --data-gpu and --model-gpu are pretended, as one device"
        } else {
            "the devices are there; their work is pretended, the input is real"
        };
        out += &text::line("", told, colour);
    }
    if first.task == Task::Text && options.tokenizer.is_none() {
        out += &text::line("", "no --tokenizer: a BPE of 8000 tokens was made from the text", colour);
    }
    out += &text::render(&one.diagnosis, colour);
    let setting = format!("{} threads, {} ahead", tuned.threads, tuned.prefetch);
    let told = two.map_or_else(
        || format!("{setting}: as above"),
        |two| {
            let crew = Wish::Crew(tuned.threads, tuned.prefetch);
            let expected = Facts::of(&one.record).ok().and_then(|facts| facts.predict(&crew));
            format!("{setting}: {}", found(&one.diagnosis, &two.diagnosis, expected))
        },
    );
    out += &text::line("TUNED", &told, colour);
    for path in [&options.record, &options.html, &options.trace].into_iter().flatten() {
        out += &text::line("wrote", &path.display().to_string(), colour);
    }
    if !verified.is_empty() {
        out += &verify::table(verified);
    }
    out
}

/// What the settings that this machine wants gave, beside those that were diagnosed and what these had predicted for them.
fn found(one: &Diagnosis, two: &Diagnosis, expected: Option<Prediction>) -> String {
    let busy = two.busy_percent.map(|busy| format!(", busy {busy:.1} %")).unwrap_or_default();
    let mut said = format!(
        "{:.1} steps/s, {:.0} samples/s{busy}, variation {:.0} % (measured)",
        two.steps_per_second, two.samples_per_second, two.variation_percent,
    );
    if two.steps_per_second < 0.97 * one.steps_per_second {
        said += "; not better here";
    }
    if let Some(Prediction { steps_per_second, low, high, .. }) =
        expected.filter(|expected| two.steps_per_second < expected.low)
    {
        let _ = write!(said, "; predicted were {steps_per_second:.1} [{low:.1}–{high:.1}]");
    }
    said
}

/// Drawn only where somebody can see it.
fn progress_bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} [{bar:40}] step {pos} of {len}, {eta} left")
        .map_or_else(|_| ProgressStyle::default_bar(), |style| style.progress_chars("=> "));
    ProgressBar::new(0).with_style(style)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;
    use crate::profile::verify::tests::record;

    /// Nothing was said where a run with two threads was slower than had been predicted for it.
    #[test]
    fn what_is_less_than_was_predicted_is_told() {
        let one = record(100);
        let said = |millis| {
            let expected = Facts::of(&one).unwrap().predict(&Wish::Crew(2, 4));
            found(&Diagnosis::of(&one).unwrap(), &Diagnosis::of(&record(millis)).unwrap(), expected)
        };
        assert!(said(50).ends_with("(measured)"), "{}", said(50));
        assert!(said(70).contains("(measured); predicted were 20.0 ["), "{}", said(70));
        assert!(said(120).contains("(measured); not better here; predicted were 20.0 ["), "{}", said(120));
    }
}
