//! What do FLAC, Ogg, M4A and AAC files say?
//!
//! Symphonia takes the containers apart and decodes the packets. What is ours is strictness. A player skips what is
//! damaged and goes on; in a training set that is a sample whose sound and text do not agree, and nobody will ever
//! know. So a packet that does not decode, a hole in the time line, or a stream that changes its rate is a fault.
//!
//! A whole file is decoded from memory, after one read. A window is read through the same code, but from the file: the
//! container is asked to seek, and only what lies around the window is read.

use std::io::{self, Read, Seek, SeekFrom};

use symphonia::{
    core::{
        audio::{Audio, GenericAudioBufferRef},
        codecs::{
            CodecParameters,
            audio::{
                AudioCodecParameters, AudioDecoder, AudioDecoderOptions,
                well_known::{CODEC_ID_OPUS, CODEC_ID_SPEEX},
            },
        },
        errors::Error,
        formats::{FormatOptions, FormatReader, SeekMode, SeekTo, TrackType},
        io::{MediaSource, MediaSourceStream, MediaSourceStreamOptions},
        packet::Packet,
        units::{TimeBase, Timestamp},
    },
    default::{
        formats::{AdtsReader, FlacReader, IsoMp4Reader, OggReader},
        get_codecs,
    },
};

use super::{
    flac, framing, m4a,
    plan::{AudioInfo, Job, Mono, Plan},
    sniff::Kind,
};
use crate::{
    error::Fault,
    read::{ReadAt, read_all},
};

/// Frames decoded and thrown away in front of a window: a lossy codec's blocks overlap with the ones before.
const PREROLL: u64 = 8192;

/// What the header says.
pub(super) fn probe(input: &dyn ReadAt, kind: Kind) -> Result<AudioInfo, Fault> {
    Ok(Stream::open(input, kind)?.info)
}

/// What the header says, and else what all packets are together.
pub(super) fn count(input: &dyn ReadAt, kind: Kind) -> Result<AudioInfo, Fault> {
    let mut stream = Stream::open(input, kind)?;
    if stream.info.frames.is_none() {
        let mut frames = 0;
        while let Some(packet) = stream.next()? {
            frames += stream.frames(packet.dur.get() as i64).max(0) as u64;
        }
        stream.info.frames = Some(frames);
    }
    Ok(stream.info)
}

/// Decodes the frames of the plan.
pub(super) fn decode(
    input: &dyn ReadAt,
    kind: Kind,
    job: &Job,
    bytes: &mut Vec<u8>,
    mono: &mut Mono,
) -> Result<(AudioInfo, Plan), Fault> {
    if job.window.is_some() {
        return Stream::open(input, kind)?.decode(job, &[], mono);
    }
    read_all(input, bytes, job.limits.max_bytes)?;
    match kind {
        Kind::Ogg => framing::check_ogg(bytes)?,
        Kind::Adts => framing::check_adts(bytes)?,
        Kind::Flac if flac::is_ours(bytes) => return flac::decode(bytes, job, mono),
        Kind::Flac | Kind::M4a => {}
    }
    Stream::open(bytes, kind)?.decode(job, bytes, mono)
}

struct Stream<'a> {
    kind: Kind,
    reader: Box<dyn FormatReader + 'a>,
    decoder: Box<dyn AudioDecoder>,
    track: u32,
    time_base: Option<TimeBase>,
    info: AudioInfo,
    /// Frames in front that the encoder put there.
    delay: u64,
    /// When the next packet has to be, where the container says when its packets are.
    expected: Option<Timestamp>,
}

