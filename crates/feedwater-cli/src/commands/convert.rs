//! `feedwater convert`: many small files into a few large ones, and what that brings.

use std::{
    collections::HashSet,
    fs,
    io::{IsTerminal, Write as _},
    path::{Path, PathBuf},
    time::Instant,
};

use feedwater::{
    Value,
    convert::{self, Converted, Form, shards_in},
    source::{self, Source},
};
use indicatif::{ProgressBar, ProgressStyle};
use miette::{IntoDiagnostic, WrapErr, miette};
use serde::Serialize;
use serde_json::json;

use super::report::print;
use crate::{
    caching::size,
    generate::{human_bytes, space},
    profile::cold,
};

const EXAMPLES: &str = "\
Examples:
  feedwater convert data/features --out data/shards
  feedwater convert data/speech --out data/tar --to tar --shard-size 1GB
  feedwater convert corpus.jsonl --out data/corpus --json

Whatever can be opened can be converted: folders of .npy, WAV or other sound with
their labels and transcripts, manifests, JSON lines, HDF5, TFRecord, Parquet; but
not windows that a manifest cuts out of recordings, nor token ids to tar. Sound and
arrays stay the bytes they were. `tar` is WebDataset's form, which other
programs read too; `shard` is ours: every sample is checked when it is read, and
lengths and the names of classes are kept.

Before and after, all samples are read in random order: from the disk where the
system can be asked to forget the files (Linux), then from memory.

Exit codes:
  0  all samples are in the shards
  1  some could not be read: they are listed in OUT/quarantine.jsonl
  2  the data cannot be read or written, or the command line is wrong";

/// What to convert.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// A folder, a manifest, a table, text or shards
    data: PathBuf,
    /// The folder that the shards go to
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// What the data become
    #[arg(long, value_enum, default_value_t = To::Shard)]
    to: To,
    /// About how large a shard is
    #[arg(long, value_name = "SIZE", default_value = "256MB", value_parser = size)]
    shard_size: u64,
    /// Write into a folder that has shards already, in their place
    #[arg(long)]
    force: bool,
    /// Do not read before and after
    #[arg(long)]
    no_figures: bool,
    /// Print one JSON object: {version, data, out, samples, files, bytes, bad, before, after}
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum To {
    /// Shards of ours, checked on every read
    Shard,
    /// `WebDataset` tar shards
    Tar,
}

/// What reading a dataset takes.
#[derive(Debug, Clone, Copy, Serialize)]
struct Figures {
    files: u64,
    /// From a path to the first sample.
    open_seconds: f64,
    /// All samples, from the disk; nothing where the system cannot be asked to forget them.
    cold_seconds: Option<f64>,
    /// All samples, from memory.
    warm_seconds: f64,
    samples: u64,
}

/// A smaller difference than this is none.
const FASTER: f64 = 1.05;

impl Figures {
    /// Whether samples come faster than from the other, from the disk or from memory.
    fn is_faster_than(&self, other: &Self) -> bool {
        let each = |of: &Self, seconds: f64| seconds / of.samples.max(1) as f64;
        let faster = |own: f64, others: f64| each(self, own) * FASTER < each(other, others);
        faster(self.warm_seconds, other.warm_seconds)
            || self.cold_seconds.zip(other.cold_seconds).is_some_and(|(own, others)| faster(own, others))
    }
}

pub(crate) fn run(options: &Options) -> miette::Result<u8> {
    let form = if options.to == To::Tar { Form::Tar } else { Form::Shard };
    let source = source::open(&options.data).map_err(|error| miette!("{error}"))?;
    prepare(options, lies_in(&options.data, &*source).1)?;
    let bar = progress(source.len(), options.json);
    let before =
        (!options.no_figures).then(|| figures(&options.data, &bar, "reading what is there")).transpose()?;
    bar.set_message("writing shards");
    let done = convert::convert(&*source, &options.out, form, options.shard_size, |done| {
        bar.set_position(done);
        true
    });
    let converted = done.map_err(|error| miette!("{error}"))?;
    if converted.samples == 0 {
        let (key, why) = converted.bad.first().cloned().unwrap_or_default();
        return Err(miette!("no sample could be read; the first was `{key}`: {why}"));
    }
    tidy(&options.out, &converted)?;
    quarantine(&options.out, &converted.bad)?;
    let after =
        (!options.no_figures).then(|| figures(&options.out, &bar, "reading the shards")).transpose()?;
    bar.finish_and_clear();
    let Converted { samples, files, bytes, bad } = &converted;
    if options.json {
        let object = json!({
            "version": 1, "data": options.data, "out": options.out, "samples": samples, "files": files,
            "bytes": bytes, "bad": bad, "before": before, "after": after,
        });
        print(&object.to_string())?;
    } else {
        print(&told(options, &converted, before.as_ref().zip(after.as_ref())))?;
    }
    Ok(u8::from(!bad.is_empty()))
}

