//! Documents: JSON lines with a text column, or plain text with a document a line.

use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use super::{
    Kind, Source, ending, files_below,
    lines::Lines,
    row::{Columns, Role, json_columns, parse_json},
};
use crate::{
    error::{Error, Fault, Result},
    sample::{Sample, field},
};

/// Text files, one after the other.
pub struct Text {
    files: Vec<TextFile>,
    /// How many documents stand before each file.
    before: Vec<u64>,
    total: u64,
    fingerprint: u128,
}

struct TextFile {
    lines: Lines,
    name: String,
    json: bool,
}

impl Text {
    /// Opens a text file, or all of a folder in the order of their names.
    pub fn open(path: &Path) -> Result<Self> {
        let paths: Vec<PathBuf> = if path.is_dir() {
            files_below(path, |file| matches!(ending(file).as_str(), "jsonl" | "txt"))?
        } else {
            vec![path.to_owned()]
        };
        let base = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
        let (mut files, mut before, mut total, mut hasher) = (Vec::new(), Vec::new(), 0, Xxh3::new());
        for path in paths {
            let lines = Lines::open(&path, false)?;
            if lines.is_empty() {
                continue;
            }
            let name = path.strip_prefix(base).unwrap_or(&path).to_string_lossy().into_owned();
            let json = matches!(ending(&path).as_str(), "jsonl" | "json" | "ndjson");
            if json {
                let names = json_columns(&lines)?;
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                if Columns::among(&names).text.is_none() {
                    return Err(Error::config_hint(
                        format!(
                            "`{}` has no text column; its columns are {}",
                            path.display(),
                            names.join(", ")
                        ),
                        "call the column with the text `text`",
                    ));
                }
            }
            hasher.update(name.as_bytes());
            hasher.update(&lines.hash().to_le_bytes());
            before.push(total);
            total += lines.len();
            files.push(TextFile { lines, name, json });
        }
        Ok(Self { files, before, total, fingerprint: hasher.digest128() })
    }

    fn place(&self, index: u64) -> (&TextFile, u64) {
        let file = self.before.partition_point(|before| *before <= index) - 1;
        (&self.files[file], index - self.before[file])
    }
}

impl Source for Text {
    fn kind(&self) -> Kind {
        Kind::Text
    }

    fn len(&self) -> u64 {
        self.total
    }

    fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    fn key(&self, index: u64) -> String {
        let (file, row) = self.place(index);
        format!("{}#{row}", file.name)
    }

    fn sample(&self, index: u64) -> Result<Sample, Fault> {
        let (file, row) = self.place(index);
        let mut bytes = Vec::new();
        file.lines.read(row, &mut bytes)?;
        let text = if file.json {
            parse_json(&bytes, |role| role == Role::Text)
                .and_then(|row| row.text.ok_or_else(|| "the row has no text".to_owned()))
                .map_err(|reason| file.lines.fault(row, reason))?
        } else {
            String::from_utf8(bytes).map_err(|error| {
                let at = error.utf8_error().valid_up_to();
                file.lines.fault(row, format!("not UTF-8 from byte {at} of the line on"))
            })?
        };
        Ok(Sample::new(self.key(index)).with(field::TEXT, text))
    }
}
