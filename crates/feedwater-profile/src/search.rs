//! Which settings are best for this data on this machine? Predictions first, short runs second, longer ones last.
//!
//! One run says what every other setting would bring ([`crate::what_if`]); the most promising are then tried, by turns, since
//! a machine's pace drifts; and from the best of them one goes on to its neighbours until none is better. Those that are close
//! are told apart by longer runs: a deep queue takes long to fill, and samples that take long are few. Of settings that are as
//! good as each other the plainest is taken: fewer threads, a shorter queue, no cache.

use serde::Serialize;

use crate::{Record, diagnosis::Facts, what_if::Wish};

/// Settings within this of the best are as good.
const AS_GOOD: f64 = 0.98;
/// Settings within this of the best in short runs may be as good; and in longer ones.
const CLOSE: f64 = 0.85;
const CLOSE_IN_LONG: f64 = 0.95;
/// So many of the most promising are tried, and so many of the best again.
const TRIED: usize = 5;
/// Rounds in which they are, by turns.
const ROUNDS: usize = 2;
/// Rounds of longer runs, and how many times as long they are.
const LONG_ROUNDS: usize = 3;
const LONG: u64 = 3;
/// Steps from neighbour to neighbour.
const MOVES: usize = 4;

/// One setting of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Point {
    /// Threads that make batches.
    pub threads: usize,
    /// Batches made ahead.
    pub prefetch: usize,
    /// Samples of a batch.
    pub batch_size: u64,
    /// Samples of like length together.
    pub buckets: bool,
    /// Half precision.
    pub half: bool,
    /// What is the same each time from a cache.
    pub cache: bool,
}

impl Point {
    /// How much it asks for: of two that are as good, the one that asks for less.
    fn asks(&self) -> (bool, bool, bool, usize, usize) {
        (self.cache, self.half, self.buckets, self.threads, self.prefetch)
    }
}

/// What may be chosen from. Each list is in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    /// Threads.
    pub threads: Vec<usize>,
    /// Batches ahead.
    pub prefetch: Vec<usize>,
    /// Samples of a batch.
    pub batch_sizes: Vec<u64>,
    /// Without and with.
    pub buckets: Vec<bool>,
    /// Without and with.
    pub half: Vec<bool>,
    /// Without and with.
    pub cache: Vec<bool>,
}

/// A setting, and what is known of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The setting.
    pub point: Point,
    /// Samples a second, as predicted.
    pub predicted: Option<f64>,
    /// Samples a second, as measured: the middle of its runs.
    pub measured: Option<f64>,
    /// How many of those there were, short and long.
    pub runs: usize,
    /// How many were longer: where there are any, they are what counts.
    pub long_runs: usize,
    /// What each gave that counts, in order of size.
    #[serde(skip)]
    rates: Vec<f64>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Found {
    /// The best, and plainest.
    pub best: Point,
    /// All that was tried, the best first.
    pub rows: Vec<Row>,
    /// How many settings there are in all.
    pub settings: usize,
}

/// Looks for the best of a space, from `base` on. `probe` makes a run, so many times as long as a short one.
pub fn search<E>(
    space: &Space,
    base: Point,
    mut probe: impl FnMut(&Point, u64) -> Result<Record, E>,
) -> Result<Found, E> {
    let first = probe(&base, 1)?;
    let mut rows = predicted(space, &base, &first);
    let settings = rows.len();
    let at = rows.iter().position(|row| row.point == base).unwrap_or_else(|| {
        rows.push(Row::new(base, None));
        rows.len() - 1
    });
    rows[at].note(rate(&first));
    // The plainest of those that are predicted to be as good comes first.
    let best = rows.iter().filter_map(|row| row.predicted).fold(0.0, f64::max);
    rows.sort_by(|a, b| {
        let as_good = |row: &Row| row.predicted.is_some_and(|rate| rate >= best * AS_GOOD);
        (as_good(b).cmp(&as_good(a))).then_with(|| {
            if as_good(a) && as_good(b) {
                a.point.asks().cmp(&b.point.asks())
            } else {
                b.predicted.unwrap_or(0.0).total_cmp(&a.predicted.unwrap_or(0.0))
            }
        })
    });
    let mut tried: Vec<usize> = (0..rows.len().min(TRIED)).collect();
    tried.extend(rows.iter().position(|row| row.point == base).filter(|at| *at >= TRIED));
    by_turns(&mut rows, &tried, ROUNDS, |point| probe(point, 1))?;
    for _ in 0..MOVES {
        let here = chosen(&rows);
        let around = neighbours(space, &rows[here].point);
        let new = |row: &Row| row.runs == 0 && around.contains(&row.point);
        let new: Vec<usize> = (0..rows.len()).filter(|at| new(&rows[*at])).collect();
        by_turns(&mut rows, &new, ROUNDS, |point| probe(point, 1))?;
        if chosen(&rows) == here {
            break;
        }
    }
    let mut last = finalists(space, &rows);
    if last.len() > 1 {
        for at in &last {
            rows[*at].rates.clear();
        }
        for round in 1..=LONG_ROUNDS {
            by_turns(&mut rows, &last, 1, |point| probe(point, LONG))?;
            for at in &last {
                rows[*at].long_runs += 1;
            }
            // One run decides nothing: it may have had the machine to itself, or not at all. What goes is not close, in its best
            // run, to what another does in its worst.
            let best = |at: &usize| rows[*at].rates.last().copied().unwrap_or(0.0);
            let worst = |at: &usize| rows[*at].rates.first().copied().unwrap_or(0.0);
            let sure = last.iter().map(worst).fold(0.0, f64::max);
            last.retain(|at| round == 1 || best(at) >= sure * CLOSE_IN_LONG);
        }
    }
    let best = rows[chosen(&rows)].point;
    rows.retain(|row| row.runs > 0);
    rows.sort_by(|a, b| {
        let of = |row: &Row| (row.long_runs > 0, row.measured.unwrap_or(0.0));
        of(b).partial_cmp(&of(a)).unwrap_or(std::cmp::Ordering::Equal)
    });
    Ok(Found { best, rows, settings })
}

