//! A pipeline that is being put together: the engine's builder, a method each. `feedwater.pipeline` says what they mean.

use std::{
    path::PathBuf,
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use feedwater::{
    Audio, Batch, Cache, Chunk, DType, Gain, LogMel, Noise, Npy, Pad, Policy, SpecAugment, Threads,
    TimeShift, Tokenize, WithoutTimes, cache::Identity, deliver::Memory, field,
};
use pyo3::{exceptions::PyValueError, prelude::*};

use crate::{errors::python, map::PythonMap, pipeline::Pipeline};

/// A pipeline that is being put together.
#[pyclass(module = "feedwater._core")]
pub(crate) struct Builder {
    /// Taken out while a method changes it, and for good by `build`.
    builder: Option<feedwater::Builder>,
    raised: Raised,
}

/// What a signal's handler raised while a batch was waited for.
pub(crate) type Raised = Arc<Mutex<Option<PyErr>>>;

impl Builder {
    fn of(builder: feedwater::Builder) -> Self {
        let raised = Raised::default();
        let builder = builder.interrupt({
            let raised = raised.clone();
            move || Python::try_attach(|py| interrupted(py, &raised)).unwrap_or(true)
        });
        Self { builder: Some(builder), raised }
    }

    fn change(&mut self, change: impl FnOnce(feedwater::Builder) -> feedwater::Builder) -> PyResult<()> {
        let builder = self.builder.take().ok_or_else(|| PyValueError::new_err("it was built already"))?;
        self.builder = Some(change(builder));
        Ok(())
    }
}

#[pymethods]
impl Builder {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let builder = py.detach(|| feedwater::Pipeline::open(path)).map_err(python)?;
        Ok(Self::of(builder))
    }

    /// The part of a dataset that is learned from, or the part that is held out.
    #[staticmethod]
    fn part(py: Python<'_>, path: PathBuf, every: u64, held_out: bool) -> PyResult<Self> {
        let source = py.detach(|| feedwater::source::open(path)).map_err(python)?;
        let (learned, held) = feedwater::source::part::hold_out(source, every);
        let part = if held_out { held } else { learned };
        Ok(Self::of(feedwater::Pipeline::from_source(Box::new(part))))
    }

    #[pyo3(signature = (rate))]
    fn decode_audio(&mut self, rate: Option<u32>) -> PyResult<()> {
        self.change(|builder| builder.decode(rate.map_or_else(Audio::mono_any_rate, Audio::mono)))
    }

    fn decode_npy(&mut self) -> PyResult<()> {
        self.change(|builder| builder.decode(Npy))
    }

    fn chunk(&mut self, seconds: f64, overlap: f64, without_times: &str) -> PyResult<()> {
        let choice = match without_times {
            "refuse" => WithoutTimes::Refuse,
            "drop" => WithoutTimes::Drop,
            "truncate" => WithoutTimes::Truncate,
            "no_text" => WithoutTimes::NoText,
            other => return Err(not_one_of("without_times", other, "refuse, drop, truncate, no_text")),
        };
        let chunk = Chunk::seconds(seconds).overlap(overlap).without_times(choice);
        self.change(|builder| builder.chunk(chunk))
    }

    #[pyo3(signature = (bins, pad_seconds))]
    fn log_mel(&mut self, bins: usize, pad_seconds: Option<f64>) -> PyResult<()> {
        let log_mel = match pad_seconds {
            Some(seconds) => LogMel::whisper(bins).pad_seconds(seconds),
            None => LogMel::any_length(bins),
        };
        self.change(|builder| builder.log_mel(log_mel))
    }

    #[pyo3(signature = (tokenizer, prefix, suffix, max_tokens, into_field))]
    fn tokenize(
        &mut self,
        tokenizer: PathBuf,
        prefix: Option<Vec<String>>,
        suffix: Option<Vec<String>>,
        max_tokens: Option<usize>,
        into_field: Option<String>,
    ) -> PyResult<()> {
        let mut tokenize = Tokenize::file(tokenizer).map_err(python)?;
        if let Some(prefix) = prefix {
            tokenize = tokenize.prefix(prefix).map_err(python)?;
        }
        if let Some(suffix) = suffix {
            tokenize = tokenize.suffix(suffix).map_err(python)?;
        }
        if let Some(most) = max_tokens {
            tokenize = tokenize.max_tokens(most);
        }
        if let Some(name) = into_field {
            tokenize = tokenize.into_field(name);
        }
        self.change(|builder| builder.tokenize(tokenize))
    }

    #[pyo3(signature = (snr_db, deviation))]
    fn noise(&mut self, snr_db: Option<(f32, f32)>, deviation: Option<f32>) -> PyResult<()> {
        let noise = match (snr_db, deviation) {
            (Some((least, most)), None) => Noise::snr_db(least..=most),
            (None, Some(deviation)) => Noise::deviation(deviation),
            _ => return Err(PyValueError::new_err("noise has either `snr_db` or `deviation`")),
        };
        self.change(|builder| builder.noise(noise))
    }

    fn longest(&mut self, seconds: f64) -> PyResult<()> {
        self.change(|builder| builder.longest(seconds))
    }

    fn gain(&mut self, least: f32, most: f32) -> PyResult<()> {
        self.change(|builder| builder.gain(Gain::db(least..=most)))
    }

    fn time_shift(&mut self, seconds: f32) -> PyResult<()> {
        self.change(|builder| builder.time_shift(TimeShift::seconds(seconds)))
    }

    fn spec_augment(&mut self, time: (usize, f32), frequency: (usize, usize)) -> PyResult<()> {
        let masks = SpecAugment::new().time(time.0, time.1).frequency(frequency.0, frequency.1);
        self.change(|builder| builder.spec_augment(masks))
    }

    /// A function of fields; see `feedwater.pipeline`.
    fn map(&mut self, name: String, run: Py<PyAny>) -> PyResult<()> {
        // A pipeline has a handful of these, and they live as long as the program: so may their names.
        let name: &'static str = name.leak();
        self.change(|builder| builder.stage(PythonMap { name, run }))
    }

    #[pyo3(signature = (*, size = None, frames = None, tokens = None, packed = None, buckets = None, pad = None,
                        pad_fields = None, dtype = "float32", drop_last = false, mask = false))]
    #[expect(clippy::too_many_arguments, reason = "keywords, each with a default")]
    fn batch(
        &mut self,
        size: Option<u64>,
        frames: Option<u64>,
        tokens: Option<u64>,
        packed: Option<(usize, u64)>,
        buckets: Option<u64>,
        pad: Option<Bound<'_, PyAny>>,
        pad_fields: Option<Vec<(String, Bound<'_, PyAny>)>>,
        dtype: &str,
        drop_last: bool,
        mask: bool,
    ) -> PyResult<()> {
        let mut batch = match (size, frames, tokens, packed) {
            (Some(size), None, None, None) => Batch::of(size),
            (None, Some(frames), None, None) => Batch::frames(frames),
            (None, None, Some(tokens), None) => Batch::tokens(tokens),
            (None, None, None, Some((length, blocks))) => Batch::packed(length, blocks),
            _ => {
                let what = "a batch has one of a size, `frames`, `tokens` and `packed`";
                return Err(PyValueError::new_err(what));
            }
        };
        if let Some(steps) = buckets {
            batch = batch.buckets(steps);
        }
        if let Some(pad) = pad {
            batch = batch.pad(padding(&pad)?);
        }
        for (name, pad) in pad_fields.unwrap_or_default() {
            batch = batch.pad_field(name, padding(&pad)?);
        }
        batch = batch.output(number(dtype)?);
        if drop_last {
            batch = batch.drop_last();
        }
        if mask {
            batch = batch.mask();
        }
        self.change(|builder| builder.batch(batch))
    }

    /// `labels` that are the tokens themselves: what a causal language model learns.
    fn causal_labels(&mut self) -> PyResult<()> {
        self.change(|builder| {
            builder.map("causal_labels", |sample, _| {
                if let Some(ids) = sample.get(field::INPUT_IDS).cloned() {
                    sample.set(field::LABELS, ids);
                }
                Ok(())
            })
        })
    }

    fn shuffle(&mut self, shuffle: bool) -> PyResult<()> {
        self.change(|builder| builder.shuffle(shuffle))
    }

    fn seed(&mut self, seed: u64) -> PyResult<()> {
        self.change(|builder| builder.seed(seed))
    }

    #[pyo3(signature = (threads))]
    fn threads(&mut self, threads: Option<usize>) -> PyResult<()> {
        self.change(|builder| builder.threads(threads.map_or(Threads::Auto, Threads::Exactly)))
    }

    #[pyo3(signature = (batches))]
    fn prefetch(&mut self, batches: Option<usize>) -> PyResult<()> {
        self.change(|builder| match batches {
            Some(batches) => builder.prefetch(batches),
            None => builder,
        })
    }

    fn cpu_ceiling(&mut self, share: f64) -> PyResult<()> {
        self.change(|builder| builder.cpu_ceiling(share))
    }

    fn share_cores(&mut self, processes: usize) -> PyResult<()> {
        self.change(|builder| builder.share_cores(processes))
    }

    #[pyo3(signature = (level, folder, dtype, key, most_bytes))]
    fn cache(
        &mut self,
        level: &str,
        folder: Option<PathBuf>,
        dtype: Option<&str>,
        key: &str,
        most_bytes: Option<u64>,
    ) -> PyResult<()> {
        let mut cache = Cache::named(level).map_err(python)?;
        if let Some(folder) = folder {
            cache = cache.in_folder(folder);
        }
        if let Some(dtype) = dtype {
            cache = cache.dtype(number(dtype)?);
        }
        if let Some(bytes) = most_bytes {
            cache = cache.most_bytes(bytes);
        }
        cache = cache.identity(match key {
            "path" => Identity::Path,
            "content" => Identity::Content,
            other => return Err(not_one_of("key", other, "path, content")),
        });
        self.change(|builder| builder.cache(cache))
    }

    fn budget_bytes(&mut self, bytes: usize) -> PyResult<()> {
        self.change(|builder| builder.budget_bytes(bytes))
    }

    fn stuck_after(&mut self, seconds: f64) -> PyResult<()> {
        let limit = Duration::try_from_secs_f64(seconds)
            .map_err(|error| PyValueError::new_err(format!("{seconds} seconds: {error}")))?;
        self.change(|builder| builder.stuck_after(limit))
    }

    #[pyo3(signature = (bad, ceiling, quarantine))]
    fn policy(&mut self, bad: &str, ceiling: Option<f64>, quarantine: Option<PathBuf>) -> PyResult<()> {
        let mut policy = match bad {
            "skip" => ceiling.map_or_else(Policy::skip, Policy::skip_up_to),
            "fail" => Policy::fail(),
            other => return Err(not_one_of("policy", other, "skip, fail")),
        };
        if let Some(file) = quarantine {
            policy = policy.quarantine(file);
        }
        self.change(|builder| builder.policy(policy))
    }

    fn ranks(&mut self, rank: usize, world: usize) -> PyResult<()> {
        self.change(|builder| builder.ranks(rank, world))
    }

    /// Where the memory of batches comes from: a function from a number of bytes to a tensor of `torch`.
    fn buffers(&mut self, allocate: Py<PyAny>) -> PyResult<()> {
        self.change(|builder| {
            builder.buffers(move |bytes| {
                // Where Python's own allocation fails, plain memory does as well, only slower to copy.
                Python::try_attach(|py| allocated(py, &allocate, bytes).ok())
                    .flatten()
                    .unwrap_or_else(|| Memory::new(bytes))
            })
        })
    }

    /// Checks everything and puts it together.
    fn build(&mut self, py: Python<'_>) -> PyResult<Pipeline> {
        let builder = self.builder.take().ok_or_else(|| PyValueError::new_err("it was built already"))?;
        let pipeline = py.detach(|| builder.build()).map_err(python)?;
        Ok(Pipeline::new(pipeline, self.raised.clone()))
    }
}

