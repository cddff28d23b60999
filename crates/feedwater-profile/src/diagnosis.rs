//! What is wrong, and what is to be done about it?

use serde::Serialize;

use crate::{
    error::Result,
    record::{Record, Run, Step},
    rules,
    split::{Part, Split},
    steps::{Mean, Steps},
    what_if::Prediction,
    worth::{Decision, Restart, decide},
};

/// From this share of a step on, waiting for input is what a run suffers from.
pub(crate) const INPUT_BOUND_SHARE: f64 = 0.05;

/// One step with more than this share of all waiting says little of the others.
const MOST_OF_ALL: f64 = 0.5;

/// A share of a step below which waiting for input is nothing.
const FAR_BELOW: f64 = 0.01;

/// What all rules look at.
pub struct Facts<'a> {
    /// The record.
    pub record: &'a Record,
    /// Which of its steps count.
    pub steps: Steps,
    /// Whose the waits are.
    pub split: Split,
}

impl<'a> Facts<'a> {
    /// Gathers them. A record of too few steps is refused.
    pub fn of(record: &'a Record) -> Result<Self> {
        let steps = Steps::of(record)?;
        let split = Split::of(record, &steps);
        Ok(Self { record, steps, split })
    }

    /// Share of a mean step that is waited for input.
    pub fn wait_share(&self) -> f64 {
        self.steps.mean.wait_nanos / self.steps.mean.wall_nanos
    }

    /// What a cost of every step comes to over the run, in minutes.
    pub fn run_minutes(&self, nanos_a_step: f64) -> f64 {
        let steps = self.record.run.planned_steps.unwrap_or(self.record.steps.len() as u64);
        nanos_a_step * steps as f64 / 60e9
    }

    /// The step that most of the waiting was in, and its share of it, where the run would not be said to wait without it.
    fn stall(&self) -> Option<(&Step, f64)> {
        let Mean { wait_nanos, wall_nanos, .. } = self.steps.mean;
        let worst = self.steps.worst_wait(self.record).filter(|_| self.wait_share() >= INPUT_BOUND_SHARE)?;
        let (count, nanos) = (self.steps.steady.len() as f64, worst.wait_nanos as f64);
        let without = (count * wait_nanos - nanos) / (count * wall_nanos - nanos).max(1.0);
        let share = nanos / (count * wait_nanos);
        (share > MOST_OF_ALL && without < INPUT_BOUND_SHARE).then_some((worst, share))
    }

    /// How much can be built on this record.
    pub fn confidence(&self) -> Confidence {
        let wall = self.steps.mean.wall_nanos;
        let off = if self.split.crew.is_some() {
            (self.split.played_nanos - self.steps.mean.wait_nanos).abs() / wall
        } else {
            1.0
        };
        let unknown = self.steps.mean.unknown_nanos / wall;
        // Where hardly anything is waited for, there is nothing to share out, and nothing to be wrong about.
        let certain = off < 0.1 || self.wait_share() < INPUT_BOUND_SHARE;
        match self.steps.steady.len() {
            60.. if certain && unknown < 0.1 => Confidence::High,
            30.. if off < 0.25 || certain => Confidence::Medium,
            _ => Confidence::Low,
        }
    }
}

/// What a run suffers from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "by", content = "part")]
pub enum Boundness {
    /// It waits for its input, mostly because of this part.
    Input(String),
    /// It waits for copies to the device.
    Copy,
    /// It waits for other devices.
    Sync,
    /// It waits for something that the record does not name.
    Unknown,
    /// The accelerator is what takes the time, as it should be.
    Compute,
}

/// How much a statement can be built on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// A guess.
    Low,
    /// Likely.
    Medium,
    /// Measured, and the model agrees.
    High,
}

/// What a run is measured against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Not even the minimum.
    BelowMinimum,
    /// Busy 70 %, variation 40 %; a data device busy 40 %.
    Minimum,
    /// Busy 80 %, variation 30 %; a data device busy 50 %.
    Good,
    /// Busy 90 %, variation 20 %; a data device busy 60 %.
    Excellent,
}

