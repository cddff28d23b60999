//! How is a command run? With its line printed first, from the root of the project, and its failure an error.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// What went wrong, ready to be printed.
pub(crate) type Result<T = ()> = std::result::Result<T, String>;

/// The project's folder.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Where things are made that can be made again.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |folder| root().join(folder))
}

/// The cargo that runs this program.
pub(crate) fn cargo() -> Command {
    command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// A command that runs in the project's folder.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// Says that something begins.
pub(crate) fn step(what: &str) {
    eprintln!("\n== {what}");
}

/// Prints the line, runs it, and is an error unless it succeeds.
pub(crate) fn run(command: &mut Command) -> Result {
    let line = line(command);
    eprintln!("$ {line}");
    let status = command.status().map_err(|error| format!("cannot start `{line}`: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{line}` failed ({status})")) }
}

/// What a command prints, or nothing where it cannot be run or fails.
pub(crate) fn answer(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}

/// The command as one would type it: programs by their name, paths from the project's folder.
fn line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_stem().unwrap_or(program.as_os_str());
    let words = std::iter::once(name).chain(command.get_args()).map(|word| {
        let word = Path::new(word).strip_prefix(root()).map_or(word, Path::as_os_str).to_string_lossy();
        if word.contains(' ') { format!("\"{word}\"") } else { word.into_owned() }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_as_one_would_type_it() {
        let mut typed = command(Path::new("some").join("bin").join("cargo"));
        typed.arg("run").arg(root().join("bench").join("compare.py")).arg("two words");
        let path = Path::new("bench").join("compare.py");
        assert_eq!(line(&typed), format!("cargo run {} \"two words\"", path.display()));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = run(&mut command("no-such-program-anywhere")).unwrap_err();
        assert!(error.contains("no-such-program-anywhere"), "{error}");
        assert_eq!(answer(&mut command("no-such-program-anywhere")), None);
    }
}