impl<'a> Stream<'a> {
    fn open(input: &'a dyn ReadAt, kind: Kind) -> Result<Self, Fault> {
        let source = Source { input, at: 0, size: input.size()? };
        let stream = MediaSourceStream::new(Box::new(source), MediaSourceStreamOptions::default());
        let options = FormatOptions::default();
        let reader: Result<Box<dyn FormatReader + 'a>, Error> = match kind {
            Kind::Flac => FlacReader::try_new(stream, options).map(|reader| Box::new(reader) as _),
            Kind::Ogg => OggReader::try_new(stream, options).map(|reader| Box::new(reader) as _),
            Kind::M4a => IsoMp4Reader::try_new(stream, options).map(|reader| Box::new(reader) as _),
            Kind::Adts => AdtsReader::try_new(stream, options).map(|reader| Box::new(reader) as _),
        };
        let reader = reader.map_err(|error| fault(&error, kind))?;
        let (track, time_base, mut info, decoder) = select(reader.as_ref(), kind)?;
        let mut delay = 0;
        if kind == Kind::M4a
            && let Some(edit) = m4a::edit(input, info.rate)
        {
            delay = edit.delay;
            let there = info.frames.map_or(u64::MAX, |frames| frames.saturating_sub(delay));
            info.frames = Some(edit.frames.min(there));
        }
        Ok(Self { kind, reader, decoder, track, time_base, info, delay, expected: None })
    }

    /// The next packet of the track.
    fn next(&mut self) -> Result<Option<Packet>, Fault> {
        loop {
            match self.reader.next_packet() {
                Ok(Some(packet)) if packet.track_id == self.track => return Ok(Some(packet)),
                Ok(Some(_)) => {}
                Ok(None) => return Ok(None),
                Err(Error::ResetRequired) => self.next_link()?,
                // A last frame that is cut off is common in a format without a container.
                Err(Error::IoError(error))
                    if self.kind == Kind::Adts && error.kind() == io::ErrorKind::UnexpectedEof =>
                {
                    return Ok(None);
                }
                Err(error) => return Err(fault(&error, self.kind)),
            }
        }
    }

    /// Another stream follows the one that ended: a chained Ogg file.
    fn next_link(&mut self) -> Result<(), Fault> {
        let (track, time_base, info, decoder) = select(self.reader.as_ref(), self.kind)?;
        if (info.rate, info.channels) != (self.info.rate, self.info.channels) {
            return Err(Fault::new(format!(
                "the format changes from {} Hz and {} channels to {} Hz and {} channels",
                self.info.rate, self.info.channels, info.rate, info.channels
            )));
        }
        (self.track, self.time_base, self.decoder, self.expected) = (track, time_base, decoder, None);
        Ok(())
    }

    /// A time of the track, in frames.
    fn frames(&self, ticks: i64) -> i64 {
        let Some(base) = self.time_base else { return ticks };
        let (numer, denom) = (i128::from(base.numer.get()), i128::from(base.denom.get()));
        (i128::from(ticks) * numer * i128::from(self.info.rate) / denom) as i64
    }

    fn decode(mut self, job: &Job, bytes: &[u8], mono: &mut Mono) -> Result<(AudioInfo, Plan), Fault> {
        let plan = job.plan(&self.info)?;
        mono.start(&plan);
        mono.position = 0;
        // What is wanted, on the clock of the container. The last packet of an M4A is filled up; its header says by
        // how much.
        let mut wanted = plan.clone();
        wanted.first += self.delay;
        wanted.end = plan.end.map(|end| end + self.delay);
        if let (Kind::M4a, Some(frames)) = (self.kind, self.info.frames) {
            wanted.end = Some(wanted.end.unwrap_or(u64::MAX).min(frames + self.delay));
        }
        let windowed = plan.first > 0;
        if windowed {
            self.seek(wanted.first.saturating_sub(PREROLL))?;
        }
        while let Some(packet) = self.next()? {
            job.check_cancelled()?;
            let at = || framing::place_of(bytes, &packet.data);
            if matches!(self.kind, Kind::Flac | Kind::Ogg) {
                if self.expected.is_some_and(|expected| expected != packet.pts) {
                    return Err(at()("data is missing or damaged before here"));
                }
                self.expected = packet.pts.checked_add(packet.block_dur());
            }
            // Until something was kept, the container's clock is the one that counts.
            if windowed && mono.len() == 0 {
                mono.position = self.frames(packet.pts.get()).max(0) as u64;
            }
            let decoded = match self.decoder.decode(&packet) {
                Ok(decoded) => decoded,
                Err(error) => return Err(at()(&format!("a packet cannot be decoded: {error}"))),
            };
            let spec = decoded.spec();
            if spec.rate() != self.info.rate || spec.channels().count() != usize::from(self.info.channels) {
                return Err(at()("the format changes here"));
            }
            let done = match &decoded {
                GenericAudioBufferRef::F32(buffer) => push(*buffer, 1.0, mono, &wanted, |sample| sample),
                // FLAC: whatever its width, it is in the upper bits.
                GenericAudioBufferRef::S32(buffer) => {
                    push(*buffer, 1.0 / 2_147_483_648.0, mono, &wanted, |sample| sample as f32)
                }
                _ => return Err(Fault::new("the codec's samples are neither f32 nor i32")),
            };
            plan.check_length(mono.len(), job.limits)?;
            if done {
                break;
            }
        }
        if plan.end.is_none() {
            self.info.frames = Some(mono.len() as u64);
        }
        Ok((self.info, plan))
    }

    fn seek(&mut self, frame: u64) -> Result<(), Fault> {
        if frame == 0 {
            return Ok(());
        }
        let ticks = match self.time_base {
            Some(base) => {
                let ticks = u128::from(frame) * u128::from(base.denom.get());
                ticks / u128::from(base.numer.get()) / u128::from(self.info.rate)
            }
            None => u128::from(frame),
        };
        let to = SeekTo::Timestamp { ts: Timestamp::new(ticks as i64), track_id: self.track };
        match self.reader.seek(SeekMode::Accurate, to) {
            Ok(_) => {
                self.decoder.reset();
                Ok(())
            }
            Err(Error::SeekError(_)) => {
                let seconds = frame as f64 / f64::from(self.info.rate);
                Err(Fault::new(format!("there is nothing at {seconds:.3} s, where the window starts")))
            }
            Err(error) => Err(fault(&error, self.kind)),
        }
    }
}

