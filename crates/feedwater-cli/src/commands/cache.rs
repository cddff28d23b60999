//! `feedwater cache`: what is kept, is it whole, and make or drop it.

use std::{
    fmt::Write as _,
    io::{ErrorKind, IsTerminal},
    path::{Path, PathBuf},
    time::{Instant, SystemTime},
};

use clap::Subcommand;
use feedwater::cache::{self, Held, Level};
use indicatif::{ProgressBar, ProgressStyle};
use miette::miette;
use serde_json::json;

use super::{
    report::print,
    train::{OrAuto, or_auto},
};
use crate::{
    caching::{Caching, Kept, damaged},
    generate::human_bytes,
    profile::{
        run,
        setup::{Setup, Task},
    },
};

const EXAMPLES: &str = "\
Examples:
  feedwater cache build data/speech --cache features --cache-dtype f16
  feedwater cache stat
  feedwater cache verify --cache-dir /fast/cache
  feedwater cache clear
  feedwater cache clear --damaged

A cache is found by what its entries were made of: a changed setting never gives an
old result, nor does a file whose size or time has changed (--cache-key content: a
file in which anything has). What `build` makes is what `profile` and pipelines with the same
stages find; a recipe of `train` has stages of its own, of which it finds `raw` and
`decoded` here, and keeps the rest as it goes. Without --cache, `build` makes `features`.

Exit codes:
  0  done, and all is whole
  1  something is damaged, which a run makes anew; or `build` could not keep all
  2  the folder cannot be read, or the command line is wrong";

/// What to do.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make all of it before a run, and say what that took
    Build(Box<Build>),
    /// Say what there is
    Stat(Where),
    /// Read everything, and say whether it is what was written
    Verify(Where),
    /// Take it all away, or what is damaged
    Clear(Clear),
}

