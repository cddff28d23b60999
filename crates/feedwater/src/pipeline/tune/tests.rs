//! Machines on paper, from bad settings to good ones.

use std::collections::VecDeque;

use xxhash_rust::xxh3::xxh3_64;

use super::*;

const LIMITS: Limits = Limits { threads: 32, cores: 4.0, depth: 32, tune_threads: true, tune_depth: true };
const WORST: Setting = Setting { threads: 1, depth: 1 };

/// A machine on paper: what a step takes with a setting, in milliseconds.
fn played(tuner: &mut Tuner, steps: u64, mut machine: impl FnMut(u64, Setting) -> Seen) -> Vec<f64> {
    let mut setting = tuner.setting;
    let mut walls = Vec::new();
    for step in 0..steps {
        let seen = machine(step, setting);
        walls.push(seen.wait + seen.own);
        setting = tuner.step(seen).unwrap_or(setting);
    }
    walls
}

/// Threads that make batches, each one batch, and a queue of them.
#[derive(Default)]
struct Machine {
    /// When the batches that are made or being made are ready, in order; and when each thread is free.
    ready: VecDeque<f64>,
    threads: Vec<f64>,
    now: f64,
}

impl Machine {
    /// The next step of a model that takes `own`; `batches` are what the next ones take to make.
    fn step(&mut self, batches: &[f64], own: f64, setting: Setting) -> Seen {
        self.fill(batches, setting);
        let ready = self.ready.pop_front().unwrap_or(self.now);
        let wait = (ready - self.now).max(0.0);
        self.now += wait;
        self.fill(&batches[1..], setting);
        self.now += own;
        millis(wait, own, batches[0], 1.0)
    }

    fn fill(&mut self, batches: &[f64], setting: Setting) {
        self.threads.resize(setting.threads, self.now);
        while self.ready.len() < setting.depth {
            let Some(thread) = self.threads.iter_mut().min_by(|one, other| one.total_cmp(other)) else {
                return;
            };
            *thread = thread.max(self.now) + batches[self.ready.len()];
            self.ready.push_back(*thread);
        }
    }
}

fn millis(wait: f64, own: f64, work: f64, computed: f64) -> Seen {
    Seen {
        wait: wait.max(0.0) * 1e6,
        own: own * 1e6,
        work: work * 1e6,
        computed: Some(work * computed * 1e6),
    }
}

#[test]
fn dear_batches_get_the_threads_they_need_at_once_and_the_log_says_so() {
    let mut tuner = Tuner::new(LIMITS, WORST);
    // 150 ms of work for a step of 50 ms.
    let walls =
        played(&mut tuner, 60, |_, setting| millis(150.0 / setting.threads as f64 - 50.0, 50.0, 150.0, 1.0));
    assert_eq!(tuner.setting, Setting { threads: 4, depth: 1 });
    assert!(walls[10..].iter().all(|wall| (wall - 50e6).abs() < 1.0), "{walls:?}");
    insta::assert_snapshot!(tuner.decisions[0], @"step 6: threads 1 → 4, because a step waits 100.0 ms of 150.0 ms for a batch that takes 150.0 ms to make. Steps took 150.0 ms, expected 50.0 ms, were 50.0 ms: kept");
    assert_eq!(tuner.decisions.len(), 1, "and is content");
}

#[test]
fn no_more_threads_compute_than_there_are_cores_and_more_wait_for_disks() {
    let mut tuner = Tuner::new(LIMITS, WORST);
    played(&mut tuner, 200, |_, setting| {
        let threads = setting.threads.min(4) as f64;
        millis(900.0 / threads - 50.0, 50.0, 900.0 * setting.threads as f64 / threads, 1.0)
    });
    assert_eq!(tuner.setting.threads, 4);
    let mut tuner = Tuner::new(LIMITS, WORST);
    played(&mut tuner, 60, |_, setting| millis(900.0 / setting.threads as f64 - 50.0, 50.0, 900.0, 0.05));
    assert!((18..=32).contains(&tuner.setting.threads), "{:?}", tuner.setting);
    let mut ceiling = Tuner::new(Limits { cores: 3.2, ..LIMITS }, WORST);
    played(&mut ceiling, 60, |_, setting| millis(900.0 / setting.threads as f64 - 50.0, 50.0, 900.0, 1.0));
    assert_eq!(ceiling.setting.threads, 3, "80 % of four cores");
    let at_the_limit: Vec<_> = ceiling.decisions.iter().filter(|it| it.from == it.to).collect();
    assert_eq!(at_the_limit.len(), 1, "that is said once: {:?}", ceiling.decisions);
    insta::assert_snapshot!(at_the_limit[0], @"step 12: threads stay at 3: a step waits 250.0 ms of 300.0 ms and they work 100 % of the time: more would help, and are not allowed (cores, --cpu-ceiling)");
}

