//! What is to be seen at one moment?
//!
//! Everything that is shown comes from one [`Snapshot`]: the terminal, the plain frame, JSON, the page and Prometheus'
//! text are ways to write it. A figure that is not known is not there, and each way to write it says so in its manner.

use feedwater_profile::machine::{GpuSample, load::LoadSample};
use serde::Serialize;

/// The version of the JSON.
pub(crate) const VERSION: u32 = 1;

/// One moment of this machine and of the run on it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Snapshot {
    pub(crate) version: u32,
    pub(crate) at_unix_millis: u64,
    pub(crate) gpus: Vec<GpuSample>,
    /// Why there are none, in words, where there are none.
    pub(crate) gpus_note: Option<String>,
    pub(crate) cpu_percent: Option<f64>,
    pub(crate) host: LoadSample,
    pub(crate) run: Option<RunView>,
    /// Why there is none, in words, where there is none.
    pub(crate) run_note: Option<String>,
}

/// Whether a run goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// It has not done a step yet.
    #[default]
    Starting,
    /// Steps come.
    Running,
    /// No step has come for far longer than a step takes.
    Quiet,
    /// It is over.
    Ended,
}

impl State {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Quiet => "quiet",
            Self::Ended => "ended",
        }
    }
}

/// A run, as its record says. Figures are over the last seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct RunView {
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) pid: Option<u32>,
    pub(crate) record: String,
    pub(crate) device: Option<String>,
    pub(crate) elapsed_seconds: Option<f64>,
    pub(crate) epoch: u64,
    pub(crate) steps_done: u64,
    pub(crate) steps_planned: Option<u64>,
    pub(crate) eta_seconds: Option<f64>,
    pub(crate) last_step_seconds_ago: Option<f64>,
    pub(crate) steps_per_second: Option<f64>,
    pub(crate) samples_per_second: Option<f64>,
    pub(crate) step_millis: Option<f64>,
    /// Share of the time in which the accelerator works; nothing where the run has none.
    pub(crate) busy_percent: Option<f64>,
    /// Where the time of a step goes; adds up to 100.
    pub(crate) shares: Vec<Share>,
    /// The workers' time for a step, by stage, the dearest first.
    pub(crate) stages: Vec<Stage>,
    pub(crate) threads: Option<usize>,
    pub(crate) ready_batches: Option<u64>,
    pub(crate) ready_batches_mean: Option<f64>,
    pub(crate) prefetch: Option<usize>,
    pub(crate) read_bytes_per_second: Option<f64>,
    pub(crate) batch_bytes_per_second: Option<f64>,
    pub(crate) padding_percent: Option<f64>,
    /// What the last step that waited waited for.
    pub(crate) waited_for: Option<Waited>,
    /// What the run suffers from, where there are steps enough to say so.
    pub(crate) verdict: Option<String>,
    /// What to change about it, and the setting to paste.
    pub(crate) fix: Option<Fix>,
    /// The last steps: how long each took and how long of that it waited for input, in milliseconds.
    pub(crate) recent: Vec<Recent>,
    pub(crate) bad_lines: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Share {
    /// `compute`, `wait`, `copy`, `sync` or `unknown`.
    pub(crate) part: &'static str,
    pub(crate) percent: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Stage {
    pub(crate) name: String,
    pub(crate) millis_a_step: f64,
    pub(crate) percent: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Waited {
    pub(crate) step: u64,
    pub(crate) millis: f64,
    pub(crate) key: String,
    pub(crate) stage: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Fix {
    pub(crate) what: String,
    pub(crate) setting: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Recent {
    pub(crate) step: u64,
    pub(crate) wall_millis: f64,
    pub(crate) wait_millis: f64,
}

/// Names come from files, and could say anything to a terminal: what is not to be seen is taken out.
pub(crate) fn shown(text: &str) -> String {
    /// Longer than any name that is meant to be read.
    const MOST: usize = 300;
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    text.chars().map(|c| if hidden(c) { '\u{fffd}' } else { c }).take(MOST).collect()
}
