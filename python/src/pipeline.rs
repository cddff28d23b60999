//! A pipeline that runs, as Python holds it.

use std::{
    process,
    sync::{Mutex, MutexGuard, PoisonError},
};

use feedwater::{Error, State, pipeline::Reading};
use pyo3::{exceptions::PyRuntimeError, prelude::*};

use crate::{batch::Batch, builder::Raised, errors::python};

/// A pipeline that runs. Threads start with the first batch and end with `stop`.
#[pyclass(frozen, module = "feedwater._core")]
pub(crate) struct Pipeline {
    inner: Mutex<Option<Inner>>,
    /// The process that it was made in: a fork has none of its threads.
    process: u32,
    raised: Raised,
}

struct Inner {
    pipeline: feedwater::Pipeline,
    reading: Option<Reading>,
}

impl Pipeline {
    pub(crate) fn new(pipeline: feedwater::Pipeline, raised: Raised) -> Self {
        Self { inner: Mutex::new(Some(Inner { pipeline, reading: None })), process: process::id(), raised }
    }

    /// With the lock and without the GIL: a thread that waits for the one must not hold the other.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl Send + FnOnce(&mut Inner) -> PyResult<T>,
    ) -> PyResult<T> {
        if process::id() != self.process {
            return Err(PyRuntimeError::new_err(
                "this loader was made before the process was forked, and its threads are in the other process\n\
                 hint: make the loader in the process that uses it",
            ));
        }
        py.detach(|| match &mut *self.lock() {
            Some(inner) => work(inner),
            None => Err(PyRuntimeError::new_err("this loader was closed")),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Inner>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Pipeline {
    /// Begins an epoch, or goes on with it where a state was restored.
    fn begin(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.with(py, |inner| {
            inner.reading = Some(inner.pipeline.begin(epoch));
            Ok(())
        })
    }

    /// The next batch; none at the end of the epoch.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let next = self.with(py, |inner| {
            let Some(reading) = &mut inner.reading else {
                return Err(PyRuntimeError::new_err("no epoch was begun"));
            };
            let next = inner.pipeline.next(reading).transpose();
            Ok(next.map(|batch| batch.map(|batch| Batch::new(batch, inner.pipeline.state().to_json()))))
        })?;
        next.map_err(|error| {
            let raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner).take();
            raised.filter(|_| matches!(error, Error::Interrupted)).unwrap_or_else(|| python(error))
        })
    }

    /// Whether the next batch is there, so that asking for it does not wait.
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |inner| Ok(inner.pipeline.is_ready()))
    }

    /// Ends all threads. What was consumed is remembered.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |inner| {
            inner.reading = None;
            inner.pipeline.stop();
            Ok(())
        })
    }

    /// What was consumed so far, as JSON.
    fn state(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |inner| Ok(inner.pipeline.state().to_json()))
    }

    /// Goes on from a state.
    fn restore(&self, py: Python<'_>, state: &str) -> PyResult<()> {
        self.with(py, |inner| {
            inner.reading = None;
            inner.pipeline.restore(&State::from_json(state).map_err(python)?).map_err(python)
        })
    }

    /// Steps of an epoch; none where that is not known before it is over.
    fn steps(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.with(py, |inner| Ok(inner.pipeline.steps()))
    }

    /// Samples of the dataset.
    fn samples(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |inner| Ok(inner.pipeline.samples()))
    }

    /// The names of the classes, where labels are names.
    fn classes(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.with(py, |inner| Ok(inner.pipeline.classes().to_vec()))
    }

    /// What was done so far and where the time went, as JSON.
    fn report(&self, py: Python<'_>) -> PyResult<String> {
        let report = self.with(py, |inner| Ok(inner.pipeline.report()))?;
        serde_json::to_string(&report).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if process::id() != self.process {
            // Its threads are in the other process: there is nobody to be joined, and locks may be held for ever.
            std::mem::forget(inner);
            return;
        }
        // Workers may need the GIL to end.
        let mut inner = inner;
        if Python::try_attach(|py| py.detach(|| drop(inner.take()))).is_none() {
            // Python is gone, and with it what workers could be waiting for.
            std::mem::forget(inner);
        }
    }
}
