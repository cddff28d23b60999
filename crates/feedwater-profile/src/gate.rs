//! Is the run good enough?
//!
//! A line of conditions for CI: `busy>=90,variation<=20`. A figure that the record does not have fails its condition:
//! a gate that lets through what nobody measured is none.

use serde::Serialize;

use crate::{
    diagnosis::Diagnosis,
    error::{Error, Result},
};

/// Conditions, all of which have to hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Gate {
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Condition {
    figure: &'static Figure,
    relation: Relation,
    bound: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    AtLeast,
    AtMost,
    Above,
    Below,
}

/// Two characters before one, so that `>=` is not read as `>`.
const RELATIONS: [(&str, Relation); 4] =
    [(">=", Relation::AtLeast), ("<=", Relation::AtMost), (">", Relation::Above), ("<", Relation::Below)];

/// A figure that can be asked for.
struct Figure {
    name: &'static str,
    unit: &'static str,
    of: fn(&Diagnosis) -> Option<f64>,
    missing: &'static str,
}

impl std::fmt::Debug for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Figure {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

const NO_ACCELERATOR: &str = "the record has no accelerator time";

const FIGURES: &[Figure] = &[
    Figure { name: "busy", unit: "%", of: |d| d.busy_percent, missing: NO_ACCELERATOR },
    Figure { name: "variation", unit: "%", of: |d| Some(d.variation_percent), missing: "" },
    Figure { name: "robust_variation", unit: "%", of: |d| Some(d.robust_variation_percent), missing: "" },
    Figure {
        name: "wait_share",
        unit: "%",
        of: |d| Some(100.0 * d.mean.wait_nanos / d.mean.wall_nanos),
        missing: "",
    },
    Figure {
        name: "idle_ms",
        unit: "ms",
        of: |d| d.busy_percent.map(|_| d.idle_nanos.iter().map(|(_, nanos)| nanos).sum::<f64>() / 1e6),
        missing: NO_ACCELERATOR,
    },
    Figure { name: "steps_per_second", unit: "/s", of: |d| Some(d.steps_per_second), missing: "" },
    Figure {
        name: "samples_per_second",
        unit: "/s",
        of: |d| (d.samples_per_second > 0.0).then_some(d.samples_per_second),
        missing: "the record does not say how many samples a step has",
    },
    Figure { name: "p50_ms", unit: "ms", of: |d| Some(d.p50_nanos as f64 / 1e6), missing: "" },
    Figure { name: "p99_ms", unit: "ms", of: |d| Some(d.p99_nanos as f64 / 1e6), missing: "" },
    Figure {
        name: "overhead",
        unit: "%",
        of: |d| d.overhead_percent,
        missing: "the record does not say what measuring took",
    },
];

/// How a condition did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Checked {
    /// As it was understood: `busy >= 90`.
    pub condition: String,
    /// The figure's name.
    pub figure: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// What the record says; nothing where it does not.
    pub value: Option<f64>,
    /// Whether it holds.
    pub passed: bool,
    /// Why there is no figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<&'static str>,
}

impl Gate {
    /// The names of all figures, for a hint.
    pub fn names() -> String {
        FIGURES.iter().map(|figure| figure.name).collect::<Vec<_>>().join(", ")
    }

    /// Understands conditions with commas between them.
    pub fn parse(text: &str) -> Result<Self> {
        let conditions = text.split(',').map(Condition::parse).collect::<Result<Vec<_>>>()?;
        Ok(Self { conditions })
    }

    /// Holds a diagnosis against the conditions.
    pub fn check(&self, diagnosis: &Diagnosis) -> Vec<Checked> {
        self.conditions.iter().map(|condition| condition.check(diagnosis)).collect()
    }
}

impl Condition {
    fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        let wrong = |what: String| {
            let names = Gate::names();
            Err(Error::Setting(format!(
                "{what}\nhint: --gate \"busy>=90,variation<=20\"; the figures are {names}"
            )))
        };
        if text.is_empty() {
            return wrong("a condition of the gate is empty".to_owned());
        }
        let found = RELATIONS.iter().find_map(|(sign, relation)| {
            text.split_once(sign).map(|(name, bound)| (name.trim(), *relation, bound.trim()))
        });
        let Some((name, relation, bound)) = found else {
            return wrong(format!("`{text}` has none of >=, <=, > and <"));
        };
        let Some(figure) = FIGURES.iter().find(|figure| figure.name == name) else {
            return wrong(format!("`{name}` is not a figure of a run"));
        };
        // People write the unit; what is meant is plain.
        let number = bound.strip_suffix(figure.unit).unwrap_or(bound).trim_end();
        match number.parse::<f64>() {
            Ok(bound) if bound.is_finite() => Ok(Self { figure, relation, bound }),
            _ => wrong(format!("`{bound}` in `{text}` is not a number")),
        }
    }

    fn check(self, diagnosis: &Diagnosis) -> Checked {
        let value = (self.figure.of)(diagnosis).filter(|value| value.is_finite());
        let holds = |value: f64| match self.relation {
            Relation::AtLeast => value >= self.bound,
            Relation::AtMost => value <= self.bound,
            Relation::Above => value > self.bound,
            Relation::Below => value < self.bound,
        };
        let sign =
            RELATIONS.iter().find(|(_, relation)| *relation == self.relation).map_or("", |(sign, _)| sign);
        Checked {
            condition: format!("{} {sign} {}", self.figure.name, self.bound),
            figure: self.figure.name,
            unit: self.figure.unit,
            value,
            passed: value.is_some_and(holds),
            why: value.is_none().then_some(self.figure.missing),
        }
    }
}

/// The conditions as people read them, a line each.
pub fn render(checked: &[Checked]) -> String {
    let failed = checked.iter().filter(|condition| !condition.passed).count();
    let of = checked.len();
    let plural = if of == 1 { "" } else { "s" };
    let mut lines = vec![if failed == 0 {
        format!("GATE       passed: {of} condition{plural}")
    } else {
        format!("GATE       failed: {failed} of {of} condition{plural}")
    }];
    let width = checked.iter().map(|condition| condition.condition.len()).max().unwrap_or(0);
    for condition in checked {
        let word = if condition.passed { "pass" } else { "FAIL" };
        let figure = match (condition.value, condition.why) {
            (Some(value), _) => format!("is {value:.2} {}", condition.unit),
            (None, why) => format!("is not known: {}", why.unwrap_or_default()),
        };
        lines.push(format!("  {word:<9}{:<width$}   {}", condition.condition, figure.trim_end()));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_understood_with_and_without_spaces_and_units() {
        let gate = Gate::parse(" busy >= 90 %,variation<=20, p99_ms<150ms,overhead>-1").unwrap();
        let said: Vec<String> = gate
            .conditions
            .iter()
            .map(|condition| format!("{:?} {:?} {}", condition.figure, condition.relation, condition.bound))
            .collect();
        assert_eq!(said, ["busy AtLeast 90", "variation AtMost 20", "p99_ms Below 150", "overhead Above -1"]);
    }

    #[test]
    fn what_is_not_a_condition_is_refused_with_the_names() {
        for text in [
            "",
            ",",
            "busy",
            "busy=90",
            "busy>=",
            "busy>=nan",
            "busy>=inf",
            "speed>1",
            ">=3",
            "busy>=90,",
            "busy>=<9",
        ] {
            let message = Gate::parse(text).unwrap_err().to_string();
            assert!(
                message.contains("\nhint: ") && message.contains("robust_variation"),
                "{text}: {message}"
            );
        }
    }
}
