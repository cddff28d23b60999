//! What a person sees of one fixed snapshot, in every way that it is shown.

use feedwater_profile::machine::{GpuSample, load::LoadSample};
use insta::assert_snapshot;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::screen::{View, draw};
use super::snapshot::{Fix, Recent, RunView, Share, Snapshot, Stage, State, VERSION, Waited};
use super::{lines, metrics};

const GIB: u64 = 1 << 30;

fn gpu(index: u32) -> GpuSample {
    GpuSample {
        index,
        name: "NVIDIA RTX 4090".to_owned(),
        uuid: Some("GPU-1".to_owned()),
        busy_percent: Some(38.0),
        memory_busy_percent: Some(22.0),
        memory_used_bytes: Some(9 * GIB),
        memory_total_bytes: Some(24 * GIB),
        power_watts: Some(143.2),
        power_limit_watts: Some(450.0),
        temperature_celsius: Some(56.0),
        sm_clock_mhz: Some(2520),
        memory_clock_mhz: Some(10501),
        pcie_rx_bytes_per_second: Some(1_250_000_000),
        pcie_tx_bytes_per_second: Some(42_000_000),
        error: None,
    }
}

fn broken_gpu(index: u32) -> GpuSample {
    let error = Some("the GPU is lost".to_owned());
    GpuSample { index, name: "NVIDIA RTX 4090".to_owned(), error, ..GpuSample::default() }
}

fn run() -> RunView {
    let stage = |name: &str, millis_a_step: f64, percent: f64| Stage {
        name: name.to_owned(),
        millis_a_step,
        percent,
    };
    let recent = |step: u64| {
        let wait_millis = if step.is_multiple_of(10) { 400.0 } else { 150.0 };
        Recent { step, wall_millis: 105.0 + wait_millis, wait_millis }
    };
    RunView {
        name: "whisper-small".to_owned(),
        state: State::Running,
        pid: Some(4711),
        record: "run.jsonl".to_owned(),
        device: Some("NVIDIA RTX 4090".to_owned()),
        elapsed_seconds: Some(131.0),
        epoch: 1,
        steps_done: 412,
        steps_planned: Some(5000),
        eta_seconds: Some(1274.0),
        last_step_seconds_ago: Some(0.2),
        steps_per_second: Some(3.6),
        samples_per_second: Some(57.6),
        step_millis: Some(270.4),
        busy_percent: Some(38.2),
        shares: [("compute", 38.2), ("wait", 55.0), ("copy", 4.0), ("unknown", 2.8)]
            .map(|(part, percent)| Share { part, percent })
            .into(),
        stages: vec![
            stage("decode", 341.2, 74.0),
            stage("log_mel", 92.0, 20.0),
            stage("read", 22.5, 5.0),
            stage("collate", 4.61, 1.0),
        ],
        threads: Some(2),
        ready_batches: Some(1),
        ready_batches_mean: Some(0.4),
        prefetch: Some(4),
        read_bytes_per_second: Some(18_300_000.0),
        batch_bytes_per_second: Some(110_600_000.0),
        padding_percent: Some(61.0),
        waited_for: Some(Waited {
            step: 411,
            millis: 181.0,
            key: "clips/clip0123.mp3".to_owned(),
            stage: "decode".to_owned(),
        }),
        verdict: Some("input-bound: decode".to_owned()),
        fix: Some(Fix { what: "more threads".to_owned(), setting: "--threads 4".to_owned() }),
        recent: (292..412).map(recent).collect(),
        bad_lines: 0,
    }
}

fn snapshot() -> Snapshot {
    Snapshot {
        version: VERSION,
        at_unix_millis: 1_790_000_000_000,
        gpus: vec![gpu(0), broken_gpu(1)],
        gpus_note: None,
        cpu_percent: Some(64.0),
        host: LoadSample {
            cores_percent: vec![98.0, 71.0, 63.0, 24.0],
            io_wait_percent: Some(3.0),
            memory_used_bytes: Some(11 * GIB),
            memory_total_bytes: Some(32 * GIB),
            disk_read_bytes_per_second: Some(18_400_000.0),
            disk_write_bytes_per_second: Some(120_000.0),
            disk_busy_percent: Some(12.0),
            disk_busiest: Some("nvme0n1".to_owned()),
        },
        run: Some(run()),
        run_note: None,
    }
}

