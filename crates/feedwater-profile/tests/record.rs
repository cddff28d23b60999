//! What is written can be read again, and what can be written is documented.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use common::{Case, simulate};
use feedwater_profile::{Record, Recorder};
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
    for line in common::lines(&simulate(&common::input_bound())).lines() {
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
