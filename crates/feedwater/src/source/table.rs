//! Metadata in a table: a row names a sound or array file and says what is known of it.
//!
//! One reader for Hugging Face's audiofolder, `NeMo` manifests, Common Voice, `LJSpeech`, lists of paths and manifests of
//! arrays: they differ in how a row is written and what its columns are called.

use std::path::{Path, PathBuf};

use super::{
    Kind, Source,
    lines::Lines,
    row::{Columns, Label, Row, Style},
    sniff::metadata_file,
};
use crate::{
    decode::Window,
    error::{Error, Fault, Result},
    sample::{Media, Sample, Value, field},
};

pub(super) use super::row::MEDIA_COLUMNS;

/// Rows that name files.
pub struct Table {
    kind: Kind,
    lines: Lines,
    style: Style,
    /// What the paths in the rows are relative to.
    base: PathBuf,
    /// How many records are the header.
    header: u64,
    classes: Vec<String>,
}

impl Table {
    /// Opens a metadata file, or the one of a folder.
    pub fn open(path: &Path, kind: Kind) -> Result<Self> {
        let file = if path.is_dir() {
            metadata_file(path).ok_or_else(|| {
                Error::config_hint(
                    format!("`{}` has no metadata file", path.display()),
                    "put `metadata.jsonl` with `file_name` and `text` into it, or open it as a bare folder of sound",
                )
            })?
        } else {
            path.to_owned()
        };
        let folder = file.parent().unwrap_or(Path::new("")).to_owned();
        let ending = super::ending(&file);
        let csv = matches!(ending.as_str(), "csv" | "tsv") && kind != Kind::LjSpeech;
        let lines = Lines::open(&file, csv && ending == "csv")?;
        let style = match kind {
            Kind::LjSpeech => Style::LjSpeech,
            Kind::PathList => Style::Path,
            _ if csv => Style::csv(&lines, if ending == "tsv" { b'\t' } else { b',' })?,
            _ => Style::json(&lines)?,
        };
        let header = u64::from(csv);
        // Common Voice names files in `clips/` without saying so.
        let clips = folder.join("clips");
        let base = if ending == "tsv" && clips.is_dir() { clips } else { folder };
        let mut table = Self { kind, lines, style, base, header, classes: Vec::new() };
        table.classes = table.find_classes();
        Ok(table)
    }

    fn row(&self, index: u64) -> Result<Row, Fault> {
        let mut bytes = Vec::new();
        let index = index + self.header;
        self.lines.read(index, &mut bytes)?;
        self.style.parse(&bytes).map_err(|reason| self.lines.fault(index, reason))
    }

    /// Labels that are names become numbers, in the order of the names. That takes a look at every row; labels that are
    /// numbers already do not.
    fn find_classes(&self) -> Vec<String> {
        let named = |row: Row| match row.label {
            Some(Label::Name(name)) => Some(name),
            _ => None,
        };
        if self.len() == 0 || self.row(0).ok().and_then(named).is_none() {
            return Vec::new();
        }
        let names = (0..self.len()).filter_map(|index| self.row(index).ok().and_then(named));
        names.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
    }

    fn media(&self, row: &Row) -> Result<Media, String> {
        let name = row.media.as_deref().ok_or("the row names no file")?;
        if name.is_empty() {
            return Err("the row names no file".to_owned());
        }
        if name.trim_end().ends_with('|') {
            return Err(format!("`{name}` is a command, not a file; commands are not run"));
        }
        let path = match self.style {
            Style::LjSpeech => self.base.join("wavs").join(format!("{name}.wav")),
            _ => self.base.join(name),
        };
        let window = match (row.offset, row.duration) {
            (Some(start), Some(length)) => {
                if !(start >= 0.0 && length > 0.0) {
                    return Err(format!("an offset of {start} s and a duration of {length} s"));
                }
                Some(Window { start_seconds: start, length_seconds: length })
            }
            _ => None,
        };
        Ok(Media { window, ..Media::file(path) })
    }
}

impl Source for Table {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn len(&self) -> u64 {
        self.lines.len().saturating_sub(self.header)
    }

    fn fingerprint(&self) -> u128 {
        self.lines.hash()
    }

    fn key(&self, index: u64) -> String {
        let name = self.row(index).ok().and_then(|row| row.media).unwrap_or_default();
        self.key_of(&name, index)
    }

    fn sample(&self, index: u64) -> Result<Sample, Fault> {
        let row = self.row(index)?;
        let media = self.media(&row).map_err(|reason| self.lines.fault(index + self.header, reason))?;
        let mut sample = Sample::new(self.key_of(row.media.as_deref().unwrap_or_default(), index));
        let npy = self.kind == Kind::NpyManifest || super::ending(&media.path) == "npy";
        sample.set(if npy { field::FEATURES } else { field::AUDIO }, media);
        if let Some(text) = row.text {
            sample.set(field::TEXT, text);
        }
        if !row.spans.is_empty() {
            sample.set(field::SPANS, row.spans);
        }
        match row.label {
            Some(Label::Number(number)) => sample.set(field::LABELS, number),
            Some(Label::Name(name)) => {
                let class = self.classes.binary_search(&name).map_err(|_| {
                    self.lines
                        .fault(index + self.header, format!("label `{name}` among labels that are numbers"))
                })?;
                sample.set(field::LABELS, Value::Number(class as f64));
            }
            None => {}
        }
        Ok(sample)
    }

    fn seconds(&self, index: u64) -> Option<f64> {
        self.row(index).ok()?.duration
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }
}

impl Table {
    /// Files are named once in an audiofolder, so their names are keys; a manifest may name one many times.
    fn key_of(&self, name: &str, index: u64) -> String {
        match self.kind {
            Kind::AudioFolder | Kind::LjSpeech if !name.is_empty() => name.to_owned(),
            _ => format!("{name}#{index}"),
        }
    }
}

impl Columns {
    /// Which columns a table has, or why that is not enough.
    pub(super) fn checked(self, path: &Path, names: &[&str]) -> Result<Self> {
        if self.media.is_some() {
            return Ok(self);
        }
        Err(Error::config_hint(
            format!(
                "`{}` has no column that names files; its columns are {}",
                path.display(),
                names.join(", ")
            ),
            format!("name one of them {}", MEDIA_COLUMNS.join(", ")),
        ))
    }
}
