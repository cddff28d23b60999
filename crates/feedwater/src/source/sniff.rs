//! What is this path? Decided by what is there, so that nobody has to name a format.

use std::{
    fs,
    io::{BufRead, BufReader, Read as _},
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{
    AUDIO_ENDINGS, ending, hdf5::is_hdf5, is_audio, not_finished, shard, tfrecord::is_tfrecord, walk,
};
use crate::{
    convert::unfinished,
    error::{Error, Result},
};

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
    /// Shards of ours, as `feedwater convert` makes them.
    Shard,
    /// `TFRecord` files of `tf.train.Example`.
    // As one word, as the files are called.
    #[serde(rename = "tfrecord")]
    TfRecord,
    /// HDF5 files of arrays.
    Hdf5,
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
            Self::Shard => "Feedwater shards",
            Self::TfRecord => "TFRecord files",
            Self::Hdf5 => "HDF5 arrays",
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
    let text = path.to_string_lossy();
    let (what, hint) = if path.exists() {
        ("is neither a file nor a folder", TRY_MORSE)
    } else if text.contains("://") {
        ("is an address, and files must be local", "download it, and give the folder that it is in")
    } else if text.contains(['*', '?', '[']) {
        ("does not exist, and `*`, `?` and `[]` are no patterns here", PATTERNS)
    } else if text.contains('{') {
        ("does not exist, and only tar shards can be named by a pattern", PATTERNS)
    } else {
        ("does not exist", TRY_MORSE)
    };
    Err(Error::config_hint(format!("`{text}` {what}"), hint))
}

const TRY_MORSE: &str = "`feedwater generate morse --out data/morse` makes a dataset to try";
const PATTERNS: &str = "give the folder, whose files are all opened; tar shards also by a brace pattern in quotes: \
                        'train-{000..099}.tar', '{train,valid}.tar'";

/// Sound that people have and that cannot be decoded.
const FOREIGN_ENDINGS: [&str; 8] = ["opus", "wma", "aiff", "aif", "amr", "webm", "ape", "wv"];

fn is_foreign(file: &Path) -> bool {
    FOREIGN_ENDINGS.contains(&ending(file).as_str())
}

fn foreign(path: &Path, ending: &str, holds: &str) -> Error {
    let name = match ending {
        "opus" => "Opus".to_owned(),
        other => format!("`.{other}`"),
    };
    Error::config_hint(
        format!("`{}` {holds} {name}, which is not supported", path.display()),
        format!("convert to FLAC, WAV or MP3, for example `ffmpeg -i a.{ending} a.flac`"),
    )
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
    let all = || {
        let entries = walk(folder).filter_map(Result::ok);
        entries.filter(|entry| !entry.file_type().is_dir()).map(walkdir::DirEntry::into_path)
    };
    let files: Vec<PathBuf> = all().filter(|file| known_ending(file)).take(64).collect();
    let has = |test: fn(&Path) -> bool| files.iter().any(|file| test(file));
    if has(|file| ending(file) == "tar") {
        Ok(Kind::Tar)
    } else if has(|file| ending(file) == "parquet") {
        Ok(Kind::Parquet)
    } else if has(|file| ending(file) == shard::ENDING) {
        Ok(Kind::Shard)
    } else if has(is_tfrecord) {
        Ok(Kind::TfRecord)
    } else if has(is_audio) {
        Ok(Kind::Audio)
    } else if has(|file| ending(file) == "npy") {
        Ok(Kind::Npy)
    } else if has(is_hdf5) {
        // Behind sound and arrays: the weights of a model often lie beside them, and end in `.h5`, too.
        Ok(Kind::Hdf5)
    } else if has(|file| matches!(ending(file).as_str(), "jsonl" | "txt")) {
        Ok(Kind::Text)
    } else if !unfinished(folder).is_empty() {
        Err(not_finished(folder))
    } else if let Some(file) = all().find(|file| is_foreign(file)) {
        Err(foreign(folder, &ending(&file), "holds sound as"))
    } else {
        Err(Error::config_hint(
            format!(
                "`{}` holds no sound, arrays, text, tar shards, Parquet tables or TFRecords",
                folder.display()
            ),
            format!(
                "known endings: {} {}; a csv or tsv table is opened by its own name, or as `metadata.csv` of its folder",
                AUDIO_ENDINGS.join(" "),
                OTHER_ENDINGS.join(" ")
            ),
        ))
    }
}

fn detect_file(file: &Path) -> Result<Kind> {
    match ending(file).as_str() {
        "tar" => return Ok(Kind::Tar),
        "parquet" => return Ok(Kind::Parquet),
        shard::ENDING => return Ok(Kind::Shard),
        "npy" => return Ok(Kind::Npy),
        _ if is_tfrecord(file) => return Ok(Kind::TfRecord),
        _ if is_hdf5(file) => return Ok(Kind::Hdf5),
        _ if is_audio(file) => return Ok(Kind::Audio),
        _ if is_foreign(file) => return Err(foreign(file, &ending(file), "is")),
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
    is_audio(file) || is_tfrecord(file) || OTHER_ENDINGS.contains(&ending(file).as_str())
}

/// What a file of a folder may be besides sound.
const OTHER_ENDINGS: [&str; 11] =
    ["npy", "jsonl", "txt", "tar", "parquet", shard::ENDING, "tfrecord", "tfrecords", "tfrec", "h5", "hdf5"];

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
