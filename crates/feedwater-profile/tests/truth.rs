//! Is the diagnosis true? Runs with a known bottleneck are simulated, and the first finding must name it and its price.
//!
//! The price of a bottleneck is what the run waits with it less what it waits without. The simulation is of samples and
//! stages; the diagnosis sees only what a record has. (`feedwater-bench truth` asks the same of real runs.)

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use common::{Case, simulate};
use feedwater_profile::{
    Diagnosis, Record, Recorder,
    diagnosis::{Boundness, Confidence, Facts},
    record::Cached,
    what_if::{Prediction, Wish},
};

/// A loader that keeps up, before anything is put in.
fn healthy(seed: u64) -> Case {
    Case {
        seed,
        steps: 300,
        threads: 2,
        cores: 2.0,
        rows: 8,
        stages: vec![
            ("source", 0.02),
            ("read", 0.1),
            ("decode", 0.4),
            ("resample", 0.1),
            ("log_mel", 0.6),
            ("noise", 0.1),
            ("tokenize", 0.05),
            ("batch", 0.2),
        ],
        compute: 30.0,
        copy: 0.3,
        ..Case::default()
    }
}

fn with(mut case: Case, stage: &str, millis: f64) -> Case {
    for (name, cost) in &mut case.stages {
        if *name == stage {
            *cost += millis;
        }
    }
    case
}

/// The first finding and its price must be what was put in, within a tenth.
fn check(before: &Case, after: &Case, expected: &str) {
    let wait = |case: &Case| Diagnosis::of(&simulate(case)).unwrap().mean.wait_nanos;
    let injected = wait(after) - wait(before);
    let diagnosis = Diagnosis::of(&simulate(after)).unwrap();
    let first = &diagnosis.findings[0];
    assert_eq!(first.id, expected, "{after:?}\n{:?}", diagnosis.idle_nanos);
    let off = first.idle_nanos / injected - 1.0;
    assert!(off.abs() < 0.1, "{expected}: {} said, {injected} put in, seed {}", first.idle_nanos, after.seed);
    let sum: f64 = diagnosis.idle_nanos.iter().map(|(_, nanos)| nanos).sum();
    assert!((sum / diagnosis.mean.idle_nanos() - 1.0).abs() < 0.02, "the parts do not add up");
}

#[test]
fn a_slow_stage_is_named_and_priced() {
    let stages = [
        ("read", "disk"),
        ("source", "disk"),
        ("decode", "decode"),
        ("resample", "resample"),
        ("log_mel", "transform"),
        ("noise", "augment"),
        ("tokenize", "tokenize"),
        ("batch", "collate"),
    ];
    for seed in 1..=3 {
        for (number, (stage, expected)) in stages.iter().enumerate() {
            let millis = 8.0 + 2.0 * number as f64 + seed as f64;
            let before = healthy(seed * 100 + number as u64);
            check(&before, &with(before.clone(), stage, millis), expected);
            // One thread, and a loop that makes its batches itself.
            let one = Case { threads: 1, ..before.clone() };
            check(&one, &with(one.clone(), stage, millis), expected);
            let itself = Case { threads: 0, ..before };
            check(&itself, &with(itself.clone(), stage, millis), expected);
        }
    }
}

#[test]
fn one_slow_file_in_fifty_is_named_and_priced() {
    for seed in 1..=6 {
        let before = Case { prefetch: 2, threads: 1 + seed as usize % 2, ..healthy(seed) };
        let after = Case { slow: Some((50, 250.0, "decode")), ..before.clone() };
        check(&before, &after, "bursty");
        let diagnosis = Diagnosis::of(&simulate(&after)).unwrap();
        assert!(diagnosis.worst.unwrap().key.unwrap().starts_with("clip"));
    }
}

