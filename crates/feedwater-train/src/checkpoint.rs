//! How does a run survive a kill at any moment?
//!
//! A checkpoint is a folder, `step-00000120`, that appears at once: it is written under another name, made safe on the disk,
//! and renamed. Its `checksums` name every file with its length and hash, so that one that was torn or altered is found, and the
//! one before it is used. Two at least are kept, and the best.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::{
    Error, Result,
    tensors::{Named, read_safetensors, to_safetensors},
};

/// What a run is at, beside its numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps of the optimizer that were taken.
    pub step: u64,
    /// The state of the batches, as the engine writes it.
    pub feed: String,
    /// The best error rate so far, and its step.
    pub best: Option<(f64, u64)>,
    /// The loss of that one.
    #[serde(default)]
    pub best_loss: Option<f64>,
    /// Evaluations since.
    pub evaluations_since_best: u32,
    /// What the run was set up with; another set-up is another run.
    pub settings: serde_json::Value,
}

/// A checkpoint that was read.
pub struct Checkpoint {
    /// Where the run was.
    pub progress: Progress,
    /// The weights.
    pub model: Vec<Named>,
    /// What the optimizer knew.
    pub optimizer: Vec<Named>,
    /// Its folder.
    pub path: PathBuf,
}

/// The checkpoints of a run.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
}

const SUMS: &str = "checksums";
const PROGRESS: &str = "progress.json";
/// The weights, under the name that transformers gives them.
pub const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
/// What the optimizer knew, in a checkpoint that PyTorch wrote.
const TORCH: &str = "trainer.pt";
const PREFIX: &str = "step-";
const UNFINISHED: &str = ".unfinished-";
/// How many of the newest are kept.
const KEPT: usize = 2;

impl Checkpoints {
    /// Those in a folder, which need not be there yet.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Writes one, and takes away those that are not needed any more.
    ///
    /// `also` writes what belongs beside the weights.
    ///
    /// # Panics
    ///
    /// Never: progress is plain data.
    pub fn write(
        &self,
        progress: &Progress,
        model: &[Named],
        optimizer: &[Named],
        also: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let folder = self.begin(progress.step)?;
        let written = || {
            let progress = serde_json::to_vec_pretty(progress).expect("progress is plain data");
            put(&folder.join(MODEL), &to_safetensors(model)?)?;
            put(&folder.join(OPTIMIZER), &to_safetensors(optimizer)?)?;
            put(&folder.join(PROGRESS), &progress)?;
            also(&folder)
        };
        if let Err(error) = written() {
            self.abandon(progress.step);
            return Err(error);
        }
        self.finish(progress.step, progress.best.map(|(_, step)| step))
    }

    /// An empty folder to write a checkpoint's files into; [`Self::finish`] makes a checkpoint of it.
    pub fn begin(&self, step: u64) -> Result<PathBuf> {
        let folder = self.unfinished(step);
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(Error::write(&folder))?;
        }
        fs::create_dir_all(&folder).map_err(Error::write(&folder))?;
        Ok(folder)
    }

    /// Takes away what [`Self::begin`] began: it may take room that is missing.
    pub fn abandon(&self, step: u64) {
        let _ = fs::remove_dir_all(self.unfinished(step));
    }

    /// Makes the files of a checkpoint safe and gives it its name; those that are not needed any more go.
    pub fn finish(&self, step: u64, best: Option<u64>) -> Result<PathBuf> {
        let (path, unfinished) = (self.path(step), self.unfinished(step));
        let finished = seal(&unfinished).and_then(|()| {
            // A whole one of this step would have been gone on from: what is there is torn.
            if path.exists() {
                fs::remove_dir_all(&path).map_err(Error::write(&path))?;
            }
            fs::rename(&unfinished, &path).map_err(Error::write(&path))?;
            sync_folder(&self.folder).map_err(Error::write(&self.folder))
        });
        if let Err(error) = finished {
            self.abandon(step);
            return Err(error);
        }
        self.thin(step, best);
        Ok(path)
    }

    fn unfinished(&self, step: u64) -> PathBuf {
        self.folder.join(format!("{UNFINISHED}{step:08}"))
    }

    /// All there are, the newest first.
    fn steps(&self) -> Vec<u64> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let step = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix(PREFIX)?.parse().ok();
        let mut steps: Vec<u64> = entries.filter_map(step).collect();
        steps.sort_unstable_by(|a, b| b.cmp(a));
        steps
    }

    /// Takes away what is not needed any more. What cannot be is one too many, which does no harm.
    fn thin(&self, newest: u64, best: Option<u64>) {
        for step in self.steps().into_iter().filter(|step| *step <= newest).skip(KEPT) {
            if Some(step) != best {
                let _ = fs::remove_dir_all(self.path(step));
            }
        }
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Whether there is any.
    pub fn is_empty(&self) -> bool {
        self.steps().is_empty()
    }

    /// Where the best weights are, or the last where those are not there or not whole.
    pub fn model(&self, progress: &Progress) -> Option<PathBuf> {
        let steps = progress.best.map(|(_, step)| step).into_iter().chain([progress.step]);
        steps.map(|step| self.path(step)).find(|path| check(path).is_ok())
    }

    /// Where the checkpoint of a step is.
    pub fn path(&self, step: u64) -> PathBuf {
        self.folder.join(format!("{PREFIX}{step:08}"))
    }

    /// Where the newest that is whole is, and what was wrong with those that are newer.
    pub fn newest_whole(&self) -> (Option<PathBuf>, Vec<Error>) {
        let mut wrong = Vec::new();
        for path in self.steps().into_iter().map(|step| self.path(step)) {
            match check(&path) {
                Ok(()) => return (Some(path), wrong),
                Err(error) => wrong.push(error),
            }
        }
        (None, wrong)
    }

    /// Where the best weights are, or the newest where those are not there or not whole, whichever engine wrote them.
    pub fn best(&self) -> Option<PathBuf> {
        let newest = self.newest_whole().0?;
        let progress = fs::read(newest.join(PROGRESS)).unwrap_or_default();
        let progress: serde_json::Value = serde_json::from_slice(&progress).unwrap_or_default();
        let best = progress["best"][1].as_u64().map(|step| self.path(step));
        Some(best.filter(|path| check(path).is_ok()).unwrap_or(newest))
    }

    /// The newest that is whole, read, and what was wrong with those that are newer.
    pub fn newest(&self) -> (Option<Checkpoint>, Vec<Error>) {
        let mut wrong = Vec::new();
        for step in self.steps() {
            match read(&self.path(step)) {
                Ok(checkpoint) => return (Some(checkpoint), wrong),
                Err(error) => wrong.push(error),
            }
        }
        (None, wrong)
    }
}

