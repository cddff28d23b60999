//! What does an MP3 file say?
//!
//! Symphonia decodes the frames; finding them is ours. An MP3 has no container: it is frames one behind the other, and
//! whatever a tagger, a cut or a download left between them. Walking it here gives faults with their exact byte,
//! windows that start where they should, no allocation a frame, and a clear line between what is common (junk in
//! front, tags behind, a last frame cut off) and what is a damaged file (anything else that is no frame).

use symphonia::{
    core::{
        audio::{Audio, GenericAudioBufferRef},
        codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions, well_known::CODEC_ID_MP3},
        packet::PacketRef,
        units::{Duration, Timestamp},
    },
    default::codecs::MpaDecoder,
};

use super::{
    mp3_frames::{Frame, Frames},
    plan::{AudioInfo, Job, Mono, Plan},
};
use crate::{
    error::Fault,
    read::{ReadAt, read_all},
};

/// Frames decoded and thrown away in front of a window: the bit reservoir reaches back over up to nine small frames,
/// the filter bank over one.
const PREROLL: u64 = 10;

/// Frames at the start that may fail: their bits were in frames that were cut off.
const MAY_FAIL_FIRST: u64 = 4;

/// Frames that a tag may promise and that are not there.
const MAY_BE_MISSING: u64 = 2;

/// Whether there is an MP3 stream somewhere in the first bytes from `start` on.
pub(super) fn starts_within(input: &dyn ReadAt, start: u64) -> Result<bool, Fault> {
    let mut buffer = Vec::new();
    let mut frames = Frames::blocks(input, &mut buffer, start)?;
    Ok(frames.find_first(2).is_ok())
}

/// What the header says.
pub(super) fn probe(input: &dyn ReadAt) -> Result<AudioInfo, Fault> {
    let mut buffer = Vec::new();
    Ok(Stream::open(Frames::blocks(input, &mut buffer, 0)?)?.info())
}

/// What the header says, and else what all frames are together.
pub(super) fn count(input: &dyn ReadAt) -> Result<AudioInfo, Fault> {
    let mut buffer = Vec::new();
    let mut stream = Stream::open(Frames::blocks(input, &mut buffer, 0)?)?;
    let mut info = stream.info();
    if info.frames.is_none() {
        let mut count = 0;
        while stream.frames.next()?.is_some() {
            count += 1;
        }
        info.frames = Some(count * u64::from(stream.first.samples));
    }
    Ok(info)
}

/// Decodes the frames of the plan.
pub(super) fn decode(
    input: &dyn ReadAt,
    job: &Job,
    bytes: &mut Vec<u8>,
    mono: &mut Mono,
) -> Result<(AudioInfo, Plan), Fault> {
    let frames = if job.window.is_some() {
        Frames::blocks(input, bytes, 0)?
    } else {
        read_all(input, bytes, job.limits.max_bytes)?;
        Frames::whole(input, bytes)
    };
    let mut stream = Stream::open(frames)?;
    let info = stream.info();
    let plan = job.plan(&info)?;
    mono.start(&plan);
    stream.decode(job, &plan, mono)?;
    Ok((info, plan))
}

struct Stream<'a> {
    frames: Frames<'a>,
    /// The first frame that is audio.
    first: Frame,
    tag: Option<Tag>,
}

/// What the encoder wrote into a first frame of silence.
#[derive(Debug, Clone, Copy, Default)]
struct Tag {
    /// MP3 frames, without this one.
    frames: Option<u32>,
    /// Samples of the encoder's and the decoder's delay.
    delay: u32,
    /// Samples that fill the last frame up.
    padding: u32,
}

impl<'a> Stream<'a> {
    fn open(mut frames: Frames<'a>) -> Result<Self, Fault> {
        let first = frames.find_first(1)?;
        let tag = Tag::parse(first, frames.bytes_of(first)?);
        let first = if tag.is_some() {
            frames.skip(first);
            frames.peek()?.ok_or_else(|| Fault::at_byte(first.end(), "no samples"))?
        } else {
            first
        };
        Ok(Self { frames, first, tag })
    }

    fn info(&self) -> AudioInfo {
        let frames = self.tag.and_then(|tag| {
            let all = u64::from(tag.frames?) * u64::from(self.first.samples);
            Some(all.saturating_sub(u64::from(tag.delay + tag.padding)))
        });
        AudioInfo { format: "mp3", rate: self.first.rate, channels: self.first.channels, frames }
    }

