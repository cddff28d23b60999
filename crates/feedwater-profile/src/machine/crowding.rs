//! How much slower is a thread when all cores work?
//!
//! Two threads on two cores are not twice as fast where the cores share what they compute with (two threads of one core,
//! a clock that falls under load, a neighbour on the same machine). Asked once before a profile, it takes a few
//! hundredths of a second, and every prediction for another number of threads stands on it.

use std::{
    hint::black_box,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

/// Rounds, in which the work is done alone and then together: a machine's pace drifts, so the two must lie close.
const ROUNDS: usize = 9;
/// Passes of a round; one takes about half a millisecond.
const PASSES: usize = 4;
const NUMBERS: usize = 4096;

/// The time of the same work on all of `threads` at once, over its time on one alone; never below 1.
pub fn crowding(threads: usize) -> f64 {
    if threads < 2 {
        return 1.0;
    }
    let mut ratios: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let alone = passes();
            let barrier = Barrier::new(threads);
            let together = thread::scope(|scope| {
                let crowd: Vec<_> = (0..threads)
                    .map(|_| {
                        scope.spawn(|| {
                            barrier.wait();
                            passes()
                        })
                    })
                    .collect();
                let times: Vec<Duration> =
                    crowd.into_iter().filter_map(|thread| thread.join().ok()).collect();
                times.iter().sum::<Duration>() / times.len().max(1) as u32
            });
            together.as_secs_f64() / alone.as_secs_f64().max(1e-9)
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    ratios[ROUNDS / 2].max(1.0)
}

fn passes() -> Duration {
    (0..PASSES).map(|_| pass()).sum()
}

/// Multiplies and adds, as features do.
fn pass() -> Duration {
    let began = Instant::now();
    let mut values = [0.5_f32; NUMBERS];
    for round in 0..400_u16 {
        let gain = 1.0 + f32::from(round) * 1e-6;
        for value in &mut values {
            *value = *value * gain + 1e-7;
        }
        black_box(&mut values);
    }
    began.elapsed()
}