/// Makes sure that nothing is overwritten, and that there is room.
fn prepare(options: &Options, bytes: u64) -> miette::Result<()> {
    let there = shards_in(&options.out);
    // A pattern is no path; what it lies in is.
    let real = |path: &Path| path.canonicalize().or_else(|_| path.parent().unwrap_or(path).canonicalize());
    if let (Ok(data), Ok(out)) = (real(&options.data), options.out.canonicalize())
        && (data.starts_with(&out) || out.starts_with(&data))
    {
        return Err(among());
    }
    // One that is not there yet may be going to lie there as well.
    if let (Ok(data), Ok(out)) = (std::path::absolute(&options.data), std::path::absolute(&options.out))
        && out.starts_with(&data)
    {
        return Err(among());
    }
    if !there.is_empty() && !options.force {
        return Err(miette!(
            help = "--force replaces them; or choose another --out",
            "`{}` has {} shard{} already",
            options.out.display(),
            there.len(),
            if there.len() == 1 { "" } else { "s" }
        ));
    }
    if let Some(name) = others_in(&options.out) {
        return Err(miette!(
            help = "choose an --out of its own",
            "`{}` has other files, such as `{name}`: whoever opens it may find these and not the shards",
            options.out.display()
        ));
    }
    space::check(&options.out, bytes, || 0, "a part of the data")
}

/// The name of something in a folder that no conversion has put there.
fn others_in(folder: &Path) -> Option<String> {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let ours = |name: &str| {
        name.starts_with("shard-")
            || name.starts_with('.')
            || ["classes.json", "quarantine.jsonl"].contains(&name)
    };
    names.map(|name| name.to_string_lossy().into_owned()).find(|name| !ours(name))
}

fn among() -> miette::Report {
    miette!(
        help = "choose an --out beside the data",
        "the shards would lie among the files that they are made of"
    )
}

/// Takes away the list of what an earlier conversion could not read.
fn tidy(out: &Path, now: &Converted) -> miette::Result<()> {
    let stale = out.join("quarantine.jsonl");
    if now.bad.is_empty() && stale.exists() {
        fs::remove_file(&stale)
            .into_diagnostic()
            .wrap_err_with(|| format!("cannot take away `{}`", stale.display()))?;
    }
    Ok(())
}

/// The files that samples lie in, and their bytes.
fn lies_in(data: &Path, source: &dyn Source) -> (u64, u64) {
    let mut files = HashSet::new();
    for index in 0..source.len() {
        let Ok(sample) = source.sample(index) else { continue };
        files.extend(sample.fields().filter_map(|(_, value)| match value {
            Value::Media(media) => Some(media.path.clone()),
            _ => None,
        }));
    }
    if files.is_empty() {
        let bytes = |path: &Path| fs::metadata(path).map_or(0, |about| about.len());
        let inside = fs::read_dir(data).into_iter().flatten().flatten().map(|entry| entry.path());
        let inside: Vec<PathBuf> = inside.filter(|path| path.is_file()).collect();
        return if data.is_file() {
            (1, bytes(data))
        } else {
            (inside.len() as u64, inside.iter().map(|path| bytes(path)).sum())
        };
    }
    let bytes = files.iter().filter_map(|path| fs::metadata(path).ok()).map(|about| about.len()).sum();
    (files.len() as u64, bytes)
}

