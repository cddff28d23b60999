//! Which Python is there, and does its `torch` see what the driver sees?
//!
//! Asked of the interpreter itself, since nothing else knows what it would import. It may hang (a network file system, a
//! start-up hook), so it has a time limit. `torch` is imported only where there is a GPU to compare it with: that takes
//! seconds, and the version can be had without.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use feedwater_profile::record::Device;
use serde::Deserialize;

use super::Check;

const TIME_LIMIT: Duration = Duration::from_secs(20);

const SCRIPT: &str = r#"
import json, sys
from importlib import metadata
packages = {}
for name in ("torch", "transformers", "datasets", "accelerate", "numpy", "feedwater"):
    try:
        packages[name] = metadata.version(name)
    except Exception:
        pass
said = {"python": sys.version.split()[0], "packages": packages}
if len(sys.argv) > 1 and "torch" in packages:
    try:
        import torch
        said["cuda"] = torch.version.cuda
        said["devices"] = torch.cuda.device_count()
    except Exception as error:
        said["error"] = type(error).__name__ + ": " + str(error).split("\n")[0][:200]
print(json.dumps(said))
"#;

/// What the interpreter said.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Python {
    #[serde(rename = "python")]
    version: Option<String>,
    #[serde(default)]
    pub(super) packages: BTreeMap<String, String>,
    #[serde(default)]
    cuda: Option<String>,
    #[serde(default)]
    devices: Option<usize>,
    #[serde(default)]
    error: Option<String>,
    /// Why it said nothing, where it is there.
    #[serde(skip)]
    silent: Option<String>,
}

impl Python {
    /// Asks the interpreter that a shell would start.
    pub(super) fn ask(with_torch: bool) -> Self {
        let program = if cfg!(windows) { "python" } else { "python3" };
        let mut command = Command::new(program);
        command.args(["-c", SCRIPT]).args(with_torch.then_some("torch"));
        match output_within(&mut command, TIME_LIMIT) {
            Ok(text) => {
                // Start-up hooks may print; the answer is the last line.
                let last = text.lines().last().unwrap_or_default();
                serde_json::from_str(last).unwrap_or_else(|_| Self::silent("it printed something else"))
            }
            Err(Silence::Absent) => Self::default(),
            Err(Silence::TimedOut) => Self::silent("it did not answer in 20 s"),
            Err(Silence::Failed) => Self::silent("it ended with an error"),
        }
    }

    fn silent(why: &str) -> Self {
        Self { silent: Some(why.to_owned()), ..Self::default() }
    }

    pub(super) fn check(&self) -> Check {
        const ID: &str = "python";
        match (&self.version, &self.silent) {
            (Some(version), _) => Check::pass(ID, version.clone()),
            (None, Some(why)) => Check::warn(
                ID,
                format!("python3 is there, and {why}"),
                "python3 -c 'print(1)' shows what is wrong",
            ),
            (None, None) => Check::pass(ID, "none: fine for the command"),
        }
    }

    pub(super) fn check_torch(&self, devices: &[Device]) -> Check {
        const ID: &str = "torch";
        const INSTALL: &str = "https://pytorch.org/get-started/locally has the line for your CUDA";
        let Some(version) = self.packages.get("torch") else {
            return Check::pass(ID, "none: fine for the command");
        };
        if devices.is_empty() {
            return Check::pass(ID, version.clone());
        }
        if let Some(error) = &self.error {
            return Check::fail(ID, format!("{version} cannot be imported: {error}"), INSTALL);
        }
        match (&self.cuda, self.devices) {
            (None, _) => {
                Check::warn(ID, format!("{version} was built without CUDA, and there is a GPU"), INSTALL)
            }
            (Some(cuda), Some(0)) => {
                let hint = "CUDA_VISIBLE_DEVICES may hide them, or the driver is older than that CUDA";
                Check::warn(ID, format!("{version} (CUDA {cuda}) sees no GPU, and the driver does"), hint)
            }
            (Some(cuda), count) => {
                Check::pass(ID, format!("{version}, CUDA {cuda}, sees {} GPUs", count.unwrap_or(0)))
            }
        }
    }
}

#[derive(Debug, PartialEq)]
enum Silence {
    Absent,
    TimedOut,
    Failed,
}

/// What a command prints, if it ends in time; else it is ended. What it prints has to fit into a pipe.
fn output_within(command: &mut Command, limit: Duration) -> Result<String, Silence> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|_| Silence::Absent)?;
    let began = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if began.elapsed() < limit => std::thread::sleep(Duration::from_millis(10)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(Silence::TimedOut);
            }
        }
    };
    let mut text = String::new();
    let read = child.stdout.take().map(|mut out| out.read_to_string(&mut text));
    if !status.success() || !matches!(read, Some(Ok(_))) {
        return Err(Silence::Failed);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    fn python(json: &str) -> Python {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn torch_is_compared_with_the_driver() {
        let gpu = [Device::default()];
        let check = |json: &str| python(json).check_torch(&gpu).outcome;
        let torch = r#""python":"3.12.1","packages":{"torch":"2.9.0"}"#;
        assert_eq!(check(&format!(r#"{{{torch},"cuda":"12.8","devices":1}}"#)), Outcome::Pass);
        assert_eq!(check(&format!(r#"{{{torch},"cuda":"12.8","devices":0}}"#)), Outcome::Warn);
        assert_eq!(check(&format!(r#"{{{torch},"cuda":null,"devices":0}}"#)), Outcome::Warn);
        assert_eq!(check(&format!(r#"{{{torch},"error":"ImportError: x"}}"#)), Outcome::Fail);
        assert_eq!(check(r#"{"python":"3.12.1"}"#), Outcome::Pass);
        assert_eq!(python(&format!("{{{torch}}}")).check_torch(&[]).outcome, Outcome::Pass);
    }

    #[test]
    fn no_python_is_fine_and_one_that_is_silent_is_not() {
        assert_eq!(Python::default().check().outcome, Outcome::Pass);
        assert_eq!(Python::silent("it did not answer").check().outcome, Outcome::Warn);
    }

    #[cfg(unix)]
    #[test]
    fn a_command_that_hangs_is_ended() {
        let mut hangs = Command::new("sleep");
        assert_eq!(output_within(hangs.arg("600"), Duration::from_millis(50)), Err(Silence::TimedOut));
        let missing = output_within(&mut Command::new("no-such-program"), TIME_LIMIT);
        assert_eq!(missing, Err(Silence::Absent));
        assert_eq!(output_within(Command::new("false").arg("x"), TIME_LIMIT), Err(Silence::Failed));
        assert_eq!(output_within(Command::new("echo").arg("x"), TIME_LIMIT).as_deref(), Ok("x\n"));
    }
}
