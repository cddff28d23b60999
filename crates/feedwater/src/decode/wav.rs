//! What does a WAV file say?
//!
//! Our own reader, because this is the format where the decoder's own cost shows: 16-bit samples are a multiplication
//! each, and everything else is overhead. The header is walked chunk by chunk with positional reads, then the samples
//! are read in blocks that stay in the cache and converted in loops that the compiler turns into vector instructions.
//!
//! Sizes in a header are claims. Writers that cannot seek back (a pipe) leave 0 or 0xFFFFFFFF; then what is there is
//! taken. Any other size that reaches beyond the file means that the file was cut off, and is refused.

use crate::{
    error::Fault,
    read::{ReadAt, Section, read_exact_at, read_full_at},
};

use super::{
    convert,
    plan::{AudioInfo, Job, Mono, Plan},
};

/// Samples are read in blocks of this size: large enough that the system calls do not show, small enough that the
/// block is still in the second-level cache when it is converted.
const BLOCK_BYTES: usize = 128 * 1024;

/// How one sample is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sample {
    U8,
    I16,
    I24,
    I32,
    F32,
    F64,
}

impl Sample {
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::I16 => 2,
            Self::I24 => 3,
            Self::I32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

/// A WAV file whose header has been read.
#[derive(Debug)]
pub(super) struct Wav {
    sample: Sample,
    rate: u32,
    channels: u16,
    data_start: u64,
    frames: u64,
}

impl Wav {
    /// Reads the header: every chunk up to `data`.
    pub(super) fn open(input: &dyn ReadAt) -> Result<Self, Fault> {
        let size = input.size()?;
        // Nearly every header lies in the first bytes; one read serves all of its chunks.
        let mut head = [0; 256];
        let count = read_full_at(input, &mut head, 0)?;
        let head = Head { input, head: &head[..count] };

        let mut wide = None;
        let mut format: Option<(Sample, u32, u16)> = None;
        let mut at = 12;
        head.bytes::<12>(0)?;
        loop {
            if at >= size {
                let missing = if format.is_some() { "data" } else { "fmt" };
                return Err(Fault::at_byte(size, format!("the file ends before a `{missing}` chunk")));
            }
            let [a, b, c, d, len @ ..] = head.bytes::<8>(at)?;
            let (id, len, body) = ([a, b, c, d], u32::from_le_bytes(len), at + 8);
            match &id {
                b"ds64" => {
                    let sizes = head.bytes::<16>(body)?;
                    wide = sizes[8..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
                }
                b"fmt " => {
                    if format.is_some() {
                        return Err(Fault::at_byte(at, "a second `fmt` chunk"));
                    }
                    format = Some(read_format(&head, body, len)?);
                }
                b"data" => {
                    let Some((sample, rate, channels)) = format else {
                        return Err(Fault::at_byte(at, "a `data` chunk before any `fmt` chunk"));
                    };
                    let frame_bytes = sample.bytes() as u64 * u64::from(channels);
                    let there = data_bytes(body, len, wide, size)?;
                    if there < frame_bytes {
                        return Err(Fault::at_byte(body, "no samples"));
                    }
                    return Ok(Self {
                        sample,
                        rate,
                        channels,
                        data_start: body,
                        frames: there / frame_bytes,
                    });
                }
                // Junk, tags, cue points. A chunk of odd size is followed by a byte of padding.
                _ => {}
            }
            at = body + u64::from(len) + u64::from(len & 1);
        }
    }

    pub(super) fn info(&self) -> AudioInfo {
        AudioInfo { format: "wav", rate: self.rate, channels: self.channels, frames: Some(self.frames) }
    }

    /// Reads the frames of the plan, and no others.
    pub(super) fn decode(
        &self,
        input: &Section,
        job: &Job,
        bytes: &mut Vec<u8>,
        mono: &mut Mono,
    ) -> Result<(AudioInfo, Plan), Fault> {
        let info = self.info();
        let plan = job.plan(&info)?;
        mono.start(&plan);
        let frame_bytes = self.sample.bytes() * usize::from(self.channels);
        let frames_a_block = (BLOCK_BYTES / frame_bytes).max(1);
        let mut left = plan.frames_of(self.frames) as usize;
        let mut at = self.data_start + plan.first * frame_bytes as u64;
        if bytes.len() < frames_a_block * frame_bytes {
            bytes.resize(frames_a_block * frame_bytes, 0);
        }
        // Growing once is safe: `frames` is what the file's real size has room for, not what the header says.
        let mut into = mono.grow(left);
        while left > 0 {
            let frames = left.min(frames_a_block);
            let block = &mut bytes[..frames * frame_bytes];
            read_exact_at(input, block, at)?;
            let (now, later) = into.split_at_mut(frames);
            convert::to_mono(self.sample, usize::from(self.channels), block, now);
            if matches!(self.sample, Sample::F32 | Sample::F64)
                && let Some(frame) = convert::not_possible(now)
            {
                let offset = at + (frame * frame_bytes) as u64;
                return Err(Fault::at_byte(offset, format!("a sample is {}", now[frame])));
            }
            into = later;
            left -= frames;
            at += block.len() as u64;
        }
        Ok((info, plan))
    }
}

/// The start of the file, in memory, and the rest of it, on demand.
struct Head<'a> {
    input: &'a dyn ReadAt,
    head: &'a [u8],
}

impl Head<'_> {
    fn bytes<const N: usize>(&self, at: u64) -> Result<[u8; N], Fault> {
        let here = usize::try_from(at).ok().and_then(|at| self.head.get(at..)).and_then(<[u8]>::first_chunk);
        if let Some(bytes) = here {
            return Ok(*bytes);
        }
        let mut bytes = [0; N];
        read_exact_at(self.input, &mut bytes, at)?;
        Ok(bytes)
    }
}

