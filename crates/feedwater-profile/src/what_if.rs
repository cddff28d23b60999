//! What would another setting bring?
//!
//! The recorded run is played again ([`model`](crate::model)) with the costs that another setting would have given it.
//! Where a cost has to be guessed (a core shared with others, a number half as wide), the interval is wider. No answer is
//! better than the accelerator's own pace.

use serde::Serialize;

use crate::{
    diagnosis::Facts,
    model::{Cost, Crew, play},
    record::{Cached, Input, Record, SLOWEST, Step},
    split::Part,
    steps::{edges, median, quantile},
};

/// A setting to try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wish {
    /// So many threads.
    Threads(usize),
    /// So many batches ahead.
    Prefetch(usize),
    /// So many threads, and so many batches ahead: what one brings depends on the other.
    Crew(usize, usize),
    /// So many samples a step. The accelerator's time is taken to grow with it.
    BatchSize(u64),
    /// Features made once and read afterwards.
    Cache,
    /// Numbers of half the width.
    HalfPrecision,
    /// Rows as long as the longest of their batch.
    PadToLongest,
}

/// What a setting would bring.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Prediction {
    /// Samples in a second.
    pub samples_per_second: f64,
    /// Steps in a second.
    pub steps_per_second: f64,
    /// Steps in a second, at least.
    pub low: f64,
    /// Steps in a second, at most.
    pub high: f64,
    /// What the interval is a share of.
    pub uncertainty: f64,
    /// Time that a step becomes shorter by, for the samples that a step has now.
    pub saves_nanos: f64,
}

impl Prediction {
    /// What two runs of the same settings predict together.
    #[must_use]
    pub fn averaged(&self, other: &Self) -> Self {
        let middle = |one: f64, two: f64| f64::midpoint(one, two);
        Self {
            samples_per_second: middle(self.samples_per_second, other.samples_per_second),
            steps_per_second: middle(self.steps_per_second, other.steps_per_second),
            low: self.low.min(other.low),
            high: self.high.max(other.high),
            uncertainty: self.uncertainty.max(other.uncertainty),
            saves_nanos: middle(self.saves_nanos, other.saves_nanos),
        }
    }
}

/// Stages whose results can be kept: the same for a sample in every epoch.
pub(crate) const CACHED: &[&str] =
    &["read", "decode", "resample", "length", "log_mel", "tokenize", "transform"];
/// Stages around them.
const ROUND_CACHED: &[&str] = &["source", "cache", "batch"];
/// What a core takes to write a mebibyte, where the machine has not said how fast it does.
const FILL_NANOS_PER_MIB: f64 = 48_000.0;
/// How many times as long it takes to read and check one that is kept: where it goes straight into its row, which hides most of it
/// behind the writing, and where it goes into a buffer because more is done to it.
const CACHE_TO_FILL: f64 = 0.55;
const CACHE_TO_FILL_BUFFERED: f64 = 3.1;
/// What finding a sample takes: who its file is, and where it is kept. Less where files are so few that they come again soon,
/// and are still in the processor's caches. Text has no file to ask.
const CACHE_FILE_NANOS: f64 = 26_000.0;
const CACHE_FILE_AGAIN_NANOS: f64 = 7_000.0;
const CACHE_TEXT_NANOS: f64 = 5_000.0;
/// A batch that takes so many times as long to write as most for its size is written to memory that is new.
const ONCE: f64 = 3.0;

