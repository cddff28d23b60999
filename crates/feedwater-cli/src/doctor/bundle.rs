//! What can be handed to somebody who wants to help?
//!
//! A zip of plain files: what was checked, the record, the report, the settings, and of the environment what is on a list.
//! Everything in it has been through the [`Scrubber`]; the archive is made in memory, shown, and only then written, whole or
//! not at all.

use std::fs;
use std::io::{Cursor, Read as _, Write as _};
use std::path::Path;

use feedwater_profile::Record;
use miette::{IntoDiagnostic, WrapErr};
use serde_json::{Map, Value, json};
use zip::write::SimpleFileOptions;

use super::scrub::{Identities, Scrubber, is_secret_name};
use super::{Examination, bytes};

/// A record of two million steps is about this large.
const LARGEST_FILE: u64 = 1 << 30;

/// Variables that say how a run is set up. Nothing else of the environment is looked at.
const VARIABLES: [&str; 29] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "TOKENIZERS_PARALLELISM",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "HF_DATASETS_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_ON_NODE",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS",
    "MALLOC_ARENA_MAX",
    "LANG",
    "LC_ALL",
    "NO_COLOR",
    "CI",
];
const FAMILIES: [&str; 4] = ["FEEDWATER_", "PYTORCH_", "TORCH_", "NCCL_"];

const README: &str = "\
Made by `feedwater doctor --bundle`.

checks.json       what was checked on this machine, and what came of it
record.jsonl      the run: `feedwater report record.jsonl` says what it suffers from
report.html       the same as a page, as it was made on this machine
settings.json     how the run was set up
environment.json  variables that are on a list of harmless ones; no others

Home folders, names of users and hosts, secrets and passwords in addresses were
taken out of every file: [home], [user], [host] and [secret] stand in their
place.
";

/// A bundle that is not written yet.
pub(crate) struct Bundle {
    files: Vec<(&'static str, String)>,
    removed: Vec<(&'static str, u64)>,
}

impl Bundle {
    /// Gathers and scrubs. The record is refused if it is none: half a gigabyte of something else is no help.
    pub(crate) fn of(
        examination: &Examination,
        record: Option<&Path>,
        report: Option<&Path>,
    ) -> miette::Result<Self> {
        let environment = environment(std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
        }));
        Self::with(examination, record, report, environment, &Identities::of_this_process())
    }

    fn with(
        examination: &Examination,
        record: Option<&Path>,
        report: Option<&Path>,
        environment: Map<String, Value>,
        identities: &Identities,
    ) -> miette::Result<Self> {
        let read_record = record.map(Record::open).transpose().map_err(|error| miette::miette!("{error}"))?;
        let settings = json!({
            "feedwater": env!("CARGO_PKG_VERSION"),
            "run": read_record.as_ref().map(|record| json!({
                "name": record.run.name,
                "writer": record.run.writer,
                "clock": record.run.clock,
                "planned_steps": record.run.planned_steps,
                "settings": record.run.settings,
            })),
        });
        let record = record.map(text_of).transpose()?;
        let report = report.map(text_of).transpose()?;
        let checks = serde_json::to_value(examination)
            .into_diagnostic()
            .wrap_err("could not write the checks as JSON")?;
        // Homes that any of them names tell who is to be taken out of all.
        let checks_text = checks.to_string();
        let settings_text = settings.to_string();
        let environment_text = Value::Object(environment.clone()).to_string();
        let mut texts = vec![checks_text.as_str(), &settings_text, &environment_text];
        texts.extend(record.as_deref());
        texts.extend(report.as_deref());
        let mut scrubber = Scrubber::new(identities, &texts);
        let mut pretty = |value: Value| format!("{:#}\n", scrubber.value(value));
        let checks = pretty(checks);
        let settings = pretty(settings);
        let environment = pretty(Value::Object(environment));
        let mut files = vec![("README.txt", README.to_owned()), ("checks.json", checks)];
        files.extend(record.map(|record| ("record.jsonl", scrubber.lines(&record))));
        files.extend(report.map(|report| ("report.html", scrubber.text(&report))));
        files.extend([("settings.json", settings), ("environment.json", environment)]);
        // Nothing above should leave anything; if it does, nothing is written.
        if let Some((name, _)) =
            files.iter().find(|(name, text)| *name != "README.txt" && scrubber.leaks(text))
        {
            return Err(miette::miette!(
                help = "leave --record or --report out, and please tell us",
                "something private is left in {name}, so there is no bundle"
            ));
        }
        Ok(Self { files, removed: scrubber.counts().iter().map(|(kind, count)| (*kind, *count)).collect() })
    }