/// Reads every sample, in random order.
fn figures(data: &Path, bar: &ProgressBar, what: &'static str) -> miette::Result<Figures> {
    bar.set_message(what);
    let open = || source::open(data).map_err(|error| miette!("{error}"));
    let began = Instant::now();
    let source = open()?;
    let _ = source.sample(0);
    let open_seconds = began.elapsed().as_secs_f64();
    let (samples, mut bytes) = (source.len(), Vec::new());
    let mut order: Vec<u64> = (0..samples).collect();
    order.sort_by_key(|index| index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut through = || {
        let began = Instant::now();
        for (count, index) in order.iter().enumerate() {
            bar.set_position(count as u64);
            if let Ok(sample) = source.sample(*index) {
                for (_, value) in sample.fields() {
                    if let Value::Media(media) = value {
                        let _ = media.read(|input| feedwater::read::read_all(input, &mut bytes, 2 << 30));
                    }
                }
            }
        }
        began.elapsed().as_secs_f64()
    };
    let forgotten = cold::forget(data).is_ok_and(|files| files > 0);
    let cold_seconds = forgotten.then(&mut through);
    Ok(Figures {
        files: lies_in(data, &*source).0,
        open_seconds,
        cold_seconds,
        warm_seconds: through(),
        samples,
    })
}

fn quarantine(out: &Path, bad: &[(String, String)]) -> miette::Result<()> {
    if bad.is_empty() {
        return Ok(());
    }
    let path = out.join("quarantine.jsonl");
    let write = || -> std::io::Result<()> {
        let mut file = std::io::BufWriter::new(fs::File::create(&path)?);
        for (key, reason) in bad {
            writeln!(file, "{}", json!({"key": key, "stage": "read", "reason": reason}))?;
        }
        file.flush()
    };
    write().into_diagnostic().wrap_err_with(|| format!("cannot write `{}`", path.display()))
}

fn told(options: &Options, converted: &Converted, figures: Option<(&Figures, &Figures)>) -> String {
    let Converted { samples, files, bytes, bad } = converted;
    let mut lines = vec![format!(
        "{samples} samples in {} {} of {} in {}",
        files.len(),
        if files.len() == 1 { "shard" } else { "shards" },
        human_bytes(*bytes),
        options.out.display()
    )];
    if let Some((key, reason)) = bad.first() {
        lines.push(format!(
            "warning: {} could not be read and are in quarantine.jsonl there; the first was `{key}`: {reason}",
            bad.len()
        ));
    }
    if let Some((before, after)) = figures {
        let mut line = |name: &str, before: String, after: String| {
            lines.push(format!("{name:<28}{before:>14}{after:>14}"));
        };
        let millis = |seconds: f64| format!("{:.1} ms", 1e3 * seconds);
        let rate = |of: &Figures, seconds: f64| format!("{:.0}/s", of.samples as f64 / seconds.max(1e-9));
        line("", "before".to_owned(), "after".to_owned());
        line("files", before.files.to_string(), after.files.to_string());
        line("from a path to a sample", millis(before.open_seconds), millis(after.open_seconds));
        if let (Some(one), Some(two)) = (before.cold_seconds, after.cold_seconds) {
            line("samples from the disk", rate(before, one), rate(after, two));
        }
        line("samples from memory", rate(before, before.warm_seconds), rate(after, after.warm_seconds));
    }
    let out = crate::shell::word(&options.out.display().to_string());
    lines.push(match figures {
        Some((before, after)) if !after.is_faster_than(before) => {
            format!("Reading did not become faster here; it can be opened as any dataset all the same: {out}")
        }
        _ => format!("Train on it as on any dataset: {out}"),
    });
    lines.join("\n")
}

fn progress(samples: u64, json: bool) -> ProgressBar {
    let bar = if std::io::stderr().is_terminal() && !json {
        ProgressBar::new(samples)
    } else {
        ProgressBar::hidden()
    };
    if let Ok(style) = ProgressStyle::with_template("{msg:24} {bar:30} {pos}/{len} samples, {eta} left") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_praised_where_they_are_faster() {
        let figures = |cold_seconds, warm_seconds| Figures {
            files: 9,
            open_seconds: 0.1,
            cold_seconds,
            warm_seconds,
            samples: 100,
        };
        let before = figures(Some(2.0), 1.0);
        assert!(figures(Some(2.0), 0.5).is_faster_than(&before));
        assert!(figures(Some(1.0), 1.5).is_faster_than(&before), "from the disk is what a first epoch is");
        assert!(!figures(Some(2.0), 0.99).is_faster_than(&before), "that is no difference");
        assert!(!figures(None, 1.2).is_faster_than(&before));
        let fewer = Figures { samples: 50, ..figures(None, 0.9) };
        assert!(!fewer.is_faster_than(&before), "each of them takes longer");
    }
}
