//! `feedwater generate`: where does a dataset to try things on come from?
//!
//! From the settings and a seed, and from nothing else: the same command writes the same bytes on any number
//! of threads. The datasets themselves are made in [`crate::generate`]; this file reads the options, guards
//! the folder, shows progress on stderr and prints the summary on stdout.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use miette::{IntoDiagnostic, WrapErr};
use serde_json::{Value, json};

use crate::generate::folder::Folder;
use crate::generate::{Job, Made, morse, npy, owns, space, text};
use crate::shell;

const EXAMPLES: &str = "\
Examples:
  feedwater generate morse --out data/morse
  feedwater generate npy   --out data/features --samples 5000 --classes 8
  feedwater generate text  --out data/text --documents 10000

The same settings and seed write the same bytes, on any number of threads.";

const MORSE_EXAMPLES: &str = "\
Examples:
  feedwater generate morse --out data/morse
  feedwater generate morse --out data/weak --snr-db -5..10 --fading
  feedwater generate morse --out data/slow --wpm 5..12 --farnsworth
  feedwater generate morse --out data/long --long 10 --json

Writes DIR/train/clip00000.wav and so on, and DIR/metadata.jsonl (file_name,
text, duration, words with times, wpm, snr_db, pitch_hz): an audio folder of
Hugging Face. Error rates on it are not on-air figures.";

const NPY_EXAMPLES: &str = "\
Examples:
  feedwater generate npy --out data/features
  feedwater generate npy --out data/long --samples 20000 --max-frames 4000

Writes DIR/class_0/000000.npy and so on: float32 [frames, 128]. Classes 0 and
1, 2 and 3, ... share their spectra and differ in tempo, so that a model has to
look along time.";

const TEXT_EXAMPLES: &str = "\
Examples:
  feedwater generate text --out data/text
  feedwater generate text --out data/lines --words 5..30 --format txt

Writes DIR/text.jsonl or DIR/text.txt.";

/// What to generate.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Morse code as a radio plays it, with transcripts and word times: for speech models
    #[command(after_help = MORSE_EXAMPLES)]
    Morse {
        #[command(flatten)]
        settings: morse::Settings,
        #[command(flatten)]
        common: Common,
    },
    /// Feature matrices of uneven length in classes that can be learnt: for CNN and LSTM classifiers
    #[command(after_help = NPY_EXAMPLES)]
    Npy {
        #[command(flatten)]
        settings: npy::Settings,
        #[command(flatten)]
        common: Common,
    },
    /// English-like documents: for tokenizers and language models
    #[command(after_help = TEXT_EXAMPLES)]
    Text {
        #[command(flatten)]
        settings: text::Settings,
        #[command(flatten)]
        common: Common,
    },
}

// Shared by all three. (Not a doc comment: clap would print it as the description of the command.)
#[derive(Debug, Args)]
struct Common {
    /// Folder to write: new, empty, or made by this command before
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Another seed gives another dataset of the same kind
    #[arg(long, default_value_t = 7, value_name = "N")]
    seed: u64,
    /// Threads; all cores unless given. The files don't depend on it
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Replace a dataset made with other settings, or write into a folder that holds other files
    #[arg(long)]
    force: bool,
    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> miette::Result<()> {
    match &options.what {
        What::Morse { settings, common } => {
            settings.check()?;
            make(&Dataset::of("morse", settings, settings.flags(), settings.bytes()), common, |job| {
                morse::generate(settings, job)
            })
        }
        What::Npy { settings, common } => {
            settings.check()?;
            make(&Dataset::of("npy", settings, settings.flags(), settings.bytes()), common, |job| {
                npy::generate(settings, job)
            })
        }
        What::Text { settings, common } => {
            settings.check()?;
            make(&Dataset::of("text", settings, settings.flags(), settings.bytes()), common, |job| {
                text::generate(settings, job)
            })
        }
    }
}

/// A dataset with the usual settings but for these flags, without a word.
pub(crate) fn quietly(kind: &str, out: &Path, flags: &[&str]) -> miette::Result<()> {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }
    let line = [std::ffi::OsStr::new("generate"), kind.as_ref(), "--out".as_ref(), out.as_os_str()];
    let flags = flags.iter().map(|flag| std::ffi::OsStr::new(*flag));
    let Line { options } = clap::Parser::try_parse_from(line.into_iter().chain(flags)).into_diagnostic()?;
    match &options.what {
        What::Morse { settings, common } => {
            made(&Dataset::of("morse", settings, settings.flags(), settings.bytes()), common, |job| {
                morse::generate(settings, job)
            })
        }
        What::Npy { settings, common } => {
            made(&Dataset::of("npy", settings, settings.flags(), settings.bytes()), common, |job| {
                npy::generate(settings, job)
            })
        }
        What::Text { settings, common } => {
            made(&Dataset::of("text", settings, settings.flags(), settings.bytes()), common, |job| {
                text::generate(settings, job)
            })
        }
    }
    .map(|_| ())
}

