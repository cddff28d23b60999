//! `feedwater quickstart`: everything once, on this machine, in a few minutes.

use std::{
    fs,
    io::IsTerminal,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use feedwater::source::{self, Source};
use feedwater_profile::{
    Diagnosis, Record, machine,
    render::{html, text},
};
use feedwater_train::{
    Device,
    checkpoint::Checkpoints,
    device::Devices,
    metrics::{cer, wer},
    optimizer::Schedule,
    recipes::cnn_lstm::CnnLstm,
    trainer::{Ended, Settings},
    transcriber::Transcriber,
    vocabulary::Vocabulary,
};
use indicatif::ProgressBar;
use miette::miette;
use serde_json::json;

use super::{
    generate,
    report::{print, write},
    train::STOPPED,
};
use crate::{
    caching::Caching,
    profile::{
        run::{self, Job as Measurement},
        setup::{Gate, Setup, Task},
    },
    shell,
    train::{Job, interrupted, told},
};

const ABOUT: &str = "\
What it does, in three or four minutes on two cores:
  1  makes Morse code as a radio plays it: noise, fading, other stations
  2  shows what a plain loop does to an accelerator, and what the engine does
  3  trains a model that transcribes it, on the CPU
  4  has it transcribe clips that it has never met
  5  writes report.html

Run again, it goes on where it was, or shows what it has. Ctrl-C loses nothing.

Examples:
  feedwater quickstart
  feedwater quickstart --out /tmp/try --steps 1200

Exit codes:
  0  all of it was done
  2  something could not be done
  130  stopped by Ctrl-C";

/// What to make.
#[derive(Debug, clap::Args)]
#[command(after_help = ABOUT)]
pub(crate) struct Options {
    /// Where everything goes
    #[arg(long, value_name = "DIR", default_value = "feedwater-quickstart")]
    out: PathBuf,
    /// Clips to learn from
    #[arg(long, value_name = "N", default_value_t = 2400, value_parser = clap::value_parser!(u32).range(16..))]
    clips: u32,
    /// Training steps of 16 clips
    #[arg(long, value_name = "N", default_value_t = 2400, value_parser = clap::value_parser!(u64).range(40..))]
    steps: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const BATCH: u64 = 16;
/// Clips by which the best weights are chosen while it learns.
const CHECKED: &str = "60";
/// Clips that are only for trying: what was chosen by a figure looks better by it than it is.
const TRIED: &str = "120";
/// How long the pretended accelerator is busy with a batch: a small model on a small card.
const STEP_NANOS: u64 = 20_000_000;
const MEASURED_STEPS: u64 = 120;

pub(crate) fn run(options: &Options) -> miette::Result<u8> {
    let began = Instant::now();
    let out = &options.out;
    fs::create_dir_all(out).map_err(|error| miette!("cannot make `{}`: {error}", out.display()))?;
    let say = |text: &str| {
        if !options.json {
            // A reader that is gone is no reason to stop.
            let _ = print(text);
        }
    };
    let heading = |number: u32, title: &str| say(&format!("\n[{number}/5] {title}"));

    heading(1, "Data: Morse code as a radio plays it");
    let [train, checked, tried] = clips(options)?;
    let open = |path: &Path| source::open(path).map_err(|error| miette!("{error}"));
    let (training, held_out, never_seen) = (open(&train)?, open(&checked)?, open(&tried)?);
    say(&format!(
        "{} clips to learn from, {} to choose the best weights by, {} that are only for trying: {}",
        training.len(),
        held_out.len(),
        never_seen.len(),
        out.display()
    ));

    heading(2, "Feeding: an accelerator that is busy for 20 ms with each batch of 16 clips");
    let plain = measured(&train, true, &out.join("plain.jsonl"))?;
    let engine = measured(&train, false, &out.join("engine.jsonl"))?;
    say("as a plain loop, which makes a batch when it is asked for:");
    say(indented(&text::render(&plain, colour())).trim_end());
    say(&format!(
        "\nwith the engine, the same batches: busy {:.0} % instead of {:.0} %, {:.1} steps/s instead of {:.1}",
        engine.busy_percent.unwrap_or(0.0),
        plain.busy_percent.unwrap_or(0.0),
        engine.steps_per_second,
        plain.steps_per_second
    ));

    heading(3, "Training: convolutions and an LSTM, on the CPU");
    let folder = out.join("model");
    let Some(trained) = train_model(options, training, held_out, &folder)? else {
        say("stopped; the same command goes on from here");
        return Ok(STOPPED);
    };
    say(&trained);

    heading(4, "Listening: clips that it has never met");
    let heard = listen(&folder, never_seen)?;
    let (letters, words) = (heard.letters, heard.words);
    say(&format!("clip      {}", tried.join(&heard.example.key).display()));
    say(&format!("is        {}", heard.example.is));
    say(&format!("heard     {}", heard.example.heard));
    say(&format!(
        "wrong     {:.1} % of letters, {:.1} % of words, in {} clips",
        100.0 * letters,
        100.0 * words,
        heard.clips
    ));
    if letters > 0.5 && options.steps < 2400 {
        say(&format!(
            "hint: {} steps are few; --steps 2400 with another --out takes longer and hears more",
            options.steps
        ));
    }

    heading(5, "Report");
    let page = out.join("report.html");
    let record = Record::open(folder.join("record.jsonl")).map_err(|error| miette!("{error}"))?;
    let diagnosis = Diagnosis::of(&record).map_err(|error| miette!("{error}"))?;
    write(&page, &html::render(&record, &diagnosis).map_err(|error| miette!("{error}"))?)?;
    let seconds = began.elapsed().as_secs_f64();
    say(&format!("{}: how it learned, and how it was fed", page.display()));
    let word = |path: &Path| shell::word(&path.to_string_lossy());
    say(&format!(
        "\nAll of it took {seconds:.0} s. What to try next:\n  \
         feedwater transcribe {} YOUR.wav\n  \
         feedwater profile YOUR-DATA\n  \
         feedwater profile -- python your_training_script.py\n  \
         feedwater train whisper --data-dir {} --model-size tiny --max-seconds 12 --max-steps 40",
        word(&folder),
        word(&train)
    ));
    if options.json {
        print(&json!({
            "version": 1, "seconds": seconds, "plain": plain, "engine": engine, "model": folder, "report": page,
            "cer": letters, "wer": words, "clips": heard.clips,
            "example": { "file": heard.example.key, "is": heard.example.is, "heard": heard.example.heard },
        }).to_string())?;
    }
    Ok(0)
}

/// Makes the clips, where they are not there: to learn from, to choose by, and to try. Not where a model in the folder has learned
/// from others.
fn clips(options: &Options) -> miette::Result<[PathBuf; 3]> {
    let out = &options.out;
    let (train, checked, tried) = (out.join("train"), out.join("checked"), out.join("tried"));
    let clips = options.clips.to_string();
    let has_begun = !Checkpoints::new(out.join("model").join("checkpoints")).is_empty();
    if has_begun && !checked.exists() {
        return Err(miette!(
            help = "another --out begins anew",
            "the weights in `{}` are of an earlier version, which chose them by the clips that they are tried on",
            out.display()
        ));
    }
    if has_begun
        && let Ok(before) = source::open(&train)
        && before.len() != u64::from(options.clips)
    {
        return Err(miette!(
            help = format!("--clips {} goes on with it; another --out begins anew", before.len()),
            "the model in `{}` learns from {} clips",
            out.display(),
            before.len()
        ));
    }
    generate::quietly("morse", &train, &["--clips", &clips, "--seed", "11", "--force"])?;
    generate::quietly("morse", &checked, &["--clips", CHECKED, "--seed", "98", "--force"])?;
    generate::quietly("morse", &tried, &["--clips", TRIED, "--seed", "99", "--force"])?;
    Ok([train, checked, tried])
}

/// What a pretended accelerator waits for, with batches that are made by a plain loop or by the engine.
fn measured(data: &Path, plain: bool, record: &Path) -> miette::Result<Diagnosis> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let setup = Setup {
        task: Task::Whisper,
        data: data.to_owned(),
        tokenizer: None,
        batch_size: BATCH,
        threads: if plain { 1 } else { cores },
        prefetch: if plain { 1 } else { 4 },
        half: false,
        pad_to_longest: false,
        chunk: false,
        buckets: false,
        seed: 7,
        plain: plain.then(|| Arc::new(Gate::default())),
        step_nanos: STEP_NANOS,
        step_rows: BATCH,
        caching: Caching::default(),
        bad_ceiling: None,
    };
    let host = machine::host_with_data(data);
    let name = if plain { "a plain loop" } else { "the engine" };
    let progress = ProgressBar::hidden();
    let job = Measurement {
        name,
        host: &host,
        devices: &[],
        steps: MEASURED_STEPS,
        record,
        progress: &progress,
        announced: true,
    };
    let (record, _) = run::run(&setup, &job)?;
    Diagnosis::of(&record).map_err(|error| miette!("{error}"))
}

/// Trains, from where an earlier run was. What is to be said of it; nothing where it was stopped.
fn train_model(
    options: &Options,
    training: Box<dyn Source>,
    held_out: Box<dyn Source>,
    folder: &Path,
) -> miette::Result<Option<String>> {
    let recipe = CnnLstm::transcriber(Vocabulary::of(&*training).map_err(told)?, 64, 96);
    let settings = Settings {
        batch_size: BATCH,
        max_steps: options.steps,
        learning_rate: 3e-3,
        schedule: Schedule::Cosine,
        evaluate_every: 300,
        checkpoint_every: 300,
        ..Settings::default()
    };
    let devices = Devices::one(Device::flex());
    let weights = recipe.weights(settings.seed, &devices.model);
    let stop = interrupted()?;
    let job = Job {
        recipe: &recipe,
        settings,
        devices,
        weights,
        training,
        held_out,
        cache: None,
        bad_ceiling: None,
        folder: folder.to_owned(),
        resume: !Checkpoints::new(folder.join("checkpoints")).is_empty(),
        stop: &stop,
    };
    let (summary, seconds) = job.run()?;
    if summary.ended == Ended::Asked {
        return Ok(None);
    }
    let (busy, loader) = (100.0 * summary.busy, 100.0 * summary.loader_cores);
    Ok(Some(if summary.last.is_none() {
        format!("trained   {} steps, in an earlier run", summary.steps)
    } else {
        format!(
            "trained   {} steps in {seconds:.0} s; the CPU as accelerator was busy {busy:.1} % of the time, making batches took {loader:.0} % of a core",
            summary.steps
        )
    }))
}

struct Example {
    key: String,
    is: String,
    heard: String,
}

struct Heard {
    letters: f64,
    words: f64,
    clips: usize,
    example: Example,
}

/// What the model makes of clips that it has never met.
fn listen(folder: &Path, tried: Box<dyn Source>) -> miette::Result<Heard> {
    let transcriber = Transcriber::open(folder, &Device::flex()).map_err(told)?;
    let mut texts = std::collections::HashMap::new();
    for index in 0..tried.len() {
        let sample = tried.sample(index).map_err(|fault| miette!("{fault}"))?;
        texts.insert(tried.key(index), sample.text().unwrap_or_default().to_owned());
    }
    let mut pairs = Vec::new();
    transcriber
        .read(tried, &mut |said| {
            let is = texts.get(&said.key).cloned().unwrap_or_default();
            pairs.push((said.key, is, said.text.unwrap_or_default()));
        })
        .map_err(told)?;
    let both = || pairs.iter().map(|(_, is, heard)| (is.as_str(), heard.as_str()));
    let (letters, words) = (cer(both()).share(), wer(both()).share());
    // One of some length says more than one of three letters.
    let example = pairs.iter().find(|(_, is, _)| is.len() >= 20).or(pairs.first());
    let (key, is, heard) = example.cloned().ok_or_else(|| miette!("no clip could be read"))?;
    Ok(Heard { letters, words, clips: pairs.len(), example: Example { key, is, heard } })
}

fn indented(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    format!("  {}", lines.join("\n  "))
}

fn colour() -> text::Colour {
    if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        text::Colour::Ansi
    } else {
        text::Colour::None
    }
}
