//! Which steps count, and what do they say?
//!
//! The first steps of a run, the first of an epoch, its last batch where that is short, and steps in which something else
//! happened (a checkpoint, an evaluation, settings that were tried) are not like the others. They are listed apart, with what they cost, and left out of every mean.

use std::collections::BTreeMap;

use crate::{
    error::{Error, Result},
    record::{Record, Step},
};

/// Fewer steps than this say nothing.
pub const LEAST: usize = 20;
/// Why steps are listed apart that were made with another number of threads or batches ahead than most.
pub const OTHER_SETTINGS: &str = "other settings";
/// At least so many steps are warm-up.
const WARM_UP: usize = 3;

/// Where beginning epochs costs less than this share of a step, it is left out of the pace.
const LEAST_EPOCH_SHARE: f64 = 0.02;
/// Edges of epochs are listed apart as long as they are fewer than one step in so many.
const MOST_EDGES: usize = 4;

/// The steps of a record, sorted by what they can tell.
#[derive(Debug, Clone)]
pub struct Steps {
    /// Those that count, as places in [`Record::steps`].
    pub steady: Vec<usize>,
    /// Those that are listed apart, with the reason.
    pub apart: Vec<(usize, String)>,
    /// How many steps at the beginning are warm-up.
    pub warm_up: usize,
    /// Who made the batches of those that count.
    pub crew: Hands,
    /// The means over those that count.
    pub mean: Mean,
    /// Half of the steps are shorter than this.
    pub p50_nanos: u64,
    /// All but one in a hundred are shorter than this.
    pub p99_nanos: u64,
    /// What waiting at the beginning of epochs cost.
    pub epoch_starts: EpochStarts,
    /// Standard deviation of the time of a step over its mean, in percent.
    pub variation_percent: f64,
    /// The same from the median deviation, which single outliers do not move.
    pub robust_variation_percent: f64,
}

/// How many made batches, and how far ahead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hands {
    /// Threads; nothing where that is not known, or changed again and again.
    pub threads: Option<usize>,
    /// Batches that are made ahead.
    pub prefetch: Option<usize>,
}

/// The first steps of epochs, but for the run's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EpochStarts {
    /// How many.
    pub count: usize,
    /// What they waited beyond what others do.
    pub waited_nanos: u64,
    /// The same of those that are listed apart, for each step of the run.
    pub apart_nanos: u64,
}

/// Where the time of a mean step goes, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Mean {
    /// All of it.
    pub wall_nanos: f64,
    /// For input.
    pub wait_nanos: f64,
    /// Copying to the device.
    pub copy_nanos: f64,
    /// For other devices.
    pub sync_nanos: f64,
    /// The accelerator works.
    pub busy_nanos: f64,
    /// Nobody knows.
    pub unknown_nanos: f64,
    /// Samples.
    pub rows: f64,
}

impl Mean {
    /// The accelerator does not work.
    pub fn idle_nanos(&self) -> f64 {
        self.wall_nanos - self.busy_nanos
    }

    /// Share of the time in which the accelerator works.
    pub fn busy_percent(&self) -> f64 {
        100.0 * self.busy_nanos / self.wall_nanos
    }

    /// Steps in a second.
    pub fn steps_per_second(&self) -> f64 {
        1e9 / self.wall_nanos
    }
}

impl Steps {
    /// Sorts the steps of a record. Too few of them are an error: a verdict would be a guess.
    pub fn of(record: &Record) -> Result<Self> {
        let prefetch = record.run.settings.prefetch.unwrap_or(0);
        // What was made ahead before the first step says nothing about the pace that follows.
        let warm_up = WARM_UP.max(prefetch).min(WARM_UP.max(record.steps.len() / 4));
        let batches: Vec<_> = record.steps.iter().map(|step| (step.epoch, step.rows)).collect();
        let edges = edges(&batches, record.run.settings.batch_size);
        let mut steady = Vec::new();
        let mut apart = Vec::new();
        for (at, step) in record.steps.iter().enumerate() {
            if at < warm_up {
                apart.push((at, "warm-up".to_owned()));
            } else if let Some(mark) = &step.mark {
                apart.push((at, mark.clone()));
            } else if let Some(why) = edges[at] {
                apart.push((at, why.to_owned()));
            } else {
                steady.push(at);
            }
        }
        let crew = crew(record, &mut steady, &mut apart);
        if steady.len() < LEAST {
            return Err(Error::TooFewSteps { steps: steady.len(), needed: LEAST, warm_up });
        }
        let steps: Vec<&Step> = steady.iter().map(|at| &record.steps[*at]).collect();
        let mut walls: Vec<u64> = steps.iter().map(|step| step.wall_nanos).collect();
        walls.sort_unstable();
        let mean = mean(&steps);
        let variance = walls.iter().map(|wall| (*wall as f64 - mean.wall_nanos).powi(2)).sum::<f64>()
            / walls.len() as f64;
        let p50 = quantile(&walls, 0.5);
        let mut deviations: Vec<u64> = walls.iter().map(|wall| wall.abs_diff(p50)).collect();
        deviations.sort_unstable();
        let epoch_starts = epoch_starts(record, &steady);
        Ok(Self {
            steady,
            apart,
            warm_up,
            crew,
            epoch_starts,
            mean,
            p50_nanos: p50,
            p99_nanos: quantile(&walls, 0.99),
            variation_percent: 100.0 * variance.sqrt() / mean.wall_nanos,
            // 1.4826: what makes it the standard deviation, where times are distributed normally.
            robust_variation_percent: 100.0 * 1.4826 * quantile(&deviations, 0.5) as f64 / p50.max(1) as f64,
        })
    }

