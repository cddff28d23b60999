//! `cargo xtask fuzz`: does any input make a reader panic, hang or run out of memory? Each target for a bounded time.

use std::{fs, path::PathBuf};

use crate::shell::{Result, answer, cargo, command, root, run as shell, step};

/// What one input may cost before it counts as found: `fuzz/README.md` says the same.
const LIMITS: [&str; 3] = ["-timeout=10", "-rss_limit_mb=2048", "-malloc_limit_mb=256"];

pub(crate) fn run(arguments: &[String]) -> Result {
    let Wanted { seconds, mut targets } = Wanted::parse(arguments)?;
    let known = targets_there_are()?;
    if let Some(unknown) = targets.iter().find(|target| !known.contains(target)) {
        return Err(format!("there is no fuzz target `{unknown}`\nhint: there are {}", known.join(", ")));
    }
    if targets.is_empty() {
        targets = known;
    }
    check_tools()?;
    for target in targets {
        step(&format!("{target}, {seconds} s"));
        let corpus = root().join("fuzz").join("corpus").join(&target);
        fs::create_dir_all(&corpus)
            .map_err(|error| format!("cannot make `{}`: {error}", corpus.display()))?;
        // Through rustup: the cargo that runs this program belongs to the stable toolchain. What is found is written to
        // the first folder that is named.
        shell(
            command("rustup")
                .args(["run", "nightly", "cargo", "fuzz", "run", &target])
                .args([corpus, seeds(&target)])
                .arg("--")
                .arg(format!("-max_total_time={seconds}"))
                .args(LIMITS),
        )
        .map_err(|error| {
            format!(
                "{error}\nhint: the input that did it is in `fuzz/artifacts/{target}/`; it belongs into a test before the fix"
            )
        })?;
    }
    Ok(())
}

struct Wanted {
    seconds: u64,
    targets: Vec<String>,
}

impl Wanted {
    fn parse(arguments: &[String]) -> Result<Self> {
        let mut wanted = Self { seconds: 30, targets: Vec::new() };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--seconds" => {
                    let number =
                        arguments.next().and_then(|number| number.parse().ok()).filter(|number| *number > 0);
                    wanted.seconds =
                        number.ok_or("`--seconds` wants a whole number above 0: `--seconds 30`")?;
                }
                flag if flag.starts_with('-') => return Err(format!("`fuzz` takes no `{flag}`")),
                target => wanted.targets.push(target.to_owned()),
            }
        }
        Ok(wanted)
    }
}

/// The targets are the files, as cargo-fuzz has it.
fn targets_there_are() -> Result<Vec<String>> {
    let folder = root().join("fuzz").join("fuzz_targets");
    let files =
        fs::read_dir(&folder).map_err(|error| format!("cannot read `{}`: {error}", folder.display()))?;
    let paths = files.flatten().map(|file| file.path());
    let mut names: Vec<String> = paths
        .filter(|path| path.extension().is_some_and(|ending| ending == "rs"))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    if names.is_empty() { Err(format!("`{}` holds no targets", folder.display())) } else { Ok(names) }
}

/// What a target starts from: its own seeds, or, where it has none, the files of its name or the sound files of the tests.
fn seeds(target: &str) -> PathBuf {
    let own = root().join("fuzz").join("seeds").join(target);
    let fixtures = root().join("crates/feedwater/tests/fixtures");
    let named = fixtures.join(target);
    [own, named].into_iter().find(|folder| folder.is_dir()).unwrap_or_else(|| fixtures.join("audio"))
}

fn check_tools() -> Result {
    let mut missing = Vec::new();
    if answer(command("rustup").args(["run", "nightly", "rustc", "--version"])).is_none() {
        missing.push("rustup toolchain install nightly --profile minimal");
    }
    if answer(cargo().args(["fuzz", "--version"])).is_none() {
        missing.push("cargo install cargo-fuzz --locked");
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("fuzzing needs a nightly toolchain and cargo-fuzz\nhint: {}", missing.join("\nhint: ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<(u64, Vec<String>)> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Wanted::parse(&words).map(|wanted| (wanted.seconds, wanted.targets))
    }

    #[test]
    fn time_and_targets_in_any_order() {
        assert_eq!(parse("").unwrap(), (30, vec![]));
        assert_eq!(parse("wav --seconds 5 npy").unwrap(), (5, vec!["wav".to_owned(), "npy".to_owned()]));
        for wrong in ["--seconds", "--seconds 0", "--seconds soon", "--forever"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