impl Target {
    const TABLE: [(Self, f64, f64, f64); 3] = [
        (Self::Excellent, 60.0, 90.0, 20.0),
        (Self::Good, 50.0, 80.0, 30.0),
        (Self::Minimum, 40.0, 70.0, 40.0),
    ];

    /// The best target that is met. All figures are percentages.
    pub fn met(data_busy: Option<f64>, model_busy: f64, variation: f64) -> Self {
        Self::TABLE
            .into_iter()
            .find(|(_, data, model, most)| {
                data_busy.is_none_or(|busy| busy >= *data) && model_busy >= *model && variation <= *most
            })
            .map_or(Self::BelowMinimum, |(target, ..)| target)
    }

    /// What it takes: data device busy, model device busy, variation, in percent.
    pub fn needs(self) -> Option<(f64, f64, f64)> {
        Self::TABLE
            .into_iter()
            .find(|(target, ..)| *target == self)
            .map(|(_, data, model, most)| (data, model, most))
    }

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::BelowMinimum => "below minimum",
            Self::Minimum => "minimum met",
            Self::Good => "good",
            Self::Excellent => "excellent",
        }
    }
}

/// Something that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// What it is called, in every version.
    pub id: &'static str,
    /// In a few words.
    pub title: String,
    /// Whether it is a cause, or something that makes a cause worse or better.
    pub kind: Kind,
    /// What it costs: the accelerator stands still for so long, a step.
    pub idle_nanos: f64,
    /// What that comes to over the run.
    pub run_minutes: f64,
    /// How sure that is.
    pub confidence: Confidence,
    /// What was seen, with figures.
    pub evidence: Vec<String>,
    /// How to make sure.
    pub confirm: String,
    /// What to change, the best first.
    pub changes: Vec<Change>,
    /// What will not help.
    pub no_help: Vec<&'static str>,
}

/// What sort of finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Why the accelerator waits.
    Cause,
    /// What makes it better or worse.
    Circumstance,
}

/// Something to change.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// In a few words.
    pub what: String,
    /// To paste: flags of our command, or a line of a script.
    pub setting: String,
    /// What it would bring, where that can be said.
    pub predicted: Option<Prediction>,
}

/// The step that waited the longest.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Worst {
    /// Its number.
    pub step: u64,
    /// How long it waited.
    pub wait_nanos: u64,
    /// The sample it waited for.
    pub key: Option<String>,
    /// The stage which that sample spent the most time in.
    pub stage: Option<String>,
}

/// A step that is not like the others.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Apart {
    /// Its number.
    pub step: u64,
    /// Why.
    pub why: String,
    /// How long it took.
    pub wall_nanos: u64,
}

/// A run, understood.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diagnosis {
    /// What the run suffers from.
    pub bound: Boundness,
    /// The same in words.
    pub headline: String,
    /// How it does against the targets.
    pub target: Target,
    /// How sure all this is.
    pub confidence: Confidence,
    /// Steps that count.
    pub steps: usize,
    /// Share of the time in which the accelerator works; nothing where there was none.
    pub busy_percent: Option<f64>,
    /// Steps in a second.
    pub steps_per_second: f64,
    /// Samples in a second.
    pub samples_per_second: f64,
    /// Steps in a second that the accelerator could do, and how far that may be off.
    pub ceiling_steps_per_second: Option<(f64, f64)>,
    /// Where a mean step goes.
    pub mean: Mean,
    /// Why the accelerator stands still, in nanoseconds a step; they add up to its idle time.
    pub idle_nanos: Vec<(String, f64)>,
    /// Standard deviation over mean of a step's time.
    pub variation_percent: f64,
    /// The same, not moved by single outliers.
    pub robust_variation_percent: f64,
    /// Median time of a step.
    pub p50_nanos: u64,
    /// Time that one step in a hundred exceeds.
    pub p99_nanos: u64,
    /// The step that waited the longest.
    pub worst: Option<Worst>,
    /// What was found: causes first, the dearest first.
    pub findings: Vec<Finding>,
    /// Whether it is worth stopping for.
    pub decision: Decision,
    /// Share of the run that measuring took.
    pub overhead_percent: Option<f64>,
    /// Share of the steps' time that is accounted for.
    pub coverage_percent: f64,
    /// Steps that are listed apart, and why.
    pub apart: Vec<Apart>,
    /// What was changed while it ran, why, and what came of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tuned: Vec<String>,
    /// What of the record could not be read.
    pub damage: Vec<String>,
    /// The run.
    pub run: Run,
}

