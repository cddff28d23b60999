//! Which samples are learned from, and which are only for trying? A sample's key decides, so that adding samples moves none.

use std::sync::Arc;

use feedwater::{
    Fault, Sample,
    source::{Kind, Source},
};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Some samples of a dataset.
pub struct Part {
    whole: Arc<dyn Source>,
    indices: Vec<u64>,
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
    (Part { whole: Arc::clone(&whole), indices: kept }, Part { whole, indices: held })
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
}
