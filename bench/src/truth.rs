//! Is the diagnosis true? Bottlenecks of a known size are put into a pipeline, and the diagnosis is asked what it sees.
//!
//! Each case runs twice, without and with the bottleneck. What it costs in idle time of the accelerator is the difference of
//! the two; what the diagnosis says it costs comes from the second run alone.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use feedwater::{
    Audio, Batch, Fault, LogMel, Pipeline, Policy, Result, Sample,
    source::{self, Kind, Source},
};
use feedwater_profile::{
    Diagnosis, Record,
    record::{Host, Run, Settings, Step},
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{Options, say};

/// What is put in.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Injected {
    Nothing,
    /// Every read takes longer by this.
    Read(Duration),
    /// Every sample spins or sleeps for this in a stage of that name.
    Stage(&'static str, Duration, Manner),
    /// One file in fifty takes this long to decode.
    SlowFile(Duration),
    /// The accelerator takes this long.
    Consumer(Duration),
    /// So many other threads want the cores.
    Starved(usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    Spin,
    Sleep,
}

struct Case {
    injected: Injected,
    /// What the first finding must be.
    expected: &'static str,
    threads: usize,
    prefetch: usize,
    step: Duration,
    seed: u64,
}

const BATCH: u64 = 8;
const STEPS: u64 = 90;

fn cases() -> Vec<Case> {
    let ms = Duration::from_millis;
    let mut cases = Vec::new();
    let mut add = |injected, expected, threads, prefetch, step| {
        let seed = cases.len() as u64 + 1;
        cases.push(Case { injected, expected, threads, prefetch, step: ms(step), seed });
    };
    for (threads, each) in [(1, 5), (1, 9), (2, 12), (2, 18)] {
        add(Injected::Read(ms(each)), "disk", threads, 3, 25);
    }
    for (threads, each) in [(1, 6), (2, 12), (2, 20)] {
        add(Injected::Stage("decode", ms(each), Manner::Spin), "decode", threads, 3, 25);
    }
    for (threads, each) in [(1, 6), (1, 10), (2, 14)] {
        add(Injected::Stage("tokenize", ms(each), Manner::Spin), "tokenize", threads, 3, 25);
    }
    add(Injected::Stage("tokenize", ms(12), Manner::Sleep), "tokenize", 2, 3, 25);
    for (threads, each) in [(1, 6), (2, 13)] {
        add(Injected::Stage("noise", ms(each), Manner::Spin), "augment", threads, 3, 25);
    }
    for (threads, each) in [(1, 6), (2, 13)] {
        add(Injected::Stage("resample", ms(each), Manner::Spin), "resample", threads, 3, 25);
    }
    for (threads, prefetch, each) in [(2, 2, 250), (2, 1, 200), (1, 2, 200), (2, 3, 400)] {
        add(Injected::SlowFile(ms(each)), "bursty", threads, prefetch, 20);
    }
    for step in [60, 90, 120] {
        add(Injected::Consumer(ms(step)), "compute-bound", 2, 3, 30);
    }
    for others in [4, 6, 8] {
        add(Injected::Starved(others), "cores", 2, 3, 8);
    }
    cases
}

/// A source whose every sample takes longer to get at.
struct Slow {
    inner: Box<dyn Source>,
    by: Duration,
}

impl Source for Slow {
    fn kind(&self) -> Kind {
        self.inner.kind()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn fingerprint(&self) -> u128 {
        self.inner.fingerprint()
    }

    fn key(&self, index: u64) -> String {
        self.inner.key(index)
    }

    fn sample(&self, index: u64) -> Result<Sample, Fault> {
        thread::sleep(self.by);
        self.inner.sample(index)
    }
}

fn take(manner: Manner, time: Duration) {
    match manner {
        Manner::Sleep => thread::sleep(time),
        Manner::Spin => {
            let began = Instant::now();
            while began.elapsed() < time {
                std::hint::spin_loop();
            }
        }
    }
}

fn play(data: &Path, case: &Case, injected: Injected) -> Result<Record> {
    let inner = source::open(data)?;
    let source: Box<dyn Source> = match injected {
        Injected::Read(by) => Box::new(Slow { inner, by }),
        _ => inner,
    };
    let mut flow = Pipeline::from_source(source).decode(Audio::mono(16_000)).log_mel(LogMel::whisper(80));
    if let Injected::Stage(name, time, manner) = injected {
        flow = flow.map(name, move |_, _| {
            take(manner, time);
            Ok(())
        });
    }
    if let Injected::SlowFile(time) = injected {
        let seed = case.seed;
        flow = flow.map("decode", move |sample, _| {
            if xxh3_64_with_seed(sample.key.as_bytes(), seed).is_multiple_of(50) {
                take(Manner::Sleep, time);
            }
            Ok(())
        });
    }
    let step = match injected {
        Injected::Consumer(step) => step,
        _ => case.step,
    };
    let stop = Arc::new(AtomicBool::new(false));
    let others = match injected {
        Injected::Starved(others) => others,
        _ => 0,
    };
    let crowd: Vec<_> = (0..others)
        .map(|_| {
            let stop = stop.clone();
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let mut pipeline = flow
        .batch(Batch::of(BATCH).drop_last())
        .threads(case.threads)
        .prefetch(case.prefetch)
        .seed(case.seed)
        .policy(Policy::fail())
        .build()?;
    let record = record(&mut pipeline, (case.threads, case.prefetch), BATCH, step, STEPS);
    stop.store(true, Ordering::Relaxed);
    for other in crowd {
        let _ = other.join();
    }
    record
}

/// So many steps of an accelerator that takes `step` for each, recorded.
pub(crate) fn record(
    pipeline: &mut Pipeline,
    (threads, prefetch): (usize, usize),
    batch_size: u64,
    step: Duration,
    steps: u64,
) -> Result<Record> {
    let cores = thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
    let mut record = Record {
        run: Run {
            host: Host { usable_cores: Some(cores), ..Host::default() },
            settings: Settings {
                loader: "feedwater".to_owned(),
                threads: Some(threads),
                prefetch: Some(prefetch),
                batch_size: Some(batch_size),
                ..Settings::default()
            },
            ..Run::default()
        },
        ..Record::default()
    };
    for epoch in 0.. {
        let mut asked = Instant::now();
        for batch in pipeline.epoch(epoch) {
            let batch = batch?;
            let got = Instant::now();
            thread::sleep(step);
            let done = Instant::now();
            record.steps.push(Step {
                step: record.steps.len() as u64,
                epoch,
                wall_nanos: (done - asked).as_nanos() as u64,
                wait_nanos: (got - asked).as_nanos() as u64,
                compute_nanos: (done - got).as_nanos() as u64,
                rows: batch.rows() as u64,
                input: Some(batch.input.clone()),
                ..Step::default()
            });
            asked = done;
            if record.steps.len() as u64 == steps {
                return Ok(record);
            }
        }
    }
    Ok(record)
}

/// Runs the cases and prints what was put in and what was seen.
pub(crate) fn run(options: &Options) -> Result<()> {
    let data = options.data();
    say(&format!("{:<58}{:>9}{:>9}{:>8}  first finding", "bottleneck", "true ms", "said ms", "off"));
    let (mut right, mut close, mut priced, mut count) = (0, 0, 0, 0);
    let diagnosed =
        |record: &Record| Diagnosis::of(record).map_err(|error| feedwater::Error::config(error.to_string()));
    let only = options.path("only").map(|only| only.display().to_string());
    for case in cases() {
        let name = format!("{:?}, {} threads, {} ahead", case.injected, case.threads, case.prefetch);
        if only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let before = diagnosed(&play(&data, &case, Injected::Nothing)?)?;
        let with = play(&data, &case, case.injected)?;
        let after = diagnosed(&with)?;
        let idle = |d: &Diagnosis| d.mean.wait_nanos / 1e6;
        let truth = idle(&after) - idle(&before);
        let first = after.findings.first();
        let found = first.map_or("nothing", |finding| finding.id);
        let said = first.map_or(0.0, |finding| finding.idle_nanos / 1e6);
        count += 1;
        right += u32::from(found == case.expected);
        let off = if case.expected == "compute-bound" {
            f64::NAN
        } else {
            priced += 1;
            let off = 100.0 * (said / truth - 1.0);
            close += u32::from(off.abs() <= 10.0);
            off
        };
        let off = if off.is_nan() { "-".to_owned() } else { format!("{off:+.1} %") };
        let verdict = if found == case.expected { "" } else { "   WRONG" };
        say(&format!("{name:<58}{truth:>9.2}{said:>9.2}{off:>8}  {found}{verdict}"));
        if options.has("parts") {
            say(&format!(
                "    {:?}",
                after.idle_nanos.iter().map(|(p, n)| format!("{p} {:.2}", n / 1e6)).collect::<Vec<_>>()
            ));
        }
    }
    say(&format!("{right} of {count} named rightly, {close} of {priced} prices within 10 %"));
    Ok(())
}
