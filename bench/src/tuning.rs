//! Does it find the right setting by itself? Six workloads, each with every fixed setting of a grid, and with live tuning
//! that begins with the worst: one thread, one batch ahead. Then the same while, from half-way on, others want all cores.
//!
//! Busy is the share of a step in which the pretended accelerator works; of live tuning, after its first 30 steps.
//!
//! With `--search`, the other way: what `feedwater tune` looks for before a run, against every setting of its space.

use std::{
    fmt::Write as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use feedwater::{Audio, Batch, Builder, LogMel, Pipeline, Result};
use feedwater_profile::{
    Record,
    search::{Point, Space, search},
};
use xxhash_rust::xxh3::xxh3_64;

use crate::{Options, say, truth::record};

const BATCH: u64 = 8;
const LEARNED: usize = 30;
const STEPS: usize = 150;

struct Workload {
    name: &'static str,
    step: Duration,
    /// What a sample takes beside its features, by its key.
    extra: fn(u64) -> Extra,
}

#[derive(Clone, Copy, Default)]
struct Extra {
    /// A core is busy.
    spin: Duration,
    /// A disk is.
    sleep: Duration,
}

const fn spin(micros: u64) -> Extra {
    Extra { spin: Duration::from_micros(micros), sleep: Duration::ZERO }
}

const fn sleep(micros: u64) -> Extra {
    Extra { spin: Duration::ZERO, sleep: Duration::from_micros(micros) }
}

/// The last two came when the rules of tuning and of the search were as they are: none was chosen by what these showed.
const WORKLOADS: [Workload; 6] = [
    Workload { name: "cheap", step: Duration::from_millis(25), extra: |_| Extra::default() },
    Workload { name: "expensive", step: Duration::from_millis(25), extra: |_| spin(4000) },
    Workload {
        name: "heavy tail",
        step: Duration::from_millis(25),
        extra: |key| if key.is_multiple_of(48) { spin(120_000) } else { spin(1500) },
    },
    Workload { name: "slow disk", step: Duration::from_millis(25), extra: |_| sleep(12_000) },
    Workload {
        name: "uneven disk",
        step: Duration::from_millis(25),
        extra: |key| if key.is_multiple_of(40) { sleep(200_000) } else { sleep(3000) },
    },
    Workload {
        name: "disk and decode",
        step: Duration::from_millis(25),
        extra: |_| Extra { spin: Duration::from_micros(2500), sleep: Duration::from_millis(8) },
    },
];

impl Workload {
    fn flow(&self, data: &Path) -> Result<Builder> {
        let extra = self.extra;
        Ok(Pipeline::open(data)?
            .decode(Audio::mono(16_000))
            .log_mel(LogMel::any_length(80))
            .map("extra", move |sample, _| {
                let Extra { spin, sleep } = extra(xxh3_64(sample.key.as_bytes()));
                thread::sleep(sleep);
                let began = Instant::now();
                while began.elapsed() < spin {
                    std::hint::spin_loop();
                }
                Ok(())
            })
            .batch(Batch::of(BATCH))
            .seed(3))
    }

    /// The walls of steps; `at` is told each step's number before it is taken.
    fn walls(
        &self,
        flow: Builder,
        steps: usize,
        mut at: impl FnMut(usize),
    ) -> Result<(Vec<Duration>, Pipeline)> {
        let mut pipeline = flow.build()?;
        let mut walls = Vec::new();
        let mut asked = Instant::now();
        for epoch in 0.. {
            for batch in pipeline.epoch(epoch) {
                let batch = batch?;
                at(walls.len());
                thread::sleep(self.step);
                drop(batch);
                let next = Instant::now();
                walls.push(next - asked);
                asked = next;
                if walls.len() == steps {
                    break;
                }
            }
            if walls.len() == steps {
                break;
            }
        }
        Ok((walls, pipeline))
    }

    fn busy(&self, walls: &[Duration]) -> f64 {
        self.step.as_secs_f64() * walls.len() as f64 / walls.iter().map(Duration::as_secs_f64).sum::<f64>()
    }
}

/// Threads that want cores, until it is dropped.
struct Burner(Arc<AtomicBool>);

impl Burner {
    fn start(threads: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..threads {
            let stop = stop.clone();
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self(stop)
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What is searched: as `feedwater tune` has it for two cores.
const THREADS: [usize; 4] = [1, 2, 4, 8];
const PREFETCH: [usize; 5] = [1, 2, 4, 8, 16];
/// Rounds in which what was chosen and what is best are compared.
const ROUNDS: usize = 5;

/// Looks for the best setting by prediction and trial, and by trying all of them.
fn searched(workload: &Workload, data: &Path) -> Result<()> {
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let base =
        Point { threads: cores, prefetch: 4, batch_size: BATCH, buckets: false, half: false, cache: false };
    let all = Space {
        threads: THREADS.to_vec(),
        prefetch: PREFETCH.to_vec(),
        batch_sizes: vec![BATCH],
        buckets: vec![false],
        half: vec![false],
        cache: vec![false],
    };
    let probe = |point: &Point, steps: u64| -> Result<Record> {
        let flow = workload.flow(data)?.threads(point.threads).prefetch(point.prefetch);
        let mut pipeline = flow.build()?;
        record(&mut pipeline, (point.threads, point.prefetch), BATCH, workload.step, steps)
    };
    // As `tune` has it.
    let space = Space { prefetch: PREFETCH[1..].to_vec(), ..all.clone() };
    let found = search(&space, base, |point, times| probe(point, 60 * times))?;
    let rate = |record: &Record| {
        let counted = &record.steps[record.steps.len() / 4..];
        let nanos: u64 = counted.iter().map(|step| step.wall_nanos).sum();
        counted.iter().map(|step| step.rows).sum::<u64>() as f64 * 1e9 / nanos.max(1) as f64
    };
    let mut best = (0.0, base);
    let mut table = String::new();
    let points = all.points(&base);
    for point in &points {
        let rate = rate(&probe(point, 120)?);
        let _ = write!(table, "  {}×{} {rate:.0}", point.threads, point.prefetch);
        if rate > best.0 {
            best = (rate, *point);
        }
    }
    let mut shares = Vec::new();
    for _ in 0..ROUNDS {
        let (chosen, swept) = (rate(&probe(&found.best, 120)?), rate(&probe(&best.1, 120)?));
        shares.push(100.0 * chosen / swept);
    }
    shares.sort_by(f64::total_cmp);
    let words = |point: &Point| format!("{} threads, {} ahead", point.threads, point.prefetch);
    say(&format!(
        "{:<16}chosen {} after {} runs of {} settings; best of all {} {}; chosen is {:.1} % of it ({:.1} … {:.1})",
        workload.name,
        words(&found.best),
        found.rows.iter().map(|row| row.runs).sum::<usize>(),
        found.rows.len(),
        points.len(),
        words(&best.1),
        shares[ROUNDS / 2],
        shares[0],
        shares[ROUNDS - 1],
    ));
    say(&format!("                samples a second:{table}"));
    for row in &found.rows {
        say(&format!(
            "                tried {}: predicted {:.0}, measured {:.0} in {} runs, {} of them long",
            words(&row.point),
            row.predicted.unwrap_or(0.0),
            row.measured.unwrap_or(0.0),
            row.runs,
            row.long_runs
        ));
    }
    Ok(())
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let data = options.data();
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let only = options.text("only");
    for workload in WORKLOADS.into_iter().filter(|workload| only.is_none_or(|only| only == workload.name)) {
        if options.has("search") {
            searched(&workload, &data)?;
            continue;
        }
        let mut best = (0.0, 0, 0);
        let mut table = String::new();
        for threads in [1, 2, 4, 8] {
            for prefetch in [1, 3, 12] {
                let flow = workload.flow(&data)?.threads(threads).prefetch(prefetch);
                let (walls, _) = workload.walls(flow, STEPS, |_| {})?;
                let busy = 100.0 * workload.busy(&walls[LEARNED..]);
                let _ = write!(table, "  {threads}×{prefetch} {busy:.1}");
                if busy > best.0 {
                    best = (busy, threads, prefetch);
                }
            }
        }
        let (walls, pipeline) = workload.walls(workload.flow(&data)?.start_from(1, 1), STEPS, |_| {})?;
        let found = 100.0 * workload.busy(&walls[LEARNED..]);
        let report = pipeline.report();
        say(&format!(
            "{:<16}best fixed {:.1} % ({} threads, {} ahead); found {found:.1} % ({} threads, {} ahead): {:.1} % of the best",
            workload.name,
            best.0,
            best.1,
            best.2,
            report.threads,
            report.prefetch,
            100.0 * found / best.0
        ));
        say(&format!("          {table}"));
        for decision in &report.tuning {
            say(&format!("                {decision}"));
        }
        let mut burner = None;
        let (walls, pipeline) =
            workload.walls(workload.flow(&data)?.start_from(1, 1), 2 * STEPS, |step| {
                if step == STEPS {
                    burner = Some(Burner::start(cores));
                }
            })?;
        drop(burner);
        let shares: Vec<String> = walls[STEPS..]
            .chunks(STEPS / 5)
            .map(|walls| format!("{:.0}", 100.0 * workload.busy(walls)))
            .collect();
        let report = pipeline.report();
        let late = report.tuning.iter().filter(|it| it.step > STEPS as u64 && it.from != it.to).count();
        say(&format!(
            "                with {cores} others from step {STEPS} on: busy {} % before, then {} %; {late} changes after, {} threads and {} ahead at the end",
            (100.0 * workload.busy(&walls[LEARNED..STEPS])).round(),
            shares.join(", "),
            report.threads,
            report.prefetch
        ));
    }
    Ok(())
}
