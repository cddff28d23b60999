//! What does each stage cost, alone?
//!
//! Codecs, arrays and the tokenizer are called as they are. A stage that only runs in a pipeline is given samples from
//! memory on one thread, and the time is the one that the pipeline's own meter booked for it: reading, cloning and
//! collating around it do not count. Sound is ten seconds long where it is made here, so a time of 1 ms is 10,000
//! audio-seconds a second.
//!
//! ```text
//! cargo bench -p feedwater-bench                # all
//! cargo bench -p feedwater-bench -- log_mel     # one
//! cargo bench -p feedwater-bench -- --test      # each once: does it still run?
//! ```

use std::{
    fs,
    hint::black_box,
    path::Path,
    sync::{Arc, LazyLock, atomic::AtomicBool},
    time::{Duration, Instant},
};

use criterion::{Bencher, Criterion, Throughput, criterion_group, criterion_main};
use feedwater::{
    Batch, Builder, DType, Gain, LogMel, Noise, Pipeline, Policy, Sample, SpecAugment, TimeShift, Tokenize,
    decode::{Decoder, Limits, npy},
    error::Fault,
    field,
    sample::{Tensor, Waveform},
    source::{Kind, Source},
};
use serde_json::json;

const RATE: u32 = 16_000;
const SECONDS: usize = 10;

criterion_group! {
    name = stages;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = decode, resample, arrays, augment, features, tokenize, plan, collate
}
criterion_main!(stages);

fn decode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode");
    let files = [("wav", wav(RATE)), ("flac", fixture("mono16.flac")), ("mp3", fixture("vbr.mp3"))];
    for (name, bytes) in files {
        let (mut decoder, mut out) = (Decoder::new(), Vec::new());
        decode_once(&mut decoder, &bytes, None, &mut out);
        group.throughput(Throughput::Elements(out.len() as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| decode_once(&mut decoder, black_box(&bytes), None, &mut out));
        });
    }
}

/// Only the time in the resampler: the decoder takes it apart from its own.
fn resample(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("resample");
    for from in [8_000, 22_050, 44_100, 48_000] {
        let bytes = wav(from);
        let (mut decoder, mut out) = (Decoder::new(), Vec::new());
        group.throughput(Throughput::Elements(u64::from(from) * SECONDS as u64));
        group.bench_function(format!("{from} to {RATE}"), |bencher| {
            bencher.iter_custom(|times| {
                decoder.take_times();
                for _ in 0..times {
                    decode_once(&mut decoder, black_box(&bytes), Some(RATE), &mut out);
                }
                Duration::from_nanos(decoder.take_times().resample_nanos)
            });
        });
    }
}

fn arrays(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("npy");
    let (mut out, mut shape, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
    for (name, bytes) in [("f32", array("<f4", 4)), ("f64", array("<f8", 8))] {
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                npy(black_box(&bytes), &Limits::default(), &mut out, &mut shape, &mut scratch)
                    .unwrap_or_else(|fault| panic!("{fault}"));
            });
        });
    }
}

fn augment(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("augment");
    group.throughput(Throughput::Elements((RATE as usize * SECONDS) as u64));
    group.bench_function("noise", |bencher| {
        stage(bencher, "noise", clip, |flow| flow.noise(Noise::snr_db(5.0..=20.0)));
    });
    group.bench_function("gain", |bencher| {
        stage(bencher, "gain", clip, |flow| flow.gain(Gain::db(-6.0..=6.0)));
    });
    group.bench_function("time_shift", |bencher| {
        stage(bencher, "time_shift", clip, |flow| flow.time_shift(TimeShift::seconds(0.5)));
    });
    group.throughput(Throughput::Elements((FRAMES * BINS) as u64));
    group.bench_function("spec_augment", |bencher| {
        let masks = SpecAugment::new().time(2, 0.1).frequency(2, 16);
        stage(bencher, "spec_augment", frames, |flow| flow.spec_augment(masks.clone()));
    });
}

fn features(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("log_mel");
    group.throughput(Throughput::Elements((RATE as usize * SECONDS) as u64));
    for bins in [80, 128] {
        group.bench_function(format!("{bins}"), |bencher| {
            stage(bencher, "log_mel", clip, |flow| flow.log_mel(LogMel::whisper(bins)));
        });
    }
}