#[derive(Debug, clap::Args)]
struct Where {
    /// The folder [default: `FEEDWATER_CACHE`, or feedwater in the user's folder for caches]
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Clear {
    #[command(flatten)]
    place: Where,
    /// Only the files in which something is damaged; a run makes anew what was in them
    #[arg(long)]
    damaged: bool,
}

impl Where {
    /// The folder. One that was named, here or in `FEEDWATER_CACHE`, has to be there: its name may be a slip. The usual one may
    /// not have been made yet.
    fn folder(&self) -> miette::Result<PathBuf> {
        let folder = self.cache_dir.clone().unwrap_or_else(cache::default_folder);
        let named = self.cache_dir.is_some() || std::env::var_os("FEEDWATER_CACHE").is_some();
        match std::fs::read_dir(&folder) {
            Err(error) if named || error.kind() != ErrorKind::NotFound => Err(unreadable(&folder, &error)),
            _ => Ok(folder),
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(args_override_self = true, mut_arg("cache", |cache| cache.default_value(Kept::Features.name())))]
struct Build {
    /// A folder, a manifest, a table, text or shards
    data: PathBuf,
    /// What the model would be; found by looking where it is left out
    #[arg(long, value_enum)]
    task: Option<Task>,
    /// The tokenizer of a text task, or of the transcripts of a Whisper task
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Features as long as the clips, instead of 30 s
    #[arg(long)]
    pad_longest: bool,
    /// Cut clips over 30 s into windows
    #[arg(long)]
    use_chunking: bool,
    /// Threads; as many as there are cores unless given
    #[arg(long, alias = "num-workers", value_name = "N|auto", value_parser = or_auto)]
    threads: Option<OrAuto>,
    /// Batches made ahead; 4 unless given
    #[arg(long, alias = "prefetch-buffer-size", value_name = "N|auto", value_parser = or_auto)]
    prefetch: Option<OrAuto>,
    #[command(flatten)]
    caching: Caching,
    /// The share of bad samples that are left out before it stops: 5% [default: 1%]
    #[arg(long, value_name = "SHARE", value_parser = super::train::share)]
    bad_ceiling: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> miette::Result<u8> {
    match &options.verb {
        Verb::Build(options) => build(options),
        Verb::Stat(place) => stat(place),
        Verb::Verify(place) => verify(place),
        Verb::Clear(options) => clear(options),
    }
}

fn build(options: &Build) -> miette::Result<u8> {
    match options.caching.cache {
        Kept::Off => {
            return Err(miette!(help = "--cache features", "with --cache off there is nothing to build"));
        }
        Kept::Ram => {
            return Err(miette!(
                help = "--cache features",
                "what is kept in memory is gone when the command ends"
            ));
        }
        _ => {}
    }
    let said = |setting: Option<OrAuto>| setting.and_then(|setting| setting.0).map(usize::from);
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let setup = Setup {
        task: options.task.map_or_else(|| Task::of(&options.data), Ok)?,
        data: options.data.clone(),
        tokenizer: options.tokenizer.clone(),
        batch_size: 16,
        threads: said(options.threads).unwrap_or_else(cores),
        prefetch: said(options.prefetch).unwrap_or(4),
        half: false,
        pad_to_longest: options.pad_longest,
        chunk: options.use_chunking,
        buckets: false,
        // Several at once begin with different samples, and find what the others have made.
        seed: std::process::id().into(),
        plain: None,
        step_nanos: 0,
        step_rows: 16,
        caching: options.caching.clone(),
        bad_ceiling: options.bad_ceiling,
    };
    let mut pipeline = setup.build()?;
    if let Some(cache) = pipeline.report().cache.filter(|cache| cache.level == Level::Off) {
        let why = cache.why.clone().unwrap_or_default();
        println(&why, options.json, &json!({"version": 1, "samples": 0, "cache": cache}))?;
        return Ok(0);
    }
    let samples = pipeline.samples();
    let bar = if std::io::stderr().is_terminal() && !options.json {
        ProgressBar::new(samples)
    } else {
        ProgressBar::hidden()
    };
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} samples, {eta} left") {
        bar.set_style(style);
    }
    let began = Instant::now();
    let mut done = 0;
    for batch in pipeline.epoch(0) {
        done += batch.map_err(|error| miette!("{error}"))?.rows() as u64;
        bar.set_position(done.min(samples));
    }
    bar.finish_and_clear();
    let seconds = began.elapsed().as_secs_f64();
    let report = pipeline.report();
    let Some(cache) = &report.cache else { return Ok(0) };
    let samples = samples.saturating_sub(report.bad_samples);
    // Bad samples are looked for too, and so are the first of another epoch.
    let made = cache.misses.saturating_sub(report.bad).min(samples);
    let mut said = format!(
        "built     {}: {samples} samples in {seconds:.1} s, {} were there before, {} written",
        cache.level.name(),
        samples - made,
        human_bytes(cache.written_bytes),
    );
    said += &damaged(cache);
    if cache.failed + cache.refused > 0 {
        said += "; not all could be kept";
    }
    let folder = options.caching.cache_dir.clone().unwrap_or_else(cache::default_folder);
    let there: u64 = cache::held(&folder).iter().map(|held| held.entries).sum();
    let lost = cache.entries.saturating_sub(there);
    if lost > 0 {
        let _ = write!(said, "\nwarning: {lost} entries were taken away meanwhile");
    }
    if let Some(left_out) = run::left_out(&report) {
        let _ = write!(said, "\n{left_out}");
    }
    for (name, what) in [("why      ", &cache.why), ("warning: ", &cache.trouble)] {
        if let Some(what) = what {
            said = format!("{said}\n{name} {what}");
        }
    }
    println(
        &said,
        options.json,
        &json!({"version": 1, "seconds": seconds, "samples": samples, "bad_samples": report.bad_samples, "cache": cache}),
    )?;
    // What was damaged has been made anew.
    Ok(u8::from(cache.failed + cache.refused + lost > 0))
}

fn stat(place: &Where) -> miette::Result<u8> {
    let folder = place.folder()?;
    let held = cache::held(&folder);
    let mut said = format!("{}", folder.display());
    if held.is_empty() {
        said += ": nothing is kept here";
    }
    for Held { what, shards, entries, bytes, used_unix_seconds } in &held {
        let ago = SystemTime::UNIX_EPOCH
            .elapsed()
            .map_or(0, |since| since.as_secs().saturating_sub(*used_unix_seconds));
        let _ = write!(
            said,
            "\n  {what}\n    {entries} entries, {}, in {shards} {}, used {}",
            human_bytes(*bytes),
            if *shards == 1 { "shard" } else { "shards" },
            before(ago)
        );
    }
    println(&said, place.json, &json!({"version": 1, "folder": folder, "held": held}))?;
    Ok(0)
}

/// How long ago, as people say it.
fn before(seconds: u64) -> String {
    match seconds {
        0..=59 => "just now".to_owned(),
        60..=3_599 => format!("{} min ago", seconds / 60),
        3_600..=86_399 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

fn verify(place: &Where) -> miette::Result<u8> {
    let folder = place.folder()?;
    let bar = if std::io::stderr().is_terminal() && !place.json {
        ProgressBar::new(0)
    } else {
        ProgressBar::hidden()
    };
    let verified = cache::verify(&folder, |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let mut said = format!(
        "{} entries are whole ({} read), {} damaged",
        verified.whole,
        human_bytes(verified.bytes),
        verified.damaged
    );
    if verified.mended > 0 {
        let _ = write!(said, "; {} more were damaged, and made anew since", verified.mended);
    }
    if verified.torn > 0 {
        let _ = write!(said, "; {} torn at the end, nothing before it is lost", verified.torn);
    }
    for line in &verified.wrong {
        let _ = write!(said, "\n  {line}");
    }
    if verified.damaged > 0 {
        // To be pasted: it is meant for this folder.
        let here = place.cache_dir.as_ref().map(|dir| format!(" --cache-dir {}", dir.display()));
        let here = here.unwrap_or_default();
        said += "\nhint: runs do without it, and keep it anew; ";
        if verified.damaged_shards.is_empty() {
            let _ = write!(said, "`feedwater cache clear{here}` drops it all");
        } else {
            let _ = write!(
                said,
                "`feedwater cache clear --damaged{here}` drops the files, and the {} entries that are whole in them",
                verified.whole_in_damaged
            );
        }
    }
    println(&said, place.json, &json!({"version": 1, "folder": folder, "verified": verified}))?;
    Ok(u8::from(verified.damaged > 0))
}

fn clear(options: &Clear) -> miette::Result<u8> {
    let Clear { place, damaged } = options;
    let folder = place.folder()?;
    let cleared = if *damaged {
        cache::clear_damaged(&folder).map(|(bytes, whole)| (bytes, Some(whole)))
    } else {
        cache::clear(&folder).map(|bytes| (bytes, None))
    };
    let (bytes, whole) = cleared.map_err(|error| cannot(&folder, &error))?;
    let mut said = format!("{} taken away from {}", human_bytes(bytes), folder.display());
    if let Some(whole) = whole.filter(|whole| *whole > 0) {
        let _ = write!(said, ", with {whole} entries that were whole: a run makes them anew");
    }
    println(
        &said,
        place.json,
        &json!({"version": 1, "folder": folder, "bytes": bytes, "whole_entries": whole}),
    )?;
    Ok(0)
}

fn unreadable(folder: &Path, error: &std::io::Error) -> miette::Report {
    miette!("cannot read `{}`: {error}", folder.display())
}

fn cannot(folder: &Path, error: &std::io::Error) -> miette::Report {
    miette!(
        help = "may it be written, or is a run still using it?",
        "cannot clear `{}`: {error}",
        folder.display()
    )
}

fn println(text: &str, as_json: bool, value: &serde_json::Value) -> miette::Result<()> {
    if as_json { print(&value.to_string()) } else { print(text) }
}
