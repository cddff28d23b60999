//! How is a record written without being in the way? A line at a time, through a buffer, with its own cost on the bill.

use std::{
    fs::File,
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde::Serialize;

use super::{DeviceSample, End, Head, Run, Score, Step, VERSION, announce::Held};
use crate::error::{Error, Result};

/// How much of a run a kill may cost.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// Writes a record as the run goes.
pub struct Recorder {
    path: PathBuf,
    file: BufWriter<File>,
    line: Vec<u8>,
    began: Instant,
    flushed: Instant,
    overhead: Duration,
    /// Says to whoever watches that this run is going on, until this is dropped.
    announced: Option<Held>,
}

impl Recorder {
    /// Begins a record, and announces the run to `feedwater monitor`. What was at `path` is replaced.
    pub fn create(path: impl AsRef<Path>, run: &Run) -> Result<Self> {
        let mut recorder = Self::begin(path.as_ref(), run)?;
        recorder.announced = Held::announce(&recorder.path, run);
        Ok(recorder)
    }

    /// The same, and nobody is told.
    pub fn create_unannounced(path: impl AsRef<Path>, run: &Run) -> Result<Self> {
        Self::begin(path.as_ref(), run)
    }

    /// The same, with the announcement in a folder of the caller's, as `FEEDWATER_RUNS_DIR` would name it.
    pub fn create_announced_in(path: impl AsRef<Path>, run: &Run, folder: impl AsRef<Path>) -> Result<Self> {
        let mut recorder = Self::begin(path.as_ref(), run)?;
        recorder.announced = Held::announce_in(folder.as_ref(), &recorder.path, run);
        Ok(recorder)
    }

    fn begin(path: &Path, run: &Run) -> Result<Self> {
        let path = path.to_owned();
        let file = File::create(&path).map_err(|source| Error::Write { path: path.clone(), source })?;
        let began = Instant::now();
        let mut recorder = Self {
            path,
            file: BufWriter::with_capacity(64 * 1024, file),
            line: Vec::new(),
            began,
            flushed: began,
            overhead: Duration::ZERO,
            announced: None,
        };
        recorder.write(&Head { record: "feedwater".to_owned(), version: VERSION, run: run.clone() })?;
        // So that there is a first line for whoever looks at once.
        recorder.flush()?;
        Ok(recorder)
    }

    /// Adds a step.
    pub fn step(&mut self, step: &Step) -> Result<()> {
        self.write(step)
    }

    /// Adds how a device did.
    pub fn device(&mut self, device: &DeviceSample) -> Result<()> {
        #[derive(Serialize)]
        struct Line<'a> {
            device: &'a DeviceSample,
        }
        self.write(&Line { device })
    }

    /// Adds how the model did on what it does not learn from.
    pub fn score(&mut self, score: &Score) -> Result<()> {
        #[derive(Serialize)]
        struct Line<'a> {
            score: &'a Score,
        }
        self.write(&Line { score })
    }

    /// What recording took so far.
    pub fn overhead(&self) -> Duration {
        self.overhead
    }

    /// Ends the record. `measuring` is what the run spent on measuring itself, beside the writing of this file.
    pub fn end(mut self, measuring: Duration) -> Result<()> {
        #[derive(Serialize)]
        struct Line {
            end: End,
        }
        let overhead_nanos = Some((self.overhead + measuring).as_nanos() as u64);
        self.write(&Line {
            end: End { wall_nanos: self.began.elapsed().as_nanos() as u64, overhead_nanos },
        })?;
        self.flush()
    }

    /// Lets readers see all that was added. It happens by itself every second or so, as steps are added.
    pub fn flush(&mut self) -> Result<()> {
        self.file.flush().map_err(|source| Error::Write { path: self.path.clone(), source })
    }

    fn write(&mut self, line: &impl Serialize) -> Result<()> {
        let began = Instant::now();
        let failed = |source| Error::Write { path: self.path.clone(), source };
        self.line.clear();
        serde_json::to_writer(&mut self.line, line).map_err(|error| failed(error.into()))?;
        self.line.push(b'\n');
        self.file.write_all(&self.line).map_err(failed)?;
        if began.duration_since(self.flushed) > FLUSH_EVERY {
            self.file.flush().map_err(failed)?;
            self.flushed = began;
        }
        self.overhead += began.elapsed();
        Ok(())
    }
}
