//! The same sample, never quite the same twice, and yet the same on 1 thread and on 32.
//!
//! Every random choice is drawn from a generator keyed by (seed, epoch, sample key, stage), so it does not matter who
//! drew before. All of them work in place.

use std::ops::RangeInclusive;

use rand_core::Rng;

use super::simd;
use crate::{
    error::{Error, Fault, Result},
    pipeline::{Context, Stage},
    sample::{Sample, Tensor, Value, field},
};

/// Additive gaussian noise, on sound where the sample has sound, else on its features.
#[derive(Debug, Clone, PartialEq)]
pub struct Noise(Level);

#[derive(Debug, Clone, PartialEq)]
enum Level {
    SnrDb(RangeInclusive<f32>),
    Deviation(f32),
}

impl Noise {
    /// Noise whose power lies this many decibels below the mean power of the clip, drawn evenly from the range. A
    /// silent clip stays silent.
    pub fn snr_db(range: RangeInclusive<f32>) -> Self {
        Self(Level::SnrDb(range))
    }

    /// Noise of this standard deviation, whatever the sample's level.
    pub fn deviation(deviation: f32) -> Self {
        Self(Level::Deviation(deviation))
    }
}

/// Louder or softer, by a number of decibels drawn evenly from the range.
#[derive(Debug, Clone, PartialEq)]
pub struct Gain(RangeInclusive<f32>);

impl Gain {
    /// A range of decibels.
    pub fn db(range: RangeInclusive<f32>) -> Self {
        Self(range)
    }
}

/// Earlier or later: the clip slides, what falls off is lost, what opens is silence; its length stays.
#[derive(Debug, Clone, PartialEq)]
pub struct TimeShift(f32);

impl TimeShift {
    /// By up to this many seconds either way.
    pub fn seconds(most: f32) -> Self {
        Self(most)
    }
}

/// `SpecAugment`: stretches of time and bands of pitch are set to zero.
#[derive(Debug, Clone, PartialEq)]
pub struct SpecAugment {
    time_masks: usize,
    time_share: f32,
    frequency_masks: usize,
    frequency_bins: usize,
}

impl SpecAugment {
    /// No masks yet.
    pub fn new() -> Self {
        Self { time_masks: 0, time_share: 0.0, frequency_masks: 0, frequency_bins: 0 }
    }

    /// So many masks in time, each up to `share` of the clip's length.
    pub fn time(mut self, masks: usize, share: f32) -> Self {
        (self.time_masks, self.time_share) = (masks, share);
        self
    }

    /// So many masks in frequency, each up to so many bins.
    pub fn frequency(mut self, masks: usize, bins: usize) -> Self {
        (self.frequency_masks, self.frequency_bins) = (masks, bins);
        self
    }
}

impl Default for SpecAugment {
    /// Two masks in time of up to 5 % each, two in frequency of up to 10 bins.
    fn default() -> Self {
        Self::new().time(2, 0.05).frequency(2, 10)
    }
}

impl Noise {
    pub(crate) fn check(&self) -> Result<()> {
        match &self.0 {
            Level::SnrDb(range) => check_range("noise", range),
            Level::Deviation(deviation) if deviation.is_finite() && *deviation >= 0.0 => Ok(()),
            Level::Deviation(deviation) => {
                Err(Error::config(format!("`noise` cannot have a deviation of {deviation}")))
            }
        }
    }
}

impl Gain {
    pub(crate) fn check(&self) -> Result<()> {
        check_range("gain", &self.0)
    }
}

impl TimeShift {
    pub(crate) fn check(&self) -> Result<()> {
        if self.0.is_finite() && self.0 >= 0.0 {
            return Ok(());
        }
        Err(Error::config(format!("`time_shift` cannot be by {} s", self.0)))
    }
}

impl SpecAugment {
    pub(crate) fn check(&self) -> Result<()> {
        if (0.0..=1.0).contains(&self.time_share) {
            return Ok(());
        }
        Err(Error::config_hint(
            format!("`spec_augment` cannot mask {} of the time", self.time_share),
            "the share lies between 0 and 1: `SpecAugment::new().time(2, 0.05)`",
        ))
    }
}

fn check_range(stage: &str, range: &RangeInclusive<f32>) -> Result<()> {
    if range.start().is_finite() && range.end().is_finite() && range.start() <= range.end() {
        return Ok(());
    }
    Err(Error::config_hint(
        format!("the range of `{stage}` runs from {} to {} dB", range.start(), range.end()),
        "write the smaller number first: `5.0..=25.0`",
    ))
}

