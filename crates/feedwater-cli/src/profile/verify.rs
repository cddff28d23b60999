//! Is what was predicted true? A short run with the setting, and both figures side by side.

use std::time::{Duration, Instant};

use feedwater_profile::{
    Diagnosis, Record,
    diagnosis::Facts,
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

/// Rounds of a comparison: more where they lie apart, until their middle is known to so many percent, or it has taken long enough.
const ROUNDS: usize = 7;
const MOST_ROUNDS: usize = 21;
const SURE_PERCENT: f64 = 2.0;
const ENOUGH: Duration = Duration::from_secs(60);
/// Runs with the setting in a round: more than one where they are over in a moment, as they are from a cache.
const MOST_RUNS: u32 = 15;
const ENOUGH_STEPS: Duration = Duration::from_millis(500);

/// Predicts, runs, compares.
///
/// A machine's pace drifts by more than predictions are off. So a run with the setting stands between two without it,
/// what they predict is averaged, and the middle of the rounds is what counts.
pub(crate) fn verify(
    what: &str,
    wish: &Wish,
    mut before: impl FnMut() -> miette::Result<Record>,
    mut after: impl FnMut() -> miette::Result<Record>,
) -> miette::Result<Option<Verified>> {
    let mut predict = || -> miette::Result<Option<Prediction>> {
        let record = before()?;
        let facts = Facts::of(&record).map_err(|error| miette!("{error}"))?;
        Ok(facts.predict(wish))
    };
    let mut rounds = Vec::new();
    let Some(mut earlier) = predict()? else { return Ok(None) };
    let began = Instant::now();
    // An even number has no middle.
    while rounds.len() < ROUNDS
        || rounds.len().is_multiple_of(2)
        || (rounds.len() < MOST_ROUNDS && began.elapsed() < ENOUGH && unsure_percent(&rounds) > SURE_PERCENT)
    {
        let measured = measured(&mut after)?;
        let Some(later) = predict()? else { return Ok(None) };
        let predicted = earlier.averaged(&later);
        let off_percent = 100.0 * (predicted.samples_per_second / measured - 1.0);
        let what = what.to_owned();
        let quartiles_percent = [off_percent; 2];
        rounds.push(Verified {
            what,
            predicted,
            measured_samples_per_second: measured,
            off_percent,
            quartiles_percent,
        });
        rounds.sort_by(|a, b| a.off_percent.total_cmp(&b.off_percent));
        earlier = later;
    }
    let quartiles_percent = quartiles_percent(&rounds);
    let count = rounds.len();
    let middle = rounds.into_iter().nth(count / 2);
    Ok(middle.map(|middle| Verified { quartiles_percent, ..middle }))
}

/// Of rounds in order.
fn quartiles_percent(rounds: &[Verified]) -> [f64; 2] {
    let count = rounds.len();
    [count / 4, count - 1 - count / 4].map(|at| rounds[at].off_percent)
}

/// How far the middle of some rounds, in order, may be from that of very many: its standard error, where they are spread normally.
fn unsure_percent(rounds: &[Verified]) -> f64 {
    let [low, high] = quartiles_percent(rounds);
    1.2533 * (high - low) / 1.349 / (rounds.len() as f64).sqrt()
}

/// Samples in a second with the setting, of all runs together: what a prediction stands on took as long.
fn measured(run: &mut impl FnMut() -> miette::Result<Record>) -> miette::Result<f64> {
    let (mut runs, mut took, mut seconds_per_sample) = (0, Duration::ZERO, 0.0);
    while runs == 0 || (runs < MOST_RUNS && took < ENOUGH_STEPS) {
        let record = run()?;
        took += Duration::from_nanos(record.steps.iter().map(|step| step.wall_nanos).sum());
        let diagnosis = Diagnosis::of(&record).map_err(|error| miette!("{error}"))?;
        seconds_per_sample += 1.0 / diagnosis.samples_per_second;
        runs += 1;
    }
    Ok(f64::from(runs) / seconds_per_sample)
}

/// As a table.
pub(crate) fn table(verified: &[Verified]) -> String {
    let mut text = format!(
        "{:<11}{:<22}{:>11}{:>11}{:>9}  (quartiles)\n",
        "VERIFY", "samples/s", "predicted", "measured", "off"
    );
    for line in verified {
        use std::fmt::Write as _;
        let _ = writeln!(
            text,
            "{:<11}{:<22}{:>11.1}{:>11.1}{:>+7.1} %  ({:+.0} … {:+.0})",
            "",
            line.what,
            line.predicted.samples_per_second,
            line.measured_samples_per_second,
            line.off_percent,
            line.quartiles_percent[0],
            line.quartiles_percent[1],
        );
    }
    text
}
