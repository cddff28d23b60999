//! `feedwater monitor`: what are this machine and the run on it doing right now?
//!
//! Asked while a run goes on: does the accelerator work, and if it waits, for what? The looking is done in
//! [`crate::monitor`]; this file reads the options and chooses how it is shown.

use std::io::{self, ErrorKind, IsTerminal as _, Write};
use std::path::PathBuf;
use std::time::Duration;

use miette::{IntoDiagnostic, WrapErr};

use crate::monitor::web::Opened;
use crate::monitor::{Monitor, lines, screen, web};

const EXAMPLES: &str = "\
Examples:
  feedwater monitor
  feedwater monitor --record run.jsonl
  feedwater monitor --web --port 8090
  feedwater monitor --json --follow | jq .run.busy_percent
  watch -n 2 feedwater monitor --once

Keys: q, Esc or Ctrl-C quit; arrows, Page Up and Page Down scroll.

Exit codes:
  0  quit, or printed
  2  the record cannot be read, there is no terminal, or the command line is
     wrong; 128 and the number of a signal that ended the screen";

const MORE: &str = "\
A run is found by what it announces when its record is begun, in the folder
that FEEDWATER_RUNS_DIR names, or in one of its user's for temporary files. The
newest is shown.

--web serves a page on 127.0.0.1 only. The link that is printed works once; when
it was used, another is printed. Programs have a token of their own:
  /metrics   Prometheus' text format
  /snapshot  the object of --json
  /events    the same as server-sent events
each with `Authorization: Bearer TOKEN` or `?token=TOKEN`.

The object of --json (fields may be added while `version` is 1; a figure that is
not known is null):
  version, at_unix_millis
  gpus       [{index, name, uuid, busy_percent, memory_busy_percent,
             memory_used_bytes, memory_total_bytes, power_watts,
             power_limit_watts, temperature_celsius, sm_clock_mhz,
             memory_clock_mhz, pcie_rx_bytes_per_second,
             pcie_tx_bytes_per_second, error}]
  gpus_note  why there are none
  cpu_percent
  host       {cores_percent, io_wait_percent, memory_used_bytes,
             memory_total_bytes, disk_read_bytes_per_second,
             disk_write_bytes_per_second, disk_busy_percent, disk_busiest}
  run        {name, state, pid, record, device, elapsed_seconds, epoch,
             steps_done, steps_planned, eta_seconds, last_step_seconds_ago,
             steps_per_second, samples_per_second, step_millis, busy_percent,
             shares, stages, threads, ready_batches, ready_batches_mean,
             prefetch, read_bytes_per_second, batch_bytes_per_second,
             padding_percent, waited_for, verdict, fix, recent, bad_lines};
             state: starting, running, quiet or ended; shares: [{part,
             percent}]; stages: [{name, millis_a_step, percent}]; recent:
             [{step, wall_millis, wait_millis}]
  run_note   why there is none";

/// A sample is of the time since the one before it; of a single one, this long.
const FIRST: Duration = Duration::from_millis(250);

/// What to show, and where.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{MORE}"))]
pub(crate) struct Options {
    /// The record of the run to show; the newest run that is going on, unless given
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Seconds between samples
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Print one frame of plain text
    #[arg(long, conflicts_with_all = ["json", "web"])]
    once: bool,
    /// Print one sample as JSON; `--help` says what is in it
    #[arg(long, conflicts_with = "web")]
    json: bool,
    /// Go on printing samples, a line each, until stopped
    #[arg(long, requires = "json")]
    follow: bool,
    /// Serve a page on loopback instead of the screen
    #[arg(long)]
    web: bool,
    /// The port of the page; a free one unless given
    #[arg(long, value_name = "N", requires = "web", default_value_t = 0, hide_default_value = true)]
    port: u16,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    // More often, and watching would be part of what is seen.
    if (0.1..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("from 0.1 to 3600".to_owned())
    }
}

/// Shows what there is to be seen.
pub(crate) fn run(options: &Options) -> miette::Result<u8> {
    let mut monitor = Monitor::new(options.record.as_deref()).map_err(|error| miette::miette!("{error}"))?;
    let on_screen = !(options.web || options.json || options.once);
    if !on_screen {
        std::thread::sleep(FIRST.min(options.interval));
    }
    if options.web {
        let served = web::serve(monitor, options.interval, options.port, tell);
        served.into_diagnostic().wrap_err_with(|| format!("cannot serve a page on port {}", options.port))?;
    } else if options.json {
        loop {
            let json = serde_json::to_string(&monitor.sample())
                .into_diagnostic()
                .wrap_err("could not write the sample as JSON")?;
            if !print(&json)? || !options.follow {
                break;
            }
            std::thread::sleep(options.interval);
        }
    } else if options.once {
        print(lines::plain(&monitor.sample(), width()).trim_end())?;
    } else if io::stdout().is_terminal() {
        let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        return screen::run(monitor, options.interval, colour)
            .into_diagnostic()
            .wrap_err("cannot use the terminal");
    } else {
        return Err(miette::miette!(
            help = "`feedwater monitor --once` prints one frame, `--json --follow` a line a second",
            "the output is not a terminal"
        ));
    }
    Ok(0)
}

/// Two columns are the plain frame's indent.
fn width() -> usize {
    crate::inspect::text::width().saturating_sub(2).max(20)
}

/// Whether whoever reads wants more.
fn print(text: &str) -> miette::Result<bool> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        done => done.into_diagnostic().wrap_err("could not print").map(|()| true),
    }
}

/// Says where the page is. Nobody may be there to read it, which is no reason to stop serving.
fn tell(opened: &Opened<'_>) {
    let text = match opened {
        Opened::First { link, port, token } => format!(
            "page     {link}\n         works once; another link follows when it was used\n\
             metrics  curl -H 'Authorization: Bearer {token}' http://127.0.0.1:{port}/metrics\n\
             stop     Ctrl-C"
        ),
        Opened::Next { link } => format!("page     {link}\n         for another browser"),
    };
    let _ = print(&text);
}
