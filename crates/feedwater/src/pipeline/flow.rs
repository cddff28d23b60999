//! What does a pipeline consist of? All that does not change while it runs, and what follows from its stages.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use super::{
    plan::{Grouping, Measure, Plan},
    policy::Policy,
    report::Meter,
    stage::Stage,
    tune::{Limits, Setting},
};
use crate::{
    batch::{
        Batch, DType,
        collate::{Collate, Fixed},
    },
    cache::{Cache, Keeper},
    decode::npy_shape,
    error::Result,
    sample::{Value, field},
    source::Source,
    transform::{LogMel, Tokenize, chunk::clip_seconds},
};

/// Everything about a pipeline that does not change while it runs.
pub(crate) struct Flow {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) stages: Vec<Arc<dyn Stage>>,
    /// What is measured: the source, what decoding books apart, the stages, the batch.
    pub(crate) names: Arc<[&'static str]>,
    /// Where in `names` each stage is.
    pub(crate) slots: Vec<usize>,
    pub(crate) meters: Vec<Meter>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) collate: Collate,
    /// What need not be done again.
    pub(crate) keeper: Option<Keeper>,
    /// Why nothing is kept, where that was chosen.
    pub(crate) not_kept: Option<String>,
    /// Tokens of a block and blocks of a step, where documents are packed.
    pub(crate) packed: Option<(usize, u64)>,
    pub(crate) policy: Policy,
    pub(crate) seed: u64,
    pub(crate) rank: usize,
    pub(crate) world: usize,
    /// Threads and batches ahead to begin with, and how far they may be changed.
    pub(crate) setting: Setting,
    pub(crate) limits: Limits,
    pub(crate) budget_bytes: usize,
    pub(crate) stuck_after: Duration,
    pub(crate) measure: bool,
    pub(crate) interrupt: Option<Interrupt>,
}

/// Asked now and then by whoever waits: is it to stop waiting?
pub(crate) type Interrupt = Arc<dyn Fn() -> bool + Send + Sync>;

impl Flow {
    /// Plans as if there were this many ranks: under a budget, the plan keeps to the number that the run began with.
    pub(crate) fn plan_for(&mut self, ranks: u64) {
        let Some(plan) = Arc::get_mut(&mut self.plan) else { return };
        if let Grouping::Budget { budget, world, .. } = &mut plan.grouping {
            let global = *budget * *world;
            (*world, *budget) = (ranks, global / ranks.max(1));
        }
    }
}

/// All settings that change what comes out, in words.
pub(super) fn describe(stages: &[Arc<dyn Stage>], batch: &Batch, shuffle: bool) -> String {
    let mut text = String::new();
    for stage in stages {
        let _ = writeln!(text, "{}", stage.describe());
    }
    // The size is compared by itself, over all ranks together.
    let Batch { bucket_window, pad, pad_fields, dtype, drop_last, mask, size } = batch;
    let kind = std::mem::discriminant(size);
    let _ = writeln!(
        text,
        "{kind:?} {bucket_window:?} {pad:?} {pad_fields:?} {dtype:?} {drop_last} {mask} {shuffle}"
    );
    text
}

/// What is measured, and where in it each stage is.
pub(super) fn names(stages: &[Arc<dyn Stage>], cache: bool) -> (Arc<[&'static str]>, Vec<usize>) {
    let mut names = vec!["source"];
    names.extend(cache.then_some("cache"));
    let mut slots = Vec::new();
    for stage in stages {
        let (before, after) = stage.books();
        names.extend(before);
        slots.push(names.len());
        names.push(stage.name());
        for name in after {
            // Two stages may book under one name.
            if !names.contains(name) {
                names.push(name);
            }
        }
    }
    names.push("batch");
    (names.into(), slots)
}

/// The fields whose shapes are fixed when the last stage is done.
pub(super) fn fixed_fields(stages: &[Arc<dyn Stage>], batch: &Batch) -> Vec<Fixed> {
    let fixed = stages.iter().filter_map(|stage| stage.fixed_shape());
    let whole = |(name, shape): &(&'static str, Vec<usize>)| {
        // Padding beyond the fixed shape would change it.
        let last = shape.last().copied().unwrap_or(0);
        batch.pad_of(name).length(last) == Some(last)
    };
    fixed.filter(whole).map(|(name, shape)| Fixed { name, shape }).collect()
}

/// How long a sample is, for planning: frames of features, tokens of text.
pub(super) fn measure(
    source: Arc<dyn Source>,
    tokenizer: Option<Arc<Tokenize>>,
    most_frames: Option<usize>,
) -> Measure {
    Arc::new(move |index| {
        // A sample that cannot be measured is bad, and will be found to be when its turn comes.
        let Ok(sample) = source.sample(index) else { return 0 };
        match (sample.get(field::AUDIO), sample.get(field::FEATURES)) {
            (Some(Value::Media(media)), _) => {
                let seconds = clip_seconds(&*source, index, media).unwrap_or(0.0);
                let frames = (seconds * LogMel::FRAMES_PER_SECOND).ceil() as u64;
                most_frames.map_or(frames, |most| frames.min(most as u64))
            }
            (_, Some(Value::Media(media))) => {
                media.read(npy_shape).ok().and_then(|shape| shape.first().copied()).unwrap_or(0) as u64
            }
            _ => {
                let text = sample.text().unwrap_or_default();
                tokenizer
                    .as_ref()
                    .and_then(|tokenizer| tokenizer.encode(text).ok())
                    .map_or(text.len(), |ids| ids.len()) as u64
            }
        }
    })
}

/// What keeps samples, if anything does; or why nothing is kept.
pub(super) fn kept(
    cache: Option<Cache>,
    sharers: usize,
    source: &dyn Source,
    stages: &[Arc<dyn Stage>],
    batch: DType,
) -> Result<(Option<Keeper>, Option<String>)> {
    let Some(cache) = cache else { return Ok((None, None)) };
    Ok(match (Cache { sharers, ..cache }).keeper(source, stages, batch)? {
        Ok(keeper) => (Some(keeper), None),
        Err(why) => (None, why),
    })
}
