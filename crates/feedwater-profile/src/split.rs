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
    record::{Record, Step},
    steps::{Steps, quantile},
};

/// A sample is an outlier when it takes this many times as long as a usual one.
const OUTLIER: f64 = 5.0;
/// Less than this share of the workers' time without a core is the system's everyday.
const LEAST_QUEUED: f64 = 0.03;

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
        let settings = &record.run.settings;
        let crew = settings.threads.map(|threads| Crew {
            threads,
            prefetch: settings.prefetch.unwrap_or(1),
            batch_at_a_time: settings.batch_at_a_time,
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
    /// The sample that took the longest: its time, and the stage that most of it was spent in.
    slowest: (f64, String),
    /// What of it is beyond the usual.
    excess: f64,
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
        let queued_share = (queued as f64 / work.max(1) as f64).min(0.95);
        let queued_share = if queued_share < LEAST_QUEUED { 0.0 } else { queued_share };
        let usual_sample_nanos = usual_sample(record);
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
                let batch = Batch::of(step, counts, usual_sample_nanos, queued_share);
                if batch.excess > 0.0
                    && let Some(slowest) = step.input.as_ref().and_then(|input| input.slowest.as_ref())
                {
                    slow.push((step.step, slowest.key.clone(), slowest.stage.clone(), slowest.nanos));
                }
                for (part, nanos) in &batch.parts {
                    *totals.entry(part.clone()).or_insert(0.0) += nanos;
                }
                batch
            })
            .collect();
        Some(Self { batches, totals, queued_share, slow, usual_sample_nanos })
    }

    /// What the batches cost without some parts.
    fn costs(&self, record: &Record, without: &[Part]) -> Vec<Cost> {
        self.batches
            .iter()
            .zip(&record.steps)
            .map(|(batch, step)| {
                let left = |part: &Part| !without.contains(part);
                let work =
                    batch.parts.iter().filter(|(part, _)| left(part)).map(|(_, nanos)| nanos).sum::<f64>();
                let all = batch.parts.iter().map(|(_, nanos)| nanos).sum::<f64>().max(1.0);
                let excess = if left(&Part::SlowSamples) { batch.excess } else { 0.0 };
                // The slowest sample: what is beyond the usual as it is, the usual in proportion to what is left.
                let usual = batch.slowest.0 - batch.excess;
                let slowest = excess + usual * (work - excess).max(0.0) / (all - batch.excess).max(1.0);
                Cost {
                    rows: step.rows.max(1),
                    work_nanos: work,
                    slowest_nanos: slowest,
                    busy_nanos: (step.wall_nanos - step.wait_nanos.min(step.wall_nanos)) as f64,
                    counts: batch.counts,
                }
            })
            .collect()
    }
}

impl Batch {
    fn of(step: &Step, counts: bool, usual: f64, queued_share: f64) -> Self {
        let Some(input) = &step.input else {
            return Self { parts: Vec::new(), slowest: (0.0, String::new()), excess: 0.0, counts };
        };
        let slowest = input.slowest.as_ref().map_or((0.0, String::new()), |slowest| {
            ((slowest.nanos.min(input.total_work_nanos())) as f64, slowest.stage.clone())
        });
        let excess = if slowest.0 > OUTLIER * usual && step.rows > 1 { slowest.0 - usual } else { 0.0 };
        let mut parts = Vec::new();
        let mut queued = 0.0;
        for (stage, nanos) in &input.work_nanos {
            let mut nanos = *nanos as f64;
            if *stage == slowest.1 {
                nanos = (nanos - excess).max(0.0);
            }
            queued += nanos * queued_share;
            parts.push((Part::Stage(stage.clone()), nanos * (1.0 - queued_share)));
        }
        if excess > 0.0 {
            parts.push((Part::SlowSamples, excess));
        }
        if queued > 0.0 {
            parts.push((Part::NoCore, queued));
        }
        Self { parts, slowest, excess, counts }
    }
}

/// What a usual sample takes: the median, over batches, of their mean without the slowest.
fn usual_sample(record: &Record) -> f64 {
    let mut means: Vec<u64> = record
        .steps
        .iter()
        .filter_map(|step| {
            let input = step.input.as_ref()?;
            let slowest = input.slowest.as_ref().map_or(0, |slowest| slowest.nanos);
            let others = step.rows.saturating_sub(1);
            (others > 0).then(|| input.total_work_nanos().saturating_sub(slowest) / others)
        })
        .collect();
    means.sort_unstable();
    quantile(&means, 0.5) as f64
}
