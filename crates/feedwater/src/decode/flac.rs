//! What does a FLAC file say?
//!
//! Our own decoder, for whole files of up to 24 bits: speech corpora are FLAC, and this is where their loading time
//! goes. It walks the file once, from memory, frame behind frame, checks every checksum, and mixes down before it
//! converts. Being strict about the walk is what makes a damaged frame a fault with a byte instead of a silent hole.
//! Windows, which need a seek, and 32-bit files go through symphonia.

use super::{
    bits::{Bits, rice},
    plan::{AudioInfo, Job, Mono, Plan},
};
use crate::error::Fault;

/// What the STREAMINFO block says.
#[derive(Debug, Clone, Copy)]
struct Info {
    rate: u32,
    channels: u16,
    width: u32,
    /// 0: not known.
    frames: u64,
    largest_block: usize,
}

/// Whether this decoder is the one for these bytes: any damage is for it to report.
pub(super) fn is_ours(bytes: &[u8]) -> bool {
    header(bytes).map_or(true, |(info, _)| info.width <= 24)
}

/// Decodes all of the file.
pub(super) fn decode(bytes: &[u8], job: &Job, mono: &mut Mono) -> Result<(AudioInfo, Plan), Fault> {
    let (info, start) = header(bytes)?;
    let mut about = AudioInfo {
        format: "flac",
        rate: info.rate,
        channels: info.channels,
        frames: (info.frames > 0).then_some(info.frames),
    };
    let plan = job.plan(&about)?;
    mono.start(&plan);
    let mut planes = vec![Vec::new(); usize::from(info.channels)];
    let mut at = start;
    let mut position = 0;
    while !ends(&bytes[at..], info.frames, position) {
        job.check_cancelled()?;
        let frame = Frame { info, at, position };
        let (len, block) = frame.decode(bytes, &mut planes, mono)?;
        at += len;
        position += block;
        plan.check_length(mono.len(), job.limits)?;
    }
    if position < info.frames {
        let reason = format!("the file ends here, {} frames too early", info.frames - position);
        return Err(Fault::at_byte(bytes.len() as u64, reason));
    }
    about.frames = Some(position);
    Ok((about, plan))
}

/// Whether the stream ends here. What follows the last frame that was promised is a tag.
fn ends(rest: &[u8], frames: u64, position: u64) -> bool {
    rest.is_empty() || frames > 0 && position >= frames || frames == 0 && rest.starts_with(b"TAG")
}

/// STREAMINFO, and where the first frame is.
fn header(bytes: &[u8]) -> Result<(Info, usize), Fault> {
    let early = || Fault::at_byte(bytes.len() as u64, "the flac file ends inside of its header");
    let mut info = None;
    let mut at = 4;
    loop {
        let &[kind, a, b, c] = bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or_else(early)?;
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        let body = bytes.get(at + 4..at + 4 + len).ok_or_else(early)?;
        if matches!(kind, 0 | 0x80) && info.is_none() {
            info = Some(stream_info(body).ok_or_else(|| Fault::at_byte(at as u64, "a damaged flac header"))?);
        }
        at += 4 + len;
        if kind & 0x80 != 0 {
            break;
        }
    }
    let info = info.ok_or_else(|| Fault::at_byte(4, "the flac file has no STREAMINFO"))?;
    Ok((info, at))
}

fn stream_info(body: &[u8]) -> Option<Info> {
    let largest_block = u16::from_be_bytes([*body.get(2)?, *body.get(3)?]);
    let packed = u64::from_be_bytes(*body.get(10..)?.first_chunk()?);
    Some(Info {
        rate: (packed >> 44) as u32,
        channels: (packed >> 41 & 7) as u16 + 1,
        width: (packed >> 36 & 31) as u32 + 1,
        frames: packed & 0xF_FFFF_FFFF,
        largest_block: usize::from(largest_block),
    })
}

/// How the channels of a frame were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stereo {
    Independent,
    LeftSide,
    SideRight,
    MidSide,
}

struct Frame {
    info: Info,
    at: usize,
    position: u64,
}

