//! What is told about a dataset? One object: `--json` prints it as it is, [`super::text`] writes it out.

use std::path::Path;
use std::time::Duration;

use feedwater::source::{Kind, Source};
use serde::Serialize;

use super::elsewhere::Elsewhere;
use super::lengths::Lengths;
use super::look::Content;
use super::problems::{Problem, Severity, judge};
use super::scan::{Plan, scan};
use super::tally::Values;
use crate::shell;

/// The answer. Fields may be added; those that are there keep their names and meanings as long as `version` is 1.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) version: u32,
    pub(crate) path: String,
    pub(crate) kind: Kind,
    /// The kind in words.
    pub(crate) title: &'static str,
    /// What most samples are made of; `None` where none could be read.
    pub(crate) content: Option<Content>,
    pub(crate) samples: u64,
    /// Fewer than `samples` with `--limit`; then everything below is said of these.
    pub(crate) looked_at: u64,
    /// Whether the files were decoded, not only their headers read.
    pub(crate) decoded: bool,
    /// For sound. With `--limit`, estimated for all samples.
    pub(crate) hours: Option<f64>,
    pub(crate) lengths: Option<Lengths>,
    pub(crate) with_text: u64,
    pub(crate) with_times: u64,
    pub(crate) with_label: u64,
    pub(crate) formats: Vec<Counted<&'static str>>,
    pub(crate) rates: Vec<Counted<u32>>,
    pub(crate) channels: Vec<Counted<u16>>,
    /// The axes of arrays behind the first.
    pub(crate) shapes: Vec<Counted<Vec<usize>>>,
    pub(crate) classes: Vec<Counted<String>>,
    pub(crate) problems: Vec<Problem>,
    /// A command to go on with.
    pub(crate) next: String,
    /// How long it took. Not a fact about the dataset, so it is no part of the object.
    #[serde(skip)]
    pub(crate) took: Duration,
}

/// A value, and how many samples have it.
#[derive(Debug, Serialize)]
pub(crate) struct Counted<T> {
    pub(crate) value: T,
    pub(crate) count: u64,
}

impl Report {
    /// Looks at a dataset.
    pub(crate) fn of(path: &Path, source: &dyn Source, plan: Plan) -> Self {
        let begin = std::time::Instant::now();
        let mut tally = scan(source, plan);
        let count = |content: &Content| tally.lengths.get(content).map_or(0, Vec::len);
        // The first of those that are as frequent.
        let content = Content::ALL.into_iter().filter(|c| count(c) > 0).rev().max_by_key(count);
        // Where nothing could be read, the kind says what was expected.
        let expected = if source.kind() == Kind::Text { Content::Text } else { Content::Sound };
        let mut problems = judge(&mut tally, content.unwrap_or(expected));
        let elsewhere = Elsewhere::find(path, source.kind());
        if let Some(elsewhere) = &elsewhere {
            elsewhere.tell(source.len(), &mut problems);
        }
        let lengths = content.and_then(|c| Lengths::of(c, tally.lengths.remove(&c)?));
        let scale = source.len() as f64 / tally.looked_at as f64;
        let sound = lengths.as_ref().filter(|_| content == Some(Content::Sound));
        let limited = tally.looked_at < source.len();
        Self {
            version: 1,
            path: path.display().to_string(),
            kind: source.kind(),
            title: source.kind().title(),
            content,
            samples: source.len(),
            looked_at: tally.looked_at,
            decoded: plan.decode,
            hours: sound.map(|lengths| (lengths.total * scale / 3600.0 * 1e6).round() / 1e6),
            lengths,
            with_text: tally.with_text,
            with_times: tally.with_times,
            with_label: tally.with_label,
            formats: counted(tally.formats),
            rates: counted(tally.rates),
            channels: counted(tally.channels),
            shapes: counted(tally.shapes),
            classes: classes(source.classes(), &tally.labels),
            next: elsewhere.map_or_else(
                || next(path, &problems, content, limited, plan.decode),
                |elsewhere| elsewhere.command(),
            ),
            problems,
            took: begin.elapsed(),
        }
    }

    /// Whether something costs samples.
    pub(crate) fn has_errors(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }
}

/// The most frequent first.
fn counted<T: Ord>(values: Values<T>) -> Vec<Counted<T>> {
    let mut all: Vec<_> = values.0.into_iter().map(|(value, (count, _))| Counted { value, count }).collect();
    all.sort_by_key(|counted| std::cmp::Reverse(counted.count));
    all
}

/// The classes by name, or by number where they have no names and are counted from 0; else the labels are no classes.
fn classes(names: &[String], labels: &std::collections::BTreeMap<u64, u64>) -> Vec<Counted<String>> {
    const MOST_NUMBERS: f64 = 10_000.0;
    if !names.is_empty() {
        let count = |class: usize| labels.get(&(class as f64).to_bits()).copied().unwrap_or(0);
        let all = names.iter().enumerate();
        return all.map(|(class, name)| Counted { value: name.clone(), count: count(class) }).collect();
    }
    let numbers: Vec<(f64, u64)> =
        labels.iter().map(|(bits, count)| (f64::from_bits(*bits), *count)).collect();
    if !numbers.iter().all(|(label, _)| label.fract() == 0.0 && (0.0..MOST_NUMBERS).contains(label)) {
        return Vec::new();
    }
    numbers.into_iter().map(|(label, count)| Counted { value: format!("{label}"), count }).collect()
}

/// A command to go on with: see all of it, put it right and look again, then use it.
fn next(path: &Path, problems: &[Problem], content: Option<Content>, limited: bool, decoded: bool) -> String {
    let path = shell::word(&path.to_string_lossy());
    let errors = problems.iter().any(|problem| problem.severity == Severity::Error);
    let decode = if decoded { " --decode" } else { "" };
    match content {
        _ if limited => format!("feedwater inspect {path}{decode}"),
        // What is behind the headers may be wrong, too: it is better known before anything is repaired.
        None | Some(Content::Sound | Content::Arrays) if errors => {
            format!("feedwater inspect {path} --decode")
        }
        _ if errors => format!("feedwater inspect {path}"),
        Some(Content::Sound) => format!("cargo run --release --example batches -- {path}"),
        Some(Content::Arrays) if !decoded => format!("feedwater inspect {path} --decode"),
        _ => format!("feedwater profile {path}"),
    }
}
