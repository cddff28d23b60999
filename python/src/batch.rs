//! A batch in Python: its tensors are the engine's memory, handed over without a copy through DLPack or numpy's array
//! interface.

use std::{
    collections::HashMap,
    ffi::{CStr, c_void},
    ptr::NonNull,
    sync::Arc,
};

use feedwater::{BatchTensor, DType, ReadyBatch};
use pyo3::{
    exceptions::PyTypeError,
    prelude::*,
    types::{PyCapsule, PyTuple},
};

/// A batch.
#[pyclass(frozen, module = "feedwater._core")]
pub(crate) struct Batch {
    #[pyo3(get)]
    epoch: u64,
    #[pyo3(get)]
    step: u64,
    #[pyo3(get)]
    keys: Vec<String>,
    #[pyo3(get)]
    valid: Vec<bool>,
    #[pyo3(get)]
    wait_nanos: u64,
    texts: Vec<(String, Vec<String>)>,
    tensors: Vec<Tensor>,
    input: feedwater_profile::record::Input,
    state: String,
}

impl Batch {
    /// `state` is the place right after this batch.
    pub(crate) fn new(mut batch: ReadyBatch, state: String) -> Self {
        let tensors = std::mem::take(&mut batch.tensors).into_iter();
        Self {
            epoch: batch.epoch,
            step: batch.step,
            keys: std::mem::take(&mut batch.keys),
            valid: std::mem::take(&mut batch.valid),
            wait_nanos: batch.wait_nanos,
            texts: std::mem::take(&mut batch.texts),
            tensors: tensors.map(|tensor| Tensor { tensor: Arc::new(tensor) }).collect(),
            input: std::mem::take(&mut batch.input),
            state,
        }
    }
}

#[pymethods]
impl Batch {
    /// The tensors, by the name of the model's argument.
    fn tensors(&self) -> Vec<(String, Tensor)> {
        self.tensors.iter().map(|tensor| (tensor.tensor.name.clone(), tensor.clone())).collect()
    }

    /// Text that was not tokenized, a string a row.
    fn texts(&self) -> Vec<(String, Vec<String>)> {
        self.texts.clone()
    }

    /// The place right after this batch, as JSON.
    fn state(&self) -> &str {
        &self.state
    }

    /// How it was made, as JSON: `input` of a record's step.
    fn input(&self) -> PyResult<String> {
        serde_json::to_string(&self.input).map_err(|error| PyTypeError::new_err(error.to_string()))
    }
}

/// One tensor of a batch. It keeps its memory from being filled again for as long as it, or an array made of it, is there.
#[pyclass(frozen, module = "feedwater._core")]
#[derive(Clone)]
pub(crate) struct Tensor {
    tensor: Arc<BatchTensor>,
}

#[pymethods]
impl Tensor {
    /// Its shape; the first axis is the rows.
    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.tensor.shape.clone()
    }

    /// The type of its numbers: `float32`, `float16`, `bfloat16` or `int64`.
    #[getter]
    fn dtype(&self) -> &'static str {
        match self.tensor.dtype {
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::I64 => "int64",
        }
    }

    /// How long each row was before it was padded.
    #[getter]
    fn lengths(&self) -> Vec<usize> {
        self.tensor.lengths.clone()
    }

    /// Where it begins.
    #[getter]
    fn data_ptr(&self) -> usize {
        self.tensor.as_bytes().as_ptr() as usize
    }

    /// What numpy asks for.
    #[getter(__array_interface__)]
    fn array_interface<'py>(&self, py: Python<'py>) -> PyResult<HashMap<&'static str, Bound<'py, PyAny>>> {
        let typestr = match self.tensor.dtype {
            DType::F32 => "<f4",
            DType::F16 => "<f2",
            DType::I64 => "<i8",
            DType::BF16 => {
                return Err(PyTypeError::new_err(
                    "numpy has no bfloat16\nhint: `.batch(…, dtype=\"float16\")`, or `.torch()`, which has it",
                ));
            }
        };
        let shape = PyTuple::new(py, &self.tensor.shape)?;
        let data = (self.data_ptr(), false).into_pyobject(py)?;
        Ok(HashMap::from([
            ("shape", shape.into_any()),
            ("typestr", typestr.into_pyobject(py)?.into_any()),
            ("data", data.into_any()),
            ("version", 3_i32.into_pyobject(py)?.into_any()),
        ]))
    }

    /// CPU, number 0.
    #[expect(clippy::unused_self, reason = "what Python calls it with")]
    fn __dlpack_device__(&self) -> (i32, i32) {
        (CPU, 0)
    }

    /// The tensor as DLPack hands it over: without a copy.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(stream);
        if dl_device.is_some_and(|device| device != (CPU, 0)) || copy == Some(true) {
            return Err(pyo3::exceptions::PyBufferError::new_err(
                "only as it is: on the CPU, without a copy",
            ));
        }
        let managed = Managed::new(self.tensor.clone());
        if max_version.is_some_and(|(major, _)| major >= 1) {
            managed.versioned(py)
        } else {
            managed.unversioned(py)
        }
    }

    fn __repr__(&self) -> String {
        format!("Tensor({:?})", self.tensor)
    }
}