/// What cannot be known from the record.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked {
    /// Starting again takes so long; two minutes unless told.
    pub restart_seconds: Option<f64>,
    /// Work since the last checkpoint.
    pub lost_seconds: Option<f64>,
}

/// What a restart takes, unless told: imports, the model onto the device, the first batch.
const RESTART_SECONDS: f64 = 120.0;

impl Diagnosis {
    /// Diagnoses a record.
    pub fn of(record: &Record) -> Result<Self> {
        Self::with(record, Asked::default())
    }

    /// Diagnoses a record, with what only the user knows.
    pub fn with(record: &Record, asked: Asked) -> Result<Self> {
        let facts = Facts::of(record)?;
        let Facts { steps, split, .. } = &facts;
        let mean = steps.mean;
        let mut findings: Vec<Finding> = rules::ALL.iter().filter_map(|rule| rule(&facts)).collect();
        findings.sort_by(|a, b| a.kind.cmp(&b.kind).then(b.idle_nanos.total_cmp(&a.idle_nanos)));
        agree(&mut findings);
        let bound = boundness(&facts, &findings);
        let mut confidence = facts.confidence();
        if let (Boundness::Input(_), Some((step, share))) = (&bound, facts.stall()) {
            confidence = Confidence::Low;
            let (step, share) = (step.step, 100.0 * share);
            for cause in findings.iter_mut().filter(|finding| finding.kind == Kind::Cause) {
                cause.confidence = confidence;
            }
            if let Some(first) = findings.first_mut() {
                let said = "of all waiting: a longer run shows whether it comes again";
                first.evidence.insert(0, format!("step {step} alone has {share:.0} % {said}"));
            }
        }
        let headline = match &bound {
            Boundness::Input(part) => format!("input-bound: {part}"),
            Boundness::Copy => "copy-bound: batches reach the device too late".to_owned(),
            Boundness::Sync => "devices wait for each other".to_owned(),
            Boundness::Unknown => "idle, and the record does not say why".to_owned(),
            Boundness::Compute if mean.busy_nanos == 0.0 => "the input keeps up".to_owned(),
            Boundness::Compute => "compute-bound: the input keeps up".to_owned(),
        };
        let worst = steps.worst_wait(record).filter(|step| step.wait_nanos > 0).map(|step| {
            let blame = step.input.as_ref().and_then(|input| input.waited_for.clone());
            Worst {
                step: step.step,
                wait_nanos: step.wait_nanos,
                key: blame.as_ref().map(|blame| blame.key.clone()),
                stage: blame.map(|blame| blame.stage),
            }
        });
        // With what the beginning of epochs costs: that is the pace one sees.
        let step = mean.wall_nanos + steps.epoch_nanos();
        let busy = (mean.busy_nanos > 0.0).then(|| (100.0 * mean.busy_nanos / step).min(100.0));
        let ceiling = facts.replayed().or_else(|| {
            if mean.busy_nanos <= 0.0 {
                return None;
            }
            let rate = 1e9 / mean.busy_nanos;
            let spread = facts.busy_spread();
            Some((rate, rate * spread))
        });
        let decision = facts.decision(&findings, asked);
        // Where steps are short, only some of them are in the record; what measuring took is of them all.
        let recorded: u64 = record.steps.iter().map(|step| step.wall_nanos).sum();
        let wall = record.end.as_ref().map_or(0, |end| end.wall_nanos).max(recorded);
        let overhead = record.end.as_ref().and_then(|end| end.overhead_nanos);
        let mut run = record.run.clone();
        (run.settings.threads, run.settings.prefetch) = (steps.crew.threads, steps.crew.prefetch);
        let inputs = record.steps.iter().filter_map(|step| step.input.as_ref());
        // Where nothing is waited for, steps differ because batches do.
        let variation = if facts.wait_share() < FAR_BELOW { 0.0 } else { steps.variation_percent };
        Ok(Self {
            target: Target::met(None, busy.unwrap_or(100.0 * (1.0 - facts.wait_share())), variation),
            bound,
            headline,
            confidence,
            steps: steps.steady.len(),
            busy_percent: busy,
            steps_per_second: 1e9 / step,
            samples_per_second: 1e9 / step * mean.rows,
            ceiling_steps_per_second: ceiling,
            mean,
            idle_nanos: idle(&mean, split, steps.epoch_nanos()),
            variation_percent: steps.variation_percent,
            robust_variation_percent: steps.robust_variation_percent,
            p50_nanos: steps.p50_nanos,
            p99_nanos: steps.p99_nanos,
            worst,
            findings,
            decision,
            overhead_percent: overhead.map(|overhead| 100.0 * overhead as f64 / wall.max(1) as f64),
            coverage_percent: 100.0 * (1.0 - mean.unknown_nanos / mean.wall_nanos),
            apart: steps
                .apart
                .iter()
                .map(|(at, why)| Apart {
                    step: record.steps[*at].step,
                    why: why.clone(),
                    wall_nanos: record.steps[*at].wall_nanos,
                })
                .collect(),
            tuned: inputs.flat_map(|input| input.tuned.iter().cloned()).collect(),
            damage: record.damage.clone(),
            run,
        })
    }

