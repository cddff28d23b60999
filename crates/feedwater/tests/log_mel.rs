//! Log-mel features are those of transformers' `WhisperFeatureExtractor`, within 1e-5, on every fixture.
//!
//! The reference values come from `fixtures/make_log_mel.py`, by the extractor's numpy implementation. (Its torch one, in
//! single precision, differs from it by up to 4.4e-5 on these clips: see `torch_differs_by` in `index.json`.)

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{collections::BTreeMap, fs, path::PathBuf};

use feedwater::{Audio, Batch, DType, LogMel, Pipeline, Policy, decode, field};
use serde_json::Value;

const FRAMES: usize = 3000;

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/log_mel")
}

/// The clips, as `make_log_mel.py` wrote or described them, as WAV files in a folder.
fn clips(folder: &std::path::Path) -> BTreeMap<String, Value> {
    let index: BTreeMap<String, Value> =
        serde_json::from_slice(&fs::read(fixtures().join("index.json")).unwrap()).unwrap();
    for (name, entry) in &index {
        let clip = name.rsplit_once('_').unwrap().0;
        let file = folder.join(format!("{clip}.wav"));
        match entry["made_from"].as_str() {
            None => {
                fs::copy(fixtures().join(format!("{clip}.wav")), file).unwrap();
            }
            // Forwards, backwards, and so on, as long as the clip is.
            Some(base) => {
                let base = fs::read(fixtures().join(base)).unwrap();
                let samples: Vec<[u8; 2]> = base[44..].chunks(2).map(|pair| [pair[0], pair[1]]).collect();
                let there_and_back: Vec<[u8; 2]> =
                    samples.iter().chain(samples.iter().rev()).copied().collect();
                let length = entry["samples"].as_u64().unwrap() as usize;
                let data: Vec<u8> = there_and_back.iter().cycle().take(length).flatten().copied().collect();
                let mut wav = base[..44].to_vec();
                wav[4..8].copy_from_slice(&(data.len() as u32 + 36).to_le_bytes());
                wav[40..44].copy_from_slice(&(data.len() as u32).to_le_bytes());
                wav.extend(data);
                fs::write(file, wav).unwrap();
            }
        }
    }
    index
}

/// Which frames of a clip's features are in its reference file.
fn kept(entry: &Value, columns: usize) -> Vec<usize> {
    let text = entry["frames"].as_str().unwrap();
    let mut frames: Vec<usize> = if text.starts_with("every 16th") {
        (0..FRAMES).step_by(16).chain([2997, 2998, 2999]).collect()
    } else {
        (0..text.trim_start_matches("0..").split(',').next().unwrap().parse().unwrap()).collect()
    };
    if frames.len() < columns {
        frames.push(2999);
    }
    assert_eq!(frames.len(), columns);
    frames
}

#[test]
fn equal_to_transformers_on_every_fixture() {
    let folder = tempfile::tempdir().unwrap();
    let index = clips(folder.path());
    for bins in [80, 128] {
        let mut pipeline = Pipeline::open(folder.path())
            .unwrap()
            .decode(Audio::mono(16_000))
            .log_mel(LogMel::whisper(bins))
            .batch(Batch::of(3))
            .policy(Policy::fail())
            .build()
            .unwrap();
        let mut seen = 0;
        for batch in pipeline.epoch(0) {
            let batch = batch.unwrap();
            let features = batch.get(field::FEATURES).unwrap();
            assert_eq!(features.shape[1..], [bins, FRAMES]);
            for (key, row) in batch.keys.iter().zip(features.as_f32().unwrap().chunks(bins * FRAMES)) {
                let name = format!("{}_{bins}", key.trim_end_matches(".wav"));
                let file = fs::read(fixtures().join(format!("{name}.npy"))).unwrap();
                let (mut reference, mut shape) = (Vec::new(), Vec::new());
                decode::npy(
                    &file.as_slice(),
                    &decode::Limits::default(),
                    &mut reference,
                    &mut shape,
                    &mut Vec::new(),
                )
                .unwrap();
                let mut worst = 0.0_f32;
                for (column, frame) in kept(&index[&name], shape[1]).into_iter().enumerate() {
                    for bin in 0..bins {
                        worst =
                            worst.max((row[bin * FRAMES + frame] - reference[bin * shape[1] + column]).abs());
                    }
                }
                assert!(worst <= 1e-5, "{name} differs by {worst:e}");
                seen += 1;
            }
        }
        assert_eq!(seen, index.len() / 2);
    }
}

#[test]
fn half_precision_is_the_same_rounded() {
    let folder = tempfile::tempdir().unwrap();
    clips(folder.path());
    let rows = |dtype| {
        let builder =
            Pipeline::open(folder.path()).unwrap().decode(Audio::mono(16_000)).log_mel(LogMel::whisper(80));
        let mut pipeline = builder.batch(Batch::of(2).output(dtype)).shuffle(false).build().unwrap();
        let batch = pipeline.epoch(0).next().unwrap().unwrap();
        let tensor = batch.get(field::FEATURES).unwrap();
        match dtype {
            DType::F16 => tensor.as_f16().unwrap().iter().map(|v| v.to_f32()).collect::<Vec<f32>>(),
            DType::BF16 => tensor.as_bf16().unwrap().iter().map(|v| v.to_f32()).collect(),
            _ => tensor.as_f32().unwrap().to_vec(),
        }
    };
    let single = rows(DType::F32);
    for (dtype, tolerance) in [(DType::F16, 1e-3), (DType::BF16, 8e-3)] {
        for (half, single) in rows(dtype).iter().zip(&single) {
            assert!((half - single).abs() <= tolerance * single.abs().max(1.0), "{dtype:?}: {half} {single}");
        }
    }
}

#[test]
fn without_padding_a_clip_has_a_frame_every_hundredth_of_a_second() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(fixtures().join("voiced.wav"), folder.path().join("voiced.wav")).unwrap();
    let builder =
        Pipeline::open(folder.path()).unwrap().decode(Audio::mono(16_000)).log_mel(LogMel::any_length(80));
    let mut pipeline = builder.batch(Batch::of(1)).build().unwrap();
    let batch = pipeline.epoch(0).next().unwrap().unwrap();
    assert_eq!(batch.get(field::FEATURES).unwrap().shape, [1, 80, 200]);
}
