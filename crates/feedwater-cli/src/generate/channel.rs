//! What happens to a signal between a key and a loudspeaker?
//!
//! It fades (QSB), lightning crackles over it (QRN), a neighbour sends close by (QRM), and there is noise.
//! Each is added by its own function to one buffer of samples, so that a test can look at one of them alone.
//!
//! **The SNR here** is the mean power of the tone while the key is down, before fading, over the power of the
//! white noise in a bandwidth of 2500 Hz, the convention of amateur radio. The noise itself fills the whole
//! band up to half the sampling rate; at 16 kHz the SNR over that full band is 5.1 dB lower than the figure.
//! Impulses and the second signal are not counted as noise.

use std::f64::consts::TAU;

use super::random::Random;

/// Bandwidth in which the noise of an SNR is counted.
pub(crate) const SNR_BANDWIDTH_HZ: f64 = 2500.0;

/// Length of the raised-cosine edges; the key's closing and opening are at half height, in their middle.
const EDGE_SECONDS: f64 = 0.005;

/// Frequency and fading are held for this many samples (4 ms at 16 kHz): both change over seconds.
const BLOCK: usize = 64;

/// A keyed tone.
#[derive(Debug, Clone)]
pub(crate) struct Tone {
    pub(crate) amplitude: f64,
    pub(crate) pitch_hz: f64,
    /// The pitch wanders this far to either side, once in `drift_seconds`.
    pub(crate) drift_hz: f64,
    pub(crate) drift_seconds: f64,
    /// Where carrier, drift and fading are when the clip begins, 0 to 1.
    pub(crate) phase: f64,
    pub(crate) fading: Option<Fading>,
}

/// A gain that swings between 1 and 1 / 10^(depth/20). It never exceeds 1, so the stated SNR is that of the
/// peaks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fading {
    pub(crate) depth_db: f64,
    pub(crate) period_seconds: f64,
}

/// Buffers that are as long as a clip; a thread keeps them from clip to clip.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    pub(crate) samples: Vec<f32>,
    envelope: Vec<f32>,
    edge: Vec<f32>,
}

impl Workspace {
    /// Silence of a given length.
    pub(crate) fn clear(&mut self, length: usize) {
        self.samples.clear();
        self.samples.resize(length, 0.0);
    }

    /// Adds a tone that sounds during `marks` (seconds).
    pub(crate) fn add_tone(&mut self, tone: &Tone, marks: &[(f64, f64)], rate: u32) {
        self.draw_envelope(marks, rate);
        let rate = f64::from(rate);
        let mut phase = tone.phase * TAU;
        let blocks = self.samples.chunks_mut(BLOCK).zip(self.envelope.chunks(BLOCK));
        for (number, (samples, envelope)) in blocks.enumerate() {
            let seconds = (number * BLOCK) as f64 / rate;
            let wander = (TAU * (seconds / tone.drift_seconds + tone.phase)).sin();
            let step = TAU * (tone.pitch_hz + tone.drift_hz * wander) / rate;
            // The oscillator runs on while the key is up, as a beat oscillator does, but needs no samples
            // there.
            if envelope.iter().any(|height| *height > 0.0) {
                let gain = |at: f64| {
                    tone.fading.map_or(1.0, |fading| fading.gain(at / fading.period_seconds + tone.phase))
                };
                let (from, to) = (gain(seconds), gain(seconds + BLOCK as f64 / rate));
                let slope = (to - from) / BLOCK as f64;
                add_block(samples, envelope, phase, step, (tone.amplitude * from, tone.amplitude * slope));
            }
            phase = (phase + BLOCK as f64 * step) % TAU;
        }
    }

    /// Height of the tone at every sample, 0 to 1.
    fn draw_envelope(&mut self, marks: &[(f64, f64)], rate: u32) {
        let length = (EDGE_SECONDS * f64::from(rate)).round() as usize;
        if self.edge.len() != length {
            let height =
                |i: usize| 0.5 - 0.5 * (std::f64::consts::PI * (i as f64 + 0.5) / length as f64).cos();
            self.edge = (0..length).map(|i| height(i) as f32).collect();
        }
        self.envelope.clear();
        self.envelope.resize(self.samples.len(), 0.0);
        let total = self.envelope.len();
        // The edges straddle the moments of closing and opening; what would fall outside of the clip is cut.
        let place = |seconds: f64| ((seconds * f64::from(rate)).round() as usize).saturating_sub(length / 2);
        for (start, end) in marks {
            let (rise, fall) = (place(*start).min(total), place(*end).min(total));
            let plateau = (rise + length).min(fall);
            for (height, edge) in self.envelope[rise..plateau].iter_mut().zip(&self.edge) {
                *height = *edge;
            }
            self.envelope[plateau..fall].fill(1.0);
            for (height, edge) in self.envelope[fall..].iter_mut().zip(self.edge.iter().rev()) {
                *height = *edge;
            }
        }
    }