impl Cached {
    /// What a run says whose samples were all kept before it began: by the steps that count, as any other run is judged.
    pub fn of(record: &Record) -> Option<Self> {
        let Facts { steps, split, .. } = Facts::of(record).ok()?;
        let nanos_per_mib = |is_first: bool| {
            let some = steps.of_record(record).filter(|step| in_first_epoch(record, step) == is_first);
            let inputs = some.filter_map(|step| step.input.as_ref());
            let (mut nanos, mut bytes) = (0, 0);
            // A batch that nothing was done for belongs to the one before.
            for input in inputs.skip_while(|input| input.total_work_nanos() == 0) {
                nanos += input.total_work_nanos();
                bytes += input.bytes;
            }
            (bytes > 0).then(|| nanos as f64 / mib(bytes))
        };
        let (first, later) = (nanos_per_mib(true), nanos_per_mib(false));
        // What is not the handing over is fitted to what was measured: it will be played again.
        let played = split.crew.map(|crew| play(&split.costs, crew).wall_nanos);
        let fit = played.map_or(1.0, |played| steps.mean.wall_nanos / played);
        let cached = Self {
            first_nanos_per_mib: fit * first.or(later)?,
            nanos_per_mib: fit * later.or(first)?,
            handover_nanos: split.crew.map(|crew| crew.handover_nanos as f64),
        };
        cached.can_be().then_some(cached)
    }

    /// The middle of what runs say, figure by figure: a moment in which the machine was not alone is in few of them.
    pub fn middle(runs: &[Self]) -> Option<Self> {
        let of = |figure: fn(&Self) -> Option<f64>| median(runs.iter().filter_map(figure).collect());
        Some(Self {
            first_nanos_per_mib: of(|run| Some(run.first_nanos_per_mib))?,
            nanos_per_mib: of(|run| Some(run.nanos_per_mib))?,
            handover_nanos: of(|run| run.handover_nanos),
        })
    }
}

