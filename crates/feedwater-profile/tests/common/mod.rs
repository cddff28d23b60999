//! Records of runs that never took place: a small simulation, the same for the same seed on every machine.
//!
//! It knows samples and stages, which the model that it tests does not see: a record has only what a run could measure.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(unreachable_pub, reason = "shared by path with the tests of the command")]

use std::{cmp::Reverse, collections::BinaryHeap, fmt::Write as _};

use feedwater_profile::record::{
    Blame, Device, DeviceSample, End, Host, Input, Record, Run, SLOWEST, Settings, Step, VERSION,
};
use serde_json::json;

/// A run to simulate. Times are milliseconds.
#[derive(Debug, Clone)]
pub struct Case {
    pub name: &'static str,
    pub seed: u64,
    pub steps: u64,
    pub threads: usize,
    pub cores: f64,
    pub prefetch: usize,
    pub rows: u64,
    /// What a sample costs, by stage.
    pub stages: Vec<(&'static str, f64)>,
    /// One sample in so many takes so much longer, in a stage.
    pub slow: Option<(u64, f64, &'static str)>,
    pub compute: f64,
    pub optimizer: f64,
    pub copy: f64,
    pub sync: f64,
    /// What nobody accounts for.
    pub unknown: f64,
    /// How much each cost varies, as a share of it.
    pub jitter: f64,
    /// Every so many steps: a checkpoint, which takes so long.
    pub checkpoint: Option<(u64, f64)>,
    pub steps_per_epoch: u64,
    pub planned_steps: Option<u64>,
    /// A record of somebody else's loop: how long it waited, and nothing about how batches are made.
    pub foreign: bool,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            name: "whisper-small",
            seed: 7,
            steps: 240,
            threads: 1,
            cores: 4.0,
            prefetch: 3,
            rows: 16,
            stages: vec![("read", 0.4), ("decode", 9.0), ("log_mel", 2.2), ("batch", 0.5)],
            slow: None,
            compute: 58.0,
            optimizer: 6.0,
            copy: 1.5,
            sync: 0.0,
            unknown: 0.6,
            jitter: 0.08,
            checkpoint: None,
            steps_per_epoch: 1_000_000,
            planned_steps: Some(12_000),
            foreign: false,
        }
    }
}

/// Compressed sound, one thread, and a few files that take far longer.
pub fn input_bound() -> Case {
    Case {
        slow: Some((600, 900.0, "decode")),
        checkpoint: Some((90, 1_400.0)),
        steps_per_epoch: 150,
        ..Case::default()
    }
}

/// The loader is idle most of the time.
pub fn compute_bound() -> Case {
    Case {
        name: "compute",
        threads: 2,
        cores: 2.0,
        stages: vec![("read", 0.1), ("decode", 0.9), ("log_mel", 0.8), ("batch", 0.2)],
        compute: 90.0,
        jitter: 0.03,
        ..Case::default()
    }
}

/// Plenty of hands, and now and then a file that holds up its batch.
pub fn slow_files() -> Case {
    Case {
        name: "slow files",
        threads: 4,
        prefetch: 2,
        stages: vec![("read", 0.3), ("decode", 2.0), ("log_mel", 1.5), ("batch", 0.3)],
        slow: Some((320, 700.0, "read")),
        compute: 40.0,
        ..Case::default()
    }
}

/// Somebody else's loop.
pub fn foreign() -> Case {
    Case {
        name: "torch loop",
        threads: 2,
        compute: 40.0,
        foreign: true,
        planned_steps: None,
        ..Case::default()
    }
}

/// `SplitMix64`: small, and the same everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In 0 … 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Around 1; never far from it.
    pub fn around_one(&mut self, spread: f64) -> f64 {
        let bell = (0..6).map(|_| self.share()).sum::<f64>() / 3.0 - 1.0;
        (1.0 + bell * spread * 2.1).max(0.05)
    }
}

struct Batch {
    input: Input,
    ready: f64,
    slowest: Blame,
}

