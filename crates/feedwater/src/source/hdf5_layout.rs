//! Which samples are in an HDF5 file? People lay them out in three ways, told apart by names and shapes:
//!
//! - a dataset a sample: `/utt1` `[T, D]`, also in groups, with `label` and `text` as attributes;
//! - a group a sample: `/utt1/features`, with `label` and `text` beside it, or as attributes;
//! - a row a sample: `features` `[N, T, D]` or `[N, D]`, with `labels`, `lengths`, `keys` and `text` of `N` beside it; or
//!   `features` of `N` lists, with `shape` beside it.

use std::collections::HashSet;

use hdf5_reader::{Dataset, Datatype, Hdf5File, RawAttribute, VarLenKind, group::Group};

use super::{
    files::Names,
    hdf5_read::{Resolve, Values, attribute_values, is_text, isolated, number_type, possible_bytes, values},
    row::{LABEL_COLUMNS, Label, TEXT_COLUMNS},
    tfrecord_roles::ARRAYS,
};
use crate::error::{Fault, Place};

const MORE_LABELS: [&str; 5] = ["labels", "y", "Y", "targets", "classes"];
const MORE_TEXTS: [&str; 3] = ["texts", "transcripts", "transcriptions"];
const LENGTHS: [&str; 5] = ["lengths", "length", "num_frames", "frames", "input_lengths"];
const KEYS: [&str; 6] = ["keys", "key", "ids", "id", "names", "utt_ids"];
const SHAPES: [&str; 2] = ["shape", "shapes"];
/// Groups that are parts of a dataset, not samples.
const SPLITS: [&str; 8] = ["train", "valid", "val", "validation", "test", "dev", "eval", "data"];
/// Groups within groups.
const MOST_DEPTH: usize = 32;

/// Samples that are stored alike.
pub(super) enum Part {
    Ones(Ones),
    Rows(Rows),
}

/// Samples that are datasets.
#[derive(Default)]
pub(super) struct Ones {
    /// Where each is, without the first slash.
    pub(super) paths: Names,
    pub(super) like: Like,
}

/// What such samples have in common.
#[derive(Default, Clone, PartialEq, Eq)]
pub(super) struct Like {
    /// Whether each is in a group of its own, whose name is that of the sample.
    pub(super) grouped: bool,
    pub(super) text: Option<At>,
    /// The dataset beside it that has ids for labels.
    pub(super) ids: Option<String>,
}

/// Where something about a sample stands: an attribute of it or of its group, or a dataset beside it.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum At {
    Dataset(String),
    Group(String),
    Beside(String),
}

/// Samples that are rows of a dataset.
pub(super) struct Rows {
    /// The group that it is in, without the first slash.
    pub(super) group: String,
    pub(super) name: String,
    pub(super) count: u64,
    /// How many frames of each row there are.
    pub(super) lengths: Option<Vec<u64>>,
    pub(super) keys: Option<Names>,
    /// The dataset with the texts.
    pub(super) text: Option<String>,
    /// How the lists are laid out, where the rows are lists.
    pub(super) shapes: Option<Shapes>,
    /// How many rows are stored together, and their bytes.
    pub(super) chunk: Option<(u64, u64)>,
}

/// How lists are laid out.
pub(super) enum Shapes {
    /// As they come.
    Flat,
    /// In frames of so many numbers.
    Frames(usize),
    /// With so many lengths a row.
    Each { axes: usize, lengths: Vec<usize> },
}

/// What was found in a file.
#[derive(Default)]
pub(super) struct Found {
    pub(super) parts: Vec<Part>,
    /// Of each sample.
    pub(super) labels: Vec<Option<Label>>,
    /// Names of what is not a sample, for a message.
    pub(super) left: Vec<String>,
}

/// Looks through a file. A fault names the dataset or group.
pub(super) fn find(file: &Hdf5File) -> Result<Found, Fault> {
    let root = isolated(|| file.root_group())?;
    let mut walk = Walk { file, seen: HashSet::new(), found: Found::default() };
    walk.group(&root, "", 0)?;
    Ok(walk.found)
}

struct Walk<'a> {
    file: &'a Hdf5File,
    /// Groups that were there already: links may lead in circles.
    seen: HashSet<u64>,
    found: Found,
}

/// A group that is being looked at.
struct Here<'a> {
    group: &'a Group,
    path: &'a str,
    datasets: &'a [Dataset],
}

impl Here<'_> {
    fn find(&self, names: impl IntoIterator<Item = &'static str>) -> Option<&Dataset> {
        names.into_iter().find_map(|name| self.datasets.iter().find(|dataset| dataset.name() == name))
    }

    fn fault(&self, name: &str, fault: Fault) -> Fault {
        Fault { place: Place::Member(join(self.path, name)), ..fault }
    }

    fn wrong(&self, name: &str, reason: impl Into<String>) -> Fault {
        self.fault(name, Fault::new(reason))
    }
}

pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

fn labels() -> impl Iterator<Item = &'static str> {
    LABEL_COLUMNS.into_iter().chain(MORE_LABELS)
}

fn texts() -> impl Iterator<Item = &'static str> {
    TEXT_COLUMNS.into_iter().chain(MORE_TEXTS)
}

/// Whether a dataset says something about samples, and is none.
fn is_about(name: &str) -> bool {
    labels().chain(texts()).chain(LENGTHS).chain(KEYS).chain(SHAPES).any(|known| known == name)
}

fn is_list(dataset: &Dataset) -> bool {
    matches!(dataset.dtype(), Datatype::VarLen { kind: VarLenKind::Sequence, .. })
}

/// One value for each of so many samples, on however many axes.
fn is_column(dataset: &Dataset, count: u64) -> bool {
    dataset.shape().first() == Some(&count) && dataset.shape().iter().skip(1).all(|length| *length == 1)
}

impl Walk<'_> {
    fn group(&mut self, group: &Group, path: &str, depth: usize) -> Result<(), Fault> {
        if !self.seen.insert(group.address()) {
            return Ok(());
        }
        if depth > MOST_DEPTH {
            return Err(Fault::new(format!("groups are nested more than {MOST_DEPTH} deep")));
        }
        let (mut groups, mut datasets) = isolated(|| group.members())
            .map_err(|fault| Fault { place: Place::Member(format!("/{path}")), ..fault })?;
        // Where links lead to a group by several names, the one that says what it is comes first.
        groups.sort_by_key(|group| (!SPLITS.contains(&group.name()), group.name().to_owned()));
        datasets.sort_by(|a, b| a.name().cmp(b.name()));
        let here = Here { group, path, datasets: &datasets };
        let holds_array = |dataset: &&Dataset| {
            number_type(dataset.dtype()).is_some() && dataset.ndim() > 0 || is_list(dataset)
        };
        match here.find(ARRAYS).filter(holds_array) {
            Some(features) if is_stacked(&here, features, depth) => self.rows(&here, features)?,
            Some(features) if depth > 0 || self.says_something(&here)? => self.one(&here, features, true)?,
            _ => self.ones(&here)?,
        }
        for group in groups {
            self.group(&group, &join(path, group.name()), depth + 1)?;
        }
        Ok(())
    }

    /// Whether something stands beside a dataset of features, so that all of it together is one sample.
    fn says_something(&self, here: &Here) -> Result<bool, Fault> {
        let attributes =
            Attributes::of_group(here.group, self.file).map_err(|fault| here.fault("", fault))?;
        Ok(attributes.find(labels().chain(texts())).is_some()
            || here.datasets.iter().any(|dataset| is_about(dataset.name())))
    }

    /// Takes every dataset of a group for a sample.
    fn ones(&mut self, here: &Here) -> Result<(), Fault> {
        let (about, samples): (Vec<_>, Vec<_>) =
            here.datasets.iter().partition(|dataset| is_about(dataset.name()));
        // Beside arrays, what is neither text nor a single value was meant to be one, and is a bad sample.
        let is_array = |dataset: &&Dataset| number_type(dataset.dtype()).is_some() && dataset.ndim() > 0;
        let any = samples.iter().any(is_array);
        let (arrays, others): (Vec<_>, Vec<_>) = samples
            .into_iter()
            .partition(|dataset| is_array(dataset) || any && dataset.ndim() > 0 && !is_text(dataset.dtype()));
        if let (Some(about), Some(array)) = (about.first(), arrays.first()) {
            let array = array.name();
            let reason =
                format!("it stands beside `{array}` and others, and does not say which of them it is about");
            return Err(here.wrong(about.name(), reason));
        }
        let left = about.iter().chain(&others).take(8).map(|dataset| join(here.path, dataset.name()));
        self.found.left.extend(left);
        arrays.into_iter().try_for_each(|dataset| self.one(here, dataset, false))
    }

    /// Adds a sample that is a dataset.
    fn one(&mut self, here: &Here, dataset: &Dataset, grouped: bool) -> Result<(), Fault> {
        let of_dataset =
            Attributes::of_dataset(dataset, self.file).map_err(|fault| here.fault(dataset.name(), fault))?;
        let of_group = if grouped {
            Attributes::of_group(here.group, self.file).map_err(|fault| here.fault("", fault))?
        } else {
            Attributes::default()
        };
        let beside =
            |names: &mut dyn Iterator<Item = &'static str>| if grouped { here.find(names) } else { None };
        let mut like = Like { grouped, ..Like::default() };
        like.text = beside(&mut texts())
            .map(|text| At::Beside(text.name().to_owned()))
            .or_else(|| of_dataset.find(texts()).map(|name| At::Dataset(name.to_owned())))
            .or_else(|| of_group.find(texts()).map(|name| At::Group(name.to_owned())));
        let wrong = |name: &str, fault: Fault| here.fault(&format!("{}.{name}", dataset.name()), fault);
        let label = if let Some(labels) = beside(&mut labels()) {
            let is_ids = labels.ndim() > 0 && labels.num_elements().unwrap_or(0) != 1;
            if is_ids && number_type(labels.dtype()).is_some() {
                like.ids = Some(labels.name().to_owned());
                None
            } else {
                let label = values(labels, self.file).map_err(|fault| here.fault(labels.name(), fault))?;
                Some(single(label).map_err(|fault| here.fault(labels.name(), fault))?)
            }
        } else {
            let named = [(&of_dataset, dataset.name()), (&of_group, "")]
                .into_iter()
                .find_map(|(attributes, _)| attributes.find(labels()).map(|name| (attributes, name)));
            named
                .map(|(attributes, name)| {
                    attributes.values(name).and_then(single).map_err(|fault| wrong(name, fault))
                })
                .transpose()?
        };
        let path = join(here.path, dataset.name());
        match self.found.parts.last_mut() {
            Some(Part::Ones(ones)) if ones.like == like => ones.paths.push(&path),
            _ => {
                let mut paths = Names::default();
                paths.push(&path);
                self.found.parts.push(Part::Ones(Ones { paths, like }));
            }
        }
        self.found.labels.push(label);
        Ok(())
    }

    /// Adds the rows of a dataset.
    fn rows(&mut self, here: &Here, features: &Dataset) -> Result<(), Fault> {
        let name = features.name();
        let count = features.shape()[0];
        let lists = is_list(features);
        let width = features.raw_element_size().unwrap_or(0) as u64;
        let elements = |shape: &[u64]| shape.iter().try_fold(1_u64, |all, length| all.checked_mul(*length));
        let bytes = elements(features.shape()).and_then(|all| all.checked_mul(width));
        if bytes.is_none_or(|bytes| bytes > possible_bytes(self.file)) {
            let reason = format!("its shape {:?} is more than the file can hold", features.shape());
            return Err(here.wrong(name, reason));
        }
        if count > 0 && bytes == Some(0) {
            return Err(
                here.wrong(name, format!("its shape {:?} leaves no numbers for a row", features.shape()))
            );
        }
        let column = |names: &mut dyn Iterator<Item = &'static str>| {
            let Some(column) = here.find(names) else { return Ok(None) };
            if is_column(column, count) {
                return Ok(Some(column));
            }
            let reason = format!(
                "its shape is {:?} where `{name}` has {count} rows: one value a row is wanted",
                column.shape()
            );
            Err(here.wrong(column.name(), reason))
        };
        let kept = |column: &Dataset| {
            let kept = values(column, self.file).map_err(|fault| here.fault(column.name(), fault))?;
            // A type without a width has no values, however many rows it says.
            if kept.len() as u64 == count {
                Ok(kept)
            } else {
                Err(here.wrong(column.name(), format!("it has {} values for {count} rows", kept.len())))
            }
        };
        let lengths = match column(&mut LENGTHS.into_iter())? {
            Some(column) => match kept(column)? {
                Values::Numbers(lengths) => Some(lengths.iter().map(|length| *length as u64).collect()),
                Values::Texts(_) => return Err(here.wrong(column.name(), "it holds text, not lengths")),
            },
            None => None,
        };
        let keys = match column(&mut KEYS.into_iter())? {
            Some(column) => Some(names(kept(column)?)),
            None => None,
        };
        let labels = match column(&mut labels())? {
            Some(column) => Some(kept(column)?),
            None => None,
        };
        let text = column(&mut texts())?.map(|text| text.name().to_owned());
        let shapes = lists.then(|| self.shapes(here, features, count)).transpose()?;
        let chunk = features.chunks().and_then(|chunk| {
            let chunk: Vec<u64> = chunk.iter().map(|length| u64::from(*length)).collect();
            Some((*chunk.first()?, elements(&chunk)?.checked_mul(width)?))
        });
        let (group, name) = (here.path.to_owned(), name.to_owned());
        self.found.parts.push(Part::Rows(Rows { group, name, count, lengths, keys, text, shapes, chunk }));
        let count = count as usize;
        match labels {
            Some(Values::Numbers(numbers)) => {
                self.found.labels.extend(numbers.into_iter().map(|number| Some(Label::Number(number))));
            }
            Some(Values::Texts(texts)) => {
                self.found.labels.extend(texts.into_iter().map(|text| Some(Label::Name(text))));
            }
            None => self.found.labels.extend((0..count).map(|_| None)),
        }
        Ok(())
    }

    /// How the lists of a dataset are laid out.
    fn shapes(&self, here: &Here, features: &Dataset, count: u64) -> Result<Shapes, Fault> {
        if let Some(shapes) = here.find(SHAPES) {
            let (&[rows, axes], fault) = (shapes.shape(), |reason: &str| here.wrong(shapes.name(), reason))
            else {
                return Err(here.wrong(shapes.name(), "it does not have some lengths for each row"));
            };
            let Values::Numbers(lengths) =
                values(shapes, self.file).map_err(|fault| here.fault(shapes.name(), fault))?
            else {
                return Err(fault("it holds text, not lengths"));
            };
            if rows != count || axes == 0 {
                return Err(fault("it does not have some lengths for each row"));
            }
            let lengths = lengths.iter().map(|length| *length as usize).collect();
            return Ok(Shapes::Each { axes: axes as usize, lengths });
        }
        let attributes = Attributes::of_dataset(features, self.file)
            .map_err(|fault| here.fault(features.name(), fault))?;
        let width = ["dim", "n_mels", "bins"].into_iter().find_map(|name| attributes.values(name).ok());
        match width.map(single) {
            Some(Ok(Label::Number(width))) if width >= 1.0 => Ok(Shapes::Frames(width as usize)),
            _ => Ok(Shapes::Flat),
        }
    }
}

