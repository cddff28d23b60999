//! What can be believed of a file that says it is a record?
//!
//! A run that was killed leaves half a line behind; a disk that was full, a hole. What can be read is read, what cannot is
//! said in [`Record::damage`], and a file whose first line is not understood is refused: its figures could mean anything.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read as _},
    path::Path,
};

use serde::Deserialize;
use serde_json::Value;

use super::{Call, DeviceSample, End, Head, Record, SLOWEST, Score, Step, VERSION, check};
use crate::error::{Error, Result};

/// No line of a record is longer. A file without line ends must not be read into memory whole.
pub(super) const LONGEST_LINE: usize = 4 << 20;
/// More steps than this are thinned by whoever wrote them, or the file is not what it says.
const MOST_STEPS: usize = 4_000_000;
/// A year, in nanoseconds: no step is longer.
const LONGEST_STEP: u64 = 31_536_000_000_000_000;
/// What to do with a file that is none.
const WRITE_ONE: &str = "`feedwater profile DATA --record run.jsonl` writes one";
/// More scores than this are not kept.
const MOST_SCORES: usize = 100_000;
/// Calls that are kept.
const MOST_CALLS: usize = 100;
/// What is found out with a step, at most.
const MOST_TUNED: usize = 16;
/// What is told of damage, at most.
const MOST_DAMAGE: usize = 20;

impl Record {
    /// Reads a record.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::read(BufReader::new(file)).map_err(|problem| match problem {
            Problem::Io(source) => Error::Read { path: path.to_owned(), source },
            Problem::Not(reason, hint) => {
                Error::NotARecord { path: path.to_owned(), reason, hint: hint.to_owned() }
            }
        })
    }

    fn read(mut input: impl BufRead) -> Result<Self, Problem> {
        let mut line = Vec::new();
        let Line::Whole = next_line(&mut input, &mut line)? else {
            return Err(Problem::Not("its first line is not a line of JSON".to_owned(), WRITE_ONE));
        };
        let head = head(&line)?;
        let mut record = Self { run: head.run, ..Self::default() };
        record.damage = check::run(&mut record.run);
        let mut number = 1_u64;
        let mut bad = record.damage.len();
        loop {
            number += 1;
            let result = match next_line(&mut input, &mut line)? {
                Line::End => break,
                Line::Cut => Err("is cut off".to_owned()),
                Line::TooLong => Err(format!("is longer than {} MiB", LONGEST_LINE >> 20)),
                Line::Whole if line.iter().all(u8::is_ascii_whitespace) => continue,
                Line::Whole => record.take(&line),
            };
            if let Err(reason) = result {
                bad += 1;
                if record.damage.len() < MOST_DAMAGE {
                    record.damage.push(format!("line {number} {reason}"));
                }
            }
            if record.steps.len() > MOST_STEPS {
                return Err(Problem::Not(format!("it has more than {MOST_STEPS} steps"), WRITE_ONE));
            }
        }
        if bad > record.damage.len() {
            record.damage.push(format!("and {} more lines", bad - record.damage.len()));
        }
        check::whole(&record).map_err(|reason| Problem::Not(reason, WRITE_ONE))?;
        Ok(record)
    }

    /// Takes a line in. What it is follows from its first field.
    pub(super) fn take(&mut self, line: &[u8]) -> Result<(), String> {
        fn of<'de, T: Deserialize<'de>>(value: impl serde::Deserializer<'de>) -> Result<T, String> {
            T::deserialize(value).map_err(|_| "has a field of the wrong type, or lacks one".to_owned())
        }
        let mut value: Value = serde_json::from_slice(line).map_err(|_| "is not JSON".to_owned())?;
        if value.get("step").is_some() {
            let step: Step = of(value)?;
            self.take_step(step)
        } else if let Some(device) = value.get_mut("device") {
            let device: DeviceSample = of(device.take())?;
            let share = |percent: Option<f64>| percent.is_none_or(|percent| (0.0..=100.0).contains(&percent));
            if !share(device.busy_percent) || !share(device.memory_busy_percent) {
                return Err("has a share outside 0 … 100 %".to_owned());
            }
            self.devices.push(device);
            Ok(())
        } else if let Some(score) = value.get_mut("score") {
            let score: Score = of(score.take())?;
            let finite = |value: &f64| value.is_finite();
            if !score.loss.iter().all(finite) || !score.shares.values().all(finite) {
                return Err("has a score that is no number".to_owned());
            }
            if self.scores.len() < MOST_SCORES {
                self.scores.push(score);
            }
            Ok(())
        } else if let Some(calls) = value.get_mut("calls") {
            let mut calls: Vec<Call> = of(calls.take())?;
            calls.retain(|call| call.nanos <= check::MOST_WORK);
            calls.truncate(MOST_CALLS);
            self.calls = calls;
            Ok(())
        } else if let Some(end) = value.get_mut("end") {
            self.end = Some(of::<End>(end.take())?);
            Ok(())
        } else if value.is_object() {
            // Of a kind that a later writer knows.
            Ok(())
        } else {
            Err("is not an object".to_owned())
        }
    }

    fn take_step(&mut self, mut step: Step) -> Result<(), String> {
        if let Some(input) = &mut step.input {
            input.slowest.truncate(SLOWEST);
            input.tuned.truncate(MOST_TUNED);
        }
        let parts =
            [step.wait_nanos, step.copy_nanos, step.compute_nanos, step.optimizer_nanos, step.sync_nanos];
        if step.wall_nanos == 0
            || step.wall_nanos > LONGEST_STEP
            || parts.iter().any(|part| *part > LONGEST_STEP)
        {
            return Err(format!("has a step of {} ns", step.wall_nanos));
        }
        // Rounding, and clocks of two kinds, may differ by a little; a step cannot wait longer than it lasts.
        let sum: u64 = parts.iter().sum();
        if sum > step.wall_nanos + step.wall_nanos / 20 + 1_000_000 {
            return Err("has parts that are longer than the step".to_owned());
        }
        if self.steps.last().is_some_and(|last| last.step >= step.step) {
            return Err(format!("repeats step {}", step.step));
        }
        check::step(&step)?;
        self.steps.push(step);
        Ok(())
    }
}

