//! Pictures of what things cost and what a change would bring: the waterfall and the curves.

use std::fmt::Write as _;

use super::{
    chart::{Chart, HALF, Table, WIDE, pattern},
    svg::{Svg, at, figure, short},
};
use crate::{
    diagnosis::{Diagnosis, Facts},
    rules::millis,
    what_if::{Prediction, Wish},
};

/// Parts that get a row of their own.
const MOST_PARTS: usize = 8;

/// From a whole step down to what the accelerator works of it.
pub(super) fn waterfall(d: &Diagnosis) -> Chart {
    let wall = d.mean.wall_nanos;
    let has_busy = d.busy_percent.is_some();
    let title = if has_busy {
        format!(
            "Where a step of {} ms goes: the accelerator works {} ms of it",
            millis(wall),
            millis(d.mean.busy_nanos)
        )
    } else {
        format!("What a step of {} ms waits for", millis(wall))
    };
    let how = "begin with the whole step at the top; each bar below takes away the time in which the accelerator stands \
               still for one reason. What is left at the bottom is work.";
    let mut chart = Chart::new("waterfall", title, how);
    let parts = parts(d);
    let mut bars =
        vec![Bar { name: "a whole step".to_owned(), class: "f-all", from: 0.0, to: wall, nanos: wall }];
    let mut right = wall;
    for (name, nanos) in parts {
        let class = class_of(&name);
        bars.push(Bar { name, class, from: (right - nanos).max(0.0), to: right, nanos });
        right = (right - nanos).max(0.0);
    }
    if has_busy {
        let nanos = d.mean.busy_nanos;
        bars.push(Bar { name: "accelerator busy".to_owned(), class: "f-busy", from: 0.0, to: nanos, nanos });
    }
    chart.shows = bars
        .iter()
        .map(|bar| format!("{} {} ms", short(&bar.name, 60), millis(bar.nanos)))
        .collect::<Vec<_>>()
        .join(", ");
    chart.pictures = vec![draw_waterfall(&bars, wall, WIDE), draw_waterfall(&bars, wall, HALF)];
    let used = |class: &str| bars.iter().any(|bar| bar.class == class);
    chart.legend = [
        ("f-busy", "the accelerator works"),
        ("f-wait", "it waits for input"),
        ("f-copy", "copying to it"),
        ("f-sync", "it waits for other devices"),
        ("f-none", "not known, or too small to show"),
    ]
    .into_iter()
    .filter(|(class, _)| used(class))
    .map(|(class, says)| (class, says.to_owned()))
    .collect();
    let row =
        |bar: &Bar| vec![bar.name.clone(), millis(bar.nanos), format!("{:.1} %", 100.0 * bar.nanos / wall)];
    chart.table =
        Some(Table { head: vec!["part", "#ms a step", "#share"], rows: bars.iter().map(row).collect() });
    chart
}

struct Bar {
    name: String,
    class: &'static str,
    from: f64,
    to: f64,
    nanos: f64,
}

/// The dearest parts, and the others together.
fn parts(d: &Diagnosis) -> Vec<(String, f64)> {
    let least = 0.004 * d.mean.wall_nanos;
    let (mut shown, mut rest): (Vec<_>, Vec<_>) = idle(d).into_iter().partition(|(_, nanos)| *nanos >= least);
    rest.extend(shown.drain(MOST_PARTS.min(shown.len())..));
    let others: f64 = rest.iter().map(|(_, nanos)| nanos).sum();
    if others >= 0.001 * d.mean.wall_nanos {
        shown.push((format!("other ({})", rest.len()), others));
    }
    shown
}

/// Waiting for input that no stage accounts for.
pub(super) const NO_STAGE: &str = "input, stage unknown";

/// Why the accelerator stands still, with the waiting for input that has no stage told apart from what is not known at all.
pub(super) fn idle(d: &Diagnosis) -> Vec<(String, f64)> {
    let mut idle = d.idle_nanos.clone();
    let known: f64 = idle.iter().filter(|(part, _)| is_input(part)).map(|(_, nanos)| nanos).sum();
    let rest = d.mean.wait_nanos - known;
    if rest > 0.01 * d.mean.wall_nanos
        && let Some(unknown) =
            idle.iter_mut().find(|(part, nanos)| part == "unknown" && *nanos >= rest * 0.999)
    {
        unknown.1 = (unknown.1 - rest).max(0.0);
        idle.push((NO_STAGE.to_owned(), rest));
        idle.retain(|(_, nanos)| *nanos > 0.0);
        idle.sort_by(|a, b| b.1.total_cmp(&a.1));
    }
    idle
}

