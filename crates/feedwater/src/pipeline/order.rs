//! In which order do samples come? A pure function of (fingerprint, seed, epoch), with no array of indices.
//!
//! A keyed permutation: a Feistel network over the next power of two, walked again while it lands beyond the end. Any
//! position can be asked for at any time, so a dataset of a hundred million samples starts at once and a run resumes
//! anywhere.

use xxhash_rust::xxh3::Xxh3;

/// The order of one epoch.
#[derive(Debug)]
pub(crate) enum Order {
    /// As they stand.
    Sequential,
    /// Anywhere.
    Shuffled(Permutation),
    /// Blocks in any order, and samples in any order within a few blocks.
    Blocks(BlockOrder),
}

/// How many blocks are mixed at a time.
const BLOCKS_MIXED: usize = 8;

impl Order {
    /// The order of an epoch of `length` samples.
    pub(crate) fn new(length: u64, shuffle: bool, blocks: Option<&[u64]>, key: [u64; 4]) -> Self {
        match (shuffle, blocks) {
            (false, _) => Self::Sequential,
            (true, Some(blocks)) if blocks.len() > 1 => Self::Blocks(BlockOrder::new(length, blocks, key)),
            (true, _) => Self::Shuffled(Permutation::new(length, key)),
        }
    }

    /// The sample at a position.
    pub(crate) fn index(&self, position: u64) -> u64 {
        match self {
            Self::Sequential => position,
            Self::Shuffled(permutation) => permutation.apply(position),
            Self::Blocks(blocks) => blocks.index(position),
        }
    }
}

/// A permutation of `0..length`, chosen by a key.
#[derive(Debug)]
pub(crate) struct Permutation {
    length: u64,
    low_bits: u32,
    high_bits: u32,
    rounds: [u64; Permutation::ROUNDS],
}

impl Permutation {
    const ROUNDS: usize = 6;

    pub(crate) fn new(length: u64, key: [u64; 4]) -> Self {
        let bits = (64 - length.saturating_sub(1).leading_zeros()).max(2);
        let rounds = std::array::from_fn(|round| {
            let mut hasher = Xxh3::with_seed(round as u64);
            for part in key {
                hasher.update(&part.to_le_bytes());
            }
            hasher.digest()
        });
        Self { length, low_bits: bits / 2, high_bits: bits - bits / 2, rounds }
    }

    pub(crate) fn apply(&self, position: u64) -> u64 {
        debug_assert!(position < self.length);
        let mut value = position;
        loop {
            value = self.once(value);
            // At most half of the domain lies beyond the end, and a permutation always comes back.
            if value < self.length {
                return value;
            }
        }
    }

    fn once(&self, value: u64) -> u64 {
        let (mut low_bits, mut high_bits) = (self.low_bits, self.high_bits);
        let mut low = value & mask(low_bits);
        let mut high = value >> low_bits;
        for round in self.rounds {
            // The halves change places each round, and with them, where they are not equal, their widths.
            let mixed = high ^ (mix(low ^ round) & mask(high_bits));
            (high, low) = (low, mixed);
            (high_bits, low_bits) = (low_bits, high_bits);
        }
        high << low_bits | low
    }
}

fn mask(bits: u32) -> u64 {
    (1_u64 << bits) - 1
}

/// The finaliser of `SplitMix64`.
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// An order that stays within a few blocks at a time.
#[derive(Debug)]
pub(crate) struct BlockOrder {
    /// For each group of blocks: the first position, the permutation of its samples, and its blocks as (positions before
    /// it in the group, first sample).
    groups: Vec<BlockGroup>,
}

#[derive(Debug)]
struct BlockGroup {
    first_position: u64,
    samples: Permutation,
    blocks: Vec<(u64, u64)>,
}

impl BlockOrder {
    fn new(length: u64, starts: &[u64], key: [u64; 4]) -> Self {
        let order = Permutation::new(starts.len() as u64, key);
        let shuffled: Vec<usize> = (0..starts.len() as u64).map(|at| order.apply(at) as usize).collect();
        let mut position = 0;
        let groups = shuffled.chunks(BLOCKS_MIXED).enumerate().map(|(number, members)| {
            let first_position = position;
            let mut blocks = Vec::with_capacity(members.len());
            for block in members {
                blocks.push((position - first_position, starts[*block]));
                position += starts.get(block + 1).copied().unwrap_or(length) - starts[*block];
            }
            let key = [key[0], key[1], key[2], key[3] ^ mix(number as u64 + 1)];
            BlockGroup { first_position, samples: Permutation::new(position - first_position, key), blocks }
        });
        Self { groups: groups.collect() }
    }

    fn index(&self, position: u64) -> u64 {
        let group = &self.groups[self.groups.partition_point(|group| group.first_position <= position) - 1];
        let within = group.samples.apply(position - group.first_position);
        let (before, first) = group.blocks[group.blocks.partition_point(|(before, _)| *before <= within) - 1];
        first + within - before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is_permutation(order: &Order, length: u64) {
        let mut seen = vec![false; length as usize];
        for position in 0..length {
            let index = order.index(position) as usize;
            assert!(!std::mem::replace(&mut seen[index], true), "{index} twice");
        }
    }

    proptest! {
        #[test]
        fn every_sample_comes_exactly_once(length in 1_u64..5000, key in any::<[u64; 4]>()) {
            is_permutation(&Order::new(length, true, None, key), length);
        }

        #[test]
        fn blocks_come_exactly_once(sizes in prop::collection::vec(1_u64..50, 1..60), key in any::<[u64; 4]>()) {
            let starts: Vec<u64> = sizes.iter().scan(0, |sum, size| { let at = *sum; *sum += size; Some(at) }).collect();
            let length = sizes.iter().sum();
            is_permutation(&Order::new(length, true, Some(&starts), key), length);
        }
    }

    #[test]
    fn keys_give_orders_that_have_nothing_in_common() {
        let (a, b) = (Permutation::new(10_000, [1, 2, 3, 4]), Permutation::new(10_000, [1, 2, 3, 5]));
        let same = (0..10_000).filter(|at| a.apply(*at) == b.apply(*at)).count();
        assert!(same < 10, "{same} fixed points between two keys; about 1 is expected");
    }

    #[test]
    fn neighbours_end_up_far_apart() {
        let order = Permutation::new(100_000, [7, 0, 0, 0]);
        let mean = (0..99_999).map(|at| order.apply(at).abs_diff(order.apply(at + 1))).sum::<u64>() / 99_999;
        assert!((32_000..35_000).contains(&mean), "{mean}; a third of the length is expected");
    }

    #[test]
    fn blocks_are_entered_a_few_at_a_time() {
        let starts: Vec<u64> = (0..100).map(|block| block * 50).collect();
        let order = Order::new(5000, true, Some(&starts), [1, 1, 1, 1]);
        for window in (0..5000_u64).collect::<Vec<_>>().chunks(400) {
            let blocks: std::collections::BTreeSet<u64> =
                window.iter().map(|at| order.index(*at) / 50).collect();
            assert!(blocks.len() <= BLOCKS_MIXED, "{}", blocks.len());
        }
    }
}
