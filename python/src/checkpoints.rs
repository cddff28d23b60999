//! The checkpoints of a run: the native trainer's, whose files whoever trains writes.

use std::path::PathBuf;

use feedwater_train::checkpoint;
use pyo3::{exceptions::PyOSError, prelude::*};

/// The checkpoints of a run.
#[pyclass(module = "feedwater._core")]
pub(crate) struct Checkpoints(checkpoint::Checkpoints);

#[pymethods]
impl Checkpoints {
    #[new]
    fn new(folder: PathBuf) -> Self {
        Self(checkpoint::Checkpoints::new(folder))
    }

    /// An empty folder to write the files of a checkpoint into.
    fn begin(&self, step: u64) -> PyResult<PathBuf> {
        self.0.begin(step).map_err(told)
    }

    /// Takes away what was begun.
    fn abandon(&self, step: u64) {
        self.0.abandon(step);
    }

    /// Makes a checkpoint of what was begun; those that are not needed any more go.
    #[pyo3(signature = (step, best))]
    fn finish(&self, py: Python<'_>, step: u64, best: Option<u64>) -> PyResult<PathBuf> {
        py.detach(|| self.0.finish(step, best)).map_err(told)
    }

    /// Where the newest that is whole is, and what is wrong with newer ones.
    fn newest(&self, py: Python<'_>) -> (Option<PathBuf>, Vec<String>) {
        let (newest, wrong) = py.detach(|| self.0.newest_whole());
        (newest, wrong.iter().map(ToString::to_string).collect())
    }

    /// Where the best weights are, or the newest.
    fn best(&self, py: Python<'_>) -> Option<PathBuf> {
        py.detach(|| self.0.best())
    }

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Where that of a step is.
    fn path(&self, step: u64) -> PathBuf {
        self.0.path(step)
    }
}

fn told(error: impl std::fmt::Display) -> PyErr {
    PyOSError::new_err(error.to_string())
}