    fn decode(&mut self, job: &Job, plan: &Plan, mono: &mut Mono) -> Result<(), Fault> {
        let tag = self.tag.unwrap_or_default();
        let (delay, samples) = (u64::from(tag.delay), u64::from(self.first.samples));
        let from = ((plan.first + delay) / samples).saturating_sub(PREROLL);
        let from = if from > 0 { self.frames.jump(self.first, from)? } else { 0 };
        // In a whole file, and from its start on, the encoder's delay is dropped as if a window began behind it.
        let mut shifted = plan.clone();
        shifted.first += delay;
        shifted.end = plan.end.map(|end| end + delay);
        mono.position = from * samples;

        let mut codec = AudioCodecParameters::new();
        codec.for_codec(CODEC_ID_MP3);
        let mut decoder = MpaDecoder::try_new(&codec, &AudioDecoderOptions::default().gapless(false))
            .map_err(|error| Fault::new(error.to_string()))?;
        let mut index = from;
        let mut reached_end = false;
        while let Some(frame) = self.frames.next()? {
            job.check_cancelled()?;
            let time = Timestamp::new((index * samples) as i64);
            let packet = PacketRef::new(0, time, Duration::new(samples), self.frames.bytes_of(frame)?);
            let failed = match decoder.decode_ref(&packet) {
                Ok(decoded) => {
                    reached_end = push(&decoded, mono, &shifted);
                    None
                }
                Err(error) => Some(error),
            };
            if let Some(error) = failed {
                let last = self.frames.peek()?.is_none();
                if index - from >= MAY_FAIL_FIRST && !last {
                    return Err(Fault::at_byte(frame.at, format!("a frame cannot be decoded: {error}")));
                }
                // Silence in its place keeps the time of what follows.
                let silence = [0.0; 1152];
                let silence = &silence[..samples as usize];
                reached_end = !last && mono.push(&[silence], 1.0, &shifted, |sample: f32| sample);
            }
            plan.check_length(mono.len(), job.limits)?;
            index += 1;
            if reached_end {
                break;
            }
        }
        // The tag may have counted itself, and a last frame that is cut off is common; more is a file that was cut off.
        let promised = tag.frames.map_or(0, u64::from);
        if !reached_end && index + MAY_BE_MISSING < promised {
            let reason = format!("the file ends here, {} mp3 frames too early", promised - index);
            return Err(Fault::at_byte(self.frames.size(), reason));
        }
        // The padding is at the end only if all the frames are there that the tag speaks of, and no others.
        if !reached_end && tag.frames.map(u64::from) == Some(index) {
            let end = mono.position - u64::from(tag.padding).min(mono.position);
            let surplus = mono.position.saturating_sub(end.max(shifted.first));
            mono.drop_last(surplus as usize);
        }
        Ok(())
    }
}

fn push(decoded: &GenericAudioBufferRef, mono: &mut Mono, plan: &Plan) -> bool {
    let GenericAudioBufferRef::F32(buffer) = decoded else { return false };
    match (buffer.plane(0), buffer.plane(1)) {
        (Some(left), Some(right)) => mono.push(&[left, right], 1.0, plan, |sample| sample),
        (Some(one), None) => mono.push(&[one], 1.0, plan, |sample| sample),
        _ => false,
    }
}

impl Tag {
    fn parse(frame: Frame, bytes: &[u8]) -> Option<Self> {
        /// What the filter bank of every decoder delays.
        const DECODER_DELAY: u32 = 529;

        let number = |at: usize| bytes.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
        let at = 4 + frame.side_info_bytes();
        if bytes.get(36..40) == Some(b"VBRI") {
            return Some(Self { frames: number(50), ..Self::default() });
        }
        if !matches!(bytes.get(at..at + 4), Some(b"Xing" | b"Info")) {
            return None;
        }
        let flags = number(at + 4)?;
        let mut at = at + 8;
        let mut tag = Self::default();
        for (flag, len) in [(1, 4), (2, 4), (4, 100), (8, 4)] {
            if flags & flag != 0 {
                if flag == 1 {
                    tag.frames = number(at);
                }
                at += len;
            }
        }
        if let Some(&[a, b, c]) = bytes.get(at + 21..at + 24)
            && matches!(bytes.get(at..at + 4), Some(b"LAME" | b"Lavf" | b"Lavc"))
        {
            let both = u32::from_be_bytes([0, a, b, c]);
            tag.delay = (both >> 12) + DECODER_DELAY;
            tag.padding = (both & 0xFFF).saturating_sub(DECODER_DELAY);
        }
        Some(tag)
    }
}
