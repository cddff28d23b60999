//! How does PyTorch train? Python is found, and started with the same arguments: `python -m feedwater.train`. It has them
//! read by this program's own parser ([`described`]), so that there is one list of flags.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use miette::{IntoDiagnostic, WrapErr, miette};

use crate::{
    commands::train::{Engine, Options, RecipeOptions},
    profile::attach::{code, patiently},
};

/// Says which Python; the wheel's command sets it to its own.
const PYTHON: &str = "FEEDWATER_PYTHON";
/// Looks for the packages without importing them, which takes seconds.
const LOOK: &str = "import sys, importlib.util as u\nfor code, name in ((3, 'feedwater'), (4, 'torch')):\n    \
                    if u.find_spec(name) is None: sys.exit(code)";

/// What a Python lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lacks {
    Python,
    Feedwater,
    Torch,
}

/// The Python that is to train; none where this program does.
pub(crate) fn chosen(recipe: &RecipeOptions) -> miette::Result<Option<PathBuf>> {
    let common = recipe.common();
    let native = common.device.as_deref().is_some_and(|device| device.starts_with("vulkan"));
    let must = match common.engine {
        Engine::Native => return Ok(None),
        Engine::Auto if native => return Ok(None),
        Engine::Torch => true,
        Engine::Auto => matches!(recipe, RecipeOptions::Lm(_) | RecipeOptions::Tts(_)),
    };
    match find() {
        Ok(python) => Ok(Some(python)),
        Err(_) if !must => Ok(None),
        Err((python, lacks)) => Err(missing(recipe, &python, lacks)),
    }
}

fn missing(recipe: &RecipeOptions, python: &Path, lacks: Lacks) -> miette::Report {
    let who = python.display();
    let (what, hint) = match lacks {
        Lacks::Python => (
            format!("there is no Python that could be started as `{who}`"),
            format!("install Python 3.10 or newer, or say where it is: {PYTHON}=…/python"),
        ),
        Lacks::Feedwater => (
            format!("the Python at `{who}` has no package feedwater"),
            format!(
                "`{who} -m pip install ./python torch transformers` in a clone of feedwater; or {PYTHON}=…/python"
            ),
        ),
        Lacks::Torch => (
            format!("the Python at `{who}` has no torch"),
            format!("`{who} -m pip install torch transformers`; or another one: {PYTHON}=…/python"),
        ),
    };
    let else_ = match recipe {
        RecipeOptions::CnnLstm(_) | RecipeOptions::Whisper(_) => "; or --engine native, which needs none",
        RecipeOptions::Lm(_) | RecipeOptions::Tts(_) => "",
    };
    miette!(help = format!("{hint}{else_}"), "{what}")
}

/// A Python with what it takes; or the one that lacks least.
fn find() -> Result<PathBuf, (PathBuf, Lacks)> {
    let mut candidates: Vec<PathBuf> = Vec::new();
    if let Some(python) = env::var_os(PYTHON).filter(|python| !python.is_empty()) {
        candidates.push(python.into());
    } else {
        if let Some(venv) = env::var_os("VIRTUAL_ENV").map(PathBuf::from) {
            candidates.push(if cfg!(windows) {
                venv.join("Scripts/python.exe")
            } else {
                venv.join("bin/python")
            });
        }
        candidates.extend(["python3", "python"].map(PathBuf::from));
    }
    let mut best = (candidates[0].clone(), Lacks::Python);
    for python in candidates {
        match look(&python) {
            None => return Ok(python),
            Some(lacks) if lacks as u8 > best.1 as u8 => best = (python, lacks),
            Some(_) => {}
        }
    }
    Err(best)
}

fn look(python: &Path) -> Option<Lacks> {
    let mut command = Command::new(python);
    // `-P`, which keeps the current folder out of it, is newer than 3.10: a folder called `feedwater` is no package.
    command.args(["-c", LOOK]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.current_dir(env::temp_dir());
    match command.status().ok().and_then(|status| status.code()) {
        Some(0) => None,
        Some(4) => Some(Lacks::Torch),
        Some(3) => Some(Lacks::Feedwater),
        _ => Some(Lacks::Python),
    }
}

/// Has Python train, with the arguments that this program got. Its exit code.
pub(crate) fn run(python: &Path, arguments: &[OsString]) -> miette::Result<u8> {
    let mut command = Command::new(python);
    // The program and `train` go before them.
    command.args(["-m", "feedwater.train"]).args(arguments.iter().skip(2));
    let status = patiently(&mut command, true)
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot start `{}`", python.display()))?;
    Ok(code(status))
}

/// What was said on a command line, as JSON.
pub(crate) fn described(options: &Options) -> miette::Result<String> {
    serde_json::to_string(&options.recipe).into_diagnostic()
}