impl Frame {
    fn fault(&self, reason: &str) -> Fault {
        Fault::at_byte(self.at as u64, reason)
    }

    /// Decodes one frame. Returns its length in bytes and in frames.
    fn decode(&self, bytes: &[u8], planes: &mut [Vec<i32>], mono: &mut Mono) -> Result<(usize, u64), Fault> {
        let bytes = &bytes[self.at..];
        let (block, stereo, header_len) = self.header(bytes)?;
        let mut bits = Bits::new(&bytes[header_len..]);
        for (channel, plane) in planes.iter_mut().enumerate() {
            // The difference of two channels needs a bit more than each.
            let side = match stereo {
                Stereo::Independent => false,
                Stereo::SideRight => channel == 0,
                Stereo::LeftSide | Stereo::MidSide => channel == 1,
            };
            plane.resize(block, 0);
            subframe(&mut bits, self.info.width + u32::from(side), plane)
                .map_err(|reason| self.fault(reason))?;
        }
        let len = header_len + bits.bytes_used();
        let Some(&[a, b]) = bytes.get(len..).and_then(<[u8]>::first_chunk) else {
            return Err(Fault::at_byte(
                (self.at + bytes.len()) as u64,
                "the flac file ends inside of a frame",
            ));
        };
        if bits.overrun() || super::bits::crc16(&bytes[..len]) != u16::from_be_bytes([a, b]) {
            return Err(self.fault("the checksum of a flac frame is wrong"));
        }
        self.mix(stereo, planes, mono.grow(block));
        Ok((len + 2, block as u64))
    }