/// Writes down what the files of a checkpoint are, and makes all of it safe.
fn seal(folder: &Path) -> Result<()> {
    let mut sums = String::new();
    for (name, path) in files(folder).map_err(Error::read(folder))? {
        sync(&path).map_err(Error::write(&path))?;
        let (sum, length) = summed(&path).map_err(Error::read(&path))?;
        let _ = writeln!(sums, "{sum:032x} {length} {name}");
    }
    let path = folder.join(SUMS);
    put(&path, sums.as_bytes())?;
    sync(&path).map_err(Error::write(&path))?;
    sync_folder(folder).map_err(Error::write(folder))
}

/// The checksum and the length of a file, which may be larger than the memory that is left.
fn summed(path: &Path) -> io::Result<(u128, u64)> {
    let mut file = File::open(path)?;
    let (mut hash, mut length) = (Xxh3::new(), 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((hash.digest128(), length)),
            read => {
                hash.update(&buffer[..read]);
                length += read as u64;
            }
        }
    }
}

/// Makes a file safe. Windows does that only for who may write.
fn sync(path: &Path) -> io::Result<()> {
    File::options().write(true).open(path)?.sync_all()
}

/// Reads a checkpoint, and looks whether it is what was written.
pub fn read(path: &Path) -> Result<Checkpoint> {
    check(path)?;
    if path.join(TORCH).exists() {
        let what = "it was written by PyTorch; --engine torch goes on from it".to_owned();
        return Err(Error::Checkpoint { path: path.to_owned(), what });
    }
    let progress = fs::read(path.join(PROGRESS)).map_err(Error::read(path.join(PROGRESS)))?;
    let progress = serde_json::from_slice(&progress)
        .map_err(|error| Error::Checkpoint { path: path.to_owned(), what: format!("{PROGRESS}: {error}") })?;
    let (model, optimizer) = (read_safetensors(&path.join(MODEL))?, read_safetensors(&path.join(OPTIMIZER))?);
    Ok(Checkpoint { progress, model, optimizer, path: path.to_owned() })
}

/// Whether all files are there, and as they were written.
pub fn check(path: &Path) -> Result<()> {
    let wrong = |what: String| Error::Checkpoint { path: path.to_owned(), what };
    let sums = fs::read_to_string(path.join(SUMS)).map_err(|error| wrong(format!("{SUMS}: {error}")))?;
    if sums.is_empty() {
        return Err(wrong(format!("{SUMS} is empty")));
    }
    for line in sums.lines() {
        let mut words = line.splitn(3, ' ');
        let (Some(sum), Some(length), Some(name)) = (words.next(), words.next(), words.next()) else {
            return Err(wrong(format!("{SUMS} has the line `{line}`")));
        };
        let (now, has) = summed(&path.join(name)).map_err(|error| wrong(format!("{name}: {error}")))?;
        if has.to_string() != length {
            return Err(wrong(format!("{name} has {has} bytes, and {length} were written")));
        }
        if format!("{now:032x}") != sum {
            return Err(wrong(format!("{name} was altered since it was written")));
        }
    }
    Ok(())
}

fn files(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if let Some(name) = path.file_name().and_then(|name| name.to_str()) {
            found.push((name.to_owned(), path));
        }
    }
    found.sort();
    Ok(found)
}

fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    File::create(path).and_then(|mut file| file.write_all(bytes)).map_err(Error::write(path))
}

/// Makes a rename safe. Windows has no such thing for folders, and needs none.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(windows) { Ok(()) } else { File::open(folder)?.sync_all() }
}