/// Whether the rows of a dataset are samples, or all of it is one.
fn is_stacked(here: &Here, features: &Dataset, depth: usize) -> bool {
    let Some(&count) = features.shape().first() else { return false };
    if is_list(features) {
        return features.ndim() == 1;
    }
    let about = labels().chain(texts()).chain(LENGTHS).chain(KEYS);
    let columns = here.datasets.iter().filter(|dataset| is_column(dataset, count));
    let has_columns = about.into_iter().any(|name| columns.clone().any(|column| column.name() == name));
    let is_split = here.path.rsplit('/').next().is_some_and(|name| SPLITS.contains(&name));
    if depth == 0 || is_split {
        features.ndim() > 1 && has_columns || features.ndim() > 2
    } else {
        // Two axes in a group of its own may be one recording, with a label for each frame.
        features.ndim() > 2 && has_columns
    }
}

fn names(values: Values) -> Names {
    let mut names = Names::default();
    match values {
        Values::Numbers(numbers) => numbers.iter().for_each(|number| names.push(&number.to_string())),
        Values::Texts(texts) => texts.iter().for_each(|text| names.push(text)),
    }
    names
}

/// The one value there is.
pub(super) fn single(values: Values) -> Result<Label, Fault> {
    let count = values.len();
    let only = match values {
        Values::Numbers(numbers) if count == 1 => numbers.into_iter().next().map(Label::Number),
        Values::Texts(texts) if count == 1 => texts.into_iter().next().map(Label::Name),
        _ => None,
    };
    only.ok_or_else(|| Fault::new(format!("it has {count} values where one is wanted")))
}

