//! The engine's errors as Python's own: named for what the caller does next.

use std::io::ErrorKind;

use feedwater::Error;
use pyo3::{
    PyErr,
    exceptions::{PyFileNotFoundError, PyOSError, PyPermissionError, PyRuntimeError, PyValueError},
};

/// What the engine's hints call it, and what it is called here.
const WORDS: &[(&str, &str)] = &[
    ("`.threads(1)`, or `Threads::Auto`", "`.threads(1)`; left out, it is found out while it runs"),
    ("`.tokenize(Tokenize::file(\"tokenizer.json\")?)`", "`.tokenize(\"tokenizer.json\")`"),
    ("`.decode(Audio::…)`", "`.decode(16_000)`"),
    ("`.decode(Npy)`", "`.decode(\"npy\")`"),
    ("`.decode(Audio::mono(16_000))`", "`.decode(16_000)`"),
    ("`Pipeline::open(…)`", "`open(…)`"),
    ("`Policy::skip_up_to(0.05)`", "`.policy(\"skip\", ceiling=0.05)`"),
    ("`Policy::skip_up_to`", "`.policy(\"skip\", ceiling=…)`"),
    ("`Chunk::seconds(30.0).overlap(2.0)`", "`.chunk(30.0, overlap=2.0)`"),
    ("`SpecAugment::new().time(2, 0.05)`", "`.spec_augment(time=(2, 0.05))`"),
    ("`5.0..=25.0`", "`snr_db=(5.0, 25.0)`"),
    ("`LogMel::whisper(80)`", "`.log_mel(80)`"),
    ("`Audio::mono(16_000)`", "`.decode(16_000)`"),
    ("`Batch::of(16)`", "`.batch(16)`"),
    ("`Batch::frames(48_000)`", "`.batch(frames=48_000)`"),
    ("`Batch::packed(512, 16)`", "`.batch(packed=(512, 16))`"),
    ("`.buckets(…)`", "`buckets=…`"),
    ("`.buckets(64)`", "`.batch(…, buckets=64)`"),
    ("`.drop_last()`", "`drop_last=True`"),
    ("`Pad::Multiple(8)`", "`.batch(…, pad=8)`"),
    ("`Pad::Shapes(vec![128, 256, 448])`", "`.batch(…, pad=[128, 256, 448])`"),
];

pub(crate) fn python(error: Error) -> PyErr {
    let mut text = error.to_string();
    for (engine, here) in WORDS {
        text = text.replace(engine, here);
    }
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
