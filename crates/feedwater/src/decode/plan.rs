//! Which frames of the file are needed, and how many samples come out?
//!
//! A window of a recording must be what the same slice of the whole recording would be, also when it is resampled. So
//! the frames that are decoded start a little earlier than the window (the resampler's filter looks both ways), at a
//! frame that falls exactly on an output sample; what comes out too much is dropped.

use std::{
    ops::RangeInclusive,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{error::Fault, read::ReadAt};

/// Rates that are believed. Outside of them a header is damaged, and a resampler would be built for nothing.
pub(super) const RATES: RangeInclusive<u32> = 1_000..=768_000;

/// What a file says that it is.
#[derive(Debug, Clone, PartialEq)]
pub struct AudioInfo {
    /// The container: `wav`, `flac`, `mp3`, `ogg`, `m4a` or `aac`.
    pub format: &'static str,
    /// Frames per second.
    pub rate: u32,
    /// Samples in a frame.
    pub channels: u16,
    /// Frames in the file, where that is known without decoding it.
    pub frames: Option<u64>,
}

impl AudioInfo {
    /// How long the file is, where that is known without decoding it.
    pub fn seconds(&self) -> Option<f64> {
        self.frames.map(|frames| frames as f64 / f64::from(self.rate))
    }

    pub(super) fn check(&self) -> Result<(), Fault> {
        /// More is no recording; it is a damaged header.
        const MOST_CHANNELS: u16 = 64;

        if !RATES.contains(&self.rate) {
            return Err(Fault::new(format!("a rate of {} Hz is not possible", self.rate)));
        }
        if self.channels == 0 || self.channels > MOST_CHANNELS {
            return Err(Fault::new(format!("{} channels are not possible", self.channels)));
        }
        Ok(())
    }
}

/// A part of a recording, in seconds from its start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    /// Where it starts.
    pub start_seconds: f64,
    /// How long it is.
    pub length_seconds: f64,
}

impl Window {
    pub(super) fn check(&self) -> Result<(), Fault> {
        /// A year. Beyond it, products with a rate would not fit.
        const MOST_SECONDS: f64 = 366.0 * 86_400.0;

        let possible = (0.0..=MOST_SECONDS).contains(&self.start_seconds)
            && self.length_seconds > 0.0
            && self.length_seconds <= MOST_SECONDS;
        if possible {
            return Ok(());
        }
        Err(Fault::new(format!(
            "a window of {} s from {} s on is not possible",
            self.length_seconds, self.start_seconds
        )))
    }
}

/// How much one file may cost.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The longest audio that is decoded, in seconds.
    pub max_seconds: f64,
    /// The largest file that is read whole, and the largest array.
    pub max_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_seconds: 4.0 * 3600.0, max_bytes: 4 << 30 }
    }
}

/// One call of [`Decoder::audio`](super::Decoder::audio).
pub(super) struct Job<'a> {
    pub(super) input: &'a dyn ReadAt,
    pub(super) rate: Option<u32>,
    pub(super) window: Option<Window>,
    pub(super) limits: &'a Limits,
    pub(super) cancel: &'a AtomicBool,
}

impl Job<'_> {
    pub(super) fn check_cancelled(&self) -> Result<(), Fault> {
        if self.cancel.load(Ordering::Relaxed) { Err(super::cancelled()) } else { Ok(()) }
    }

    /// What to decode of a file that is `info`.
    pub(super) fn plan(&self, info: &AudioInfo) -> Result<Plan, Fault> {
        info.check()?;
        let (from, to) = (info.rate, self.rate.unwrap_or(info.rate));
        let most_frames = (self.limits.max_seconds * f64::from(from)) as u64;
        let Some(window) = self.window else {
            if info.frames.is_some_and(|frames| frames > most_frames) {
                return Err(too_long(info.seconds().unwrap_or_default(), self.limits));
            }
            return Ok(Plan { from, to, first: 0, end: None, most_frames, skip: 0, keep: None });
        };
        if window.length_seconds > self.limits.max_seconds {
            return Err(too_long(window.length_seconds, self.limits));
        }
        let start = (window.start_seconds * f64::from(to)).round() as u64;
        let keep = ((window.length_seconds * f64::from(to)).round() as u64).max(1);
        let plan = if from == to {
            Plan { from, to, first: start, end: Some(start + keep), most_frames, skip: 0, keep: None }
        } else {
            let context = super::resample::context_frames(from, to);
            // Frames that fall exactly on an output sample are this far apart.
            let step = u64::from(from / gcd(from, to));
            let first = (start * u64::from(from) / u64::from(to)).saturating_sub(context) / step * step;
            let end = ((start + keep) * u64::from(from)).div_ceil(u64::from(to)) + context;
            let skip = start - first * u64::from(to) / u64::from(from);
            Plan {
                from,
                to,
                first,
                end: Some(end),
                most_frames: u64::MAX,
                skip: skip as usize,
                keep: Some(keep as usize),
            }
        };
        if info.frames.is_some_and(|frames| plan.first >= frames) {
            return Err(plan.nothing_there(info, 0));
        }
        Ok(plan)
    }
}