/// A stall of 200 ms in one of 33 steps was a verdict on all of them, with as much confidence as any.
#[test]
fn a_verdict_that_one_step_decides_is_no_sure_one() {
    let case = Case { steps: 40, threads: 1, ..healthy(4) };
    let mut record = simulate(&case);
    let step = &mut record.steps[26];
    (step.wait_nanos, step.wall_nanos) = (step.wait_nanos + 200_000_000, step.wall_nanos + 200_000_000);
    let input = step.input.as_mut().unwrap();
    *input.work_nanos.get_mut("batch").unwrap() += 230_000_000;
    let diagnosis = Diagnosis::of(&record).unwrap();
    assert_eq!(diagnosis.bound, Boundness::Input("batch".to_owned()), "{:?}", diagnosis.idle_nanos);
    assert_eq!(diagnosis.confidence, Confidence::Low);
    let first = &diagnosis.findings[0].evidence[0];
    assert!(first.starts_with("step 26 alone has ") && first.contains("of all waiting"), "{first}");
    // Where copies are what it waits for, and where it would wait without that step too, it decides nothing.
    for other in &mut record.steps {
        other.copy_nanos += 20_000_000;
        other.wall_nanos += 20_000_000;
    }
    let copies = Diagnosis::of(&record).unwrap();
    assert_eq!(copies.bound, Boundness::Copy);
    assert!(!copies.findings[0].evidence[0].starts_with("step "), "{:?}", copies.findings[0].evidence);
    let mut often = simulate(&with(case, "decode", 9.0));
    assert!(Diagnosis::of(&often).unwrap().confidence > Confidence::Low);
    let all: u64 = often.steps.iter().map(|step| step.wait_nanos).sum();
    (often.steps[26].wait_nanos, often.steps[26].wall_nanos) =
        (2 * all, often.steps[26].wall_nanos + 2 * all);
    let often = Diagnosis::of(&often).unwrap();
    assert!(!often.findings[0].evidence[0].starts_with("step "), "{:?}", often.findings[0].evidence);
}

#[test]
fn workers_without_a_core_are_told_from_slow_stages() {
    for (seed, share) in [(1, 0.5), (2, 0.6), (3, 0.75)] {
        // Work that takes long because others use the cores: every stage is stretched alike.
        let before = Case { compute: 7.0, optimizer: 0.0, ..healthy(seed) };
        let mut after = before.clone();
        for (_, cost) in &mut after.stages {
            *cost /= 1.0 - share;
        }
        let injected = Diagnosis::of(&simulate(&after)).unwrap().mean.wait_nanos
            - Diagnosis::of(&simulate(&before)).unwrap().mean.wait_nanos;
        let mut record = simulate(&after);
        for input in record.steps.iter_mut().filter_map(|step| step.input.as_mut()) {
            let work = input.total_work_nanos() as f64;
            input.queued_nanos = Some((work * share) as u64);
            input.cpu_nanos = Some((work * (1.0 - share)) as u64);
        }
        let diagnosis = Diagnosis::of(&record).unwrap();
        let first = &diagnosis.findings[0];
        assert_eq!(first.id, "cores");
        assert!((first.idle_nanos / injected - 1.0).abs() < 0.1, "{} {injected}", first.idle_nanos);
    }
}

#[test]
fn a_run_that_computes_is_never_called_short_of_input() {
    for seed in 1..=20 {
        let case =
            Case { compute: 25.0 + 10.0 * seed as f64, prefetch: 1 + seed as usize % 4, ..healthy(seed) };
        let diagnosis = Diagnosis::of(&simulate(&case)).unwrap();
        assert_eq!(diagnosis.bound, Boundness::Compute, "{case:?}");
        assert_eq!(diagnosis.findings[0].id, "compute-bound");
        assert!(diagnosis.findings[0].idle_nanos.abs() < 1e-9);
    }
}

#[test]
fn copies_and_the_unknown_are_not_blamed_on_the_input() {
    let copies = Diagnosis::of(&simulate(&Case { copy: 12.0, ..healthy(1) })).unwrap();
    assert_eq!(copies.bound, Boundness::Copy);
    assert_eq!(copies.findings[0].id, "copy");
    assert!((copies.findings[0].idle_nanos / 12e6 - 1.0).abs() < 0.1);
    let unknown = Diagnosis::of(&simulate(&Case { unknown: 30.0, ..healthy(1) })).unwrap();
    assert_eq!(unknown.bound, Boundness::Unknown);
}

