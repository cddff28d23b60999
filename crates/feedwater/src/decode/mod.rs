//! What do the bytes say?
//!
//! Audio of any container becomes mono `f32` at one rate; arrays become `f32` in C order. The format is found by
//! looking at the bytes, never at a file's name. A [`Decoder`] belongs to one thread and owns every buffer that can be
//! used again, because half of what naive loading costs is page faults on fresh memory.
//!
//! One file here answers one question: `wav`, `mp3` and `flac` are read by hand, for speed or for exact byte offsets
//! in faults; `packets` hands the rest to symphonia; `plan` says which frames a window needs; `resample` changes the
//! rate; `npy` reads arrays.

mod bits;
mod convert;
mod flac;
mod framing;
mod m4a;
mod metered;
mod mp3;
mod mp3_frames;
mod npy;
mod packets;
mod plan;
mod resample;
mod sniff;
mod stage;
mod wav;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

pub use npy::{npy, npy_shape};
pub use plan::{AudioInfo, Limits, Window};
pub(crate) use stage::DecodeStage;
pub use stage::{Audio, Decode, Npy};

use crate::{
    error::Fault,
    read::{ReadAt, Section},
};
use metered::Metered;
use plan::{Job, Mono, Plan};
use sniff::Format;

/// Where a decoder's time went, since it was last asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// Time inside `read_at`.
    pub read_nanos: u64,
    /// Time inside the resampler.
    pub resample_nanos: u64,
    /// Bytes that `read_at` returned.
    pub bytes_read: u64,
}

/// How files with these bytes are named: what they are, as far as they say.
pub(crate) fn sound_ending(bytes: &[u8]) -> &'static str {
    match sniff::format(&bytes) {
        Ok((Format::Mp3, _)) => "mp3",
        Ok((Format::Packets(kind), _)) => kind.name(),
        Ok((Format::Wav, _)) | Err(_) => "wav",
    }
}

/// Turns files into samples, one at a time. One per thread; everything that can be used again is inside.
#[derive(Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    at_file_rate: Vec<f32>,
    resamplers: resample::Resamplers,
    times: Times,
}

impl Decoder {
    /// A decoder with empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Mono samples at `rate` (`None`: at the file's own), of the whole file or of a window of it.
    ///
    /// `out` is overwritten; hand the same one in again and nothing is allocated. A window that reaches beyond the end
    /// of the file gives what is there; one that starts beyond it is a fault. Returns what the file is, and the rate
    /// of `out`. What was decoded before with this decoder has no influence on a single bit of the result.
    pub fn audio(
        &mut self,
        input: &dyn ReadAt,
        rate: Option<u32>,
        window: Option<Window>,
        limits: &Limits,
        cancel: &AtomicBool,
        out: &mut Vec<f32>,
    ) -> Result<(AudioInfo, u32), Fault> {
        let metered = Metered::new(input, cancel);
        let job = Job { input: &metered, rate, window, limits, cancel };
        let result = self.audio_of(&job, out);
        self.times.read_nanos += metered.read_nanos();
        self.times.bytes_read += metered.bytes_read();
        // Whatever a cancelled read looked like on its way up through a codec, this is what it was.
        result.map_err(|fault| if cancel.load(Ordering::Relaxed) { cancelled() } else { fault })
    }

    /// Where the time went since this was last called.
    pub fn take_times(&mut self) -> Times {
        std::mem::take(&mut self.times)
    }

