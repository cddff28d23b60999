//! What is this path? Decided by what is there, so that nobody has to name a format.

use std::{
    fs,
    io::{BufRead, BufReader, Read as _},
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{ending, is_audio};
use crate::error::{Error, Result};

/// The kinds of dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A folder of sound with `metadata.csv` or `metadata.jsonl`, as Hugging Face's `audiofolder`.
    AudioFolder,
    /// JSON lines or CSV that name sound files: `NeMo` manifests, Common Voice tables.
    Manifest,
    /// `metadata.csv` with `id|raw|normalised` beside `wavs/`.
    LjSpeech,
    /// A bare folder of sound.
    Audio,
    /// A folder of `.npy` arrays; the label is the name of the folder they are in, or stands in `labels.csv`.
    Npy,
    /// A table that names `.npy` files.
    NpyManifest,
    /// A text file with one path a line.
    PathList,
    /// JSON lines with text, or plain text, a document a line.
    Text,
    /// `WebDataset` tar shards.
    Tar,
    /// Parquet tables with text or sound.
    Parquet,
}

impl Kind {
    /// The kind as people call it.
    pub fn title(self) -> &'static str {
        match self {
            Self::AudioFolder => "Hugging Face audiofolder",
            Self::Manifest => "manifest of sound files",
            Self::LjSpeech => "LJSpeech folder",
            Self::Audio => "folder of sound files",
            Self::Npy => "folder of .npy arrays",
            Self::NpyManifest => "manifest of .npy arrays",
            Self::PathList => "list of paths",
            Self::Text => "text",
            Self::Tar => "WebDataset tar shards",
            Self::Parquet => "Parquet tables",
        }
    }
}

/// Looks at `path` and says what it is.
pub fn detect(path: &Path) -> Result<Kind> {
    if path.is_dir() {
        return detect_folder(path);
    }
    if path.is_file() {
        return detect_file(path);
    }
    if path.to_string_lossy().contains('{') && ending(path) == "tar" {
        return Ok(Kind::Tar);
    }
    let what = if path.exists() { "is neither a file nor a folder" } else { "does not exist" };
    Err(Error::config_hint(
        format!("`{}` {what}", path.display()),
        "`feedwater generate morse --out data/morse` makes a dataset to try",
    ))
}

fn detect_folder(folder: &Path) -> Result<Kind> {
    if metadata_file(folder).is_some_and(|file| ending(&file) == "csv" && is_ljspeech(&file)) {
        return Ok(Kind::LjSpeech);
    }
    if let Some(file) = metadata_file(folder) {
        let npy = first_lines(&file, 2)?.iter().any(|line| line.contains(".npy"));
        return Ok(if npy { Kind::NpyManifest } else { Kind::AudioFolder });
    }
    // The first file that says something decides; sorted, so that it is the same one everywhere.
    let files = walkdir::WalkDir::new(folder).sort_by_file_name().into_iter().filter_map(Result::ok);
    let files: Vec<PathBuf> = files
        .filter(|entry| !entry.file_type().is_dir())
        .map(walkdir::DirEntry::into_path)
        .filter(|file| known_ending(file))
        .take(64)
        .collect();
    let has = |test: fn(&Path) -> bool| files.iter().any(|file| test(file));
    if has(|file| ending(file) == "tar") {
        Ok(Kind::Tar)
    } else if has(|file| ending(file) == "parquet") {
        Ok(Kind::Parquet)
    } else if has(is_audio) {
        Ok(Kind::Audio)
    } else if has(|file| ending(file) == "npy") {
        Ok(Kind::Npy)
    } else if has(|file| matches!(ending(file).as_str(), "jsonl" | "txt")) {
        Ok(Kind::Text)
    } else {
        Err(Error::config_hint(
            format!("`{}` holds no sound, arrays, text, tar shards or Parquet tables", folder.display()),
            "known endings: wav flac mp3 ogg m4a npy jsonl txt tar parquet",
        ))
    }
}

fn detect_file(file: &Path) -> Result<Kind> {
    match ending(file).as_str() {
        "tar" => return Ok(Kind::Tar),
        "parquet" => return Ok(Kind::Parquet),
        "npy" => return Ok(Kind::Npy),
        _ if is_audio(file) => return Ok(Kind::Audio),
        _ => {}
    }
    let lines = first_lines(file, 2)?;
    let first = lines.first().map(String::as_str).unwrap_or_default();
    let names_npy = lines.iter().any(|line| line.contains(".npy"));
    match ending(file).as_str() {
        "csv" | "tsv" if is_ljspeech(file) => Ok(Kind::LjSpeech),
        "csv" | "tsv" => Ok(if names_npy { Kind::NpyManifest } else { Kind::Manifest }),
        "jsonl" | "json" | "ndjson" => {
            // Any one line may be damaged; the first that is an object says what all are.
            let rows = first_lines(file, JSON_LINES)?;
            let row = rows
                .iter()
                .find_map(|line| serde_json::from_str::<serde_json::Map<_, serde_json::Value>>(line).ok());
            if row.is_none() && !rows.is_empty() && !first.trim_start().starts_with('{') {
                return Err(Error::config_hint(
                    format!("`{}` is not JSON lines: its first line is not an object", file.display()),
                    "write one JSON object a line; a JSON array can be turned into lines with `jq -c '.[]'`",
                ));
            }
            let row = row.unwrap_or_default();
            let names_media = super::table::MEDIA_COLUMNS.iter().any(|name| row.contains_key(*name));
            Ok(match (names_media, names_npy) {
                (true, true) => Kind::NpyManifest,
                (true, false) => Kind::Manifest,
                (false, _) => Kind::Text,
            })
        }
        _ => {
            let path = Path::new(first.trim());
            let listed = !first.trim().is_empty() && (is_audio(path) || ending(path) == "npy");
            Ok(if listed { Kind::PathList } else { Kind::Text })
        }
    }
}

/// `metadata.csv` or `metadata.jsonl` of a folder.
pub(super) fn metadata_file(folder: &Path) -> Option<PathBuf> {
    ["metadata.jsonl", "metadata.csv", "metadata.tsv"]
        .iter()
        .map(|name| folder.join(name))
        .find(|file| file.is_file())
}

fn is_ljspeech(file: &Path) -> bool {
    let wavs = file.parent().is_some_and(|folder| folder.join("wavs").is_dir());
    wavs && first_lines(file, 1).is_ok_and(|lines| lines.first().is_some_and(|line| line.contains('|')))
}

fn known_ending(file: &Path) -> bool {
    is_audio(file) || matches!(ending(file).as_str(), "npy" | "jsonl" | "txt" | "tar" | "parquet")
}

/// How many lines are looked at for one that can be read.
pub(super) const JSON_LINES: usize = 32;

/// The first lines of a file, however long the file or its lines are.
fn first_lines(file: &Path, count: usize) -> Result<Vec<String>> {
    let opened = fs::File::open(file).map_err(|error| Error::read(file, error))?;
    let mut reader = BufReader::new(opened.take(1 << 20));
    let mut lines = Vec::new();
    while lines.len() < count {
        let mut line = Vec::new();
        let read = reader.read_until(b'\n', &mut line).map_err(|error| Error::read(file, error))?;
        if read == 0 {
            break;
        }
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_start_matches('\u{feff}').trim_end();
        if !line.is_empty() {
            lines.push(line.to_owned());
        }
    }
    Ok(lines)
}
