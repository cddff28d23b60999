//! How is a snapshot written in lines of text?
//!
//! The terminal and the plain frame are the same lines, once with style and once without, so that nothing is said by
//! colour alone. Every bar has its figure beside it.

use feedwater_profile::machine::GpuSample;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::snapshot::{RunView, Snapshot, State};

/// Where the text of a line begins.
const INDENT: usize = 9;
/// From this many GPUs on, each has three lines and not five.
const MANY_GPUS: usize = 3;
/// From this many cores on, each has one character and not a bar.
const MANY_CORES: usize = 24;
/// A core in the grid: its number, a bar, its share.
const CORE_CELL: usize = 17;

/// Lines about one thing.
pub(crate) struct Section {
    pub(crate) title: String,
    pub(crate) lines: Vec<Line<'static>>,
}

/// The run.
pub(crate) fn run(snapshot: &Snapshot, width: usize) -> Section {
    let Some(run) = &snapshot.run else {
        let why = snapshot.run_note.clone().unwrap_or_default();
        let lines = why.lines().map(|line| Line::from(Span::styled(line.to_owned(), dim()))).collect();
        return Section { title: "run".to_owned(), lines };
    };
    let pid = run.pid.map(|pid| format!(" · pid {pid}")).unwrap_or_default();
    let title = format!("run {} · {}{pid}", run.name, run.state.words());
    let mut lines = Vec::new();
    progress(run, width, &mut lines);
    pace(run, width, &mut lines);
    if let Some(verdict) = &run.verdict {
        lines.extend(labelled("verdict", &strong(verdict), width));
    }
    if let Some(fix) = &run.fix {
        lines.extend(labelled("fix", &format!("{}: {}", fix.what, fix.setting).into(), width));
    }
    chart(run, width, &mut lines);
    stages(run, width, &mut lines);
    if run.bad_lines > 0 {
        let text = format!("{} lines of the record could not be read", run.bad_lines);
        lines.extend(labelled("damaged", &text.into(), width));
    }
    Section { title, lines }
}

fn progress(run: &RunView, width: usize, lines: &mut Vec<Line<'static>>) {
    let elapsed = run.elapsed_seconds.map(|seconds| format!(" · {} so far", duration(seconds)));
    let elapsed = elapsed.unwrap_or_default();
    match run.steps_planned {
        Some(planned) if planned > 0 => {
            let percent = 100.0 * run.steps_done as f64 / planned as f64;
            let eta = match (run.state, run.eta_seconds) {
                (State::Ended, _) | (_, None) => String::new(),
                (_, Some(seconds)) => format!(" · ETA {}", duration(seconds)),
            };
            let text = format!("{} of {planned}{eta}", run.steps_done);
            lines.extend(barred("step", percent, &text, width, Color::Cyan));
            lines.extend(labelled("", &format!("epoch {}{elapsed}", run.epoch).into(), width));
        }
        _ => {
            let text = format!("{} · epoch {}{elapsed}", run.steps_done, run.epoch);
            lines.extend(labelled("step", &text.into(), width));
        }
    }
    match (run.state, run.last_step_seconds_ago) {
        (State::Quiet, Some(seconds)) => {
            let text = format!("no step for {}", duration(seconds));
            lines.extend(labelled("quiet", &strong(&text), width));
        }
        (State::Starting, _) => lines.extend(labelled("", &"no step yet".into(), width)),
        _ => {}
    }
}

fn pace(run: &RunView, width: usize, lines: &mut Vec<Line<'static>>) {
    if let Some(rate) = run.steps_per_second {
        let mut parts = vec![format!("{} steps/s", figure(rate))];
        parts.extend(run.samples_per_second.map(|samples| format!("{} samples/s", figure(samples))));
        parts.extend(run.step_millis.map(|millis| format!("{} ms a step", figure(millis))));
        lines.extend(labelled("pace", &parts.join(" · ").into(), width));
    }
    if let Some(busy) = run.busy_percent {
        let device = run.device.clone().unwrap_or_default();
        lines.extend(barred("busy", busy, &device, width, Color::Green));
    }
    if !run.shares.is_empty() {
        let shares: Vec<String> =
            run.shares.iter().map(|share| format!("{} {:.0} %", share.part, share.percent)).collect();
        lines.extend(labelled("time", &shares.join(" · ").into(), width));
    }
}

