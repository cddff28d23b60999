//! The trace: what a viewer needs, and the same sums as the record.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use std::collections::BTreeMap;

use common::{Case, input_bound, simulate};
use feedwater_profile::render::trace;
use serde_json::Value;

fn events(text: &str) -> Vec<Value> {
    let trace: Value = serde_json::from_str(text).unwrap();
    trace["traceEvents"].as_array().unwrap().clone()
}

#[test]
fn the_sums_are_those_of_the_record() {
    let record = simulate(&Case { sync: 2.0, ..input_bound() });
    let events = events(&trace::render(&record, 1000));
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    let mut ends: BTreeMap<u64, f64> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let (at, lasts) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
        assert!(lasts > 0.0 && event["pid"] == 1);
        // On a track, one after the other.
        let end = ends.entry(event["tid"].as_u64().unwrap()).or_default();
        assert!(at >= *end - 1e-3, "{event} begins before {end}");
        *end = at + lasts;
        let name = match (event["tid"].as_u64().unwrap(), event["name"].as_str().unwrap()) {
            (1, _) => "step",
            (3, _) => "wait",
            (_, name) => name,
        };
        *sums.entry(name.to_owned()).or_default() += lasts;
    }
    let sum = |of: fn(&feedwater_profile::record::Step) -> u64| {
        record.steps.iter().map(of).sum::<u64>() as f64 / 1e3
    };
    for (name, expected) in [
        ("step", sum(|step| step.wall_nanos)),
        ("wait", sum(|step| step.wait_nanos)),
        ("copy", sum(|step| step.copy_nanos)),
        ("compute", sum(|step| step.compute_nanos)),
        ("optimizer", sum(|step| step.optimizer_nanos)),
        ("sync", sum(|step| step.sync_nanos)),
    ] {
        assert!((sums[name] - expected).abs() < 1.0, "{name}: {} and {expected}", sums[name]);
    }
    let counters: Vec<&Value> = events.iter().filter(|event| event["ph"] == "C").collect();
    assert_eq!(counters.len(), record.steps.len());
    assert!(counters.iter().all(|counter| counter["args"]["batches"].is_u64()));
    let names: Vec<&str> = events
        .iter()
        .filter(|event| event["name"] == "thread_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["steps", "accelerator busy", "waiting for input", "copy and sync"]);
}

#[test]
fn a_part_of_a_long_record_has_the_worst_step_in_it() {
    let record = simulate(&input_bound());
    let worst = record.steps.iter().skip(24).max_by_key(|step| step.wait_nanos).unwrap();
    let blame = worst.input.as_ref().unwrap().waited_for.as_ref().unwrap();
    let events = events(&trace::render(&record, 30));
    let named =
        |name: &str| events.iter().filter(|event| event["ph"] == "X" && event["name"] == name).count();
    assert_eq!(named(&format!("step {}", worst.step)), 1);
    assert_eq!(named(&format!("{} ({})", blame.key, blame.stage)), 1);
    let steps = events.iter().filter(|event| event["ph"] == "X" && event["tid"] == 1).count();
    assert_eq!(steps, 30);
    // In its place in the run, not at the beginning.
    let before: u64 =
        record.steps.iter().take_while(|step| step.step < worst.step).map(|step| step.wall_nanos).sum();
    let at =
        events.iter().find(|event| event["name"] == format!("step {}", worst.step)).unwrap()["ts"].as_f64();
    assert!((at.unwrap() - before as f64 / 1e3).abs() < 1.0);
}
