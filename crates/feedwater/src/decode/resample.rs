//! How does a recording change its rate?
//!
//! By FFT, with rubato's resampler for fixed pairs of rates; its filter is as long as a block.
//! Channels have been mixed down before, so that one is resampled and not two. A resampler is built once for a pair of
//! rates (it has FFT plans and a filter to make) and reset for every file, so that no file
//! hears the one before.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
};

use rubato::{
    Fft, FixedSync, Indexing, Resampler, WindowFunction, audioadapter_buffers::direct::SequentialSlice,
};

use super::plan::{Plan, gcd};
use crate::error::Fault;

/// The block of input frames that is transformed at once, at least. Longer blocks make a steeper filter; shorter ones
/// stay in the cache.
const BLOCK_FRAMES: usize = 1_200;

/// How many frames before and behind a window have an influence on it.
pub(super) fn context_frames(from: u32, to: u32) -> u64 {
    2 * block_frames(from, to) as u64
}

fn block_frames(from: u32, to: u32) -> usize {
    let step = (from / gcd(from, to)) as usize;
    // Going far down, the filter must still be as steep for the rate that it ends at.
    let wanted = BLOCK_FRAMES.max(BLOCK_FRAMES / 4 * from as usize / to as usize);
    // A power of two of steps: with other numbers the transform's length can have a large prime in it, which makes it
    // five times as slow.
    wanted.div_ceil(step).next_power_of_two() * step
}

/// The resamplers of one thread, by pair of rates.
#[derive(Default)]
pub(super) struct Resamplers {
    by_rates: HashMap<(u32, u32), Fft<f32>>,
    block: Vec<f32>,
}

impl Resamplers {
    /// Resamples `samples`, which are what the plan asked for, and puts what the plan keeps into `out`.
    ///
    /// The output is as long as the input, to the nearest sample, and no later than it.
    pub(super) fn run(
        &mut self,
        plan: &Plan,
        samples: &[f32],
        cancel: &AtomicBool,
        out: &mut Vec<f32>,
    ) -> Result<(), Fault> {
        /// A data set with thousands of rates would keep thousands of filters.
        const MOST_KEPT: usize = 64;

        let rates = (plan.from, plan.to);
        if self.by_rates.len() >= MOST_KEPT && !self.by_rates.contains_key(&rates) {
            self.by_rates.clear();
        }
        let resampler = match self.by_rates.entry(rates) {
            std::collections::hash_map::Entry::Occupied(entry) => {
                let resampler = entry.into_mut();
                resampler.reset();
                resampler
            }
            std::collections::hash_map::Entry::Vacant(entry) => entry.insert(build(rates)?),
        };
        let all =
            (samples.len() as u64 * u64::from(plan.to) + u64::from(plan.from) / 2) / u64::from(plan.from);
        let end = plan.keep.map_or(all as usize, |keep| (plan.skip + keep).min(all as usize));
        out.resize(end.saturating_sub(plan.skip), 0.0);

        let (block_in, block_out) = (resampler.input_frames_next(), resampler.output_frames_next());
        self.block.resize(block_out, 0.0);
        let failed = |error: &dyn std::fmt::Display| Fault::new(format!("resampling failed: {error}"));
        // What comes first out of the filter is its delay.
        let skip = resampler.output_delay() + plan.skip;
        let (mut done_in, mut done_out, mut filled) = (0, 0, 0);
        while filled < out.len() {
            if cancel.load(Ordering::Relaxed) {
                return Err(super::cancelled());
            }
            let input = &samples[done_in.min(samples.len())..];
            let partial = Indexing::new().partial_len(input.len());
            let indexing = (input.len() < block_in).then_some(&partial);
            let from = SequentialSlice::new(input, 1, input.len()).map_err(|error| failed(&error))?;
            // Most blocks are kept whole: they are written where they belong.
            let whole = done_out >= skip && out.len() - filled >= block_out;
            let into = if whole { &mut out[filled..filled + block_out] } else { self.block.as_mut_slice() };
            let mut into = SequentialSlice::new_mut(into, 1, block_out).map_err(|error| failed(&error))?;
            resampler.process_into_buffer(&from, &mut into, indexing).map_err(|error| failed(&error))?;
            if whole {
                filled += block_out;
            } else if done_out + block_out > skip {
                let kept = &self.block[skip.saturating_sub(done_out)..];
                let count = kept.len().min(out.len() - filled);
                out[filled..filled + count].copy_from_slice(&kept[..count]);
                filled += count;
            }
            done_in += block_in;
            done_out += block_out;
        }
        Ok(())
    }
}

