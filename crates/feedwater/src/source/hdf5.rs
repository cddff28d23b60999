//! HDF5 files of arrays, as h5py writes them: a dataset, a group or a row a sample (`hdf5_layout.rs` says which).
//!
//! A sample is read by its place in the file, without the rest of it. Its numbers are handed on in the form of a `.npy` file, in
//! the type they are stored in, so that all that is known of arrays holds for them. Only a few files are open at a time,
//! and each for some thousand samples: the reader remembers every header that it has seen.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use hdf5_reader::{Dataset, Hdf5File};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::{
    Kind, Source, array, ending, files_below,
    hdf5_layout::{At, Attributes, Found, Ones, Part, Rows, Shapes, find, join, single},
    hdf5_read::{Numbers, Values, all_numbers, isolated, list_numbers, open, row_numbers, row_text, values},
    row::Label,
};
use crate::{
    error::{Error, Fault, Place, Result},
    sample::{Media, MediaPlace, Sample, Value, field},
};

/// How many files are open.
const KEPT_FILES: usize = 12;
/// How many samples are read before a file is opened anew.
const MOST_SEEN: u64 = 4096;
/// How many chunks of a file are kept decoded, where a chunk has several rows.
const KEPT_CHUNKS: u64 = 12;
/// And how many bytes of them at most, of all files that are open.
const MOST_KEPT_BYTES: u64 = 512 << 20;

/// What is usually the matter with a file that cannot be opened.
const UNREADABLE: &str = "it was cut off, is still being written, or is something else by that name (a Git LFS pointer, an \
                          error page): copy or download it again";
const LAYOUTS: &str = "put a dataset a sample into it (`/utt1` [frames, bins], with an attribute `label`), a group a sample \
                       (`/utt1/features`, `/utt1/label`), or `features` [samples, frames, bins] and `labels` [samples]";

/// HDF5 files.
pub struct Hdf5 {
    files: Vec<OneFile>,
    parts: Vec<(u32, Part)>,
    /// The first sample of each part.
    firsts: Vec<u64>,
    total: u64,
    fingerprint: u128,
    /// Of each sample, where there are any; `NaN` where one is missing.
    labels: Option<Vec<f64>>,
    classes: Vec<String>,
    blocks: Option<Vec<u64>>,
    kept: Mutex<VecDeque<Kept>>,
}

struct OneFile {
    path: Arc<Path>,
    name: String,
    /// How much of it is worth keeping decoded.
    cache_bytes: usize,
}

/// An open file, or why there is none. The lock of the list is not held while one is being opened.
type Opened = Arc<OnceLock<Result<Hdf5File, Fault>>>;

struct Kept {
    file: u32,
    opened: Opened,
    seen: u64,
}

impl Hdf5 {
    /// Opens a file, or all files of a folder in the order of their names.
    pub fn open(path: &Path) -> Result<Self> {
        let paths: Vec<PathBuf> =
            if path.is_dir() { files_below(path, is_hdf5)? } else { vec![path.to_owned()] };
        let base = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
        let mut this = Self {
            files: Vec::new(),
            parts: Vec::new(),
            firsts: Vec::new(),
            total: 0,
            fingerprint: 0,
            labels: None,
            classes: Vec::new(),
            blocks: None,
            kept: Mutex::default(),
        };
        let (mut labels, mut left, mut hasher) = (Vec::new(), Vec::new(), Xxh3::new());
        for path in paths {
            let name = path.strip_prefix(base).unwrap_or(&path).to_string_lossy().replace('\\', "/");
            let size = path.metadata().map_err(|error| Error::read(&path, error))?.len();
            hasher.update(name.as_bytes());
            hasher.update(&size.to_le_bytes());
            let file = open(&path, 0).map_err(|fault| Error::dataset_hint(&path, fault, UNREADABLE))?;
            let found = find(&file).map_err(|fault| {
                let hint = format!("`h5ls -r` shows what is in it; {LAYOUTS}");
                Error::dataset_hint(&path, fault, hint)
            })?;
            this.add(&path, name, found, &mut labels, &mut left);
        }
        if this.total == 0 {
            let holds =
                if left.is_empty() { "nothing".to_owned() } else { format!("only {}", left.join(", ")) };
            return Err(Error::config_hint(
                format!("`{}` holds no arrays, {holds}", path.display()),
                LAYOUTS,
            ));
        }
        this.check_keys(path)?;
        this.name_classes(&labels);
        for index in 0..this.parts.len() {
            this.hash_part(index, &mut hasher);
        }
        hasher.update(bytemuck::cast_slice(this.labels.as_deref().unwrap_or_default()));
        this.classes.iter().for_each(|class| hasher.update(class.as_bytes()));
        this.fingerprint = hasher.digest128();
        this.blocks = this.find_blocks();
        let share = (MOST_KEPT_BYTES as usize) / this.files.len().clamp(1, KEPT_FILES);
        this.files.iter_mut().for_each(|file| file.cache_bytes = file.cache_bytes.min(share));
        Ok(this)
    }

