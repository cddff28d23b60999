//! What needs Python, and how does it get what it needs? An environment under `target/`, made again only when its list of
//! requirements changes; and the package of `python/`: built, installed, checked and tested in one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::shell::{Result, answer, command, root, run as shell, step, target};

/// A Python environment for some purpose.
pub(crate) struct Environment {
    /// Its folder under `target/`.
    pub(crate) name: &'static str,
    /// What is installed in it.
    pub(crate) requirements: &'static str,
    /// Who needs it, in words.
    pub(crate) what: &'static str,
    /// The oldest Python that will do.
    pub(crate) oldest: (u32, u32),
}

impl Environment {
    /// Its Python, with everything installed.
    pub(crate) fn python(&self) -> Result<PathBuf> {
        let venv = target().join(self.name);
        let python = program(&venv, "python");
        let requirements = root().join(self.requirements);
        let wanted = read(&requirements)?;
        // A copy of what was installed, written last: an installation that was cut short leaves none.
        let installed = venv.join("requirements.installed");
        if python.is_file() && fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted) {
            return Ok(python);
        }

        step(&format!("a Python environment for {}", self.what));
        shell(find_python(self.what, self.oldest)?.args(["-m", "venv", "--clear"]).arg(&venv)).map_err(
            |error| {
                format!(
                    "{error}\nhint: on Debian and Ubuntu, `venv` is a package of its own: `apt install python3-venv`"
                )
            },
        )?;
        shell(
            command(&python)
                .args(["-m", "pip", "install", "--disable-pip-version-check", "--quiet", "-r"])
                .arg(&requirements),
        )?;
        fs::write(&installed, wanted)
            .map_err(|error| format!("cannot write `{}`: {error}", installed.display()))?;
        Ok(python)
    }
}

/// Builds the wheel, installs it beside torch and transformers, and runs the package's tests.
pub(crate) fn test(filters: &[String]) -> Result {
    let environment = Environment {
        name: "python-venv",
        requirements: "python/requirements.txt",
        what: "the Python package's tests",
        oldest: (3, 10),
    };
    let python = environment.python()?;
    let package = root().join("python");

    step("the Python package's wheel");
    let wheels = target().join("wheels");
    if wheels.is_dir() {
        fs::remove_dir_all(&wheels)
            .map_err(|error| format!("cannot clear `{}`: {error}", wheels.display()))?;
    }
    shell(
        command(&python)
            .args(["-m", "maturin", "build", "--release", "--quiet", "--out"])
            .arg(&wheels)
            .arg("--interpreter")
            .arg(&python)
            .arg("--manifest-path")
            .arg(package.join("Cargo.toml"))
            .env("CARGO_TARGET_DIR", target()),
    )?;
    let wheel = fs::read_dir(&wheels)
        .map_err(|error| format!("cannot read `{}`: {error}", wheels.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|ending| ending == "whl"))
        .ok_or("maturin made no wheel")?;
    let install = ["-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-deps"];
    shell(command(&python).args(install).arg("--force-reinstall").arg(wheel))?;

    step("the Python package's types");
    stubs(&python, &package)?;
    let from = |folder: &Path| {
        let mut python = command(&python);
        python.current_dir(folder);
        python
    };
    shell(from(&package).args(["-m", "mypy"]))?;
    // From here on, what was installed: not from a folder with the sources, which have no extension beside them.
    let tests = package.join("tests");
    shell(from(&tests).args(["-m", "mypy.stubtest", "feedwater._core"]))?;

    step("the Python package's tests");
    // What the native trainer is compared with PyTorch by.
    let targets = ["--workspace", "--bin", "feedwater", "--example", "compute"];
    shell(command(env!("CARGO")).args(["build", "--release", "--quiet"]).args(targets))?;
    let built = target().join("release");
    let pytest = |arguments: &[&str]| {
        shell(
            from(&tests).args(["-m", "pytest"]).args(arguments).args(filters).env("FEEDWATER_BUILT", &built),
        )
    };
    if !filters.is_empty() {
        return pytest(&[]);
    }
    // Two at a time, as many as the smallest machine has cores; what one has left when the other is done is shared out
    // again. Those that judge what takes how long come after them, one by one.
    pytest(&["-m", "not alone", "--numprocesses", "2", "--dist", "worksteal"])?;
    pytest(&["-m", "alone"])
}

/// Makes the stub of the extension anew and compares it with the one in the tree.
fn stubs(python: &Path, package: &Path) -> Result {
    let made = target().join("stubs");
    shell(
        command(python)
            .args(["-m", "maturin", "generate-stubs", "--profile", "release", "--quiet", "--out"])
            .arg(&made)
            // The same as for the wheel: another one would have everything built again.
            .arg("--interpreter")
            .arg(python)
            .arg("--manifest-path")
            .arg(package.join("Cargo.toml"))
            .env("CARGO_TARGET_DIR", target()),
    )?;
    let (made, kept) =
        (made.join("feedwater").join("_core.pyi"), package.join("feedwater").join("_core.pyi"));
    // `CapsuleType` is in `types` from Python 3.13 on; checkers of older ones know it from here.
    let new =
        read(&made)?.replace("from types import CapsuleType", "from typing_extensions import CapsuleType");
    if read(&kept)? == new {
        return Ok(());
    }
    fs::write(&kept, new).map_err(|error| format!("cannot write `{}`: {error}", kept.display()))?;
    Err(format!("`{}` was not what the extension says of itself; it is now", kept.display()))
}

fn program(venv: &Path, name: &str) -> PathBuf {
    if cfg!(windows) { venv.join("Scripts").join(format!("{name}.exe")) } else { venv.join("bin").join(name) }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read `{}`: {error}", path.display()))
}

/// A Python that is new enough, under any of the names that it goes by.
fn find_python(what: &str, oldest: (u32, u32)) -> Result<Command> {
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
            Some(version) if version >= oldest => return Ok(python()),
            Some((major, minor)) => found.push(format!("`{}` is {major}.{minor}", name.join(" "))),
            None => {}
        }
    }
    let (major, minor) = oldest;
    let found = if found.is_empty() { "there is none on the path".to_owned() } else { found.join(", ") };
    Err(format!("{what} need Python {major}.{minor} or newer: {found}"))
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
        assert!(version("3.9").unwrap() < (3, 11));
        assert!(version("3.11").unwrap() >= (3, 11));
        assert!(version("3.100").unwrap() >= (3, 11));
        assert_eq!(version("Python was not found"), None);
    }
}
