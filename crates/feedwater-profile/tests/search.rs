//! Does the search find what a sweep of everything would? On simulated runs, where all settings can be tried.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use std::cell::Cell;

use common::{Case, simulate};
use feedwater_profile::{
    Diagnosis, Record,
    search::{Point, Space, search},
};

const BASE: Point =
    Point { threads: 4, prefetch: 4, batch_size: 8, buckets: false, half: false, cache: false };

fn space() -> Space {
    Space {
        threads: vec![1, 2, 4, 8],
        prefetch: vec![1, 2, 4, 8, 16],
        batch_sizes: vec![8],
        buckets: vec![false],
        half: vec![false],
        cache: vec![false],
    }
}

fn workload(decode: f64, slow: Option<(u64, f64, &'static str)>, compute: f64) -> Case {
    let stages = vec![("source", 0.02), ("read", 0.2), ("decode", decode), ("log_mel", 0.5), ("batch", 0.2)];
    Case { seed: 5, steps: 200, cores: 4.0, rows: 8, stages, compute, slow, ..Case::default() }
}

fn run(case: &Case, point: &Point) -> Record {
    simulate(&Case { threads: point.threads, prefetch: point.prefetch, ..case.clone() })
}

fn rate(record: &Record) -> f64 {
    Diagnosis::of(record).unwrap().samples_per_second
}

#[test]
fn it_is_within_a_twentieth_of_a_sweep_and_tries_a_part_of_it() {
    for (name, case) in [
        ("cheap", workload(0.4, None, 40.0)),
        ("expensive", workload(14.0, None, 40.0)),
        ("heavy tail", workload(2.0, Some((40, 180.0, "decode")), 25.0)),
        ("very expensive", workload(60.0, None, 40.0)),
    ] {
        let probes = Cell::new(0);
        let found = search(&space(), BASE, |point, _| -> Result<Record, ()> {
            probes.set(probes.get() + 1);
            Ok(run(&case, point))
        })
        .unwrap();
        let all: Vec<f64> = space().points(&BASE).iter().map(|point| rate(&run(&case, point))).collect();
        let best = all.iter().copied().fold(0.0, f64::max);
        let mine = rate(&run(&case, &found.best));
        assert!(mine >= 0.95 * best, "{name}: {mine} of {best} with {:?}", found.best);
        assert!(found.rows.len() <= 14, "{name}: {} of {} were tried", found.rows.len(), all.len());
        assert_eq!(found.settings, 20);
        if name == "cheap" {
            assert_eq!(found.best, Point { threads: 1, prefetch: 1, ..BASE }, "the plainest of equals");
        }
    }
}

/// A setting that alone had the machine to itself in its first long run was the only one with three of them, and chosen.
#[test]
fn one_lucky_run_does_not_decide() {
    let case = workload(14.0, None, 40.0);
    for luck in [0.9, 0.86, 0.6] {
        let long_runs = Cell::new(0);
        let found = search(&space(), BASE, |point, times| -> Result<Record, ()> {
            let mut record = run(&case, point);
            // A deep queue is out of the caches; but nobody else used the cores when it first ran for long.
            let is_deep = point.prefetch == 16;
            let is_lucky = is_deep && times > 1 && long_runs.replace(long_runs.get() + 1) == 0;
            let slower = if is_lucky { luck } else { 1.0 + 0.05 * f64::from(u8::from(is_deep)) };
            for step in &mut record.steps {
                step.wall_nanos = (step.wall_nanos as f64 * slower) as u64;
            }
            Ok(record)
        })
        .unwrap();
        assert!(long_runs.get() >= 2, "it was not among those that are close: {:?}", found.rows);
        assert_ne!(found.best.prefetch, 16, "{luck}: {:?}", found.rows);
    }
}