/// The first steps of a model take longer: it was said that making more batches ahead had made them shorter.
#[test]
fn what_the_model_gains_by_itself_is_credited_to_nothing() {
    let mut tuner = Tuner::new(Limits { tune_threads: false, ..LIMITS }, Setting { threads: 2, depth: 1 });
    played(&mut tuner, 40, |step, _| millis(20.0, if step < 6 { 110.0 } else { 45.0 }, 40.0, 1.0));
    let first = &tuner.decisions[0];
    insta::assert_snapshot!(first, @"step 6: prefetch 1 → 4, because a step waits 20.0 ms of 130.0 ms and threads work 15 % of the time: some batches come late, others wait. Steps took 130.0 ms, expected 110.0 ms, were 65.0 ms (the model's own part became 65.0 ms shorter by itself): taken back");
}

#[test]
fn batches_that_come_late_now_and_then_are_made_earlier() {
    let mut tuner = Tuner::new(LIMITS, Setting { threads: 2, depth: 1 });
    // Every eighth is slow, and a queue of four hides it.
    let walls = played(&mut tuner, 80, |step, setting| {
        let late = if step % 4 == 0 && setting.depth < 4 { 40.0 } else { 0.0 };
        millis(late, 50.0, 60.0, 1.0)
    });
    assert_eq!(tuner.setting.threads, 2);
    assert!((4..=8).contains(&tuner.setting.depth), "{:?}", tuner.setting);
    assert!(walls[60..].iter().all(|wall| (wall - 50e6).abs() < 1.0));
}

/// The mean of a few with a dear one among them was told as what most take, and steps were expected to become longer.
#[test]
fn what_most_batches_take_is_not_what_the_dear_one_makes_of_it() {
    let mut tuner = Tuner::new(Limits { tune_threads: false, ..LIMITS }, Setting { threads: 2, depth: 4 });
    played(&mut tuner, 8, |step, _| {
        if step == 4 { millis(60.0, 25.0, 260.0, 1.0) } else { millis(20.0, 25.0, 64.0, 1.0) }
    });
    insta::assert_snapshot!(tuner.decisions[0], @"step 6: prefetch 4 → 21, because one batch takes 260.0 ms, most take 64.0 ms. Steps took 55.0 ms, expected 55.0 ms; not known yet");
}

#[test]
fn what_does_not_help_is_taken_back_and_tried_ever_more_rarely() {
    let mut tuner = Tuner::new(LIMITS, WORST);
    // A disk that gives what it gives.
    played(&mut tuner, 3_000, |_, setting| {
        let threads = setting.threads as f64;
        millis(70.0, 50.0, 100.0 * threads, 0.1 / threads)
    });
    assert_eq!(tuner.setting, WORST);
    assert!(tuner.decisions.iter().all(|decision| decision.kept != Some(true)));
    let late = tuner.decisions.iter().filter(|decision| decision.step > 1_500).count();
    assert!(late <= 4, "{late} of {}", tuner.decisions.len());
}

#[test]
fn threads_that_slow_the_model_down_go() {
    let mut tuner = Tuner::new(LIMITS, Setting { threads: 4, depth: 3 });
    // From step 100 on others want the cores too: each thread beyond the second costs the model a tenth.
    played(&mut tuner, 400, |step, setting| {
        let crowded = if step > 100 { 0.1 * setting.threads.saturating_sub(2) as f64 } else { 0.0 };
        millis(0.0, 50.0 * (1.0 + crowded), 60.0, 1.0)
    });
    assert_eq!(tuner.setting, Setting { threads: 2, depth: 3 });
    let last = tuner.decisions.last().map(ToString::to_string).unwrap_or_default();
    assert!(last.contains("threads 4 → 2, because the model's own part of a step has gone from"), "{last}");
    assert!(last.ends_with("kept"), "{last}");
}

