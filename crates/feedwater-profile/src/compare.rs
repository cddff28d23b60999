//! Is it better than before?
//!
//! Two runs are never alike. Each figure therefore comes with the interval in which its change lies when the steps of
//! both runs are drawn again, in blocks: neighbouring steps have a queue in common, and drawing them one by one would make
//! the interval too narrow. The same two records give the same answer, always.
//!
//! The interval knows what varies within a run. It cannot know what differs from one run to the next (another program on
//! the machine, a warm page cache), which is why a change of less than 1 % is never called one.

use serde::Serialize;

use crate::{
    error::{Error, Result},
    record::{Record, Settings},
    render::plain,
    rules::millis,
    steps::Steps,
};

/// A smaller change is not called one, however sure it is.
const LEAST_CHANGE_PERCENT: f64 = 1.0;
/// Times that the steps are drawn again; fewer where there are very many.
const DRAWS: usize = 999;
const FEWEST_DRAWS: usize = 199;
/// Steps drawn in all, for a figure: keeps a long record within seconds.
const MOST_DRAWN: usize = 10_000_000;

/// What is known of a step here.
#[derive(Debug, Clone, Copy)]
struct Drawn {
    wall: f64,
    wait: f64,
    busy: f64,
    rows: f64,
}

/// Whether more is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Good {
    High,
    Low,
}

struct Kind {
    name: &'static str,
    unit: &'static str,
    good: Good,
    /// Whether it can be compared where steps have other numbers of samples.
    any_batch: bool,
    /// Whether the change is said in points of a percentage, and not in percent of it.
    points: bool,
    of: fn(&mut [Drawn]) -> f64,
}

const KINDS: &[Kind] = &[
    Kind {
        name: "steps_per_second",
        unit: "/s",
        good: Good::High,
        any_batch: false,
        points: false,
        of: pace,
    },
    Kind {
        name: "samples_per_second",
        unit: "/s",
        good: Good::High,
        any_batch: true,
        points: false,
        of: samples,
    },
    Kind {
        name: "p50_ms",
        unit: "ms",
        good: Good::Low,
        any_batch: false,
        points: false,
        of: |steps| quantile(steps, 0.5),
    },
    Kind {
        name: "p99_ms",
        unit: "ms",
        good: Good::Low,
        any_batch: false,
        points: false,
        of: |steps| quantile(steps, 0.99),
    },
    Kind { name: "wait_ms", unit: "ms", good: Good::Low, any_batch: false, points: false, of: wait },
    Kind { name: "busy", unit: "%", good: Good::High, any_batch: true, points: true, of: busy },
    Kind { name: "variation", unit: "%", good: Good::Low, any_batch: true, points: true, of: variation },
];

fn sum(steps: &[Drawn], of: impl Fn(&Drawn) -> f64) -> f64 {
    steps.iter().map(of).sum()
}

fn pace(steps: &mut [Drawn]) -> f64 {
    1e9 * steps.len() as f64 / sum(steps, |step| step.wall)
}

fn samples(steps: &mut [Drawn]) -> f64 {
    1e9 * sum(steps, |step| step.rows) / sum(steps, |step| step.wall)
}

fn wait(steps: &mut [Drawn]) -> f64 {
    sum(steps, |step| step.wait) / steps.len() as f64 / 1e6
}

fn busy(steps: &mut [Drawn]) -> f64 {
    (100.0 * sum(steps, |step| step.busy) / sum(steps, |step| step.wall)).min(100.0)
}

fn variation(steps: &mut [Drawn]) -> f64 {
    let mean = sum(steps, |step| step.wall) / steps.len() as f64;
    let variance = sum(steps, |step| (step.wall - mean).powi(2)) / steps.len() as f64;
    100.0 * variance.sqrt() / mean
}

fn quantile(steps: &mut [Drawn], share: f64) -> f64 {
    let at = ((share * steps.len() as f64).ceil() as usize).clamp(1, steps.len()) - 1;
    steps.select_nth_unstable_by(at, |a, b| a.wall.total_cmp(&b.wall)).1.wall / 1e6
}

