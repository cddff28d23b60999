//! `cargo xtask bench`: Feedwater and its peers on the same files, with all that takes put in place first.
//!
//! The peers get a Python environment of their own under `target/`, which is made again only when
//! `bench/requirements.txt` changes.

use std::env;

use crate::{
    python::Environment,
    shell::{Result, cargo, command, root, run as shell, step, target},
};

/// The oldest Python that the versions in `bench/requirements.txt` are published for.
const OLDEST: (u32, u32) = (3, 11);

pub(crate) fn run(arguments: &[String]) -> Result {
    let environment = Environment {
        name: "bench-venv",
        requirements: "bench/requirements.txt",
        what: "the peers",
        oldest: OLDEST,
    };
    let python = environment.python()?;

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
