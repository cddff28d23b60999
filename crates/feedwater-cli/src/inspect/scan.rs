//! How are all samples looked at by all cores?
//!
//! Threads claim runs of samples from a shared counter and add up what they see by themselves, so nothing is handed
//! over before the end.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use feedwater::source::Source;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::look::Looker;
use super::tally::Tally;

/// How to look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Look at no more samples than this.
    pub(crate) limit: Option<u64>,
    pub(crate) threads: usize,
    /// Decode what is behind the headers.
    pub(crate) decode: bool,
}

impl Plan {
    fn count(&self, total: u64) -> u64 {
        self.limit.unwrap_or(total).min(total)
    }
}

/// Looks at the samples.
pub(crate) fn scan(source: &dyn Source, plan: Plan) -> Tally {
    let (total, count) = (source.len(), plan.count(source.len()));
    let threads = plan.threads.clamp(1, 1024) as u64;
    // Short enough that all threads have something to do up to the end.
    let run = (count / (threads * 8)).clamp(1, 256);
    let next = AtomicU64::new(0);
    let progress = Progress::new(count);
    let work = || {
        let mut looker = Looker::new(source, plan.decode);
        let mut tally = Tally::default();
        loop {
            let from = next.fetch_add(run, Ordering::Relaxed);
            if from >= count {
                return tally;
            }
            let to = count.min(from + run);
            for index in (from..to).map(|number| spread(number, count, total)) {
                match looker.look(index) {
                    Ok(look) => tally.add(index, &look),
                    Err(fault) => tally.add_fault(index, source.key(index), fault),
                }
            }
            progress.add(to - from);
        }
    };
    let mut sum = Tally::default();
    sum.samples = total;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.min(count)).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            match worker.join() {
                Ok(tally) => sum.merge(tally),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    progress.bar.finish_and_clear();
    sum.find_duplicates(source);
    sum
}

/// The `number`-th of `count` samples that lie evenly among `total`.
fn spread(number: u64, count: u64, total: u64) -> u64 {
    (u128::from(number) * u128::from(total) / u128::from(count)) as u64
}

/// Drawn only where somebody can see it, without colour, and not for what is done at once.
struct Progress {
    bar: ProgressBar,
    begin: Instant,
    visible: bool,
}

impl Progress {
    fn new(count: u64) -> Self {
        let style = ProgressStyle::with_template("{prefix} [{bar:40}] {pos}/{len}, {eta} left")
            .map_or_else(|_| ProgressStyle::default_bar(), |style| style.progress_chars("=> "));
        let bar = ProgressBar::with_draw_target(Some(count), ProgressDrawTarget::hidden());
        let bar = bar.with_style(style).with_prefix("inspect");
        Self { bar, begin: Instant::now(), visible: std::io::stderr().is_terminal() }
    }

    fn add(&self, count: u64) {
        self.bar.inc(count);
        if self.visible && self.bar.is_hidden() && self.begin.elapsed() > Duration::from_millis(500) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_of_the_samples_is_even_and_all_is_all() {
        let all = |count, total| (0..count).map(|number| spread(number, count, total)).collect::<Vec<_>>();
        assert_eq!(all(4, 4), [0, 1, 2, 3]);
        assert_eq!(all(4, 10), [0, 2, 5, 7]);
        assert_eq!(spread(999, 1000, u64::MAX), (u128::from(u64::MAX) * 999 / 1000) as u64);
    }
}
