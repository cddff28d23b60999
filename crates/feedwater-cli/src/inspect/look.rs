//! What is one sample, as far as its metadata and the header of its file say?
//!
//! The judgement is the pipeline's own: a sample that is refused here would leave a hole in a batch.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use feedwater::decode::{self, AudioInfo, Decoder, Limits, Window};
use feedwater::read::ReadAt;
use feedwater::sample::Media;
use feedwater::source::Source;
use feedwater::{Fault, Sample, Value, field};
use serde::Serialize;

/// What a sample is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Content {
    Sound,
    Arrays,
    Text,
}

impl Content {
    pub(crate) const ALL: [Self; 3] = [Self::Sound, Self::Arrays, Self::Text];

    /// What the length of such a sample is counted in.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Sound => "seconds",
            Self::Arrays => "frames",
            Self::Text => "characters",
        }
    }
}

/// What was seen of a sample.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) key: String,
    /// The file that its media are in.
    pub(crate) file: Option<PathBuf>,
    pub(crate) content: Content,
    /// In [`Content::unit`].
    pub(crate) length: f64,
    /// `wav`, `mp3`, …, `npy`, `text`.
    pub(crate) format: &'static str,
    /// Rate and channels.
    pub(crate) sound: Option<(u32, u16)>,
    /// The axes of an array behind the first, which is padded.
    pub(crate) shape: Option<Vec<usize>>,
    /// Whether there is a text, and whether it says something.
    pub(crate) text: Option<bool>,
    /// Whether the metadata say which words fall where.
    pub(crate) timed: bool,
    pub(crate) label: Option<f64>,
}

/// Looks at samples, one at a time. One per thread: it keeps its buffers.
pub(crate) struct Looker<'a> {
    source: &'a dyn Source,
    decode: bool,
    decoder: Decoder,
    numbers: Vec<f32>,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl<'a> Looker<'a> {
    /// `decode`: not only headers, but all that is behind them.
    pub(crate) fn new(source: &'a dyn Source, decode: bool) -> Self {
        let (numbers, shape, bytes) = (Vec::new(), Vec::new(), Vec::new());
        Self { source, decode, decoder: Decoder::new(), numbers, shape, bytes }
    }

    pub(crate) fn look(&mut self, index: u64) -> Result<Look, Fault> {
        let sample = self.source.sample(index)?;
        let said = sample.text();
        let mut look = Look {
            file: None,
            content: Content::Text,
            length: said.map_or(0, |text| text.chars().count()) as f64,
            format: "text",
            sound: None,
            shape: None,
            text: said.map(|text| !text.trim().is_empty()),
            timed: sample.get(field::SPANS).is_some(),
            label: match sample.get(field::LABELS) {
                Some(Value::Number(label)) => Some(*label),
                _ => None,
            },
            key: String::new(),
        };
        // The array first: where a sample has both, it is a sample of sound.
        if let Some(media) = media(&sample, field::FEATURES) {
            self.array(media, &mut look)?;
        }
        if let Some(media) = media(&sample, field::AUDIO) {
            self.sound(media, &mut look)?;
        }
        if look.file.is_none() && said.is_none() {
            return Err(Fault::new("the sample has neither sound nor an array nor text"));
        }
        look.key = sample.key;
        Ok(look)
    }

    fn sound(&mut self, media: &Media, look: &mut Look) -> Result<(), Fault> {
        let (info, seconds) = media.read(|input| {
            let info = probe(input)?;
            let seconds = window_seconds(&info, media.window)?;
            if self.decode {
                let never = AtomicBool::new(false);
                let limits = Limits::default();
                self.decoder.audio(input, None, media.window, &limits, &never, &mut self.numbers)?;
            }
            Ok((info, seconds))
        })?;
        look.file = Some(media.path.to_path_buf());
        (look.content, look.format, look.length) = (Content::Sound, info.format, seconds);
        look.sound = Some((info.rate, info.channels));
        Ok(())
    }

    fn array(&mut self, media: &Media, look: &mut Look) -> Result<(), Fault> {
        let shape = media.read(|input| {
            let shape = decode::npy_shape(input)?;
            if self.decode {
                let limits = Limits::default();
                decode::npy(input, &limits, &mut self.numbers, &mut self.shape, &mut self.bytes)?;
            }
            if shape.is_empty() {
                return Err(Fault::new("the array is a single number, without an axis to pad"));
            }
            Ok(shape)
        })?;
        look.file = Some(media.path.to_path_buf());
        (look.content, look.format, look.length) = (Content::Arrays, "npy", shape[0] as f64);
        look.shape = Some(shape[1..].to_vec());
        Ok(())
    }
}

fn media<'a>(sample: &'a Sample, name: &str) -> Option<&'a Media> {
    match sample.get(name) {
        Some(Value::Media(media)) => Some(media),
        _ => None,
    }
}

/// The header; and where it does not say how long the file is, a walk over it.
fn probe(input: &dyn ReadAt) -> Result<AudioInfo, Fault> {
    let info = decode::probe_audio(input)?;
    if info.frames.is_some() { Ok(info) } else { decode::count_frames(input) }
}

/// How much sound a sample has. A window that reaches beyond the end of the file gives what is there.
fn window_seconds(info: &AudioInfo, window: Option<Window>) -> Result<f64, Fault> {
    let seconds = info.seconds().ok_or_else(|| Fault::new("the file does not say how long it is"))?;
    let Some(Window { start_seconds, length_seconds }) = window else { return Ok(seconds) };
    if start_seconds >= seconds {
        let reason =
            format!("the window starts at {start_seconds:.3} s, but the file ends at {seconds:.3} s");
        return Err(Fault::new(reason));
    }
    Ok(length_seconds.min(seconds - start_seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_as_long_as_what_is_there() {
        let info = AudioInfo { format: "wav", rate: 8000, channels: 1, frames: Some(80_000) };
        let window = |start_seconds, length_seconds| {
            window_seconds(&info, Some(Window { start_seconds, length_seconds }))
                .map_err(|fault| fault.reason)
        };
        assert_eq!(window_seconds(&info, None), Ok(10.0));
        assert_eq!((window(2.0, 3.0), window(8.0, 3.0)), (Ok(3.0), Ok(2.0)));
        assert_eq!(
            window(10.0, 1.0),
            Err("the window starts at 10.000 s, but the file ends at 10.000 s".into())
        );
    }
}