/// The `fmt` chunk: how samples are written, the rate, the channels.
fn read_format(head: &Head, at: u64, len: u32) -> Result<(Sample, u32, u16), Fault> {
    const PCM: u16 = 1;
    const FLOAT: u16 = 3;
    const EXTENSIBLE: u16 = 0xFFFE;
    /// The GUID of every format that has a number, behind that number.
    const NUMBERED: [u8; 14] = [0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, 0x71];

    if len < 16 {
        return Err(Fault::at_byte(at, format!("a `fmt` chunk of {len} bytes is too short")));
    }
    let [t0, t1, c0, c1, r0, r1, r2, r3, _, _, _, _, a0, a1, b0, b1] = head.bytes::<16>(at)?;
    let mut tag = u16::from_le_bytes([t0, t1]);
    let channels = u16::from_le_bytes([c0, c1]);
    let rate = u32::from_le_bytes([r0, r1, r2, r3]);
    let align = u16::from_le_bytes([a0, a1]);
    let bits = u16::from_le_bytes([b0, b1]);
    if tag == EXTENSIBLE {
        if len < 40 {
            return Err(Fault::at_byte(at, format!("an extensible `fmt` chunk of {len} bytes is too short")));
        }
        let [n0, n1, guid @ ..] = head.bytes::<16>(at + 24)?;
        if guid != NUMBERED {
            return Err(Fault::at_byte(at + 24, "an extensible format that is not known here"));
        }
        tag = u16::from_le_bytes([n0, n1]);
    }
    let sample = match (tag, bits) {
        (PCM, 8) => Sample::U8,
        (PCM, 16) => Sample::I16,
        (PCM, 24) => Sample::I24,
        (PCM, 32) => Sample::I32,
        (FLOAT, 32) => Sample::F32,
        (FLOAT, 64) => Sample::F64,
        (PCM | FLOAT, _) => {
            return Err(Fault::at_byte(at + 14, format!("samples of {bits} bits are not decoded here")));
        }
        _ => return Err(Fault::at_byte(at, format!("the wav codec {tag:#06x} is not decoded here"))),
    };
    let info = AudioInfo { format: "wav", rate, channels, frames: None };
    info.check().map_err(|fault| Fault::at_byte(at + 2, fault.reason))?;
    if usize::from(align) != sample.bytes() * usize::from(channels) {
        let reason = format!("frames of {align} bytes do not fit {channels} channels of {bits} bits");
        return Err(Fault::at_byte(at + 12, reason));
    }
    Ok((sample, rate, channels))
}

/// How many bytes of samples there are, given what the header says and what the file has.
fn data_bytes(start: u64, declared: u32, wide: Option<u64>, size: u64) -> Result<u64, Fault> {
    let there = size.saturating_sub(start);
    let declared = match (declared, wide) {
        (u32::MAX, Some(wide)) => wide,
        (declared, _) => u64::from(declared),
    };
    // Nobody went back to write the size down: it was streamed. `ffmpeg` writes the largest there is, others 0. A 0
    // with nothing behind it is what it says.
    if declared == 0 || declared == u64::from(u32::MAX) || declared == u64::MAX {
        return Ok(there);
    }
    if declared > there {
        let reason = format!("the file ends here, {} bytes before its `data` chunk does", declared - there);
        return Err(Fault::at_byte(size, reason));
    }
    Ok(declared)
}

#[cfg(test)]
mod tests {
    use super::super::tests::decode_all;
    use crate::error::{Fault, Place};

    fn chunk(id: [u8; 4], body: &[u8]) -> Vec<u8> {
        let padding = if body.len() % 2 == 1 { &[0_u8][..] } else { &[] };
        [id.as_slice(), &(body.len() as u32).to_le_bytes(), body, padding].concat()
    }

    fn format(tag: u16, channels: u16, rate: u32, bits: u16) -> Vec<u8> {
        let align = channels.wrapping_mul(bits / 8);
        let bytes_a_second = rate.wrapping_mul(u32::from(align));
        let fields = [tag.to_le_bytes(), channels.to_le_bytes()].concat();
        let rates = [rate.to_le_bytes(), bytes_a_second.to_le_bytes()].concat();
        chunk(*b"fmt ", &[fields, rates, align.to_le_bytes().to_vec(), bits.to_le_bytes().to_vec()].concat())
    }

