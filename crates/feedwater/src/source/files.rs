//! Files that are samples: a bare folder of sound, a folder of arrays, a list of paths in memory.
//!
//! Paths are kept end to end in one string, relative to their folder: about their own length and 8 bytes each.

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::Xxh3;

use super::{Kind, Source, ending, files_below, is_audio};
use crate::{
    error::{Error, Fault, Result},
    sample::{Media, Sample, field},
};

/// A set of files.
pub struct Files {
    kind: Kind,
    base: PathBuf,
    names: Names,
    fingerprint: u128,
    classes: Vec<String>,
    /// The label of each, where labels came with a table.
    labels: Option<Vec<f64>>,
}

impl Files {
    /// All sound or array files below a folder, in the order of their paths; or one file.
    pub fn open(path: &Path, kind: Kind) -> Result<Self> {
        if path.is_file() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let base = path.parent().unwrap_or(Path::new(""));
            return Ok(Self::list(base, kind, [name]));
        }
        let wanted: fn(&Path) -> bool =
            if kind == Kind::Npy { |file| ending(file) == "npy" } else { is_audio };
        let mut found = Vec::new();
        for file in files_below(path, wanted)? {
            let size = match file.metadata() {
                Ok(metadata) => metadata.len(),
                // A link to nothing.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
                Err(error) => return Err(Error::read(&file, error)),
            };
            let name = file.strip_prefix(path).unwrap_or(&file);
            // The key is the same on every system.
            found.push((name.to_string_lossy().replace('\\', "/"), size));
        }
        found.sort_unstable();
        let mut hasher = Xxh3::new();
        for (name, size) in &found {
            hasher.update(name.as_bytes());
            hasher.update(&size.to_le_bytes());
        }
        let mut files = Self::list(path, kind, found.into_iter().map(|(name, _)| name));
        files.fingerprint = hasher.digest128();
        if kind == Kind::Npy {
            files.find_labels()?;
        }
        Ok(files)
    }

    /// These files, named relative to `base`. Nothing is looked up, so a million of them take no time.
    pub fn list<S: AsRef<str>>(base: &Path, kind: Kind, names: impl IntoIterator<Item = S>) -> Self {
        let mut list = Names::default();
        for name in names {
            list.push(name.as_ref());
        }
        let mut hasher = Xxh3::new();
        hasher.update(list.text.as_bytes());
        hasher.update(bytemuck::cast_slice(&list.ends));
        let fingerprint = hasher.digest128();
        Self { kind, base: base.to_owned(), names: list, fingerprint, classes: Vec::new(), labels: None }
    }

    /// From `labels.csv` (`file,label`) where there is one; else the folder's name is the class.
    fn find_labels(&mut self) -> Result<()> {
        let table = self.base.join("labels.csv");
        let label_names = if table.is_file() {
            let mut reader = csv::Reader::from_path(&table)
                .map_err(|error| Error::dataset(&table, Fault::new(error.to_string())))?;
            let mut by_file = HashMap::new();
            for record in reader.records() {
                let record = record.map_err(|error| {
                    let line = error.position().map_or(0, csv::Position::line);
                    Error::dataset(&table, Fault::at_line(line, error.to_string()))
                })?;
                if let (Some(file), Some(label)) = (record.get(0), record.get(1)) {
                    by_file.insert(file.trim().to_owned(), label.trim().to_owned());
                }
            }
            let missing =
                (0..self.len()).map(|index| self.names.get(index)).find(|name| !by_file.contains_key(*name));
            if let Some(name) = missing {
                return Err(Error::dataset(&table, Fault::new(format!("it has no label for `{name}`"))));
            }
            (0..self.len()).map(|index| by_file[self.names.get(index)].clone()).collect()
        } else {
            let class =
                |index| self.names.get(index).rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
            let classes: Vec<String> = (0..self.len()).map(class).collect();
            if classes.iter().all(String::is_empty) {
                return Ok(());
            }
            classes
        };
        if let Some(numbers) =
            label_names.iter().map(|label| super::row::finite(label)).collect::<Option<Vec<f64>>>()
        {
            self.labels = Some(numbers);
            return Ok(());
        }
        self.classes = label_names.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect();
        let number = |label: &String| self.classes.binary_search(label).unwrap_or(0) as f64;
        self.labels = Some(label_names.iter().map(number).collect());
        Ok(())
    }
}

impl Source for Files {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn len(&self) -> u64 {
        self.names.len()
    }

    fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    fn key(&self, index: u64) -> String {
        self.names.get(index).to_owned()
    }

    fn sample(&self, index: u64) -> Result<Sample, Fault> {
        let name = self.names.get(index);
        let media = Media::file(self.base.join(name));
        let field = if self.kind == Kind::Npy { field::FEATURES } else { field::AUDIO };
        let mut sample = Sample::new(name).with(field, media);
        if let Some(labels) = &self.labels {
            sample.set(field::LABELS, labels[index as usize]);
        }
        Ok(sample)
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }
}

/// Many short strings end to end.
#[derive(Default)]
pub(super) struct Names {
    text: String,
    ends: Vec<u64>,
}

impl Names {
    pub(super) fn len(&self) -> u64 {
        self.ends.len() as u64
    }

    pub(super) fn push(&mut self, name: &str) {
        self.text.push_str(name);
        self.ends.push(self.text.len() as u64);
    }

    pub(super) fn get(&self, index: u64) -> &str {
        let index = index as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        &self.text[start..self.ends[index] as usize]
    }
}
