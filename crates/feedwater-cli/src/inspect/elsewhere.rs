//! Do the metadata lie a folder above or below the one that was named?
//!
//! `data/morse/train` has the files and `data/morse` says what is in them; whoever names the one or `data` sees bare files,
//! without a text, and wonders why.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use feedwater::source::Kind;

use super::problems::{Id, Problem, Severity};
use crate::shell;

const NAMES: [&str; 3] = ["metadata.jsonl", "metadata.csv", "metadata.tsv"];

/// A folder that should have been named.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    folder: PathBuf,
    metadata: PathBuf,
    above: bool,
}

impl Elsewhere {
    /// Looks above and below a folder of bare files.
    pub(crate) fn find(path: &Path, kind: Kind) -> Option<Self> {
        if !path.is_dir() || !matches!(kind, Kind::Audio | Kind::Npy) {
            return None;
        }
        above(path).or_else(|| below(path))
    }

    /// Puts it among the problems, in place of the note that nothing has a text.
    pub(crate) fn tell(&self, samples: u64, problems: &mut Vec<Problem>) {
        problems.retain(|problem| {
            !(problem.severity == Severity::Note && matches!(problem.id, Id::MissingText | Id::MissingLabel))
        });
        let metadata = self.metadata.display();
        let what = if self.above {
            format!("`{metadata}` lists these files, a folder above this one")
        } else {
            format!("`{metadata}` lists files of its folder, which are bare files from here")
        };
        problems.push(Problem {
            id: Id::MetadataElsewhere,
            severity: Severity::Note,
            count: samples,
            what,
            examples: Vec::new(),
            hint: format!("inspect that folder instead: `{}`", self.command()),
        });
        problems.sort_by_key(|problem| (problem.severity, problem.id));
    }

    pub(crate) fn command(&self) -> String {
        format!("feedwater inspect {}", shell::word(&self.folder.to_string_lossy()))
    }
}

fn metadata(folder: &Path) -> Option<PathBuf> {
    NAMES.iter().map(|name| folder.join(name)).find(|file| file.is_file())
}

fn above(path: &Path) -> Option<Elsewhere> {
    let name = fs::canonicalize(path).ok()?.file_name()?.to_string_lossy().into_owned();
    let folder = match path.parent() {
        _ if path.file_name().is_none() => path.join(".."),
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_owned(),
        None => return None,
    };
    let metadata = metadata(&folder)?;
    let mut start = Vec::new();
    fs::File::open(&metadata).ok()?.take(1 << 16).read_to_end(&mut start).ok()?;
    let start = String::from_utf8_lossy(&start);
    start.contains(&format!("{name}/")).then_some(Elsewhere { folder, metadata, above: true })
}

fn below(path: &Path) -> Option<Elsewhere> {
    let mut folders: Vec<PathBuf> = fs::read_dir(path).ok()?.flatten().map(|entry| entry.path()).collect();
    folders.sort_unstable();
    folders
        .into_iter()
        .find_map(|folder| Some(Elsewhere { metadata: metadata(&folder)?, folder, above: false }))
}