/// Runs it.
pub fn simulate(case: &Case) -> Record {
    let mut random = Random(case.seed);
    let mut workers: BinaryHeap<Reverse<u64>> = (0..case.threads).map(|_| Reverse(0)).collect();
    let mut batches: Vec<Batch> = Vec::new();
    let mut taken: Vec<f64> = Vec::new();
    let mut asked = 0.0_f64;
    let mut record = Record { run: run(case), ..Record::default() };
    let mut sample = 0_u64;
    for number in 0..case.steps {
        let ahead = if case.threads == 0 { 1 } else { case.prefetch.max(1) as u64 };
        while (batches.len() as u64) < (number + ahead).min(case.steps) {
            let room = batches.len().checked_sub(case.prefetch.max(1)).map_or(0.0, |before| taken[before]);
            let room = if case.threads == 0 { asked } else { room };
            batches.push(make(case, &mut random, &mut workers, room, &mut sample));
        }
        let batch = &batches[number as usize];
        let wait = (batch.ready - asked).max(0.0);
        let ready = batches[number as usize..].iter().filter(|batch| batch.ready <= asked).count() as u64;
        let mut part = |millis: f64| (millis * 1e6 * random.around_one(case.jitter)) as u64;
        let mut step = Step {
            step: number,
            epoch: number / case.steps_per_epoch,
            wait_nanos: wait as u64,
            copy_nanos: part(case.copy),
            compute_nanos: part(case.compute),
            optimizer_nanos: part(case.optimizer),
            sync_nanos: part(case.sync),
            rows: case.rows,
            ..Step::default()
        };
        let mut unknown = part(case.unknown);
        if let Some((every, millis)) = case.checkpoint
            && number % every == every - 1
        {
            step.mark = Some("checkpoint".to_owned());
            unknown += (millis * 1e6) as u64;
        }
        step.wall_nanos = wait as u64 + step.copy_nanos + step.busy_nanos() + step.sync_nanos + unknown;
        if !case.foreign {
            let mut input = Input { ready: Some(ready), ..batch.input.clone() };
            if wait > 0.0 {
                input.waited_for = Some(batch.slowest.clone());
            }
            step.input = Some(input);
        }
        taken.push(asked + wait);
        asked += step.wall_nanos as f64;
        if number % 20 == 0 && !case.foreign {
            let busy = 100.0 * step.busy_nanos() as f64 / step.wall_nanos as f64;
            record.devices.push(DeviceSample {
                index: 0,
                at_nanos: asked as u64,
                busy_percent: Some(busy.round().min(100.0)),
                ..DeviceSample::default()
            });
        }
        record.steps.push(step);
    }
    let wall = asked as u64;
    record.end = Some(End { wall_nanos: wall, overhead_nanos: Some(wall / 400) });
    record
}

fn blame(sample: u64, stage: &str, nanos: u64) -> Blame {
    Blame { key: format!("clip{sample:05}.mp3"), stage: stage.to_owned(), nanos, queued_nanos: 0 }
}

fn make(
    case: &Case,
    random: &mut Random,
    workers: &mut BinaryHeap<Reverse<u64>>,
    room: f64,
    sample: &mut u64,
) -> Batch {
    let mut input = Input::default();
    let mut slowest = Blame::default();
    let mut named = Vec::new();
    let mut samples: Vec<f64> = Vec::new();
    for _ in 0..case.rows {
        let mut total = 0;
        let mut most = (0, "");
        for (stage, millis) in &case.stages {
            let mut nanos = millis * 1e6 * random.around_one(case.jitter * 3.0);
            if let Some((every, extra, in_stage)) = case.slow
                && in_stage == *stage
                && random.next().is_multiple_of(every)
            {
                nanos += extra * 1e6 * random.around_one(0.3);
            }
            let nanos = nanos as u64;
            *input.work_nanos.entry((*stage).to_owned()).or_default() += nanos;
            total += nanos;
            most = most.max((nanos, *stage));
        }
        if total > slowest.nanos {
            slowest = blame(*sample, most.1, total);
        }
        named.push(blame(*sample, most.1, total));
        samples.push(total as f64);
        *sample += 1;
    }
    input.cpu_nanos = Some(input.total_work_nanos());
    input.bytes = case.rows * 80 * 3000 * 4;
    input.padding_bytes = input.bytes / 3;
    input.padding_to_longest_bytes = input.bytes / 12;
    input.read_bytes = case.rows * 48_000;
    named.sort_by_key(|blame| Reverse(blame.nanos));
    named.truncate(SLOWEST);
    input.slowest = named;
    samples.sort_by(|a, b| b.total_cmp(a));
    let mut ready = room;
    for nanos in samples {
        let done = match workers.pop() {
            Some(Reverse(free)) => room.max(free as f64) + nanos,
            // The loop makes its batches itself.
            None => ready + nanos,
        };
        if case.threads > 0 {
            workers.push(Reverse(done as u64));
        }
        ready = ready.max(done);
    }
    Batch { input, ready, slowest }
}

