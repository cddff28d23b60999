//! How many threads, and how many batches ahead? Found out while the model trains.
//!
//! After every few steps: how long did a step take, how much of that was waiting, and what did its batch take to make? Where
//! steps wait, one thing is changed, by what the figures say it needs. A few steps later it is looked at again: what made
//! steps shorter stays, what did not is taken back, and not tried again for a while. Where steps differ so much that a few
//! do not tell, more of them are looked at, and meanwhile another thing may be changed too. What counts is the time of a
//! step, the model's own share in it: a loader that takes the model's cores makes batches faster and steps slower.
//!
//! It sees figures and says settings; nothing here runs. The stream of batches is the same whatever it says.

use std::fmt;

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

/// A share of waiting that is worth a change.
const WORTH: f64 = 0.02;
/// Where steps wait for so much of what the model takes, a few are enough to look at.
const BADLY: f64 = 0.5;
/// A step has to become this much shorter for a change to stay.
const HELPED: f64 = 0.01;
/// A difference is none of chance that is this many times as large as chance makes it mostly.
const CERTAIN: f64 = 2.0;
/// Threads that work less of the time than this are enough of them.
const BUSY: f64 = 0.7;
const SATURATED: f64 = 0.92;
/// A batch that takes so many times as long as most comes late, however busy the threads are.
const UNEVEN: f64 = 1.5;
/// Threads slow each other down: so many more are needed than the figures of fewer say.
const CROWDED: f64 = 1.15;
/// The model's own part of a step has become slower by more than noise.
const SLOWER: f64 = 1.15;
/// Work, in nanoseconds, of which the share that was computed is known.
const LEAST_WORK: f64 = 100e6;
/// By so much, it is slower than before a change.
const CROWDS: f64 = 1.05;
/// Steps after a change that still have batches from before it.
const SETTLE: u64 = 2;
/// Steps that are looked at together: few at first, when something may be badly wrong, or when it is.
const FIRST: usize = 4;
const LATER: usize = 16;
const EARLY_STEPS: u64 = 32;
/// Steps for which what did not help is not tried again; twice as many the next time.
const REST: u64 = 32;
const LONGEST_REST: u64 = 4096;
/// How many times as many batches are made ahead when some come late. A little deeper often shows nothing.
const DEEPER: usize = 4;
/// Decisions that are remembered.
const REMEMBERED: usize = 256;

/// What may be changed, and how far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Limits {
    /// Threads there can be at all.
    pub(crate) threads: usize,
    /// Cores that they may keep busy.
    pub(crate) cores: f64,
    /// Batches ahead there can be at all.
    pub(crate) depth: usize,
    pub(crate) tune_threads: bool,
    pub(crate) tune_depth: bool,
}

/// A setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) threads: usize,
    pub(crate) depth: usize,
}

/// A step, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Seen {
    /// How long its batch was waited for.
    pub(crate) wait: f64,
    /// How long the model took, and whatever else the training loop does.
    pub(crate) own: f64,
    /// What workers did for a batch, all together, with what they waited for disks.
    pub(crate) work: f64,
    /// How much of that they computed or wanted to; nothing where the system does not say.
    pub(crate) computed: Option<f64>,
}

/// What was changed, why, and what came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// After this many steps.
    pub step: u64,
    /// `threads` or `prefetch`.
    pub what: &'static str,
    /// What it was.
    pub from: usize,
    /// What it became.
    pub to: usize,
    /// Why.
    pub why: String,
    /// How long a step was before, in nanoseconds.
    pub before_nanos: f64,
    /// How long a step was expected to be after it, in nanoseconds.
    pub expected_nanos: f64,
    /// How long it was.
    pub observed_nanos: Option<f64>,
    /// Whether it stayed; nothing while that is not known.
    pub kept: Option<bool>,
}