    /// What a step costs beyond the mean, on average, because an epoch begins now and then; nothing where that is not
    /// worth a word.
    pub fn epoch_nanos(&self) -> f64 {
        let nanos = self.epoch_starts.apart_nanos as f64;
        if nanos < LEAST_EPOCH_SHARE * self.mean.wall_nanos { 0.0 } else { nanos }
    }

    /// The steps that count.
    pub fn of_record<'a>(&'a self, record: &'a Record) -> impl Iterator<Item = &'a Step> {
        self.steady.iter().map(|at| &record.steps[*at])
    }

    /// The step that waited the longest for its input, of those that count.
    pub fn worst_wait<'a>(&'a self, record: &'a Record) -> Option<&'a Step> {
        self.of_record(record).max_by_key(|step| step.wait_nanos)
    }
}

/// Lists those steps apart that were made otherwise than most, as long as enough are left.
fn crew(record: &Record, steady: &mut Vec<usize>, apart: &mut Vec<(usize, String)>) -> Hands {
    let settings = &record.run.settings;
    let of = |at: usize| {
        let input = record.steps[at].input.as_ref();
        let with = input.and_then(|input| input.threads.zip(input.prefetch));
        // What a step does not say, the run does.
        with.map_or((settings.threads, settings.prefetch), |(threads, ahead)| (Some(threads), Some(ahead)))
    };
    let mut counts = BTreeMap::<_, usize>::new();
    for at in &*steady {
        *counts.entry(of(*at)).or_default() += 1;
    }
    let Some(((threads, prefetch), count)) = counts.iter().max_by_key(|(_, count)| **count) else {
        return Hands { threads: settings.threads, prefetch: settings.prefetch };
    };
    if *count < LEAST.min(steady.len()) {
        return Hands::default();
    }
    let usual = |at: &usize| of(*at) == (*threads, *prefetch);
    apart.extend(steady.iter().filter(|at| !usual(at)).map(|at| (*at, OTHER_SETTINGS.to_owned())));
    apart.sort_by_key(|(at, _)| *at);
    steady.retain(usual);
    Hands { threads: *threads, prefetch: *prefetch }
}

fn epoch_starts(record: &Record, steady: &[usize]) -> EpochStarts {
    let mut waits: Vec<u64> = steady.iter().map(|at| record.steps[*at].wait_nanos).collect();
    waits.sort_unstable();
    let usual = quantile(&waits, 0.5);
    let mut starts = EpochStarts::default();
    let mut apart = 0;
    for (at, pair) in record.steps.windows(2).enumerate() {
        // An evaluation starts workers of its own.
        if pair[0].epoch != pair[1].epoch && pair[1].mark.is_none() {
            let waited = pair[1].wait_nanos.saturating_sub(usual);
            starts.count += 1;
            starts.waited_nanos += waited;
            if steady.binary_search(&(at + 1)).is_err() {
                apart += waited;
            }
        }
    }
    starts.apart_nanos = apart / record.steps.len() as u64;
    starts
}

fn mean(steps: &[&Step]) -> Mean {
    let of =
        |part: fn(&Step) -> u64| steps.iter().map(|step| part(step) as f64).sum::<f64>() / steps.len() as f64;
    Mean {
        wall_nanos: of(|step| step.wall_nanos),
        wait_nanos: of(|step| step.wait_nanos),
        copy_nanos: of(|step| step.copy_nanos),
        sync_nanos: of(|step| step.sync_nanos),
        busy_nanos: of(Step::busy_nanos),
        unknown_nanos: of(Step::unknown_nanos),
        rows: of(|step| step.rows),
    }
}

/// Which of some batches, each with its epoch and rows, lie at an edge of an epoch, and how. Where epochs are a few steps
/// long, their edges are what the run consists of: then none.
pub(crate) fn edges(batches: &[(u64, u64)], size: Option<u64>) -> Vec<Option<&'static str>> {
    let mut edges: Vec<_> = (0..batches.len())
        .map(|at| {
            let (epoch, rows) = batches[at];
            if size.is_some_and(|size| rows > 0 && rows * 4 < size * 3) {
                Some("short batch")
            } else {
                (at == 0 || batches[at - 1].0 != epoch).then_some("first of an epoch")
            }
        })
        .collect();
    // Judged by whole epochs, where there are any: what a run was cut off in says nothing about how long they are.
    let last = batches.last().map(|(epoch, _)| *epoch);
    let whole = batches.iter().take_while(|(epoch, _)| Some(*epoch) != last).count();
    let judged = &edges[..if whole > 0 { whole } else { edges.len() }];
    if judged.iter().flatten().count() * MOST_EDGES >= judged.len() {
        edges.fill(None);
    } else if let Some(first) = edges.first_mut() {
        // Where a run begins is no edge of an epoch; it is warm-up.
        first.take_if(|why| *why == "first of an epoch");
    }
    edges
}

/// The value that a share of `sorted` lies below or at.
pub fn quantile<T: Copy + Default>(sorted: &[T], share: f64) -> T {
    let at = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or_default()
}

/// The middle of some figures; between the two in the middle where they are even in number.
pub fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let (low, high) = (figures.get(figures.len().checked_sub(1)? / 2)?, figures.get(figures.len() / 2)?);
    Some(f64::midpoint(*low, *high))
}
