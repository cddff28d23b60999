//! What is written can be read again, and what can be written is documented.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use common::{Case, simulate};
use feedwater_profile::{
    Diagnosis, Record, Recorder,
    record::Step,
    render::{html, text},
};
use serde_json::Value;

#[test]
fn what_is_written_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let record = simulate(&Case::default());
    let mut recorder = Recorder::create(&path, &record.run).unwrap();
    for step in &record.steps {
        recorder.step(step).unwrap();
    }
    for device in &record.devices {
        recorder.device(device).unwrap();
    }
    recorder.end(std::time::Duration::from_millis(3)).unwrap();
    let read = Record::open(&path).unwrap();
    assert_eq!((&read.run, &read.steps, &read.devices), (&record.run, &record.steps, &record.devices));
    assert!(read.damage.is_empty());
    assert!(read.end.unwrap().overhead_nanos.unwrap() >= 3_000_000);
}

/// From one thread to two, four that did not help, and two again; at the end, three are tried.
fn tuned() -> Record {
    let one = simulate(&Case { threads: 1, steps: 20, ..common::input_bound() });
    let two = simulate(&Case { threads: 2, steps: 80, ..common::input_bound() });
    let mut record = Record { steps: one.steps, ..two.clone() };
    record.steps.extend(two.steps);
    for (number, step) in record.steps.iter_mut().enumerate() {
        step.step = number as u64;
        let input = step.input.as_mut().unwrap();
        input.threads = Some(match number {
            0..20 => 1,
            30..40 => 4,
            95.. => 3,
            _ => 2,
        });
        input.prefetch = Some(4);
        match number {
            29 => input.tuned.push("threads 1 → 2: kept".to_owned()),
            39 => input.tuned.push("threads 2 → 4: <taken> back".to_owned()),
            _ => {}
        }
    }
    record
}

#[test]
fn a_run_that_found_out_its_settings_is_told_by_most_of_its_steps() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    std::fs::write(&path, common::lines(&tuned())).unwrap();
    let read = Record::open(&path).unwrap();
    let told = Diagnosis::of(&read).unwrap();
    assert_eq!((told.run.settings.threads, told.run.settings.prefetch), (Some(2), Some(4)));
    let two = Diagnosis::of(&simulate(&Case { threads: 2, steps: 80, ..common::input_bound() })).unwrap();
    assert!((told.samples_per_second / two.samples_per_second - 1.0).abs() < 0.05);
    let apart = told.apart.iter().filter(|apart| apart.why == "other settings").map(|apart| apart.step);
    let apart: Vec<u64> = apart.collect();
    assert!([19, 30, 39, 95].iter().all(|step| apart.contains(step)), "{apart:?}");
    assert!(!apart.iter().any(|step| (20..30).contains(step) || (40..95).contains(step)), "{apart:?}");
    assert_eq!(told.tuned, ["threads 1 → 2: kept", "threads 2 → 4: <taken> back"]);
    let text = text::render(&told, text::Colour::None);
    assert!(
        text.contains("settings   2 changes while it ran, 32 steps with other settings left out; "),
        "{text}"
    );
    assert!(text.replace("\n           ", " ").contains("; these figures: threads 2, prefetch 4"), "{text}");
    assert!(html::render(&read, &told).unwrap().contains("<li>threads 2 → 4: &lt;taken&gt; back</li>"));
    // What no run can have is refused.
    std::fs::write(&path, common::lines(&tuned()).replace("\"threads\":4,", "\"threads\":4000000,")).unwrap();
    assert!(Record::open(&path).unwrap().damage[0].ends_with("has a setting that cannot be"));
}

#[test]
fn where_settings_change_all_the_time_nobody_says_what_others_would_bring() {
    let mut record = simulate(&Case { threads: 1, steps: 60, ..common::input_bound() });
    for (number, step) in record.steps.iter_mut().enumerate() {
        let input = step.input.as_mut().unwrap();
        (input.threads, input.prefetch) = (Some(1 + number / 8), Some(4));
        input.tuned = if number % 8 == 0 { vec!["threads: kept".to_owned()] } else { Vec::new() };
    }
    let told = Diagnosis::of(&record).unwrap();
    assert!(told.steps > 40 && told.run.settings.threads.is_none());
    assert!(
        told.findings.iter().flat_map(|finding| &finding.changes).all(|change| change.predicted.is_none())
    );
    assert!(text::render(&told, text::Colour::None).contains("these figures: of several settings"));
}

/// A run that went on with another number of threads: each part is told by its own.
#[test]
fn a_run_that_went_on_otherwise_is_not_told_by_what_it_was_before() {
    let before = simulate(&Case { threads: 1, steps: 30, ..common::input_bound() });
    let mut record = simulate(&Case { threads: 2, steps: 90, ..common::input_bound() });
    for (step, of) in record.steps.iter_mut().zip(&before.steps) {
        *step = Step { step: step.step, ..of.clone() };
    }
    for (number, step) in record.steps.iter_mut().enumerate() {
        let input = step.input.as_mut().unwrap();
        (input.threads, input.prefetch) = (Some(if number < 30 { 1 } else { 2 }), Some(4));
    }
    let told = Diagnosis::of(&record).unwrap();
    assert_eq!(told.run.settings.threads, Some(2));
    assert!(told.apart.iter().filter(|apart| apart.why == "other settings").all(|apart| apart.step < 30));
}

#[test]
fn a_run_that_was_killed_leaves_a_record_that_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let text = common::lines(&simulate(&Case { steps: 60, ..Case::default() }));
    // In the midst of a line.
    std::fs::write(&path, &text[..text.len() * 2 / 3]).unwrap();
    let read = Record::open(&path).unwrap();
    assert!(read.steps.len() > 25, "{}", read.steps.len());
    assert_eq!(read.damage.len(), 1);
    assert!(read.damage[0].ends_with("is cut off"), "{:?}", read.damage);
}

#[test]
fn every_field_is_in_the_documentation() {
    fn names(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    // Stages and device numbers are data.
                    if name.parse::<u32>().is_err() {
                        found.push(name.clone());
                    }
                    names(value, found);
                }
            }
            Value::Array(values) => values.iter().for_each(|value| names(value, found)),
            _ => {}
        }
    }
    let page = include_str!("../../../docs/record.md");
    let mut found = Vec::new();
    let text = common::lines(&simulate(&common::input_bound())) + &common::lines(&tuned());
    for line in text.lines() {
        names(&serde_json::from_str(line).unwrap(), &mut found);
    }
    found.sort();
    found.dedup();
    assert!(found.len() > 40, "{found:?}");
    for name in found {
        assert!(
            page.contains(&format!("`{name}`")) || page.contains(&format!("\"{name}\"")),
            "`{name}` is not documented"
        );
    }
}