/// What became of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// Better, beyond noise.
    Better,
    /// Worse, beyond noise.
    Worse,
    /// Within noise.
    NoDifference,
    /// Steps of different sizes: the figure says nothing.
    NotComparable,
}

impl Word {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NoDifference => "no difference",
            Self::NotComparable => "not comparable",
        }
    }
}

/// A figure, before and after.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// What it is called.
    pub figure: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Before.
    pub before: f64,
    /// After.
    pub after: f64,
    /// How much it changed: in percent, or in points where the figure is itself a percentage.
    pub change: f64,
    /// Of what the change is so much: `%` or `points`.
    pub change_unit: &'static str,
    /// 95 % of the changes that come of drawing the steps again lie between these.
    pub interval: (f64, f64),
    /// What that means.
    pub word: Word,
}

/// Two runs side by side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Steps that count, before and after.
    pub steps: (usize, usize),
    /// Settings that differ: name, before, after.
    pub changed: Vec<(String, String, String)>,
    /// What to keep in mind.
    pub notes: Vec<String>,
    /// The figure that decides.
    pub decided_by: &'static str,
    /// What it says.
    pub result: Word,
    /// All figures.
    pub figures: Vec<Compared>,
}

impl Comparison {
    /// Compares a run with one before it.
    pub fn of(before: &Record, after: &Record) -> Result<Self> {
        let (before_steps, after_steps) = (Steps::of(before)?, Steps::of(after)?);
        let (a, b) = (drawn(before, &before_steps), drawn(after, &after_steps));
        let changed = changed(&before.run.settings, &after.run.settings);
        let mut notes = Vec::new();
        let rows = |steps: &Steps| steps.mean.rows;
        let differs = |name: &str| changed.iter().any(|(changed, ..)| changed == name);
        let other_rows = differs("batch_size")
            || (rows(&before_steps) - rows(&after_steps)).abs() > 0.05 * rows(&before_steps);
        let other_task = differs("task");
        let has_rows = rows(&before_steps) > 0.0 && rows(&after_steps) > 0.0;
        let unlike = other_rows || other_task;
        if unlike && !has_rows {
            return Err(Error::Setting(
                "steps of these runs are of different sizes, and a record does not say how many samples they have\n\
                 hint: write `rows` with every step, and record both runs again"
                    .to_owned(),
            ));
        }
        if other_task {
            notes.push(
                "different tasks: samples/s is compared instead of steps/s, and a sample is not the same work in both"
                    .to_owned(),
            );
        } else if other_rows {
            notes.push(format!(
                "{:.0} and {:.0} samples a step: samples/s is compared instead of steps/s",
                rows(&before_steps),
                rows(&after_steps)
            ));
        }
        if differs("data") {
            notes.push("different data: part of the change may be the data's".to_owned());
        }
        let pretended = |record: &Record| record.run.devices.iter().any(|device| device.simulated);
        let other_accelerator = pretended(before) != pretended(after) || differs("step_nanos");
        if other_accelerator {
            notes.push("different accelerators: a step is not the same work in both".to_owned());
        }
        for (name, record) in [("before", before), ("after", after)] {
            if let Some(first) = record.damage.first() {
                let more = record.damage.len() - 1;
                let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
                notes.push(format!("the record of {name} is damaged: {first}{more}"));
            }
        }
        let measured_busy = before_steps.mean.busy_nanos > 0.0 && after_steps.mean.busy_nanos > 0.0;
        let decided_by = if unlike { "samples_per_second" } else { "steps_per_second" };
        let figures: Vec<Compared> = KINDS
            .iter()
            .filter(|kind| match kind.name {
                "busy" => measured_busy,
                "samples_per_second" => has_rows,
                _ => true,
            })
            .map(|kind| compared(kind, &a, &b, unlike))
            .collect();
        let result = figures
            .iter()
            .find(|figure| figure.figure == decided_by && !other_task && !other_accelerator)
            .map_or(Word::NotComparable, |figure| figure.word);
        Ok(Self { steps: (a.len(), b.len()), changed, notes, decided_by, result, figures })
    }
}