/// How long the last steps took.
fn chart(run: &RunView, width: usize, lines: &mut Vec<Line<'static>>) {
    if run.recent.len() > 1 {
        let room = width.saturating_sub(INDENT + 16).clamp(8, 60);
        let last = &run.recent[run.recent.len().saturating_sub(room)..];
        let walls: Vec<f64> = last.iter().map(|step| step.wall_millis).collect();
        let most = walls.iter().copied().fold(0.0, f64::max);
        let text = format!("  to {} ms", figure(most));
        let heights: String = walls.iter().map(|wall| height(wall / most.max(f64::MIN_POSITIVE))).collect();
        lines.push(Line::from(vec![
            label("steps"),
            Span::styled(heights, Style::new().fg(Color::Cyan)),
            text.into(),
        ]));
    }
}

fn stages(run: &RunView, width: usize, lines: &mut Vec<Line<'static>>) {
    if let Some(ready) = run.ready_batches {
        let mean = run.ready_batches_mean.map(|mean| format!(", mean {mean:.1}")).unwrap_or_default();
        match run.prefetch {
            Some(prefetch) if prefetch > 0 => {
                let percent = 100.0 * ready as f64 / prefetch as f64;
                let text = format!("{ready} of {prefetch} batches ready{mean}");
                lines.extend(barred_with("queue", percent, &text, width, Color::Blue));
            }
            _ => lines.extend(labelled("queue", &format!("{ready} batches ready{mean}").into(), width)),
        }
    }
    let longest = run.stages.iter().map(|stage| stage.name.chars().count()).max().unwrap_or(0).min(12);
    let most = run.stages.first().map_or(1.0, |stage| stage.percent.max(1.0));
    for (at, stage) in run.stages.iter().enumerate() {
        let name: String = stage.name.chars().take(longest).collect();
        let bar = width.saturating_sub(INDENT + longest + 22).min(30);
        lines.push(Line::from(vec![
            label(if at == 0 { "stages" } else { "" }),
            format!("{name:<longest$} ").into(),
            Span::styled(strip(stage.percent / most, bar), Style::new().fg(Color::Magenta)),
            format!(" {:>7} ms {:>3.0} %", figure(stage.millis_a_step), stage.percent).into(),
        ]));
    }
    if !run.stages.is_empty()
        && let Some(threads) = run.threads
    {
        let who = match threads {
            0 => "the training loop's own".to_owned(),
            1 => "of one thread".to_owned(),
            _ => format!("of {threads} threads"),
        };
        lines.extend(labelled("", &Span::styled(format!("time a step, {who}"), dim()), width));
    }
    let mut input = Vec::new();
    input.extend(run.read_bytes_per_second.map(|bytes| format!("read {}", rate(bytes))));
    input.extend(run.batch_bytes_per_second.map(|bytes| format!("batches {}", rate(bytes))));
    input.extend(run.padding_percent.map(|percent| format!("padding {percent:.0} %")));
    if !input.is_empty() {
        lines.extend(labelled("input", &input.join(" · ").into(), width));
    }
    if let Some(waited) = &run.waited_for {
        let text = format!(
            "{} ms in step {} for {} ({})",
            figure(waited.millis),
            waited.step,
            waited.key,
            waited.stage
        );
        lines.extend(labelled("waited", &text.into(), width));
    }
}

/// The GPUs, a section each.
pub(crate) fn gpus(snapshot: &Snapshot, width: usize) -> Vec<Section> {
    if let Some(note) = &snapshot.gpus_note {
        let lines = vec![Line::from(Span::styled(note.clone(), dim()))];
        return vec![Section { title: "GPU".to_owned(), lines }];
    }
    let many = snapshot.gpus.len() >= MANY_GPUS;
    snapshot.gpus.iter().map(|gpu| self::gpu(gpu, many, width)).collect()
}