    /// Crackle: bursts of noise that die away within milliseconds, some of them far louder than the signal.
    pub(crate) fn add_impulses(&mut self, a_second: f64, amplitude: f64, rate: u32, random: &mut Random) {
        let mut seconds = 0.0;
        loop {
            seconds += -(1.0 - random.unit()).ln() / a_second;
            let first = (seconds * f64::from(rate)) as usize;
            if first >= self.samples.len() {
                return;
            }
            let decay = random.between(0.0005, 0.006) * f64::from(rate);
            // Pareto: the loudest of a hundred is about ten times the quietest.
            let mut height = amplitude / (1.0 - random.unit()).sqrt().max(0.1);
            let fall = (-1.0 / decay).exp();
            for sample in self.samples[first..].iter_mut().take((5.0 * decay) as usize) {
                *sample += (height * random.normal()) as f32;
                height *= fall;
            }
        }
    }
}

/// The noise deviation that gives a tone of `amplitude` the stated SNR.
pub(crate) fn noise_deviation(amplitude: f64, snr_db: f64, rate: u32) -> f64 {
    let tone_power = amplitude * amplitude / 2.0;
    let noise_in_bandwidth = tone_power / 10_f64.powf(snr_db / 10.0);
    (noise_in_bandwidth * (f64::from(rate) / 2.0) / SNR_BANDWIDTH_HZ).sqrt()
}

impl Fading {
    fn gain(self, turns: f64) -> f64 {
        // Two swings that don't repeat together look less like a machine than one.
        let swing = 0.5 - 0.35 * (TAU * turns).cos() - 0.15 * (TAU * 2.7 * turns).cos();
        (-self.depth_db / 20.0 * swing * std::f64::consts::LN_10).exp()
    }
}