    /// What it holds, for the person who is to send it.
    pub(crate) fn shown(&self, path: &Path) -> String {
        let mut lines = vec![format!("{} holds", path.display())];
        for (name, text) in &self.files {
            lines.push(format!("  {name:<17}{:>10}", bytes(text.len() as u64)));
        }
        let removed: Vec<String> =
            self.removed.iter().map(|(kind, count)| format!("{count} × {kind}")).collect();
        lines.push(match removed.as_slice() {
            [] => "nothing private was found".to_owned(),
            removed => format!("taken out: {}", removed.join(", ")),
        });
        lines.join("\n")
    }

    /// Writes it in one go: either the whole file is there, or what was there before.
    pub(crate) fn write(&self, path: &Path) -> miette::Result<()> {
        let archive = self.archive().into_diagnostic().wrap_err("could not make the archive")?;
        let failed = || format!("cannot write `{}`", path.display());
        // Next to where it goes, since a file moves only within its file system.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = tempfile::Builder::new()
            .prefix(".feedwater-bundle-")
            .tempfile_in(folder)
            .into_diagnostic()
            .wrap_err_with(failed)?;
        file.write_all(&archive).into_diagnostic().wrap_err_with(failed)?;
        file.as_file().sync_all().into_diagnostic().wrap_err_with(failed)?;
        file.persist(path).map_err(|error| error.error).into_diagnostic().wrap_err_with(failed)?;
        Ok(())
    }

    fn archive(&self) -> zip::result::ZipResult<Vec<u8>> {
        let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
        let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
        for (name, text) in &self.files {
            archive.start_file(*name, options)?;
            archive.write_all(text.as_bytes())?;
        }
        Ok(archive.finish()?.into_inner())
    }
}

/// Whether a file may be written here: nothing but a zip is written over.
pub(crate) fn check_target(path: &Path) -> miette::Result<()> {
    let mut start = [0_u8; 2];
    let other =
        fs::File::open(path).is_ok_and(|mut file| file.read_exact(&mut start).is_err() || &start != b"PK");
    if path.is_dir() || other {
        return Err(miette::miette!(
            help = "name a new file, for example --bundle feedwater.zip",
            "`{}` is there, and no zip",
            path.display()
        ));
    }
    Ok(())
}

fn text_of(path: &Path) -> miette::Result<String> {
    let failed = || format!("cannot read `{}`", path.display());
    let size = fs::metadata(path).into_diagnostic().wrap_err_with(failed)?.len();
    if size > LARGEST_FILE {
        return Err(miette::miette!("`{}` is too large for a bundle: {}", path.display(), bytes(size)));
    }
    let content = fs::read(path).into_diagnostic().wrap_err_with(failed)?;
    // Bytes that are no text are no secret that a search would find, and no part of a record.
    Ok(String::from_utf8_lossy(&content).into_owned())
}

fn environment(variables: impl Iterator<Item = (String, String)>) -> Map<String, Value> {
    let listed =
        |name: &str| VARIABLES.contains(&name) || FAMILIES.iter().any(|family| name.starts_with(family));
    let mut kept: Vec<(String, String)> =
        variables.filter(|(name, _)| listed(name) && !is_secret_name(name)).collect();
    kept.sort();
    kept.into_iter().map(|(name, value)| (name, Value::String(value))).collect()
}