impl Facts<'_> {
    /// What a setting would bring; nothing where the record does not say how batches were made.
    pub fn predict(&self, wish: &Wish) -> Option<Prediction> {
        let (crew, costs) = (self.split.crew?, &self.split.costs);
        if costs.is_empty() || crew.threads == 0 && !matches!(wish, Wish::Threads(_) | Wish::Crew(..)) {
            return None;
        }
        let tried = self.record.run.host.cached.and_then(|cached| cached.handover_nanos);
        let (wished_crew, wished_costs, doubt) = match wish {
            Wish::Threads(threads) => {
                self.crewed(crew, *threads, if crew.threads == 0 { 3 } else { crew.prefetch })
            }
            Wish::Prefetch(prefetch) => (Crew { prefetch: *prefetch, ..crew }, costs.clone(), 0.02),
            Wish::Crew(threads, prefetch) => self.crewed(crew, *threads, *prefetch),
            Wish::BatchSize(rows) => (crew, self.regrouped(crew, (*rows).max(1)), 0.05),
            Wish::Cache => {
                let handover_nanos = tried.map_or(crew.handover_nanos, |nanos| nanos as u64);
                (Crew { handover_nanos, ..crew }, self.cached(), 0.10)
            }
            // What is read stays as wide as it was; what is written is half.
            Wish::HalfPrecision => (crew, self.reworked(|input| stage_share(input, "batch", 0.75)), 0.03),
            Wish::PadToLongest => (
                crew,
                self.reworked(|input| {
                    let saved = input.padding_bytes.saturating_sub(input.padding_to_longest_bytes);
                    stage_share(input, "batch", 1.0 - saved as f64 / input.bytes.max(1) as f64)
                }),
                0.03,
            ),
        };
        if !wished_costs.iter().any(|cost| cost.counts) {
            // A batch larger than all that was recorded.
            return None;
        }
        let (now, then) = (play(costs, crew), play(&wished_costs, wished_crew));
        let measured = self.steps.mean.wall_nanos;
        // How far the playing was off for what is known is how far it may be off for what is not.
        let off = (now.wall_nanos - measured).abs() / measured;
        let wall = match wish {
            // What a step takes besides was tried as well.
            Wish::Cache if tried.is_some() => then.wall_nanos,
            // What is not a sample's work, nor the handing over of a batch, stays as it is, however short the rest becomes.
            Wish::Cache if measured > now.wall_nanos => then.wall_nanos + measured - now.wall_nanos,
            _ => measured * then.wall_nanos / now.wall_nanos,
        };
        let rows = mean_of(&wished_costs, |cost| cost.rows as f64);
        let same_rows = wall * self.steps.mean.rows.max(1.0) / rows.max(1.0);
        let uncertainty = (0.02 + doubt + off).min(0.9);
        let steps_per_second = 1e9 / wall;
        let busy = mean_of(&wished_costs, |cost| cost.busy_nanos);
        let ceiling = if busy > 0.0 { 1e9 / busy } else { f64::INFINITY };
        Some(Prediction {
            samples_per_second: steps_per_second * rows,
            steps_per_second,
            low: steps_per_second * (1.0 - uncertainty),
            high: (steps_per_second * (1.0 + uncertainty)).min(ceiling).max(steps_per_second),
            uncertainty,
            saves_nanos: measured - same_rows,
        })
    }

    /// With other threads, and a queue of its own.
    fn crewed(&self, crew: Crew, threads: usize, prefetch: usize) -> (Crew, Vec<Cost>, f64) {
        let factor = self.crowd(threads) / self.crowd(crew.threads.max(1));
        let doubt = if threads as f64 > self.usable_cores() { 0.10 } else { 0.05 };
        // Those that slept while the queue was full are woken one after the other.
        let handover_nanos =
            (crew.handover_nanos as f64 * threads as f64 / crew.threads.max(1) as f64) as u64;
        (Crew { threads, prefetch, handover_nanos, ..crew }, scaled(&self.split.costs, factor), doubt)
    }

    /// Cores that the workers may use.
    pub fn usable_cores(&self) -> f64 {
        let host = &self.record.run.host;
        host.usable_cores.or(host.cores).unwrap_or(1.0).max(0.1)
    }

    /// How much longer a thread takes for its work when so many work beside each other.
    fn crowd(&self, threads: usize) -> f64 {
        let (threads, cores) = (threads as f64, self.usable_cores());
        let full = self.record.run.host.crowding.unwrap_or(1.0).max(1.0);
        if threads <= cores {
            if cores > 1.0 { 1.0 + (full - 1.0) * (threads - 1.0).max(0.0) / (cores - 1.0) } else { 1.0 }
        } else {
            let cpu = cpu_share(self.record);
            full * (cpu * threads / cores + 1.0 - cpu).max(1.0)
        }
    }

    /// The same samples in batches of another size, with what writing them takes where the caches hold more or less of
    /// them, and where rows are as long as the longest of more.
    fn regrouped(&self, crew: Crew, rows: u64) -> Vec<Cost> {
        let mut batches = regrouped(&self.split.costs, self.record.run.settings.batch_size, rows);
        // Put together by length, they are about as long as they were, however many they are.
        let like_lengths = self.record.run.settings.buckets == Some(true);
        let written = |batch: &Cost| {
            if like_lengths { batch.bytes } else { batch.row_bytes * batch.rows as f64 }
        };
        // One is trained on, one is being filled, and the others wait.
        let nanos_per_mib = |bytes: f64| self.fill_nanos_per_mib(bytes * (crew.prefetch + 2) as f64);
        let now = nanos_per_mib(mean_of(&self.split.costs, |cost| cost.bytes));
        let then = nanos_per_mib(mean_of(&batches, written));
        for batch in &mut batches {
            let more = (written(batch) * then - batch.bytes * now) / f64::from(1 << 20);
            *batch = scale(batch, ((batch.work_nanos + more) / batch.work_nanos.max(1.0)).max(0.5));
        }
        batches
    }

    /// What writing a mebibyte takes where so many bytes are gone over in turn.
    fn fill_nanos_per_mib(&self, bytes: f64) -> f64 {
        let curve = &self.record.run.host.fill;
        let (Some(first), Some(last)) = (curve.first(), curve.last()) else { return 0.0 };
        let after = curve.iter().position(|fill| fill.bytes as f64 >= bytes);
        match after {
            Some(0) => first.nanos_per_mib,
            None => last.nanos_per_mib,
            Some(after) => {
                let (low, high) = (curve[after - 1], curve[after]);
                let share = (bytes - low.bytes as f64) / (high.bytes - low.bytes) as f64;
                low.nanos_per_mib + share * (high.nanos_per_mib - low.nanos_per_mib)
            }
        }
    }

    /// The costs with features read from a cache, which memory holds. Where that was tried on some samples, there is nothing to
    /// guess.
    fn cached(&self) -> Vec<Cost> {
        let steps = &self.record.steps;
        let inputs = || steps.iter().filter_map(|step| step.input.as_ref());
        let fill = self.record.run.host.fill.last();
        let times = if go_straight(inputs()) { CACHE_TO_FILL } else { CACHE_TO_FILL_BUFFERED };
        let guessed_mib = fill.map_or(FILL_NANOS_PER_MIB, |fill| fill.nanos_per_mib) * times;
        let worked = inputs().filter(|input| input.total_work_nanos() > 0);
        let mut batches: Vec<u64> = worked.map(batch_nanos_per_mib).collect();
        batches.sort_unstable();
        let most = ONCE * quantile(&batches, 0.5) as f64;
        // Two epochs in a run of a minute: there are few.
        let again = steps.iter().any(|step| step.epoch > steps[0].epoch + 1);
        let mut costs = self.split.costs.clone();
        // A batch that nothing was done for has what was left over by the one before, which is found and read for both.
        let mut both = (0.0, Input::default());
        for (step, cost) in steps.iter().zip(&mut costs).rev() {
            let Some(input) = &step.input else { continue };
            both.0 += step.rows as f64;
            both.1.merge(input.clone());
            if input.total_work_nanos() == 0 {
                continue;
            }
            let (rows, input) = std::mem::take(&mut both);
            let share = if let Some(tried) = self.record.run.host.cached {
                // A run comes to every sample once before it comes to one again.
                let nanos = if in_first_epoch(self.record, step) {
                    tried.first_nanos_per_mib
                } else {
                    tried.nanos_per_mib
                };
                nanos * mib(input.bytes) / input.total_work_nanos() as f64
            } else {
                let files = rows * if again { CACHE_FILE_AGAIN_NANOS } else { CACHE_FILE_NANOS };
                cached_share(&input, (files, rows * CACHE_TEXT_NANOS), guessed_mib, most)
            };
            *cost = scale(cost, share);
        }
        costs
    }

    /// The costs, each with the share of its work that a setting leaves.
    fn reworked(&self, share: impl Fn(&Input) -> f64) -> Vec<Cost> {
        let shares = self.record.steps.iter().map(|step| step.input.as_ref().map_or(1.0, &share));
        self.split.costs.iter().zip(shares).map(|(cost, share)| scale(cost, share)).collect()
    }

    /// What the wait would be without some stages: for what a cache or a faster library would bring.
    pub fn stage_nanos(&self, stages: &[&str]) -> f64 {
        stages.iter().map(|stage| self.split.nanos(&Part::Stage((*stage).to_owned()))).sum()
    }
}

