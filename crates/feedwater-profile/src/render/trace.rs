//! A few steps on a timeline, for `ui.perfetto.dev` or `chrome://tracing`.
//!
//! A record has no moments, only lengths: steps are laid end to end, and within a step its parts in the order in which a
//! training loop goes through them. How much of a step is what is exact; what lay beside what within a step is not known,
//! and the trace does not pretend that it is.

use serde_json::{Map, Value, json};

use crate::record::{Record, Step};

/// So many steps unless told.
pub const STEPS: usize = 500;
/// More would make a file that no browser opens.
pub const MOST_STEPS: usize = 20_000;

const PROCESS: u32 = 1;

/// The tracks, from the top.
const STEP: (u32, &str) = (1, "steps");
const BUSY: (u32, &str) = (2, "accelerator busy");
const WAIT: (u32, &str) = (3, "waiting for input");
const MOVE: (u32, &str) = (4, "copy and sync");

/// The trace of at most `most` steps in a row: all of them, or those around the step that waited the longest.
pub fn render(record: &Record, most: usize) -> String {
    let range = window(record, most.clamp(1, MOST_STEPS));
    let mut events = vec![named("process_name", 0, &format!("feedwater: {}", record.run.name))];
    for (order, (track, name)) in [STEP, BUSY, WAIT, MOVE].into_iter().enumerate() {
        events.push(named("thread_name", track, name));
        events.push(json!({
            "ph": "M", "name": "thread_sort_index", "pid": PROCESS, "tid": track, "args": {"sort_index": order},
        }));
    }
    let before = &record.steps[..range.start];
    let mut at: u64 = before.iter().map(|step| step.wall_nanos).sum();
    for step in &record.steps[range.clone()] {
        self::step(step, at, &mut events);
        at += step.wall_nanos;
    }
    let note = format!(
        "steps {} to {} of {}; laid end to end, parts of a step in the order wait, copy, compute, optimizer, sync",
        record.steps.get(range.start).map_or(0, |step| step.step),
        record.steps.get(range.end.saturating_sub(1)).map_or(0, |step| step.step),
        record.steps.len(),
    );
    json!({ "displayTimeUnit": "ms", "otherData": {"note": note}, "traceEvents": events }).to_string()
}

fn window(record: &Record, most: usize) -> std::ops::Range<usize> {
    let all = record.steps.len();
    if all <= most {
        return 0..all;
    }
    // The first steps always wait; they are not what anybody looks for.
    let skip = (all / 10).min(100);
    let worst = (skip..all).max_by_key(|at| record.steps[*at].wait_nanos).unwrap_or(0);
    let begin = worst.saturating_sub(most / 3).min(all - most);
    begin..begin + most
}

fn named(what: &str, track: u32, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": PROCESS, "tid": track, "args": {"name": name} })
}

/// Microseconds, as the format has them.
fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

fn step(step: &Step, at: u64, events: &mut Vec<Value>) {
    let end = at + step.wall_nanos;
    let mut add = |track: (u32, &str), name: &str, from: u64, nanos: u64, args: Map<String, Value>| {
        // Clocks of two kinds may make the parts a little longer than the step; they must not run into the next.
        let nanos = nanos.min(end.saturating_sub(from));
        if nanos > 0 {
            events.push(json!({
                "ph": "X", "name": name, "pid": PROCESS, "tid": track.0,
                "ts": micros(from), "dur": micros(nanos), "args": args,
            }));
        }
        from + nanos
    };
    let number = step.step;
    let mut about = Map::new();
    about.insert("rows".to_owned(), step.rows.into());
    about.insert("epoch".to_owned(), step.epoch.into());
    about.insert("unknown_ms".to_owned(), (step.unknown_nanos() as f64 / 1e6).into());
    let name = match &step.mark {
        Some(mark) => format!("step {number} ({mark})"),
        None => format!("step {number}"),
    };
    add(STEP, &name, at, step.wall_nanos, about);
    let input = step.input.as_ref();
    let mut about = Map::new();
    for (stage, nanos) in input.iter().flat_map(|input| &input.work_nanos) {
        about.insert(format!("work {stage} ms"), (*nanos as f64 / 1e6).into());
    }
    let waited = input.and_then(|input| input.waited_for.as_ref()).filter(|blame| !blame.key.is_empty());
    let name = waited.map_or_else(|| "wait".to_owned(), |blame| format!("{} ({})", blame.key, blame.stage));
    let from = add(WAIT, &name, at, step.wait_nanos, about);
    let from = add(MOVE, "copy", from, step.copy_nanos, Map::new());
    let from = add(BUSY, "compute", from, step.compute_nanos, Map::new());
    let from = add(BUSY, "optimizer", from, step.optimizer_nanos, Map::new());
    add(MOVE, "sync", from, step.sync_nanos, Map::new());
    if let Some(ready) = input.and_then(|input| input.ready) {
        events.push(json!({
            "ph": "C", "name": "batches ready", "pid": PROCESS, "ts": micros(at), "args": {"batches": ready},
        }));
    }
}
