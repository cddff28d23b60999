//! `feedwater tune`: which settings are best for this data on this machine?

use std::{
    ffi::OsStr,
    fmt::Write as _,
    fs,
    io::IsTerminal,
    path::{Path, PathBuf},
    time::Instant,
};

use feedwater::cache::Level;
use feedwater_profile::{
    machine,
    record::Host,
    search::{Found, Point, Row, Space, search},
};
use indicatif::{ProgressBar, ProgressStyle};
use miette::{IntoDiagnostic, WrapErr, miette};
use serde_json::json;

use super::report::print;
use crate::{
    caching::{Caching, Kept},
    profile::{
        run::{self, Job},
        setup::{BUCKET_STEPS, Setup, Task},
        vocabulary,
    },
};

const EXAMPLES: &str = "\
Examples:
  feedwater tune data/speech
  feedwater tune data/speech --step-ms 120 --batch-sizes 8,16,32
  feedwater tune data/features --task npy --step-ms 0 --write my.toml
  feedwater tune data/speech --cache --half
  feedwater tune config.yaml --step-ms 120

The accelerator is pretended: busy for --step-ms with a batch of --batch-size, and
in proportion with others. Without --cache and --half they are not tried: one takes
room on the disk, the other changes what the model gets.

Of a configuration for `train`, in YAML or TOML, the data, the batch size, the
tokenizer and the settings that it has now are taken: `as it is` in the table.

What is found is written to feedwater.toml, which `train`, `profile` and `cache
build` read where they are started; a flag counts more than what it says.

Exit codes:
  0  found
  2  the data cannot be read, or the command line is wrong";

/// The file that commands read where they are started.
pub(crate) const FILE: &str = "feedwater.toml";
/// How it begins where it was found here, and nobody wrote it by hand.
const BY_TUNE: &str = "# Found by `feedwater tune";
/// A setting that was so many times as fast as the one that was chosen was so at another time.
const DRIFTED: f64 = 1.15;
/// So much of the time, in percent, an accelerator is busy that waits for nothing.
const KEEPS_UP: f64 = 98.0;
/// One that is busy for a shorter time is pretended too roughly to say so: who sleeps wakes a little late.
const LEAST_STEP_MS: f64 = 5.0;
/// A search mostly takes between so many and so many short runs' time: more where there is more to choose from.
const SHORT_RUNS: [f64; 2] = [30.0, 220.0];
/// How its last line begins.
const CHECK: &str = "\n# As it was found: ";

/// What to look for.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Options {
    /// A folder, a manifest, a table, text or shards; or a configuration that names one
    #[arg(value_name = "DATA|CONFIG")]
    data: PathBuf,
    /// The data, where a configuration is given
    #[arg(long, visible_alias = "train-data", value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Threads and prefetch are those of the configuration
    #[arg(long, hide = true)]
    as_it_is: bool,
    /// What the model would be; found by looking where it is left out
    #[arg(long, value_enum)]
    task: Option<Task>,
    /// The tokenizer of a text task, or of the transcripts of a Whisper task
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Samples of a step (blocks of 512 tokens for text)
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    batch_size: u64,
    /// Threads to begin with [default: as many as there are cores]
    #[arg(long, alias = "dataloader-num-workers", alias = "num-workers", value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Batches made ahead to begin with
    #[arg(long, alias = "prefetch-buffer-size", default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    prefetch: u16,
    /// Other sizes that may be chosen
    #[arg(long, value_delimiter = ',', value_name = "N,…", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    batch_sizes: Vec<u64>,
    /// How long the accelerator is busy with a batch; 0: there is none
    #[arg(long, default_value_t = 50.0, value_parser = super::profile::milliseconds)]
    step_ms: f64,
    /// Steps of a short run, 30 or more; those that are close are run three times as long
    #[arg(long, default_value_t = 60, value_parser = super::profile::steps)]
    num_steps: u64,
    /// Try a cache of what `--cache auto` would keep, in a folder that is dropped afterwards
    #[arg(long)]
    cache: bool,
    /// Try half precision
    #[arg(long)]
    half: bool,
    /// Features as long as the clips, instead of 30 s: lengths can then be put together
    #[arg(long)]
    pad_longest: bool,
    /// The share of bad samples that are left out before it stops: 5% [default: 1%]
    #[arg(long, value_name = "SHARE", value_parser = super::train::share)]
    bad_ceiling: Option<f64>,
    /// Where the settings go
    #[arg(long, value_name = "FILE", default_value = FILE)]
    write: PathBuf,
    /// Print one JSON object: {version, data, best, rows, settings, cache, wrote}
    #[arg(long)]
    json: bool,
}