impl Serialize for Decision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { step, what, from, to, before_nanos, expected_nanos, observed_nanos, kept, .. } = self;
        let mut fields = serializer.serialize_struct("Decision", 9)?;
        fields.serialize_field("step", step)?;
        fields.serialize_field("what", what)?;
        fields.serialize_field("from", from)?;
        fields.serialize_field("to", to)?;
        fields.serialize_field("before_nanos", before_nanos)?;
        fields.serialize_field("expected_nanos", expected_nanos)?;
        fields.serialize_field("observed_nanos", observed_nanos)?;
        fields.serialize_field("kept", kept)?;
        // As people read it.
        fields.serialize_field("text", &self.to_string())?;
        fields.end()
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, what, from, to, why, before_nanos, expected_nanos, observed_nanos, kept } = self;
        write!(
            f,
            "step {step}: {what} {from} → {to}, because {why}. Steps took {}, expected {}",
            span(*before_nanos),
            span(*expected_nanos)
        )?;
        match (observed_nanos, kept) {
            (Some(nanos), Some(true)) => write!(f, ", were {}: kept", span(*nanos)),
            (Some(nanos), Some(false)) => write!(f, ", were {}: taken back", span(*nanos)),
            (Some(nanos), None) => write!(f, ", are {}: too few steps to tell", span(*nanos)),
            (None, _) => write!(f, "; not known yet"),
        }
    }
}

/// A time as people read it.
pub(crate) fn span(nanos: f64) -> String {
    if nanos >= 1e9 {
        format!("{:.2} s", nanos / 1e9)
    } else if nanos >= 1e6 {
        format!("{:.1} ms", nanos / 1e6)
    } else {
        format!("{:.0} µs", nanos / 1e3)
    }
}

/// Some steps together.
#[derive(Debug, Clone, Copy)]
struct Window {
    wait: f64,
    /// How far chance may have moved that, squared.
    chance: f64,
    own: f64,
    work: f64,
    /// What the dearest batch took.
    dearest: f64,
    /// The share of the work in which a core was wanted.
    computed: f64,
}

impl Window {
    fn of(seen: &[Seen]) -> Self {
        let count = seen.len().max(1) as f64;
        let mean = |of: fn(&Seen) -> f64| seen.iter().map(of).sum::<f64>() / count;
        let mut own: Vec<f64> = seen.iter().map(|step| step.own).collect();
        own.sort_by(f64::total_cmp);
        let (wait, work) = (mean(|step| step.wait), mean(|step| step.work));
        let squares = seen.iter().map(|step| (step.wait - wait).powi(2)).sum::<f64>();
        let computed = seen.iter().map(|step| step.computed).sum::<Option<f64>>().map(|sum| sum / count);
        Self {
            wait,
            chance: squares / (count - 1.0).max(1.0) / count,
            // The middle: an evaluation or a checkpoint between two steps is not the model's pace.
            own: own.get(own.len() / 2).copied().unwrap_or(0.0),
            work,
            dearest: seen.iter().map(|step| step.work).fold(0.0, f64::max),
            // The system is asked now and then: of little work nothing is known.
            computed: computed
                .filter(|_| work * count >= LEAST_WORK)
                .map_or(1.0, |computed| (computed / work).clamp(0.02, 1.0)),
        }
    }

    fn step(&self) -> f64 {
        self.wait + self.own
    }
}

/// What can be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    MoreThreads,
    FewerThreads,
    Deeper,
}

#[derive(Debug, Clone, Copy)]
struct Rest {
    until: u64,
    next: u64,
}

/// What was changed and is not judged yet.
struct Trial {
    /// Each is the last of its decisions, in order.
    kinds: Vec<Kind>,
    before: Setting,
    window: Window,
    /// The steps since.
    seen: Vec<Seen>,
}

impl Trial {
    /// Whether it helped; nothing while chance may be what is seen.
    fn helped(&self, now: &Window) -> Option<bool> {
        // What batches take more may be the crowd on the cores, which the model then feels too.
        if now.own > self.window.own * CROWDS && now.step() >= self.window.step() {
            return Some(false);
        }
        let gain = self.without(now) - now.step();
        let certain = gain.abs() > CERTAIN * (self.window.chance + now.chance).sqrt();
        (certain || self.seen.len() >= LATER).then_some(gain > HELPED * self.without(now))
    }