impl Stage for Noise {
    fn name(&self) -> &'static str {
        "noise"
    }

    fn describe(&self) -> String {
        format!("{self:?}")
    }

    fn apply(&self, sample: &mut Sample, context: &mut Context) -> Result<(), Fault> {
        let mut rng = context.rng(&sample.key);
        let values = numbers(sample, "noise")?;
        let deviation = match &self.0 {
            Level::Deviation(deviation) => *deviation,
            Level::SnrDb(range) => {
                let snr = between(&mut rng, range);
                (simd::mean_square(values) / 10.0_f64.powf(f64::from(snr) / 10.0)).sqrt() as f32
            }
        };
        if deviation > 0.0 {
            simd::add_gaussian(values, simd::Words::new(&mut rng), deviation);
        }
        Ok(())
    }
}

impl Stage for Gain {
    fn name(&self) -> &'static str {
        "gain"
    }

    fn describe(&self) -> String {
        format!("{self:?}")
    }

    fn apply(&self, sample: &mut Sample, context: &mut Context) -> Result<(), Fault> {
        let gain = between(&mut context.rng(&sample.key), &self.0);
        simd::scale(numbers(sample, "gain")?, 10.0_f32.powf(gain / 20.0));
        Ok(())
    }
}

impl Stage for TimeShift {
    fn name(&self) -> &'static str {
        "time_shift"
    }

    fn describe(&self) -> String {
        format!("{self:?}")
    }

    fn apply(&self, sample: &mut Sample, context: &mut Context) -> Result<(), Fault> {
        let seconds = between(&mut context.rng(&sample.key), &(-self.0..=self.0));
        let Some(Value::Audio(audio)) = sample.get_mut(field::AUDIO) else {
            return Err(Fault::new("time_shift wants decoded audio, and the sample has none"));
        };
        let length = audio.samples.len();
        let by = ((seconds.abs() * audio.rate as f32) as usize).min(length);
        if seconds > 0.0 {
            audio.samples.copy_within(..length - by, by);
            audio.samples[..by].fill(0.0);
        } else {
            audio.samples.copy_within(by.., 0);
            audio.samples[length - by..].fill(0.0);
        }
        Ok(())
    }
}

impl Stage for SpecAugment {
    fn name(&self) -> &'static str {
        "spec_augment"
    }

    fn describe(&self) -> String {
        format!("{self:?}")
    }

    fn apply(&self, sample: &mut Sample, context: &mut Context) -> Result<(), Fault> {
        let mut rng = context.rng(&sample.key);
        let Some(Value::Tensor(tensor)) = sample.get_mut(field::FEATURES) else {
            return Err(Fault::new("spec_augment wants features, and the sample has none"));
        };
        if tensor.shape.len() != 2 {
            return Err(Fault::new(format!(
                "spec_augment wants two axes, not a shape of {:?}",
                tensor.shape
            )));
        }
        let (frames, bins) = (tensor.length(), tensor.shape[1 - tensor.pad_axis]);
        for _ in 0..self.time_masks {
            let (from, to) = stretch(&mut rng, frames, (self.time_share * frames as f32) as usize);
            mask(tensor, tensor.pad_axis, from, to);
        }
        for _ in 0..self.frequency_masks {
            let (from, to) = stretch(&mut rng, bins, self.frequency_bins);
            mask(tensor, 1 - tensor.pad_axis, from, to);
        }
        Ok(())
    }
}

/// The numbers that augmentation works on: the sound, or else the features.
fn numbers<'a>(sample: &'a mut Sample, stage: &str) -> Result<&'a mut [f32], Fault> {
    let name = if sample.get(field::AUDIO).is_some() { field::AUDIO } else { field::FEATURES };
    match sample.get_mut(name) {
        Some(Value::Audio(audio)) => Ok(&mut audio.samples),
        Some(Value::Tensor(tensor)) => Ok(&mut tensor.data),
        Some(other) => {
            Err(Fault::new(format!("{stage} wants decoded audio or features, not {}", other.kind())))
        }
        None => Err(Fault::new(format!("{stage} wants audio or features, and the sample has neither"))),
    }
}

/// A number of the range, evenly.
fn between(rng: &mut impl Rng, range: &RangeInclusive<f32>) -> f32 {
    let unit = (rng.next_u64() >> 40) as f32 / 16_777_215.0;
    range.start() + (range.end() - range.start()) * unit
}