fn drawn(record: &Record, steps: &Steps) -> Vec<Drawn> {
    steps
        .of_record(record)
        .map(|step| Drawn {
            wall: step.wall_nanos as f64,
            wait: step.wait_nanos as f64,
            busy: step.busy_nanos() as f64,
            rows: step.rows as f64,
        })
        .collect()
}

fn compared(kind: &Kind, before: &[Drawn], after: &[Drawn], unlike: bool) -> Compared {
    let change = |a: f64, b: f64| {
        if kind.points {
            b - a
        } else {
            // From next to nothing to something is no percentage that anybody can read: bounded, and still a rise.
            (100.0 * (b - a) / a.abs().max(1e-3)).clamp(-1e6, 1e6)
        }
    };
    let (a, b) = ((kind.of)(&mut before.to_vec()), (kind.of)(&mut after.to_vec()));
    let draws = (MOST_DRAWN / (before.len() + after.len())).clamp(FEWEST_DRAWS, DRAWS);
    let mut random = Random(0x5eed);
    let (mut again_a, mut again_b) = (before.to_vec(), after.to_vec());
    let mut changes: Vec<f64> = (0..draws)
        .map(|_| {
            random.draw(before, &mut again_a);
            random.draw(after, &mut again_b);
            change((kind.of)(&mut again_a), (kind.of)(&mut again_b))
        })
        .collect();
    changes.sort_by(f64::total_cmp);
    let at = |share: f64| changes[((share * draws as f64) as usize).min(draws - 1)];
    let (low, high) = (at(0.025), at(0.975));
    let change = change(a, b);
    // A wait of microseconds may double without anybody losing anything by it.
    let step = before.iter().map(|step| step.wall).sum::<f64>() / before.len() as f64 / 1e6;
    let tiny = match kind.unit {
        "ms" => (b - a).abs() < 0.01 * step,
        _ => change.abs() < LEAST_CHANGE_PERCENT,
    };
    let word = if unlike && !kind.any_batch {
        Word::NotComparable
    } else if tiny || (low <= 0.0 && high >= 0.0) {
        Word::NoDifference
    } else if (change > 0.0) == (kind.good == Good::High) {
        Word::Better
    } else {
        Word::Worse
    };
    Compared {
        figure: kind.name,
        unit: kind.unit,
        before: a,
        after: b,
        change,
        change_unit: if kind.points { "points" } else { "%" },
        interval: (low, high),
        word,
    }
}

/// `SplitMix64`: the same draws on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(z ^ (z >> 31)) * bound as u128) >> 64) as usize
    }

    /// As many steps again, in blocks that go on at the beginning where they come to the end.
    fn draw(&mut self, steps: &[Drawn], again: &mut [Drawn]) {
        let block = ((steps.len() as f64).sqrt().ceil() as usize).max(1);
        for part in again.chunks_mut(block) {
            let begin = self.below(steps.len());
            for (offset, step) in part.iter_mut().enumerate() {
                *step = steps[(begin + offset) % steps.len()];
            }
        }
    }
}

