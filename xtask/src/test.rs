//! `cargo xtask test`: does everything work, on a machine that has Rust, a C compiler and nothing of ours?
//!
//! Unit tests, integration tests and doc tests by `cargo test`; then each stage's bench once, for it to stay runnable;
//! then what the README tells a newcomer to type, on a small dataset that is generated for it; then the Python package,
//! against torch and transformers as they are published. One profile and one set
//! of packages for all of it, so that the dependencies are built once.

use std::{env, path::Path};

use crate::{
    python,
    shell::{Result, cargo, command, run as shell, step, target},
};

/// A small dataset: enough for several batches and a resume in the middle, made in a moment.
const CLIPS: &str = "48";

pub(crate) fn run(arguments: &[String]) -> Result {
    let filters = match arguments {
        [] => &[],
        [dashes, filters @ ..] if dashes == "--" => filters,
        [unknown, ..] => {
            return Err(format!(
                "`test` takes no `{unknown}`\nhint: a filter stands after two dashes: `cargo xtask test -- {unknown}`"
            ));
        }
    };
    step("tests and doc tests");
    let mut tests = cargo();
    // All that fails, not only what fails first.
    tests.args(["test", "--release", "--workspace", "--no-fail-fast"]);
    if !filters.is_empty() {
        return shell(tests.arg("--").args(filters));
    }
    shell(&mut tests)?;

    step("each stage's bench, once");
    shell(cargo().args(["test", "--release", "--workspace", "--bench", "stages"]))?;

    step("the command and the examples, on generated data");
    // Without this program itself: Windows does not let a running program be written.
    shell(cargo().args(["build", "--release", "--workspace", "--exclude", "xtask", "--bins", "--examples"]))?;
    // They lie beside this program, wherever cargo was told to put what it builds.
    let this = env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let built = this.parent().unwrap_or(Path::new("."));
    let program = |name: &str| command(built.join(format!("{name}{}", env::consts::EXE_SUFFIX)));
    let example =
        |name: &str| command(built.join("examples").join(format!("{name}{}", env::consts::EXE_SUFFIX)));
    let data = target().join("smoke").join("morse");
    let morse = ["generate", "morse", "--clips", CLIPS, "--force", "--out"];
    shell(program("feedwater").args(morse).arg(&data))?;
    shell(program("feedwater").arg("inspect").arg(&data))?;
    shell(example("batches").arg(&data))?;
    shell(example("resume").arg(&data))?;

    python::test(&[])?;

    step("everything passed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_without_dashes_is_refused_with_the_line_to_type() {
        let error = run(&["resample".to_owned()]).unwrap_err();
        assert!(error.ends_with("`cargo xtask test -- resample`"), "{error}");
    }
}
