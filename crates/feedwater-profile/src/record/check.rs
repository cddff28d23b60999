//! Could this have been measured?
//!
//! Figures are played, summed and multiplied later on. What no run can have had is refused here, so that nothing further
//! along has to wonder: a million threads would be started, a batch of 10^18 samples would be played sample by sample.

use super::{Cached, Input, Record, Run, Step};

/// A week, in nanoseconds, for work on one batch by all who work on it.
pub(super) const MOST_WORK: u64 = 604_800_000_000_000;
/// 30 years, in nanoseconds, for everything together: sums stay far from where they would wrap.
const MOST_TIME: f64 = 1e18;
/// Samples of a batch.
const MOST_ROWS: u64 = 10_000_000;
/// Bytes of a batch.
const MOST_BYTES: u64 = 1 << 40;
/// Threads, and batches that are made ahead.
const MOST_THREADS: usize = 65_536;
const MOST_AHEAD: usize = 1_000_000;
/// Where whole numbers end that a figure can hold exactly.
const MOST_COUNT: u64 = 1 << 53;

/// What is wrong with a step.
pub(super) fn step(step: &Step) -> Result<(), String> {
    if step.step >= MOST_COUNT || step.epoch >= MOST_COUNT {
        return Err("has a number that no step can have".to_owned());
    }
    if step.rows > MOST_ROWS {
        return Err(format!("has a step of {} samples", step.rows));
    }
    step.input.as_ref().map_or(Ok(()), input)
}

fn input(input: &Input) -> Result<(), String> {
    let blamed =
        input.waited_for.iter().chain(&input.slowest).flat_map(|blame| [blame.nanos, blame.queued_nanos]);
    let other = [input.cpu_nanos, input.queued_nanos].into_iter().flatten();
    let work = input.work_nanos.values().copied();
    // Each by itself before the sum, which could wrap otherwise.
    if work.clone().chain(blamed).chain(other).any(|nanos| nanos > MOST_WORK)
        || work.map(|nanos| nanos as f64).sum::<f64>() > MOST_WORK as f64
    {
        return Err("has more than a week of work on a batch".to_owned());
    }
    if input.bytes > MOST_BYTES || input.read_bytes > MOST_BYTES {
        return Err("has a batch of more than a tebibyte".to_owned());
    }
    if input.padding_bytes > input.bytes || input.padding_to_longest_bytes > input.bytes {
        return Err("has more padding than bytes".to_owned());
    }
    if input.threads.is_some_and(|threads| threads > MOST_THREADS)
        || input.prefetch.is_some_and(|batches| batches > MOST_AHEAD)
    {
        return Err("has a setting that cannot be".to_owned());
    }
    if input.gil_wait_share.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
        return Err("has a share outside 0 … 1".to_owned());
    }
    Ok(())
}

impl Cached {
    /// Whether these can be what reading a cache takes.
    pub(crate) fn can_be(&self) -> bool {
        [self.first_nanos_per_mib, self.nanos_per_mib].iter().all(|nanos| (1.0..=1e12).contains(nanos))
            && self.handover_nanos.is_none_or(|nanos| (0.0..=1e12).contains(&nanos))
    }
}

/// Takes out of a run what cannot be, and says so.
pub(super) fn run(run: &mut Run) -> Vec<String> {
    let mut wrong = Vec::new();
    let (host, settings) = (&mut run.host, &mut run.settings);
    check(&mut host.cores, "cores", |cores| (0.001..=65_536.0).contains(cores), &mut wrong);
    check(&mut host.usable_cores, "usable_cores", |cores| (0.001..=65_536.0).contains(cores), &mut wrong);
    check(&mut host.quota_cores, "quota_cores", |cores| (0.001..=65_536.0).contains(cores), &mut wrong);
    check(&mut host.crowding, "crowding", |by| (0.5..=100.0).contains(by), &mut wrong);
    if host.cached.take_if(|cached| !cached.can_be()).is_some() {
        wrong.push("`cached` cannot be what reading a cache takes; left out".to_owned());
    }
    let rises = host.fill.windows(2).all(|pair| pair[0].bytes < pair[1].bytes);
    if !rises || !host.fill.iter().all(|fill| (1.0..=1e9).contains(&fill.nanos_per_mib)) {
        host.fill.clear();
        wrong.push("`fill` cannot be what writing memory takes; left out".to_owned());
    }
    check(&mut settings.threads, "threads", |threads| *threads <= MOST_THREADS, &mut wrong);
    check(&mut settings.prefetch, "prefetch", |batches| *batches <= MOST_AHEAD, &mut wrong);
    check(&mut settings.batch_size, "batch_size", |rows| *rows <= MOST_ROWS, &mut wrong);
    check(&mut settings.longest_seconds, "longest_seconds", |s| (0.0..=1e9).contains(s), &mut wrong);
    check(&mut settings.over_30s_share, "over_30s_share", |share| (0.0..=1.0).contains(share), &mut wrong);
    check(&mut run.planned_steps, "planned_steps", |steps| *steps < MOST_COUNT, &mut wrong);
    wrong
}

fn check<T: std::fmt::Display>(
    value: &mut Option<T>,
    name: &str,
    can_be: impl Fn(&T) -> bool,
    wrong: &mut Vec<String>,
) {
    if let Some(found) = value.take_if(|found| !can_be(found)) {
        wrong.push(format!("line 1 has `{name}` {found:.40}, which cannot be"));
    }
}

/// What is wrong with all steps together.
pub(super) fn whole(record: &Record) -> Result<(), String> {
    let wall = record.steps.iter().map(|step| step.wall_nanos as f64).sum::<f64>();
    let work = record.steps.iter().filter_map(|step| step.input.as_ref());
    let work = work.map(|input| input.total_work_nanos() as f64).sum::<f64>();
    if wall.max(work) > MOST_TIME { Err("its steps add up to more than 30 years".to_owned()) } else { Ok(()) }
}