/// The attributes of a dataset or group.
#[derive(Default)]
pub(super) struct Attributes<'a> {
    all: Vec<RawAttribute>,
    of: Option<(&'a Hdf5File, Owner<'a>)>,
}

enum Owner<'a> {
    Dataset(&'a Dataset),
    Group(&'a Group),
}

impl<'a> Attributes<'a> {
    pub(super) fn of_dataset(dataset: &'a Dataset, file: &'a Hdf5File) -> Result<Self, Fault> {
        let all = isolated(|| dataset.raw_attributes())?;
        Ok(Self { all, of: Some((file, Owner::Dataset(dataset))) })
    }

    pub(super) fn of_group(group: &'a Group, file: &'a Hdf5File) -> Result<Self, Fault> {
        let all = isolated(|| group.raw_attributes())?;
        Ok(Self { all, of: Some((file, Owner::Group(group))) })
    }

    /// The first of these names that is there.
    fn find(&self, names: impl Iterator<Item = &'static str>) -> Option<&'static str> {
        let mut names = names;
        names.find(|name| self.all.iter().any(|attribute| attribute.name() == *name))
    }

    pub(super) fn values(&self, name: &str) -> Result<Values, Fault> {
        let missing = || Fault::new(format!("the attribute `{name}` is missing"));
        let attribute = self.all.iter().find(|attribute| attribute.name() == name).ok_or_else(missing)?;
        let (file, owner) = self.of.as_ref().ok_or_else(missing)?;
        let resolve: Resolve = match owner {
            Owner::Dataset(dataset) => &|cell| dataset.resolve_vlen_reference_bytes(cell, 1),
            Owner::Group(group) => &|cell| group.resolve_vlen_reference_bytes(cell, 1),
        };
        attribute_values(attribute, file, resolve)
    }
}
