//! `feedwater transcribe`: what is said in files, by a model that was trained.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

use feedwater::source::{self, Files, Source};
use feedwater_train::{
    Device,
    transcriber::{Said, Transcriber},
};
use miette::{IntoDiagnostic, miette};
use serde_json::json;

use crate::train::told;

const EXAMPLES: &str = "\
Examples:
  feedwater transcribe runs/morse clip.wav
  feedwater transcribe whisper-tiny talks/ --json
  feedwater transcribe runs/cnn-lstm data/npy

MODEL is a folder with a config.json and a model.safetensors, or the --output-dir of
`feedwater train`, of which the best checkpoint is taken. A model that classifies says
the class.

Exit codes:
  0  all files were transcribed
  1  some could not be read
  2  the model or the files cannot be used";

/// What to transcribe.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// A folder with a model, or with a run
    model: PathBuf,
    /// Sound files, or folders of them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print a JSON object for each file, a line each
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> miette::Result<u8> {
    let transcriber = Transcriber::open(&options.model, &Device::flex()).map_err(told)?;
    let (mut failed, mut unprinted) = (false, None);
    for source in sources(&options.files)? {
        let mut tell = |Said { key, text }: Said| {
            failed |= text.is_err();
            let line = match &text {
                _ if options.json => match &text {
                    Ok(text) => json!({ "file": key, "text": text }).to_string(),
                    Err(error) => json!({ "file": key, "error": error }).to_string(),
                },
                Ok(text) => format!("{key}\t{text}"),
                Err(error) => {
                    eprintln!("error: {key}: {error}");
                    return;
                }
            };
            if let Err(error) = writeln!(std::io::stdout(), "{line}") {
                unprinted.get_or_insert(error);
            }
        };
        transcriber.read(source, &mut tell).map_err(told)?;
    }
    unprinted.map_or(Ok(()), Err).into_diagnostic()?;
    Ok(u8::from(failed))
}

/// Files by themselves, and each folder as what it is.
fn sources(paths: &[PathBuf]) -> miette::Result<Vec<Box<dyn Source>>> {
    let (folders, files): (Vec<&PathBuf>, Vec<&PathBuf>) = paths.iter().partition(|path| path.is_dir());
    if let Some(missing) = files.iter().find(|path| !path.is_file()) {
        return Err(miette!("there is no file `{}`", missing.display()));
    }
    let mut sources: Vec<Box<dyn Source>> = Vec::new();
    if !files.is_empty() {
        let arrays = files.iter().all(|path| path.extension().is_some_and(|kind| kind == "npy"));
        let kind = if arrays { source::Kind::Npy } else { source::Kind::Audio };
        let names = files.iter().map(|path| path.to_string_lossy());
        sources.push(Box::new(Files::list(Path::new(""), kind, names)));
    }
    for folder in folders {
        sources.push(source::open(folder).map_err(|error| miette!("{error}"))?);
    }
    Ok(sources)
}