/// Whether a part is waiting for input.
pub(super) fn is_input(part: &str) -> bool {
    class_of(part) == "f-wait"
}

fn class_of(part: &str) -> &'static str {
    match part {
        "copy" => "f-copy",
        "sync" => "f-sync",
        "unknown" => "f-none",
        _ if part.starts_with("other (") => "f-none",
        _ => "f-wait",
    }
}

fn draw_waterfall(bars: &[Bar], wall: f64, width: f64) -> Svg {
    let wide = width == WIDE;
    // Names beside the bars where there is room, above them where there is not.
    let (left, right, row, bar_height) =
        if wide { (180.0, 140.0, 34.0, 22.0) } else { (0.0, 0.0, 46.0, 18.0) };
    let mut svg = Svg::new(width, bars.len() as f64 * row + 6.0);
    let x = |nanos: f64| left + (width - left - right) * nanos / wall;
    for (number, bar) in bars.iter().enumerate() {
        let top = number as f64 * row + if wide { 6.0 } else { 24.0 };
        let says = format!("{} ms · {:.0} %", millis(bar.nanos), 100.0 * bar.nanos / wall);
        if wide {
            svg.text("end", left - 12.0, top + 16.0, &short(&bar.name, 21));
            svg.text("strong", width - right + 12.0, top + 16.0, &says);
        } else {
            svg.text("", 0.0, top - 6.0, &short(&bar.name, 34));
            svg.text("end strong", width, top - 6.0, &says);
        }
        svg.rect("f-well", left, top, width - left - right, bar_height);
        let (from, to) = (x(bar.from), x(bar.to));
        // A part that is too small for its place is still to be seen.
        let length = (to - from).max(1.5);
        svg.rect(bar.class, from, top, length, bar_height);
        if let Some(pattern) = pattern(bar.class) {
            svg.rect(pattern, from, top, length, bar_height);
        }
        if number + 1 < bars.len() && number > 0 {
            svg.line("link", from, top + bar_height, from, top + row);
        }
    }
    svg
}

/// A point of a curve.
struct Point {
    x: f64,
    rate: f64,
    low: f64,
    high: f64,
}

struct Curve<'a> {
    points: Vec<Point>,
    measured: Option<(f64, f64)>,
    ceiling: Option<f64>,
    unit: &'a str,
    axis: &'a str,
    /// Something to know about a place on the axis.
    mark: Option<(f64, String)>,
    /// Whether each place is twice the one before.
    doubling: bool,
}

/// Steps a second for other numbers of threads.
pub(super) fn threads(facts: &Facts<'_>, d: &Diagnosis) -> Chart {
    const TITLE: &str = "Pace against threads";
    let Some(crew) = facts.split.crew else {
        let why = "The record does not say how batches were made and by how many threads, so what other numbers of \
                   threads would bring cannot be said. A record of Feedwater's own loader has it.";
        return Chart::missing("threads", TITLE, why);
    };
    let cores = facts.usable_cores().round().max(1.0) as usize;
    let most = (crew.threads + 2).max(cores.saturating_mul(2)).max(4);
    let counts: Vec<usize> = if most <= 16 {
        (1..=most).collect()
    } else {
        // Every one is too many to draw; the present and the full number are always there.
        let most = most.min(256);
        let mut counts: Vec<usize> = (0..=16).map(|part| (part * most / 16).max(1)).collect();
        counts.extend([crew.threads.clamp(1, most), cores.min(most)]);
        counts.sort_unstable();
        counts.dedup();
        counts
    };
    let points: Vec<Point> = counts
        .into_iter()
        .filter_map(|threads| facts.predict(&Wish::Threads(threads)).map(|p| (threads, p)))
        .filter_map(|(threads, p)| point(threads as f64, &p, 1.0))
        .collect();
    if points.len() < 2 {
        return Chart::missing(
            "threads",
            TITLE,
            "The record has too little of how batches were made for this curve.",
        );
    }
    let best = points.iter().fold(0.0_f64, |most, point| most.max(point.rate));
    let enough = points
        .iter()
        .find(|point| point.rate >= 0.97 * best)
        .map_or((0.0, best), |point| (point.x, point.rate));
    let now = d.steps_per_second;
    let title = if best > now * 1.03 {
        format!("More threads: {} would reach {:.1} steps/s, from {now:.1}", figure(enough.0), enough.1)
    } else {
        "More threads would not make it faster".to_owned()
    };
    let how = "the line is what the model says for each number of threads, the shaded band how far that may be off. The \
               diamond is what was measured. Nothing can be faster than the dashed line, the accelerator's own pace.";
    let mut chart = Chart::new("threads", title, how);
    let curve = Curve {
        measured: Some((crew.threads as f64, now)),
        ceiling: d.ceiling_steps_per_second.map(|(rate, _)| rate),
        unit: "steps/s",
        axis: "threads",
        mark: Some((facts.usable_cores(), "usable cores".to_owned())),
        doubling: false,
        points,
    };
    finish(&mut chart, &curve);
    chart
}

