//! What would have happened?
//!
//! The run is played again with the costs that were recorded: workers take the samples of the earliest batch that has any
//! left, at most so many batches are under way or ready, the consumer takes them in order and is busy with each for as
//! long as it was. Played as it was, this must give the waits that were measured, and how far it does not is said. Played
//! with a stage that costs nothing, or with more threads, it says what that would have brought.
//!
//! Playing it is a few microseconds a step, which is why every price in a diagnosis is a played difference and not a
//! formula: overlap, bursts and a queue that runs empty come out as they would.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::record::SLOWEST;

/// What a batch costs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Samples.
    pub rows: u64,
    /// The epoch that they are of.
    pub epoch: u64,
    /// Time of workers, all together.
    pub work_nanos: f64,
    /// Of it, the samples that took the longest, the longest first; the others are taken to be alike.
    pub slowest_nanos: [f64; SLOWEST],
    /// How long the consumer was at it before it asked for the next.
    pub busy_nanos: f64,
    /// What was written for it, padding and all; 0 where that is not known.
    pub bytes: f64,
    /// The same for a row, as it was padded.
    pub row_bytes: f64,
    /// Whether it counts in the means.
    pub counts: bool,
}

/// Who makes the batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crew {
    /// Threads; 0: the consumer itself, when it asks.
    pub threads: usize,
    /// Batches that are ready or under way, at most.
    pub prefetch: usize,
    /// Whether a batch is the work of one thread.
    pub batch_at_a_time: bool,
    /// What it takes to hand a batch to a consumer that waits for it. Where the queue is one deep, the next batch is
    /// begun only then.
    pub handover_nanos: u64,
}

/// What came of it, in means over the steps that count.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Played {
    /// Waiting for input.
    pub wait_nanos: f64,
    /// From batch to batch.
    pub wall_nanos: f64,
}

/// A batch of more samples than this is played as so many pieces: finer ones would change nothing but the time it takes.
const MOST_PIECES: u64 = 256;

/// Plays a run.
pub fn play(costs: &[Cost], crew: Crew) -> Played {
    let mut sum = Played::default();
    let mut counted = 0_u32;
    let mut workers: BinaryHeap<Reverse<u64>> = (0..crew.threads).map(|_| Reverse(0)).collect();
    let mut taken: Vec<f64> = Vec::with_capacity(costs.len());
    let mut asked = 0.0_f64;
    for (number, cost) in costs.iter().enumerate() {
        let ready = if crew.threads == 0 {
            asked + cost.work_nanos
        } else {
            // There is room for a batch when the one that was ahead of it by the depth of the queue is taken.
            let room = number.checked_sub(crew.prefetch.max(1)).map_or(0.0, |before| taken[before]);
            make(cost, room, crew.batch_at_a_time, &mut workers)
        };
        let wait = if ready > asked { ready - asked + crew.handover_nanos as f64 } else { 0.0 };
        if cost.counts {
            sum.wait_nanos += wait;
            sum.wall_nanos += wait + cost.busy_nanos;
            counted += 1;
        }
        taken.push(asked + wait);
        asked += wait + cost.busy_nanos;
    }
    let counted = f64::from(counted.max(1));
    Played { wait_nanos: sum.wait_nanos / counted, wall_nanos: sum.wall_nanos / counted }
}