impl Options {
    /// The configuration, where that is what was named.
    pub(crate) fn config(&self) -> Option<&Path> {
        let is_config = |ending: &OsStr| ["yaml", "yml", "toml"].iter().any(|known| ending == *known);
        Some(self.data.as_path()).filter(|path| path.extension().is_some_and(is_config))
    }

    fn data(&self) -> &Path {
        self.data_dir.as_ref().unwrap_or(&self.data)
    }
}

pub(crate) fn run(options: &Options) -> miette::Result<u8> {
    if let (Some(folder), None) = (&options.data_dir, options.config()) {
        return Err(miette!(
            "there are two places for the data: `{}` and `{}`",
            options.data.display(),
            folder.display()
        ));
    }
    may_write(&options.write)?;
    let scratch = tempfile::tempdir().into_diagnostic().wrap_err("could not make a folder for records")?;
    let task = options.task.map_or_else(|| Task::of(options.data()), Ok)?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let host = machine::host_with_data(options.data());
    let progress = if std::io::stderr().is_terminal() && !options.json {
        ProgressBar::new(0)
    } else {
        ProgressBar::hidden()
    };
    if let Ok(style) = ProgressStyle::with_template("{msg:44} {bar:24} step {pos} of {len}") {
        progress.set_style(style);
    }
    let base = Point {
        threads: options.threads.map_or(cores, usize::from),
        prefetch: usize::from(options.prefetch),
        batch_size: options.batch_size,
        buckets: false,
        half: false,
        cache: false,
    };
    let mut warmed: Vec<(Point, u64)> = Vec::new();
    let mut left_out = None;
    let mut runs = 0;
    let scratch = scratch.path();
    let tokenizer = vocabulary::of(&setup(options, task, &base, Kept::Off, scratch), scratch)?;
    let with = |point: &Point, kept| Setup {
        tokenizer: tokenizer.clone(),
        ..setup(options, task, point, kept, scratch)
    };
    let kept = if options.cache {
        let setup = with(&Point { cache: true, ..base }, Kept::Auto);
        // Where it would lie, not where it is tried.
        let caching = Caching { cache_dir: None, ..setup.caching.clone() };
        level(&Setup { caching, ..setup }, &progress)?
    } else {
        Kept::Off
    };
    let space = space(options, task, cores, &base, kept);
    let mut found = search(&space, base, |point, times| {
        let mut began = Instant::now();
        let setup = with(point, kept);
        let name = words(point, kept);
        if progress.is_hidden() {
            // A search takes minutes, and somebody may read what it says later, or elsewhere.
            let long = if times > 1 { ", a long run" } else { "" };
            eprintln!("trying    {name}{long}");
        }
        // Asked before each run: it drifts.
        let host = Host { crowding: Some(machine::crowding(cores)), ..host.clone() };
        let record = scratch.join("probe.jsonl");
        let steps = (options.num_steps * options.batch_size / point.batch_size)
            .clamp(super::profile::LEAST_STEPS, options.num_steps)
            * times;
        let (host, record, progress) = (&host, &record, &progress);
        let job = Job { name: &name, host, devices: &[], steps, record, progress, announced: true };
        // The first run of all reads files that nobody has read yet; the first with a cache makes what others find: other
        // types of numbers are other entries.
        // A longer run comes to samples that a short one does not.
        let same = |(known, long): &(Point, u64)| {
            *long >= times && (!point.cache || known.cache && known.half == point.half)
        };
        if !warmed.iter().any(same) {
            let (_, report) = run::run(&setup, &job)?;
            left_out = left_out.take().or_else(|| run::left_out(&report));
            if let Some(trouble) = report.cache.and_then(|cache| cache.trouble) {
                progress.suspend(|| eprintln!("warning: cache: {trouble}"));
            }
            warmed.push((*point, times));
            began = Instant::now();
        }
        let (record, _) = run::run(&setup, &job)?;
        runs += 1;
        if runs == 2 {
            progress.suspend(|| eprintln!("{}", takes(began.elapsed().as_secs_f64())));
        }
        Ok::<_, miette::Report>(record)
    })?;
    progress.finish_and_clear();
    // What is predicted of a cache is of features.
    for row in found.rows.iter_mut().filter(|row| row.point.cache && kept != Kept::Features) {
        row.predicted = None;
    }
    if let Some(said) = &left_out {
        eprintln!("{said}");
    }
    if options.json {
        let Found { best, rows, settings } = &found;
        let object = json!({
            "version": 1, "data": options.data(), "best": best, "rows": rows, "settings": settings,
            "cache": kept.name(), "wrote": options.write,
        });
        print(&object.to_string())?;
    } else {
        print(table(options, &base, kept, &found).trim_end())?;
    }
    // What was found is on the screen, whatever becomes of the file.
    written(&options.write, &settings(options, &found.best, kept))
        .map_err(|error| miette!("cannot write `{}`: {error}", options.write.display()))?;
    Ok(0)
}