/// Byte-level BPE has a path of its own; with a normaliser, the same tokenizer goes through `tokenizers`.
fn tokenize(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tokenize");
    for (path, normalizer) in [("bpe", json!(null)), ("other", json!({ "type": "NFC" }))] {
        let tokenizer =
            Tokenize::json(&tokenizer_json(&normalizer)).unwrap_or_else(|fault| panic!("{fault}"));
        for (length, words) in [("short", 12), ("long", 2_000)] {
            let text = prose(words);
            group.throughput(Throughput::Bytes(text.len() as u64));
            group.bench_function(format!("{path}, {length}"), |bencher| {
                bencher.iter(|| tokenizer.encode(black_box(&text)).unwrap_or_else(|fault| panic!("{fault}")));
            });
        }
    }
}

/// What a sample costs where there is nothing to do: its place in the order, being claimed, and a number in a row.
fn plan(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    group.throughput(Throughput::Elements(1));
    let number = |index: u64| Sample::new(index.to_string()).with(field::LABELS, index as f64);
    for (name, batch) in [("count", Batch::of(64)), ("buckets", Batch::of(64).buckets(16))] {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|times| epoch(times, number, |flow| flow.batch(batch.clone())).0);
        });
    }
}

/// Arrays of uneven length into padded rows, by the clock on the wall: a batch is put together after its last sample, when
/// no stage is running.
fn collate(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("collate");
    group.throughput(Throughput::Elements(1));
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        group.bench_function(format!("{dtype:?}").to_lowercase(), |bencher| {
            let batch = Batch::of(16).output(dtype);
            bencher.iter_custom(|times| epoch(times, frames, |flow| flow.batch(batch.clone())).0);
        });
    }
}

// --- how it is measured ----------------------------------------------------------------------------------------------

/// Samples from memory.
struct Made {
    count: u64,
    make: Arc<dyn Fn(u64) -> Sample + Send + Sync>,
}

impl Source for Made {
    fn kind(&self) -> Kind {
        Kind::Npy
    }

    fn len(&self) -> u64 {
        self.count
    }

    fn fingerprint(&self) -> u128 {
        u128::from(self.count)
    }

    fn key(&self, index: u64) -> String {
        index.to_string()
    }

    fn sample(&self, index: u64) -> Result<Sample, Fault> {
        Ok((self.make)(index))
    }
}

/// So many samples through a pipeline on one thread: the time on the wall, and the pipeline.
fn epoch(
    samples: u64,
    make: impl Fn(u64) -> Sample + Send + Sync + 'static,
    flow: impl FnOnce(Builder) -> Builder,
) -> (Duration, Pipeline) {
    let source = Box::new(Made { count: samples, make: Arc::new(make) });
    let builder = flow(Pipeline::from_source(source).threads(1).policy(Policy::fail()));
    let mut pipeline = builder.build().unwrap_or_else(|error| panic!("{error}"));
    let began = Instant::now();
    for batch in pipeline.epoch(0) {
        black_box(batch.unwrap_or_else(|error| panic!("{error}")));
    }
    (began.elapsed(), pipeline)
}

/// The time that the pipeline booked for one of its stages.
fn stage<F, B>(bencher: &mut Bencher, name: &str, make: F, flow: B)
where
    F: Fn(u64) -> Sample + Send + Sync + Copy + 'static,
    B: Fn(Builder) -> Builder,
{
    bencher.iter_custom(|times| {
        let (_, pipeline) = epoch(times, make, &flow);
        let report = pipeline.report();
        let stage = report.stage(name).unwrap_or_else(|| panic!("there is no stage `{name}`"));
        // An epoch's end starts the next, so the meter may have counted a few more samples than were asked for.
        Duration::from_nanos((stage.busy_nanos as f64 * times as f64 / stage.items.max(1) as f64) as u64)
    });
}

fn decode_once(decoder: &mut Decoder, bytes: &[u8], rate: Option<u32>, out: &mut Vec<f32>) {
    let never = AtomicBool::new(false);
    decoder
        .audio(&bytes, rate, None, &Limits::default(), &never, out)
        .unwrap_or_else(|fault| panic!("{fault}"));
}

