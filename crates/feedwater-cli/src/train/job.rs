//! How is a run put together, how is its progress shown, and how does Ctrl-C end it?

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::{SystemTime, UNIX_EPOCH},
};

use feedwater::{Cache, Policy, source::Source};
use feedwater_profile::{machine, record};
use feedwater_train::{
    checkpoint::Checkpoints,
    device::Devices,
    recipes::Recipe,
    trainer::{Feed, Settings, Summary, Trainer, batches},
    weights::Weights,
};
use miette::miette;

use super::progress::Progress;

/// A run.
pub(crate) struct Job<'a> {
    pub(crate) recipe: &'a dyn Recipe,
    pub(crate) settings: Settings,
    pub(crate) devices: Devices,
    /// To begin with.
    pub(crate) weights: Weights,
    pub(crate) training: Box<dyn Source>,
    pub(crate) held_out: Box<dyn Source>,
    pub(crate) cache: Option<Cache>,
    pub(crate) bad_ceiling: Option<f64>,
    pub(crate) folder: PathBuf,
    pub(crate) resume: bool,
    /// Set to end it after the step that it is at.
    pub(crate) stop: &'a AtomicBool,
}

impl Job<'_> {
    /// Trains, and shows how it goes on. How it ended, and how many seconds it took.
    pub(crate) fn run(self) -> miette::Result<(Summary, f64)> {
        let Self {
            recipe,
            settings,
            devices,
            weights,
            training,
            held_out,
            cache,
            bad_ceiling,
            folder,
            resume,
            stop,
        } = self;
        std::fs::create_dir_all(&folder)
            .map_err(|error| miette!("cannot make `{}`: {error}", folder.display()))?;
        refuse_another(&folder, resume)?;
        let bad = folder.join("quarantine.jsonl");
        if !resume {
            // Of an earlier run in the same folder.
            let _ = std::fs::remove_file(&bad);
        }
        let feed = |source: Box<dyn Source>, learn: bool| {
            let policy = bad_ceiling.map_or_else(Policy::skip, Policy::skip_up_to).quarantine(&bad);
            let builder = recipe.pipeline(source, true).map_err(told)?.policy(policy).cache(cache.clone());
            batches(builder, &settings, learn).map_err(told)
        };
        let feed = Feed {
            training: feed(training, true)?,
            held_out: if held_out.is_empty() { None } else { Some(feed(held_out, false)?) },
        };
        let begins_with = feed.training.report();
        let run = record::Run {
            name: format!("train {}", recipe.name()),
            writer: format!("feedwater {}", env!("CARGO_PKG_VERSION")),
            started_unix_seconds: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            clock: "host".to_owned(),
            planned_steps: Some(settings.max_steps),
            host: machine::host(),
            settings: record::Settings {
                loader: "feedwater".to_owned(),
                task: Some(recipe.name().to_owned()),
                threads: Some(begins_with.threads),
                prefetch: Some(begins_with.prefetch),
                cache: begins_with.cache.as_ref().map(|cache| cache.level.name().to_owned()),
                batch_size: Some(settings.batch_size * u64::from(settings.accumulation.max(1))),
                ..record::Settings::default()
            },
            ..record::Run::default()
        };
        let trainer = Trainer {
            recipe,
            settings: &settings,
            devices,
            checkpoints: Checkpoints::new(folder.join("checkpoints")),
            record: Some((folder.join("record.jsonl"), run)),
            stop,
        };
        let mut progress = Progress::new(settings.max_steps);
        let done = trainer.run(weights, feed, resume, &mut |event| progress.tell(&event));
        let seconds = progress.finish().as_secs_f64();
        if let Some(said) = left_out(&bad) {
            eprintln!("{said}");
        }
        let (_, summary) = done.map_err(told)?;
        Ok((summary, seconds))
    }
}

/// Two runs in one folder would take each other's checkpoints.
pub(crate) fn refuse_another(folder: &Path, resume: bool) -> miette::Result<()> {
    if resume || Checkpoints::new(folder.join("checkpoints")).is_empty() {
        return Ok(());
    }
    Err(miette!(
        help = "--resume goes on with it; another --output-dir begins anew",
        "there is a run in `{}` already",
        folder.display()
    ))
}

/// What was left out, from where it was written down.
fn left_out(bad: &Path) -> Option<String> {
    let text = std::fs::read_to_string(bad).ok()?;
    let first: serde_json::Value = serde_json::from_str(text.lines().next()?).ok()?;
    let (key, reason) = (first["key"].as_str()?, first["reason"].as_str()?);
    let hint = if reason.contains("tokens") || reason.contains("the model hears") {
        "\nhint: shorten the text, or cut the clip: --use-chunking where the words have times"
    } else {
        ""
    };
    let others = match text.lines().count() - 1 {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    Some(format!("left out  `{key}`: {reason}{others}, in {}{hint}", bad.display()))
}

/// The trainer's errors as the command tells them.
#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` gives")]
pub(crate) fn told(error: feedwater_train::Error) -> miette::Report {
    let text = error.to_string();
    match text.split_once("\nhint: ") {
        Some((what, _)) if what.contains("more than the ceiling of") => miette!(
            help =
                "--bad-ceiling 5% lets more be left out; quarantine.jsonl in --output-dir says why each was",
            "{what}"
        ),
        // The engine's hints are in its own words, which are no flags.
        Some((what, hint)) if hint.contains("Policy::") || hint.contains("`.") => miette!(
            help = "`feedwater inspect` shows what the samples are; quarantine.jsonl in --output-dir, why some were left out",
            "{what}"
        ),
        _ => miette!("{text}"),
    }
}

/// Set by the first Ctrl-C: the run ends after the step that it is at. The second ends the program. Where there are no such
/// signals, as on Windows, the first does; what the last checkpoint has is not lost.
pub(crate) fn interrupted() -> miette::Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    #[cfg(unix)]
    {
        use miette::IntoDiagnostic;
        use signal_hook::{consts::SIGINT, flag};
        // In this order: at the first signal nothing is set yet, at the second it is.
        flag::register_conditional_default(SIGINT, Arc::clone(&asked)).into_diagnostic()?;
        flag::register(SIGINT, Arc::clone(&asked)).into_diagnostic()?;
    }
    Ok(asked)
}