#[test]
fn what_the_beginning_of_epochs_costs_is_named_and_priced() {
    let mut record = simulate(&healthy(1));
    let usual = Diagnosis::of(&record).unwrap();
    record.run.settings.loader = "torch".to_owned();
    for step in &mut record.steps {
        step.epoch = step.step / 50;
        if step.step > 0 && step.step % 50 == 0 {
            step.wait_nanos += 2_000_000_000;
            step.wall_nanos += 2_000_000_000;
        }
    }
    let late = Diagnosis::of(&record).unwrap();
    assert_eq!(late.headline, "input-bound: workers start anew each epoch");
    // Five of 300 steps, two seconds each.
    assert!((late.findings[0].idle_nanos / (10e9 / 300.0) - 1.0).abs() < 0.02, "{:?}", late.findings[0]);
    let lost: f64 = late.idle_nanos.iter().map(|(_, nanos)| nanos).sum();
    let before: f64 = usual.idle_nanos.iter().map(|(_, nanos)| nanos).sum();
    assert!(((lost - before) / (10e9 / 300.0) - 1.0).abs() < 0.1, "{lost} {before}");
    let busy = late.busy_percent.unwrap() / 100.0 * 1e9 / late.steps_per_second;
    assert!((busy / usual.mean.busy_nanos - 1.0).abs() < 0.02, "{busy}");
    let fix = &late.findings[0].changes[0];
    assert!(fix.setting.contains("persistent_workers=True"));
    assert!((fix.predicted.unwrap().steps_per_second / usual.steps_per_second - 1.0).abs() < 0.05);
    // Workers that stay are not the cause.
    record.run.settings.persistent_workers = Some(true);
    assert_eq!(Diagnosis::of(&record).unwrap().headline, "input-bound: each epoch begins with a wait");
}

#[test]
fn batches_that_are_ready_and_late_are_the_hand_over_s() {
    let mut record = simulate(&healthy(1));
    record.run.settings.loader = "torch".to_owned();
    for step in &mut record.steps {
        step.wait_nanos += 4_000_000;
        step.wall_nanos += 4_000_000;
        step.input.as_mut().unwrap().ready = Some(3);
    }
    let diagnosis = Diagnosis::of(&record).unwrap();
    assert_eq!(diagnosis.headline, "input-bound: batches come late from worker processes");
    assert!((diagnosis.findings[0].idle_nanos / 4e6 - 1.0).abs() < 0.1, "{:?}", diagnosis.findings[0]);
}

#[test]
fn what_is_predicted_for_other_settings_is_what_the_simulation_does() {
    for seed in 1..=4 {
        let base =
            Case { threads: 1, compute: 10.0, copy: 0.0, unknown: 0.0, ..with(healthy(seed), "decode", 6.0) };
        let record = {
            let mut record = simulate(&base);
            // The simulation's cores share nothing.
            record.run.host.crowding = Some(1.0);
            // What is left with a cache was tried, and took 0.7 ms a sample.
            let bytes = record.steps[0].input.as_ref().unwrap().bytes as f64;
            let nanos_per_mib = 0.7e6 * base.rows as f64 / (bytes / 1_048_576.0);
            record.run.host.cached = Some(tried(nanos_per_mib, nanos_per_mib));
            record
        };
        let facts = Facts::of(&record).unwrap();
        let rate = |case: &Case| Diagnosis::of(&simulate(case)).unwrap().samples_per_second;
        let close = |wish: &Wish, case: &Case| {
            let (predicted, real) = (facts.predict(wish).unwrap(), rate(case));
            assert!(
                (predicted.samples_per_second / real - 1.0).abs() < 0.05,
                "{wish:?}: {predicted:?} {real}"
            );
            let steps = real / case.rows as f64;
            assert!(
                predicted.low <= steps && steps <= predicted.high * 1.01,
                "{wish:?}: {predicted:?} {steps}"
            );
        };
        close(&Wish::Threads(2), &Case { threads: 2, ..base.clone() });
        close(&Wish::Prefetch(8), &Case { prefetch: 8, ..base.clone() });
        let larger = Case { rows: 32, compute: 40.0, steps: 100, ..base.clone() };
        let optimizer = Case { optimizer: base.optimizer * 4.0, ..larger };
        close(&Wish::BatchSize(32), &optimizer);
        let stages = vec![("source", 0.02), ("cache", 0.38), ("noise", 0.1), ("batch", 0.2)];
        close(&Wish::Cache, &Case { stages, ..base.clone() });
    }
}

