//! How long are the samples? Percentiles, and a histogram with edges that can be read.

use serde::Serialize;

use super::look::Content;

/// More bins than this do not fit beside the rest on a screen.
const MOST_BINS: usize = 10;

/// The lengths of the samples that could be read.
#[derive(Debug, Serialize)]
pub(crate) struct Lengths {
    pub(crate) unit: &'static str,
    pub(crate) count: usize,
    pub(crate) total: f64,
    pub(crate) min: f64,
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) max: f64,
    pub(crate) histogram: Vec<Bin>,
}

/// Lengths from `from` up to but without `to`. The last bin has no end where a few samples are much longer than all
/// others: with even bins up to the longest, everything else would be in the first.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Bin {
    pub(crate) from: f64,
    pub(crate) to: Option<f64>,
    pub(crate) count: u64,
}

impl Lengths {
    /// Where there are any.
    pub(crate) fn of(content: Content, mut lengths: Vec<f64>) -> Option<Self> {
        lengths.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*lengths.first()?, *lengths.last()?);
        // The nearest rank: a length that a sample really has.
        let rank = |share: f64| lengths[((lengths.len() as f64 * share).ceil() as usize).max(1) - 1];
        let histogram = histogram(&lengths, rank(0.95), content != Content::Sound);
        Some(Self {
            unit: content.unit(),
            count: lengths.len(),
            total: rounded(lengths.iter().sum()),
            min: rounded(min),
            p50: rounded(rank(0.5)),
            p95: rounded(rank(0.95)),
            max: rounded(max),
            histogram,
        })
    }
}

/// Figures of a header are exact to a sample; a thousandth is enough for people and programs.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn histogram(sorted: &[f64], p95: f64, whole: bool) -> Vec<Bin> {
    let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else { return Vec::new() };
    let tail = max > 2.0 * p95;
    let (end, most) = if tail { (p95, MOST_BINS - 1) } else { (max, MOST_BINS) };
    let step = step(min, end, most, whole);
    let first = (min / step).floor();
    let bins = bins(min, end, step) + usize::from(tail);
    let edge = |number: usize| rounded((first + number as f64) * step);
    let mut below = 0;
    (0..bins)
        .map(|number| {
            let last = number + 1 == bins;
            let upto =
                if last { sorted.len() } else { sorted.partition_point(|length| *length < edge(number + 1)) };
            let count = (upto - below) as u64;
            below = upto;
            let open = last && tail;
            Bin { from: edge(number), to: (!open).then(|| edge(number + 1)), count }
        })
        .collect()
}

/// The least of … 0.1, 0.2, 0.5, 1, 2, 5, 10 … that needs few enough bins.
fn step(min: f64, end: f64, most: usize, whole: bool) -> f64 {
    let least: i32 = if whole { 0 } else { -2 };
    (least..=300)
        .flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)))
        .find(|step| bins(min, end, *step) <= most)
        .unwrap_or(f64::MAX)
}

fn bins(min: f64, end: f64, step: f64) -> usize {
    ((end / step).floor() - (min / step).floor()) as usize + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_lengths_that_occur() {
        let lengths = Lengths::of(Content::Arrays, (1..=20).map(f64::from).collect()).unwrap();
        assert_eq!((lengths.min, lengths.p50, lengths.p95, lengths.max), (1.0, 10.0, 19.0, 20.0));
        assert_eq!((lengths.count, lengths.total), (20, 210.0));
        let one = Lengths::of(Content::Sound, vec![1.5]).unwrap();
        assert_eq!((one.min, one.p50, one.p95, one.max), (1.5, 1.5, 1.5, 1.5));
        assert!(Lengths::of(Content::Sound, Vec::new()).is_none());
    }

    #[test]
    fn every_sample_is_in_one_bin_and_edges_are_round() {
        for (scale, whole) in [(0.003, false), (0.7, false), (13.0, true), (90_001.0, true)] {
            let lengths: Vec<f64> = (1..500).map(|n| f64::from(n * n % 499) * scale).collect();
            let content = if whole { Content::Text } else { Content::Sound };
            let bins = Lengths::of(content, lengths).unwrap().histogram;
            assert!((4..=MOST_BINS).contains(&bins.len()), "{bins:?}");
            assert_eq!(bins.iter().map(|bin| bin.count).sum::<u64>(), 499);
            assert!(bins.windows(2).all(|pair| pair[0].to == Some(pair[1].from)), "{bins:?}");
        }
    }

    #[test]
    fn one_long_sample_does_not_flatten_the_rest() {
        let mut lengths: Vec<f64> = (0..100).map(|n| 1.0 + f64::from(n) / 20.0).collect();
        lengths.push(10_000.0);
        let bins = Lengths::of(Content::Sound, lengths).unwrap().histogram;
        assert_eq!(bins.first(), Some(&Bin { from: 1.0, to: Some(2.0), count: 20 }));
        assert_eq!(bins.last(), Some(&Bin { from: 6.0, to: None, count: 1 }));
    }

    #[test]
    fn equal_lengths_are_one_bin() {
        let bins = Lengths::of(Content::Arrays, vec![7.0; 3]).unwrap().histogram;
        assert_eq!(bins, [Bin { from: 7.0, to: Some(8.0), count: 3 }]);
    }
}