fn run(case: &Case) -> Run {
    let mut run = Run {
        name: case.name.to_owned(),
        writer: "simulation 1".to_owned(),
        started_unix_seconds: 1_760_000_000,
        clock: if case.foreign { "host" } else { "host+events" }.to_owned(),
        planned_steps: case.planned_steps,
        ..Run::default()
    };
    if case.foreign {
        "torch".clone_into(&mut run.settings.loader);
        return run;
    }
    run.host = Host {
        os: "Linux 6.1".to_owned(),
        cpu: "Example CPU".to_owned(),
        cores: Some(case.cores * 2.0),
        usable_cores: Some(case.cores),
        memory_bytes: Some(32 << 30),
        crowding: Some(1.1),
        disk: Some("nvme".to_owned()),
        ..Host::default()
    };
    run.devices = vec![Device {
        name: "an accelerator of the simulation".to_owned(),
        memory_bytes: Some(24 << 30),
        simulated: true,
        ..Device::default()
    }];
    run.settings = Settings {
        loader: "feedwater".to_owned(),
        task: Some("whisper".to_owned()),
        data: Some("data/clips".to_owned()),
        threads: Some(case.threads),
        prefetch: Some(case.prefetch),
        batch_size: Some(case.rows),
        dtype: Some("f32".to_owned()),
        padding: Some("30 s".to_owned()),
        pinned: Some(true),
        ..Settings::default()
    };
    run
}

/// The file of a record, as the recorder would have written it.
pub fn lines(record: &Record) -> String {
    let mut text = json!({"record": "feedwater", "version": VERSION, "run": record.run}).to_string();
    text.push('\n');
    for step in &record.steps {
        let _ = writeln!(text, "{}", serde_json::to_string(step).unwrap());
    }
    for device in &record.devices {
        let _ = writeln!(text, "{}", json!({ "device": device }));
    }
    if let Some(end) = &record.end {
        let _ = writeln!(text, "{}", json!({ "end": end }));
    }
    text
}

/// Puts markup, control characters and great lengths wherever a record has words.
pub fn disguise(record: &mut Record) {
    const EVIL: &str = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'&\u{1b}[31m\u{202e}";
    let evil = || EVIL.to_owned();
    for step in &mut record.steps {
        if let Some(input) = &mut step.input {
            for blame in input.waited_for.iter_mut().chain(&mut input.slowest) {
                blame.key = format!("{EVIL}{}{}", "k".repeat(300), blame.key);
                blame.stage = evil();
            }
            let decode = input.work_nanos.remove("decode").unwrap_or_default();
            input.work_nanos.insert(evil(), decode);
        }
        if step.mark.is_some() {
            step.mark = Some(evil());
        }
    }
    let run = &mut record.run;
    (run.name, run.writer, run.clock) = (evil(), evil(), evil());
    (run.host.os, run.host.cpu, run.host.disk) = (evil(), evil(), Some(evil()));
    for device in &mut run.devices {
        (device.name, device.uuid, device.role) = (evil(), Some(evil()), Some(evil()));
        device.links.insert(1, evil());
    }
    let settings = &mut run.settings;
    (settings.loader, settings.task, settings.data) = (evil(), Some(evil()), Some(evil()));
    (settings.dtype, settings.padding) = (Some(evil()), Some(evil()));
}