/// How long it takes, from the time of a short run.
fn takes(seconds: f64) -> String {
    let [least, most] = SHORT_RUNS.map(|runs| {
        let seconds = seconds * runs;
        if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.1} min", seconds / 60.0) }
    });
    format!("takes     about {least} to {most}; a short run takes {seconds:.1} s")
}

/// Writes a file that is there as a whole or not at all.
fn written(file: &Path, text: &str) -> std::io::Result<()> {
    let mut part = file.as_os_str().to_owned();
    part.push(".part");
    fs::write(&part, text).and_then(|()| fs::rename(&part, file)).inspect_err(|_| {
        let _ = fs::remove_file(&part);
    })
}

/// Says before a long search, not behind it, that what it finds could not be written.
fn may_write(file: &Path) -> miette::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return Err(miette!("cannot write `{}`: there is no folder `{}`", file.display(), folder.display()));
    }
    if fs::read_to_string(file).is_ok_and(|text| !is_by_tune(&text)) {
        return Err(miette!(
            help = "--write another.toml, or move it away",
            "`{}` is there already, and not as `tune` wrote it",
            file.display()
        ));
    }
    Ok(())
}

fn space(options: &Options, task: Task, cores: usize, base: &Point, kept: Kept) -> Space {
    let mut threads: Vec<usize> = std::iter::successors(Some(1), |threads| Some(threads * 2))
        .take_while(|threads| *threads < cores)
        .collect();
    // Where samples wait for disks, more than there are cores.
    threads.extend([cores, 2 * cores, 4 * cores]);
    let sorted = |mut list: Vec<usize>, own: usize| {
        // What there is now has neighbours too.
        list.push(own);
        list.sort_unstable();
        list.dedup();
        list
    };
    let mut batch_sizes = options.batch_sizes.clone();
    batch_sizes.push(options.batch_size);
    batch_sizes.sort_unstable();
    batch_sizes.dedup();
    let with = |wanted: bool| if wanted { vec![false, true] } else { vec![false] };
    Space {
        threads: sorted(threads, base.threads),
        // With one alone, none is there while the next is made; a second takes the memory of a batch.
        prefetch: sorted(vec![2, 4, 8, 16], base.prefetch),
        batch_sizes,
        buckets: with(task == Task::Npy || (task == Task::Whisper && options.pad_longest)),
        half: with(options.half && task != Task::Text),
        cache: with(kept != Kept::Off),
    }
}