/// What is to be made.
struct Dataset {
    kind: &'static str,
    settings: Value,
    /// The flags that give these settings.
    flags: String,
    /// About how large it will be.
    bytes: u64,
}

impl Dataset {
    fn of(kind: &'static str, settings: &impl serde::Serialize, flags: String, bytes: u64) -> Self {
        Self { kind, settings: json!(settings), flags, bytes }
    }
}

fn make(
    dataset: &Dataset,
    common: &Common,
    generate: impl FnOnce(Job<'_>) -> miette::Result<Made>,
) -> miette::Result<()> {
    let (made, threads, seconds) = made(dataset, common, generate)?;
    let kind = dataset.kind;
    let summary = if common.json {
        as_json(kind, &common.out, common.seed, threads, seconds, made)
    } else {
        as_text(kind, &common.out, common.seed, threads, seconds, &made)
    };
    writeln!(std::io::stdout(), "{summary}").into_diagnostic().wrap_err("could not print the summary")
}

/// Makes a dataset: what came of it, on how many threads, in how many seconds.
fn made(
    dataset: &Dataset,
    common: &Common,
    generate: impl FnOnce(Job<'_>) -> miette::Result<Made>,
) -> miette::Result<(Made, usize, f64)> {
    let Dataset { kind, settings, flags, bytes } = dataset;
    let threads = match common.threads {
        Some(0) => {
            return Err(miette::miette!(
                help = "leave --threads out to use all cores",
                "`--threads 0` would do nothing"
            ));
        }
        Some(threads) => threads,
        None => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    };
    let note =
        json!({ "made_by": "feedwater generate", "kind": kind, "seed": common.seed, "settings": settings });
    let smaller = match *kind {
        "morse" => "--clips 200",
        "npy" => "--samples 1000",
        _ => "--documents 10000",
    };
    space::check(&common.out, *bytes, || Folder::replaceable_bytes(&common.out, owns), smaller)?;
    let folder = Folder::claim(&common.out, &note, owns, common.force)?;
    // The last part of the path only: a dataset is passed on, and the folders of its maker are nobody's
    // business.
    let name = common.out.file_name().map_or_else(|| "data".into(), |name| name.to_string_lossy());
    let command =
        format!("feedwater generate {kind} --out {} --seed {} {flags}", shell::word(&name), common.seed);
    let progress = progress_bar(kind);
    let begin = Instant::now();
    let made =
        generate(Job { folder: &folder, seed: common.seed, threads, progress: &progress, command: &command });
    progress.finish_and_clear();
    Ok((made?, threads, begin.elapsed().as_secs_f64()))
}

fn as_json(kind: &str, out: &Path, seed: u64, threads: usize, seconds: f64, made: Made) -> String {
    let mut object = json!({
        "kind": kind, "out": out, "seed": seed, "threads": threads, "seconds": (seconds * 1000.0).round() / 1000.0,
    });
    if let (Value::Object(object), Value::Object(facts)) = (&mut object, made.facts) {
        object.extend(facts);
    }
    object.to_string()
}

fn as_text(kind: &str, out: &Path, seed: u64, threads: usize, seconds: f64, made: &Made) -> String {
    let plural = if threads == 1 { "" } else { "s" };
    let first = ("made", format!("{kind} dataset, seed {seed}, in {}", out.display()));
    let last = ("took", format!("{seconds:.2} s on {threads} thread{plural}"));
    let lines = std::iter::once(&first).chain(&made.lines).chain([&last]);
    lines.map(|(label, line)| format!("{label:<10}{line}")).collect::<Vec<_>>().join("\n")
}

/// Drawn only where somebody can see it, and without colour.
fn progress_bar(kind: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{prefix} [{bar:40}] {pos}/{len}, {eta} left")
        .map_or_else(|_| ProgressStyle::default_bar(), |style| style.progress_chars("=> "));
    ProgressBar::new(0).with_style(style).with_prefix(kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    fn run_with(arguments: &[&str], out: &Path) -> miette::Result<()> {
        let line = ["feedwater"].iter().chain(arguments).map(Into::into).chain(["--out".into(), out.into()]);
        run(&Command::parse_from(line.collect::<Vec<std::ffi::OsString>>()).options)
    }

    #[test]
    fn again_is_harmless_and_other_settings_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("my morse");
        run_with(&["morse", "--clips", "4", "--threads", "1"], &out).unwrap();
        let before = std::fs::read(out.join("train/clip00003.wav")).unwrap();
        run_with(&["morse", "--clips", "4", "--threads", "2", "--json"], &out).unwrap();
        assert!(before == std::fs::read(out.join("train/clip00003.wav")).unwrap());
        assert!(run_with(&["morse", "--clips", "3"], &out).unwrap_err().help().is_some());
        run_with(&["npy", "--samples", "3", "--force"], &out).unwrap();
        assert!(!out.join("train").exists() && out.join("class_2/000002.npy").exists());
        let readme = std::fs::read_to_string(out.join("README.md")).unwrap();
        assert!(readme.contains("feedwater generate npy --out 'my morse' --seed 7 --samples 3"), "{readme}");
    }

    #[test]
    fn a_refused_setting_leaves_no_folder_behind() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("new");
        for line in [&["morse", "--wpm", "90"][..], &["npy", "--classes", "0"], &["text", "--threads", "0"]] {
            assert!(run_with(line, &out).unwrap_err().help().is_some(), "{line:?}");
            assert!(!out.exists());
        }
    }

    /// It filled the disk, and then said so.
    #[test]
    fn what_cannot_fit_on_the_disk_is_refused_before_a_byte_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("new");
        let huge = [
            &["morse", "--clips", "10000000", "--max-seconds", "600", "--rate", "48000"][..],
            &["npy", "--samples", "10000000", "--max-frames", "1000000"],
            &["text", "--documents", "1000000000", "--words", "1000000"],
        ];
        for line in huge.iter().filter(|_| cfg!(unix)) {
            let refusal = run_with(line, &out).unwrap_err();
            assert!(refusal.to_string().contains("would take about"), "{refusal}");
            assert!(refusal.help().unwrap().to_string().contains(line[1]));
            assert!(!out.exists());
        }
        let most = usize::MAX.to_string();
        let absurd = [
            &["morse", "--clips", &most, "--long", "1"][..],
            &["morse", "--long", &most],
            &["npy", "--samples", &most],
            &["text", "--documents", &most],
        ];
        for line in absurd {
            let refusal = run_with(line, &out).unwrap_err();
            assert!(refusal.to_string().contains("is above") && refusal.help().is_some(), "{refusal}");
            assert!(!out.exists());
        }
    }

    #[test]
    fn the_estimated_size_is_about_what_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let lines = [
            "morse --clips 60 --long 3",
            "npy --samples 200",
            "npy --samples 20 --min-frames 500 --max-frames 500",
            "text --documents 500",
            "text --documents 400 --words 50 --format txt",
        ];
        for (number, line) in lines.iter().enumerate() {
            let out = dir.path().join(number.to_string());
            let line: Vec<&str> = line.split(' ').collect();
            run_with(&line, &out).unwrap();
            let options =
                Command::parse_from(["feedwater"].iter().chain(&line).chain(&["--out", "x"])).options;
            let guess = match options.what {
                What::Morse { settings, .. } => settings.bytes(),
                What::Npy { settings, .. } => settings.bytes(),
                What::Text { settings, .. } => settings.bytes(),
            };
            let ratio = guess as f64 / Folder::replaceable_bytes(&out, owns) as f64;
            assert!((0.9..1.25).contains(&ratio), "{line:?}: {ratio}");
        }
    }

    #[test]
    fn both_summaries_state_the_same_facts() {
        let made = || Made { lines: vec![("clips", "3".to_owned())], facts: json!({ "clips": 3 }) };
        let out = Path::new("data");
        assert_eq!(
            as_text("morse", out, 7, 1, 0.5, &made()),
            "made      morse dataset, seed 7, in data\nclips     3\ntook      0.50 s on 1 thread"
        );
        let object: Value = serde_json::from_str(&as_json("morse", out, 7, 2, 0.5, made())).unwrap();
        assert_eq!(
            object,
            json!({"kind": "morse", "out": "data", "seed": 7, "threads": 2, "seconds": 0.5, "clips": 3})
        );
    }
}
