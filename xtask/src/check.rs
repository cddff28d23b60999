//! `cargo xtask check`: is it formatted, and is clippy content?

use crate::shell::{Result, cargo, run as shell, step};

pub(crate) fn run(arguments: &[String]) -> Result {
    if let Some(unknown) = arguments.first() {
        return Err(format!("`check` takes no `{unknown}`"));
    }
    step("formatting");
    shell(cargo().args(["fmt", "--all", "--check"]))
        .map_err(|error| format!("{error}\nhint: `cargo fmt --all` puts it right"))?;
    step("clippy, warnings denied");
    shell(cargo().args(["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}