// --- what it is measured on ------------------------------------------------------------------------------------------

const FRAMES: usize = 400;
const BINS: usize = 128;

/// A tone that glides, so that no frame is like the one before.
fn tone(rate: u32) -> impl Iterator<Item = f32> {
    (0..rate as usize * SECONDS).map(move |at| {
        let seconds = at as f32 / rate as f32;
        (seconds * (900.0 + 700.0 * seconds)).sin() * 0.4
    })
}

fn clip(index: u64) -> Sample {
    static TONE: LazyLock<Vec<f32>> = LazyLock::new(|| tone(RATE).collect());
    Sample::new(index.to_string()).with(field::AUDIO, Waveform { samples: TONE.clone(), rate: RATE })
}

/// Features of `FRAMES` frames on average, from half to one and a half times that many.
fn frames(index: u64) -> Sample {
    let frames = FRAMES / 2 + (index as usize * 7919) % (FRAMES + 1);
    Sample::new(index.to_string())
        .with(field::FEATURES, Tensor::new(vec![0.5; frames * BINS], vec![frames, BINS]))
}

fn fixture(name: &str) -> Vec<u8> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/feedwater/tests/fixtures/audio").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// 16-bit mono.
fn wav(rate: u32) -> Vec<u8> {
    let samples: Vec<u8> = tone(rate).flat_map(|value| ((value * 32_767.0) as i16).to_le_bytes()).collect();
    let mut bytes = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
    bytes[4..8].copy_from_slice(&(samples.len() as u32 + 36).to_le_bytes());
    bytes.extend(rate.to_le_bytes());
    bytes.extend((rate * 2).to_le_bytes());
    bytes.extend(b"\x02\0\x10\0data");
    bytes.extend((samples.len() as u32).to_le_bytes());
    bytes.extend(samples);
    bytes
}

fn array(kind: &str, width: usize) -> Vec<u8> {
    let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({FRAMES}, {BINS}), }}");
    let header = format!("{header:<117}\n");
    let mut bytes = b"\x93NUMPY\x01\0".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.resize(bytes.len() + FRAMES * BINS * width, 0);
    bytes
}

const WORDS: [&str; 24] = [
    "the",
    "of",
    "and",
    "water",
    "must",
    "reach",
    "boiler",
    "before",
    "steam",
    "can",
    "be",
    "made",
    "pressure",
    "an",
    "engine",
    "that",
    "starves",
    "is",
    "not",
    "working",
    "it",
    "waits",
    "for",
    "feedwater",
];

fn prose(words: usize) -> String {
    (0..words).map(|at| WORDS[(at * 7 + at / 5) % WORDS.len()]).collect::<Vec<_>>().join(" ")
}

/// A byte-level BPE tokenizer that knows the words above: each is merged letter by letter.
fn tokenizer_json(normalizer: &serde_json::Value) -> Vec<u8> {
    // A character for each byte: itself where it can be printed, else the next from U+0100 on. The blank's is 'Ġ'.
    let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let others = (0..256).filter(|byte| !printable(*byte)).zip(256..).map(|(_, character)| character);
    let characters = (0..256).filter(|byte| printable(*byte)).chain(others);
    let mut vocabulary: Vec<String> = characters.filter_map(char::from_u32).map(String::from).collect();
    let mut merges: Vec<[String; 2]> = Vec::new();
    for word in WORDS {
        for word in [word.to_owned(), format!("Ġ{word}")] {
            let mut letters = word.chars().map(String::from);
            let mut left = letters.next().unwrap_or_default();
            for letter in letters {
                let merged = format!("{left}{letter}");
                if !vocabulary.contains(&merged) {
                    merges.push([left, letter]);
                    vocabulary.push(merged.clone());
                }
                left = merged;
            }
        }
    }
    let ids: serde_json::Map<_, _> =
        vocabulary.into_iter().enumerate().map(|(id, token)| (token, json!(id))).collect();
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": ids,
            "merges": merges,
        },
    })
    .to_string()
    .into_bytes()
}