/// The first line of a record.
pub(super) fn head(line: &[u8]) -> Result<Head, Problem> {
    let head: Value = serde_json::from_slice(line)
        .map_err(|error| Problem::Not(format!("its first line is not JSON: {error}"), WRITE_ONE))?;
    if head.get("record").and_then(Value::as_str) != Some("feedwater") {
        return Err(Problem::Not("its first line does not say that it is one".to_owned(), WRITE_ONE));
    }
    // The version before the rest: what a later version wrote may not even have the shape that is known here.
    match head.get("version").and_then(Value::as_u64) {
        Some(version) if version == u64::from(VERSION) => {}
        Some(version) => {
            let reason = format!("it has version {version}, and this program knows version {VERSION}");
            return Err(Problem::Not(reason, "use a newer feedwater"));
        }
        None => return Err(Problem::Not("it has no version".to_owned(), WRITE_ONE)),
    }
    serde_json::from_value(head)
        .map_err(|error| Problem::Not(format!("its first line is wrong: {error}"), WRITE_ONE))
}

#[derive(Debug)]
pub(super) enum Problem {
    Io(std::io::Error),
    Not(String, &'static str),
}

impl From<std::io::Error> for Problem {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

enum Line {
    Whole,
    /// The file ends in its midst.
    Cut,
    TooLong,
    End,
}

fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<Line> {
    line.clear();
    let count = input.by_ref().take(LONGEST_LINE as u64).read_until(b'\n', line)?;
    if count == 0 {
        return Ok(Line::End);
    }
    if line.last() == Some(&b'\n') {
        return Ok(Line::Whole);
    }
    if count < LONGEST_LINE {
        // The last line may lack its end and still be whole.
        let whole = serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok();
        return Ok(if whole { Line::Whole } else { Line::Cut });
    }
    // To the end of the line, without keeping it.
    loop {
        let buffer = input.fill_buf()?;
        if buffer.is_empty() {
            return Ok(Line::TooLong);
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(buffer.len(), |end| end + 1);
        input.consume(used);
        if end.is_some() {
            return Ok(Line::TooLong);
        }
    }
}
