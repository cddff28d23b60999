//! What is wrong with a dataset, how bad is it, and what helps?
//!
//! An error costs samples, or spoils them; a note is what one should know. The ids are stable: scripts look for them.

use serde::Serialize;

use super::look::Content;
use super::tally::{Cases, Example, MOST_EXAMPLES, Tally, Values, shape_text};

/// What is wrong, in the order in which it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Id {
    Unreadable,
    DuplicateKeys,
    MetadataElsewhere,
    MissingText,
    EmptyText,
    MissingLabel,
    #[serde(rename = "over-30s-without-times")]
    Over30sWithoutTimes,
    #[serde(rename = "over-30s")]
    Over30s,
    MixedShapes,
    MixedFormats,
    MixedRates,
    MixedChannels,
}

impl Id {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::DuplicateKeys => "duplicate-keys",
            Self::MetadataElsewhere => "metadata-elsewhere",
            Self::MissingText => "missing-text",
            Self::EmptyText => "empty-text",
            Self::MissingLabel => "missing-label",
            Self::Over30sWithoutTimes => "over-30s-without-times",
            Self::Over30s => "over-30s",
            Self::MixedShapes => "mixed-shapes",
            Self::MixedFormats => "mixed-formats",
            Self::MixedRates => "mixed-rates",
            Self::MixedChannels => "mixed-channels",
        }
    }

    /// Whether it is about values that differ.
    pub(crate) fn is_mixed(self) -> bool {
        matches!(self, Self::MixedShapes | Self::MixedFormats | Self::MixedRates | Self::MixedChannels)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    Error,
    Note,
}

/// Something that is wrong.
#[derive(Debug, Serialize)]
pub(crate) struct Problem {
    pub(crate) id: Id,
    pub(crate) severity: Severity,
    /// How many samples have it. Where values are mixed: how many do not have the most frequent one.
    pub(crate) count: u64,
    /// What it is, in a sentence.
    pub(crate) what: String,
    pub(crate) examples: Vec<Example>,
    pub(crate) hint: String,
}

/// Judges the sums. Errors come first.
pub(crate) fn judge(tally: &mut Tally, content: Content) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (id, cases) in std::mem::take(&mut tally.cases) {
        if let Some((severity, what, hint)) = sentence(id, cases.count, tally, content) {
            let Cases { count, examples } = cases;
            let hint = if id == Id::Unreadable { repair(&examples) } else { hint };
            // Where no sample at all has a text or a label, a list of them says nothing.
            let none_at_all = severity == Severity::Note && matches!(id, Id::MissingText | Id::MissingLabel);
            let examples = if none_at_all { Vec::new() } else { examples };
            problems.push(Problem { id, severity, count, what, examples, hint: hint.to_owned() });
        }
    }
    problems.extend(mixed(
        Id::MixedShapes,
        Severity::Error,
        &tally.shapes,
        |shape| shape_text(shape),
        "arrays differ behind their first axis",
        "a batch pads the first axis only, so they cannot travel together: bring them to one shape, or keep \
         them in folders of their own",
    ));
    problems.extend(mixed_formats(tally));
    problems.extend(mixed(
        Id::MixedRates,
        Severity::Note,
        &tally.rates,
        |rate| format!("{rate} Hz"),
        "sample rates differ",
        "nothing has to be done: decoding brings all to one rate; files that have it already are read faster",
    ));
    problems.extend(mixed(
        Id::MixedChannels,
        Severity::Note,
        &tally.channels,
        |channels| channels_text(*channels),
        "numbers of channels differ",
        "nothing has to be done: decoding makes one channel of all",
    ));
    problems.sort_by_key(|problem| (problem.severity, problem.id));
    problems
}

fn mixed_formats(tally: &Tally) -> Option<Problem> {
    // Of different containers all are decoded alike; sound among arrays is refused.
    let (severity, hint) = if tally.contents.0.len() > 1 {
        (
            Severity::Error,
            "a pipeline decodes sound or arrays or text, not a mixture: keep them in folders of their own",
        )
    } else {
        (Severity::Note, "nothing has to be done: a file's format is found by its bytes")
    };
    mixed(Id::MixedFormats, severity, &tally.formats, |format| (*format).to_owned(), "formats differ", hint)
}

pub(crate) fn channels_text(channels: u16) -> String {
    match channels {
        1 => "mono".to_owned(),
        2 => "stereo".to_owned(),
        many => format!("{many} channels"),
    }
}

