//! Sound to log-mel features: how loud is each pitch, every hundredth of a second?
//!
//! Equal to Hugging Face's `WhisperFeatureExtractor` within 1e-5: zero-padded to 30 s, centred frames of 400 samples
//! every 160 with reflected edges, a periodic Hann window, power, Slaney's mel filters, `log10`, clamped to 8 below the
//! clip's loudest value, `(x + 4) / 4`; the last frame is dropped.
//!
//! Three things make it fast. Frames that lie wholly in the padding are not computed: their value is known. Frames are
//! taken sixteen at a time, and their powers stored side by side, so that the mel sums and the logarithm run over
//! sixteen frames in one instruction stream and land in the output row in order. And the filters, which are zero but
//! for a few bins each, are stored as just those bins.

use realfft::{RealFftPlanner, RealToComplex, num_complex::Complex32};
use std::sync::Arc;

use super::simd;
use crate::{
    error::{Error, Fault, Result},
    pipeline::{Context, Pool, Stage},
    sample::{Sample, Tensor, Value, Waveform, field},
};

const RATE: u32 = 16_000;
const WINDOW: usize = 400;
const HOP: usize = 160;
const BINS: usize = WINDOW / 2 + 1;
const BLOCK: usize = 16;
const FLOOR: f32 = 1e-10;

/// Settings of the log-mel features.
#[derive(Debug, Clone, PartialEq)]
pub struct LogMel {
    bins: usize,
    pad_seconds: Option<f64>,
}

impl LogMel {
    /// What Whisper takes: padded to 30 s; 80 bins, or 128 for `large-v3`.
    pub fn whisper(bins: usize) -> Self {
        Self { bins, pad_seconds: Some(30.0) }
    }

    /// As long as the clip is, padded in the batch with the others: for models that take any length.
    pub fn any_length(bins: usize) -> Self {
        Self { bins, pad_seconds: None }
    }

    /// Padded (and cut) to another length than 30 s.
    pub fn pad_seconds(mut self, seconds: f64) -> Self {
        self.pad_seconds = Some(seconds);
        self
    }

    /// The most frames a clip can have, where that is fixed.
    pub fn frames(&self) -> Option<usize> {
        self.samples().map(|samples| samples / HOP)
    }

    /// Frames in a second.
    pub const FRAMES_PER_SECOND: f64 = RATE as f64 / HOP as f64;

    fn samples(&self) -> Option<usize> {
        self.pad_seconds.map(|seconds| (seconds * f64::from(RATE)).round() as usize)
    }

    pub(crate) fn build(self) -> Result<LogMelStage> {
        if !(1..=512).contains(&self.bins) {
            return Err(Error::config_hint(
                format!("`log_mel` cannot have {} bins", self.bins),
                "Whisper has 80, or 128 for large-v3: `LogMel::whisper(80)`",
            ));
        }
        if self.samples().is_some_and(|samples| !(WINDOW..=RATE as usize * 3600).contains(&samples)) {
            return Err(Error::config("`pad_seconds` of `log_mel` must lie between 0.025 and 3600"));
        }
        let fft = RealFftPlanner::new().plan_fft_forward(WINDOW);
        let window = (0..WINDOW)
            .map(|n| (0.5 - 0.5 * (std::f64::consts::TAU * n as f64 / WINDOW as f64).cos()) as f32)
            .collect();
        Ok(LogMelStage { filters: filters(self.bins), settings: self, fft, window, scratch: Pool::default() })
    }
}

pub(crate) struct LogMelStage {
    settings: LogMel,
    fft: Arc<dyn RealToComplex<f32>>,
    window: Vec<f32>,
    filters: Vec<Filter>,
    scratch: Pool<Scratch>,
}

/// One mel filter: the bins where it is not zero.
struct Filter {
    first: usize,
    weights: Vec<f32>,
}

#[derive(Default)]
struct Scratch {
    padded: Vec<f32>,
    frame: Vec<f32>,
    spectrum: Vec<Complex32>,
    fft: Vec<Complex32>,
    power: Vec<f32>,
}

impl Stage for LogMelStage {
    fn name(&self) -> &'static str {
        "log_mel"
    }

    fn describe(&self) -> String {
        format!("{:?}", self.settings)
    }

    fn fixed_shape(&self) -> Option<(&'static str, Vec<usize>)> {
        Some((field::FEATURES, vec![self.settings.bins, self.settings.frames()?]))
    }

    fn apply(&self, sample: &mut Sample, context: &mut Context) -> Result<(), Fault> {
        let audio = match sample.take(field::AUDIO) {
            Some(Value::Audio(audio)) => audio,
            Some(other) => return Err(Fault::new(format!("log_mel wants audio, not {}", other.kind()))),
            None => return Err(Fault::new("log_mel wants audio, and the sample has none")),
        };
        if audio.rate != RATE {
            return Err(Fault::new(format!("log_mel wants {RATE} Hz, not {} Hz", audio.rate)));
        }
        if audio.samples.is_empty() {
            return Err(Fault::new("the clip is empty"));
        }
        let mut scratch = self.scratch.take();
        let tensor = self.features(&audio, context.floats(), &mut scratch);
        self.scratch.give(scratch);
        context.recycle(audio.samples);
        sample.set(field::FEATURES, tensor);
        Ok(())
    }
}

