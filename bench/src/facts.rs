//! What else was promised: start, memory, resume, epoch edges, what measuring costs.

use std::{hint::black_box, time::Instant};

use feedwater::{
    Audio, Batch, LogMel, Pipeline, Policy, Result,
    source::{Files, Kind},
};

use crate::{Options, fail, machine, say, whisper};

pub(crate) fn run(options: &Options) -> Result<()> {
    let data = options.path("data").unwrap_or_else(|| fail("facts needs --data DIR"));
    start(options, "NeMo manifest of 1 M lines", &data.join("manifest_1m.jsonl"))?;
    start(options, "text file with 1 M paths", &data.join("paths_1m.txt"))?;
    list_in_memory(&data.join("paths_1m.txt"))?;
    resume(options, &data.join("manifest_1m.jsonl"))?;
    edge(options, &data.join("wav16k"))?;
    measuring(options, &data.join("wav16k"))
}

/// Open and first batch.
fn start(options: &Options, what: &str, path: &std::path::Path) -> Result<()> {
    let before = machine::own_mb();
    let began = Instant::now();
    let mut pipeline = whisper(path, options)?.shuffle(true).seed(7).build()?;
    let opened = began.elapsed();
    let bytes = (machine::own_mb() - before) * 1024.0 * 1024.0 / pipeline.samples() as f64;
    let mut epoch = pipeline.epoch(0);
    black_box(epoch.next().transpose()?);
    let first = began.elapsed();
    say(&format!(
        "{what}: open {:.3} s, open and first batch {:.3} s, {bytes:.1} bytes a sample",
        opened.as_secs_f64(),
        first.as_secs_f64()
    ));
    Ok(())
}

/// The same from a list that the program has already.
fn list_in_memory(path: &std::path::Path) -> Result<()> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| feedwater::Error::Read { path: path.into(), source: error })?;
    let paths: Vec<&str> = text.lines().collect();
    let base = path.parent().unwrap_or(path);
    let began = Instant::now();
    let source = Files::list(base, Kind::Audio, &paths);
    let mut pipeline = Pipeline::from_source(Box::new(source))
        .decode(Audio::mono(16_000))
        .log_mel(LogMel::whisper(80))
        .batch(Batch::of(16))
        .policy(Policy::fail())
        .build()?;
    let mut epoch = pipeline.epoch(0);
    black_box(epoch.next().transpose()?);
    say(&format!(
        "list of {} paths in memory: open and first batch {:.3} s",
        paths.len(),
        began.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// From a saved state at 90 % of an epoch to the next batch.
fn resume(options: &Options, path: &std::path::Path) -> Result<()> {
    let build = || whisper(path, options)?.shuffle(true).seed(7).build();
    let mut pipeline = build()?;
    // Made as a run would have left it: the first state, with the step put forward.
    let mut epoch = pipeline.epoch(0);
    black_box(epoch.next().transpose()?);
    let state = epoch.state();
    drop(epoch);
    let target = pipeline.steps().unwrap_or(0) * 9 / 10;
    let json = state.to_json().replacen("\"step\":1", &format!("\"step\":{target}"), 1);
    let state = feedwater::State::from_json(&json)?;
    let mut pipeline = build()?;
    let began = Instant::now();
    pipeline.restore(&state)?;
    let restored = began.elapsed();
    let mut epoch = pipeline.epoch(0);
    let batch = epoch.next().transpose()?;
    let first = began.elapsed();
    let step = batch.map_or(0, |batch| batch.step);
    say(&format!(
        "resume at step {step} of {}: restored in {:.3} ms, next batch after {:.1} ms",
        epoch_steps(target),
        restored.as_secs_f64() * 1e3,
        first.as_secs_f64() * 1e3
    ));
    Ok(())
}

fn epoch_steps(target: u64) -> u64 {
    target * 10 / 9
}

/// The longest gap between batches at an epoch's edge against that within epochs, at a pace that the engine keeps up with.
fn edge(options: &Options, path: &std::path::Path) -> Result<()> {
    let mut pipeline = whisper(path, options)?.shuffle(true).build()?;
    let (mut edge, mut within) = (0.0_f64, 0.0_f64);
    for epoch in 0..6 {
        let mut batches = pipeline.epoch(epoch);
        let mut first = true;
        loop {
            let asked = Instant::now();
            let Some(batch) = batches.next().transpose()? else { break };
            let gap = asked.elapsed().as_secs_f64() * 1e3;
            if epoch > 0 && first {
                edge = edge.max(gap);
            } else if epoch > 0 {
                within = within.max(gap);
            }
            first = false;
            drop(batch);
            std::thread::sleep(std::time::Duration::from_millis(60));
        }
    }
    say(&format!("60 ms steps: longest wait at an epoch's edge {edge:.2} ms, within epochs {within:.2} ms"));
    Ok(())
}

/// CPU time with and without measuring, interleaved.
fn measuring(options: &Options, path: &std::path::Path) -> Result<()> {
    let mut ratios = Vec::new();
    for round in 0..41 {
        let mut cpu = [0.0; 2];
        // Which comes first changes each round.
        for at in 0..2 {
            let on = (at + round) % 2 == 0;
            let mut pipeline = whisper(path, options)?.measure(on).build()?;
            let began = machine::cpu_seconds();
            for batch in pipeline.epoch(0) {
                black_box(batch?);
            }
            cpu[usize::from(on)] = machine::cpu_seconds() - began;
        }
        ratios.push(cpu[1] / cpu[0]);
    }
    ratios.sort_by(f64::total_cmp);
    say(&format!(
        "measuring on against off: {:+.2} % CPU (median of {})",
        (ratios[ratios.len() / 2] - 1.0) * 100.0,
        ratios.len()
    ));
    Ok(())
}
