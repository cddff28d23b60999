//! Is this machine fit to feed an accelerator?
//!
//! Every check has an id that stays what it is, one of three outcomes, a sentence, and a hint where there is something to do.
//! What is not there is no failure: a laptop without a GPU or without Python is a machine that works.

pub(crate) mod bundle;
mod checks;
mod disk;
mod python;
mod scrub;
pub(crate) mod text;

use std::path::Path;

use feedwater_profile::machine::{self, Gpus};
use feedwater_profile::record::{Device, Host};
use serde::Serialize;

/// What a check came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Pass,
    Warn,
    Fail,
}

/// One question, answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    pub(crate) id: &'static str,
    pub(crate) outcome: Outcome,
    pub(crate) what: String,
    pub(crate) hint: Option<String>,
}

impl Check {
    fn pass(id: &'static str, what: impl Into<String>) -> Self {
        Self { id, outcome: Outcome::Pass, what: what.into(), hint: None }
    }

    fn warn(id: &'static str, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { id, outcome: Outcome::Warn, what: what.into(), hint: Some(hint.into()) }
    }

    fn fail(id: &'static str, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { id, outcome: Outcome::Fail, what: what.into(), hint: Some(hint.into()) }
    }

    /// Something to know, or to do for more, where nothing is wrong.
    fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// All that was found.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Examination {
    version: u32,
    pub(crate) outcome: Outcome,
    pub(crate) checks: Vec<Check>,
    pub(crate) host: Host,
    pub(crate) devices: Vec<Device>,
}

impl Examination {
    /// Looks at the machine, and at the disk that `data` lies on.
    pub(crate) fn of(data: Option<&Path>) -> Self {
        let host = data.map_or_else(machine::host, machine::host_with_data);
        let gpus = Gpus::try_open();
        let devices = gpus.as_ref().map(Gpus::devices).unwrap_or_default();
        let python = python::Python::ask(gpus.is_ok());
        let by_bus = std::env::var("CUDA_DEVICE_ORDER").is_ok_and(|order| order == "PCI_BUS_ID");
        let shared = Path::new("/dev/shm");
        let mut checks = vec![
            checks::gpu(gpus.as_ref().map(|_| devices.as_slice()), by_bus),
            checks::driver(
                gpus.as_ref().ok().and_then(Gpus::driver),
                gpus.as_ref().ok().and_then(Gpus::cuda),
            ),
            checks::topology(&devices),
            checks::quota(&host, machine::affinity_cores()),
            checks::affinity(&host, machine::affinity_cores()),
            checks::memory(&machine::memory()),
            checks::shared_memory(shared.exists().then(|| machine::room(shared)).flatten()),
        ];
        checks.push(match data {
            Some(data) => disk::speed(data),
            None => Check::pass("disk-speed", "not measured: no data was named")
                .with_hint("feedwater doctor DATA measures where the data lies"),
        });
        checks.push(checks::free(machine::room(data.unwrap_or(Path::new(".")))));
        checks.push(python.check());
        checks.push(python.check_torch(&devices));
        checks.push(checks::versions(&host, &python));
        let outcome = checks.iter().map(|check| check.outcome).max().unwrap_or(Outcome::Pass);
        Self { version: 1, outcome, checks, host, devices }
    }

    /// 0, 1 or 2.
    pub(crate) fn exit_code(&self) -> u8 {
        self.outcome as u8
    }
}

/// An amount of memory or disk, for people.
fn bytes(count: u64) -> String {
    let count = count as f64;
    match count {
        1e12.. => format!("{:.1} TB", count / 1e12),
        1e9.. => format!("{:.1} GB", count / 1e9),
        1e6.. => format!("{:.1} MB", count / 1e6),
        1e3.. => format!("{:.1} kB", count / 1e3),
        _ => format!("{count} bytes"),
    }
}
