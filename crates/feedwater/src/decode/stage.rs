//! Decoding as a stage: media that were located become sound or an array.

use std::time::Duration;

use super::{Decoder, Limits, npy};
use crate::{
    error::{Error, Fault, Result},
    pipeline::{Context, Pool, Stage},
    sample::{Media, Sample, Tensor, Value, Waveform, field},
};

/// How sound is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Audio {
    pub(crate) rate: Option<u32>,
}

impl Audio {
    /// One channel, at this rate.
    pub fn mono(rate: u32) -> Self {
        Self { rate: Some(rate) }
    }

    /// One channel, at the rate of each file.
    pub fn mono_any_rate() -> Self {
        Self { rate: None }
    }
}

/// `.npy` arrays, padded along their first axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Npy;

/// What is to be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decode {
    /// Sound.
    Audio(Audio),
    /// Arrays.
    Npy,
}

impl From<Audio> for Decode {
    fn from(audio: Audio) -> Self {
        Self::Audio(audio)
    }
}

impl From<Npy> for Decode {
    fn from(_: Npy) -> Self {
        Self::Npy
    }
}

pub(crate) struct DecodeStage {
    decode: Decode,
    limits: Limits,
    decoders: Pool<Decoder>,
    bytes: Pool<Vec<u8>>,
}

impl DecodeStage {
    pub(crate) fn new(decode: Decode) -> Result<Self> {
        if let Decode::Audio(Audio { rate: Some(rate) }) = decode
            && !(1_000..=384_000).contains(&rate)
        {
            return Err(Error::config_hint(
                format!("`decode` cannot give {rate} samples a second"),
                "Whisper takes 16 000: `Audio::mono(16_000)`",
            ));
        }
        Ok(Self { decode, limits: Limits::default(), decoders: Pool::default(), bytes: Pool::default() })
    }

    fn audio(&self, rate: Option<u32>, media: &Media, context: &mut Context) -> Result<Waveform, Fault> {
        let mut decoder = self.decoders.take();
        let mut samples = context.floats();
        let decoded = media.read(|input| {
            decoder.audio(input, rate, media.window, &self.limits, context.cancelled(), &mut samples)
        });
        let times = decoder.take_times();
        context.charge("read", Duration::from_nanos(times.read_nanos), times.bytes_read);
        context.charge("resample", Duration::from_nanos(times.resample_nanos), 0);
        self.decoders.give(decoder);
        let (_, rate) = decoded?;
        Ok(Waveform { samples, rate })
    }

    fn npy(&self, media: &Media, context: &Context) -> Result<Tensor, Fault> {
        let mut bytes = self.bytes.take();
        let (mut data, mut shape) = (context.floats(), Vec::new());
        let decoded = media.read(|input| npy(input, &self.limits, &mut data, &mut shape, &mut bytes));
        self.bytes.give(bytes);
        decoded?;
        if shape.is_empty() {
            return Err(
                Fault::new("the array is a single number, without an axis to pad").in_file(&*media.path)
            );
        }
        Ok(Tensor::new(data, shape))
    }
}

impl Stage for DecodeStage {
    fn name(&self) -> &'static str {
        "decode"
    }

    fn books(&self) -> (&'static [&'static str], &'static [&'static str]) {
        (&["read"], &["resample"])
    }

    fn describe(&self) -> String {
        format!("{:?}", self.decode)
    }

    fn version(&self) -> Option<u32> {
        Some(1)
    }

    fn apply(&self, sample: &mut Sample, context: &mut Context) -> Result<(), Fault> {
        let name = match self.decode {
            Decode::Audio(_) => field::AUDIO,
            Decode::Npy => field::FEATURES,
        };
        let media = match sample.take(name) {
            Some(Value::Media(media)) => media,
            Some(other) => {
                return Err(Fault::new(format!("`{name}` is {}, there is nothing to decode", other.kind())));
            }
            None => return Err(Fault::new(format!("the sample has no `{name}` to decode"))),
        };
        match self.decode {
            Decode::Audio(Audio { rate }) => {
                let audio = self.audio(rate, &media, context)?;
                sample.set(name, audio);
            }
            Decode::Npy => {
                let tensor = self.npy(&media, context)?;
                sample.set(name, tensor);
            }
        }
        Ok(())
    }
}