/// Runs of some settings, one after the other and then again: a machine's pace drifts.
fn by_turns<E>(
    rows: &mut [Row],
    which: &[usize],
    rounds: usize,
    mut probe: impl FnMut(&Point) -> Result<Record, E>,
) -> Result<(), E> {
    for _ in 0..rounds {
        for at in which {
            let record = probe(&rows[*at].point)?;
            rows[*at].note(rate(&record));
        }
    }
    Ok(())
}

/// Samples a second, when the queue had been filled. All of them: these runs have no checkpoints, and what waits at the edge of
/// an epoch waits in training too.
fn rate(record: &Record) -> f64 {
    let steps = &record.steps[record.steps.len() / 4..];
    let (rows, nanos) = steps.iter().fold((0, 0), |sum, step| (sum.0 + step.rows, sum.1 + step.wall_nanos));
    rows as f64 * 1e9 / nanos.max(1) as f64
}

impl Row {
    fn new(point: Point, predicted: Option<f64>) -> Self {
        Self { point, predicted, measured: None, runs: 0, long_runs: 0, rates: Vec::new() }
    }

    /// A run more. The middle: a moment in which others had the machine says nothing of a setting.
    fn note(&mut self, rate: f64) {
        let at = self.rates.partition_point(|known| *known < rate);
        self.rates.insert(at, rate);
        self.runs += 1;
        let count = self.rates.len();
        self.measured = Some(f64::midpoint(self.rates[(count - 1) / 2], self.rates[count / 2]));
    }
}

/// The plainest of those that were tried, for longest if any were for long, and are as good as the best.
fn chosen(rows: &[Row]) -> usize {
    // Those that were dropped on the way ran at other times.
    let most = rows.iter().map(|row| row.long_runs).max().unwrap_or(0);
    let rate = |row: &Row| row.measured.filter(|_| row.long_runs == most);
    let best = rows.iter().filter_map(rate).fold(0.0, f64::max);
    let good = (0..rows.len()).filter(|at| rate(&rows[*at]).is_some_and(|rate| rate >= best * AS_GOOD));
    good.min_by_key(|at| rows[*at].point.asks()).unwrap_or(0)
}

/// Those that were tried and may be as good as the best, the best first; and the best with a queue as deep as may be, of which
/// a short run says least.
fn finalists(space: &Space, rows: &[Row]) -> Vec<usize> {
    let rate = |at: &usize| rows[*at].measured.unwrap_or(0.0);
    let mut close: Vec<usize> = (0..rows.len()).collect();
    close.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    let best = close[0];
    close.retain(|at| rate(at) >= rate(&best) * CLOSE);
    close.truncate(TRIED);
    let here = chosen(rows);
    let prefetch = space.prefetch.last().copied().unwrap_or(rows[best].point.prefetch);
    let deepest = Point { prefetch, ..rows[best].point };
    let deepest = rows.iter().position(|row| row.point == deepest);
    for at in deepest.into_iter().chain([here]) {
        if !close.contains(&at) {
            close.push(at);
        }
    }
    close
}

