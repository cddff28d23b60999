//! Which random numbers does file number `n` get?
//!
//! Its own: a generator keyed by (seed, purpose, number). Nothing is drawn from a shared stream, so the order
//! in which threads reach the files can't matter, and adding a clip leaves the others as they were. PCG is
//! used because its output is fixed by its definition; the "standard" generators of the rand crates may
//! change with a version.

use std::sync::OnceLock;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// What a stream of numbers is for. Two purposes with the same number share nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    /// One Morse clip.
    Clip = 1,
    /// Choices made once for a whole Morse dataset.
    Dataset,
    /// The structure of one class of feature matrices.
    Class,
    /// One feature matrix.
    Matrix,
    /// One document.
    Document,
    /// One made-up word.
    Word,
}

/// A keyed source of random numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random {
    pcg: Pcg64Mcg,
    ziggurat: &'static Ziggurat,
}

impl Random {
    pub(crate) fn keyed(seed: u64, purpose: Purpose, number: u64) -> Self {
        // Chained, not added: (seed 1, number 2) and (seed 2, number 1) must not meet.
        let first = scramble(scramble(scramble(seed) ^ purpose as u64) ^ number);
        let second = scramble(first);
        let mut key = [0; 16];
        key[..8].copy_from_slice(&first.to_le_bytes());
        key[8..].copy_from_slice(&second.to_le_bytes());
        Self { pcg: Pcg64Mcg::from_seed(key), ziggurat: Ziggurat::shared() }
    }

    /// Uniform in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.pcg.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Uniform in [low, high).
    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Uniform in 0..count. `count` is at least 1; the bias (below 2^-32 for the short lists here) is of no
    /// account.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.pcg.next_u64()) * count as u128) >> 64) as usize
    }

    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Any of `list`, all equally often. The lists are constants and never empty.
    pub(crate) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// A rank in 0..count by Zipf's law with exponent 1: a log-uniform number has P(rank) = ln(1 + 1/rank) /
    /// ln(count + 1), close to 1/rank, and needs no table.
    pub(crate) fn zipf(&mut self, count: usize) -> usize {
        let rank = ((count as f64 + 1.0).ln() * self.unit()).exp() as usize;
        rank.clamp(1, count) - 1
    }

    /// One of `list`, which stands in order of frequency.
    pub(crate) fn pick_common<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.zipf(list.len())]
    }

    /// Standard normal.
    pub(crate) fn normal(&mut self) -> f64 {
        let bits = self.pcg.next_u32();
        f64::from(self.shape(bits))
    }

    /// Adds white Gaussian noise. This is where the generator spends most of its time, hence two values a
    /// draw.
    pub(crate) fn add_noise(&mut self, samples: &mut [f32], deviation: f32) {
        let mut pairs = samples.chunks_exact_mut(2);
        for pair in &mut pairs {
            let bits = self.pcg.next_u64();
            pair[0] += deviation * self.shape(bits as u32);
            pair[1] += deviation * self.shape((bits >> 32) as u32);
        }
        for last in pairs.into_remainder() {
            let bits = self.pcg.next_u32();
            *last += deviation * self.shape(bits);
        }
    }

    /// Turns 32 random bits into a normal value: 8 choose the layer, 24 the place in it. 98.8 % of the draws
    /// end at the first comparison.
    #[inline]
    fn shape(&mut self, bits: u32) -> f32 {
        let layer = (bits & 255) as usize;
        let place = ((bits as i32) >> 8) as f32 * (1.0 / (1 << 23) as f32);
        let value = place * self.ziggurat.edge[layer];
        if value.abs() < self.ziggurat.edge[layer + 1] { value } else { self.reshape(layer, value) }
    }

    #[cold]
    fn reshape(&mut self, mut layer: usize, mut value: f32) -> f32 {
        let table = self.ziggurat;
        loop {
            if value.abs() < table.edge[layer + 1] {
                return value;
            }
            if layer == 0 {
                return self.tail().copysign(value);
            }
            let (low, high) = (table.density[layer], table.density[layer + 1]);
            if low + (high - low) * (self.unit() as f32) < (-0.5 * value * value).exp() {
                return value;
            }
            let bits = self.pcg.next_u32();
            layer = (bits & 255) as usize;
            value = ((bits as i32) >> 8) as f32 * (1.0 / (1 << 23) as f32) * table.edge[layer];
        }
    }

    /// The tail beyond the last layer, after Marsaglia (1964).
    fn tail(&mut self) -> f32 {
        loop {
            let x = -(1.0 - self.unit()).ln() / Ziggurat::TAIL;
            let y = -(1.0 - self.unit()).ln();
            if y + y > x * x {
                return (Ziggurat::TAIL + x) as f32;
            }
        }
    }
}