/// What DLPack calls the CPU.
const CPU: i32 = 1;
const UNVERSIONED: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

// The structures of `dlpack.h`, field by field.
#[repr(C)]
struct DlDevice {
    kind: i32,
    number: i32,
}

#[repr(C)]
struct DlType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    axes: i32,
    dtype: DlType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct DlManaged {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManaged)>,
}

#[repr(C)]
struct DlManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// What must live as long as somebody has the tensor.
struct Managed {
    tensor: Arc<BatchTensor>,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

impl Managed {
    fn new(tensor: Arc<BatchTensor>) -> Self {
        let shape: Vec<i64> = tensor.shape.iter().map(|length| *length as i64).collect();
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis];
        }
        Self { tensor, shape, strides }
    }

    fn described(&mut self) -> DlTensor {
        let (code, bits) = match self.tensor.dtype {
            DType::F32 => (2, 32),
            DType::F16 => (2, 16),
            DType::BF16 => (4, 16),
            DType::I64 => (0, 64),
        };
        DlTensor {
            data: self.tensor.as_bytes().as_ptr().cast_mut().cast(),
            device: DlDevice { kind: CPU, number: 0 },
            axes: self.shape.len() as i32,
            dtype: DlType { code, bits, lanes: 1 },
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            byte_offset: 0,
        }
    }

    fn unversioned(mut self, py: Python<'_>) -> PyResult<Bound<'_, PyCapsule>> {
        let tensor = self.described();
        // The vectors stay where they are when what owns them moves.
        let context = Box::into_raw(Box::new(self)).cast();
        let managed = Box::new(DlManaged { tensor, context, deleter: Some(delete) });
        capsule(py, NonNull::from(Box::leak(managed)).cast(), UNVERSIONED, forget)
    }

    fn versioned(mut self, py: Python<'_>) -> PyResult<Bound<'_, PyCapsule>> {
        let tensor = self.described();
        // The vectors stay where they are when what owns them moves.
        let context = Box::into_raw(Box::new(self)).cast();
        let managed = DlManagedVersioned {
            major: 1,
            minor: 0,
            context,
            deleter: Some(delete_versioned),
            flags: 0,
            tensor,
        };
        capsule(py, NonNull::from(Box::leak(Box::new(managed))).cast(), VERSIONED, forget_versioned)
    }
}

fn capsule<'py>(
    py: Python<'py>,
    managed: NonNull<c_void>,
    name: &'static CStr,
    destructor: pyo3::ffi::PyCapsule_Destructor,
) -> PyResult<Bound<'py, PyCapsule>> {
    // SAFETY: `managed` is a box that was leaked for this; whoever takes it renames the capsule and calls the deleter,
    // and where nobody takes it, the destructor does.
    unsafe { PyCapsule::new_with_pointer_and_destructor(py, managed, name, Some(destructor)) }
}

/// Called by whoever took the tensor, on any thread, when it needs it no longer.
unsafe extern "C" fn delete(managed: *mut DlManaged) {
    // SAFETY: both boxes were leaked in `unversioned`, and DLPack calls this once.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Managed>()));
    }
}

unsafe extern "C" fn delete_versioned(managed: *mut DlManagedVersioned) {
    // SAFETY: both boxes were leaked in `versioned`, and DLPack calls this once.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Managed>()));
    }
}

/// The tensor in a capsule that nobody took: one that was taken has another name.
unsafe fn untaken<T>(capsule: *mut pyo3::ffi::PyObject, name: &CStr) -> Option<*mut T> {
    // SAFETY: Python hands in the capsule that is being destroyed; it holds a `T` as long as it has the name.
    unsafe {
        (pyo3::ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 1)
            .then(|| pyo3::ffi::PyCapsule_GetPointer(capsule, name.as_ptr()).cast())
    }
}

unsafe extern "C" fn forget(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: as `untaken` and `delete` say.
    unsafe {
        if let Some(managed) = untaken(capsule, UNVERSIONED) {
            delete(managed);
        }
    }
}

unsafe extern "C" fn forget_versioned(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: as `untaken` and `delete_versioned` say.
    unsafe {
        if let Some(managed) = untaken(capsule, VERSIONED) {
            delete_versioned(managed);
        }
    }
}
