//! How do all cores work while the results come out in order?
//!
//! In rounds: the threads claim the items of a round from a shared counter, then one thread takes the results
//! in order. A round holds at most 64 items a thread, so memory stays bounded however large the dataset is, a
//! panic travels up through the scope, and there is no queue to close. The price is that threads wait for the
//! last item of each round, about 1 % here.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use indicatif::ProgressBar;

const ITEMS_A_THREAD: usize = 64;

/// Makes items 0..count with `make` on `threads` threads and hands them to `take` in order. The first error
/// ends it. Each thread keeps a workspace of its own, so that large buffers are allocated once.
pub(crate) fn in_order<T: Send, W: Default + Send>(
    count: usize,
    threads: usize,
    progress: &ProgressBar,
    make: impl Fn(usize, &mut W) -> miette::Result<T> + Sync,
    mut take: impl FnMut(usize, T) -> miette::Result<()>,
) -> miette::Result<()> {
    let threads = threads.max(1);
    let mut workspaces: Vec<W> = (0..threads).map(|_| W::default()).collect();
    let mut start = 0;
    while start < count {
        let end = count.min(start + threads * ITEMS_A_THREAD);
        for (number, item) in round(start..end, &mut workspaces, progress, &make)? {
            take(number, item)?;
        }
        start = end;
    }
    Ok(())
}

fn round<T: Send, W: Send>(
    numbers: std::ops::Range<usize>,
    workspaces: &mut [W],
    progress: &ProgressBar,
    make: &(impl Fn(usize, &mut W) -> miette::Result<T> + Sync),
) -> miette::Result<Vec<(usize, T)>> {
    let next = AtomicUsize::new(numbers.start);
    let stop = AtomicBool::new(false);
    let work = |workspace: &mut W| {
        let mut done = Vec::with_capacity(ITEMS_A_THREAD);
        while !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end {
                break;
            }
            match make(number, workspace) {
                Ok(item) => done.push((number, item)),
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
            progress.inc(1);
        }
        Ok(done)
    };
    let work = &work;
    let mut all = Vec::with_capacity(numbers.len());
    std::thread::scope(|scope| {
        let workers: Vec<_> = workspaces.iter_mut().map(|w| scope.spawn(move || work(w))).collect();
        for worker in workers {
            match worker.join() {
                Ok(done) => all.extend(done?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok::<_, miette::Report>(())
    })?;
    all.sort_unstable_by_key(|(number, _)| *number);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_once() {
        for threads in [1, 3] {
            let mut seen = Vec::new();
            let make = |number, calls: &mut usize| {
                *calls += 1;
                Ok(number * 2)
            };
            in_order(1000, threads, &ProgressBar::hidden(), make, |number, item| {
                assert_eq!(item, number * 2);
                seen.push(number);
                Ok(())
            })
            .unwrap();
            assert_eq!(seen, (0..1000).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_first_error_ends_the_work() {
        let calls = AtomicUsize::new(0);
        let make = |number, (): &mut ()| {
            calls.fetch_add(1, Ordering::Relaxed);
            if number == 5 { Err(miette::miette!("disk full")) } else { Ok(()) }
        };
        let outcome = in_order(100_000, 2, &ProgressBar::hidden(), make, |_, ()| Ok(()));
        assert_eq!(outcome.unwrap_err().to_string(), "disk full");
        assert!(calls.load(Ordering::Relaxed) <= 2 * ITEMS_A_THREAD);
    }
}
