//! Is what was predicted true? A short run with the setting, and both figures side by side.

use std::{
    f64::consts::{FRAC_PI_2, SQRT_2},
    time::{Duration, Instant},
};

use feedwater_profile::{
    Diagnosis, Record,
    diagnosis::Facts,
    steps::median,
    what_if::{Prediction, Wish},
};
use miette::miette;
use serde::Serialize;

use super::setup::{Setup, Task};
use crate::caching::Kept;

/// A prediction and what became of it.
#[derive(Debug, Serialize)]
pub(crate) struct Verified {
    /// The setting, in words.
    pub(crate) what: String,
    pub(crate) predicted: Prediction,
    /// Samples in a second, as measured.
    pub(crate) measured_samples_per_second: f64,
    /// How far the prediction was off, in percent of what was measured: the middle of all rounds.
    pub(crate) off_percent: f64,
    /// A quarter of the rounds were below the one, and a quarter above the other. Far apart, they say that the machine was not alone.
    pub(crate) quartiles_percent: [f64; 2],
    /// How many rounds it took.
    pub(crate) rounds: usize,
}

/// What is worth trying for a setup.
pub(crate) fn wishes(setup: &Setup, cores: usize) -> Vec<(String, Wish)> {
    let mut wishes = Vec::new();
    if setup.threads != cores {
        wishes.push((format!("threads {} → {cores}", setup.threads), Wish::Threads(cores)));
    }
    let larger = setup.batch_size * 4;
    wishes.push((format!("batch {} → {larger}", setup.batch_size), Wish::BatchSize(larger)));
    if !setup.half && setup.task != Task::Text {
        wishes.push(("f32 → f16".to_owned(), Wish::HalfPrecision));
    }
    if !setup.pad_to_longest && setup.task == Task::Whisper {
        wishes.push(("30 s → longest".to_owned(), Wish::PadToLongest));
    }
    if setup.caching.cache == Kept::Off {
        wishes.push(("cache off → features".to_owned(), Wish::Cache));
    }
    wishes
}

/// Rounds of a comparison, if as many may be: more where they lie apart, until their middle is known to so many percent, or it has
/// taken long enough.
const ROUNDS: usize = 7;
const SURE_PERCENT: f64 = 2.0;
const ENOUGH: Duration = Duration::from_mins(1);
/// Runs with the setting in a round: more than one where they are over in a moment, as they are from a cache. What is predicted of
/// that stands on about as long a trial.
const MOST_RUNS: usize = 15;
const ENOUGH_STEPS: Duration = Duration::from_secs(1);
const ENOUGH_RUNS: Duration = Duration::from_secs(3);

/// Predicts, runs, compares.
///
/// A machine's pace drifts by more than predictions are off. So a run with the setting stands between two without it,
/// what they predict is averaged, and the middle of the rounds is what counts.
pub(crate) fn verify(
    what: &str,
    wish: &Wish,
    most_rounds: usize,
    mut before: impl FnMut() -> miette::Result<Record>,
    mut after: impl FnMut() -> miette::Result<Record>,
) -> miette::Result<Option<Verified>> {
    let mut predict = || -> miette::Result<Option<Prediction>> {
        let record = before()?;
        let facts = Facts::of(&record).map_err(|error| miette!("{error}"))?;
        Ok(facts.predict(wish))
    };
    let mut rounds = Vec::new();
    // An even number has no middle.
    let most_rounds = most_rounds - usize::from(most_rounds.is_multiple_of(2)).min(most_rounds);
    let Some(mut earlier) = predict()? else { return Ok(None) };
    let began = Instant::now();
    while rounds.len() < ROUNDS.min(most_rounds)
        || rounds.len().is_multiple_of(2)
        || (rounds.len() < most_rounds && began.elapsed() < ENOUGH && unsure_percent(&rounds) > SURE_PERCENT)
    {
        let measured = measured(&mut after)?;
        let Some(later) = predict()? else { return Ok(None) };
        let predicted = earlier.averaged(&later);
        let off_percent = 100.0 * (predicted.samples_per_second / measured - 1.0);
        rounds.push(Round { predicted, measured, off_percent });
        rounds.sort_by(|a, b| a.off_percent.total_cmp(&b.off_percent));
        earlier = later;
    }
    let quartiles_percent = quartiles_percent(&rounds);
    let middle = rounds.get(rounds.len() / 2);
    Ok(middle.map(|Round { predicted, measured, off_percent }| Verified {
        what: what.to_owned(),
        predicted: *predicted,
        measured_samples_per_second: *measured,
        off_percent: *off_percent,
        quartiles_percent,
        rounds: rounds.len(),
    }))
}

/// A run with the setting, and what those beside it predict.
struct Round {
    predicted: Prediction,
    /// Samples in a second.
    measured: f64,
    off_percent: f64,
}

/// Of rounds in order.
fn quartiles_percent(rounds: &[Round]) -> [f64; 2] {
    let count = rounds.len();
    [count / 4, count - 1 - count / 4].map(|at| rounds[at].off_percent)
}

/// How far the middle of some rounds, in order, may be from that of very many: its standard error, where they are spread normally.
fn unsure_percent(rounds: &[Round]) -> f64 {
    let [low, high] = quartiles_percent(rounds);
    // The quartiles of a normal distribution lie so many deviations apart.
    let deviation = (high - low) / 1.349;
    // A median's error is larger than a mean's; and a run before is that of two rounds, so that they are not apart from each other.
    deviation * FRAC_PI_2.sqrt() * SQRT_2 / (rounds.len() as f64).sqrt()
}

