//! What does a model compute? For comparing it with another implementation of the same model.
//!
//! ```text
//! cargo run --release --example compute -- batches MODEL DATA OUT.safetensors [BATCHES [BATCH_SIZE]]
//! cargo run --release --example compute -- rates PAIRS.json
//! ```
//!
//! `batches` writes the first batches as `feedwater train --eval-data …` learns from them: `0.features`, `0.feature_lengths`,
//! `0.labels`, `0.label_lengths`, and so on; and what the model in a folder makes of the first, `logits`. `rates` prints the
//! character and the word error rate of a list of pairs, what is right first.

use std::{error::Error, fs, io::Write as _, path::Path};

use feedwater::{field, source};
use feedwater_train::{
    Device,
    metrics::{cer, wer},
    recipes::{Recipe, cnn_lstm::CnnLstm, fitting, whisper::Whisper},
    trainer::{Settings, batches},
    weights::{Named, to_safetensors},
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["batches", model, data, out, numbers @ ..] => {
            let number = |at: usize, usual: u64| numbers.get(at).map_or(Ok(usual), |text| text.parse());
            computed(Path::new(model), data, out, number(0, 1)?, number(1, 16)?)
        }
        ["rates", file] => {
            let pairs: Vec<(String, String)> = serde_json::from_slice(&fs::read(file)?)?;
            let pairs = || pairs.iter().map(|(right, said)| (right.as_str(), said.as_str()));
            writeln!(std::io::stdout(), "{} {}", cer(pairs()).share(), wer(pairs()).share())?;
            Ok(())
        }
        _ => Err("batches MODEL DATA OUT [BATCHES [BATCH_SIZE]], or rates PAIRS.json".into()),
    }
}

enum Model {
    Whisper(Box<Whisper>),
    CnnLstm(Box<CnnLstm>),
}

fn computed(model: &Path, data: &str, out: &str, count: u64, batch_size: u64) -> Result<(), Box<dyn Error>> {
    let device = Device::flex();
    let config: serde_json::Value = serde_json::from_slice(&fs::read(model.join("config.json"))?)?;
    let settings = Settings { batch_size, ..Settings::default() };
    let model_of = if config["model_type"] == "whisper" {
        Model::Whisper(Box::new(Whisper::load(model)?))
    } else {
        Model::CnnLstm(Box::new(CnnLstm::load(model)?))
    };
    let recipe: &dyn Recipe = match &model_of {
        Model::Whisper(whisper) => &**whisper,
        Model::CnnLstm(other) => &**other,
    };
    let builder = recipe.pipeline(source::open(data)?, true)?;
    let mut named = Vec::new();
    let mut pipeline = batches(builder, &settings, true)?;
    for (number, batch) in pipeline.epoch(0).take(count as usize).enumerate() {
        let batch = batch?;
        for (name, given) in [("features", field::FEATURES), ("labels", field::LABELS)] {
            let tensor = batch.get(given).ok_or("a batch lacks a field")?;
            let values = match (tensor.as_f32(), tensor.as_i64()) {
                (Some(values), _) => values.to_vec(),
                (_, Some(values)) => values.iter().map(|value| *value as f32).collect(),
                _ => return Err("a field of another type".into()),
            };
            named.push(Named { name: format!("{number}.{name}"), shape: tensor.shape.clone(), values });
            let lengths: Vec<f32> = tensor.lengths.iter().map(|length| *length as f32).collect();
            let name = format!("{number}.{}_lengths", name.trim_end_matches('s'));
            named.push(Named { name, shape: vec![lengths.len()], values: lengths });
        }
        if number == 0 {
            let prepared = recipe.prepare(&batch, &device)?;
            let logits = match &model_of {
                Model::Whisper(whisper) => {
                    whisper.logits(&fitting(model, &whisper.weights(0, &device))?.frozen(), &prepared)
                }
                Model::CnnLstm(other) => {
                    let weights = fitting(model, &other.weights(0, &device))?.frozen();
                    other.frames(&weights, &prepared).0.reshape([-1])
                }
            };
            let values: Vec<f32> = logits.into_data_as::<f32>().try_into_vec().map_err(|_| "no numbers")?;
            named.push(Named { name: "logits".to_owned(), shape: vec![values.len()], values });
        }
    }
    fs::write(out, to_safetensors(&named)?)?;
    Ok(())
}
