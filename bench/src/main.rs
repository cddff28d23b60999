//! Feedwater's side of the comparison: the same lanes as `peers/`, in the same protocol (one JSON line), and the facts
//! that no peer has a counterpart for.

use std::{
    collections::HashMap,
    io::Write as _,
    path::{Path, PathBuf},
    time::Instant,
};

use feedwater::{
    Audio, Batch, Builder, Cache, DType, LogMel, Noise, Npy, Pipeline, Policy, ReadyBatch, Result,
    SpecAugment, Tokenize, cache::Level, field,
};
use serde_json::json;
use sha2::{Digest as _, Sha256};

mod facts;
mod machine;
mod truth;
mod tuning;

const USAGE: &str = "feedwater-bench audio|npy|text|facts|truth|tuning --data PATH [--batch-size N] [--threads N] [--epochs N] [--warm N] \
                     [--tokenizer FILE] [--dump FILE.npy] [--hash] [--cache DIR|ram] [--cache-dtype f16] [--output f16] \
                     [--shuffle] [--search]";

/// The flags, as `peers/measure.py` has them.
pub(crate) struct Options {
    flags: HashMap<String, String>,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Self {
        let mut flags = HashMap::new();
        let mut arguments = arguments.peekable();
        while let Some(name) = arguments.next() {
            let value = arguments.next_if(|next| !next.starts_with("--")).unwrap_or_default();
            flags.insert(name.trim_start_matches('-').to_owned(), value);
        }
        Self { flags }
    }

    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        self.flags.get(name).map(PathBuf::from)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.flags.get(name).map(String::as_str)
    }

    pub(crate) fn number(&self, name: &str, default: u64) -> u64 {
        self.flags.get(name).and_then(|value| value.parse().ok()).unwrap_or(default)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.flags.contains_key(name)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path("data").unwrap_or_else(|| fail(USAGE))
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let lane = arguments.next().unwrap_or_else(|| fail(USAGE));
    let options = Options::parse(arguments);
    let done = match lane.as_str() {
        "audio" => audio(&options),
        "npy" => npy(&options),
        "text" => text(&options),
        "facts" => facts::run(&options),
        "truth" => truth::run(&options),
        "tuning" => tuning::run(&options),
        _ => fail(USAGE),
    };
    if let Err(error) = done {
        fail(&format!("error: {error}"));
    }
}

fn fail(message: &str) -> ! {
    eprintln!("{message}");
    std::process::exit(2);
}

pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Whisper's batches from sound files.
pub(crate) fn whisper(data: &Path, options: &Options) -> Result<Builder> {
    let half = |flag: &str| options.text(flag) == Some("f16");
    let cache = options.path("cache").map(|folder| {
        // `ram` is no folder.
        let level = if folder.as_os_str() == "ram" { Level::Ram } else { Level::Features };
        let cache = Cache::of(level).in_folder(folder);
        if half("cache-dtype") { cache.dtype(DType::F16) } else { cache }
    });
    Ok(Pipeline::open(data)?
        .decode(Audio::mono(16_000))
        .log_mel(LogMel::whisper(80))
        .cache(cache)
        .batch(Batch::of(options.number("batch-size", 16)).output(if half("output") {
            DType::F16
        } else {
            DType::F32
        }))
        .threads(options.number("threads", 2) as usize)
        // Nobody trains here: there is no step to look at.
        .prefetch(3)
        .policy(Policy::fail())
        .shuffle(options.has("shuffle")))
}

fn audio(options: &Options) -> Result<()> {
    let pipeline = whisper(&options.data(), options)?.build()?;
    measure(options, "audio", pipeline, field::FEATURES)
}

/// Arrays with noise and two masks, as the seeds' CNN-LSTM training has them.
fn npy(options: &Options) -> Result<()> {
    let pipeline = Pipeline::open(options.data())?
        .decode(Npy)
        .noise(Noise::deviation(0.01))
        .spec_augment(SpecAugment::new().time(2, 0.1))
        .batch(Batch::of(options.number("batch-size", 64)))
        .threads(options.number("threads", 2) as usize)
        .policy(Policy::fail())
        .shuffle(false)
        .build()?;
    measure(options, "npy", pipeline, field::FEATURES)
}

