//! Whose wait is it?
//!
//! A step that waits for its input waits for everything that was done to it, so its wait cannot be shared out by looking
//! at it alone. What is asked here is what would have gone away: the run is played without the dearest part of the work,
//! then without the next as well, and so on. The differences add up to the wait, and each is what it would save to make
//! that part free, which is what a person wants to know.
//!
//! Three kinds of parts are told apart before stages are: time in which a worker could have computed and had no core, a
//! sample far slower than the others, and the stages as they are without either.

use std::collections::BTreeMap;

use crate::{
    model::{Cost, Crew, play},
    record::{Blame, Record, SLOWEST, Step},
    steps::{Steps, quantile},
    what_if::CACHED,
};

/// A sample is an outlier when it takes this many times as long as a usual one.
const OUTLIER: f64 = 5.0;
/// Less than this share of the workers' time without a core is the system's everyday.
const LEAST_QUEUED: f64 = 0.03;

/// Handing a batch over takes two threads that wake up; more than this is something else.
const MOST_HANDOVER: f64 = 1e6;

/// A part of the work that makes batches.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// A stage, by its name.
    Stage(String),
    /// Samples that took far longer than the others.
    SlowSamples,
    /// Workers that had no core.
    NoCore,
}

/// How the wait for input is shared out.
#[derive(Debug, Clone, Default)]
pub struct Split {
    /// What each part costs in waiting, in nanoseconds a step; the dearest first.
    pub parts: Vec<(Part, f64)>,
    /// Waiting that the parts do not account for.
    pub rest_nanos: f64,
    /// The wait as it was played, before it was fitted to what was measured.
    pub played_nanos: f64,
    /// The costs, as played; empty where the record does not say how batches were made.
    pub costs: Vec<Cost>,
    /// Who made the batches.
    pub crew: Option<Crew>,
    /// Share of the workers' time in which they had no core.
    pub queued_share: f64,
    /// Samples that were far slower than the others: step, sample, stage, nanoseconds.
    pub slow: Vec<(u64, String, String, u64)>,
    /// What a usual sample takes.
    pub usual_sample_nanos: f64,
}

impl Split {
    /// What a part costs.
    pub fn nanos(&self, part: &Part) -> f64 {
        self.parts.iter().find(|(known, _)| known == part).map_or(0.0, |(_, nanos)| *nanos)
    }

    /// Shares out the waits of a record.
    pub fn of(record: &Record, steps: &Steps) -> Self {
        let wait = steps.mean.wait_nanos;
        let Some(work) = Work::of(record, steps) else {
            return Self { rest_nanos: wait, ..Self::default() };
        };
        let crew = steps.crew.threads.map(|threads| Crew {
            threads,
            prefetch: steps.crew.prefetch.unwrap_or(1),
            batch_at_a_time: record.run.settings.batch_at_a_time,
            handover_nanos: 0,
        });
        let mut split = Self {
            costs: work.costs(record, &[]),
            crew,
            queued_share: work.queued_share,
            slow: work.slow.clone(),
            usual_sample_nanos: work.usual_sample_nanos,
            ..Self::default()
        };
        let Some(crew) = crew else {
            // Who made the batches is not known: all that can be said is who worked the most.
            let total = work.totals.values().sum::<f64>().max(1.0);
            split.parts =
                work.totals.iter().map(|(part, nanos)| (part.clone(), wait * nanos / total)).collect();
            split.parts.sort_by(|a, b| b.1.total_cmp(&a.1));
            return split;
        };
        // Without the time that they had no core, workers are as fast as their cores, and no more of them than cores.
        let cores = record.run.host.usable_cores.unwrap_or(f64::INFINITY).max(1.0);
        let play_without = |without: &[Part]| {
            let threads = if without.contains(&Part::NoCore) {
                crew.threads.min(cores.ceil() as usize)
            } else {
                crew.threads
            };
            play(&work.costs(record, without), Crew { threads, ..crew }).wait_nanos
        };
        let played = play_without(&[]);
        split.played_nanos = played;
        // Alone, to find the order; then one after the other, so that the differences add up.
        let mut order: Vec<(Part, f64)> = work
            .totals
            .keys()
            .map(|part| (part.clone(), played - play_without(std::slice::from_ref(part))))
            .collect();
        let total = |part: &Part| work.totals.get(part).copied().unwrap_or_default();
        // Where several would each take all of the wait away, the one that works the most has it.
        order.sort_by(|a, b| b.1.total_cmp(&a.1).then(total(&b.0).total_cmp(&total(&a.0))));
        let mut gone = Vec::new();
        let mut left = played;
        for (part, _) in order {
            gone.push(part.clone());
            let without = play_without(&gone).min(left);
            split.parts.push((part, left - without));
            left = without;
        }
        // What was played is fitted to what was measured: never more than was waited, and what is missing is said.
        let scale = if played > wait { wait / played } else { 1.0 };
        for (_, nanos) in &mut split.parts {
            *nanos *= scale;
        }
        split.rest_nanos = (wait - split.parts.iter().map(|(_, nanos)| nanos).sum::<f64>()).max(0.0);
        split.parts.sort_by(|a, b| b.1.total_cmp(&a.1));
        if let Some(crew) = &mut split.crew {
            // What is left is taken to be the handing over, as far as that is likely.
            crew.handover_nanos = split.rest_nanos.min(MOST_HANDOVER) as u64;
        }
        split
    }
}