fn gpu(gpu: &GpuSample, many: bool, width: usize) -> Section {
    let mut lines = Vec::new();
    let warm = gpu.temperature_celsius.map(|celsius| format!("{celsius:.0} °C"));
    let clocks = [
        gpu.sm_clock_mhz.map(|mhz| format!("SM {mhz} MHz")),
        gpu.memory_clock_mhz.map(|mhz| format!("memory {mhz} MHz")),
    ];
    let bus = [
        gpu.pcie_rx_bytes_per_second.map(|bytes| format!("in {}", rate(bytes as f64))),
        gpu.pcie_tx_bytes_per_second.map(|bytes| format!("out {}", rate(bytes as f64))),
    ];
    let joined = |parts: Vec<Option<String>>| parts.into_iter().flatten().collect::<Vec<_>>().join(" · ");
    let controller = gpu.memory_busy_percent.map(|percent| format!("controller {percent:.0} %"));
    let power = match (gpu.power_watts, gpu.power_limit_watts) {
        (Some(watts), Some(limit)) => Some(format!("{watts:.0} of {limit:.0} W")),
        (Some(watts), None) => Some(format!("{watts:.0} W")),
        _ => None,
    };
    let memory = match (gpu.memory_used_bytes, gpu.memory_total_bytes) {
        (Some(used), Some(total)) if total > 0 => Some((100.0 * used as f64 / total as f64, of(used, total))),
        _ => None,
    };
    if let Some(busy) = gpu.busy_percent {
        let beside = if many { joined(vec![power.clone(), warm]) } else { warm.unwrap_or_default() };
        lines.extend(barred("busy", busy, &beside, width, Color::Green));
    }
    if let Some((percent, text)) = memory {
        let text = joined(vec![Some(text), controller]);
        lines.extend(barred_with("memory", percent, &text, width, Color::Yellow));
    } else if let Some(controller) = controller {
        lines.extend(labelled("memory", &controller.into(), width));
    }
    if many {
        let [receives, sends] = bus;
        let all = joined(
            clocks.into_iter().chain([receives.map(|bytes| format!("PCIe {bytes}")), sends]).collect(),
        );
        if !all.is_empty() {
            lines.extend(labelled("clocks", &all.into(), width));
        }
    } else {
        match (gpu.power_watts, gpu.power_limit_watts, power) {
            (Some(watts), Some(limit), Some(text)) if limit > 0.0 => {
                lines.extend(barred_with("power", 100.0 * watts / limit, &text, width, Color::Red));
            }
            (_, _, Some(text)) => lines.extend(labelled("power", &text.into(), width)),
            _ => {}
        }
        for (name, parts) in [("clocks", clocks), ("PCIe", bus)] {
            let text = joined(parts.into());
            if !text.is_empty() {
                lines.extend(labelled(name, &text.into(), width));
            }
        }
    }
    if let Some(error) = &gpu.error {
        lines.extend(labelled("unknown", &strong(error), width));
    }
    Section { title: format!("GPU {} {}", gpu.index, gpu.name), lines }
}

/// Cores, memory and disks.
pub(crate) fn host(snapshot: &Snapshot, width: usize) -> Section {
    let host = &snapshot.host;
    let cores = &host.cores_percent;
    let mut lines = Vec::new();
    if let Some(cpu) = snapshot.cpu_percent {
        let plural = if cores.len() == 1 { "" } else { "s" };
        let waiting = host.io_wait_percent.filter(|percent| *percent >= 0.5);
        let waiting = waiting.map(|percent| format!(" · {percent:.0} % wait for disk")).unwrap_or_default();
        lines.extend(barred(
            "CPU",
            cpu,
            &format!("{} core{plural}{waiting}", cores.len()),
            width,
            Color::Green,
        ));
    }
    let room = width.saturating_sub(INDENT);
    if cores.len() >= MANY_CORES {
        for (at, row) in cores.chunks(room.max(1)).enumerate() {
            let heights: String = row.iter().map(|core| height(core / 100.0)).collect();
            lines.push(Line::from(vec![
                label(if at == 0 { "cores" } else { "" }),
                Span::styled(heights, Style::new().fg(Color::Green)),
            ]));
        }
    } else {
        for (at, row) in cores.chunks((room / CORE_CELL).max(1)).enumerate() {
            let mut line = Line::from(label(if at == 0 { "cores" } else { "" }));
            for (number, core) in row.iter().enumerate() {
                let number = at * (room / CORE_CELL).max(1) + number;
                line.push_span(format!("{number:>2} "));
                line.push_span(Span::styled(strip(core / 100.0, 6), Style::new().fg(Color::Green)));
                line.push_span(format!(" {core:>3.0} %  "));
            }
            lines.push(line);
        }
    }
    if let (Some(used), Some(total)) = (host.memory_used_bytes, host.memory_total_bytes) {
        let percent = 100.0 * used as f64 / total.max(1) as f64;
        lines.extend(barred_with("memory", percent, &of(used, total), width, Color::Yellow));
    }
    if let Some(busy) = host.disk_busy_percent {
        let mut rates = Vec::new();
        rates.extend(host.disk_read_bytes_per_second.map(|bytes| format!("read {}", rate(bytes))));
        rates.extend(host.disk_write_bytes_per_second.map(|bytes| format!("write {}", rate(bytes))));
        rates.extend(host.disk_busiest.clone());
        lines.extend(barred("disk", busy, &rates.join(" · "), width, Color::Blue));
    }
    if lines.is_empty() {
        lines.push(Line::from(Span::styled("this system does not say how busy it is", dim())));
    }
    Section { title: "host".to_owned(), lines }
}

