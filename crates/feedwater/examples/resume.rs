//! Stop in the middle, go on tomorrow, on another number of threads: the rest is the same, to the bit.
//!
//! ```text
//! cargo run --release -- generate morse --out data/morse
//! cargo run --release --example resume -- data/morse
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::{
    env,
    hash::{DefaultHasher, Hash, Hasher},
    process::ExitCode,
};

use feedwater::{Audio, Batch, Error, LogMel, Noise, Pipeline, ReadyBatch, Result, State, field};

const EPOCH: u64 = 0;

fn main() -> ExitCode {
    let Some(folder) = env::args().nth(1) else {
        eprintln!("usage: resume DATASET");
        return ExitCode::from(2);
    };
    match run(&folder) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: the rest was not the same");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(folder: &str) -> Result<bool> {
    // A run that nobody interrupts, to compare with: one fingerprint a step.
    let whole: Vec<u64> = pipeline(folder, 2)?.epoch(EPOCH).map(fingerprint).collect::<Result<_>>()?;
    println!("whole epoch     {} steps on 2 threads", whole.len());

    // The same again, stopped halfway. The state counts what the trainer has consumed, not what threads have prepared
    // ahead, so it can be taken after any step.
    let stop = whole.len() / 2;
    let mut interrupted = pipeline(folder, 2)?;
    let mut epoch = interrupted.epoch(EPOCH);
    let mut seen = epoch.by_ref().take(stop).map(fingerprint).collect::<Result<Vec<_>>>()?;
    let saved = epoch.state().to_json();
    println!("stopped         after step {stop}; the state has {} bytes:\n{saved}", saved.len());
    drop(epoch);
    drop(interrupted);

    // Tomorrow: a new process, another machine, other threads. The dataset, the stages, the seed and the batch must be
    // what they were; anything else is refused with what differs.
    let mut resumed = pipeline(folder, 1)?;
    resumed.restore(&State::from_json(&saved)?)?;
    let rest = resumed.epoch(EPOCH).map(fingerprint).collect::<Result<Vec<_>>>()?;
    println!("resumed         {} steps on 1 thread", rest.len());

    seen.extend(rest);
    let same = seen == whole;
    println!("keys, features  {}", if same { "identical in every step" } else { "not identical" });

    // A state of a run with another seed belongs to another stream.
    let other = pipeline_with_seed(folder, 1, 8)?.restore(&State::from_json(&saved)?);
    if let Err(error @ Error::State { .. }) = &other {
        println!("another seed    refused: {error}");
    }
    Ok(same && other.is_err())
}

fn pipeline(folder: &str, threads: usize) -> Result<Pipeline> {
    pipeline_with_seed(folder, threads, 7)
}

/// With noise in it: random numbers, too, follow from the seed, the epoch and the sample's key, not from the thread that
/// happens to draw them.
fn pipeline_with_seed(folder: &str, threads: usize, seed: u64) -> Result<Pipeline> {
    Pipeline::open(folder)?
        .decode(Audio::mono(16_000))
        .noise(Noise::snr_db(5.0..=20.0))
        .log_mel(LogMel::whisper(80))
        .batch(Batch::of(4))
        .seed(seed)
        .threads(threads)
        .build()
}

/// A hash of the keys and of every bit of the features.
fn fingerprint(batch: Result<ReadyBatch>) -> Result<u64> {
    let batch = batch?;
    let mut hasher = DefaultHasher::new();
    batch.keys.hash(&mut hasher);
    batch.get(field::FEATURES).map(feedwater::BatchTensor::as_bytes).hash(&mut hasher);
    Ok(hasher.finish())
}