/// What a batch took where samples were kept.
fn tried(first_nanos_per_mib: f64, nanos_per_mib: f64) -> Cached {
    Cached { first_nanos_per_mib, nanos_per_mib, handover_nanos: None }
}

/// What a cache would bring.
fn with_cache(record: &Record) -> Prediction {
    Facts::of(record).unwrap().predict(&Wish::Cache).unwrap()
}

/// A short run measured pages that were mapped for the first time, and a prediction knew only of those that had been.
#[test]
fn what_a_cache_brings_in_the_first_epoch_is_apart_from_what_it_brings_later() {
    let slow = Case { threads: 1, compute: 1.0, copy: 0.0, unknown: 0.0, ..with(healthy(3), "decode", 6.0) };
    let rate = |first: f64, later: f64, steps_per_epoch: u64| {
        let mut record = simulate(&Case { steps_per_epoch, ..slow.clone() });
        let batch_mib = record.steps[0].input.as_ref().unwrap().bytes as f64 / 1_048_576.0;
        let [first_nanos_per_mib, nanos_per_mib] =
            [first, later].map(|millis| millis * 1e6 * slow.rows as f64 / batch_mib);
        record.run.host.cached = Some(tried(first_nanos_per_mib, nanos_per_mib));
        with_cache(&record).samples_per_second
    };
    let close = |one: f64, two: f64| assert!((one / two - 1.0).abs() < 0.02, "{one} {two}");
    close(rate(2.0, 1.0, 1_000_000), rate(2.0, 2.0, 1_000_000));
    // A quarter of the steps.
    close(rate(2.0, 1.0, 75), 1.0 / (0.25 / rate(2.0, 2.0, 75) + 0.75 / rate(1.0, 1.0, 75)));
    assert!(rate(1.0, 1.0, 75) > 1.9 * rate(2.0, 2.0, 75));
}

/// Where documents are packed, one run of them suffices for several batches: what they take is none the less for it.
#[test]
fn what_a_cache_brings_counts_batches_that_nothing_was_done_for() {
    let slow = Case { threads: 1, compute: 1.0, copy: 0.0, unknown: 0.0, ..with(healthy(4), "decode", 6.0) };
    let mut even = simulate(&slow);
    even.run.host.cached = Some(tried(2e7, 2e7));
    let mut uneven = even.clone();
    for pair in uneven.steps.chunks_exact_mut(2) {
        let [one, two] = pair else { continue };
        let (one, two) = (one.input.as_mut().unwrap(), two.input.as_mut().unwrap());
        for (stage, nanos) in &mut two.work_nanos {
            *one.work_nanos.get_mut(stage).unwrap() += std::mem::take(nanos);
        }
        two.slowest.clear();
    }
    let rate = |record: &Record| with_cache(record).samples_per_second;
    assert!((rate(&uneven) / rate(&even) - 1.0).abs() < 0.05, "{} {}", rate(&uneven), rate(&even));
    // Where it was not tried, it is guessed of the same.
    (uneven.run.host.cached, even.run.host.cached) = (None, None);
    assert!((rate(&uneven) / rate(&even) - 1.0).abs() < 0.05, "{} {}", rate(&uneven), rate(&even));
    // What three batches in four say nothing of is no reason to call the others' samples slow.
    for step in uneven.steps.iter_mut().filter(|step| step.step % 4 == 2) {
        let input = step.input.as_mut().unwrap();
        input.work_nanos.values_mut().for_each(|nanos| *nanos = 0);
        input.slowest.clear();
    }
    assert!(Facts::of(&uneven).unwrap().split.slow.is_empty());
}

