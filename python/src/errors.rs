//! The engine's errors as Python's own: named for what the caller does next.

use std::io::ErrorKind;

use feedwater::Error;
use pyo3::{
    PyErr,
    exceptions::{PyFileNotFoundError, PyOSError, PyPermissionError, PyRuntimeError, PyValueError},
};

pub(crate) fn python(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Config { .. } | Error::Dataset { .. } | Error::State { .. } => PyValueError::new_err(text),
        Error::Read { source, .. } | Error::Write { source, .. } => match source.kind() {
            ErrorKind::NotFound => PyFileNotFoundError::new_err(text),
            ErrorKind::PermissionDenied => PyPermissionError::new_err(text),
            _ => PyOSError::new_err(text),
        },
        _ => PyRuntimeError::new_err(text),
    }
}