    fn riff(chunks: &[Vec<u8>]) -> Vec<u8> {
        let body = chunks.concat();
        [b"RIFF".as_slice(), &(body.len() as u32 + 4).to_le_bytes(), b"WAVE", &body].concat()
    }

    fn refused(bytes: &[u8]) -> Fault {
        match decode_all(bytes) {
            Ok((info, _)) => panic!("{info:?} was not refused"),
            Err(fault) => fault,
        }
    }

    fn refused_chunks(chunks: &[Vec<u8>]) -> Fault {
        refused(&riff(chunks))
    }

    #[test]
    fn headers_that_are_no_headers() {
        let data = chunk(*b"data", &[0; 8]);
        for (chunks, reason) in [
            (vec![], "before a `fmt` chunk"),
            (vec![data.clone()], "before any `fmt`"),
            (vec![format(1, 1, 8000, 16)], "before a `data` chunk"),
            (vec![format(1, 1, 8000, 16), format(1, 1, 8000, 16), data.clone()], "a second `fmt`"),
            (vec![format(1, 0, 8000, 16), data.clone()], "0 channels"),
            (vec![format(1, 65, 8000, 8), data.clone()], "65 channels"),
            (vec![format(1, 65_535, 8000, 16), data.clone()], "65535 channels"),
            (vec![format(1, 1, 0, 16), data.clone()], "a rate of 0 Hz"),
            (vec![format(1, 1, u32::MAX, 16), data.clone()], "Hz is not possible"),
            (vec![format(1, 1, 8000, 17), data.clone()], "17 bits"),
            (vec![format(3, 1, 8000, 16), data.clone()], "16 bits"),
            (vec![format(0x55, 1, 8000, 16), data.clone()], "codec 0x0055"),
            (vec![format(0xFFFE, 1, 8000, 16), data.clone()], "too short"),
            (vec![chunk(*b"fmt ", &[1, 0, 1, 0]), data.clone()], "too short"),
            (vec![format(1, 1, 8000, 16), chunk(*b"data", &[])], "no samples"),
            (vec![format(1, 1, 8000, 16), chunk(*b"data", &[1])], "no samples"),
        ] {
            let fault = refused_chunks(&chunks);
            assert!(fault.reason.contains(reason), "{fault} is not {reason}");
        }
        let mut wrong_align = riff(&[format(1, 2, 8000, 16), data]);
        wrong_align[32] = 3;
        assert!(refused(&wrong_align).reason.contains("frames of 3 bytes"));
    }

    #[test]
    fn the_size_of_the_data_is_a_claim() {
        let whole = riff(&[format(1, 1, 8000, 16), chunk(*b"data", &[1, 0, 2, 0, 3, 0, 4, 0])]);
        let size_at = whole.len() - 12;
        let with = |size: u32| {
            let mut bytes = whole.clone();
            bytes[size_at..size_at + 4].copy_from_slice(&size.to_le_bytes());
            bytes
        };
        let frames =
            |bytes: &[u8]| decode_all(bytes).map(|(_, samples)| samples.len()).map_err(|fault| fault.place);
        assert_eq!(frames(&with(u32::MAX)), Ok(4), "streamed");
        assert_eq!(frames(&with(0)), Ok(4), "streamed, by another writer");
        assert_eq!(frames(&with(6)), Ok(3), "something follows the data");
        let end = whole.len() as u64;
        assert_eq!(frames(&with(10)), Err(Place::Byte(end)), "cut off");
        assert_eq!(frames(&with(0x7FFF_FFFF)), Err(Place::Byte(end)), "cut off by far");
    }

    #[test]
    fn unknown_chunks_and_their_padding_are_stepped_over() {
        let junk = [chunk(*b"LIST", &[7; 333]), chunk(*b"bext", &[9; 602])].concat();
        let bytes = riff(&[junk.clone(), format(1, 1, 8000, 16), junk, chunk(*b"data", &[0, 0x40, 0, 0xC0])]);
        let (_, samples) = decode_all(&bytes).expect("a good file");
        assert_eq!(samples, [0.5, -0.5]);
    }

    #[test]
    fn a_sample_that_is_no_number_is_named() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let samples: Vec<u8> =
                [0.5, 0.25, bad, 0.0].iter().flat_map(|sample: &f32| sample.to_le_bytes()).collect();
            let fault = refused_chunks(&[format(3, 1, 8000, 32), chunk(*b"data", &samples)]);
            assert_eq!(fault.place, Place::Byte(44 + 8), "{fault}");
        }
        let wide = chunk(
            *b"data",
            &[0.5, 1e300].iter().flat_map(|sample: &f64| sample.to_le_bytes()).collect::<Vec<u8>>(),
        );
        assert_eq!(refused_chunks(&[format(3, 1, 8000, 64), wide]).place, Place::Byte(44 + 8));
    }
}