/// What is kept where a cache is tried: what `auto` would choose, which takes a few samples. Nothing where it would keep nothing, or
/// keep it in memory, which is gone with each run.
fn level(setup: &Setup, progress: &ProgressBar) -> miette::Result<Kept> {
    let report = setup.build()?.report();
    let Some(cache) = report.cache else { return Ok(Kept::Off) };
    let level = match cache.level {
        Level::Raw => Kept::Raw,
        Level::Decoded => Kept::Decoded,
        Level::Features => Kept::Features,
        Level::Off | Level::Ram => Kept::Off,
    };
    let why = cache.why.unwrap_or_default();
    let not = if level == Kept::Off { "; no cache is tried" } else { "" };
    progress.suspend(|| eprintln!("cache     {why}{not}"));
    Ok(level)
}

fn setup(options: &Options, task: Task, point: &Point, kept: Kept, scratch: &Path) -> Setup {
    let cache = if point.cache { kept } else { Kept::Off };
    Setup {
        task,
        data: options.data().to_owned(),
        tokenizer: options.tokenizer.clone(),
        batch_size: point.batch_size,
        threads: point.threads,
        prefetch: point.prefetch,
        half: point.half,
        pad_to_longest: options.pad_longest,
        chunk: false,
        buckets: point.buckets,
        seed: 7,
        plain: None,
        step_nanos: (options.step_ms * 1e6) as u64,
        step_rows: options.batch_size,
        caching: Caching { cache, cache_dir: Some(scratch.join("cache")), ..Caching::default() },
        bad_ceiling: options.bad_ceiling,
    }
}

fn words(point: &Point, kept: Kept) -> String {
    let Point { threads, prefetch, batch_size, buckets, half, cache } = point;
    let plural = if *threads == 1 { "" } else { "s" };
    let mut words = format!("{threads} thread{plural}, {prefetch} ahead, batch {batch_size}");
    for (on, word) in [(buckets, "buckets"), (half, "f16"), (cache, kept.name())] {
        if *on {
            words = format!("{words}, {word}");
        }
    }
    words
}

fn table(options: &Options, base: &Point, kept: Kept, found: &Found) -> String {
    let file = &options.write;
    let mut text = format!("{:<44}{:>12}{:>12}{:>6}\n", "SETTING", "predicted/s", "measured/s", "runs");
    for Row { point, predicted, measured, runs, long_runs, .. } in &found.rows {
        let number = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"));
        let mut mark = if *long_runs > 0 { format!("  {long_runs} long") } else { String::new() };
        if *point == found.best {
            mark += "  best";
        }
        if point == base && options.as_it_is {
            mark += "  as it is";
        }
        let (predicted, measured) = (number(*predicted), number(*measured));
        let _ = writeln!(text, "{:<44}{predicted:>12}{measured:>12}{runs:>6}{mark}", words(point, kept));
    }
    let _ =
        writeln!(text, "\n{} settings, {} of them tried; samples a second", found.settings, found.rows.len());
    let long = found.rows.iter().any(|row| row.long_runs > 0);
    let whose = if long { " of those with most long runs" } else { "" };
    let _ = writeln!(text, "The plainest that is within 2 % of the fastest{whose} is in {}.", file.display());
    let rate = |wanted: &dyn Fn(&&Row) -> bool| {
        found.rows.iter().filter(wanted).filter_map(|row| row.measured).fold(0.0, f64::max)
    };
    let chosen = rate(&|row| row.point == found.best);
    if options.step_ms >= LEAST_STEP_MS {
        let most = options.batch_size as f64 * 1e3 / options.step_ms;
        let fed = |rate: f64| (100.0 * rate / most).min(100.0);
        let (now, before) = (fed(chosen), fed(rate(&|row| row.point == *base)));
        let _ = writeln!(text, "With it, {} is busy {now:.0} % of the time.", accelerator(options));
        if before >= KEEPS_UP && now >= KEEPS_UP {
            let base =
                if found.best == *base { String::new() } else { format!(" with {}, too", words(base, kept)) };
            let _ = writeln!(text, "The input keeps up{base}: no setting of it makes steps shorter.");
        }
    }
    if rate(&|_| true) > DRIFTED * chosen {
        let _ = writeln!(
            text,
            "warning: others were much faster in runs at another time, so the machine's pace has changed: run it again when it is idle"
        );
    }
    let _ = writeln!(
        text,
        "`train` keeps to its threads and prefetch; with --threads auto --prefetch auto it finds them out as it runs."
    );
    if let Some(batch) = of_pipelines(&found.best) {
        let _ = writeln!(text, "`train` has no flag for all of it; in a pipeline of your own: {batch}");
    }
    if let Some(config) = options.config() {
        let _ = writeln!(
            text,
            "hint: what `{}` itself says of these counts more where `train --config` names it",
            config.display()
        );
    }
    if file.file_name().is_none_or(|name| name != FILE) {
        let _ = writeln!(
            text,
            "hint: commands read {FILE} where they are started; this one, `feedwater train … --config {}`",
            file.display()
        );
    }
    text
}

