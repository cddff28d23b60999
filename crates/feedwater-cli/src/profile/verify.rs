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

/// Rounds of a comparison: more where runs are so short that a neighbour's moment is much of one.
const ROUNDS: usize = 7;
const MOST_ROUNDS: usize = 21;
const ENOUGH: Duration = Duration::from_secs(5);

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
    let few = |rounds: usize| rounds < ROUNDS || (rounds < MOST_ROUNDS && began.elapsed() < ENOUGH);
    // An even number has no middle.
    while few(rounds.len()) || rounds.len().is_multiple_of(2) {
        let measured = Diagnosis::of(&after()?).map_err(|error| miette!("{error}"))?.samples_per_second;
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
        earlier = later;
    }
    rounds.sort_by(|a, b| a.off_percent.total_cmp(&b.off_percent));
    let count = rounds.len();
    let quartiles_percent = [count / 4, count - 1 - count / 4].map(|at| rounds[at].off_percent);
    let middle = rounds.into_iter().nth(count / 2);
    Ok(middle.map(|middle| Verified { quartiles_percent, ..middle }))
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