/// One block of a sine. Eight phasors, one sample apart, are turned by eight samples' angle at a time: no
/// sine a sample, and no sample waits for the one before.
fn add_block(samples: &mut [f32], envelope: &[f32], phase: f64, step: f64, (amplitude, slope): (f64, f64)) {
    const LANES: usize = 8;
    let (mut re, mut im, mut gain) = ([0_f32; LANES], [0_f32; LANES], [0_f32; LANES]);
    let (turn_im, turn_re) = step.sin_cos();
    let (mut y, mut x) = phase.sin_cos();
    for lane in 0..LANES {
        (re[lane], im[lane]) = (x as f32, y as f32);
        gain[lane] = (amplitude + slope * lane as f64) as f32;
        (x, y) = (x * turn_re - y * turn_im, x * turn_im + y * turn_re);
    }
    let (turn_im, turn_re) = (LANES as f64 * step).sin_cos();
    let (turn_re, turn_im, slope) = (turn_re as f32, turn_im as f32, (slope * LANES as f64) as f32);
    for (samples, envelope) in samples.chunks_mut(LANES).zip(envelope.chunks(LANES)) {
        for (lane, (sample, height)) in samples.iter_mut().zip(envelope).enumerate() {
            *sample += gain[lane] * height * im[lane];
        }
        for lane in 0..LANES {
            (re[lane], im[lane]) =
                (re[lane] * turn_re - im[lane] * turn_im, re[lane] * turn_im + im[lane] * turn_re);
            gain[lane] += slope;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::random::Purpose;

    const RATE: u32 = 16_000;

    fn tone(amplitude: f64) -> Tone {
        Tone { amplitude, pitch_hz: 601.3, drift_hz: 0.0, drift_seconds: 9.0, phase: 0.3, fading: None }
    }

    fn power(samples: &[f32]) -> f64 {
        samples.iter().map(|s| f64::from(*s).powi(2)).sum::<f64>() / samples.len() as f64
    }

    /// Mean power between 0 Hz and `high`, by the plain definition of the Fourier transform.
    fn power_below(samples: &[f32], high: f64) -> f64 {
        let segments: Vec<_> = samples.chunks_exact(2048).take(12).collect();
        let mut sum = 0.0;
        for segment in &segments {
            for bin in 1..(high / f64::from(RATE) * 2048.0) as usize {
                let (mut re, mut im) = (0.0, 0.0);
                for (i, sample) in segment.iter().enumerate() {
                    let (s, c) = (TAU * (i * bin % 2048) as f64 / 2048.0).sin_cos();
                    re += f64::from(*sample) * c;
                    im += f64::from(*sample) * s;
                }
                sum += 2.0 * (re * re + im * im) / (2048.0 * 2048.0);
            }
        }
        sum / segments.len() as f64
    }

    #[test]
    fn the_snr_is_tone_power_over_noise_power_in_2500_hz() {
        for snr_db in [-6.0, 5.0, 25.0] {
            let mut space = Workspace::default();
            space.clear(RATE as usize * 4);
            space.add_tone(&tone(0.1), &[(0.1, 3.9)], RATE);
            let tone_power = power(&space.samples[3_200..60_000]);
            assert!((tone_power / 0.005 - 1.0).abs() < 1e-3, "tone power {tone_power}");
            space.clear(RATE as usize * 4);
            let deviation = noise_deviation(0.1, snr_db, RATE);
            space.samples.iter_mut().for_each(|s| *s = 0.0);
            Random::keyed(1, Purpose::Clip, 0).add_noise(&mut space.samples, deviation as f32);
            let measured = 10.0 * (tone_power / power_below(&space.samples, SNR_BANDWIDTH_HZ)).log10();
            assert!((measured - snr_db).abs() < 0.25, "wanted {snr_db} dB, measured {measured:.2} dB");
            let full_band = 10.0 * (tone_power / power(&space.samples)).log10();
            assert!((full_band - (snr_db - 5.05)).abs() < 0.1, "full band {full_band:.2}");
        }
    }

    #[test]
    fn the_oscillator_is_a_sine_of_the_stated_pitch() {
        let mut space = Workspace::default();
        space.clear(RATE as usize * 2);
        space.add_tone(&tone(1.0), &[(0.0, 2.0)], RATE);
        for (i, sample) in space.samples.iter().enumerate().skip(200).take(31_000) {
            let wanted = (TAU * (0.3 + 601.3 * i as f64 / f64::from(RATE))).sin();
            assert!((f64::from(*sample) - wanted).abs() < 2e-4, "sample {i}: {sample} is not {wanted}");
        }
    }

    #[test]
    fn edges_are_five_milliseconds_around_the_moment_of_keying() {
        let mut space = Workspace::default();
        space.clear(RATE as usize);
        space.draw_envelope(&[(0.25, 0.5)], RATE);
        let at = |seconds: f64| space.envelope[(seconds * f64::from(RATE)).round() as usize];
        assert!((at(0.25) - 0.5).abs() < 0.02 && (at(0.5) - 0.5).abs() < 0.02);
        assert_eq!((at(0.2474), at(0.2526), at(0.4974), at(0.5026)), (0.0, 1.0, 1.0, 0.0));
        let area = space.envelope.iter().map(|h| f64::from(*h)).sum::<f64>() / f64::from(RATE);
        assert!((area - 0.25).abs() < 1e-4, "the key was down for {area} s");
    }

    #[test]
    fn fading_reaches_its_depth_and_never_amplifies() {
        let fading = Fading { depth_db: 20.0, period_seconds: 2.0 };
        let gains: Vec<f64> = (0..10_000).map(|i| fading.gain(f64::from(i) / 100.0)).collect();
        assert!(gains.iter().all(|gain| (0.0999..=1.0001).contains(gain)));
        assert!(gains.iter().any(|gain| *gain > 0.98) && gains.iter().any(|gain| *gain < 0.11));
    }

    #[test]
    fn impulses_are_rare_and_loud() {
        let mut space = Workspace::default();
        space.clear(RATE as usize * 60);
        space.add_impulses(2.0, 0.1, RATE, &mut Random::keyed(1, Purpose::Clip, 0));
        let touched = space.samples.iter().filter(|s| **s != 0.0).count() as f64 / space.samples.len() as f64;
        assert!((0.005..0.06).contains(&touched), "{touched}");
        assert!(space.samples.iter().any(|s| s.abs() > 0.4));
    }
}