fn number(dtype: &str) -> PyResult<DType> {
    match dtype {
        "float32" | "f32" => Ok(DType::F32),
        "float16" | "f16" => Ok(DType::F16),
        "bfloat16" | "bf16" => Ok(DType::BF16),
        other => Err(not_one_of("dtype", other, "float32, float16, bfloat16")),
    }
}

fn not_one_of(what: &str, found: &str, known: &str) -> PyErr {
    PyValueError::new_err(format!("`{what}` is `{found}`\nhint: one of {known}"))
}

fn padding(pad: &Bound<'_, PyAny>) -> PyResult<Pad> {
    if let Ok(word) = pad.extract::<String>() {
        return if word == "longest" { Ok(Pad::Longest) } else { Err(not_one_of("pad", &word, PADDINGS)) };
    }
    match pad.extract::<usize>() {
        Ok(multiple) => Ok(Pad::Multiple(multiple)),
        Err(_) => Ok(Pad::Shapes(pad.extract()?)),
    }
}

const PADDINGS: &str = "\"longest\", a number to pad to a multiple of, a list of lengths";

/// Whether a signal came whose handler raised: Ctrl-C, where the main thread waits.
fn interrupted(py: Python<'_>, raised: &Raised) -> bool {
    match py.check_signals() {
        Ok(()) => false,
        Err(error) => {
            *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            true
        }
    }
}

fn allocated(py: Python<'_>, allocate: &Py<PyAny>, bytes: usize) -> PyResult<Memory> {
    let tensor = allocate.call1(py, (bytes,))?;
    let start: usize = tensor.call_method0(py, "data_ptr")?.extract(py)?;
    let start = NonNull::new(start as *mut u8).ok_or_else(|| PyValueError::new_err("no memory"))?;
    // SAFETY: the tensor has `bytes` bytes, which torch aligns to 64; it is this closure's alone, kept by the owner.
    Ok(unsafe { Memory::foreign(start, bytes, Box::new(tensor)) })
}