/// The share of the workers' time that they computed.
pub(crate) fn cpu_share(record: &Record) -> f64 {
    let inputs = || record.steps.iter().filter_map(|step| step.input.as_ref());
    let work: u64 = inputs().map(Input::total_work_nanos).sum();
    if inputs().all(|input| input.cpu_nanos.is_none()) || work == 0 {
        return 1.0;
    }
    let cpu: u64 = inputs().filter_map(|input| input.cpu_nanos).sum();
    (cpu as f64 / work as f64).clamp(0.0, 1.0)
}

/// Whether a run comes to the step's samples for the first time.
fn in_first_epoch(record: &Record, step: &Step) -> bool {
    record.steps.first().is_some_and(|first| first.epoch == step.epoch)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// What writing a mebibyte of a batch took.
fn batch_nanos_per_mib(input: &Input) -> u64 {
    (input.work_nanos.get("batch").copied().unwrap_or(0) << 20) / input.bytes.max(1)
}

/// Whether samples that are kept go straight into their rows: nothing is done to them any more, and rows have their place before
/// there is a sample, since they are longer than the longest.
fn go_straight<'a>(inputs: impl Iterator<Item = &'a Input>) -> bool {
    let mut longer = false;
    for input in inputs {
        let known = |name: &str| CACHED.contains(&name) || ROUND_CACHED.contains(&name);
        if input.work_nanos.iter().any(|(name, nanos)| *nanos > 0 && !known(name)) {
            return false;
        }
        longer |= input.padding_to_longest_bytes < input.padding_bytes;
    }
    longer
}