    /// The header: how many frames, how the channels were written, and how long it is itself.
    fn header(&self, bytes: &[u8]) -> Result<(usize, Stereo, usize), Fault> {
        let early = || Fault::at_byte((self.at + bytes.len()) as u64, "the flac file ends inside of a frame");
        let &[0xFF, sync, sizes, layout] = bytes.first_chunk().ok_or_else(early)? else {
            return Err(self.fault("there should be a flac frame here"));
        };
        if sync & 0xFE != 0xF8 || layout & 1 != 0 {
            return Err(self.fault("there should be a flac frame here"));
        }
        let mut at = 4;
        let take = |at: &mut usize, count: usize| -> Result<u64, Fault> {
            let taken = bytes.get(*at..*at + count).ok_or_else(early)?;
            *at += count;
            Ok(taken.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
        };
        // The number of the frame, or of its first sample, as UTF-8 would write it.
        let first = take(&mut at, 1)? as u8;
        let more = first.leading_ones().saturating_sub(1).min(6);
        let mut number = u64::from(first) & (0x7F >> first.leading_ones().min(7));
        for _ in 0..more {
            number = number << 6 | take(&mut at, 1)? & 0x3F;
        }
        let block = match sizes >> 4 {
            1 => 192,
            code @ 2..=5 => 144 << code,
            6 => take(&mut at, 1)? as usize + 1,
            7 => take(&mut at, 2)? as usize + 1,
            code @ 8.. => 1 << code,
            0 => return Err(self.fault("a flac frame with a reserved size")),
        };
        let rate = match sizes & 15 {
            0 => self.info.rate,
            code @ 1..=11 => {
                [88_200, 176_400, 192_000, 8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000]
                    [usize::from(code) - 1]
            }
            12 => take(&mut at, 1)? as u32 * 1000,
            13 => take(&mut at, 2)? as u32,
            14 => take(&mut at, 2)? as u32 * 10,
            _ => return Err(self.fault("a flac frame with a reserved rate")),
        };
        let (channels, stereo) = match layout >> 4 {
            code @ 0..=7 => (u16::from(code) + 1, Stereo::Independent),
            8 => (2, Stereo::LeftSide),
            9 => (2, Stereo::SideRight),
            10 => (2, Stereo::MidSide),
            _ => return Err(self.fault("a flac frame with reserved channels")),
        };
        let width = match layout >> 1 & 7 {
            0 => self.info.width,
            code => [0, 8, 12, 0, 16, 20, 24, 32][usize::from(code)],
        };
        let checked = at;
        if take(&mut at, 1)? as u8 != super::bits::crc8(&bytes[..checked]) {
            return Err(self.fault("the checksum of a flac frame's header is wrong"));
        }
        if (rate, channels, width) != (self.info.rate, self.info.channels, self.info.width) {
            return Err(self.fault("the format changes here"));
        }
        if block > self.info.largest_block {
            return Err(self.fault("a flac frame is larger than the header allows"));
        }
        // Fixed blocks are counted, others give their first sample. The last fixed block is shorter than the others.
        let expected = if sync & 1 == 0 { number * self.info.largest_block as u64 } else { number };
        if expected != self.position {
            return Err(self.fault("flac frames are missing before here"));
        }
        Ok((block, stereo, checked + 1))
    }

    /// The mean of the channels, without taking them apart first.
    fn mix(&self, stereo: Stereo, planes: &[Vec<i32>], mono: &mut [f32]) {
        let scale = 1.0 / (planes.len() as f32 * (1_u32 << (self.info.width - 1)) as f32);
        match (stereo, planes) {
            (_, [one]) => convert(mono, one, scale, |a| a),
            (Stereo::Independent, [left, right]) => mix_two(mono, left, right, scale, |a, b| a + b),
            (Stereo::LeftSide, [left, side]) => mix_two(mono, left, side, scale, |a, s| 2 * a - s),
            (Stereo::SideRight, [side, right]) => mix_two(mono, side, right, scale, |s, b| 2 * b + s),
            // The middle has lost its lowest bit, which is that of the difference.
            (Stereo::MidSide, [middle, side]) => mix_two(mono, middle, side, scale, |m, s| 2 * m + (s & 1)),
            (_, many) => {
                for (n, sample) in mono.iter_mut().enumerate() {
                    *sample = many.iter().map(|plane| plane[n] as f32).sum::<f32>() * scale;
                }
            }
        }
    }
}

fn convert(mono: &mut [f32], plane: &[i32], scale: f32, to_sum: impl Fn(i32) -> i32) {
    mono.iter_mut().zip(plane).for_each(|(sample, a)| *sample = to_sum(*a) as f32 * scale);
}

fn mix_two(mono: &mut [f32], first: &[i32], second: &[i32], scale: f32, to_sum: impl Fn(i32, i32) -> i32) {
    for ((sample, a), b) in mono.iter_mut().zip(first).zip(second) {
        *sample = to_sum(*a, *b) as f32 * scale;
    }
}

/// One channel of one frame.
fn subframe(bits: &mut Bits, width: u32, out: &mut [i32]) -> Result<(), &'static str> {
    const RESERVED: &str = "a flac subframe of a reserved kind";

    let head = bits.take(8);
    if head & 0x80 != 0 {
        return Err(RESERVED);
    }
    // Low bits that are zero in the whole frame are left out of it.
    let wasted = if head & 1 == 0 { 0 } else { bits.unary().ok_or(RESERVED)? + 1 };
    let width =
        width.checked_sub(wasted).filter(|width| *width > 0).ok_or("a flac subframe without any bits")?;
    match head >> 1 & 0x3F {
        0 => out.fill(bits.take_signed(width)),
        1 => verbatim(bits, width, out),
        kind @ 8..=12 => {
            let order = kind as usize - 8;
            warm_up(bits, width, order, out)?;
            residual(bits, order, out)?;
            predict_fixed(order, out);
        }
        kind @ 32.. => {
            let order = kind as usize - 31;
            warm_up(bits, width, order, out)?;
            let precision = bits.take(4) + 1;
            let shift = bits.take_signed(5);
            if precision == 16 || shift < 0 {
                return Err("a flac predictor that is not possible");
            }
            let mut weights = [0; 32];
            // The oldest sample's weight comes last; samples in memory are oldest first.
            for weight in weights[32 - order..].iter_mut().rev() {
                *weight = bits.take_signed(precision);
            }
            residual(bits, order, out)?;
            predict(order, &weights, shift as u32, out);
        }
        _ => return Err(RESERVED),
    }
    if wasted > 0 {
        for sample in &mut *out {
            *sample = sample.wrapping_shl(wasted);
        }
    }
    if bits.overrun() { Err("the flac file ends inside of a frame") } else { Ok(()) }
}