    fn audio_of(&mut self, job: &Job, out: &mut Vec<f32>) -> Result<(AudioInfo, u32), Fault> {
        job.check_cancelled()?;
        if let Some(window) = job.window {
            window.check()?;
        }
        if job.rate.is_some_and(|rate| !plan::RATES.contains(&rate)) {
            return Err(Fault::new(format!("cannot resample to {} Hz", job.rate.unwrap_or_default())));
        }
        // Decode straight into `out` where no resampling follows. Which it is shows in the header, so the decoder is
        // handed both.
        let mut mono = Mono::new(std::mem::take(&mut self.at_file_rate), std::mem::take(out));
        let result = guarded(|| decode(job, &mut self.bytes, &mut mono));
        let decoded = mono.len();
        (self.at_file_rate, *out) = mono.into_buffers();
        let (info, plan) = result?;
        let samples = if plan.to == plan.from { &out[..] } else { &self.at_file_rate[..decoded] };
        // Integers cannot be too large, and a WAV's floats were looked at where their bytes are known.
        if !matches!(info.format, "wav" | "flac")
            && let Some(at) = convert::not_possible(samples)
        {
            let seconds = (plan.first + at as u64) as f64 / f64::from(plan.from);
            let reason =
                format!("{seconds:.3} s in, a sample decodes to {}: the file is damaged", samples[at]);
            return Err(Fault::new(reason));
        }
        if plan.to != plan.from {
            let started = Instant::now();
            let samples = &self.at_file_rate[..decoded];
            let resampled = guarded(|| self.resamplers.run(&plan, samples, job.cancel, out));
            if resampled.is_err() {
                // Whatever state it was left in.
                self.resamplers = resample::Resamplers::default();
            }
            resampled?;
            self.times.resample_nanos += started.elapsed().as_nanos() as u64;
        }
        if out.is_empty() {
            return Err(plan.nothing_there(&info, decoded));
        }
        Ok((info, plan.to))
    }
}

/// What a file is, from its header alone. An MP3 without a Xing, Info or VBRI header does not say how long it is.
pub fn probe_audio(input: &dyn ReadAt) -> Result<AudioInfo, Fault> {
    guarded(|| {
        let (format, start) = sniff::format(input)?;
        let body = Section::new(input, start, input.size()?.saturating_sub(start));
        match format {
            Format::Wav => Ok(wav::Wav::open(&body)?.info()),
            Format::Mp3 => mp3::probe(&body),
            Format::Packets(kind) => packets::probe(&body, kind),
        }
        .map_err(|fault| shifted(fault, start))
    })
}

/// As [`probe_audio`], but where the header does not say how long the file is, walks over it to find out. Nothing is
/// decoded.
pub fn count_frames(input: &dyn ReadAt) -> Result<AudioInfo, Fault> {
    guarded(|| {
        let (format, start) = sniff::format(input)?;
        let body = Section::new(input, start, input.size()?.saturating_sub(start));
        match format {
            Format::Wav => Ok(wav::Wav::open(&body)?.info()),
            Format::Mp3 => mp3::count(&body),
            Format::Packets(kind) => packets::count(&body, kind),
        }
        .map_err(|fault| shifted(fault, start))
    })
}

fn decode(job: &Job, bytes: &mut Vec<u8>, mono: &mut Mono) -> Result<(AudioInfo, Plan), Fault> {
    let (format, start) = sniff::format(job.input)?;
    let size = job.input.size()?;
    if size > job.limits.max_bytes && job.window.is_none() && format != Format::Wav {
        return Err(Fault::new(format!("{size} bytes are more than the limit of {}", job.limits.max_bytes)));
    }
    let body = Section::new(job.input, start, size.saturating_sub(start));
    match format {
        Format::Wav => wav::Wav::open(&body).and_then(|wav| wav.decode(&body, job, bytes, mono)),
        Format::Mp3 => mp3::decode(&body, job, bytes, mono),
        Format::Packets(kind) => packets::decode(&body, kind, job, bytes, mono),
    }
    .map_err(|fault| shifted(fault, start))
}

/// Puts a fault's byte back into the file it was found in, behind a tag that was skipped.
fn shifted(mut fault: Fault, start: u64) -> Fault {
    if let crate::error::Place::Byte(offset) = &mut fault.place {
        *offset += start;
    }
    fault
}

/// Codecs panic on crafted files. That is a fault of the file, not the end of the run.
fn guarded<T>(work: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(Fault::new(format!("the decoder panicked: {said}")))
    })
}

fn cancelled() -> Fault {
    Fault::new("cancelled")
}

#[cfg(test)]
mod tests;