    /// The change that brings the most.
    pub fn best_change(&self) -> Option<&Change> {
        let predicted = |change: &&Change| change.predicted.map_or(0.0, |predicted| predicted.saves_nanos);
        let changes = self.findings.iter().flat_map(|finding| &finding.changes);
        changes
            .filter(|change| change.predicted.is_some())
            .max_by(|a, b| predicted(a).total_cmp(&predicted(b)))
    }
}

/// Fewer steps with batches from before say nothing.
const LEAST_REPLAYED: usize = 5;

/// What one finding says will not help, another may propose where it predicts that it does: then it does.
fn agree(findings: &mut [Finding]) {
    const SAME: &[(&str, &str)] = &[
        ("more threads", "threads "),
        ("a deeper queue", "prefetch "),
        ("a larger batch", "batch "),
        ("a feature cache", "make features once"),
        ("pinned memory", "pin"),
    ];
    let proposed: Vec<String> =
        findings.iter().flat_map(|finding| &finding.changes).map(|change| change.what.clone()).collect();
    let is_proposed = |no_help: &str| {
        SAME.iter().any(|(said, begins)| {
            *said == no_help && proposed.iter().any(|change| change.starts_with(begins))
        })
    };
    for finding in findings {
        finding.no_help.retain(|no_help| !is_proposed(no_help));
    }
}