fn build((from, to): (u32, u32)) -> Result<Fft<f32>, Fault> {
    let block = block_frames(from, to);
    Fft::new_custom(from as usize, to as usize, block, 1, 1, WindowFunction::BlackmanHarris2, FixedSync::Both)
        .map_err(|error| Fault::new(format!("cannot resample from {from} Hz to {to} Hz: {error}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

    use super::*;

    fn tone(hertz: f64, rate: u32, count: usize) -> Vec<f32> {
        (0..count)
            .map(|n| (std::f64::consts::TAU * hertz * n as f64 / f64::from(rate)).sin() as f32)
            .collect()
    }

    fn resample(from: u32, to: u32, samples: &[f32]) -> Vec<f32> {
        let plan = Plan::whole(from, to);
        let mut out = vec![9.0; 3];
        Resamplers::default().run(&plan, samples, &AtomicBool::new(false), &mut out).unwrap();
        out
    }

    fn root_mean_square(samples: &[f32]) -> f32 {
        (samples.iter().map(|x| x * x).sum::<f32>() / samples.len() as f32).sqrt()
    }

    const PAIRS: [(u32, u32); 8] = [
        (44_100, 16_000),
        (48_000, 16_000),
        (22_050, 16_000),
        (8_000, 16_000),
        (24_000, 16_000),
        (16_000, 44_100),
        (96_000, 16_000),
        (11_025, 8_000),
    ];

    /// Value by value against the tone itself, so a shift in time would show: at 0.9 of the Nyquist frequency, one
    /// tenth of a sample is an error of 0.28.
    #[test]
    fn tones_below_nyquist_come_through_where_they_were() {
        for (from, to) in PAIRS {
            for share in [0.02, 0.3, 0.7, 0.9] {
                let hertz = f64::from(from.min(to)) / 2.0 * share;
                let count = 3 * from as usize + 17;
                let out = resample(from, to, &tone(hertz, from, count));
                let expected = tone(hertz, to, out.len());
                let exact_len = (count as f64 * f64::from(to) / f64::from(from)).round() as usize;
                assert_eq!(out.len(), exact_len, "{from} to {to}");
                // At the edges the tone is cut off, which is no tone.
                let inner = to as usize / 2..out.len() - to as usize / 2;
                let difference: Vec<f32> =
                    out[inner.clone()].iter().zip(&expected[inner]).map(|(a, b)| a - b).collect();
                let error = root_mean_square(&difference) / std::f32::consts::FRAC_1_SQRT_2;
                assert!(error < 0.01, "{hertz} Hz from {from} to {to}: {error}");
            }
        }
    }

    #[test]
    fn tones_above_nyquist_are_gone() {
        for (from, to) in PAIRS.into_iter().filter(|(from, to)| from > to) {
            for share in [1.1, 1.3, 1.37] {
                let hertz = f64::from(to) / 2.0 * share;
                if hertz < f64::from(from) / 2.0 {
                    let out = resample(from, to, &tone(hertz, from, 2 * from as usize));
                    let left = root_mean_square(&out[to as usize / 2..3 * to as usize / 2]);
                    assert!(left < 0.000_7, "{hertz} Hz from {from} to {to}: {left}");
                }
            }
        }
    }

    #[test]
    fn a_click_stays_where_it_was_and_short_clips_keep_their_length() {
        let mut click = vec![0.0; 44_100];
        click[22_050] = 1.0;
        let out = resample(44_100, 16_000, &click);
        let peak = (0..out.len()).max_by(|a, b| out[*a].total_cmp(&out[*b])).unwrap();
        assert_eq!((peak, out.len()), (8_000, 16_000));
        for count in [1, 2, 3, 100, 1_763, 1_764, 1_765] {
            let exact_len = (count as f64 * 16_000.0 / 44_100.0).round() as usize;
            assert_eq!(resample(44_100, 16_000, &vec![0.5; count]).len(), exact_len);
        }
    }
}
