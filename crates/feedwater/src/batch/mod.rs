//! Who travels together, and in what form? Settings of batches; `collate` writes samples into rows, `pack` fills
//! blocks with documents.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

pub(crate) mod collate;
pub(crate) mod pack;

/// What a padded label is filled with: the losses of `torch` leave it out.
pub const IGNORED_LABEL: i64 = -100;

/// How samples are put together.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    pub(crate) size: Size,
    pub(crate) bucket_window: Option<u64>,
    pub(crate) pad: Pad,
    pub(crate) pad_fields: Vec<(Cow<'static, str>, Pad)>,
    pub(crate) dtype: DType,
    pub(crate) drop_last: bool,
    pub(crate) mask: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Size {
    Count(u64),
    Budget(u64, BudgetOf),
    Packed { length: usize, blocks: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BudgetOf {
    Frames,
    Tokens,
}

impl Batch {
    fn new(size: Size) -> Self {
        Self {
            size,
            bucket_window: None,
            pad: Pad::Longest,
            pad_fields: Vec::new(),
            dtype: DType::F32,
            drop_last: false,
            mask: false,
        }
    }

    /// So many samples in each batch (of each rank).
    pub fn of(samples: u64) -> Self {
        Self::new(Size::Count(samples))
    }

    /// As many samples of similar length as fit: (longest · count) stays within so many feature frames.
    pub fn frames(budget: u64) -> Self {
        Self::new(Size::Budget(budget, BudgetOf::Frames))
    }

    /// As many samples of similar length as fit: (longest · count) stays within so many tokens.
    pub fn tokens(budget: u64) -> Self {
        Self::new(Size::Budget(budget, BudgetOf::Tokens))
    }

    /// Documents end to end in blocks of `length` tokens, `blocks` of them in each batch. Where one document ends and
    /// the next begins is kept in the field `document_ids`.
    pub fn packed(length: usize, blocks: u64) -> Self {
        Self::new(Size::Packed { length, blocks })
    }

    /// Samples of similar length together: `steps` batches at a time are sorted by length. More mean less padding, and
    /// less chance in who travels with whom.
    pub fn buckets(mut self, steps: u64) -> Self {
        self.bucket_window = Some(steps);
        self
    }

    /// How every field is padded, unless it was said for it alone.
    pub fn pad(mut self, pad: Pad) -> Self {
        self.pad = pad;
        self
    }

    /// How one field is padded.
    pub fn pad_field(mut self, name: impl Into<Cow<'static, str>>, pad: Pad) -> Self {
        self.pad_fields.push((name.into(), pad));
        self
    }

    /// The type of features in the batch. (Ids and labels are always 64-bit integers.)
    pub fn output(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Leaves out the last batch of an epoch where it is not full.
    pub fn drop_last(mut self) -> Self {
        self.drop_last = true;
        self
    }

    /// Adds `attention_mask`: 1 where the features or ids hold something, 0 where they are padding.
    pub fn mask(mut self) -> Self {
        self.mask = true;
        self
    }

    pub(crate) fn pad_of(&self, name: &str) -> &Pad {
        self.pad_fields.iter().find(|(known, _)| known == name).map_or(&self.pad, |(_, pad)| pad)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let none = |what: &str, hint: &str| Err(Error::config_hint(what, hint));
        match self.size {
            Size::Count(0) => return none("a batch of 0 samples", "`Batch::of(16)`"),
            Size::Budget(0, _) => return none("a budget of 0", "`Batch::frames(48_000)`"),
            Size::Packed { length, blocks } if length == 0 || blocks == 0 => {
                return none("a packed batch of 0 tokens", "`Batch::packed(512, 16)`");
            }
            Size::Packed { .. } if self.bucket_window.is_some() => {
                return none("packed blocks have no padding for buckets to save", "leave out `.buckets(…)`");
            }
            _ => {}
        }
        if self.bucket_window == Some(0) {
            return none("a bucket window of 0 batches", "`.buckets(64)`");
        }
        if self.dtype == DType::I64 {
            return none("features cannot be 64-bit integers", "choose F32, F16 or BF16");
        }
        for pad in self.pad_fields.iter().map(|(_, pad)| pad).chain([&self.pad]) {
            match pad {
                Pad::Multiple(0) => return none("padding to a multiple of 0", "`Pad::Multiple(8)`"),
                Pad::Shapes(shapes) if shapes.is_empty() || !shapes.is_sorted() || shapes[0] == 0 => {
                    return none(
                        "static shapes must be positive and rise",
                        "`Pad::Shapes(vec![128, 256, 448])`",
                    );
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// How long a padded axis becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pad {
    /// As long as the longest of the batch.
    Longest,
    /// The next multiple of this: tensor cores like 8.
    Multiple(usize),
    /// The first of these that is long enough, so that a compiled model meets only a few shapes. A longer sample than
    /// the last is a bad sample.
    Shapes(Vec<usize>),
}

impl Pad {
    /// The length to pad to, or nothing where none is long enough.
    pub(crate) fn length(&self, longest: usize) -> Option<usize> {
        match self {
            Self::Longest => Some(longest),
            Self::Multiple(of) => Some(longest.div_ceil(*of) * of),
            Self::Shapes(shapes) => shapes.iter().copied().find(|shape| *shape >= longest),
        }
    }
}

/// The type of the numbers of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// Single precision's range with 8 bits of mantissa.
    BF16,
    /// 64-bit integers: ids, labels, masks.
    I64,
}

impl DType {
    /// Its name, as settings have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I64 => "i64",
        }
    }

    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::I64 => 8,
        }
    }
}