/// The settings that differ, as their names in the record.
fn changed(before: &Settings, after: &Settings) -> Vec<(String, String, String)> {
    let (Ok(serde_json::Value::Object(before)), Ok(serde_json::Value::Object(after))) =
        (serde_json::to_value(before), serde_json::to_value(after))
    else {
        return Vec::new();
    };
    let word = |value: Option<&serde_json::Value>| match value {
        None | Some(serde_json::Value::Null) => "not known".to_owned(),
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    before
        .iter()
        .filter(|(name, value)| after.get(*name) != Some(value))
        .map(|(name, value)| (name.clone(), word(Some(value)), word(after.get(name))))
        .collect()
}

/// The comparison as a table of 80 columns.
pub fn render(comparison: &Comparison, before: &str, after: &str) -> String {
    let mut lines = vec![
        format!("BEFORE     {before} ({} steps)", comparison.steps.0),
        format!("AFTER      {after} ({} steps)", comparison.steps.1),
    ];
    for (name, from, to) in &comparison.changed {
        lines.push(plain(&format!("changed    {name}: {from} → {to}")));
    }
    lines.push(String::new());
    lines.push(
        format!("{:<13}{:>9}{:>10}{:>12}   {:<22}", "", "before", "after", "change", "95 % interval")
            .trim_end()
            .to_owned(),
    );
    for figure in &comparison.figures {
        let (name, digits) = words_of(figure);
        let change = if figure.change_unit == "points" { "pt" } else { "%" };
        let (low, high) = figure.interval;
        let interval = format!("{low:+.1} … {high:+.1}");
        lines.push(format!(
            "{name:<13}{:>9}{:>10}{:>12}   {interval:<19}{}",
            number(figure.before, digits),
            number(figure.after, digits),
            format!("{:+.1} {change:<2}", figure.change),
            figure.word.words(),
        ));
    }
    lines.push(String::new());
    let decided = comparison.figures.iter().find(|figure| figure.figure == comparison.decided_by);
    if let Some(figure) = decided {
        let (name, digits) = words_of(figure);
        lines.push(format!(
            "RESULT     {}: {} → {} {name}",
            comparison.result.words(),
            number(figure.before, digits),
            number(figure.after, digits),
        ));
    }
    for note in &comparison.notes {
        for (at, line) in crate::render::wrapped(note, 69).into_iter().enumerate() {
            lines.push(format!("{:<11}{}", if at == 0 { "note" } else { "" }, line.trim_end()));
        }
    }
    lines.push("           The interval is the noise within the runs, not between one run and".to_owned());
    lines.push("           the next. A change below 1 % is called none.".to_owned());
    lines.join("\n")
}

fn words_of(figure: &Compared) -> (&'static str, Option<usize>) {
    match figure.figure {
        "steps_per_second" => ("steps/s", Some(2)),
        "samples_per_second" => ("samples/s", Some(1)),
        "p50_ms" => ("p50 ms", None),
        "p99_ms" => ("p99 ms", None),
        "wait_ms" => ("wait ms", None),
        "busy" => ("busy %", Some(1)),
        _ => ("variation %", Some(1)),
    }
}

fn number(value: f64, digits: Option<usize>) -> String {
    digits.map_or_else(|| millis(value * 1e6), |digits| format!("{value:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(count: usize, millis: impl Fn(usize) -> f64) -> Vec<Drawn> {
        (0..count).map(|at| Drawn { wall: millis(at) * 1e6, wait: 1e6, busy: 5e6, rows: 8.0 }).collect()
    }

    #[test]
    fn neighbours_that_are_alike_widen_the_interval() {
        // The same times: once in turns, once in long runs, as a queue that fills and drains makes them.
        let turns = steps(400, |at| if at % 2 == 0 { 10.0 } else { 20.0 });
        let runs = steps(400, |at| if (at / 50) % 2 == 0 { 10.0 } else { 20.0 });
        let width = |steps: &[Drawn]| {
            let (low, high) = compared(&KINDS[0], steps, steps, false).interval;
            high - low
        };
        assert!(width(&runs) > 3.0 * width(&turns), "{} {}", width(&runs), width(&turns));
    }

    #[test]
    fn a_change_of_half_a_percent_is_none_and_a_tenth_is_one() {
        let noise = |at: usize| (at * 7919 % 13) as f64 * 0.05;
        let before = steps(300, |at| 20.0 + noise(at));
        let slightly = steps(300, |at| 20.1 + noise(at));
        let clearly = steps(300, |at| 22.0 + noise(at));
        assert_eq!(compared(&KINDS[0], &before, &slightly, false).word, Word::NoDifference);
        assert_eq!(compared(&KINDS[0], &before, &clearly, false).word, Word::Worse);
        assert_eq!(compared(&KINDS[2], &clearly, &before, false).word, Word::Better);
        assert_eq!(compared(&KINDS[2], &clearly, &before, true).word, Word::NotComparable);
    }
}