/// The frames of a file to decode, and what to take of the result.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) from: u32,
    pub(super) to: u32,
    /// The first frame to decode.
    pub(super) first: u64,
    /// The frame behind the last one to decode; `None`: all.
    pub(super) end: Option<u64>,
    /// More frames than this are too long.
    most_frames: u64,
    /// Samples to drop at the start, after resampling.
    pub(super) skip: usize,
    /// Samples to keep behind them.
    pub(super) keep: Option<usize>,
}

impl Plan {
    /// All of a file.
    #[cfg(test)]
    pub(super) fn whole(from: u32, to: u32) -> Self {
        Self { from, to, first: 0, end: None, most_frames: u64::MAX, skip: 0, keep: None }
    }

    /// How many frames to decode of a file with `frames`.
    pub(super) fn frames_of(&self, frames: u64) -> u64 {
        self.end.unwrap_or(u64::MAX).min(frames).saturating_sub(self.first)
    }

    /// A fault if `frames`, counted from `first`, are more than the limit.
    pub(super) fn check_length(&self, frames: usize, limits: &Limits) -> Result<(), Fault> {
        if frames as u64 <= self.most_frames {
            return Ok(());
        }
        Err(too_long(frames as f64 / f64::from(self.from), limits))
    }

    /// Why there is nothing to give.
    pub(super) fn nothing_there(&self, info: &AudioInfo, decoded: usize) -> Fault {
        if self.end.is_none() {
            return Fault::new("no samples");
        }
        let frames = info.frames.unwrap_or(self.first + decoded as u64);
        let length = frames as f64 / f64::from(self.from);
        let start = self.first as f64 / f64::from(self.from) + self.skip as f64 / f64::from(self.to);
        Fault::new(format!("the window starts at {start:.3} s, but the file ends at {length:.3} s"))
    }
}

fn too_long(seconds: f64, limits: &Limits) -> Fault {
    Fault::new(format!("{seconds:.1} s of audio are more than the limit of {:.1} s", limits.max_seconds))
}

pub(super) fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Where decoded frames go: one channel, the frames of the plan only.
///
/// There are two buffers because only the header says whether the samples still have to be resampled. Neither is
/// cleared: [`Mono::samples`] overwrites, so memory is zeroed once in its life.
pub(super) struct Mono {
    at_file_rate: Vec<f32>,
    out: Vec<f32>,
    resampled: bool,
    /// How many samples are there.
    filled: usize,
    /// The frame that comes next, counted in the file.
    pub(super) position: u64,
}

impl Mono {
    pub(super) fn new(at_file_rate: Vec<f32>, out: Vec<f32>) -> Self {
        Self { at_file_rate, out, resampled: false, filled: 0, position: 0 }
    }

    /// Starts, once the plan is known.
    pub(super) fn start(&mut self, plan: &Plan) {
        self.resampled = plan.from != plan.to;
        self.filled = 0;
    }

    /// How many samples are there.
    pub(super) fn len(&self) -> usize {
        self.filled
    }

    /// Room for `count` samples more. They must all be written.
    pub(super) fn grow(&mut self, count: usize) -> &mut [f32] {
        let buffer = if self.resampled { &mut self.at_file_rate } else { &mut self.out };
        let start = self.filled;
        self.filled += count;
        if buffer.len() < self.filled {
            buffer.resize(self.filled, 0.0);
        }
        &mut buffer[start..self.filled]
    }

    /// Appends a packet of planar samples, as much of it as the plan wants. Returns whether the plan's end is reached.
    pub(super) fn push<S: Copy>(
        &mut self,
        planes: &[&[S]],
        scale: f32,
        plan: &Plan,
        to_f32: impl Fn(S) -> f32,
    ) -> bool {
        let frames = planes.first().map_or(0, |plane| plane.len());
        let skip = plan.first.saturating_sub(self.position).min(frames as u64) as usize;
        let stop =
            plan.end.map_or(frames, |end| end.saturating_sub(self.position).min(frames as u64) as usize);
        self.position += frames as u64;
        if skip < stop {
            let into = self.grow(stop - skip);
            match planes {
                [one] => {
                    for (sample, a) in into.iter_mut().zip(&one[skip..stop]) {
                        *sample = to_f32(*a) * scale;
                    }
                }
                [left, right] => {
                    let scale = scale * 0.5;
                    for ((sample, a), b) in into.iter_mut().zip(&left[skip..stop]).zip(&right[skip..stop]) {
                        *sample = (to_f32(*a) + to_f32(*b)) * scale;
                    }
                }
                many => {
                    into.fill(0.0);
                    for plane in many {
                        for (sample, a) in into.iter_mut().zip(&plane[skip..stop]) {
                            *sample += to_f32(*a);
                        }
                    }
                    let scale = scale / many.len() as f32;
                    for sample in into {
                        *sample *= scale;
                    }
                }
            }
        }
        plan.end.is_some_and(|end| self.position >= end)
    }

    /// Forgets the last `count` samples.
    pub(super) fn drop_last(&mut self, count: usize) {
        self.filled = self.filled.saturating_sub(count);
    }

    /// The buffers: at the file's rate, of which the first [`Mono::len`] are meant, and the output.
    pub(super) fn into_buffers(mut self) -> (Vec<f32>, Vec<f32>) {
        if !self.resampled {
            self.out.truncate(self.filled);
        }
        (self.at_file_rate, self.out)
    }
}
