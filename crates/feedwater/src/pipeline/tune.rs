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
    /// By how much the model's own part of it has become shorter meanwhile, which this did not bring.
    pub own_gain_nanos: f64,
    /// Whether it stayed; nothing while that is not known.
    pub kept: Option<bool>,
}

impl Serialize for Decision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { step, what, from, to, before_nanos, expected_nanos, observed_nanos, .. } = self;
        let mut fields = serializer.serialize_struct("Decision", 10)?;
        fields.serialize_field("step", step)?;
        fields.serialize_field("what", what)?;
        fields.serialize_field("from", from)?;
        fields.serialize_field("to", to)?;
        fields.serialize_field("before_nanos", before_nanos)?;
        fields.serialize_field("expected_nanos", expected_nanos)?;
        fields.serialize_field("observed_nanos", observed_nanos)?;
        fields.serialize_field("own_gain_nanos", &self.own_gain_nanos)?;
        fields.serialize_field("kept", &self.kept)?;
        // As people read it.
        fields.serialize_field("text", &self.to_string())?;
        fields.end()
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, what, from, to, why, before_nanos, expected_nanos, observed_nanos, kept, .. } = self;
        if from == to {
            return write!(f, "step {step}: {what} stay at {to}: {why}");
        }
        write!(
            f,
            "step {step}: {what} {from} → {to}, because {why}. Steps took {}, expected {}",
            span(*before_nanos),
            span(*expected_nanos)
        )?;
        let Some(nanos) = observed_nanos else { return write!(f, "; not known yet") };
        let (tense, came) = match kept {
            Some(true) => ("were", "kept"),
            Some(false) => ("were", "taken back"),
            None => ("are", "too few steps to tell"),
        };
        write!(f, ", {tense} {}", span(*nanos))?;
        if self.own_gain_nanos > 0.0 {
            write!(f, " (the model's own part became {} shorter by itself)", span(self.own_gain_nanos))?;
        }
        write!(f, ": {came}")
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
    /// What most batches took, and the dearest.
    usual: f64,
    dearest: f64,
    /// The share of the work in which a core was wanted.
    computed: f64,
}

impl Window {
    fn of(seen: &[Seen]) -> Self {
        let count = seen.len().max(1) as f64;
        let mean = |of: fn(&Seen) -> f64| seen.iter().map(of).sum::<f64>() / count;
        let middle = |of: fn(&Seen) -> f64| {
            let mut all: Vec<f64> = seen.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).copied().unwrap_or(0.0)
        };
        let (wait, work) = (mean(|step| step.wait), mean(|step| step.work));
        let squares = seen.iter().map(|step| (step.wait - wait).powi(2)).sum::<f64>();
        let computed = seen.iter().map(|step| step.computed).sum::<Option<f64>>().map(|sum| sum / count);
        Self {
            wait,
            chance: squares / (count - 1.0).max(1.0) / count,
            // The middle: an evaluation or a checkpoint between two steps is not the model's pace.
            own: middle(|step| step.own),
            work,
            usual: middle(|step| step.work),
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
        let own = self.window.own - self.own_gain(now);
        let (then, computing) = (self.window.work * self.window.computed, now.work * now.computed);
        let dearer = if then > 0.0 { computing / then } else { 1.0 };
        (own + self.window.wait * dearer).max(computing / self.before.threads as f64)
    }

    /// By how much the model's own part has become shorter, where that is none of the change's doing: its first steps take
    /// longer.
    fn own_gain(&self, now: &Window) -> f64 {
        let gain = self.window.own - now.own;
        if self.kinds.contains(&Kind::FewerThreads) || now.own * CROWDS > self.window.own {
            0.0
        } else {
            gain
        }
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
    /// What was found out with the last step, in words.
    pub(crate) said: Vec<String>,
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
            said: Vec::new(),
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
            decision.own_gain_nanos = trial.own_gain(&now);
            decision.kept = helped;
            if helped.is_some() {
                self.said.push(decision.to_string());
            }
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
                let why = if busy < SATURATED && self.limits.tune_threads && threads >= most && needed > most
                {
                    format!(
                        "{waits}, no more threads are allowed (cores, --cpu-ceiling), and they work {:.0} % of the time: what is made ahead may bridge what takes long",
                        100.0 * busy
                    )
                } else if busy < SATURATED {
                    format!(
                        "{waits} and threads work {:.0} % of the time: some batches come late, others wait",
                        100.0 * busy
                    )
                } else {
                    format!("one batch takes {}, most take {}", span(now.dearest), span(now.usual))
                };
                // What is late now and then does not show when enough is ready; of a few steps with a dear batch among them, that
                // may be all there is to say.
                let expected = now.own.max(now.work / self.setting.threads as f64).min(step);
                self.try_out(Kind::Deeper, to, why, now, expected);
            }
            if more && busy <= BUSY && !deeper {
                let why = format!("{waits}, and nothing else is left to try");
                self.try_out(Kind::MoreThreads, threads + 1, why, now, now.own);
            }
            if self.limits.tune_threads && threads >= most && needed > most && !deeper && self.trial.is_none()
            {
                self.at_the_limit(&waits, busy, now);
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
            // No more than they compute can be given back.
            let expected = self.shortest_own.max(now.own - now.work * now.computed);
            self.try_out(Kind::FewerThreads, to, why, now, expected);
        }
    }

    /// Says once of these threads that more would help and are not allowed.
    fn at_the_limit(&mut self, waits: &str, busy: f64, now: &Window) {
        let threads = self.setting.threads;
        if self.decisions.iter().any(|decision| decision.from == decision.to && decision.to == threads) {
            return;
        }
        let why = format!(
            "{waits} and they work {:.0} % of the time: more would help, and are not allowed (cores, --cpu-ceiling)",
            100.0 * busy.min(1.0)
        );
        self.decide("threads", (threads, threads), why, now, now.step());
        self.said.extend(self.decisions.last().map(ToString::to_string));
    }

    fn try_out(&mut self, kind: Kind, to: usize, why: String, now: &Window, expected_nanos: f64) {
        let before = self.setting;
        let (what, place) = if kind == Kind::Deeper {
            ("prefetch", &mut self.setting.depth)
        } else {
            ("threads", &mut self.setting.threads)
        };
        let from = std::mem::replace(place, to);
        self.decide(what, (from, to), why, now, expected_nanos);
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

    fn decide(
        &mut self,
        what: &'static str,
        (from, to): (usize, usize),
        why: String,
        now: &Window,
        expected_nanos: f64,
    ) {
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
            own_gain_nanos: 0.0,
            kept: None,
        });
    }
}

#[cfg(test)]
mod tests;