    fn add(
        &mut self,
        path: &Path,
        name: String,
        found: Found,
        labels: &mut Vec<Option<Label>>,
        left: &mut Vec<String>,
    ) {
        let file = self.files.len() as u32;
        let mut cache_bytes = 0;
        for part in found.parts {
            if let Part::Rows(Rows { chunk: Some((2.., bytes)), .. }) = &part {
                cache_bytes = cache_bytes.max(bytes.saturating_mul(KEPT_CHUNKS).min(MOST_KEPT_BYTES));
            }
            let count = part.len();
            if count > 0 {
                self.firsts.push(self.total);
                self.parts.push((file, part));
                self.total += count;
            }
        }
        labels.extend(found.labels);
        left.extend(found.left.into_iter().take(8_usize.saturating_sub(left.len())));
        self.files.push(OneFile { path: path.into(), name, cache_bytes: cache_bytes as usize });
    }

    /// Keys are unique where they are paths of one group; where they are given, somebody may have given one twice.
    fn check_keys(&self, path: &Path) -> Result<()> {
        let given = |part: &(u32, Part)| matches!(&part.1, Part::Rows(Rows { keys: Some(_), .. }));
        if self.parts.len() < 2 && !self.parts.iter().any(given) {
            return Ok(());
        }
        let mut seen = HashSet::new();
        match (0..self.total).map(|index| self.key(index)).find(|key| !seen.insert(xxh3_64(key.as_bytes()))) {
            None => Ok(()),
            Some(key) => Err(Error::dataset_hint(
                path,
                Fault::new(format!("two samples have the key `{key}`")),
                "give each a name of its own, or take `keys` out: a row's number is its name then",
            )),
        }
    }

    /// Labels that are names become numbers, in the order of the names.
    fn name_classes(&mut self, labels: &[Option<Label>]) {
        if labels.iter().all(Option::is_none) {
            return;
        }
        let name = |label: &Label| match label {
            Label::Number(number) => number.to_string(),
            Label::Name(name) => name.clone(),
        };
        let is_name =
            |label: &Label| matches!(label, Label::Name(name) if super::row::finite(name).is_none());
        if labels.iter().flatten().any(is_name) {
            self.classes = labels.iter().flatten().map(name).collect::<BTreeSet<_>>().into_iter().collect();
        }
        let number = |label: &Label| match label {
            _ if !self.classes.is_empty() => self.classes.binary_search(&name(label)).unwrap_or(0) as f64,
            Label::Number(number) => *number,
            Label::Name(name) => super::row::finite(name).unwrap_or(f64::NAN),
        };
        self.labels = Some(labels.iter().map(|label| label.as_ref().map_or(f64::NAN, number)).collect());
    }

    fn hash_part(&self, index: usize, hasher: &mut Xxh3) {
        let first = self.firsts[index];
        match &self.parts[index].1 {
            Part::Rows(Rows { keys: None, group, name, count, .. }) => {
                hasher.update(join(group, name).as_bytes());
                hasher.update(&count.to_le_bytes());
            }
            part => (first..first + part.len()).for_each(|sample| hasher.update(self.key(sample).as_bytes())),
        }
        if let Part::Rows(Rows { lengths: Some(lengths), .. }) = &self.parts[index].1 {
            hasher.update(bytemuck::cast_slice(lengths));
        }
    }

    /// Rows that are stored together are a block, and so is a file where not all of them can be open.
    fn find_blocks(&self) -> Option<Vec<u64>> {
        let mut blocks = Vec::new();
        for (at, (file, part)) in self.parts.iter().enumerate() {
            let first = self.firsts[at];
            match part {
                Part::Rows(Rows { chunk: Some((rows @ 2.., _)), count, .. }) => {
                    blocks.extend((0..*count).step_by(*rows as usize).map(|row| first + row));
                }
                _ if at == 0 => blocks.push(first),
                // Behind rows that are stored together, the last of them does not go on.
                _ if self.files.len() > KEPT_FILES && self.parts[at - 1].0 != *file
                    || matches!(self.parts[at - 1].1, Part::Rows(Rows { chunk: Some((2.., _)), .. })) =>
                {
                    blocks.push(first);
                }
                _ => {}
            }
        }
        (blocks.len() > 1).then_some(blocks)
    }

