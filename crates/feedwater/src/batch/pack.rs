//! Documents end to end in blocks of equal length: nothing is padding.
//!
//! Documents come in order, so this is done where they are taken out, not by the workers: it is a copy of a few
//! kilobytes. Which document a token belongs to goes along, so that attention can be kept within documents.

use std::collections::VecDeque;

use super::{IGNORED_LABEL, collate::Collate};
use crate::{deliver::ReadyBatch, pipeline::Cursor, sample::field};

/// Documents that are waiting to be packed.
pub(crate) struct Packer {
    /// Tokens of one block.
    length: usize,
    /// Blocks of one batch, of all ranks together.
    blocks: usize,
    documents: VecDeque<Document>,
    /// Tokens that are waiting.
    waiting: usize,
    /// Tokens of the first document that went into an earlier block.
    used: usize,
}

pub(crate) struct Document {
    pub(crate) key: String,
    /// Its place in the epoch's order.
    pub(crate) position: u64,
    pub(crate) tokens: Vec<u32>,
}

impl Packer {
    /// Goes on from where an earlier one stopped: `used` tokens of the first document that comes are left out.
    pub(crate) fn new(length: usize, blocks: usize, used: usize) -> Self {
        Self { length, blocks, documents: VecDeque::new(), waiting: 0, used }
    }

    pub(crate) fn push(&mut self, document: Document) {
        let before = if self.documents.is_empty() { self.used } else { 0 };
        self.waiting += document.tokens.len().saturating_sub(before);
        self.documents.push_back(document);
    }

    /// Whether there is enough for a batch.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting >= self.length * self.blocks
    }

    /// Whether anything is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Where the first token that is not packed yet stands: (document's position, token).
    pub(crate) fn rest(&self) -> Option<(u64, u64)> {
        self.documents.front().map(|document| (document.position, self.used as u64))
    }

    /// The next batch: this rank's blocks of it. The last of an epoch may have fewer blocks, and its last block padding.
    pub(crate) fn pack(
        &mut self,
        collate: &Collate,
        epoch: u64,
        step: u64,
        rank: usize,
        world: usize,
    ) -> ReadyBatch {
        let total = self.waiting.min(self.length * self.blocks);
        let blocks = total.div_ceil(self.length);
        let mine = (rank..blocks).step_by(world).count();
        let mut ids = Vec::with_capacity(mine * self.length);
        let mut documents = Vec::with_capacity(mine * self.length);
        let mut keys = Vec::with_capacity(mine);
        let mut lengths = Vec::with_capacity(mine);
        for block in 0..blocks {
            let wanted = self.length.min(total - block * self.length);
            let taken = block % world == rank;
            if taken {
                keys.push(self.documents.front().map(|document| document.key.clone()).unwrap_or_default());
                lengths.push(wanted);
            }
            let (mut left, mut number) = (wanted, 0);
            while let Some(document) = self.documents.front() {
                if left == 0 {
                    break;
                }
                let rest = &document.tokens[self.used.min(document.tokens.len())..];
                let part = &rest[..rest.len().min(left)];
                if !part.is_empty() {
                    number += 1;
                }
                if taken {
                    ids.extend(part.iter().map(|token| i64::from(*token)));
                    documents.resize(documents.len() + part.len(), number);
                }
                left -= part.len();
                if part.len() == rest.len() {
                    self.documents.pop_front();
                    self.used = 0;
                } else {
                    self.used += part.len();
                }
            }
            if taken {
                ids.resize(ids.len() + self.length - wanted, 0);
                documents.resize(documents.len() + self.length - wanted, 0);
            }
        }
        self.waiting -= total;
        self.drop_empty();
        let shape = vec![mine, self.length];
        let tensor = |name, from: &dyn Fn(usize, &mut [i64])| {
            collate.integers(name, shape.clone(), lengths.clone(), from)
        };
        let length = self.length;
        let row =
            |from: &[i64], row: usize, out: &mut [i64]| out.copy_from_slice(&from[row * length..][..length]);
        let tensors = vec![
            tensor(field::DOCUMENTS, &|at, out| row(&documents, at, out)),
            tensor(field::INPUT_IDS, &|at, out| row(&ids, at, out)),
            tensor(field::LABELS, &|at, out| {
                row(&ids, at, out);
                out[lengths[at]..].fill(IGNORED_LABEL);
            }),
        ];
        ReadyBatch { epoch, step, valid: vec![true; mine], keys, tensors, ..ReadyBatch::default() }
    }

    /// A document without tokens at the front would stand in the way of saying where the rest begins.
    fn drop_empty(&mut self) {
        while self.documents.front().is_some_and(|document| document.tokens.len() <= self.used) {
            self.documents.pop_front();
            self.used = 0;
        }
    }
}

/// Where to go on from: at the rest of what is waiting, or else at what comes next.
pub(crate) fn cursor_after(packer: &Packer, step: u64, next_position: u64) -> Cursor {
    let (window, within) = packer.rest().unwrap_or((next_position, 0));
    Cursor { step, window, within }
}
