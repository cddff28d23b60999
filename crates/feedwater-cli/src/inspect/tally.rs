//! What do the samples add up to?
//!
//! Each thread has a tally of its own, and they are merged at the end. What a tally holds does not depend on who looked
//! at which sample: counts are sums, and examples are those with the lowest index.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use feedwater::Fault;
use feedwater::error::Place;
use feedwater::source::Source;
use serde::Serialize;

use super::look::{Content, Look};
use super::problems::{Id, channels_text};

/// Enough to repair a dataset by, and no danger to memory where every sample is bad.
pub(crate) const MOST_EXAMPLES: usize = 1000;

/// What Whisper hears at a time. A hundredth of a second more is rounding, as it is for `Chunk`.
const LONG_SECONDS: f64 = 30.01;

/// A sample that a problem is about.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Example {
    #[serde(skip)]
    pub(crate) index: u64,
    pub(crate) key: String,
    pub(crate) file: Option<String>,
    /// Where in the file: `byte 44`, `line 3`, a member, a row.
    pub(crate) place: Option<String>,
    pub(crate) reason: String,
}

impl Example {
    fn of_fault(index: u64, key: String, fault: Fault) -> Self {
        let place = match fault.place {
            Place::Whole => None,
            Place::Byte(offset) => Some(format!("byte {offset}")),
            Place::Line(line) => Some(format!("line {line}")),
            Place::Member(name) => Some(format!("member `{name}`")),
            Place::Row(row) => Some(format!("row {row}")),
        };
        let file = fault.path.map(|path| path.display().to_string());
        Self { index, key, file, place, reason: fault.reason }
    }

    fn of_look(index: u64, look: &Look, reason: impl Into<String>) -> Self {
        let file = look.file.as_ref().map(|path| path.display().to_string());
        Self { index, key: look.key.clone(), file, place: None, reason: reason.into() }
    }
}

/// The samples that have one problem.
#[derive(Debug, Default)]
pub(crate) struct Cases {
    pub(crate) count: u64,
    pub(crate) examples: Vec<Example>,
}

impl Cases {
    fn add(&mut self, example: impl FnOnce() -> Example) {
        self.count += 1;
        if self.examples.len() < MOST_EXAMPLES {
            self.examples.push(example());
        }
    }

    fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.examples.extend(other.examples);
        self.examples.sort_by_key(|example| example.index);
        self.examples.truncate(MOST_EXAMPLES);
    }
}

/// The different values that something has, how often, and where each is first seen.
#[derive(Debug)]
pub(crate) struct Values<T>(pub(crate) BTreeMap<T, (u64, Example)>);

impl<T> Default for Values<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord> Values<T> {
    fn add(&mut self, value: T, example: impl FnOnce() -> Example) {
        self.0.entry(value).or_insert_with(|| (0, example())).0 += 1;
    }

    fn merge(&mut self, other: Self) {
        for (value, (count, example)) in other.0 {
            let (sum, first) = self.0.entry(value).or_insert_with(|| (0, example.clone()));
            *sum += count;
            if example.index < first.index {
                *first = example;
            }
        }
    }
}

/// The sums.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// How many there are.
    pub(crate) samples: u64,
    pub(crate) looked_at: u64,
    pub(crate) lengths: BTreeMap<Content, Vec<f64>>,
    pub(crate) cases: BTreeMap<Id, Cases>,
    pub(crate) contents: Values<Content>,
    pub(crate) formats: Values<&'static str>,
    pub(crate) rates: Values<u32>,
    pub(crate) channels: Values<u16>,
    pub(crate) shapes: Values<Vec<usize>>,
    pub(crate) with_text: u64,
    pub(crate) with_times: u64,
    pub(crate) with_label: u64,
    /// How many samples have a label, by the bits of the number.
    pub(crate) labels: BTreeMap<u64, u64>,
    /// Hashes of the keys and the samples' numbers. Two keys of a million share one by accident once in 30 million
    /// datasets.
    keys: Vec<(u64, u64)>,
}