impl Facts<'_> {
    /// How much the accelerator's own time varies, as a share of it.
    fn busy_spread(&self) -> f64 {
        let mut busy: Vec<u64> = self.steps.of_record(self.record).map(Step::busy_nanos).collect();
        busy.sort_unstable();
        let half = crate::steps::quantile(&busy, 0.75) - crate::steps::quantile(&busy, 0.25);
        half as f64 / 2.0 / self.steps.mean.busy_nanos.max(1.0)
    }

    /// The pace with batches that were there already, and its spread: what the accelerator and the loop around it do
    /// with a perfect loader. Known where a run was made to step through batches that it had before.
    fn replayed(&self) -> Option<(f64, f64)> {
        let replayed = |step: &&Step| step.mark.as_deref() == Some("replay");
        let mut walls: Vec<u64> =
            self.record.steps.iter().filter(replayed).map(|step| step.wall_nanos).collect();
        walls.sort_unstable();
        let quantile = |share| crate::steps::quantile(&walls, share) as f64;
        // The first of them still has what was under way before.
        (walls.len() >= LEAST_REPLAYED).then(|| {
            let middle = quantile(0.5).max(1.0);
            (1e9 / middle, 1e9 / middle * (quantile(0.75) - quantile(0.25)) / 2.0 / middle)
        })
    }

    fn decision(&self, findings: &[Finding], asked: Asked) -> Decision {
        let saves = findings
            .iter()
            .flat_map(|finding| &finding.changes)
            .filter_map(|change| change.predicted)
            .map(|predicted| predicted.saves_nanos)
            .fold(0.0, f64::max);
        let wall = self.steps.mean.wall_nanos + self.steps.epoch_nanos();
        let done = self.record.steps.last().map_or(0, |step| step.step + 1);
        // A run that is over is not stopped any more; what is left to say is what the next one would save.
        let restart =
            self.record.run.planned_steps.filter(|planned| *planned > done).map(|planned| Restart {
                steps_left: planned.saturating_sub(done),
                restart_seconds: asked.restart_seconds.unwrap_or(RESTART_SECONDS),
                lost_seconds: asked.lost_seconds.unwrap_or(0.0),
            });
        decide(wall / 1e9, (wall - saves) / 1e9, restart)
    }
}

fn boundness(facts: &Facts<'_>, findings: &[Finding]) -> Boundness {
    let mean = &facts.steps.mean;
    let epochs = facts.steps.epoch_nanos();
    let share = |nanos: f64| nanos / (mean.wall_nanos + epochs);
    let waited = share(mean.wait_nanos + epochs);
    let others = [
        (share(mean.copy_nanos), Boundness::Copy),
        (share(mean.sync_nanos), Boundness::Sync),
        (share(mean.unknown_nanos) - 0.05, Boundness::Unknown),
    ];
    let other = others.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    if waited >= INPUT_BOUND_SHARE {
        if let Some((by, bound)) = &other
            && *by > waited
        {
            return bound.clone();
        }
        let cause = findings.iter().find(|finding| finding.kind == Kind::Cause && finding.idle_nanos > 0.0);
        return Boundness::Input(
            cause.map_or_else(|| "cause not recorded".to_owned(), |cause| cause.title.clone()),
        );
    }
    match other {
        Some((by, bound)) if by >= INPUT_BOUND_SHARE => bound,
        _ => Boundness::Compute,
    }
}

/// Why the accelerator stands still; the dearest first, what is not known last.
fn idle(mean: &Mean, split: &Split, epoch_nanos: f64) -> Vec<(String, f64)> {
    let mut idle: Vec<(String, f64)> =
        split.parts.iter().map(|(part, nanos)| (part_words(part).to_owned(), *nanos)).collect();
    idle.push(("epoch start".to_owned(), epoch_nanos));
    idle.push(("copy".to_owned(), mean.copy_nanos));
    idle.push(("sync".to_owned(), mean.sync_nanos));
    idle.retain(|(_, nanos)| *nanos > 0.0);
    idle.sort_by(|a, b| b.1.total_cmp(&a.1));
    let unknown = mean.unknown_nanos + split.rest_nanos;
    if unknown > 0.0 {
        idle.push(("unknown".to_owned(), unknown));
    }
    idle
}

/// A part in words.
pub(crate) fn part_words(part: &Part) -> &str {
    match part {
        Part::Stage(stage) => stage,
        Part::SlowSamples => "slow samples",
        Part::NoCore => "no free core",
    }
}