/// Samples a second for other sizes of a batch.
pub(super) fn batch_size(facts: &Facts<'_>, d: &Diagnosis) -> Chart {
    const TITLE: &str = "Pace against batch size";
    let rows = d.mean.rows;
    if rows < 1.0 || facts.split.crew.is_none() {
        let why = "The record does not say how batches were made, or how many samples they have, so what other sizes \
                   would bring cannot be said.";
        return Chart::missing("batch", TITLE, why);
    }
    let size = rows.round() as u64;
    let mut sizes: Vec<u64> = [8, 4, 2].into_iter().map(|by| size / by).filter(|size| *size > 0).collect();
    sizes.extend([1, 2, 4, 8].map(|by| size * by));
    sizes.dedup();
    // A batch made of fewer than 20 others says little; the model then has too few of them to play.
    let samples = facts.record.steps.len() as u64 * size;
    let points: Vec<Point> = sizes
        .into_iter()
        .filter(|size| samples / size >= 20)
        .filter_map(|size| facts.predict(&Wish::BatchSize(size)).map(|p| (size, p)))
        .filter_map(|(size, p)| point(size as f64, &p, p.samples_per_second / p.steps_per_second))
        .collect();
    if points.len() < 2 {
        return Chart::missing("batch", TITLE, "The record has too few samples for this curve.");
    }
    let best = points.iter().fold(0.0_f64, |most, point| most.max(point.rate));
    let now = d.samples_per_second;
    let title = if best > now * 1.05 {
        format!("Another batch size: up to {} samples/s, from {}", figure(best), figure(now))
    } else {
        "A larger batch would not feed it faster".to_owned()
    };
    let how = "as beside it, in samples a second. The model takes the accelerator's time to grow with the batch; where a \
               small batch leaves it half empty, it will do better than this.";
    let mut chart = Chart::new("batch", title, how);
    let curve = Curve {
        measured: Some((rows, now)),
        ceiling: d.ceiling_steps_per_second.map(|(rate, _)| rate * rows),
        unit: "samples/s",
        axis: "samples a batch",
        mark: None,
        doubling: true,
        points,
    };
    finish(&mut chart, &curve);
    chart
}

fn point(x: f64, predicted: &Prediction, by: f64) -> Option<Point> {
    let point = Point {
        x,
        rate: predicted.steps_per_second * by,
        low: predicted.low * by,
        high: predicted.high * by,
    };
    [point.rate, point.low, point.high]
        .iter()
        .all(|value| value.is_finite() && *value >= 0.0)
        .then_some(point)
}

fn finish(chart: &mut Chart, curve: &Curve<'_>) {
    chart.shows = curve
        .points
        .iter()
        .map(|p| {
            format!(
                "{} {}: {} [{} to {}] {}",
                figure(p.x),
                curve.axis,
                figure(p.rate),
                figure(p.low),
                figure(p.high),
                curve.unit
            )
        })
        .collect::<Vec<_>>()
        .join("; ");
    chart.pictures = vec![draw_curve(curve)];
    let row = |p: &Point| vec![figure(p.x), figure(p.rate), figure(p.low), figure(p.high)];
    let head = if curve.doubling {
        vec!["#samples a batch", "#samples/s", "#at least", "#at most"]
    } else {
        vec!["#threads", "#steps/s", "#at least", "#at most"]
    };
    chart.table = Some(Table { head, rows: curve.points.iter().map(row).collect() });
}