/// What it takes to plan a batch and to wake who waits for it does not become less where samples are found.
#[test]
fn what_a_cache_brings_leaves_what_is_no_sample_s_work() {
    let slow = Case { threads: 1, compute: 1.0, copy: 0.0, unknown: 0.0, ..with(healthy(5), "decode", 6.0) };
    let mut record = simulate(&slow);
    record.run.host.cached = Some(tried(2e7, 2e7));
    let nanos = |record: &Record| 1e9 / with_cache(record).steps_per_second;
    let before = nanos(&record);
    for step in &mut record.steps {
        step.wait_nanos += 3_000_000;
        step.wall_nanos += 3_000_000;
    }
    let more = nanos(&record) - before;
    assert!((more / 3e6 - 1.0).abs() < 0.1, "{more}");
}

/// Who waits for long sleeps deeper: what handing over takes where samples are made was taken for what it takes where they are
/// found, and the prediction was 15 % too low. (With more than one batch ahead, the next is made meanwhile.)
#[test]
fn what_a_cache_brings_has_the_handing_over_that_was_tried() {
    for threads in [1, 2] {
        let slow = Case { threads, prefetch: 1, compute: 1.0, copy: 0.0, unknown: 0.0, ..healthy(5) };
        let mut record = simulate(&with(slow, "decode", 6.0));
        for step in &mut record.steps {
            step.wait_nanos += 900_000;
            step.wall_nanos += 900_000;
        }
        let mut nanos = |handover_nanos| {
            record.run.host.cached = Some(Cached { handover_nanos, ..tried(2e7, 2e7) });
            1e9 / with_cache(&record).steps_per_second
        };
        let (unknown, tried) = (nanos(None), nanos(Some(200_000.0)));
        assert!(((unknown - tried) / 700_000.0 - 1.0).abs() < 0.1, "{threads}: {unknown} {tried}");
    }
}

/// A run from a cache over some samples says what one over all will take, whoever makes its batches and however far ahead. The first
/// batches of its many epochs are there before they are asked for, and say nothing of the others.
#[test]
fn what_a_run_from_a_cache_says_is_what_is_predicted_of_another() {
    for (threads, prefetch, steps_per_epoch) in [(1, 1, 7), (1, 1, 300), (2, 4, 15), (2, 1, 60)] {
        let base = Case { threads, prefetch, optimizer: 0.0, copy: 0.0, unknown: 0.0, ..healthy(8) };
        let kept = Case { stages: vec![("cache", 0.08), ("batch", 0.03)], compute: 0.0, ..base.clone() };
        let handed_over = |case: &Case| {
            let mut record = simulate(case);
            for step in &mut record.steps {
                let is_edge = step.step % case.steps_per_epoch == 0;
                let was = step.wait_nanos;
                // Whoever finds a batch ready is not woken.
                step.wait_nanos = if is_edge || was == 0 { 0 } else { was + 100_000 };
                step.wall_nanos = step.wall_nanos - was + step.wait_nanos;
            }
            record
        };
        let trial = handed_over(&Case { steps_per_epoch, steps: 90, ..kept.clone() });
        for compute in [0.0, 0.4, 30.0] {
            let mut record = simulate(&Case { compute, ..with(base.clone(), "decode", 6.0) });
            record.run.host.cached = Cached::of(&trial);
            let predicted = with_cache(&record).samples_per_second;
            let then = handed_over(&Case { compute, seed: 11, ..kept.clone() });
            let measured = Diagnosis::of(&then).unwrap().samples_per_second;
            assert!(
                (predicted / measured - 1.0).abs() < 0.05,
                "{threads} threads, {prefetch} ahead, {steps_per_epoch} an epoch, {compute} ms: {predicted} {measured}"
            );
        }
    }
}

