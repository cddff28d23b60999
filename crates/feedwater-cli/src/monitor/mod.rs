//! What are this machine and the run on it doing right now?
//!
//! ```text
//! load · gpus · run ─▶ Snapshot ─▶ terminal · plain text · JSON · page · Prometheus
//! ```

pub(crate) mod snapshot;
pub(crate) mod run;
pub(crate) mod lines;
pub(crate) mod screen;
pub(crate) mod metrics;
pub(crate) mod web;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use feedwater_profile::machine::{Gpus, load::Load};

use run::Runs;
use snapshot::{Snapshot, shown};

/// Gathers what is to be seen.
pub(crate) struct Monitor {
    load: Load,
    gpus: Option<Gpus>,
    runs: Runs,
}

impl Monitor {
    /// Begins to watch. `record` names the run; without it, the newest that is going on is taken.
    pub(crate) fn new(record: Option<&Path>) -> feedwater_profile::Result<Self> {
        Ok(Self { runs: Runs::new(record)?, load: Load::new(), gpus: Gpus::open() })
    }

    /// What there is to be seen now. Rates are those since the last time.
    pub(crate) fn sample(&mut self) -> Snapshot {
        let host = self.load.sample();
        let mut gpus = self.gpus.as_ref().map(Gpus::sample).unwrap_or_default();
        for gpu in &mut gpus {
            gpu.name = shown(&gpu.name);
            gpu.error = gpu.error.as_deref().map(shown);
        }
        let gpus_note = match &self.gpus {
            None => Some("no NVIDIA driver was found"),
            Some(_) if gpus.is_empty() => Some("the NVIDIA driver has no GPU"),
            Some(_) => None,
        };
        let (run, run_note) = match self.runs.look() {
            Ok(run) => (Some(run), None),
            Err(why) => (None, Some(why)),
        };
        Snapshot {
            version: snapshot::VERSION,
            at_unix_millis: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_millis() as u64),
            gpus,
            gpus_note: gpus_note.map(str::to_owned),
            cpu_percent: host.cpu_percent(),
            host,
            run,
            run_note,
        }
    }
}