/// One batch in six takes long: a few steps without one look as if nothing was needed, a few with one as if nothing
/// helped.
#[test]
fn a_heavy_tail_gets_both_threads_and_depth_within_thirty_steps_wherever_it_begins() {
    let batches: Vec<f64> = (0..600_u64)
        .map(|at| if xxh3_64(&at.to_le_bytes()).is_multiple_of(6) { 140.0 } else { 18.0 })
        .collect();
    let mut late = Vec::new();
    // What has not happened yet cannot be known.
    let shows = |begin: &usize| batches[*begin..begin + 16].contains(&140.0);
    let begins: Vec<usize> = (0..100).filter(shows).collect();
    for begin in begins.iter().copied() {
        let mut tuner = Tuner::new(Limits { cores: 2.0, ..LIMITS }, WORST);
        let mut machine = Machine::default();
        let walls = played(&mut tuner, 150, |step, setting| {
            machine.step(&batches[begin + step as usize..], 25.0, setting)
        });
        let found: f64 = walls[30..].iter().sum();
        let mut machine = Machine::default();
        let best: f64 = (0..150)
            .map(|step| machine.step(&batches[begin + step..], 25.0, Setting { threads: 2, depth: 12 }))
            .skip(30)
            .map(|seen| seen.wait + seen.own)
            .sum();
        if best / found < 0.95 {
            late.push((
                begin,
                best / found,
                tuner.decisions.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ));
        }
    }
    assert!(late.len() * 20 <= begins.len(), "{} of {}: {late:#?}", late.len(), begins.len());
}

/// Tried together with a thread that crowds the model, depth was taken back with it each time.
#[test]
fn depth_that_helps_is_kept_where_a_thread_tried_with_it_does_harm() {
    let mut tuner = Tuner::new(LIMITS, WORST);
    let walls = played(&mut tuner, 300, |step, setting| {
        let work = if step % 4 == 0 { 160.0 } else { 60.0 };
        let own = if setting.threads > 1 { 130.0 } else { 100.0 };
        let wait = if setting.depth > 1 { 0.0 } else { f64::max(work - 60.0, 0.0) / 2.0 };
        millis(wait, own, work, 1.0)
    });
    assert!(tuner.setting.threads == 1 && tuner.setting.depth > 1, "{:?}", tuner.setting);
    assert!(walls[200..].iter().all(|wall| *wall < 101e6));
}

/// It was kept: the crowd made batches dearer, and dearer batches were to have been waited for longer.
#[test]
fn a_thread_that_takes_the_models_core_is_taken_back() {
    let mut tuner = Tuner::new(LIMITS, WORST);
    played(&mut tuner, 60, |_, setting| {
        if setting.threads == 1 { millis(10.0, 100.0, 90.0, 1.0) } else { millis(2.0, 115.0, 140.0, 1.0) }
    });
    assert!(tuner.decisions.len() > 1 && tuner.decisions.iter().all(|decision| decision.kept != Some(true)));
}

/// All that the model had become slower by was expected back from a loader that hardly computes.
#[test]
fn no_more_is_expected_of_fewer_threads_than_they_compute() {
    let mut tuner = Tuner::new(LIMITS, Setting { threads: 2, depth: 3 });
    played(&mut tuner, 100, |step, _| millis(0.0, if step > 50 { 131.0 } else { 96.0 }, 15.0, 1.0));
    let said = tuner.decisions[0].to_string();
    assert!(said.contains("threads 2 → 1") && said.contains("expected 116.0 ms"), "{said}");
}

#[test]
fn a_model_that_became_slower_by_itself_keeps_its_threads() {
    let mut tuner = Tuner::new(LIMITS, Setting { threads: 4, depth: 3 });
    played(&mut tuner, 400, |step, _| millis(0.0, if step > 100 { 80.0 } else { 50.0 }, 60.0, 1.0));
    assert_eq!(tuner.setting.threads, 4);
}

#[test]
fn somebody_who_takes_the_cores_half_way_makes_it_neither_collapse_nor_swing() {
    let mut tuner = Tuner::new(LIMITS, WORST);
    let mut changes = 0;
    let mut last = WORST;
    played(&mut tuner, 600, |step, setting| {
        changes += u64::from(step > 60 && setting != last);
        last = setting;
        let slowed = if step > 300 { 2.0 } else { 1.0 };
        millis(180.0 * slowed / setting.threads.min(4) as f64 - 50.0, 50.0, 180.0 * slowed, 1.0)
    });
    assert_eq!(tuner.setting.threads, 4);
    assert!(changes <= 12, "{changes} changes");
}

#[test]
fn what_was_said_is_left_alone() {
    let fixed = Limits { tune_threads: false, tune_depth: false, ..LIMITS };
    let mut tuner = Tuner::new(fixed, WORST);
    played(&mut tuner, 100, |_, _| millis(500.0, 50.0, 550.0, 1.0));
    assert_eq!((tuner.setting, tuner.decisions.len()), (WORST, 0));
}