fn push<S: symphonia::core::audio::sample::Sample>(
    buffer: &symphonia::core::audio::AudioBuffer<S>,
    scale: f32,
    mono: &mut Mono,
    plan: &Plan,
    to_f32: impl Fn(S) -> f32,
) -> bool {
    match (buffer.plane(0), buffer.plane(1), buffer.plane(2)) {
        (Some(one), None, _) => mono.push(&[one], scale, plan, to_f32),
        (Some(left), Some(right), None) => mono.push(&[left, right], scale, plan, to_f32),
        _ => {
            let planes: Vec<&[S]> = (0..).map_while(|channel| buffer.plane(channel)).collect();
            mono.push(&planes, scale, plan, to_f32)
        }
    }
}

type Selected = (u32, Option<TimeBase>, AudioInfo, Box<dyn AudioDecoder>);

/// The track to decode: the first with a codec that is known here.
fn select(reader: &dyn FormatReader, kind: Kind) -> Result<Selected, Fault> {
    let track = reader.default_track(TrackType::Audio).or_else(|| reader.first_track(TrackType::Audio));
    let track =
        track.ok_or_else(|| Fault::new(format!("there is no audio track in this {} file", kind.name())))?;
    let Some(CodecParameters::Audio(codec)) = &track.codec_params else {
        return Err(Fault::new("the audio track has no codec"));
    };
    let decoder = decoder(codec)?;
    // What the decoder read in its own headers is better than what the container repeats.
    let known = decoder.codec_params();
    let rate = known.sample_rate.or(codec.sample_rate);
    let channels = known.channels.as_ref().or(codec.channels.as_ref());
    let (Some(rate), Some(channels)) = (rate, channels) else {
        return Err(Fault::new("the header gives no rate, or no channels"));
    };
    // ADTS has no length; symphonia's is a guess from the bit rate.
    let frames = if kind == Kind::Adts { None } else { track.num_frames };
    let info = AudioInfo { format: kind.name(), rate, channels: channels.count() as u16, frames };
    info.check()?;
    Ok((track.id, track.time_base, info, decoder))
}

fn decoder(codec: &AudioCodecParameters) -> Result<Box<dyn AudioDecoder>, Fault> {
    match codec.codec {
        CODEC_ID_OPUS => {
            return Err(Fault::new("this is Opus, which is not supported; convert it to FLAC or WAV"));
        }
        CODEC_ID_SPEEX => {
            return Err(Fault::new("this is Speex, which is not supported; convert it to FLAC or WAV"));
        }
        _ => {}
    }
    get_codecs()
        .make_audio_decoder(codec, &AudioDecoderOptions::default())
        .map_err(|error| Fault::new(format!("the codec is not supported: {error}")))
}

fn fault(error: &Error, kind: Kind) -> Fault {
    match error {
        Error::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Fault::new(format!("the {} file ends too early", kind.name()))
        }
        error => Fault::new(format!("the {} file is damaged: {error}", kind.name())),
    }
}

/// A file as symphonia wants it: with a cursor.
struct Source<'a> {
    input: &'a dyn ReadAt,
    at: u64,
    size: u64,
}

impl Read for Source<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read_at(buf, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for Source<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.size.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}

impl MediaSource for Source<'_> {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.size)
    }
}