fn draw_curve(curve: &Curve<'_>) -> Svg {
    let (width, height, left, right, top, bottom) = (HALF, 290.0, 48.0, 16.0, 30.0, 44.0);
    let mut svg = Svg::new(width, height);
    let measured = curve.measured.filter(|(x, y)| x.is_finite() && y.is_finite());
    let xs = || curve.points.iter().map(|point| point.x).chain(measured.map(|(x, _)| x));
    let (from, to) = (xs().fold(f64::INFINITY, f64::min), xs().fold(0.0_f64, f64::max));
    let place = |x: f64| if curve.doubling { x.max(1e-9).log2() } else { x };
    let span = (place(to) - place(from)).max(1e-9);
    let x = |value: f64| left + 14.0 + (width - left - right - 28.0) * (place(value) - place(from)) / span;
    let ys = curve.points.iter().map(|point| point.high).chain(curve.ceiling).chain(measured.map(|(_, y)| y));
    let most = ys.filter(|y| y.is_finite()).fold(0.0_f64, f64::max).max(1e-9) * 1.08;
    let y = |value: f64| height - bottom - (height - top - bottom) * value / most;
    svg.scale(left, width - right, most, y);
    svg.text("small", 0.0, 14.0, curve.unit);
    let mut last = f64::NEG_INFINITY;
    for point in &curve.points {
        if x(point.x) - last >= 30.0 {
            svg.text("small mid", x(point.x), height - bottom + 18.0, &figure(point.x));
            last = x(point.x);
        }
    }
    svg.text("small mid", (left + width - right) / 2.0, height - 6.0, curve.axis);
    if let Some((mark, says)) = &curve.mark
        && *mark >= from
        && *mark <= to
    {
        svg.line("ref", x(*mark), top - 6.0, x(*mark), height - bottom);
        let (anchor, by) = if x(*mark) > width * 0.6 { ("small end", -5.0) } else { ("small", 5.0) };
        svg.text(
            &format!("{anchor} halo"),
            x(*mark) + by,
            height - bottom - 8.0,
            &format!("{} {says}", figure(*mark)),
        );
    }
    let mut band = String::new();
    for point in &curve.points {
        let _ = write!(
            band,
            "{}{} {}",
            if band.is_empty() { 'M' } else { 'L' },
            at(x(point.x)),
            at(y(point.high))
        );
    }
    for point in curve.points.iter().rev() {
        let _ = write!(band, "L{} {}", at(x(point.x)), at(y(point.low)));
    }
    svg.path("band", &(band + "z"));
    if let Some(ceiling) = curve.ceiling {
        svg.line("cap", left, y(ceiling), width - right, y(ceiling));
        let says = format!("the accelerator's own pace: {}", figure(ceiling));
        svg.text("end halo small", width - right, y(ceiling) - 7.0, &says);
    }
    let mut line = String::new();
    for point in &curve.points {
        let _ = write!(
            line,
            "{}{} {}",
            if line.is_empty() { 'M' } else { 'L' },
            at(x(point.x)),
            at(y(point.rate))
        );
    }
    svg.path("curve", &line);
    for point in &curve.points {
        svg.circle("dot", x(point.x), y(point.rate), 3.2);
    }
    if let Some((mx, my)) = measured {
        let (cx, cy) = (x(mx), y(my));
        svg.path("here", &format!("M{} {}l8 8l-8 8l-8 -8z", at(cx), at(cy - 8.0)));
        let (anchor, by) = if cx > width * 0.6 { ("end", -12.0) } else { ("", 12.0) };
        svg.text(&format!("strong halo {anchor}"), cx + by, cy + 18.0, &format!("measured: {}", figure(my)));
    }
    for point in &curve.points {
        let says = format!(
            "{} {}: {} {}, between {} and {}",
            figure(point.x),
            curve.axis,
            figure(point.rate),
            curve.unit,
            figure(point.low),
            figure(point.high)
        );
        svg.hover(x(point.x) - 9.0, top, 18.0, height - top - bottom, &says);
    }
    svg
}