impl LogMelStage {
    fn features(&self, audio: &Waveform, mut out: Vec<f32>, scratch: &mut Scratch) -> Tensor {
        let target = self.settings.samples().unwrap_or(audio.samples.len());
        let samples = &audio.samples[..audio.samples.len().min(target)];
        let all_frames = target / HOP;
        // The first frame that starts beyond the last sample sees only padding.
        let frames = all_frames.min((samples.len() + WINDOW / 2).div_ceil(HOP));
        pad(samples, target, frames, &mut scratch.padded);

        scratch.frame.resize(WINDOW, 0.0);
        scratch.spectrum.resize(BINS, Complex32::default());
        scratch.fft.resize(self.fft.get_scratch_len(), Complex32::default());
        scratch.power.resize(BINS * BLOCK, 0.0);
        out.clear();
        out.resize(self.settings.bins * frames, 0.0);

        let mut loudest = if frames < all_frames { FLOOR.log10() } else { f32::NEG_INFINITY };
        for start in (0..frames).step_by(BLOCK) {
            let count = BLOCK.min(frames - start);
            for lane in 0..count {
                let from = (start + lane) * HOP;
                windowed(&scratch.padded[from..from + WINDOW], &self.window, &mut scratch.frame);
                self.fft
                    .process_with_scratch(&mut scratch.frame, &mut scratch.spectrum, &mut scratch.fft)
                    .expect("all three buffers have the lengths that the plan asked for");
                for (power, z) in scratch.power.chunks_exact_mut(BLOCK).zip(&scratch.spectrum) {
                    power[lane] = z.re * z.re + z.im * z.im;
                }
            }
            for (row, filter) in out.chunks_exact_mut(frames).zip(&self.filters) {
                let sums = mel_sum(&scratch.power, filter.first, &filter.weights);
                let mut block = sums;
                loudest = loudest.max(simd::log10_max(&mut block[..count]));
                row[start..start + count].copy_from_slice(&block[..count]);
            }
        }
        let floor = loudest - 8.0;
        simd::clamp_and_scale(&mut out, floor);
        Tensor {
            data: out,
            shape: vec![self.settings.bins, frames],
            pad_axis: 1,
            pad_to: if self.settings.pad_seconds.is_some() { all_frames } else { 0 },
            fill: (floor.max(FLOOR.log10()) + 4.0) * 0.25,
        }
    }
}

/// The samples that `frames` frames look at: mirrored before the first sample, zeros up to `target`, mirrored again after.
fn pad(samples: &[f32], target: usize, frames: usize, padded: &mut Vec<f32>) {
    const HALF: usize = WINDOW / 2;
    let needed = if frames == 0 { 0 } else { (frames - 1) * HOP + WINDOW };
    // A clip shorter than the mirror is mirrored as if zeros followed it, which is what padding to 30 s first does.
    let at = |i: usize| samples.get(i).copied().unwrap_or(0.0);
    padded.clear();
    padded.extend((1..=HALF).rev().map(at));
    padded.extend_from_slice(samples);
    if padded.len() < needed {
        let zeros_end = (HALF + target).min(needed).max(padded.len());
        padded.resize(zeros_end, 0.0);
        let mirrored = needed.saturating_sub(zeros_end);
        padded.extend((0..mirrored).map(|i| (target - 1).checked_sub(i + 1).map_or(0.0, at)));
    }
}

#[multiversion::multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn windowed(samples: &[f32], window: &[f32], out: &mut [f32]) {
    for ((out, sample), weight) in out.iter_mut().zip(samples).zip(window) {
        *out = sample * weight;
    }
}

#[multiversion::multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn mel_sum(power: &[f32], first: usize, weights: &[f32]) -> [f32; BLOCK] {
    let mut sums = [0.0_f32; BLOCK];
    for (power, weight) in power[first * BLOCK..].chunks_exact(BLOCK).zip(weights) {
        for (sum, power) in sums.iter_mut().zip(power) {
            *sum += power * weight;
        }
    }
    sums.map(|sum| if sum > FLOOR { sum } else { FLOOR })
}

/// Slaney's mel filters between 0 and 8 kHz, each scaled to the same area.
fn filters(bins: usize) -> Vec<Filter> {
    let top = hertz_to_mel(f64::from(RATE) / 2.0);
    let edges: Vec<f64> = (0..bins + 2).map(|i| mel_to_hertz(top * i as f64 / (bins + 1) as f64)).collect();
    edges
        .windows(3)
        .map(|edge| {
            let area = 2.0 / (edge[2] - edge[0]);
            let weight = |bin: usize| {
                let hertz = bin as f64 * f64::from(RATE) / WINDOW as f64;
                let rising = (hertz - edge[0]) / (edge[1] - edge[0]);
                let falling = (edge[2] - hertz) / (edge[2] - edge[1]);
                (rising.min(falling).max(0.0) * area) as f32
            };
            let first = (0..BINS).find(|bin| weight(*bin) > 0.0).unwrap_or(0);
            let weights = (first..BINS).map(weight).take_while(|weight| *weight > 0.0).collect();
            Filter { first, weights }
        })
        .collect()
}

/// Slaney's scale: linear below 1 kHz, logarithmic above.
fn hertz_to_mel(hertz: f64) -> f64 {
    if hertz < 1000.0 { hertz * 3.0 / 200.0 } else { 15.0 + (hertz / 1000.0).ln() * 27.0 / 6.4_f64.ln() }
}

fn mel_to_hertz(mel: f64) -> f64 {
    if mel < 15.0 { mel * 200.0 / 3.0 } else { 1000.0 * ((mel - 15.0) * 6.4_f64.ln() / 27.0).exp() }
}
