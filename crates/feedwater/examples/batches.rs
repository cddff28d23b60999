//! From a folder of sound to the batches that a speech model takes, and where the time went.
//!
//! ```text
//! cargo run --release -- generate morse --out data/morse
//! cargo run --release --example batches -- data/morse
//! cargo run --release --example batches -- data/morse path/to/tokenizer.json
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::{env, process::ExitCode};

use feedwater::{Audio, Batch, LogMel, Pipeline, ReadyBatch, Result, Tokenize, pipeline::Report};

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let Some(folder) = arguments.next() else {
        eprintln!("usage: batches DATASET [TOKENIZER.JSON]");
        return ExitCode::from(2);
    };
    match run(&folder, arguments.next().as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        // The message says what was wrong, where, and what to do about it.
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(folder: &str, tokenizer: Option<&str>) -> Result<()> {
    // A pipeline reads as the flow of its samples. What is in the folder is found by looking: a metadata file, a manifest,
    // tar shards, a Parquet table, TFRecords or bare sound files.
    let mut flow = Pipeline::open(folder)?
        // Whatever the container and the rate, one channel at 16 kHz.
        .decode(Audio::mono(16_000))
        // Whisper's features: 80 bins, 3000 frames, whatever the length of the clip.
        .log_mel(LogMel::whisper(80));

    // With a tokenizer, transcripts become padded `labels`. Without one, they travel as text.
    if let Some(file) = tokenizer {
        flow = flow.tokenize(Tokenize::file(file)?);
    }

    // The order of the samples follows from the dataset, the seed and the epoch. All cores work on it; how many there
    // are changes nothing about what comes out. No thread runs before the first batch is asked for.
    let mut pipeline = flow.batch(Batch::of(16)).seed(7).build()?;
    let steps = pipeline.steps().unwrap_or_default();
    println!("{}, {} an epoch", count(pipeline.samples(), "sample"), count(steps, "step"));

    for batch in pipeline.epoch(0) {
        // An error here ends the epoch. Bad samples are no errors: they are left out, counted, and written to
        // `quarantine.jsonl`, unless they are more than one in a hundred
        // (rounded up: the first of a small set does not end a run) or all that there are.
        let batch = batch?;
        if batch.step < 3 {
            show(&batch);
        }
        // Here a trainer takes a step. When `batch` is dropped, its memory is filled again.
    }

    // Measuring is always on.
    show_report(&pipeline.report());
    Ok(())
}

/// Named tensors, padded, with the length of each row before it was padded; and the keys of the samples in it.
fn show(batch: &ReadyBatch) {
    println!(
        "\nstep {}: {} … {}",
        batch.step,
        first(&batch.keys),
        batch.keys.last().map_or("", String::as_str)
    );
    for tensor in &batch.tensors {
        let longest = tensor.lengths.iter().max().copied().unwrap_or_default();
        println!("  {:<16}{:?} {:?}, longest row {longest}", tensor.name, tensor.shape, tensor.dtype);
    }
    for (name, texts) in &batch.texts {
        println!("  {name:<16}{:?} …", first(texts));
    }
}

fn count(number: u64, one: &str) -> String {
    format!("{number} {one}{}", if number == 1 { "" } else { "s" })
}

fn first(texts: &[String]) -> &str {
    texts.first().map_or("", String::as_str)
}

/// What each stage did, over all threads, and what the consumer waited for. Stages may have seen a few samples more than
/// were taken: the next epoch is under way before this one ends.
fn show_report(report: &Report) {
    println!("\n{:<10}{:>8}{:>10}{:>10}", "stage", "items", "busy ms", "MB");
    for stage in &report.stages {
        let (busy, megabytes) = (stage.busy_nanos as f64 / 1e6, stage.bytes as f64 / 1e6);
        println!("{:<10}{:>8}{busy:>10.1}{megabytes:>10.1}", stage.name, stage.items);
    }
    let seconds = report.wall_nanos as f64 / 1e9;
    let rate = report.samples as f64 / seconds.max(f64::MIN_POSITIVE);
    println!(
        "\n{} in {seconds:.2} s on {}: {rate:.0} samples/s",
        count(report.samples, "sample"),
        count(report.threads as u64, "thread")
    );
    if report.bad > 0 {
        println!("left out: {}; see quarantine.jsonl", count(report.bad, "bad sample"));
    }
    if let Some(worst) = report.worst_wait().filter(|worst| worst.wait_nanos > 0) {
        let milliseconds = worst.wait_nanos as f64 / 1e6;
        println!(
            "longest wait: step {}, {milliseconds:.1} ms, for {} in {}",
            worst.step, worst.key, worst.stage
        );
    }
}
