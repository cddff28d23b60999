//! What travels? A [`Sample`] through the stages, one at a time.
//!
//! A sample has a key that is stable and unique in its dataset, and named fields. A source fills in what it knows and
//! where the bytes are ([`Media`]); each stage replaces a field by what it makes of it. Field names are the ones that
//! transformers' models take as arguments, so that a batch needs no renaming.

use std::{borrow::Cow, cell::Cell, fs::File, path::Path, sync::Arc};

use crate::{
    cache::shard,
    decode::Window,
    error::{Fault, Place},
    read::{ReadAt, Section, read_all},
};

/// The names of the fields that the stages of this crate read and write.
pub mod field {
    /// Sound: located, then decoded.
    pub const AUDIO: &str = "audio";
    /// A transcript or a document.
    pub const TEXT: &str = "text";
    /// What is said when.
    pub const SPANS: &str = "spans";
    /// Log-mel or other features, `[bins, frames]` or `[frames, bins]`.
    pub const FEATURES: &str = "input_features";
    /// Token ids of a language model's input.
    pub const INPUT_IDS: &str = "input_ids";
    /// What the model is to say: token ids, or a class number.
    pub const LABELS: &str = "labels";
    /// Ones where a padded field holds something, zeros where it is padding.
    pub const ATTENTION_MASK: &str = "attention_mask";
    /// Which document of its packed block a token belongs to, from 1; 0 is padding.
    pub const DOCUMENTS: &str = "document_ids";
}

/// One sample on its way.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Stable and unique in the dataset.
    pub key: String,
    fields: Vec<(Cow<'static, str>, Value)>,
}

impl Sample {
    /// A sample without fields.
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: key.into(), fields: Vec::with_capacity(4) }
    }

    /// The same sample with one more field.
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    /// Sets a field, in place of the one of that name.
    pub fn set(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Value>) {
        let (name, value) = (name.into(), value.into());
        match self.fields.iter_mut().find(|(known, _)| *known == name) {
            Some(slot) => slot.1 = value,
            None => self.fields.push((name, value)),
        }
    }

    /// A field.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// A field, to be changed in place.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Value> {
        self.fields.iter_mut().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// What all fields hold, to be changed in place.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.fields.iter_mut().map(|(_, value)| value)
    }

    /// Takes a field out.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        let at = self.fields.iter().position(|(known, _)| known == name)?;
        Some(self.fields.swap_remove(at).1)
    }

    /// All fields, in no particular order.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.fields.iter().map(|(name, value)| (name.as_ref(), value))
    }

    /// The text, where there is one.
    pub fn text(&self) -> Option<&str> {
        match self.get(field::TEXT) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn into_fields(self) -> Vec<(Cow<'static, str>, Value)> {
        self.fields
    }

    /// What it holds in memory, in bytes.
    pub fn bytes(&self) -> usize {
        self.fields.iter().map(|(_, value)| value.bytes()).sum()
    }
}

/// What a field holds.
#[derive(Debug, Clone)]
pub enum Value {
    /// Not read yet: where the bytes are.
    Media(Media),
    /// Bytes as they are.
    Bytes(Vec<u8>),
    /// Mono sound.
    Audio(Waveform),
    /// Numbers in a shape.
    Tensor(Tensor),
    /// Text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
    /// One number: a class, a score.
    Number(f64),
    /// What is said when, for cutting a transcript.
    Spans(Vec<Span>),
}

impl Value {
    /// What it holds in memory, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Media(media) => match &media.place {
                MediaPlace::Bytes(bytes) => bytes.len(),
                _ => 0,
            },
            Self::Bytes(bytes) => bytes.len(),
            Self::Audio(audio) => audio.samples.len() * 4,
            Self::Tensor(tensor) => tensor.data.len() * 4,
            Self::Text(text) => text.len(),
            Self::Tokens(tokens) => tokens.len() * 4,
            Self::Number(_) => 8,
            Self::Spans(spans) => spans.iter().map(|span| span.text.len() + 40).sum(),
        }
    }

    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Media(_) => "media that is not decoded",
            Self::Bytes(_) => "bytes",
            Self::Audio(_) => "audio",
            Self::Tensor(_) => "a tensor",
            Self::Text(_) => "text",
            Self::Tokens(_) => "tokens",
            Self::Number(_) => "a number",
            Self::Spans(_) => "spans",
        }
    }
}

macro_rules! value_from {
    ($($from:ty => $variant:ident),* $(,)?) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$variant(value)
            }
        }
    )*};
}
value_from!(Media => Media, Vec<u8> => Bytes, Waveform => Audio, Tensor => Tensor, String => Text, Vec<u32> => Tokens,
            f64 => Number, Vec<Span> => Spans);

/// Where the bytes of a sound or an array are.
#[derive(Debug, Clone)]
pub struct Media {
    /// The file, for opening it and for naming it in errors.
    pub path: Arc<Path>,
    /// Where in it.
    pub place: MediaPlace,
    /// The part of the sound that is wanted; all of it where there is none.
    pub window: Option<Window>,
}

