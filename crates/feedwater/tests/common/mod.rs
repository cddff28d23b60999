//! Small datasets for the tests, and what a stream of batches is.

#![allow(dead_code, reason = "each test file uses its part")]

use std::{
    fmt::Write as _,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
};

use feedwater::{Audio, Batch, Builder, LogMel, Noise, Pipeline, Policy, ReadyBatch, SpecAugment, Tokenize};

/// A WAV file: 16 bits, mono.
pub(crate) fn wav(samples: &[i16], rate: u32) -> Vec<u8> {
    let bytes = samples.len() as u32 * 2;
    let mut file = b"RIFF".to_vec();
    file.extend((bytes + 36).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16_u32.to_le_bytes());
    file.extend([1, 0, 1, 0]);
    file.extend(rate.to_le_bytes());
    file.extend((rate * 2).to_le_bytes());
    file.extend([2, 0, 16, 0]);
    file.extend(b"data");
    file.extend(bytes.to_le_bytes());
    file.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    file
}

/// A clip that no other number has.
pub(crate) fn clip(number: usize, seconds: f64) -> Vec<i16> {
    let pitch = 200.0 + number as f64 * 3.7;
    (0..(seconds * 16_000.0) as usize)
        .map(|i| ((i as f64 / 16_000.0 * pitch * std::f64::consts::TAU).sin() * 9000.0) as i16)
        .collect()
}

/// A folder of `count` clips of 0.1 to 0.9 s with `metadata.jsonl`; every hundredth file is cut off.
pub(crate) fn audio_folder(folder: &Path, count: usize) {
    let mut metadata = String::new();
    for number in 0..count {
        let seconds = 0.1 + (number * 37 % 80) as f64 / 100.0;
        let mut bytes = wav(&clip(number, seconds), 16_000);
        if number % 100 == 50 {
            bytes.truncate(bytes.len() / 2);
        }
        fs::write(folder.join(format!("clip{number:04}.wav")), bytes).unwrap();
        let _ = writeln!(
            metadata,
            "{{\"file_name\": \"clip{number:04}.wav\", \"text\": \"clip number {number}\", \"duration\": {seconds}}}"
        );
    }
    fs::write(folder.join("metadata.jsonl"), metadata).unwrap();
}

pub(crate) fn tokenizer() -> Tokenize {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer/gpt2.json");
    Tokenize::file(file).unwrap().suffix(["<|endoftext|>"]).unwrap()
}

/// Everything at once: shuffling, augmentation of sound and of features, features, tokens, bad files left out.
pub(crate) fn everything(folder: &Path, batch: Batch) -> Builder {
    Pipeline::open(folder)
        .unwrap()
        .decode(Audio::mono(16_000))
        .noise(Noise::snr_db(5.0..=20.0))
        .log_mel(LogMel::any_length(80))
        .spec_augment(SpecAugment::default())
        .tokenize(tokenizer())
        .batch(batch)
        .seed(7)
        .policy(Policy::skip_up_to(0.05).quarantine(folder.join("quarantine.jsonl")))
}

/// One batch, as a number: keys, shapes, lengths and every bit of every tensor.
pub(crate) fn digest(batch: &ReadyBatch) -> u64 {
    let mut hasher = DefaultHasher::new();
    (batch.epoch, batch.step, &batch.keys, &batch.valid, &batch.texts).hash(&mut hasher);
    for tensor in &batch.tensors {
        (&tensor.name, &tensor.shape, &tensor.lengths, tensor.as_bytes()).hash(&mut hasher);
    }
    hasher.finish()
}

/// All batches of an epoch, or of the rest of one.
pub(crate) fn digests(pipeline: &mut Pipeline, epoch: u64) -> Vec<u64> {
    pipeline.epoch(epoch).map(|batch| digest(&batch.unwrap())).collect()
}