/// The share of a batch's work that is left where its samples are found, which takes so long for files or for text.
fn cached_share(input: &Input, find: (f64, f64), nanos_per_mib: f64, most_nanos_per_mib: f64) -> f64 {
    let all = input.total_work_nanos().max(1) as f64;
    let of = |stages: &[&str]| -> u64 {
        let some = input.work_nanos.iter().filter(|(name, _)| stages.contains(&name.as_str()));
        some.map(|(_, nanos)| nanos).sum()
    };
    let files = of(&["read", "decode"]) > 0;
    let find = if files { find.0 } else { find.1 };
    let read = mib(input.bytes - input.padding_bytes.min(input.bytes)) * nanos_per_mib;
    // Writing a batch is copying: where it took much longer, memory was touched for the first time, which is over by then.
    let once = (batch_nanos_per_mib(input) as f64 - most_nanos_per_mib).max(0.0) * mib(input.bytes);
    ((all - of(CACHED) as f64 - once + find + read) / all).min(1.0)
}

/// The share of the work that is left when one stage takes `factor` of its time.
fn stage_share(input: &Input, stage: &str, factor: f64) -> f64 {
    let all = input.total_work_nanos().max(1) as f64;
    let stage = input.work_nanos.get(stage).copied().unwrap_or_default() as f64;
    (all - stage * (1.0 - factor)) / all
}

fn scale(cost: &Cost, factor: f64) -> Cost {
    Cost {
        work_nanos: cost.work_nanos * factor,
        slowest_nanos: cost.slowest_nanos.map(|nanos| nanos * factor),
        ..*cost
    }
}

fn scaled(costs: &[Cost], factor: f64) -> Vec<Cost> {
    costs.iter().map(|cost| scale(cost, factor)).collect()
}

/// The mean of those that count.
fn mean_of(costs: &[Cost], what: impl Fn(&Cost) -> f64) -> f64 {
    let counted = costs.iter().filter(|cost| cost.counts);
    counted.clone().map(what).sum::<f64>() / counted.count().max(1) as f64
}

/// Keeps the longest, in order.
fn insert(slowest: &mut [f64; SLOWEST], mut nanos: f64) {
    for place in slowest {
        if nanos > *place {
            std::mem::swap(place, &mut nanos);
        }
    }
}

