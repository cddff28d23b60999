//! The engine and the command as a Python extension: `feedwater._core`, private, thin. What people use is in
//! `python/feedwater/`, in Python, where its types and words are.

mod batch;
mod builder;
mod checkpoints;
mod errors;
mod map;
mod pipeline;

use pyo3::prelude::*;

/// The engine. Private: use `feedwater`.
#[pymodule(gil_used = true)]
mod _core {
    #[pymodule_export]
    use crate::{
        batch::{Batch, Tensor},
        builder::Builder,
        checkpoints::Checkpoints,
        pipeline::Pipeline,
    };

    use std::{ffi::OsString, path::PathBuf};

    use feedwater_profile::{Diagnosis, Record, render};
    use feedwater_train::{
        metrics,
        vocabulary::{Vocabulary, bytes_with_tokens},
    };
    use pyo3::{
        exceptions::{PySystemExit, PyValueError},
        prelude::*,
    };

    /// The version of the engine.
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "what Python calls it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    /// Runs the `feedwater` command; the first argument is the program's name.
    #[pyfunction]
    fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
        py.detach(|| feedwater_cli::main(arguments))
    }

    /// What the arguments of `feedwater train` say, as JSON. Ends Python where they are wrong, or only ask for help.
    #[pyfunction]
    fn train_options(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<String> {
        py.detach(|| feedwater_cli::train_options(command("train", arguments))).map_err(PySystemExit::new_err)
    }

    /// A `tokenizer.json` of the letters of all texts of a dataset, behind some tokens of a model; without any, behind
    /// the blank of CTC.
    #[pyfunction]
    #[expect(clippy::needless_pass_by_value, reason = "what Python's lists become")]
    fn letters(py: Python<'_>, data: PathBuf, tokens: Vec<String>) -> PyResult<String> {
        py.detach(|| {
            let source = feedwater::source::open(data).map_err(crate::errors::python)?;
            let letters = Vocabulary::of(&*source).map_err(told)?;
            let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
            Ok(if tokens.is_empty() { letters.file() } else { letters.with_tokens(&tokens) })
        })
    }

    /// A `tokenizer.json` with a token for each byte, and those of a model behind them.
    #[pyfunction]
    #[expect(clippy::needless_pass_by_value, reason = "what Python's lists become")]
    fn byte_tokens(tokens: Vec<String>) -> String {
        bytes_with_tokens(&tokens.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Character and word error rates of transcripts: pairs of what is right and what was heard.
    #[pyfunction]
    #[expect(clippy::needless_pass_by_value, reason = "what Python's lists become")]
    fn error_rates(pairs: Vec<(String, String)>) -> (f64, f64) {
        let both = || pairs.iter().map(|(right, heard)| (right.as_str(), heard.as_str()));
        (metrics::cer(both()).share(), metrics::wer(both()).share())
    }

    fn command(verb: &str, arguments: Vec<OsString>) -> impl Iterator<Item = OsString> {
        ["feedwater", verb].map(OsString::from).into_iter().chain(arguments)
    }

    /// What a record says, in words for a terminal of 80 columns.
    #[pyfunction]
    fn verdict(py: Python<'_>, record: PathBuf) -> PyResult<String> {
        py.detach(|| {
            let record = Record::open(record).map_err(told)?;
            let diagnosis = Diagnosis::of(&record).map_err(told)?;
            Ok(render::text::render(&diagnosis, render::text::Colour::None))
        })
    }

    /// What a record says, as a page for a browser.
    #[pyfunction]
    fn html(py: Python<'_>, record: PathBuf) -> PyResult<String> {
        py.detach(|| {
            let record = Record::open(record).map_err(told)?;
            let diagnosis = Diagnosis::of(&record).map_err(told)?;
            render::html::render(&record, &diagnosis).map_err(told)
        })
    }

    /// What a record says, as JSON.
    #[pyfunction]
    fn diagnose(py: Python<'_>, record: PathBuf) -> PyResult<String> {
        py.detach(|| {
            let record = Record::open(record).map_err(told)?;
            serde_json::to_string(&Diagnosis::of(&record).map_err(told)?).map_err(told)
        })
    }

    /// This machine, as a record describes it, as JSON.
    #[pyfunction]
    fn host(py: Python<'_>) -> PyResult<String> {
        py.detach(|| serde_json::to_string(&feedwater_profile::machine::host()).map_err(told))
    }

    /// Waits until no worker is in a function of Python's, but not longer than so many seconds.
    #[pyfunction]
    fn settle(py: Python<'_>, seconds: f64) {
        py.detach(|| crate::map::settle(std::time::Duration::from_secs_f64(seconds.clamp(0.0, 60.0))));
    }

    fn told(error: impl std::fmt::Display) -> PyErr {
        PyValueError::new_err(error.to_string())
    }
}