/// Samples in a second with the setting: the middle of all runs.
fn measured(run: &mut impl FnMut() -> miette::Result<Record>) -> miette::Result<f64> {
    let (mut rates, mut took) = (Vec::new(), Duration::ZERO);
    let began = Instant::now();
    while rates.is_empty()
        || (rates.len() < MOST_RUNS && took < ENOUGH_STEPS && began.elapsed() < ENOUGH_RUNS)
    {
        let record = run()?;
        took += Duration::from_nanos(record.steps.iter().map(|step| step.wall_nanos).sum());
        rates.push(Diagnosis::of(&record).map_err(|error| miette!("{error}"))?.samples_per_second);
    }
    median(rates).ok_or_else(|| miette!("no run was measured"))
}

/// As a table.
pub(crate) fn table(verified: &[Verified]) -> String {
    let mut text = format!(
        "{:<11}{:<22}{:>11}{:>11}{:>9}  (quartiles of rounds)\n",
        "VERIFY", "samples/s", "predicted", "measured", "off"
    );
    for line in verified {
        use std::fmt::Write as _;
        let _ = writeln!(
            text,
            "{:<11}{:<22}{:>11.1}{:>11.1}{:>+7.1} %  ({:+.0} … {:+.0} of {})",
            "",
            line.what,
            line.predicted.samples_per_second,
            line.measured_samples_per_second,
            line.off_percent,
            line.quartiles_percent[0],
            line.quartiles_percent[1],
            line.rounds,
        );
    }
    // Which is why they are not those of the fixes above.
    text.push_str("           predicted anew from runs just before and after: a machine's pace drifts\n");
    text
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use feedwater_profile::record::{Host, Input, Run, Settings, Step};

    use super::*;

    /// Steps of 8 samples that one thread takes so long for.
    pub(crate) fn record(millis: u64) -> Record {
        let settings =
            Settings { threads: Some(1), prefetch: Some(1), batch_size: Some(8), ..Settings::default() };
        let step = |step| Step {
            step,
            wall_nanos: millis * 1_000_000,
            wait_nanos: millis * 1_000_000,
            rows: 8,
            input: Some(Input {
                work_nanos: [("decode".to_owned(), millis * 1_000_000)].into(),
                ..Input::default()
            }),
            ..Step::default()
        };
        Record {
            run: Run {
                settings,
                host: Host { usable_cores: Some(2.0), ..Host::default() },
                ..Run::default()
            },
            steps: (0..40).map(step).collect(),
            ..Record::default()
        }
    }

    /// Two threads halve a step; `after` says how long steps are then. How many rounds it took, and how far it was off.
    fn rounds(most: usize, mut after: impl FnMut(usize) -> u64) -> (usize, f64) {
        let mut count = 0;
        let verified = verify(
            "threads",
            &Wish::Threads(2),
            most,
            || Ok(record(100)),
            || {
                count += 1;
                Ok(record(after(count)))
            },
        );
        (count, verified.unwrap().unwrap().off_percent)
    }

    #[test]
    fn rounds_are_as_many_as_it_takes() {
        let (count, off) = rounds(21, |_| 50);
        assert_eq!(count, 7, "they are alike");
        assert!(off.abs() < 1.0, "{off}");
        let (count, off) = rounds(21, |round| 30 + 10 * (round as u64 % 5));
        assert_eq!(count, 21, "they lie apart");
        assert!(off.abs() < 1.0, "{off}: the middle is right none the less");
        assert_eq!(rounds(1, |round| 50 * round as u64).0, 1, "as it was told");
        assert_eq!(rounds(2, |_| 50).0, 1, "there is a middle");
        assert_eq!(rounds(20, |round| 30 + 10 * (round as u64 % 5)).0, 19, "and no more than it was told");
    }

    #[test]
    fn the_table_says_how_far_it_was_off_and_how_often_it_was_tried() {
        let verified =
            verify("threads 1 → 2", &Wish::Threads(2), 21, || Ok(record(100)), || Ok(record(50))).unwrap();
        insta::assert_snapshot!(table(&[verified.unwrap()]), @r"
        VERIFY     samples/s               predicted   measured      off  (quartiles of rounds)
                   threads 1 → 2               160.0      160.0   +0.0 %  (+0 … +0 of 7)
                   predicted anew from runs just before and after: a machine's pace drifts
        ");
    }

    #[test]
    fn of_short_runs_the_middle_counts() {
        let mut count = 0;
        // 40 ms and 120 ms by turns, one more of the first.
        let mut run = || {
            count += 1;
            Ok(record(if count % 2 == 1 { 1 } else { 3 }))
        };
        let rate = measured(&mut run).unwrap();
        assert_eq!(count, 13, "a second");
        assert!((rate / 8_000.0 - 1.0).abs() < 1e-9, "{rate}");
        let mut count = 0;
        let mut moment = || {
            count += 1;
            let mut record = record(1);
            record.steps.iter_mut().for_each(|step| (step.wall_nanos, step.wait_nanos) = (1_000, 1_000));
            Ok(record)
        };
        measured(&mut moment).unwrap();
        assert_eq!(count, 15, "no more than that");
    }
}
