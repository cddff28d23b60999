//! Does a run that was stopped, torn or altered go on as if nothing had been?

#![expect(clippy::unwrap_used, reason = "a test that fails may stop")]

use std::{
    f32::consts::TAU,
    fmt::Write,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use feedwater::{
    Builder, Policy,
    source::{self, Source},
};
use feedwater_train::{
    Device, Error,
    checkpoint::{Checkpoints, check},
    device::Devices,
    recipes::{Recipe, cnn_lstm::CnnLstm, whisper::Whisper},
    trainer::{Ended, Event, Feed, Settings, Summary, Trainer, batches},
    vocabulary::Vocabulary,
    weights::{Named, Weights},
};

/// Ten short clips, each a tone with the letter that belongs to its pitch.
fn clips(folder: &Path) {
    let mut metadata = String::new();
    for (number, letters) in ["A", "B", "AB", "BA", "A", "B", "AA", "BB", "AB", "B"].iter().enumerate() {
        let mut samples = Vec::new();
        for letter in letters.chars() {
            let pitch = if letter == 'A' { 500.0 } else { 1500.0 };
            let tone = |at: usize| ((at as f32 / 16_000.0 * pitch * TAU).sin() * 8_000.0) as i16;
            samples.extend((0..3_200).map(tone).chain(std::iter::repeat_n(0, 800 * (1 + number % 3))));
        }
        let bytes: Vec<u8> = samples.iter().flat_map(|sample: &i16| sample.to_le_bytes()).collect();
        let mut file = Vec::new();
        file.extend(b"RIFF");
        file.extend((36 + bytes.len() as u32).to_le_bytes());
        file.extend(b"WAVEfmt ");
        file.extend(16_u32.to_le_bytes());
        file.extend([1, 0, 1, 0]);
        file.extend(16_000_u32.to_le_bytes());
        file.extend(32_000_u32.to_le_bytes());
        file.extend([2, 0, 16, 0]);
        file.extend(b"data");
        file.extend((bytes.len() as u32).to_le_bytes());
        file.extend(bytes);
        fs::write(folder.join(format!("{number}.wav")), file).unwrap();
        writeln!(metadata, r#"{{"file_name":"{number}.wav","text":"{letters}"}}"#).unwrap();
    }
    fs::write(folder.join("metadata.jsonl"), metadata).unwrap();
}

struct Place {
    folder: tempfile::TempDir,
}

#[derive(Debug)]
struct Run {
    weights: Vec<Named>,
    summary: Summary,
    losses: Vec<(u64, f64)>,
    warnings: Vec<String>,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("data")).unwrap();
        clips(&folder.path().join("data"));
        Self { folder }
    }

    fn checkpoints(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn open(&self) -> Box<dyn Source> {
        source::open(self.folder.path().join("data")).unwrap()
    }

    /// Trains `steps`; stopped after `stop_after` of them.
    fn run(&self, name: &str, settings: &Settings, stop_after: u64) -> Result<Run, Error> {
        let recipe = CnnLstm::transcriber(Vocabulary::of(&*self.open())?, 8, 6);
        let weights = recipe.weights(settings.seed, &Device::flex());
        self.run_recipe(&recipe, weights, name, settings, stop_after)
    }

    fn run_recipe(
        &self,
        recipe: &dyn Recipe,
        weights: Weights,
        name: &str,
        settings: &Settings,
        stop_after: u64,
    ) -> Result<Run, Error> {
        let stop = AtomicBool::new(false);
        let trainer = Trainer {
            recipe,
            settings,
            devices: Devices::one(Device::flex()),
            checkpoints: Checkpoints::new(self.checkpoints(name)),
            record: None,
            stop: &stop,
        };
        let feed = Feed {
            training: batches(self.builder(recipe)?, settings, true)?,
            held_out: Some(batches(self.builder(recipe)?, settings, false)?),
        };
        let (mut losses, mut warnings) = (Vec::new(), Vec::new());
        let (weights, summary): (Weights, _) =
            trainer.run(weights, feed, true, &mut |event| match event {
                Event::Step(took) => {
                    losses.push((took.step, took.loss));
                    stop.store(took.step >= stop_after, Ordering::Relaxed);
                }
                Event::Warning(text) => warnings.push(text),
                _ => {}
            })?;
        Ok(Run { weights: weights.named(), summary, losses, warnings })
    }
}

impl Place {
    fn builder(&self, recipe: &dyn Recipe) -> Result<Builder, Error> {
        let bad = self.folder.path().join("bad.jsonl");
        Ok(recipe.pipeline(self.open(), true)?.policy(Policy::skip_up_to(0.5).quarantine(bad)))
    }

    /// A Whisper that is small enough for a test.
    fn whisper(&self) -> Whisper {
        let folder = self.folder.path().join("whisper");
        fs::create_dir(&folder).unwrap();
        Whisper::new("tiny", 1, None).unwrap().save(&folder).unwrap();
        let path = folder.join("config.json");
        let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for (name, value) in [
            ("d_model", 8),
            ("encoder_layers", 1),
            ("decoder_layers", 1),
            ("encoder_ffn_dim", 8),
            ("decoder_ffn_dim", 8),
            ("encoder_attention_heads", 2),
            ("decoder_attention_heads", 2),
        ] {
            config[name] = value.into();
        }
        fs::write(path, config.to_string()).unwrap();
        Whisper::load(&folder).unwrap()
    }
}

fn settings() -> Settings {
    Settings {
        batch_size: 3,
        accumulation: 2,
        max_steps: 14,
        warm_up: 3,
        learning_rate: 1e-2,
        evaluate_every: 5,
        checkpoint_every: 4,
        ..Settings::default()
    }
}

#[test]
fn stopped_anywhere_and_resumed_it_ends_with_the_same_weights() {
    let place = Place::new();
    let whole = place.run("whole", &settings(), u64::MAX).unwrap();
    assert_eq!((whole.summary.steps, whole.summary.ended), (14, Ended::Steps));
    assert!(whole.losses[13].1 < whole.losses[0].1);
    for stop in [1, 6, 13] {
        let name = format!("stopped-{stop}");
        let first = place.run(&name, &settings(), stop).unwrap();
        assert_eq!((first.summary.steps, first.summary.ended), (stop, Ended::Asked));
        let second = place.run(&name, &settings(), u64::MAX).unwrap();
        let losses: Vec<_> = first.losses.into_iter().chain(second.losses).collect();
        assert_eq!(losses, whole.losses, "stopped after {stop}");
        assert_eq!(second.weights, whole.weights, "stopped after {stop}");
    }
}

#[test]
fn a_checkpoint_that_was_torn_or_altered_is_found_and_the_one_before_it_used() {
    let place = Place::new();
    let whole = place.run("whole", &settings(), u64::MAX).unwrap();
    for damage in ["cut", "altered", "gone"] {
        place.run(damage, &settings(), 10).unwrap();
        let newest = Checkpoints::new(place.checkpoints(damage)).path(10);
        check(&newest).unwrap();
        let file = newest.join("model.safetensors");
        let mut bytes = fs::read(&file).unwrap();
        match damage {
            "cut" => fs::write(&file, &bytes[..bytes.len() / 2]).unwrap(),
            "altered" => {
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                fs::write(&file, &bytes).unwrap();
            }
            _ => fs::remove_file(&file).unwrap(),
        }
        let run = place.run(damage, &settings(), u64::MAX).unwrap();
        assert!(run.warnings[0].contains("the one before it is looked at"), "{:?}", run.warnings);
        assert_eq!(run.weights, whole.weights);
        assert!(run.losses[0].0 < 10);
    }
}

#[test]
fn other_settings_are_another_run() {
    let place = Place::new();
    place.run("run", &settings(), 5).unwrap();
    let error = place.run("run", &Settings { learning_rate: 2e-2, ..settings() }, 9).unwrap_err().to_string();
    assert!(error.contains("`learning_rate` 0.01, and here it is 0.02"), "{error}");
    // How long it lasts may change, though the schedule follows from it.
    assert!(place.run("run", &Settings { checkpoint_every: 2, ..settings() }, 9).is_ok());
}

#[test]
fn no_better_for_long_ends_it() {
    let place = Place::new();
    let still = Settings { learning_rate: 0.0, patience: Some(2), evaluate_every: 1, ..settings() };
    let run = place.run("run", &still, u64::MAX).unwrap();
    assert_eq!((run.summary.steps, run.summary.ended), (3, Ended::Patience));
}

#[test]
fn a_checkpoint_that_cannot_be_written_does_not_end_the_run() {
    let place = Place::new();
    // A file where the folder should be.
    fs::write(place.checkpoints("run"), "in the way").unwrap();
    let run = place.run("run", &settings(), u64::MAX).unwrap();
    assert_eq!(run.summary.steps, 14);
    assert!(run.warnings.iter().any(|warning| warning.contains("the run goes on")), "{:?}", run.warnings);
}

#[test]
fn two_checkpoints_and_the_best_are_kept_and_nothing_else() {
    let place = Place::new();
    let run = place.run("run", &settings(), u64::MAX).unwrap();
    let mut names: Vec<String> = fs::read_dir(place.checkpoints("run"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let (_, best) = run.summary.best.unwrap();
    assert!(names.len() <= 3 && names.contains(&"step-00000014".to_owned()), "{names:?}");
    assert!(names.contains(&format!("step-{best:08}")), "{names:?}");
    let model = CnnLstm::load(&run.summary.model.unwrap()).unwrap();
    assert_eq!(model.name(), "cnn-lstm");
}

#[test]
fn a_dataset_without_texts_is_told_so() {
    let place = Place::new();
    fs::remove_file(place.folder.path().join("data/metadata.jsonl")).unwrap();
    let error = place.run("run", &settings(), 1).unwrap_err().to_string();
    assert!(error.contains("no sample of the dataset has a text"), "{error}");
}

#[test]
fn a_whisper_that_was_stopped_ends_with_the_same_weights_and_its_places_untouched() {
    let place = Place::new();
    let recipe = place.whisper();
    let fresh = || recipe.weights(3, &Device::flex());
    let whole = place.run_recipe(&recipe, fresh(), "whole", &settings(), u64::MAX).unwrap();
    assert!(whole.losses[13].1 < whole.losses[0].1);
    place.run_recipe(&recipe, fresh(), "stopped", &settings(), 6).unwrap();
    let second = place.run_recipe(&recipe, fresh(), "stopped", &settings(), u64::MAX).unwrap();
    assert_eq!(second.weights, whole.weights);
    let places = |weights: &[Named]| {
        let name = "model.encoder.embed_positions.weight";
        weights.iter().find(|weight| weight.name == name).unwrap().values.clone()
    };
    assert_eq!(places(&whole.weights), places(&fresh().named()));
}

#[test]
fn a_batch_of_bad_samples_alone_is_passed_over() {
    let place = Place::new();
    fs::write(place.folder.path().join("data/3.wav"), "no sound").unwrap();
    let settings = Settings { batch_size: 1, accumulation: 1, max_steps: 25, ..settings() };
    let run = place.run("run", &settings, u64::MAX).unwrap();
    assert_eq!(run.losses.len(), 25);
}

#[test]
fn a_row_is_heard_the_same_whatever_it_travels_with() {
    let place = Place::new();
    let recipe = CnnLstm::transcriber(Vocabulary::of(&*place.open()).unwrap(), 8, 6);
    let weights = recipe.weights(1, &Device::flex()).frozen();
    let rows = |size: u64| {
        let settings = Settings { batch_size: size, buckets: 1, ..settings() };
        let mut found = Vec::new();
        for batch in batches(place.builder(&recipe).unwrap(), &settings, false).unwrap().epoch(0) {
            let batch = batch.unwrap();
            let (logits, lengths) =
                recipe.frames(&weights, &recipe.prepare(&batch, &Device::flex()).unwrap());
            let [_, frames, classes] = logits.dims();
            let values: Vec<f32> = logits.into_data_as::<f32>().try_into_vec().unwrap();
            for (row, (key, length)) in batch.keys.iter().zip(&lengths).enumerate() {
                found.push((key.clone(), values[row * frames * classes..][..length * classes].to_vec()));
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    };
    for ((key, alone), (_, together)) in rows(1).into_iter().zip(rows(10)) {
        for (one, other) in alone.iter().zip(&together) {
            assert!((one - other).abs() < 1e-5, "{key}: {one} and {other}");
        }
    }
}