/// What a cache did not have yet was called slow: a first epoch's samples, against those of all later ones that were found.
#[test]
fn samples_that_a_cache_did_not_have_are_not_slow() {
    let base = Case { threads: 1, steps_per_epoch: 40, ..healthy(9) };
    let epochs = |level: &str, slow| {
        let stages = match level {
            "decoded" => vec![("cache", 0.1), ("log_mel", 0.6), ("batch", 0.1)],
            _ => vec![("cache", 0.1), ("batch", 0.1)],
        };
        let found = simulate(&Case { stages, ..base.clone() });
        let mut record = simulate(&Case { slow, ..with(base.clone(), "decode", 6.0) });
        record.steps[40..].clone_from_slice(&found.steps[40..]);
        record.run.settings.cache = Some(level.to_owned());
        record
    };
    let slow = |record: &Record| Facts::of(record).unwrap().split.slow.len();
    for level in ["features", "decoded", "auto"] {
        assert_eq!(slow(&epochs(level, None)), 0, "{level}");
    }
    assert!(slow(&epochs("off", None)) > 100, "without a cache, they are what is unusual");
    assert!(
        slow(&epochs("features", Some((64, 90.0, "decode")))) >= 5,
        "one that takes fifteen times as long as others that are made"
    );
}

/// A trial's mean had moments in it in which the machine was not alone, and so had the run that it was compared with, but others.
#[test]
fn what_runs_from_a_cache_say_is_in_their_middle() {
    let runs = [(9e4, 8e4, 1e5), (8e4, 7e4, 9e4), (4e5, 7.5e4, 2e6)];
    let runs =
        runs.map(|(first, later, handover)| Cached { handover_nanos: Some(handover), ..tried(first, later) });
    let middle = Cached { handover_nanos: Some(1e5), ..tried(9e4, 7.5e4) };
    assert_eq!(Cached::middle(&runs), Some(middle));
    let between = Cached { handover_nanos: Some(9.5e4), ..tried(8.5e4, 7.5e4) };
    assert_eq!(Cached::middle(&runs[..2]), Some(between), "of two, what lies between");
    assert_eq!(Cached::middle(&[]), None);
}

#[test]
fn what_reading_a_cache_cannot_take_is_left_out_of_a_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let with = |cached: Cached| {
        let mut record = simulate(&healthy(6));
        record.run.host.cached = Some(cached);
        let mut recorder = Recorder::create(&path, &record.run).unwrap();
        record.steps.iter().for_each(|step| recorder.step(step).unwrap());
        recorder.end(std::time::Duration::ZERO).unwrap();
        Record::open(&path).unwrap().run.host.cached
    };
    let can_be = Cached { first_nanos_per_mib: 9e4, nanos_per_mib: 8e4, handover_nanos: Some(1e5) };
    assert_eq!(with(can_be), Some(can_be));
    assert_eq!(with(Cached { handover_nanos: Some(-1.0), ..can_be }), None);
    for (first, later) in [(0.0, 8e4), (9e4, 0.5), (-1.0, 8e4), (9e4, 1e30)] {
        assert_eq!(with(tried(first, later)), None);
    }
}

/// What was said to be no help and proposed as a fix, in one verdict: "a deeper queue" beside `prefetch 8`.
#[test]
fn what_is_proposed_is_not_said_to_be_no_help() {
    let words = [("more threads", "threads "), ("a deeper queue", "prefetch "), ("a larger batch", "batch ")];
    for seed in 0..8 {
        for (threads, cores, compute) in [(1, 2.0, 5.0), (2, 1.0, 5.0), (4, 2.0, 12.0), (2, 2.0, 3.0)] {
            let case = Case { threads, cores, compute, ..healthy(seed) };
            let diagnosis = Diagnosis::of(&simulate(&case)).unwrap();
            let fixes = || diagnosis.findings.iter().flat_map(|finding| &finding.changes);
            for no_help in diagnosis.findings.iter().flat_map(|finding| &finding.no_help) {
                let meant = words.iter().filter(|(said, _)| said == no_help);
                for (_, begins) in meant {
                    assert!(!fixes().any(|fix| fix.what.starts_with(begins)), "{no_help}: {case:?}");
                }
            }
        }
    }
}

/// A run without an accelerator was called better than one with it.
#[test]
fn runs_on_different_accelerators_are_not_compared() {
    let one = simulate(&healthy(1));
    let mut other = one.clone();
    other.run.settings.step_nanos = Some(1);
    let compared = feedwater_profile::compare::Comparison::of(&one, &other).unwrap();
    assert_eq!(compared.result, feedwater_profile::compare::Word::NotComparable);
    assert!(compared.notes[0].contains("different accelerators"), "{:?}", compared.notes);
}
