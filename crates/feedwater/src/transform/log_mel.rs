//! Sound to log-mel features: how loud is each pitch, every hundredth of a second?
//!
//! Equal to Hugging Face's `WhisperFeatureExtractor` within 1e-5: zero-padded to 30 s, centred frames of 400 samples
//! every 160 with reflected edges, a periodic Hann window, power, Slaney's mel filters, `log10`, clamped to 8 below the
//! clip's loudest value, `(x + 4) / 4`; the last frame is dropped.
//!
//! Three things make it fast. Frames that lie wholly in the padding are not computed: their value is known. Frames are
//! taken eight at a time (`spectrum`), and their powers lie side by side, so that the mel sums and the
//! logarithm run over eight frames in one instruction stream and land in the output row in order. And the filters, which
//! are zero but for a few bins each, are stored as just those bins.

use super::{
    simd,
    spectrum::{BINS, BLOCK, Bench, HOP, SPAN, Spectrum, WINDOW},
};
use crate::{
    error::{Error, Fault, Result},
    pipeline::{Context, Pool, Stage},
    sample::{Sample, Tensor, Value, Waveform, field},
};

const RATE: u32 = 16_000;
/// Half a window: frames are centred on every 160th sample.
const HALF: usize = WINDOW / 2;
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

    /// Samples a second that it takes.
    pub const RATE: u32 = RATE;
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
        Ok(LogMelStage {
            filters: filters(self.bins),
            settings: self,
            spectrum: Spectrum::new(),
            scratch: Pool::default(),
        })
    }
}

pub(crate) struct LogMelStage {
    settings: LogMel,
    spectrum: Spectrum,
    filters: Vec<Filter>,
    scratch: Pool<Scratch>,
}

/// One mel filter: the bins where it is not zero.
struct Filter {
    first: usize,
    weights: Vec<f32>,
}

struct Scratch {
    span: Box<[f32; SPAN]>,
    bench: Box<Bench>,
    powers: Box<[[f32; BLOCK]; BINS]>,
    bands: Vec<[f32; BLOCK]>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            span: Box::new([0.0; SPAN]),
            bench: Box::default(),
            powers: Box::new([[0.0; BLOCK]; BINS]),
            bands: Vec::new(),
        }
    }
}

impl Stage for LogMelStage {
    fn name(&self) -> &'static str {
        "log_mel"
    }

    fn describe(&self) -> String {
        format!("{:?}", self.settings)
    }

    fn version(&self) -> Option<u32> {
        Some(1)
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
        let frames = all_frames.min((samples.len() + HALF).div_ceil(HOP));
        // Every number is written below; whatever the buffer held is not zeroed first.
        out.resize(self.settings.bins * frames, 0.0);

        let mut loudest = if frames < all_frames { FLOOR.log10() } else { f32::NEG_INFINITY };
        for start in (0..frames).step_by(BLOCK) {
            // The block's samples, from half a window before its first frame's centre: most lie in the clip as they are.
            let inside = (start * HOP).checked_sub(HALF).and_then(|from| samples.get(from..from + SPAN));
            let span = inside.unwrap_or_else(|| {
                around(samples, target, start * HOP, &mut scratch.span);
                &scratch.span[..]
            });
            self.spectrum.powers(span, &mut scratch.bench, &mut scratch.powers);
            let count = BLOCK.min(frames - start);
            scratch.bands.resize(self.settings.bins, [0.0; BLOCK]);
            loudest = loudest.max(log_bands(&scratch.powers, &self.filters, &mut scratch.bands, count));
            for (row, band) in out.chunks_exact_mut(frames).zip(&scratch.bands) {
                match row[start..].first_chunk_mut() {
                    Some(row) => *row = *band,
                    None => row[start..].copy_from_slice(&band[..count]),
                }
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

/// The samples of a block that reaches over an edge of the clip: mirrored before the first sample, zeros up to `target`,
/// mirrored again after. `from` counts from half a window before the first sample.
fn around(samples: &[f32], target: usize, from: usize, span: &mut [f32; SPAN]) {
    // A clip shorter than the mirror is mirrored as if zeros followed it, which is what padding to 30 s first does.
    let sample = |at: usize| samples.get(at).copied().unwrap_or(0.0);
    for (offset, value) in span.iter_mut().enumerate() {
        let at = from + offset;
        *value = if at < HALF {
            sample(HALF - at)
        } else if at - HALF < target {
            sample(at - HALF)
        } else {
            (2 * (target - 1)).checked_sub(at - HALF).map_or(0.0, sample)
        };
    }
}

/// From the powers of a block to the logarithms of its mel bands. Returns the largest of those of the first `count` frames.
#[multiversion::multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn log_bands(
    powers: &[[f32; BLOCK]; BINS],
    filters: &[Filter],
    bands: &mut [[f32; BLOCK]],
    count: usize,
) -> f32 {
    for (band, filter) in bands.iter_mut().zip(filters) {
        let mut sums = [FLOOR; BLOCK];
        let mut both = [0.0_f32; BLOCK];
        for (powers, weight) in powers[filter.first..].iter().zip(&filter.weights) {
            for (sum, power) in both.iter_mut().zip(powers) {
                *sum += power * weight;
            }
        }
        for (sum, both) in sums.iter_mut().zip(both) {
            *sum = if both > *sum { both } else { *sum };
        }
        *band = sums;
    }
    // Several bands at a time: one logarithm is a long chain of operations that wait for each other.
    let mut largest = [f32::NEG_INFINITY; BLOCK];
    let (fours, rest) = bands.as_chunks_mut::<4>();
    for four in fours {
        for value in four.as_flattened_mut() {
            *value = simd::log10(*value);
        }
        for band in four {
            for (largest, value) in largest.iter_mut().zip(band) {
                *largest = if *value > *largest { *value } else { *largest };
            }
        }
    }
    for band in rest {
        for (largest, value) in largest.iter_mut().zip(band) {
            *value = simd::log10(*value);
            *largest = if *value > *largest { *value } else { *largest };
        }
    }
    largest[..count].iter().copied().fold(f32::NEG_INFINITY, f32::max)
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