/// The work of each batch, by part.
struct Work {
    batches: Vec<Batch>,
    totals: BTreeMap<Part, f64>,
    queued_share: f64,
    slow: Vec<(u64, String, String, u64)>,
    usual_sample_nanos: f64,
}

struct Batch {
    parts: Vec<(Part, f64)>,
    /// The samples that took the longest.
    slowest: [f64; SLOWEST],
    /// What of each is beyond the usual: its own, and without a core.
    excess: [(f64, f64); SLOWEST],
    counts: bool,
}

impl Work {
    fn of(record: &Record, steps: &Steps) -> Option<Self> {
        let inputs = || record.steps.iter().filter_map(|step| step.input.as_ref());
        let known = inputs().filter(|input| !input.work_nanos.is_empty()).count();
        // Half a picture of the work is none.
        if known * 10 < record.steps.len() * 9 {
            return None;
        }
        let work: u64 = inputs().map(crate::record::Input::total_work_nanos).sum();
        let queued: u64 = inputs().filter_map(|input| input.queued_nanos).sum();
        let usual_sample_nanos = usual_sample(record, |_| true);
        let usual = Usual::of(record, usual_sample_nanos, work as f64, queued as f64);
        let mut totals = BTreeMap::new();
        let mut slow = Vec::new();
        let mut steady = vec![false; record.steps.len()];
        for at in &steps.steady {
            steady[*at] = true;
        }
        let batches = record
            .steps
            .iter()
            .zip(steady)
            .map(|(step, counts)| {
                let batch = Batch::of(step, counts, &usual);
                let slowest = step.input.iter().flat_map(|input| &input.slowest);
                for (blame, _) in slowest.zip(batch.excess).filter(|(_, (own, _))| *own > 0.0) {
                    slow.push((step.step, blame.key.clone(), blame.stage.clone(), blame.nanos));
                }
                for (part, nanos) in &batch.parts {
                    *totals.entry(part.clone()).or_insert(0.0) += nanos;
                }
                batch
            })
            .collect();
        Some(Self {
            batches,
            totals,
            queued_share: queued as f64 / work.max(1) as f64,
            slow,
            usual_sample_nanos,
        })
    }

    /// What the batches cost without some parts.
    fn costs(&self, record: &Record, without: &[Part]) -> Vec<Cost> {
        let noted = record.steps.iter().filter_map(|step| Some((step.rows, step.input.as_ref()?.bytes)));
        let (rows, bytes) = noted.fold((0, 0), |sum, (rows, bytes)| (sum.0 + rows, sum.1 + bytes));
        let row_bytes = bytes as f64 / rows.max(1) as f64;
        self.batches
            .iter()
            .zip(&record.steps)
            .map(|(batch, step)| {
                let left = |part: &Part| !without.contains(part);
                let work =
                    batch.parts.iter().filter(|(part, _)| left(part)).map(|(_, nanos)| nanos).sum::<f64>();
                let all = batch.parts.iter().map(|(_, nanos)| nanos).sum::<f64>().max(1.0);
                let keep = |part| if left(part) { 1.0 } else { 0.0 };
                let (keep_own, keep_queued) = (keep(&Part::SlowSamples), keep(&Part::NoCore));
                let kept: [f64; SLOWEST] =
                    batch.excess.map(|(own, queued)| keep_own * own + keep_queued * queued);
                let beyond = batch.excess.map(|(own, queued)| own + queued);
                // The slowest: what is beyond the usual as it is, the usual in proportion to what is left.
                let share =
                    (work - kept.iter().sum::<f64>()).max(0.0) / (all - beyond.iter().sum::<f64>()).max(1.0);
                let slowest =
                    std::array::from_fn(|at| kept[at] + (batch.slowest[at] - beyond[at]).max(0.0) * share);
                let rows = step.rows.max(1);
                // What nobody noted is taken to be as wide as the others.
                let bytes = step.input.as_ref().map_or(row_bytes * rows as f64, |input| input.bytes as f64);
                Cost {
                    rows,
                    epoch: step.epoch,
                    work_nanos: work,
                    slowest_nanos: slowest,
                    busy_nanos: (step.wall_nanos - step.wait_nanos.min(step.wall_nanos)) as f64,
                    bytes,
                    row_bytes: bytes / rows as f64,
                    counts: batch.counts,
                }
            })
            .collect()
    }
}