/// All settings, each with what the first run says it would bring: what each change brings alone, multiplied.
fn predicted(space: &Space, base: &Point, first: &Record) -> Vec<Row> {
    let facts = Facts::of(first).ok();
    let now = rate(first).max(1e-9);
    // What is predicted is of steps that are alike, without the edges of epochs; so is what it is compared with.
    let alike = |facts: &Facts| facts.steps.mean.rows * 1e9 / facts.steps.mean.wall_nanos.max(1.0);
    let gain = |wish: &Wish| {
        let facts = facts.as_ref()?;
        Some(facts.predict(wish)?.samples_per_second / alike(facts).max(1e-9))
    };
    // No faster than the accelerator, however many changes there are.
    let mean = facts.as_ref().map(|facts| facts.steps.mean).filter(|mean| mean.busy_nanos > 0.0);
    let ceiling = mean.map_or(f64::INFINITY, |mean| mean.rows * 1e9 / mean.busy_nanos);
    // Each change is played once, not once for every setting that has it.
    let crews = each(&each(&[*base], &space.threads, with_threads), &space.prefetch, with_prefetch);
    let crews: Vec<_> = crews.iter().map(|point| (point.threads, point.prefetch)).collect();
    let crews =
        gains(&crews, &(base.threads, base.prefetch), |(threads, ahead)| gain(&Wish::Crew(*threads, *ahead)));
    let batches = gains(&space.batch_sizes, &base.batch_size, |rows| gain(&Wish::BatchSize(*rows)));
    let half = gains(&space.half, &base.half, |_| gain(&Wish::HalfPrecision));
    let cache = gains(&space.cache, &base.cache, |_| gain(&Wish::Cache));
    let row = |point: Point| {
        let gains = [
            of(&crews, &(point.threads, point.prefetch)),
            of(&batches, &point.batch_size),
            of(&half, &point.half),
            of(&cache, &point.cache),
        ];
        let predicted = gains.into_iter().try_fold(now, |rate, gain| Some(rate * gain?));
        Row::new(point, predicted.map(|rate| rate.min(ceiling)))
    };
    space.points(base).into_iter().map(row).collect()
}

fn gains<T: Copy + PartialEq>(
    list: &[T],
    base: &T,
    gain: impl Fn(&T) -> Option<f64>,
) -> Vec<(T, Option<f64>)> {
    list.iter().map(|item| (*item, if item == base { Some(1.0) } else { gain(item) })).collect()
}

fn of<T: PartialEq>(gains: &[(T, Option<f64>)], item: &T) -> Option<f64> {
    gains.iter().find(|(known, _)| known == item)?.1
}

impl Space {
    /// Every setting there is.
    pub fn points(&self, base: &Point) -> Vec<Point> {
        let mut points = vec![*base];
        points = each(&points, &self.threads, with_threads);
        points = each(&points, &self.prefetch, with_prefetch);
        points = each(&points, &self.batch_sizes, |point, batch_size| Point { batch_size, ..point });
        points = each(&points, &self.buckets, |point, buckets| Point { buckets, ..point });
        points = each(&points, &self.half, |point, half| Point { half, ..point });
        each(&points, &self.cache, |point, cache| Point { cache, ..point })
    }
}

fn with_threads(point: Point, threads: usize) -> Point {
    Point { threads, ..point }
}

fn with_prefetch(point: Point, prefetch: usize) -> Point {
    Point { prefetch, ..point }
}

fn each<T: Copy>(points: &[Point], list: &[T], with: impl Fn(Point, T) -> Point) -> Vec<Point> {
    points.iter().flat_map(|point| list.iter().map(|item| with(*point, *item))).collect()
}

/// The settings that differ in one thing, by one step; and those with fewer threads and a deeper queue, or the other way round,
/// which stand in for each other.
fn neighbours(space: &Space, point: &Point) -> Vec<Point> {
    let mut around = Vec::new();
    for threads in beside(&space.threads, &point.threads) {
        around.push(Point { threads, ..*point });
        let other_way = |ahead: &usize| (threads < point.threads) == (*ahead > point.prefetch);
        for prefetch in beside(&space.prefetch, &point.prefetch).into_iter().filter(other_way) {
            around.push(Point { threads, prefetch, ..*point });
        }
    }
    for prefetch in beside(&space.prefetch, &point.prefetch) {
        around.push(Point { prefetch, ..*point });
    }
    for batch_size in beside(&space.batch_sizes, &point.batch_size) {
        around.push(Point { batch_size, ..*point });
    }
    for buckets in beside(&space.buckets, &point.buckets) {
        around.push(Point { buckets, ..*point });
    }
    for half in beside(&space.half, &point.half) {
        around.push(Point { half, ..*point });
    }
    for cache in beside(&space.cache, &point.cache) {
        around.push(Point { cache, ..*point });
    }
    around
}

fn beside<T: Copy + PartialEq>(list: &[T], here: &T) -> Vec<T> {
    let Some(at) = list.iter().position(|item| item == here) else { return Vec::new() };
    let after = list.get(at + 1).copied();
    at.checked_sub(1).and_then(|before| list.get(before)).copied().into_iter().chain(after).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_dropped_on_the_way_does_not_come_back_when_the_machine_slows_down() {
        let row = |threads, rates: &[f64], long_runs| {
            let point =
                Point { threads, prefetch: 4, batch_size: 8, buckets: false, half: false, cache: false };
            let mut row = Row { long_runs, ..Row::new(point, None) };
            for rate in rates {
                row.note(*rate);
            }
            row
        };
        // Two threads were dropped when four had 100; then everything became slower.
        let rows = [row(4, &[100.0, 90.0, 92.0], 3), row(2, &[94.0], 1), row(1, &[120.0], 0)];
        assert_eq!(rows[chosen(&rows)].point.threads, 4);
    }
}