    /// How long steps would be now without the change. Batches of another few steps may be dearer or cheaper to compute: as
    /// much more or less would have been waited, and at least as long as computing them takes. (What is waited for disks
    /// says nothing: more threads wait longer for the same.)
    fn without(&self, now: &Window) -> f64 {
        let (then, now) = (self.window.work * self.window.computed, now.work * now.computed);
        let dearer = if then > 0.0 { now / then } else { 1.0 };
        (self.window.own + self.window.wait * dearer).max(now / self.before.threads as f64)
    }
}

/// Watches steps, and says what to change.
pub(crate) struct Tuner {
    limits: Limits,
    pub(crate) setting: Setting,
    seen: Vec<Seen>,
    step: u64,
    look_from: u64,
    trial: Option<Trial>,
    rests: [Rest; 3],
    /// The model's own part of a step, when it was shortest with these threads.
    shortest_own: f64,
    pub(crate) decisions: Vec<Decision>,
}

impl Tuner {
    pub(crate) fn new(limits: Limits, setting: Setting) -> Self {
        Self {
            limits,
            setting,
            seen: Vec::new(),
            step: 0,
            // The first batches are waited for whatever the settings are.
            look_from: SETTLE,
            trial: None,
            rests: [Rest { until: 0, next: REST }; 3],
            shortest_own: f64::INFINITY,
            decisions: Vec::new(),
        }
    }

    /// A step was taken. The setting from here on, where it is another.
    pub(crate) fn step(&mut self, seen: Seen) -> Option<Setting> {
        self.step += 1;
        if self.step <= self.look_from {
            return None;
        }
        self.seen.push(seen);
        let (wait, own) =
            self.seen.iter().fold((0.0, 0.0), |sum, step| (sum.0 + step.wait, sum.1 + step.own));
        let soon = self.step <= EARLY_STEPS || wait > BADLY * own;
        if self.seen.len() < if soon { FIRST } else { LATER } {
            return None;
        }
        let seen = std::mem::take(&mut self.seen);
        let before = self.setting;
        if let Some(trial) = self.trial.take() {
            self.judge(trial, &seen);
        }
        // What was just taken back is not followed by another change at once.
        if self.setting == before {
            self.propose(&Window::of(&seen));
        }
        (self.setting != before).then(|| {
            self.look_from = self.step + SETTLE;
            self.setting
        })
    }

    fn judge(&mut self, mut trial: Trial, seen: &[Seen]) {
        trial.seen.extend(seen);
        let now = Window::of(&trial.seen);
        let helped = trial.helped(&now);
        let first = self.decisions.len().saturating_sub(trial.kinds.len());
        for decision in &mut self.decisions[first..] {
            decision.observed_nanos = Some(now.step());
            decision.kept = helped;
        }
        match helped {
            None => self.trial = Some(trial),
            Some(true) => trial.kinds.iter().for_each(|kind| self.rests[*kind as usize].next = REST),
            Some(false) => {
                // Of two, the one that may have done harm rests; the other is tried again alone.
                let alone = trial.kinds.len() == 1;
                for kind in trial.kinds.iter().filter(|kind| alone || **kind != Kind::Deeper) {
                    let rest = &mut self.rests[*kind as usize];
                    *rest = Rest { until: self.step + rest.next, next: (rest.next * 2).min(LONGEST_REST) };
                }
                self.setting = trial.before;
            }
        }
        if helped.is_some() {
            // Another number of threads, another pace of the model.
            self.shortest_own = f64::INFINITY;
        }
    }

    fn rested(&self, kind: Kind) -> bool {
        // While something is tried, another thing may be tried with it; fewer of anything is tried alone.
        let free = self.trial.as_ref().is_none_or(|trial| {
            kind != Kind::FewerThreads
                && !trial.kinds.contains(&kind)
                && !trial.kinds.contains(&Kind::FewerThreads)
        });
        free && self.step >= self.rests[kind as usize].until
    }