fn warm_up(bits: &mut Bits, width: u32, order: usize, out: &mut [i32]) -> Result<(), &'static str> {
    let first = out.get_mut(..order).ok_or("a flac predictor longer than its frame")?;
    verbatim(bits, width, first);
    Ok(())
}

fn verbatim(bits: &mut Bits, width: u32, out: &mut [i32]) {
    for sample in out {
        *sample = bits.take_signed(width);
    }
}

/// What the predictor did not predict, in partitions of Rice codes.
fn residual(bits: &mut Bits, order: usize, out: &mut [i32]) -> Result<(), &'static str> {
    let parameter_width = match bits.take(2) {
        0 => 4,
        1 => 5,
        _ => return Err("a flac residual of a reserved kind"),
    };
    let partitions = 1_usize << bits.take(4);
    let each = out.len() / partitions;
    if each * partitions != out.len() || each < order {
        return Err("a flac residual that does not fit its frame");
    }
    let mut start = order;
    for partition in 1..=partitions {
        let part = &mut out[start..partition * each];
        let parameter = bits.take(parameter_width);
        if parameter < (1 << parameter_width) - 1 {
            rice(bits, parameter, part).ok_or("a flac residual that does not end")?;
        } else {
            match bits.take(5) {
                0 => part.fill(0),
                width => verbatim(bits, width, part),
            }
        }
        start = partition * each;
    }
    Ok(())
}

fn predict_fixed(order: usize, out: &mut [i32]) {
    /// The weights of the last four samples, oldest first.
    const WEIGHTS: [[i32; 4]; 5] = [[0; 4], [0, 0, 0, 1], [0, 0, -1, 2], [0, 1, -3, 3], [-1, 4, -6, 4]];
    let mut weights = [0; 32];
    weights[28..].copy_from_slice(&WEIGHTS[order]);
    if order > 0 {
        predict(order, &weights, 0, out);
    }
}

/// Adds to every residual what the samples before it predict.
fn predict(order: usize, weights: &[i32; 32], shift: u32, out: &mut [i32]) {
    /// A length that the compiler knows unrolls the sum. The newest sample stays out of it until the end: all else
    /// can be summed up while that one is still being computed.
    fn of<const N: usize>(weights: &[i32; 32], shift: u32, out: &mut [i32]) {
        let Some(weights) = weights.last_chunk::<N>() else { return };
        let newest_weight = i64::from(weights[N - 1]);
        let mut newest = i64::from(out[N - 1]);
        for n in N..out.len() {
            let Some(window) = out[n - N..].first_chunk::<N>() else { return };
            let mut sum = 0_i64;
            for k in 0..N - 1 {
                sum = sum.wrapping_add(i64::from(window[k]) * i64::from(weights[k]));
            }
            sum = sum.wrapping_add(newest * newest_weight);
            let sample = out[n].wrapping_add((sum >> shift) as i32);
            out[n] = sample;
            newest = i64::from(sample);
        }
    }
    match order {
        1 => of::<1>(weights, shift, out),
        2 => of::<2>(weights, shift, out),
        3 => of::<3>(weights, shift, out),
        4 => of::<4>(weights, shift, out),
        5 => of::<5>(weights, shift, out),
        6 => of::<6>(weights, shift, out),
        7 => of::<7>(weights, shift, out),
        8 => of::<8>(weights, shift, out),
        9 => of::<9>(weights, shift, out),
        10 => of::<10>(weights, shift, out),
        11 => of::<11>(weights, shift, out),
        12 => of::<12>(weights, shift, out),
        _ => {
            for n in order..out.len() {
                let products = out[n - order..n].iter().zip(&weights[32 - order..]);
                let sum: i64 =
                    products.map(|(a, b)| i64::from(*a) * i64::from(*b)).fold(0, i64::wrapping_add);
                out[n] = out[n].wrapping_add((sum >> shift) as i32);
            }
        }
    }
}