/// What is usual in a run.
struct Usual {
    sample_nanos: f64,
    /// The same of those that a cache does not have, as in a first epoch.
    made_nanos: f64,
    /// The stages that it spares the others.
    spared: &'static [&'static str],
    /// Share of a stage's time that its worker had no core, outliers apart.
    queued_share: f64,
}

impl Usual {
    fn of(record: &Record, sample_nanos: f64, work: f64, queued: f64) -> Self {
        let spared = spared(record.run.settings.cache.as_deref());
        let made_nanos = usual_sample(record, |sample| spared.contains(&sample.stage.as_str()));
        let mut usual = Self { sample_nanos, made_nanos, spared, queued_share: 0.0 };
        if queued < LEAST_QUEUED * work {
            return usual;
        }
        // A worker that loses its core in the midst of a sample makes that sample an outlier; this is counted there.
        let (mut left, mut rest) = (queued, work);
        for (own, without) in record.steps.iter().flat_map(|step| usual.excess(step)) {
            left -= without;
            rest -= own + without;
        }
        usual.queued_share = (left.max(0.0) / rest.max(1.0)).min(0.95);
        usual
    }

    /// What the slowest samples of a step took beyond the usual: of their own, and without a core.
    fn excess(&self, step: &Step) -> [(f64, f64); SLOWEST] {
        let mut excess = [(0.0, 0.0); SLOWEST];
        let slowest = step.input.iter().flat_map(|input| &input.slowest);
        for (excess, slowest) in excess.iter_mut().zip(slowest) {
            let nanos = slowest.nanos as f64;
            let is_made = self.spared.contains(&slowest.stage.as_str());
            let usual = if is_made { self.made_nanos.max(self.sample_nanos) } else { self.sample_nanos };
            if nanos > OUTLIER * usual && step.rows > 1 {
                let beyond = nanos - usual;
                let queued = (slowest.queued_nanos as f64).min(beyond);
                *excess = (beyond - queued, queued);
            }
        }
        excess
    }
}

impl Batch {
    fn of(step: &Step, counts: bool, usual: &Usual) -> Self {
        let Some(input) = &step.input else {
            return Self {
                parts: Vec::new(),
                slowest: [0.0; SLOWEST],
                excess: [(0.0, 0.0); SLOWEST],
                counts,
            };
        };
        let mut slowest = [0.0; SLOWEST];
        for (place, blame) in slowest.iter_mut().zip(&input.slowest) {
            *place = blame.nanos as f64;
        }
        let excess = usual.excess(step);
        let (slow, mut queued) =
            excess.iter().fold((0.0, 0.0), |sum, (own, queued)| (sum.0 + own, sum.1 + queued));
        let mut parts = Vec::new();
        for (stage, nanos) in &input.work_nanos {
            let of_stage = input.slowest.iter().zip(excess).filter(|(blame, _)| blame.stage == *stage);
            let beyond = of_stage.map(|(_, (own, queued))| own + queued).sum::<f64>();
            let nanos = (*nanos as f64 - beyond).max(0.0);
            queued += nanos * usual.queued_share;
            parts.push((Part::Stage(stage.clone()), nanos * (1.0 - usual.queued_share)));
        }
        if slow > 0.0 {
            parts.push((Part::SlowSamples, slow));
        }
        if queued > 0.0 {
            parts.push((Part::NoCore, queued));
        }
        Self { parts, slowest, excess, counts }
    }
}

/// The stages that a cache spares those samples that it has; none where there is none.
fn spared(cache: Option<&str>) -> &'static [&'static str] {
    match cache {
        None | Some("off") => &[],
        Some("raw") => &["read"],
        Some("decoded") => &["read", "decode", "resample"],
        Some(_) => CACHED,
    }
}

/// What a usual sample takes: the median, over batches of which even the last of the slowest few is of that kind, of their mean without
/// these.
fn usual_sample(record: &Record, kind: impl Fn(&Blame) -> bool) -> f64 {
    let mut means: Vec<u64> = record
        .steps
        .iter()
        .filter_map(|step| {
            // Where documents are packed, nothing is done for some batches: they say nothing of a sample.
            let input = step.input.as_ref().filter(|input| input.total_work_nanos() > 0)?;
            if !input.slowest.last().is_none_or(&kind) {
                return None;
            }
            let slowest: u64 = input.slowest.iter().map(|slowest| slowest.nanos).sum();
            let others = step.rows.saturating_sub(input.slowest.len() as u64);
            match (others, input.slowest.last()) {
                (0, None) => None,
                // Every sample is known by itself.
                (0, Some(_)) => Some(input.slowest[input.slowest.len() / 2].nanos),
                _ => Some(input.total_work_nanos().saturating_sub(slowest) / others),
            }
        })
        .collect();
    means.sort_unstable();
    quantile(&means, 0.5) as f64
}
