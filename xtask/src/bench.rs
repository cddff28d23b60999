//! `cargo xtask bench`: Feedwater and its peers on the same files, with all that takes put in place first.
//!
//! Python is needed for the peers alone. It gets an environment of its own under `target/`, which is made again only when
//! `bench/requirements.txt` changes.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::shell::{Result, answer, cargo, command, root, run as shell, step, target};

/// The oldest Python that the versions in `bench/requirements.txt` are published for.
const OLDEST: (u32, u32) = (3, 11);

pub(crate) fn run(arguments: &[String]) -> Result {
    let python = environment()?;

    step("Feedwater's runner");
    shell(cargo().args(["build", "--release", "--package", "feedwater-bench"]))?;
    // It lies beside this program, wherever cargo was told to put what it builds.
    let this = env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let runner = this.with_file_name(format!("feedwater-bench{}", env::consts::EXE_SUFFIX));

    step("the comparison");
    // It makes the data first, where they are missing.
    shell(
        command(&python)
            .arg(root().join("bench").join("compare.py"))
            .arg("--feedwater")
            .arg(runner)
            .arg("--data")
            .arg(target().join("bench-data"))
            .arg("--out")
            .arg(target().join("bench-results.json"))
            .args(arguments),
    )
}

/// The Python of `target/bench-venv`, with the peers installed.
fn environment() -> Result<PathBuf> {
    let venv = target().join("bench-venv");
    let python =
        if cfg!(windows) { venv.join("Scripts").join("python.exe") } else { venv.join("bin").join("python") };
    let requirements = root().join("bench").join("requirements.txt");
    let wanted = read(&requirements)?;
    // A copy of what was installed, written last: an installation that was cut short leaves none.
    let installed = venv.join("requirements.installed");
    if python.is_file() && fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }

    step("a Python environment for the peers");
    shell(find_python()?.args(["-m", "venv", "--clear"]).arg(&venv)).map_err(|error| {
        format!(
            "{error}\nhint: on Debian and Ubuntu, `venv` is a package of its own: `apt install python3-venv`"
        )
    })?;
    shell(
        command(&python)
            .args(["-m", "pip", "install", "--disable-pip-version-check", "-r"])
            .arg(&requirements),
    )?;
    fs::write(&installed, wanted)
        .map_err(|error| format!("cannot write `{}`: {error}", installed.display()))?;
    Ok(python)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read `{}`: {error}", path.display()))
}

/// A Python that is new enough, under any of the names that it goes by.
fn find_python() -> Result<Command> {
    let names: &[&[&str]] = if cfg!(windows) {
        &[&["py", "-3"], &["python"], &["python3"]]
    } else {
        &[&["python3"], &["python"]]
    };
    let mut found = Vec::new();
    for name in names {
        let python = || {
            let mut python = command(name[0]);
            python.args(&name[1..]);
            python
        };
        let said = answer(python().args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]));
        match said.as_deref().and_then(version) {
            Some(version) if version >= OLDEST => return Ok(python()),
            Some((major, minor)) => found.push(format!("`{}` is {major}.{minor}", name.join(" "))),
            None => {}
        }
    }
    let (major, minor) = OLDEST;
    let found = if found.is_empty() { "there is none on the path".to_owned() } else { found.join(", ") };
    Err(format!("the peers need Python {major}.{minor} or newer: {found}"))
}

fn version(said: &str) -> Option<(u32, u32)> {
    let (major, minor) = said.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers_not_text() {
        assert!(version("3.9").unwrap() < OLDEST);
        assert!(version("3.11").unwrap() >= OLDEST);
        assert!(version("3.100").unwrap() >= OLDEST);
        assert_eq!(version("Python was not found"), None);
    }
}
