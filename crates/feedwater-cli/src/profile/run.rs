//! How is a run made and recorded?
//!
//! The accelerator is pretended: it is busy for a given time with each batch and uses no core, as a real one does. So what
//! is measured is the input and nothing else, and the same on a laptop as beside a real card.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant, SystemTime},
};

use feedwater::{Pipeline, Report};
use feedwater_profile::{
    Record, Recorder,
    record::{Device, Host, Input, Run, Step},
};
use indicatif::ProgressBar;
use miette::miette;

use super::setup::{GATE, Setup};

/// What a run is told besides its setup.
pub(crate) struct Job<'a> {
    pub(crate) name: &'a str,
    pub(crate) host: &'a Host,
    /// Devices that were named, beside the one that is pretended.
    pub(crate) devices: &'a [Device],
    pub(crate) steps: u64,
    pub(crate) record: &'a Path,
    pub(crate) progress: &'a ProgressBar,
    /// Whether `feedwater monitor` is told.
    pub(crate) announced: bool,
}

/// Runs so many steps and gives back what was recorded, and what the pipeline says of itself.
pub(crate) fn run(setup: &Setup, job: &Job<'_>) -> miette::Result<(Record, Report)> {
    run_on(setup, setup.build()?, job)
}

/// The same with a pipeline of other samples.
pub(crate) fn run_on(
    setup: &Setup,
    mut pipeline: Pipeline,
    job: &Job<'_>,
) -> miette::Result<(Record, Report)> {
    let simulated = setup.step_nanos > 0;
    let device = Device {
        name: format!(
            "busy {:.1} ms for {} samples, uses no core",
            setup.step_nanos as f64 / 1e6,
            setup.step_rows
        ),
        // Not the number of any that there is.
        index: u32::MAX,
        simulated: true,
        ..Device::default()
    };
    let run = Run {
        name: job.name.to_owned(),
        writer: concat!("feedwater ", env!("CARGO_PKG_VERSION")).to_owned(),
        started_unix_seconds: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
        clock: "host".to_owned(),
        planned_steps: Some(job.steps),
        host: job.host.clone(),
        devices: simulated.then_some(device).into_iter().chain(job.devices.iter().cloned()).collect(),
        settings: setup.settings(),
    };
    let create = if job.announced { Recorder::create } else { Recorder::create_unannounced };
    let mut recorder = create(job.record, &run).map_err(|error| miette!("{error}"))?;
    job.progress.set_length(job.steps);
    job.progress.set_position(0);
    job.progress.set_message(job.name.to_owned());
    let mut number = 0;
    for epoch in 0.. {
        let before = number;
        let gate = setup.plain.as_deref();
        let mut asked = Instant::now();
        gate.inspect(|gate| gate.set(true));
        for batch in pipeline.epoch(epoch) {
            let batch = batch.map_err(|error| miette!("{error}"))?;
            let got = Instant::now();
            gate.inspect(|gate| gate.set(false));
            let busy_nanos = setup.busy_nanos(batch.rows() as u64);
            if simulated {
                busy(got + Duration::from_nanos(busy_nanos));
            }
            let step = Step {
                step: number,
                epoch,
                wait_nanos: (got - asked).as_nanos() as u64,
                // What a machine without a free core woke it late by is not work.
                compute_nanos: if simulated { busy_nanos } else { 0 },
                rows: batch.rows() as u64,
                input: Some(worked(&batch.input, setup)),
                ..Step::default()
            };
            drop(batch);
            let next = Instant::now();
            let step = Step { wall_nanos: ((next - asked).as_nanos() as u64).max(1), ..step };
            recorder.step(&step).map_err(|error| miette!("{error}"))?;
            // What recording takes belongs to the step that comes.
            asked = next;
            number += 1;
            job.progress.set_position(number);
            // Also at the end: the threads have to be able to leave.
            gate.inspect(|gate| gate.set(true));
            if number == job.steps {
                break;
            }
        }
        if number == job.steps {
            break;
        }
        if number == before {
            return Err(miette!("the dataset gives no batch"));
        }
    }
    let report = pipeline.report();
    recorder.end(measuring(&report)).map_err(|error| miette!("{error}"))?;
    let record = Record::open(job.record).map_err(|error| miette!("{error}"))?;
    Ok((record, report))
}

/// What is to be said of samples that were left out, if any were.
pub(crate) fn left_out(report: &Report) -> Option<String> {
    let count = report.bad_samples;
    let were = if count == 1 { " was" } else { "s were" };
    (count > 0).then(|| format!("warning: {count} bad sample{were} left out: see quarantine.jsonl"))
}

/// What is to be said where there are fewer samples than a batch has.
pub(crate) fn too_large(setup: &Setup, record: &Record) -> Option<String> {
    let most = record.steps.iter().map(|step| step.rows).max()?;
    (most < setup.batch_size)
        .then(|| format!("warning: no batch is full: the largest has {most} rows of {}", setup.batch_size))
}

/// How a batch was made, without the time in which a plain loop waited for its turn.
fn worked(input: &Input, setup: &Setup) -> Input {
    let mut input = input.clone();
    if setup.plain.is_some() {
        // It is a loop that makes its batches itself, not a thread of ours.
        (input.threads, input.prefetch) = (None, None);
    }
    input.work_nanos.remove(GATE);
    input.slowest.retain(|sample| sample.stage != GATE);
    input.waited_for.take_if(|sample| sample.stage == GATE);
    input
}

/// Until then, without using a core.
fn busy(until: Instant) {
    let left = until.saturating_duration_since(Instant::now());
    thread::sleep(left);
}

/// What measuring the stages took, as time of the whole run: how often a clock was read, and what that takes here.
fn measuring(report: &Report) -> Duration {
    const READS: u32 = 20_000;
    let began = Instant::now();
    for _ in 0..READS {
        std::hint::black_box(Instant::now());
    }
    let each = began.elapsed() / READS;
    // A stage reads the clock when it ends; reading and resampling, once more each.
    let reads: u64 = report.stages.iter().map(|stage| 2 * stage.items).sum();
    Duration::from_nanos(each.as_nanos() as u64 * reads / report.threads.max(1) as u64)
}