/// The finaliser of `SplitMix64`: every bit of the input reaches every bit of the output.
fn scramble(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The 256-layer ziggurat of Marsaglia and Tsang: layers of equal area under the bell curve.
#[derive(Debug)]
struct Ziggurat {
    edge: [f32; 257],
    density: [f32; 257],
}

impl Ziggurat {
    /// Where the last layer ends and the tail begins.
    const TAIL: f64 = 3.654_152_885_361_009;
    const AREA: f64 = 0.004_928_673_233_974_655;

    fn shared() -> &'static Self {
        static TABLE: OnceLock<Ziggurat> = OnceLock::new();
        TABLE.get_or_init(|| {
            let density = |x: f64| (-0.5 * x * x).exp();
            let mut edge = [0.0; 257];
            edge[0] = Self::AREA / density(Self::TAIL);
            edge[1] = Self::TAIL;
            for layer in 2..256 {
                let below = edge[layer - 1];
                edge[layer] = (-2.0 * (Self::AREA / below + density(below)).ln()).sqrt();
            }
            Self { edge: edge.map(|x| x as f32), density: edge.map(|x| density(x) as f32) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_values_have_the_moments_and_tails_of_a_bell_curve() {
        let mut values = vec![0.0; 2_000_001];
        Random::keyed(7, Purpose::Dataset, 0).add_noise(&mut values, 1.0);
        let n = values.len() as f64;
        let moment = |k: i32| values.iter().map(|v| f64::from(*v).powi(k)).sum::<f64>() / n;
        let beyond = |x: f32| values.iter().filter(|v| v.abs() > x).count() as f64 / n;
        assert!(moment(1).abs() < 0.004, "mean {}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.006, "variance {}", moment(2));
        assert!((moment(4) - 3.0).abs() < 0.04, "fourth moment {}", moment(4));
        assert!((beyond(1.0) - 0.3173).abs() < 0.002, "beyond 1: {}", beyond(1.0));
        assert!((beyond(3.0) - 0.0027).abs() < 0.0002, "beyond 3: {}", beyond(3.0));
        assert!((beyond(3.7) - 2.156e-4).abs() < 5e-5, "beyond 3.7: {}", beyond(3.7));
    }

    #[test]
    fn streams_differ_by_seed_purpose_and_number() {
        let first = |seed, purpose, number| Random::keyed(seed, purpose, number).pcg.next_u64();
        let all = [
            first(1, Purpose::Clip, 2),
            first(2, Purpose::Clip, 1),
            first(1, Purpose::Clip, 3),
            first(1, Purpose::Class, 2),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b));
        }
        assert_eq!(first(1, Purpose::Clip, 2), all[0]);
    }

    #[test]
    fn zipf_halves_from_rank_one_to_rank_two() {
        let mut random = Random::keyed(3, Purpose::Word, 0);
        let mut counts = [0_u32; 100];
        for _ in 0..200_000 {
            counts[random.zipf(100)] += 1;
        }
        let ratio = f64::from(counts[0]) / f64::from(counts[1]);
        assert!((1.6..1.85).contains(&ratio), "{ratio}"); // ln 2 / ln 1.5 = 1.71
        assert!(counts.iter().all(|c| *c > 0));
    }
}