/// Everything, one below the other.
pub(crate) fn all(snapshot: &Snapshot, width: usize) -> Vec<Section> {
    let mut sections = vec![run(snapshot, width)];
    sections.extend(gpus(snapshot, width));
    sections.push(host(snapshot, width));
    sections
}

/// One frame without style, for a pipe or a log.
pub(crate) fn plain(snapshot: &Snapshot, width: usize) -> String {
    let mut text = String::new();
    for section in all(snapshot, width) {
        text.push_str(&section.title);
        text.push('\n');
        for line in section.lines {
            let line: String = line.spans.iter().map(|span| span.content.as_ref()).collect();
            text.push_str(format!("  {line}").trim_end());
            text.push('\n');
        }
    }
    text
}

fn label(text: &str) -> Span<'static> {
    Span::styled(format!("{text:<INDENT$}"), dim())
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn strong(text: &str) -> Span<'static> {
    Span::styled(text.to_owned(), Style::new().add_modifier(Modifier::BOLD))
}

/// A text with its label, broken at spaces where it is too long.
fn labelled(name: &str, text: &Span<'static>, width: usize) -> Vec<Line<'static>> {
    let room = width.saturating_sub(INDENT).max(8);
    let names = std::iter::once(name).chain(std::iter::repeat(""));
    let rows = wrapped(&text.content, room, room);
    names.zip(rows).map(|(name, row)| Line::from(vec![label(name), Span::styled(row, text.style)])).collect()
}

/// Breaks at spaces; a name without one, as long as it likes, is broken where the room ends.
fn wrapped(text: &str, first: usize, room: usize) -> Vec<String> {
    let mut rows = vec![String::new()];
    let mut begun = false;
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let room = if rows.len() == 1 { first } else { room };
            let row = rows.last_mut().expect("there is always one");
            let space = usize::from(begun);
            if row.chars().count() + space + word.len() <= room {
                // Several spaces are kept, for they set columns apart, but no row begins with what the last one ended in.
                begun |= !word.is_empty() || rows.len() == 1;
                rows.last_mut()
                    .expect("there is always one")
                    .extend(std::iter::repeat_n(' ', space).chain(word));
                break;
            }
            if !begun {
                row.extend(word.drain(..room));
            }
            rows.push(String::new());
            begun = false;
        }
    }
    rows
}

/// A bar, its share in figures, and what goes with it.
fn barred(name: &str, percent: f64, beside: &str, width: usize, colour: Color) -> Vec<Line<'static>> {
    barred_with(name, percent, &format!("{:>3.0} %   {beside}", percent.clamp(0.0, 999.0)), width, colour)
}

/// The same without the share. What does not fit beside the bar goes below it.
fn barred_with(name: &str, percent: f64, text: &str, width: usize, colour: Color) -> Vec<Line<'static>> {
    // A narrow screen has the figures, and no bar.
    let bar = width.saturating_sub(INDENT + 30).min(26);
    let bar = if bar < 4 { 0 } else { bar + 1 };
    let room = width.saturating_sub(INDENT).max(8);
    let mut rows = wrapped(text, room - bar, room).into_iter();
    let mut first = Line::from(label(name));
    if bar > 0 {
        first.push_span(Span::styled(strip(percent / 100.0, bar - 1), Style::new().fg(colour)));
        first.push_span(" ");
    }
    first.push_span(rows.next().unwrap_or_default());
    std::iter::once(first).chain(rows.map(|row| Line::from(vec![label(""), row.into()]))).collect()
}

fn strip(share: f64, width: usize) -> String {
    let full = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    "█".repeat(full) + &"░".repeat(width - full)
}

fn height(share: f64) -> char {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    HEIGHTS[((share.clamp(0.0, 1.0) * 8.0) as usize).min(7)]
}

/// With three digits that say something.
fn figure(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn of(used: u64, total: u64) -> String {
    const GIB: f64 = (1_u64 << 30) as f64;
    format!("{:.1} of {:.1} GiB", used as f64 / GIB, total as f64 / GIB)
}

fn rate(bytes: f64) -> String {
    match bytes {
        ..1e6 => format!("{:.0} kB/s", bytes / 1e3),
        ..1e8 => format!("{:.1} MB/s", bytes / 1e6),
        ..1e9 => format!("{:.0} MB/s", bytes / 1e6),
        _ => format!("{:.2} GB/s", bytes / 1e9),
    }
}

fn duration(seconds: f64) -> String {
    let whole = seconds.round().max(0.0) as u64;
    match whole {
        ..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..172_800 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3600),
    }
}
