//! How much slower is a thread when all cores work?
//!
//! Two threads on two cores are not twice as fast where the cores share what they compute with (two threads of one core,
//! a clock that falls under load, a neighbour on the same machine). Asked before each run of a profile, it takes about
//! half a second, and every prediction for another number of threads stands on it.

use std::{
    hint::black_box,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

/// Rounds, in which the work is done alone and then together: a machine's pace drifts, so the two must lie close, and
/// there must be many.
const ROUNDS: usize = 41;
/// Passes of a round; one takes about a tenth of a millisecond.
const PASSES: usize = 30;
/// More than a core's own caches hold: what cores share is what they wait for.
const NUMBERS: usize = 1 << 18;
/// As many as the nearest cache holds.
const NEAR: usize = 4096;

/// The time of the same work on all of `threads` at once, over its time on one alone; never below 1.
pub fn crowding(threads: usize) -> f64 {
    if threads < 2 {
        return 1.0;
    }
    let mut alone = Vec::with_capacity(ROUNDS);
    let mut together = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        alone.push(passes().as_secs_f64());
        let barrier = Barrier::new(threads);
        let times = thread::scope(|scope| {
            let crowd: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        passes()
                    })
                })
                .collect();
            crowd.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<Duration>>()
        });
        together.push(times.iter().sum::<Duration>().as_secs_f64() / times.len().max(1) as f64);
    }
    (middle(together) / middle(alone).max(1e-9)).max(1.0)
}

/// The mean without the quarter at each end.
fn middle(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let kept = &times[times.len() / 4..times.len() - times.len() / 4];
    kept.iter().sum::<f64>() / kept.len() as f64
}

fn passes() -> Duration {
    let mut values = vec![0.5_f32; NUMBERS];
    (0..PASSES).map(|_| pass(&mut values)).sum()
}

/// Multiplies and adds, as features do: half of it on numbers that a core's own caches hold, half on those that they do
/// not.
fn pass(values: &mut [f32]) -> Duration {
    let began = Instant::now();
    rounds(values, 3);
    rounds(&mut values[..NEAR], 3 * NUMBERS / NEAR);
    began.elapsed()
}

fn rounds(values: &mut [f32], rounds: usize) {
    for round in 0..rounds {
        let gain = 1.0 + round as f32 * 1e-6;
        for value in &mut *values {
            *value = *value * gain + 1e-7;
        }
        black_box(&mut *values);
    }
}
