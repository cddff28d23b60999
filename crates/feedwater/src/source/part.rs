//! Which samples are learned from, and which are only for trying? A sample's key decides, so that adding samples moves none.

use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::{Kind, Source};
use crate::{Fault, Sample};

/// Some samples of a dataset.
#[derive(Clone)]
pub struct Part {
    whole: Arc<dyn Source>,
    indices: Vec<u64>,
    blocks: Option<Vec<u64>>,
}

impl Part {
    /// These samples of a dataset, in this order.
    fn new(whole: Arc<dyn Source>, indices: Vec<u64>) -> Self {
        // A block of the whole begins here with the first sample that is left of it.
        let blocks = whole.blocks().map(|blocks| {
            let mut firsts: Vec<u64> =
                blocks.iter().map(|first| indices.partition_point(|index| index < first) as u64).collect();
            firsts.dedup();
            firsts.retain(|first| *first < indices.len() as u64);
            firsts
        });
        Self { whole, indices, blocks }
    }
}

/// Divides a dataset: most of it, and about one sample in `every`, but one at least where there are two.
pub fn hold_out(source: Box<dyn Source>, every: u64) -> (Part, Part) {
    let whole: Arc<dyn Source> = Arc::from(source);
    let mut order: Vec<(u64, u64)> =
        (0..whole.len()).map(|index| (xxh3_64(whole.key(index).as_bytes()), index)).collect();
    let mut held: Vec<u64> =
        order.iter().filter(|(hash, _)| hash % every.max(2) == 0).map(|(_, index)| *index).collect();
    if held.is_empty() && order.len() > 1 {
        held.extend(order.iter().min().map(|(_, index)| *index));
    }
    if held.len() == order.len() {
        // There must be something to learn from.
        held.pop();
    }
    order.retain(|(_, index)| held.binary_search(index).is_err());
    let kept = order.into_iter().map(|(_, index)| index).collect();
    (Part::new(Arc::clone(&whole), kept), Part::new(whole, held))
}

/// So many samples of a dataset, from all over it; all where there are no more.
pub fn some(source: Box<dyn Source>, count: u64) -> Part {
    let length = source.len();
    let count = count.min(length);
    let indices = (0..count).map(|number| number * length / count).collect();
    Part::new(Arc::from(source), indices)
}

/// One sample of a dataset, by itself.
pub fn only(source: &dyn Source, index: u64) -> Box<dyn Source> {
    Box::new(One { kind: source.kind(), key: source.key(index), sample: source.sample(index) })
}

struct One {
    kind: Kind,
    key: String,
    sample: Result<Sample, Fault>,
}

impl Source for One {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn len(&self) -> u64 {
        1
    }

    fn fingerprint(&self) -> u128 {
        xxh3_128(self.key.as_bytes())
    }

    fn key(&self, _: u64) -> String {
        self.key.clone()
    }

    fn sample(&self, _: u64) -> Result<Sample, Fault> {
        self.sample.clone()
    }
}

impl Source for Part {
    fn kind(&self) -> Kind {
        self.whole.kind()
    }

    fn len(&self) -> u64 {
        self.indices.len() as u64
    }

    fn fingerprint(&self) -> u128 {
        let mut bytes = self.whole.fingerprint().to_le_bytes().to_vec();
        bytes.extend(self.indices.iter().flat_map(|index| index.to_le_bytes()));
        xxh3_128(&bytes)
    }

    fn key(&self, index: u64) -> String {
        self.whole.key(self.indices[index as usize])
    }

    fn sample(&self, index: u64) -> Result<Sample, Fault> {
        self.whole.sample(self.indices[index as usize])
    }

    fn seconds(&self, index: u64) -> Option<f64> {
        self.whole.seconds(self.indices[index as usize])
    }

    fn classes(&self) -> &[String] {
        self.whole.classes()
    }

    fn blocks(&self) -> Option<&[u64]> {
        self.blocks.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Blocks(Vec<u64>);

    impl Source for Blocks {
        fn kind(&self) -> Kind {
            Kind::Parquet
        }

        fn len(&self) -> u64 {
            300
        }

        fn fingerprint(&self) -> u128 {
            0
        }

        fn key(&self, index: u64) -> String {
            index.to_string()
        }

        fn sample(&self, index: u64) -> Result<Sample, Fault> {
            Ok(Sample::new(self.key(index)))
        }

        fn blocks(&self) -> Option<&[u64]> {
            Some(&self.0)
        }
    }

    #[test]
    fn some_are_from_all_over_and_no_more_than_there_are() {
        let few = some(Box::new(Blocks(vec![0, 100, 200])), 4);
        assert_eq!(few.indices, [0, 75, 150, 225]);
        assert_eq!(few.blocks(), Some(&[0, 2, 3][..]));
        assert_eq!(some(Box::new(Blocks(vec![0])), 1_000).len(), 300);
        assert_eq!(some(Box::new(Blocks(vec![0])), 0).len(), 0);
    }

    #[test]
    fn parts_have_all_samples_once_and_keep_the_blocks() {
        let (kept, held) = hold_out(Box::new(Blocks(vec![0, 1, 100, 200])), 20);
        let mut all: Vec<u64> = kept.indices.iter().chain(&held.indices).copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..300).collect::<Vec<_>>());
        for part in [kept, held] {
            let blocks = part.blocks().unwrap();
            assert_eq!(blocks[0], 0);
            assert!(blocks.is_sorted() && blocks.last().unwrap() < &part.len());
            // Samples of one block of the part are of one block of the whole.
            let whole = |index: u64| [0, 1, 100, 200].iter().filter(|first| **first <= index).count();
            for (at, index) in part.indices.iter().enumerate() {
                let first = blocks.iter().rev().find(|first| **first <= at as u64).unwrap();
                assert_eq!(whole(*index), whole(part.indices[*first as usize]));
            }
        }
    }
}
