//! A Python function as a stage. Only one thread at a time can be in it: what the others wait is booked as `gil`.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use feedwater::{
    Fault, Sample, Value,
    pipeline::{Context, Stage},
    sample::{Media, Tensor, Waveform},
};
use pyo3::{
    prelude::*,
    types::{PyByteArray, PyBytes, PyDict, PyList, PyTuple},
};

/// A Python function from fields to fields. Each field is a pair of its kind and what it holds; `feedwater.pipeline`
/// makes arrays of them and back.
pub(crate) struct PythonMap {
    pub(crate) name: &'static str,
    pub(crate) run: Py<PyAny>,
}

/// Workers that are in Python, or about to be.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

struct Inside;

impl Inside {
    fn new() -> Self {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until no worker is in Python any more, but not for ever. A thread that comes back to a Python which is shutting
/// down ends the process; one that was left behind in a function that hangs may do so.
pub(crate) fn settle(limit: Duration) {
    let deadline = Instant::now() + limit;
    while INSIDE.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
}

impl Stage for PythonMap {
    fn name(&self) -> &'static str {
        self.name
    }

    fn describe(&self) -> String {
        format!("map {}", self.name)
    }

    fn books(&self) -> (&'static [&'static str], &'static [&'static str]) {
        (&[], &["gil"])
    }

    fn apply(&self, sample: &mut Sample, context: &mut Context) -> Result<(), Fault> {
        let _inside = Inside::new();
        let began = Instant::now();
        let done = Python::try_attach(|py| {
            context.charge("gil", began.elapsed(), 0);
            self.call(py, sample).map_err(|error| Fault::new(told(py, &error)))
        });
        done.unwrap_or_else(|| Err(Fault::new("Python is shutting down")))
    }
}

impl PythonMap {
    fn call(&self, py: Python<'_>, sample: &mut Sample) -> PyResult<()> {
        let fields = PyDict::new(py);
        for (name, value) in sample.fields() {
            fields.set_item(name, given(py, value)?)?;
        }
        let made = self.run.bind(py).call1((&sample.key, fields))?;
        let made = made.cast_into::<PyDict>()?;
        let names: Vec<String> = sample.fields().map(|(name, _)| name.to_owned()).collect();
        for name in names {
            if !made.contains(&name)? {
                sample.take(&name);
            }
        }
        for (name, value) in made {
            let name: String = name.extract()?;
            if let Some(mut value) = taken(&value)? {
                // How it is padded is what the stage before said, as long as it has as many axes.
                if let (Value::Tensor(new), Some(Value::Tensor(old))) = (&mut value, sample.get(&name))
                    && new.shape.len() == old.shape.len()
                {
                    (new.pad_axis, new.pad_to, new.fill) = (old.pad_axis, old.pad_to, old.fill);
                }
                sample.set(name, value);
            }
        }
        Ok(())
    }
}

/// A field on its way to Python.
fn given<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyTuple>> {
    let numbers = |data: &[f32]| {
        PyByteArray::new_with(py, size_of_val(data), |bytes| {
            for (four, number) in bytes.chunks_exact_mut(4).zip(data) {
                four.copy_from_slice(&number.to_ne_bytes());
            }
            Ok(())
        })
    };
    match value {
        Value::Audio(Waveform { samples, rate }) => ("audio", numbers(samples)?, *rate).into_pyobject(py),
        Value::Tensor(Tensor { data, shape, .. }) => {
            ("tensor", numbers(data)?, shape.clone()).into_pyobject(py)
        }
        Value::Text(text) => ("text", text).into_pyobject(py),
        Value::Tokens(ids) => ("tokens", PyList::new(py, ids)?).into_pyobject(py),
        Value::Number(number) => ("number", *number).into_pyobject(py),
        Value::Bytes(bytes) => ("bytes", PyBytes::new(py, bytes)).into_pyobject(py),
        Value::Media(Media { path, .. }) => ("media", path.to_path_buf()).into_pyobject(py),
        Value::Spans(_) => ("kept",).into_pyobject(py),
    }
}

/// A field on its way back; none where it is to stay as it was.
fn taken(value: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
    let kind: String = value.get_item(0)?.extract()?;
    let numbers = || -> PyResult<Vec<f32>> {
        let bytes = value.get_item(1)?.cast_into::<PyBytes>()?;
        let number = |four: &[u8]| f32::from_ne_bytes([four[0], four[1], four[2], four[3]]);
        Ok(bytes.as_bytes().chunks_exact(4).map(number).collect())
    };
    Ok(Some(match kind.as_str() {
        "audio" => Value::Audio(Waveform { samples: numbers()?, rate: value.get_item(2)?.extract()? }),
        "tensor" => {
            let shape = value.get_item(2)?.extract()?;
            Value::Tensor(Tensor { data: numbers()?, shape, ..Tensor::default() })
        }
        "text" => Value::Text(value.get_item(1)?.extract()?),
        "tokens" => Value::Tokens(value.get_item(1)?.extract()?),
        "number" => Value::Number(value.get_item(1)?.extract()?),
        "bytes" => Value::Bytes(value.get_item(1)?.extract()?),
        _ => return Ok(None),
    }))
}

/// What Python raised, and where.
fn told(py: Python<'_>, error: &PyErr) -> String {
    let mut told = error.to_string();
    let mut traceback = error.traceback(py);
    while let Some(here) = traceback {
        let next = here.getattr("tb_next").ok().and_then(|next| next.cast_into().ok());
        if next.is_none()
            && let (Ok(code), Ok(line)) =
                (here.getattr("tb_frame").and_then(|f| f.getattr("f_code")), here.getattr("tb_lineno"))
            && let Ok(file) = code.getattr("co_filename")
        {
            told = format!("{told} ({file}:{line})");
        }
        traceback = next;
    }
    told
}