fn nothing() -> Snapshot {
    Snapshot {
        version: VERSION,
        gpus_note: Some("no NVIDIA driver was found".to_owned()),
        run_note: Some("no run of feedwater's is going on".to_owned()),
        ..Snapshot::default()
    }
}

fn screen(snapshot: &Snapshot, width: u16, height: u16, scroll: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, snapshot, &mut View { scroll, colour: true })).unwrap();
    terminal.backend().to_string()
}

#[test]
fn a_plain_frame() {
    assert_snapshot!(lines::plain(&snapshot(), 78));
}

#[test]
fn a_plain_frame_of_a_machine_that_says_nothing() {
    assert_snapshot!(lines::plain(&nothing(), 78));
}

#[test]
fn plain_frames_fit_their_width_and_have_no_escapes() {
    for width in [38, 60, 78, 118] {
        for line in lines::plain(&snapshot(), width).lines() {
            assert!(line.chars().count() <= width + 2, "{width}: {line}");
            assert!(!line.contains(char::is_control));
        }
    }
}

#[test]
fn a_screen_of_80_by_24() {
    assert_snapshot!(screen(&snapshot(), 80, 24, 0));
}

#[test]
fn a_screen_of_120_by_40() {
    assert_snapshot!(screen(&snapshot(), 120, 40, 0));
}

#[test]
fn a_screen_of_40_by_12() {
    assert_snapshot!(screen(&snapshot(), 40, 12, 0));
}

#[test]
fn a_narrow_screen_scrolls_to_its_end_and_no_further() {
    let end = screen(&snapshot(), 40, 12, u16::MAX);
    assert!(end.contains("disk"), "{end}");
    assert!(end.contains("more above"), "{end}");
}

#[test]
fn no_size_and_no_snapshot_is_a_panic() {
    let mut many = snapshot();
    many.gpus = (0..8).map(gpu).collect();
    many.host.cores_percent = vec![50.0; 256];
    let mut strange = snapshot();
    if let Some(run) = &mut strange.run {
        "x".repeat(500).clone_into(&mut run.name);
        run.stages.push(Stage { name: "é".repeat(60), millis_a_step: f64::NAN, percent: f64::INFINITY });
        run.steps_planned = Some(0);
        run.prefetch = Some(0);
        run.recent = vec![Recent::default(); 3];
        run.eta_seconds = Some(f64::INFINITY);
        run.state = State::Quiet;
    }
    for snapshot in [snapshot(), nothing(), many, strange, Snapshot::default()] {
        for width in [1, 2, 9, 20, 40, 79, 109, 110, 111, 300] {
            for height in [1, 2, 3, 12, 50] {
                screen(&snapshot, width, height, 0);
                screen(&snapshot, width, height, 7);
            }
        }
    }
}

#[test]
fn without_colour_a_frame_says_the_same() {
    let frame = |colour| {
        let mut terminal = Terminal::new(TestBackend::new(120, 40)).unwrap();
        terminal.draw(|frame| draw(frame, &snapshot(), &mut View { scroll: 0, colour })).unwrap();
        terminal.backend().clone()
    };
    let plain = frame(false);
    assert!(plain.buffer().content().iter().all(|cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset)));
    assert!(frame(true).buffer().content().iter().any(|cell| cell.fg != Color::Reset));
    assert_eq!(plain.to_string(), frame(true).to_string());
}

#[test]
fn prometheus_reads_it() {
    let mut snapshot = snapshot();
    snapshot.gpus[1].name = "odd \"name\" \\ here".to_owned();
    assert_snapshot!(metrics::render(&snapshot));
    assert_snapshot!(metrics::render(&nothing()), @r"
    # HELP feedwater_run_live 1 if a run is going on.
    # TYPE feedwater_run_live gauge
    feedwater_run_live 0
    ");
}

#[test]
fn the_json_has_what_the_help_says() {
    let json = serde_json::to_value(snapshot()).unwrap();
    assert_eq!(json["run"]["state"], "running");
    assert_eq!(json["run"]["stages"][0]["name"], "decode");
    assert_eq!(json["host"]["cores_percent"][0], 98.0);
    assert!(json["gpus"][1]["busy_percent"].is_null());
    assert_eq!(json["gpus"][1]["error"], "the GPU is lost");
}