/// Where in a file some media are.
#[derive(Debug, Clone)]
pub enum MediaPlace {
    /// They are the file.
    File,
    /// They are a stretch of a file that is already open: a member of a tar shard.
    Range {
        /// The open file.
        file: Arc<File>,
        /// The first byte.
        offset: u64,
        /// How many bytes.
        length: u64,
        /// The member's name.
        member: String,
        /// What it must hash to, where somebody wrote that down.
        check: Option<Check>,
    },
    /// They came with the metadata: a cell of a parquet table.
    Bytes(Vec<u8>),
}

/// What bytes must hash to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    pub(crate) key: u128,
    pub(crate) hash: u64,
}

thread_local! {
    /// What checked bytes are read into: memory that is there already.
    static READ: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Media {
    /// A whole file.
    pub fn file(path: impl AsRef<Path>) -> Self {
        Self { path: path.as_ref().into(), place: MediaPlace::File, window: None }
    }

    /// Runs `use_it` on the bytes, wherever they are. A fault is given the name of the file, and of the member.
    pub fn read<T>(&self, use_it: impl FnOnce(&dyn ReadAt) -> Result<T, Fault>) -> Result<T, Fault> {
        match &self.place {
            MediaPlace::File => self.open().and_then(|file| use_it(&file)),
            MediaPlace::Range { file, offset, length, member, check } => {
                let part = Section::new(&**file, *offset, *length);
                let used = match check {
                    None => use_it(&part),
                    Some(check) => checked(&part, *check, use_it),
                };
                used.map_err(|fault| Fault { place: Place::Member(member.clone()), ..within(fault) })
            }
            MediaPlace::Bytes(bytes) => use_it(bytes).map_err(within),
        }
        .map_err(|fault| fault.in_file(&*self.path))
    }

    fn open(&self) -> Result<File, Fault> {
        // Opening a pipe would wait for somebody to write into it.
        if !std::fs::metadata(&self.path)?.is_file() {
            return Err(Fault::new("it is not a file"));
        }
        Ok(File::open(&self.path)?)
    }
}

/// Reads all of something, and uses it where it is what was written.
fn checked<T>(
    part: &Section,
    check: Check,
    use_it: impl FnOnce(&dyn ReadAt) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let mut bytes = READ.take();
    let used = read_all(part, &mut bytes, u64::MAX).and_then(|()| {
        if shard::check(check.key, &bytes) == check.hash {
            use_it(&bytes)
        } else {
            Err(Fault::new("it is not what was written there"))
        }
    });
    READ.set(bytes);
    used
}

/// The byte of a fault in media that are a part of a file is not a byte of that file.
fn within(mut fault: Fault) -> Fault {
    if let Place::Byte(byte) = std::mem::take(&mut fault.place) {
        fault.reason = format!("{} (byte {byte} of it)", fault.reason);
    }
    fault
}

/// Mono sound.
#[derive(Debug, Clone, Default)]
pub struct Waveform {
    /// The samples, nominally in −1 … 1.
    pub samples: Vec<f32>,
    /// Samples a second.
    pub rate: u32,
}

/// Numbers in a shape, and how they are to be padded when they travel with longer ones.
#[derive(Debug, Clone, Default)]
pub struct Tensor {
    /// The numbers, row-major.
    pub data: Vec<f32>,
    /// The shape.
    pub shape: Vec<usize>,
    /// Which axis is padded.
    pub pad_axis: usize,
    /// The least length of that axis in a batch. Whisper wants 3000 frames whatever the clip's length; the frames
    /// beyond its end are all `fill` and are not computed, stored or copied before they are written into the batch.
    pub pad_to: usize,
    /// What padding is filled with.
    pub fill: f32,
}

impl Tensor {
    /// A tensor padded with zeros along its first axis.
    pub fn new(data: Vec<f32>, shape: Vec<usize>) -> Self {
        Self { data, shape, pad_axis: 0, pad_to: 0, fill: 0.0 }
    }

    /// The length of the axis that is padded.
    pub fn length(&self) -> usize {
        self.shape.get(self.pad_axis).copied().unwrap_or(1)
    }
}

/// Something said, from when to when.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// The first second of it.
    pub start_seconds: f64,
    /// The last.
    pub end_seconds: f64,
    /// The word or segment.
    pub text: String,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

    use super::*;

    #[test]
    fn a_fault_names_the_cell_or_the_member_it_is_in() {
        let broken = |_: &dyn ReadAt| Err::<(), _>(Fault::at_byte(7, "torn"));
        let media = |place| Media { place, ..Media::file("shard.tar") };
        let cell = media(MediaPlace::Bytes(vec![1])).read(broken).unwrap_err();
        assert_eq!(cell.to_string(), "torn (byte 7 of it) (`shard.tar`)");
        let file = Arc::new(tempfile::tempfile().unwrap());
        let range =
            MediaPlace::Range { file, offset: 512, length: 9, member: "a.wav".to_owned(), check: None };
        let member = media(range).read(broken).unwrap_err();
        assert_eq!(member.to_string(), "torn (byte 7 of it) (member `a.wav` of `shard.tar`)");
        let folder = tempfile::tempdir().unwrap();
        let fault = Media::file(folder.path()).read(broken).unwrap_err();
        assert_eq!(fault.reason, "it is not a file");
    }
}