impl Tally {
    /// A sample that could be looked at.
    pub(crate) fn add(&mut self, index: u64, look: &Look) {
        self.count_key(index, &look.key);
        self.lengths.entry(look.content).or_default().push(look.length);
        let first = |reason: String| move || Example::of_look(index, look, reason);
        self.contents.add(look.content, first(look.format.to_owned()));
        self.formats.add(look.format, first(look.format.to_owned()));
        if let Some((rate, channels)) = look.sound {
            self.rates.add(rate, first(format!("{rate} Hz")));
            self.channels.add(channels, first(channels_text(channels)));
        }
        if let Some(shape) = &look.shape {
            self.shapes.add(shape.clone(), first(format!("shape {}", shape_text(shape))));
        }
        self.with_text += u64::from(look.text.is_some());
        self.with_times += u64::from(look.timed);
        self.with_label += u64::from(look.label.is_some());
        match look.text {
            None => self.case(Id::MissingText, first("there is no text".to_owned())),
            Some(false) => self.case(Id::EmptyText, first("the text is empty".to_owned())),
            Some(true) => {}
        }
        match look.label {
            None => self.case(Id::MissingLabel, first("there is no label".to_owned())),
            Some(label) => *self.labels.entry(label.to_bits()).or_default() += 1,
        }
        if look.content == Content::Sound && look.length > LONG_SECONDS {
            // A clip without text can be cut anywhere.
            let can_be_cut = look.timed || look.text != Some(true);
            let id = if can_be_cut { Id::Over30s } else { Id::Over30sWithoutTimes };
            self.case(id, first(format!("{:.1} s", look.length)));
        }
    }

    /// A sample that is refused.
    pub(crate) fn add_fault(&mut self, index: u64, key: String, fault: Fault) {
        self.count_key(index, &key);
        let id = id_of(&fault);
        self.case(id, || Example::of_fault(index, key, fault));
    }

    fn count_key(&mut self, index: u64, key: &str) {
        self.looked_at += 1;
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        self.keys.push((hash, index));
    }

    fn case(&mut self, id: Id, example: impl FnOnce() -> Example) {
        self.cases.entry(id).or_default().add(example);
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.looked_at += other.looked_at;
        for (content, lengths) in other.lengths {
            self.lengths.entry(content).or_default().extend(lengths);
        }
        for (id, cases) in other.cases {
            self.cases.entry(id).or_default().merge(cases);
        }
        self.contents.merge(other.contents);
        self.formats.merge(other.formats);
        self.rates.merge(other.rates);
        self.channels.merge(other.channels);
        self.shapes.merge(other.shapes);
        self.with_text += other.with_text;
        self.with_times += other.with_times;
        self.with_label += other.with_label;
        for (label, count) in other.labels {
            *self.labels.entry(label).or_default() += count;
        }
        self.keys.extend(other.keys);
    }

    /// Finds the keys that more than one sample has, once all are there.
    pub(crate) fn find_duplicates(&mut self, source: &dyn Source) {
        let mut keys = std::mem::take(&mut self.keys);
        keys.sort_unstable();
        let mut twice: Vec<(u64, u64)> = Vec::new();
        for same in keys.chunk_by(|a, b| a.0 == b.0) {
            twice.extend(same[1..].iter().map(|(_, index)| (*index, same[0].1)));
        }
        twice.sort_unstable();
        for (index, first) in twice {
            let reason = format!("the same key as sample {first}, counted from 0");
            self.case(Id::DuplicateKeys, || Example {
                index,
                key: source.key(index),
                reason,
                ..Example::default()
            });
        }
    }
}

/// What a source means by refusing a sample. A fault has no kind, so these are known by what they say.
fn id_of(fault: &Fault) -> Id {
    if fault.reason == "the row has no text" || fault.reason == "the text is missing or is not a string" {
        Id::MissingText
    } else if fault.reason.contains("stands in the shards twice") {
        Id::DuplicateKeys
    } else {
        Id::Unreadable
    }
}

/// The shape of an array whose first axis is any length.
pub(crate) fn shape_text(rest: &[usize]) -> String {
    let axes: Vec<String> =
        std::iter::once("*".to_owned()).chain(rest.iter().map(usize::to_string)).collect();
    format!("[{}]", axes.join(", "))
}