fn mixed<T: Ord>(
    id: Id,
    severity: Severity,
    values: &Values<T>,
    name: impl Fn(&T) -> String,
    what: &str,
    hint: &str,
) -> Option<Problem> {
    const MOST_NAMED: usize = 6;
    if values.0.len() < 2 {
        return None;
    }
    let mut sorted: Vec<_> = values.0.iter().collect();
    sorted.sort_by_key(|(_, (count, example))| (std::cmp::Reverse(*count), example.index));
    let count = sorted[1..].iter().map(|(_, (count, _))| count).sum();
    let named: Vec<_> =
        sorted.iter().take(MOST_NAMED).map(|(value, (n, _))| format!("{} ({n})", name(value))).collect();
    let more = sorted.len().saturating_sub(MOST_NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    // One of each that is not the most frequent.
    let others = sorted[1..].iter().take(MOST_EXAMPLES);
    let examples = others.map(|(_, (_, example))| example.clone()).collect();
    let what = format!("{what}: {}{more}", named.join(", "));
    Some(Problem { id, severity, count, what, examples, hint: hint.to_owned() })
}

/// What helps against samples that cannot be read: in the metadata it is a line that is wrong, elsewhere a file.
fn repair(examples: &[Example]) -> &'static str {
    let lines = examples.iter().filter(|example| is_line(example)).count();
    if lines == 0 {
        "put whole files in their place or take them out; a run leaves them out and lists them in `quarantine.jsonl`"
    } else if lines == examples.len() {
        "put the lines right or take them out; a run leaves them out and lists them in `quarantine.jsonl`"
    } else {
        "put the lines right and whole files in place of the others, or take them out; a run leaves them out and lists \
         them in `quarantine.jsonl`"
    }
}

fn is_line(example: &Example) -> bool {
    example.place.as_ref().is_some_and(|place| place.starts_with("line "))
}

/// What a run makes of so many bad samples: its usual policy goes on up to 1 %, rounded up to whole samples.
fn ceiling(count: u64, share: f64, looked_at: u64, samples: u64) -> String {
    let allowed = samples.div_ceil(100);
    let plural = if allowed == 1 { "" } else { "s" };
    if count == looked_at && looked_at == samples {
        "; a run ends with an error".to_owned()
    } else if (share * samples as f64).round() as u64 > allowed {
        format!("; a run stops above {allowed} sample{plural}, 1 % rounded up")
    } else {
        String::new()
    }
}

/// How bad it is, what it is and what helps; nothing where it is no problem in this dataset.
fn sentence(id: Id, count: u64, tally: &Tally, content: Content) -> Option<(Severity, String, &'static str)> {
    let looked_at = tally.looked_at;
    let (have, are) = if count == 1 { ("has", "is") } else { ("have", "are") };
    let of = format!("{count} of {looked_at} samples");
    Some(match id {
        Id::Unreadable => {
            let share = count as f64 / looked_at as f64;
            let ceiling = ceiling(count, share, looked_at, tally.samples);
            (Severity::Error, format!("{of} cannot be read ({:.2} %{ceiling})", share * 100.0), "")
        }
        Id::DuplicateKeys => (
            Severity::Error,
            format!("{of} {have} the key of another"),
            "a key names one sample: take the second mention out of the metadata, or rename one of the files",
        ),
        Id::MissingText if tally.with_text > 0 || content == Content::Text => (
            Severity::Error,
            format!("{of} {have} no text"),
            "give them a `text`, or take them out: they cannot be tokenized",
        ),
        Id::MissingText if content == Content::Sound && tally.with_label == 0 => (
            Severity::Note,
            "no sample has a text or a label".to_owned(),
            "to train on transcripts, put `metadata.jsonl` beside the files, with a line such as \
             {\"file_name\":\"a.wav\",\"text\":\"hello\"} for each",
        ),
        Id::EmptyText if content == Content::Text => (
            Severity::Note,
            format!("{of} {have} an empty text"),
            "nothing can be learnt from them: take them out",
        ),
        Id::EmptyText => (
            Severity::Note,
            format!("{of} {have} an empty text"),
            "right for clips in which nothing is said; complete the metadata of all others",
        ),
        Id::MissingLabel if tally.with_label > 0 => {
            (Severity::Error, format!("{of} {have} no label"), "give them a `label`, or take them out")
        }
        Id::MissingLabel if content == Content::Arrays && tally.with_text == 0 => (
            Severity::Note,
            "no sample has a label".to_owned(),
            "to train a classifier, put the files into a folder for each class, or write `labels.csv` with the \
             columns file,label",
        ),
        Id::Over30sWithoutTimes => (
            Severity::Error,
            format!("{of} {are} longer than 30 s, and nothing says which words fall where"),
            "put `words` or `segments` with start and end into the metadata, or choose what \
             `Chunk` does: `WithoutTimes::Drop` leaves such clips out, `Truncate` keeps their first 30 s, \
             `NoText` keeps all of them without text",
        ),
        Id::Over30s => (
            Severity::Note,
            format!("{of} {are} longer than 30 s and can be cut (word times, or no text)"),
            "`.chunk(Chunk::new())` cuts them; without it Whisper's features end at 30 s",
        ),
        _ => return None,
    })
}