/// When a batch is ready: its samples go to whoever is free first, the longest before the others.
fn make(cost: &Cost, room: f64, whole: bool, workers: &mut BinaryHeap<Reverse<u64>>) -> f64 {
    let rows = if whole { 1 } else { cost.rows.clamp(1, MOST_PIECES) as usize };
    let named = rows.saturating_sub(1).min(SLOWEST);
    let slowest = &cost.slowest_nanos[..named];
    let other = (cost.work_nanos - slowest.iter().sum::<f64>()).max(0.0) / (rows - named) as f64;
    let mut ready = room;
    for row in 0..rows {
        // There is at least one worker, and each that is taken out is put back.
        let Some(Reverse(free)) = workers.pop() else { break };
        let done = room.max(free as f64) + slowest.get(row).copied().unwrap_or(other);
        workers.push(Reverse(done as u64));
        ready = ready.max(done);
    }
    ready
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn even(rows: u64, work: f64, busy: f64) -> Vec<Cost> {
        vec![
            Cost {
                rows,
                epoch: 0,
                work_nanos: work,
                slowest_nanos: [work / rows as f64; SLOWEST],
                busy_nanos: busy,
                counts: true,
                ..Cost::default()
            };
            200
        ]
    }

    fn crew(threads: usize, prefetch: usize) -> Crew {
        Crew { threads, prefetch, batch_at_a_time: false, handover_nanos: 0 }
    }

    #[test]
    fn the_slower_side_sets_the_pace() {
        // 80 ms of work on two threads: 40 ms a batch.
        let slow_input = play(&even(8, 80e6, 20e6), crew(2, 3));
        assert!((slow_input.wall_nanos / 40e6 - 1.0).abs() < 0.01, "{slow_input:?}");
        let slow_consumer = play(&even(8, 80e6, 50e6), crew(2, 3));
        assert!((slow_consumer.wall_nanos / 50e6 - 1.0).abs() < 0.01, "{slow_consumer:?}");
    }

    #[test]
    fn without_threads_everything_is_waited_for() {
        let played = play(&even(8, 80e6, 20e6), crew(0, 3));
        assert_eq!((played.wait_nanos, played.wall_nanos), (80e6, 100e6));
    }

    #[test]
    fn a_batch_that_one_thread_makes_takes_as_long_as_its_work_yet_the_pace_is_the_same() {
        let costs = even(8, 80e6, 20e6);
        let alone = play(&costs, Crew { batch_at_a_time: true, ..crew(2, 4) });
        assert!((alone.wall_nanos / 40e6 - 1.0).abs() < 0.02, "{alone:?}");
        // With a queue of one there is nothing beside it to work on.
        let one = play(&costs, Crew { batch_at_a_time: true, ..crew(2, 1) });
        assert!(one.wall_nanos > 75e6, "{one:?}");
    }

    #[test]
    fn a_deeper_queue_hides_a_slow_sample() {
        let mut costs = even(8, 8e6, 20e6);
        for cost in costs.iter_mut().skip(25).step_by(50) {
            (cost.work_nanos, cost.slowest_nanos) = (107e6, [100e6, 1e6, 1e6, 1e6]);
        }
        let (shallow, deep) = (play(&costs, crew(2, 1)), play(&costs, crew(2, 8)));
        assert!(shallow.wait_nanos > 1.5e6 && deep.wait_nanos < 0.2e6, "{shallow:?} {deep:?}");
    }

    proptest! {
        #[test]
        fn more_threads_never_wait_longer_and_nothing_is_faster_than_the_consumer(
            works in prop::collection::vec((1_u64..20, 1e5..1e8_f64, 1e5..1e8_f64), 30..60), threads in 1_usize..8,
        ) {
            let costs: Vec<Cost> = works
                .into_iter()
                .map(|(rows, work_nanos, busy_nanos)| Cost {
                    rows, epoch: 0, work_nanos, slowest_nanos: [work_nanos / rows as f64; SLOWEST], busy_nanos, counts: true,
                    ..Cost::default()
                })
                .collect();
            let busy = costs.iter().map(|cost| cost.busy_nanos).sum::<f64>() / costs.len() as f64;
            let few = play(&costs, crew(threads, 4));
            let more = play(&costs, crew(threads * 2, 4));
            prop_assert!(few.wall_nanos >= busy * 0.999_999);
            // List scheduling may be a little worse with more hands; never by much.
            prop_assert!(more.wall_nanos <= few.wall_nanos * 1.1);
            prop_assert!(play(&costs, crew(0, 4)).wall_nanos >= few.wall_nanos * 0.999_999);
        }
    }
}
