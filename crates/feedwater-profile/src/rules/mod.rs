//! What is wrong? One file a finding, each headed by what it sees, why it costs, how to confirm it and what to change.

mod augment;
mod balance;
mod batch_size;
mod bursty;
mod cache;
mod collate;
mod compute_bound;
mod copy;
mod cores;
mod decode;
mod disk;
mod epochs;
mod first_batch;
mod gil;
mod handover;
mod input;
mod long_clips;
mod padding;
mod queue;
mod resample;
mod threads;
mod tokenize;
mod topology;
mod transform;

use crate::{
    diagnosis::{Change, Facts, Finding, INPUT_BOUND_SHARE, Kind},
    split::Part,
    what_if::Wish,
};

/// A rule: looks at the facts, and finds something or nothing.
pub type Rule = fn(&Facts<'_>) -> Option<Finding>;

/// All rules, in the order of the flow.
pub const ALL: &[Rule] = &[
    input::find,
    disk::find,
    cache::find,
    decode::find,
    resample::find,
    transform::find,
    augment::find,
    tokenize::find,
    collate::find,
    gil::find,
    handover::find,
    copy::find,
    compute_bound::find,
    cores::find,
    bursty::find,
    epochs::find,
    threads::find,
    queue::find,
    padding::find,
    batch_size::find,
    long_clips::find,
    first_batch::find,
    topology::find,
    balance::find,
];

/// Less than this share of a step is not worth a word.
const LEAST_SHARE: f64 = 0.02;
/// What a change must save of a step to be proposed.
const LEAST_GAIN: f64 = 0.03;

/// Stages that change a sample at random.
const AUGMENTS: &[&str] = &["noise", "gain", "time_shift", "spec_augment", "augment"];
/// Stages that have a rule of their own.
const NAMED: &[&str] =
    &["source", "cache", "read", "decode", "resample", "tokenize", "batch", "collate", "deliver", "gil"];

impl Facts<'_> {
    /// A finding with what all findings have.
    fn finding(&self, id: &'static str, title: impl Into<String>, kind: Kind, idle_nanos: f64) -> Finding {
        Finding {
            id,
            title: title.into(),
            kind,
            idle_nanos,
            run_minutes: self.run_minutes(idle_nanos),
            confidence: self.confidence(),
            evidence: Vec::new(),
            confirm: String::new(),
            changes: Vec::new(),
            no_help: Vec::new(),
        }
    }

    /// A cause of waiting among the stages, if it costs enough to speak of; with what the stages did as evidence.
    fn stage_cause(&self, id: &'static str, title: &str, stages: &[&str]) -> Option<Finding> {
        let idle = self.stage_nanos(stages);
        if self.wait_share() < INPUT_BOUND_SHARE || idle < LEAST_SHARE * self.steps.mean.wall_nanos {
            return None;
        }
        let mut finding = self.finding(id, title, Kind::Cause, idle);
        let (work, all) = self.work(stages);
        finding.evidence.push(format!(
            "{} of {} ms of work a batch, {:.0} %; {} ms a sample",
            millis(work),
            millis(all),
            100.0 * work / all.max(1.0),
            millis(work / self.steps.mean.rows.max(1.0)),
        ));
        finding.evidence.extend(self.called(stages));
        finding.evidence.push(format!("without it, a step would wait {} ms less", millis(idle)));
        finding.changes = self.more_hands();
        Some(finding)
    }

    /// Where in the user's own code the time of some stages goes.
    fn called(&self, stages: &[&str]) -> Option<String> {
        let calls = || self.record.calls.iter().filter(|call| stages.contains(&call.stage.as_str()));
        let all: u64 = calls().map(|call| call.nanos).sum();
        let dearest = calls().max_by_key(|call| call.nanos)?;
        let share = 100.0 * dearest.nanos as f64 / all.max(1) as f64;
        Some(format!("{} in {}: {share:.0} % of it", dearest.call, dearest.at))
    }

    /// Where in the user's own code most of the time goes, whatever it is.
    fn dearest_call(&self) -> Option<String> {
        let calls = &self.record.calls;
        let all: u64 = calls.iter().map(|call| call.nanos).sum();
        let dearest = calls.iter().max_by_key(|call| call.nanos)?;
        let share = 100.0 * dearest.nanos as f64 / all.max(1) as f64;
        Some(format!("most of the work: {} in {}, {share:.0} % of it", dearest.call, dearest.at))
    }

    /// The workers' time a batch, in some stages and in all.
    fn work(&self, stages: &[&str]) -> (f64, f64) {
        let (mut some, mut all) = (0.0, 0.0);
        for input in self.steps.of_record(self.record).filter_map(|step| step.input.as_ref()) {
            for (stage, nanos) in &input.work_nanos {
                all += *nanos as f64;
                if stages.contains(&stage.as_str()) {
                    some += *nanos as f64;
                }
            }
        }
        let steps = self.steps.steady.len() as f64;
        (some / steps, all / steps)
    }

    /// What always helps when the input is short of hands: more of them, as far as there are cores. And making the work
    /// once.
    fn more_hands(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        let now = self.split.crew.map_or(0, |crew| crew.threads);
        let cores = self.usable_cores().floor() as usize;
        if now < cores && self.split.crew.is_some() {
            self.propose(
                &mut changes,
                &format!("threads {cores}"),
                self.threads_setting(cores),
                &Wish::Threads(cores),
            );
        }
        changes
    }

    /// A change, if it brings enough.
    fn propose(&self, changes: &mut Vec<Change>, what: &str, setting: String, wish: &Wish) {
        let predicted = self.predict(wish);
        if predicted.is_some_and(|predicted| predicted.saves_nanos > LEAST_GAIN * self.steps.mean.wall_nanos)
        {
            changes.push(Change { what: what.to_owned(), setting, predicted });
        }
    }

    /// Features made once.
    fn cache(&self) -> Vec<Change> {
        let settings = &self.record.run.settings;
        let mut changes = Vec::new();
        if settings.cache.as_deref().is_some_and(|cache| cache != "off") {
            return changes;
        }
        let text = settings.task.as_deref() == Some("text");
        let what =
            if text { "tokenize once, train from the ids" } else { "make features once, train from them" };
        let setting = match (settings.loader.as_str(), text) {
            ("feedwater", _) => "--cache features; in Python .cache(\"features\")",
            (_, true) => "by hand: save the ids of each document",
            (_, false) => "by hand: save features as .npy before augmenting, train on those",
        };
        self.propose(&mut changes, what, setting.to_owned(), &Wish::Cache);
        changes
    }

    /// How so many threads are asked for.
    fn threads_setting(&self, threads: usize) -> String {
        match self.record.run.settings.loader.as_str() {
            "torch" => format!("DataLoader(..., num_workers={threads}, persistent_workers=True)"),
            _ => format!("--threads {threads}"),
        }
    }

    /// What a part costs.
    fn part(&self, part: &Part) -> f64 {
        self.split.nanos(part)
    }
}

/// Nanoseconds as milliseconds, in as many digits as mean something.
pub(crate) fn millis(nanos: f64) -> String {
    // Not `-0.00`: the sum of nothing is a negative zero.
    let millis = nanos / 1e6 + 0.0;
    match millis.abs() {
        100.0.. => format!("{millis:.0}"),
        10.0.. => format!("{millis:.1}"),
        _ => format!("{millis:.2}"),
    }
}