    fn place(&self, index: u64) -> (&OneFile, u32, &Part, u64) {
        let at = self.firsts.partition_point(|first| *first <= index) - 1;
        let (file, part) = &self.parts[at];
        (&self.files[*file as usize], *file, part, index - self.firsts[at])
    }

    /// An open file.
    fn opened(&self, file: u32) -> Opened {
        let opened = {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            let known = kept.iter().position(|kept| kept.file == file);
            let mut entry = known
                .and_then(|at| kept.remove(at))
                // What could not be opened may have come back.
                .filter(|kept| kept.seen < MOST_SEEN && !matches!(kept.opened.get(), Some(Err(_))))
                .unwrap_or_else(|| Kept { file, opened: Opened::default(), seen: 0 });
            entry.seen += 1;
            let opened = entry.opened.clone();
            kept.push_back(entry);
            if kept.len() > KEPT_FILES {
                kept.pop_front();
            }
            opened
        };
        let OneFile { path, cache_bytes, .. } = &self.files[file as usize];
        opened.get_or_init(|| open(path, *cache_bytes));
        opened
    }
}

impl Part {
    fn len(&self) -> u64 {
        match self {
            Self::Ones(ones) => ones.paths.len(),
            Self::Rows(rows) => rows.count,
        }
    }
}

pub(super) fn is_hdf5(file: &Path) -> bool {
    ENDINGS.contains(&ending(file).as_str())
}

/// File endings of HDF5.
const ENDINGS: [&str; 2] = ["h5", "hdf5"];

/// The folder that a path is in, so to speak.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn shape_of(lengths: &[u64]) -> Vec<usize> {
    lengths.iter().map(|length| *length as usize).collect()
}

/// The dataset at a path.
fn dataset(file: &Hdf5File, path: &str) -> Result<Dataset, Fault> {
    isolated(|| file.dataset(path))
}

/// Puts the array of a sample that is a dataset into it, and the text and the ids that belong to it.
fn fill_one(file: &Hdf5File, ones: &Ones, row: u64, sample: &mut Sample) -> Result<Vec<u8>, Fault> {
    let path = ones.paths.get(row);
    let array = dataset(file, path)?;
    let beside = |name: &str| dataset(file, &join(parent(path), name));
    let text = match &ones.like.text {
        None => None,
        Some(At::Beside(name)) => Some(values(&beside(name)?, file)?),
        Some(At::Dataset(name)) => Some(Attributes::of_dataset(&array, file)?.values(name)?),
        Some(At::Group(name)) => {
            let group = isolated(|| file.group(parent(path)))?;
            Some(Attributes::of_group(&group, file)?.values(name)?)
        }
    };
    match text.map(single).transpose()? {
        Some(Label::Name(text)) => sample.set(field::TEXT, text),
        Some(Label::Number(number)) => sample.set(field::TEXT, number.to_string()),
        None => {}
    }
    if let Some(name) = &ones.like.ids {
        let Values::Numbers(ids) = values(&beside(name)?, file)? else {
            return Err(Fault::new(format!("`{name}` holds text, not token ids")));
        };
        let is_id = |id: &&f64| id.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(*id);
        if let Some(wrong) = ids.iter().find(|id| !is_id(id)) {
            return Err(Fault::new(format!("{wrong} in `{name}` is no token id")));
        }
        sample.set(field::LABELS, ids.iter().map(|id| *id as u32).collect::<Vec<u32>>());
    }
    let Numbers { descr, bytes } = all_numbers(&array)?;
    Ok(array::npy_form(descr, &shape_of(array.shape()), &bytes))
}