/// What recipes of `train` decide themselves, as a pipeline in Python says it.
fn of_pipelines(point: &Point) -> Option<String> {
    let half = if point.half { ", dtype=\"float16\"" } else { "" };
    let buckets = if point.buckets { format!(", buckets={BUCKET_STEPS}") } else { String::new() };
    (point.half || point.buckets).then(|| format!(".batch({}{half}{buckets})", point.batch_size))
}

/// The file: flags by their names, and in sections those that only one command has.
fn settings(options: &Options, point: &Point, kept: Kept) -> String {
    let Point { threads, prefetch, batch_size, buckets, half, cache } = point;
    let mut text = format!(
        "{BY_TUNE} {}`: train, profile and cache build read it here. A flag counts more.\n\
         # It was looked for with {}.\n\
         # Without these two, `train` finds them out while it runs.\n\
         threads = {threads}\nprefetch = {prefetch}\n",
        options.data().display(),
        accelerator(options)
    );
    if *cache {
        let _ = writeln!(text, "cache = \"{}\"", kept.name());
    }
    let _ = write!(text, "\n[train]\nbatch-size = {batch_size}\n\n[profile]\nbatch-size = {batch_size}\n");
    for (on, flag) in [(*buckets, "buckets"), (*half, "half"), (options.pad_longest, "pad-longest")] {
        if on {
            let _ = writeln!(text, "{flag} = true");
        }
    }
    if options.pad_longest {
        // What is built is what `profile` looks for.
        text += "\n[cache]\npad-longest = true\n";
    }
    let check = checked(&text);
    text + &format!("{CHECK}{check}\n")
}

/// What was to be fed, in words.
fn accelerator(options: &Options) -> String {
    if options.step_ms > 0.0 {
        format!("an accelerator that is busy for {} ms with {} samples", options.step_ms, options.batch_size)
    } else {
        "no accelerator to wait for".to_owned()
    }
}

/// What tells a file as it was written from one in which somebody changed something.
fn checked(text: &str) -> String {
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes()))
}

/// Whether `tune` wrote it, and nobody has touched it since.
fn is_by_tune(text: &str) -> bool {
    text.starts_with(BY_TUNE)
        && text.rsplit_once(CHECK).is_some_and(|(text, check)| check.trim_end() == checked(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_train_does_not_take_is_said_for_a_pipeline() {
        let point =
            Point { threads: 2, prefetch: 4, batch_size: 32, buckets: false, half: false, cache: true };
        assert_eq!(of_pipelines(&point), None);
        let half = Point { half: true, ..point };
        assert_eq!(of_pipelines(&half).as_deref(), Some(".batch(32, dtype=\"float16\")"));
        let buckets = Point { buckets: true, ..point };
        assert_eq!(of_pipelines(&buckets).as_deref(), Some(".batch(32, buckets=50)"));
    }
}