fn text(options: &Options) -> Result<()> {
    let tokenizer = options.path("tokenizer").unwrap_or_else(|| fail("text needs --tokenizer FILE"));
    let pipeline = Pipeline::open(options.data())?
        .tokenize(Tokenize::file(tokenizer)?.suffix(["<|endoftext|>"])?)
        .batch(Batch::packed(512, options.number("batch-size", 16)))
        .threads(options.number("threads", 2) as usize)
        .policy(Policy::fail())
        .shuffle(false)
        .build()?;
    measure(options, "text", pipeline, field::INPUT_IDS)
}

/// Goes through the epochs and prints the line. As for the peers, the clock starts when the dataset is open and, where that
/// is asked for, after an epoch that is not counted.
fn measure(options: &Options, lane: &str, mut pipeline: Pipeline, name: &str) -> Result<()> {
    let (mut rows, mut first, mut digest) = (0, None, Sha256::new());
    let warm = options.number("warm", 0);
    for epoch in 0..warm {
        for batch in pipeline.epoch(epoch) {
            batch?;
        }
    }
    let (cpu, wall) = (machine::cpu_seconds(), Instant::now());
    for epoch in warm..warm + options.number("epochs", 1) {
        for batch in pipeline.epoch(epoch) {
            let batch = batch?;
            if first.is_none() {
                first = Some(wall.elapsed().as_secs_f64());
                if let Some(file) = options.path("dump") {
                    dump(&batch, name, &file).unwrap_or_else(|error| fail(&error.to_string()));
                }
            }
            rows += batch.rows();
            if options.has("hash") {
                hash_whole_blocks(&batch, name, &mut digest);
            }
        }
    }
    let (cpu, wall) = (machine::cpu_seconds() - cpu, wall.elapsed().as_secs_f64());
    let mut line = json!({
        "peer": "Feedwater",
        "lane": lane,
        "settings": { "threads": options.number("threads", 2) },
        "clips": rows,
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "first_batch_seconds": first,
        "peak_rss_mb": machine::peak_mb(),
    });
    if lane == "audio" {
        let seconds = audio_seconds(&options.data())? * options.number("epochs", 1) as f64;
        line["audio_seconds"] = json!(seconds);
    }
    if lane == "text" {
        line["tokens"] = json!(rows * 512);
        if options.has("hash") {
            line["output_hash"] = json!(format!("{:x}", digest.finalize()));
        }
    }
    if options.has("report") {
        eprintln!("{}", serde_json::to_string_pretty(&pipeline.report().stages).unwrap_or_default());
    }
    say(&line.to_string());
    Ok(())
}

/// How much sound there is, by the files' headers.
fn audio_seconds(folder: &Path) -> Result<f64> {
    let files = std::fs::read_dir(folder)
        .map_err(|error| feedwater::Error::Read { path: folder.into(), source: error })?;
    let mut total = 0.0;
    for file in files.flatten() {
        if let Ok(file) = std::fs::File::open(file.path()) {
            total +=
                feedwater::decode::count_frames(&file).ok().and_then(|info| info.seconds()).unwrap_or(0.0);
        }
    }
    Ok(total)
}

/// The peers leave out a last block that is not full; so does the hash that is compared.
fn hash_whole_blocks(batch: &ReadyBatch, name: &str, digest: &mut Sha256) {
    let Some(tensor) = batch.get(name) else { return };
    let width = tensor.shape[1] * 8;
    for (block, length) in tensor.as_bytes().chunks_exact(width).zip(&tensor.lengths) {
        if *length == tensor.shape[1] {
            digest.update(block);
        }
    }
}

/// The first four rows as `.npy`.
fn dump(batch: &ReadyBatch, name: &str, file: &Path) -> std::io::Result<()> {
    let Some(tensor) = batch.get(name) else { return Ok(()) };
    let rows = tensor.shape[0].min(4);
    let mut shape = tensor.shape.clone();
    shape[0] = rows;
    let row_bytes = tensor.as_bytes().len() / tensor.shape[0].max(1);
    let kind = if tensor.as_i64().is_some() { "<i8" } else { "<f4" };
    let shape: Vec<String> = shape.iter().map(ToString::to_string).collect();
    let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({},), }}", shape.join(", "));
    let padding = (64 - (10 + header.len() + 1) % 64) % 64;
    let header = format!("{header}{}\n", " ".repeat(padding));
    let mut out = std::fs::File::create(file)?;
    out.write_all(b"\x93NUMPY\x01\x00")?;
    out.write_all(&(header.len() as u16).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    out.write_all(&tensor.as_bytes()[..rows * row_bytes])
}