/// The same samples in batches of another size. An epoch's last batch has what is left, as it has in a loader: a short
/// one is soon made, and a queue that is not deep has no room for what could be made meanwhile. What lies at the edge of
/// an epoch is another step than it was; what was warm-up or a checkpoint stays apart.
fn regrouped(costs: &[Cost], size: Option<u64>, rows: u64) -> Vec<Cost> {
    let edges_of = |costs: &[Cost], size| {
        edges(&costs.iter().map(|cost| (cost.epoch, cost.rows)).collect::<Vec<_>>(), size)
    };
    let mut regrouped = Vec::new();
    let mut batch = Cost::default();
    for (cost, edge) in costs.iter().zip(edges_of(costs, size)) {
        if batch.rows > 0 && batch.epoch != cost.epoch {
            regrouped.push(std::mem::take(&mut batch));
        }
        let mut left = cost.rows.max(1);
        while left > 0 {
            let take = left.min(rows - batch.rows);
            let share = take as f64 / cost.rows.max(1) as f64;
            batch.counts = (cost.counts || edge.is_some()) && (batch.counts || batch.rows == 0);
            batch.epoch = cost.epoch;
            batch.rows += take;
            batch.work_nanos += cost.work_nanos * share;
            batch.busy_nanos += cost.busy_nanos * share;
            batch.bytes += cost.bytes * share;
            batch.row_bytes = batch.row_bytes.max(cost.row_bytes);
            for nanos in cost.slowest_nanos.iter().take(take as usize) {
                insert(&mut batch.slowest_nanos, *nanos);
            }
            left -= take;
            if batch.rows == rows {
                regrouped.push(std::mem::take(&mut batch));
            }
        }
    }
    for (batch, edge) in edges_of(&regrouped, Some(rows)).into_iter().enumerate() {
        regrouped[batch].counts &= edge.is_none();
    }
    regrouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_another_size_ends_where_its_epoch_ends() {
        // Twenty-five batches of 8 are six of 32 and one of 8: not as if they flowed on.
        let cost = |epoch| Cost { rows: 8, epoch, work_nanos: 8.0, counts: true, ..Cost::default() };
        let costs: Vec<Cost> = (0..50).map(|step| cost(step / 25)).collect();
        let rows: Vec<u64> = regrouped(&costs, Some(8), 32).iter().map(|cost| cost.rows).collect();
        assert_eq!(rows, [32, 32, 32, 32, 32, 32, 8, 32, 32, 32, 32, 32, 32]);
        assert_eq!(regrouped(&costs, Some(8), 2).len(), 200);
        let work: f64 = regrouped(&costs, Some(8), 4).iter().map(|cost| cost.work_nanos).sum();
        assert!((work - 400.0).abs() < 1e-9);
    }

    #[test]
    fn a_larger_batch_is_as_long_as_the_longest_of_those_it_is_made_of() {
        let cost = |long: f64| Cost { rows: 8, row_bytes: long, bytes: 8.0 * long, ..Cost::default() };
        let larger = regrouped(&[cost(10.0), cost(30.0), cost(20.0), cost(5.0)], Some(8), 16);
        let bytes: Vec<_> = larger.iter().map(|batch| (batch.row_bytes, batch.bytes)).collect();
        assert_eq!(bytes, [(30.0, 320.0), (20.0, 200.0)], "what is written then, and what was");
    }

    #[test]
    fn memory_that_is_new_is_no_cost_of_a_cache() {
        let input = |batch: u64| Input {
            bytes: 1 << 20,
            work_nanos: [("decode".to_owned(), 900_000), ("batch".to_owned(), batch)].into(),
            ..Input::default()
        };
        let left = |batch| {
            let input = input(batch);
            cached_share(&input, (9_000.0, 0.0), 50_000.0, 60_000.0) * input.total_work_nanos() as f64
        };
        assert!((left(20_000) - left(2_000_000) + 40_000.0).abs() < 1.0, "no more than is usual remains");
        assert!((left(20_000) - 20_000.0 - 9_000.0 - 50_000.0).abs() < 1.0);
    }

    #[test]
    fn what_is_done_with_kept_samples_says_where_they_go() {
        let input = |padding: u64, noise: u64| Input {
            padding_bytes: 1 << 20,
            padding_to_longest_bytes: padding,
            work_nanos: [("decode".to_owned(), 9), ("noise".to_owned(), noise), ("batch".to_owned(), 9)]
                .into(),
            ..Input::default()
        };
        let (full, padded, noisy) = (input(1 << 20, 0), input(1 << 19, 0), input(1 << 19, 9));
        assert!(go_straight([&full, &padded].into_iter()), "one batch has a clip that fills its row");
        assert!(!go_straight([&full, &full].into_iter()), "rows are as long as the longest");
        assert!(!go_straight([&padded, &noisy].into_iter()), "noise follows");
    }
}