/// A whole number below `end`, evenly.
fn below(rng: &mut impl Rng, end: usize) -> usize {
    ((u128::from(rng.next_u64()) * end as u128) >> 64) as usize
}

/// A stretch of up to `most` of `length`, anywhere in it.
fn stretch(rng: &mut impl Rng, length: usize, most: usize) -> (usize, usize) {
    let width = below(rng, most.min(length) + 1);
    let from = below(rng, length - width + 1);
    (from, from + width)
}

fn mask(tensor: &mut Tensor, axis: usize, from: usize, to: usize) {
    let columns = tensor.shape[1];
    if axis == 0 {
        tensor.data[from * columns..to * columns].fill(0.0);
    } else {
        for row in tensor.data.chunks_exact_mut(columns) {
            row[from..to].fill(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Waveform;

    fn clip(key: &str) -> Sample {
        let samples = (0..16_000).map(|i| (i as f32 * 0.1).sin() * 0.5).collect();
        Sample::new(key).with(field::AUDIO, Waveform { samples, rate: 16_000 })
    }

    fn samples(sample: &Sample) -> Vec<f32> {
        match sample.get(field::AUDIO) {
            Some(Value::Audio(audio)) => audio.samples.clone(),
            _ => panic!("no audio"),
        }
    }

    #[test]
    fn noise_has_the_snr_it_was_asked_for() {
        let mut sample = clip("a");
        let before = samples(&sample);
        Noise::snr_db(10.0..=10.0).apply(&mut sample, &mut Context::for_tests(1, 0)).unwrap();
        let noise: Vec<f32> =
            samples(&sample).iter().zip(&before).map(|(after, before)| after - before).collect();
        let snr = 10.0 * (simd::mean_square(&before) / simd::mean_square(&noise)).log10();
        assert!((snr - 10.0).abs() < 0.2, "{snr}");
    }

    #[test]
    fn the_same_key_epoch_and_seed_give_the_same_noise_and_others_do_not() {
        let run = |key: &str, seed, epoch| {
            let mut sample = clip(key);
            Noise::snr_db(0.0..=20.0).apply(&mut sample, &mut Context::for_tests(seed, epoch)).unwrap();
            samples(&sample)
        };
        let first = run("a", 1, 0);
        assert_eq!(first, run("a", 1, 0));
        assert_ne!(first, run("b", 1, 0));
        assert_ne!(first, run("a", 2, 0));
        assert_ne!(first, run("a", 1, 1));
    }

    #[test]
    fn a_shift_moves_and_keeps_the_length() {
        let mut shifted = 0;
        for key in ["a", "b", "c", "d"] {
            let mut sample = clip(key);
            let before = samples(&sample);
            TimeShift::seconds(0.1).apply(&mut sample, &mut Context::for_tests(3, 0)).unwrap();
            let after = samples(&sample);
            assert_eq!(before.len(), after.len());
            shifted += usize::from(before != after);
            let zeros_before = after.iter().take_while(|v| **v == 0.0).count();
            if zeros_before > 2 {
                assert_eq!(after[zeros_before + 1..][..1000], before[1..1001]);
            }
        }
        assert!(shifted >= 3);
    }

    #[test]
    fn masks_lie_on_the_right_axis() {
        for pad_axis in [0, 1] {
            let mut tensor = Tensor::new(vec![1.0; 40 * 30], vec![40, 30]);
            tensor.pad_axis = pad_axis;
            let mut sample = Sample::new("a").with(field::FEATURES, tensor);
            SpecAugment::new().time(1, 0.5).apply(&mut sample, &mut Context::for_tests(5, 0)).unwrap();
            let Some(Value::Tensor(tensor)) = sample.get(field::FEATURES) else { panic!() };
            let zero_rows = tensor.data.chunks(30).filter(|row| row.iter().all(|v| *v == 0.0)).count();
            let zeros = tensor.data.iter().filter(|v| **v == 0.0).count();
            assert!(zeros > 0);
            if pad_axis == 0 {
                assert_eq!(zeros, zero_rows * 30);
            } else {
                assert_eq!((zeros % 40, zero_rows), (0, 0));
            }
        }
    }

    #[test]
    fn wrong_settings_are_refused() {
        assert!(Noise::snr_db(20.0..=5.0).check().is_err());
        assert!(Noise::deviation(f32::NAN).check().is_err());
        assert!(Gain::db(f32::NEG_INFINITY..=0.0).check().is_err());
        assert!(TimeShift::seconds(-1.0).check().is_err());
        assert!(SpecAugment::new().time(1, 1.5).check().is_err());
    }
}