/// The same for a sample that is a row.
fn fill_row(file: &Hdf5File, rows: &Rows, row: u64, sample: &mut Sample) -> Result<Vec<u8>, Fault> {
    let whole = dataset(file, &join(&rows.group, &rows.name))?;
    if let Some(name) = &rows.text {
        sample.set(field::TEXT, row_text(&dataset(file, &join(&rows.group, name))?, row)?);
    }
    if let Some(shapes) = &rows.shapes {
        let Numbers { descr, bytes } = list_numbers(&whole, row)?;
        let count = bytes.len() / usize::from(descr.as_bytes()[2] - b'0');
        let shape = match shapes {
            Shapes::Flat => vec![count],
            Shapes::Frames(width) => vec![count / width, *width],
            Shapes::Each { axes, lengths } => lengths[row as usize * axes..][..*axes].to_vec(),
        };
        if array::count(&shape) != Some(count) {
            return Err(Fault::new(format!("the list has {count} numbers, its shape is {shape:?}")));
        }
        return Ok(array::npy_form(descr, &shape, &bytes));
    }
    let mut shape = shape_of(whole.shape().get(1..).unwrap_or_default());
    let frames = rows.lengths.as_ref().map(|lengths| lengths[row as usize]);
    if let (Some(frames), Some(all)) = (frames, shape.first_mut()) {
        if frames > *all as u64 || frames == 0 {
            return Err(Fault::new(format!(
                "its length is said to be {frames}, and {all} frames are stored"
            )));
        }
        *all = frames as usize;
    }
    let Numbers { descr, bytes } = row_numbers(&whole, row, frames)?;
    Ok(array::npy_form(descr, &shape, &bytes))
}

impl Source for Hdf5 {
    fn kind(&self) -> Kind {
        Kind::Hdf5
    }

    fn len(&self) -> u64 {
        self.total
    }

    fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    fn key(&self, index: u64) -> String {
        let (OneFile { name, .. }, _, part, row) = self.place(index);
        match part {
            Part::Ones(ones) => {
                let path = ones.paths.get(row);
                let path = if ones.like.grouped { parent(path) } else { path };
                if path.is_empty() { name.clone() } else { format!("{name}/{path}") }
            }
            Part::Rows(Rows { keys: Some(keys), group, .. }) => {
                format!("{name}/{}", join(group, keys.get(row)))
            }
            Part::Rows(Rows { group, .. }) if group.is_empty() => format!("{name}#{row}"),
            Part::Rows(Rows { group, .. }) => format!("{name}/{group}#{row}"),
        }
    }

    fn sample(&self, index: u64) -> Result<Sample, Fault> {
        let (OneFile { path, .. }, file, part, row) = self.place(index);
        let place = match part {
            Part::Ones(ones) => Place::Member(ones.paths.get(row).to_owned()),
            Part::Rows(_) => Place::Row(row),
        };
        let named = |fault: Fault| Fault { place: place.clone(), ..fault.in_file(&**path) };
        let opened = self.opened(file);
        let Some(opened) = opened.get() else { return Err(named(Fault::new("the file was not opened"))) };
        let file = opened.as_ref().map_err(|fault| named(fault.clone()))?;
        let mut sample = Sample::new(self.key(index));
        let array = match part {
            Part::Ones(ones) => fill_one(file, ones, row, &mut sample),
            Part::Rows(rows) => fill_row(file, rows, row, &mut sample),
        }
        .map_err(named)?;
        let place = MediaPlace::Bytes(array);
        sample.set(field::FEATURES, Media { path: Arc::clone(path), place, window: None });
        if let Some(label) = self.labels.as_ref().map(|labels| labels[index as usize]) {
            if label.is_nan() {
                return Err(named(Fault::new("the label is missing")));
            }
            sample.set(field::LABELS, Value::Number(label));
        }
        Ok(sample)
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn blocks(&self) -> Option<&[u64]> {
        self.blocks.as_deref()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

    use super::*;

    #[test]
    fn few_files_are_open_and_none_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hdf5/single.h5");
        for n in 0..30 {
            std::fs::copy(&fixture, folder.path().join(format!("{n:02}.h5"))).unwrap();
        }
        let source = Hdf5::open(folder.path()).unwrap();
        assert_eq!(source.blocks(), Some((0..30).collect::<Vec<_>>().as_slice()));
        for index in (0..30).chain(0..30) {
            source.sample(index).unwrap();
            assert!(source.kept.lock().unwrap().len() <= KEPT_FILES);
        }
        for _ in 0..MOST_SEEN + 5 {
            source.sample(29).unwrap();
        }
        // It was read once before, in each round.
        assert_eq!(source.kept.lock().unwrap().back().unwrap().seen, 6);
        std::fs::remove_file(folder.path().join("07.h5")).unwrap();
        let fault = source.sample(7).unwrap_err();
        assert!(fault.path.is_some() && source.key(7) == "07.h5", "{fault}");
    }
}