    fn propose(&mut self, now: &Window) {
        let Setting { threads, depth } = self.setting;
        let step = now.step().max(1.0);
        let share = now.wait / step;
        self.shortest_own = self.shortest_own.min(now.own);
        // Threads that make a batch in the time of the model's step; and those that the cores suffice for.
        let needed = (now.work * CROWDED / now.own.max(1.0)).ceil() as usize;
        let most = ((self.limits.cores / now.computed) as usize).clamp(1, self.limits.threads);
        let busy = now.work / (threads as f64 * step);
        if share > WORTH {
            let waits = format!("a step waits {} of {}", span(now.wait), span(step));
            let more = self.limits.tune_threads && threads < most && self.rested(Kind::MoreThreads);
            // Where all threads work all the time on batches that are much alike, there is nothing to make earlier.
            let late = busy < SATURATED || now.dearest > UNEVEN * now.work;
            let deeper =
                self.limits.tune_depth && depth < self.limits.depth && late && self.rested(Kind::Deeper);
            if more && busy > BUSY {
                let to = needed.clamp(threads + 1, most);
                let why = format!("{waits} for a batch that takes {} to make", span(now.work));
                let expected = now.own.max(now.work / to as f64);
                self.try_out(Kind::MoreThreads, to, why, now, expected);
            }
            if deeper {
                // While the dearest is made, the model works off what is there.
                let longest = (2.0 * now.dearest / now.own.max(1.0)).ceil() as usize;
                let to = (depth * DEEPER).max(longest).min(self.limits.depth);
                let why = if busy < SATURATED {
                    format!(
                        "{waits} and threads work {:.0} % of the time: some batches come late, others wait",
                        100.0 * busy
                    )
                } else {
                    format!("one batch takes {}, most take {}", span(now.dearest), span(now.work))
                };
                // What is late now and then does not show when enough is ready.
                let expected = now.own.max(now.work / self.setting.threads as f64);
                self.try_out(Kind::Deeper, to, why, now, expected);
            }
            if more && busy <= BUSY && !deeper {
                let why = format!("{waits}, and nothing else is left to try");
                self.try_out(Kind::MoreThreads, threads + 1, why, now, now.own);
            }
        } else if self.limits.tune_threads
            && self.step > EARLY_STEPS
            && threads > needed.max(1)
            && now.own > self.shortest_own * SLOWER
            && self.rested(Kind::FewerThreads)
        {
            let why = format!(
                "the model's own part of a step has gone from {} to {}, and {} would make batches in time",
                span(self.shortest_own),
                span(now.own),
                if needed <= 1 { "one thread".to_owned() } else { format!("{needed} threads") }
            );
            let to = needed.max(threads / 2).max(1);
            self.try_out(Kind::FewerThreads, to, why, now, self.shortest_own);
        }
    }

    fn try_out(&mut self, kind: Kind, to: usize, why: String, now: &Window, expected_nanos: f64) {
        let before = self.setting;
        let (what, place) = if kind == Kind::Deeper {
            ("prefetch", &mut self.setting.depth)
        } else {
            ("threads", &mut self.setting.threads)
        };
        let from = std::mem::replace(place, to);
        if self.decisions.len() == REMEMBERED {
            self.decisions.remove(0);
        }
        self.decisions.push(Decision {
            step: self.step,
            what,
            from,
            to,
            why,
            before_nanos: now.step(),
            expected_nanos,
            observed_nanos: None,
            kept: None,
        });
        let trial = self.trial.get_or_insert_with(|| Trial {
            kinds: Vec::new(),
            before,
            window: *now,
            seen: Vec::new(),
        });
        trial.kinds.push(kind);
        // What was seen is of one change of two.
        trial.seen.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use xxhash_rust::xxh3::xxh3_64;

    use super::*;

    const LIMITS: Limits =
        Limits { threads: 32, cores: 4.0, depth: 32, tune_threads: true, tune_depth: true };
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
        let walls = played(&mut tuner, 60, |_, setting| {
            millis(150.0 / setting.threads as f64 - 50.0, 50.0, 150.0, 1.0)
        });
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
        played(&mut ceiling, 60, |_, setting| {
            millis(900.0 / setting.threads as f64 - 50.0, 50.0, 900.0, 1.0)
        });
        assert_eq!(ceiling.setting.threads, 3, "80 % of four cores");
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
        assert!(
            last.contains("threads 4 → 2, because the model's own part of a step has gone from"),
            "{last}"
        );
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
        assert!(
            tuner.decisions.len() > 1 && tuner.decisions.iter().all(|decision| decision.kept != Some(true))
        );
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
}
