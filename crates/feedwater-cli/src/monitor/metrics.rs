//! How does Prometheus read a snapshot?
//!
//! In its text format, with base units in the names: seconds, bytes, hertz, and ratios between 0 and 1. A figure that is
//! not known has no line.

use std::fmt::Write as _;

use super::snapshot::{Snapshot, State};

/// What `/metrics` answers with.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A snapshot as Prometheus' text.
pub(crate) fn render(snapshot: &Snapshot) -> String {
    let mut out = Page(String::new());
    gpus(snapshot, &mut out);
    host(snapshot, &mut out);
    run(snapshot, &mut out);
    out.0
}

fn gpus(snapshot: &Snapshot, out: &mut Page) {
    let gpus = &snapshot.gpus;
    let mut each = |name: &str, help: &str, value: &dyn Fn(usize) -> Option<f64>| {
        let lines = gpus.iter().enumerate().filter_map(|(at, gpu)| {
            let index = gpu.index.to_string();
            Some((vec![("gpu", index), ("name", gpu.name.clone())], value(at)?))
        });
        out.family(&format!("gpu_{name}"), help, lines);
    };
    let share = |percent: Option<f64>| percent.map(|percent| percent / 100.0);
    let hertz = |mhz: Option<u32>| mhz.map(|mhz| f64::from(mhz) * 1e6);
    let whole = |value: Option<u64>| value.map(|value| value as f64);
    each("busy_ratio", "Share of the last moments in which any kernel ran.", &|at| {
        share(gpus[at].busy_percent)
    });
    each("memory_busy_ratio", "Share of the last moments in which memory was read or written.", &|at| {
        share(gpus[at].memory_busy_percent)
    });
    each("memory_used_bytes", "Memory in use.", &|at| whole(gpus[at].memory_used_bytes));
    each("memory_total_bytes", "All memory.", &|at| whole(gpus[at].memory_total_bytes));
    each("power_watts", "Power drawn.", &|at| gpus[at].power_watts);
    each("power_limit_watts", "Power that may be drawn.", &|at| gpus[at].power_limit_watts);
    each("temperature_celsius", "Temperature.", &|at| gpus[at].temperature_celsius);
    each("sm_clock_hertz", "Clock of the multiprocessors.", &|at| hertz(gpus[at].sm_clock_mhz));
    each("memory_clock_hertz", "Clock of the memory.", &|at| hertz(gpus[at].memory_clock_mhz));
    each("pcie_receive_bytes_per_second", "Received over PCIe.", &|at| {
        whole(gpus[at].pcie_rx_bytes_per_second)
    });
    each("pcie_send_bytes_per_second", "Sent over PCIe.", &|at| whole(gpus[at].pcie_tx_bytes_per_second));
    each("readable", "1 if all figures of the GPU could be read.", &|at| {
        Some(f64::from(u8::from(gpus[at].error.is_none())))
    });
}

fn host(snapshot: &Snapshot, out: &mut Page) {
    let host = &snapshot.host;
    let cores = host.cores_percent.iter().enumerate();
    out.family(
        "cpu_busy_ratio",
        "Share of time in which a core worked.",
        cores.map(|(core, percent)| (vec![("core", core.to_string())], percent / 100.0)),
    );
    let share = |percent: Option<f64>| percent.map(|percent| percent / 100.0);
    let whole = |value: Option<u64>| value.map(|value| value as f64);
    out.one(
        "cpu_io_wait_ratio",
        "Share of time in which cores stood still because of a disk.",
        share(host.io_wait_percent),
    );
    out.one("memory_used_bytes", "Memory in use, without caches.", whole(host.memory_used_bytes));
    out.one("memory_total_bytes", "All memory.", whole(host.memory_total_bytes));
    out.one("disk_read_bytes_per_second", "Read from all disks.", host.disk_read_bytes_per_second);
    out.one("disk_write_bytes_per_second", "Written to all disks.", host.disk_write_bytes_per_second);
    out.one(
        "disk_busy_ratio",
        "Share of time in which the busiest disk was at work.",
        share(host.disk_busy_percent),
    );
}

fn run(snapshot: &Snapshot, out: &mut Page) {
    let live = snapshot.run.as_ref().is_some_and(|run| run.state != State::Ended);
    out.one("run_live", "1 if a run is going on.", Some(f64::from(u8::from(live))));
    let Some(run) = &snapshot.run else { return };
    let labels = vec![("name", run.name.clone()), ("state", run.state.words().to_owned())];
    out.family("run_info", "The run that is shown.", [(labels, 1.0)]);
    out.one("run_steps_done", "Steps that are done.", Some(run.steps_done as f64));
    out.one(
        "run_steps_planned",
        "Steps that the run will have.",
        run.steps_planned.map(|planned| planned as f64),
    );
    out.one("run_epoch", "The epoch.", Some(run.epoch as f64));
    out.one("run_steps_per_second", "Steps in a second.", run.steps_per_second);
    out.one("run_samples_per_second", "Samples in a second.", run.samples_per_second);
    out.one("run_step_seconds", "Median time of a step.", run.step_millis.map(|millis| millis / 1e3));
    out.one(
        "run_busy_ratio",
        "Share of time in which the accelerator worked.",
        run.busy_percent.map(|percent| percent / 100.0),
    );
    out.family(
        "run_time_ratio",
        "Where the time of a step goes.",
        run.shares.iter().map(|share| (vec![("part", share.part.to_owned())], share.percent / 100.0)),
    );
    out.family(
        "run_stage_seconds_per_step",
        "The workers' time for a step, by stage.",
        run.stages.iter().map(|stage| (vec![("stage", stage.name.clone())], stage.millis_a_step / 1e3)),
    );
    out.one("run_ready_batches", "Batches that are ready.", run.ready_batches.map(|ready| ready as f64));
    out.one("run_prefetch_batches", "Batches that are made ahead.", run.prefetch.map(|most| most as f64));
    out.one("run_read_bytes_per_second", "Read for batches.", run.read_bytes_per_second);
    out.one(
        "run_padding_ratio",
        "Share of batches that is padding.",
        run.padding_percent.map(|percent| percent / 100.0),
    );
    out.one("run_eta_seconds", "Time that the rest of the run takes.", run.eta_seconds);
    out.one("run_last_step_age_seconds", "Time since a step came.", run.last_step_seconds_ago);
}

struct Page(String);

impl Page {
    fn one(&mut self, name: &str, help: &str, value: Option<f64>) {
        self.family(name, help, value.map(|value| (Vec::new(), value)));
    }

    /// All lines of a name, after what it means. All are gauges: a counter must not go back, and another run does.
    fn family(
        &mut self,
        name: &str,
        help: &str,
        lines: impl IntoIterator<Item = (Vec<(&'static str, String)>, f64)>,
    ) {
        for (at, (labels, value)) in lines.into_iter().enumerate() {
            if at == 0 {
                let _ = writeln!(self.0, "# HELP feedwater_{name} {help}\n# TYPE feedwater_{name} gauge");
            }
            let labels: Vec<String> =
                labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let _ = writeln!(self.0, "feedwater_{name}{labels} {value}");
        }
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
