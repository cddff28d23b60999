//! Pictures of how the run went: the timeline, the histogram, the queue.
//!
//! A record may have a hundred thousand steps, and a page has a thousand dots. Steps are drawn together as means with
//! their longest; the ones that stand out keep their names.

use std::{collections::HashMap, fmt::Write as _};

use super::{
    chart::{Chart, HALF, Table, WIDE},
    svg::{Svg, at, figure, push_box, short},
};
use crate::{diagnosis::Facts, record::Step, rules::millis, steps::quantile};

/// Steps that get a number in the picture and a line in the table.
const NAMED: usize = 8;
/// Columns of the timeline.
const COLUMNS: usize = 310;
/// Reasons for leaving a step out that get a letter of their own.
const REASONS: usize = 6;

/// Where the picture ends: what is longer is drawn up to the edge and says so.
fn cap(facts: &Facts<'_>) -> f64 {
    let steps = &facts.steps;
    let longest = steps.of_record(facts.record).map(|step| step.wall_nanos).max().unwrap_or(1) as f64;
    let mut walls: Vec<u64> = steps.of_record(facts.record).map(|step| step.wall_nanos).collect();
    walls.sort_unstable();
    // A few that are far longer must not flatten all the others.
    let usual = (quantile(&walls, 0.95) as f64 * 1.15).max(steps.p50_nanos as f64 * 2.2);
    usual.max(steps.mean.wall_nanos * 1.2).min(longest * 1.02).max(1.0)
}

/// The steps that stand out, the longest first.
fn outliers<'a>(facts: &'a Facts<'_>) -> Vec<(usize, &'a Step)> {
    let p50 = facts.steps.p50_nanos as f64;
    let usual = p50 * (1.3 + 5.0 * facts.steps.robust_variation_percent / 100.0);
    let steps = facts.steps.steady.iter().map(|at| (*at, &facts.record.steps[*at]));
    let mut long: Vec<_> = steps.filter(|(_, step)| step.wall_nanos as f64 > usual).collect();
    long.sort_by_key(|(at, step)| (std::cmp::Reverse(step.wall_nanos), *at));
    long.truncate(NAMED);
    long
}

/// Letters for the reasons that steps were left out for.
fn letters<'a>(facts: &'a Facts<'_>) -> Vec<(char, &'a str, usize, u64)> {
    let mut reasons: Vec<(&str, usize, u64)> = Vec::new();
    let mut place: HashMap<&str, usize> = HashMap::new();
    for (at, why) in &facts.steps.apart {
        let wall = facts.record.steps[*at].wall_nanos;
        // Whatever a record has of reasons, a page has room for a few.
        let known = place.get(why.as_str()).copied().or((reasons.len() >= REASONS).then_some(REASONS));
        let number = known.unwrap_or(reasons.len());
        if number == reasons.len() {
            reasons.push((if known.is_some() { "other reasons" } else { why }, 0, 0));
        }
        if known.is_none() {
            place.insert(why, number);
        }
        reasons[number].1 += 1;
        reasons[number].2 += wall;
    }
    let letters = "wabcdefg".chars();
    let letters: Vec<char> = if reasons.first().is_some_and(|reason| reason.0 == "warm-up") {
        letters.collect()
    } else {
        letters.skip(1).collect()
    };
    reasons.into_iter().zip(letters).map(|((why, count, wall), letter)| (letter, why, count, wall)).collect()
}

/// Steps that were left out, by reason: letter, reason, how many, their time.
pub(super) fn left_out(facts: &Facts<'_>) -> Table {
    let rows = letters(facts)
        .into_iter()
        .map(|(letter, why, count, wall)| {
            vec![letter.to_string(), why.to_owned(), count.to_string(), format!("{:.1}", wall as f64 / 1e9)]
        })
        .collect();
    Table { head: vec!["", "why", "#steps", "#seconds in all"], rows }
}

/// Steps that vary by less, in percent, are even.
const EVEN: f64 = 10.0;

/// Every step, or means of a few.
pub(super) fn timeline(facts: &Facts<'_>) -> Chart {
    let named = outliers(facts);
    let mut chart = Chart::new("timeline", "", "");
    chart.title = match named.first() {
        Some((_, step)) => format!(
            "Step times: mostly {} ms, up to {} ms (step {})",
            millis(facts.steps.p50_nanos as f64),
            millis(step.wall_nanos as f64),
            step.step
        ),
        None if facts.steps.variation_percent < EVEN => {
            format!("Step times: an even {} ms", millis(facts.steps.p50_nanos as f64))
        }
        None => format!(
            "Step times: {} ms in the middle, varying by {:.0} %",
            millis(facts.steps.p50_nanos as f64),
            facts.steps.variation_percent
        ),
    };
    let together = facts.record.steps.len().div_ceil(COLUMNS);
    let column = if together > 1 {
        format!("each column is the mean of {together} steps; 95 in 100 of them are below the thin line")
    } else {
        "each column is a step".to_owned()
    };
    let numbers = if named.is_empty() { "" } else { " Numbers are the steps in the table below." };
    chart.how = format!(
        "from left to right, {column}. Its height is the time it took.{numbers} Letters below the line are steps that \
         do not count: they are not drawn, and what they are is said under “What was left out”."
    );
    chart.shows = format!(
        "{} steps that count, median {} ms, 99 in 100 under {} ms",
        facts.steps.steady.len(),
        millis(facts.steps.p50_nanos as f64),
        millis(facts.steps.p99_nanos as f64)
    );
    chart.pictures = vec![draw_timeline(facts, &named, WIDE), draw_timeline(facts, &named, HALF)];
    chart.legend = vec![
        ("f-busy", "below: the accelerator works".to_owned()),
        ("f-wait", "above: it waits for input".to_owned()),
        ("f-none", "between: copy, sync and what is not known".to_owned()),
    ];
    if !named.is_empty() {
        chart.below = Some(Table {
            head: vec!["#no.", "#step", "#took ms", "#waited ms", "for the sample", "most of it in"],
            rows: named.iter().enumerate().map(|(number, (_, step))| outlier_row(number, step)).collect(),
        });
    }
    chart
}

fn outlier_row(number: usize, step: &Step) -> Vec<String> {
    let blame = step.input.as_ref().and_then(|input| input.waited_for.as_ref().or(input.slowest.first()));
    let word = |text: Option<&String>| match text {
        Some(text) if !text.is_empty() => short(text, 70),
        _ => "not recorded".to_owned(),
    };
    vec![
        (number + 1).to_string(),
        step.step.to_string(),
        millis(step.wall_nanos as f64),
        millis(step.wait_nanos as f64),
        word(blame.map(|blame| &blame.key)),
        word(blame.map(|blame| &blame.stage)),
    ]
}

fn draw_timeline(facts: &Facts<'_>, named: &[(usize, &Step)], width: f64) -> Svg {
    let (left, right, top, bottom) = (48.0, 8.0, 52.0, 62.0);
    let height = if width == WIDE { 330.0 } else { 300.0 };
    let base = height - bottom;
    let mut svg = Svg::new(width, height);
    let all = &facts.record.steps;
    let most = cap(facts) / 1e6;
    let y = |millis: f64| base - (base - top) * (millis / most).min(1.0);
    svg.scale(left, width - right, most, y);
    svg.text("small", 0.0, 14.0, "ms");
    let together = all.len().div_ceil(COLUMNS).max(1);
    let count = all.len().div_ceil(together);
    let pitch = (width - left - right) / count as f64;
    let gap = if pitch > 4.0 { 1.0 } else { 0.0 };
    let mut steady = vec![false; all.len()];
    for at in &facts.steps.steady {
        steady[*at] = true;
    }
    let (mut busy, mut wait, mut other, mut whisker, mut broken) =
        (String::new(), String::new(), String::new(), String::new(), String::new());
    for (number, steps) in all.chunks(together).enumerate() {
        let counts: Vec<&Step> = steps
            .iter()
            .enumerate()
            .filter(|(at, _)| steady[number * together + at])
            .map(|(_, step)| step)
            .collect();
        if counts.is_empty() {
            continue;
        }
        let mean = |of: fn(&Step) -> u64| {
            counts.iter().map(|step| of(step) as f64).sum::<f64>() / counts.len() as f64 / 1e6
        };
        let (wall, works, waits) =
            (mean(|step| step.wall_nanos), mean(Step::busy_nanos), mean(|step| step.wait_nanos));
        let mut walls: Vec<u64> = counts.iter().map(|step| step.wall_nanos).collect();
        walls.sort_unstable();
        let longest = walls[walls.len() - 1] as f64 / 1e6;
        let most_are_below = quantile(&walls, 0.95) as f64 / 1e6;
        let x = left + pitch * number as f64;
        let stack = |path: &mut String, from: f64, to: f64| {
            push_box(path, x, y(to), pitch - gap, y(from) - y(to));
        };
        let rest = (wall - waits).max(works.min(wall));
        stack(&mut busy, 0.0, works.min(wall));
        stack(&mut other, works.min(wall), rest);
        stack(&mut wait, rest, wall);
        let middle = x + (pitch - gap) / 2.0;
        if together > 1 && most_are_below > wall * 1.02 {
            let _ = write!(whisker, "M{} {}V{}", at(middle), at(y(wall)), at(y(most_are_below)));
        }
        if most_are_below > most {
            let _ = write!(broken, "M{} {}l-3.5 6h7z", at(middle), at(top - 8.0));
        }
        if width == WIDE {
            svg.hover(x, top, pitch, base - top, &column_says(&counts, wall, waits, longest));
        }
    }
    for (class, path) in [
        ("f-busy", busy),
        ("f-none", other),
        ("f-wait", wait.clone()),
        ("whisker", whisker),
        ("f-mark", broken),
    ] {
        svg.path(class, &path);
    }
    svg.path("hatch", &wait);
    tags(&mut svg, named, |at| left + pitch * (at / together) as f64 + (pitch - gap) / 2.0, top);
    lane(&mut svg, facts, |at| left + pitch * (at / together) as f64 + (pitch - gap) / 2.0, base);
    let (first, last) = (all.first().map_or(0, |step| step.step), all.last().map_or(0, |step| step.step));
    svg.text("small", left, height - 6.0, &format!("step {}", figure(first as f64)));
    svg.text("small end", width - right, height - 6.0, &format!("step {}", figure(last as f64)));
    svg.text("small mid", (left + width - right) / 2.0, height - 6.0, "letters: left out");
    svg
}

fn column_says(counts: &[&Step], wall: f64, waits: f64, longest: f64) -> String {
    let [step] = counts else {
        let (first, last) =
            (counts.first().map_or(0, |step| step.step), counts.last().map_or(0, |step| step.step));
        return format!(
            "steps {first}–{last}: mean {} ms, waited {} ms, longest {} ms",
            figure(wall),
            figure(waits),
            figure(longest)
        );
    };
    let mut says = format!("step {}: {} ms, waited {} ms", step.step, figure(wall), figure(waits));
    if let Some(blame) = step.input.as_ref().and_then(|input| input.waited_for.as_ref())
        && step.wait_nanos * 50 > step.wall_nanos
    {
        let _ = write!(says, " for {} ({})", short(&blame.key, 50), short(&blame.stage, 30));
    }
    says
}

/// The numbers of the named steps, one above the other where they are too close.
fn tags(svg: &mut Svg, named: &[(usize, &Step)], x: impl Fn(usize) -> f64, top: f64) {
    let mut places: Vec<(f64, usize)> = Vec::new();
    let mut tags: Vec<(usize, f64)> =
        named.iter().enumerate().map(|(number, (at, _))| (number + 1, x(*at))).collect();
    tags.sort_by(|a, b| a.1.total_cmp(&b.1));
    for (number, x) in tags {
        let taken = |level: usize| places.iter().any(|(other, at)| *at == level && (x - other).abs() < 18.0);
        let level = (0..2).find(|level| !taken(*level)).unwrap_or(2);
        let y = top - 19.0 - 17.0 * level as f64;
        if level < 2 {
            svg.line("whisker", x, y + 7.0, x, top - 9.0);
            svg.circle("f-mark", x, y, 8.0);
            svg.text("tag", x, y + 4.0, &number.to_string());
            places.push((x, level));
        }
    }
}

/// The steps that do not count: a tick each, and a letter where there is room.
fn lane(svg: &mut Svg, facts: &Facts<'_>, x: impl Fn(usize) -> f64, base: f64) {
    let letters = letters(facts);
    let mut ticks = String::new();
    let (mut last_tick, mut last_letter) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
    for (place, why) in &facts.steps.apart {
        let x = x(*place);
        if x - last_tick >= 0.5 {
            let _ = write!(ticks, "M{} {}v8", at(x), at(base + 6.0));
            last_tick = x;
        }
        let letter = letters.iter().find(|(_, known, ..)| known == why).or(letters.last());
        if x - last_letter >= 11.0
            && let Some((letter, ..)) = letter
        {
            svg.text("small mid", x, base + 28.0, &letter.to_string());
            last_letter = x;
        }
    }
    svg.path("whisker", &ticks);
}

/// How often steps take how long.
pub(super) fn histogram(facts: &Facts<'_>) -> Chart {
    const BINS: usize = 40;
    let mut walls: Vec<f64> =
        facts.steps.of_record(facts.record).map(|step| step.wall_nanos as f64 / 1e6).collect();
    walls.sort_by(f64::total_cmp);
    let (least, most) = (walls[0], walls[walls.len() - 1]);
    // Times that lie far apart are easier to compare by their ratio.
    let ratio = most > 6.0 * least;
    let place = |millis: f64| if ratio { millis.log10() } else { millis };
    let margin = 0.02 * (place(most) - place(least)).max(if ratio { 0.05 } else { 0.1 * least });
    let (from, to) = (place(least) - margin, place(most) + margin);
    let mut bins = [0_usize; BINS];
    for wall in &walls {
        let bin = ((place(*wall) - from) / (to - from) * BINS as f64) as usize;
        bins[bin.min(BINS - 1)] += 1;
    }
    let edge = |bin: usize| {
        let value = from + (to - from) * bin as f64 / BINS as f64;
        if ratio { 10_f64.powf(value) } else { value }
    };
    let (p50, p99) = (facts.steps.p50_nanos as f64 / 1e6, facts.steps.p99_nanos as f64 / 1e6);
    let spread = p99 / p50.max(1e-9);
    let title = if spread < 1.3 {
        format!("How even it is: 99 of 100 steps take under {} ms", figure(p99))
    } else {
        format!("How even it is: one step in 100 takes {spread:.1}× the usual")
    };
    let scale = if ratio { " The scale is logarithmic: equal distances are equal ratios." } else { "" };
    let how = format!(
        "each bar is the number of steps that took so long. One narrow heap is an even pace; a tail to the right is \
         single steps that are late.{scale}"
    );
    let mut chart = Chart::new("histogram", title, how);
    chart.shows = format!(
        "{} steps from {} to {} ms, median {}, 99th percentile {}",
        walls.len(),
        figure(least),
        figure(most),
        figure(p50),
        figure(p99)
    );
    let (width, height, left, right, top, bottom) = (HALF, 270.0, 48.0, 12.0, 44.0, 44.0);
    let mut svg = Svg::new(width, height);
    let highest = bins.iter().copied().max().unwrap_or(1) as f64 * 1.05;
    let base = height - bottom;
    let y = |count: f64| base - (base - top) * count / highest;
    let x = |millis: f64| left + (width - left - right) * (place(millis) - from) / (to - from);
    svg.scale(left, width - right, highest, y);
    svg.text("small", 0.0, 14.0, "steps");
    let pitch = (width - left - right) / BINS as f64;
    let mut path = String::new();
    for (bin, count) in bins.iter().enumerate().filter(|(_, count)| **count > 0) {
        let tall = (base - y(*count as f64)).max(2.0);
        push_box(&mut path, left + pitch * bin as f64 + 0.5, base - tall, pitch - 1.0, tall);
    }
    svg.path("f-busy", &path);
    for (bin, count) in bins.iter().enumerate().filter(|(_, count)| **count > 0) {
        let says = format!("{} to {} ms: {count} steps", figure(edge(bin)), figure(edge(bin + 1)));
        svg.hover(left + pitch * bin as f64, top, pitch, base - top, &says);
    }
    for (value, name, level) in [(p50, "p50", 0.0), (p99, "p99", 1.0)] {
        svg.line("ref", x(value), top - 16.0 + 14.0 * level, x(value), base);
        let right_side = x(value) > width * 0.62;
        let class = if right_side { "small end halo" } else { "small halo" };
        let by = if right_side { -4.0 } else { 4.0 };
        svg.text(class, x(value) + by, top - 8.0 + 14.0 * level, &format!("{name} {} ms", figure(value)));
    }
    for tick in axis_ticks(edge(0), edge(BINS), ratio) {
        svg.line("axis", x(tick), base, x(tick), base + 4.0);
        svg.text("small mid", x(tick), base + 18.0, &figure(tick));
    }
    svg.text("small mid", (left + width - right) / 2.0, height - 6.0, "ms a step");
    chart.pictures = vec![svg];
    let rows = bins.iter().enumerate().filter(|(_, count)| **count > 0);
    chart.table = Some(Table {
        head: vec!["#from ms", "#to ms", "#steps"],
        rows: rows
            .map(|(bin, count)| vec![figure(edge(bin)), figure(edge(bin + 1)), count.to_string()])
            .collect(),
    });
    chart
}

fn axis_ticks(from: f64, to: f64, ratio: bool) -> Vec<f64> {
    if !ratio {
        let step = super::svg::ticks(to - from, 4).get(1).copied().unwrap_or(1.0).max(1e-9);
        let first = (from / step).ceil();
        return (0..8)
            .map(|number| (first + f64::from(number)) * step)
            .take_while(|tick| *tick <= to)
            .collect();
    }
    let mut ticks: Vec<f64> = (-6..12)
        .flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)))
        .filter(|tick| (from..=to).contains(tick))
        .collect();
    while ticks.len() > 7 {
        ticks = ticks.into_iter().step_by(3).collect();
    }
    ticks
}

/// How many batches were ready.
pub(super) fn queue(facts: &Facts<'_>) -> Chart {
    let ready: Vec<(u64, u64)> =
        facts.record.steps.iter().filter_map(|step| Some((step.step, step.input.as_ref()?.ready?))).collect();
    if ready.is_empty() {
        let why = "The record does not say how many batches were ready when one was asked for, so there is no picture of \
                   the queue. A record of Feedwater's own loader has it.";
        return Chart::missing("queue", "How full the queue was", why);
    }
    let empty = ready.iter().filter(|(_, ready)| *ready == 0).count();
    let share = 100.0 * empty as f64 / ready.len() as f64;
    let title = if empty == 0 {
        "The queue always had a batch ready".to_owned()
    } else {
        format!("The queue was empty at {} % of the steps", figure(share.max(0.01)))
    };
    let how = "the height is the number of batches that were ready when the training loop asked for one. Ticks below the \
               line are steps that found none and had to wait: more ticks, more waiting.";
    let mut chart = Chart::new("queue", title, how);
    let mean = ready.iter().map(|(_, ready)| *ready as f64).sum::<f64>() / ready.len() as f64;
    chart.shows = format!("mean {} batches ready, none at {empty} of {} steps", figure(mean), ready.len());
    let (width, height, left, right, top, bottom) = (HALF, 270.0, 48.0, 12.0, 30.0, 58.0);
    let mut svg = Svg::new(width, height);
    let base = height - bottom;
    let limit = facts.steps.crew.prefetch.map(|prefetch| prefetch as f64).filter(|prefetch| *prefetch < 1e6);
    let highest = ready.iter().map(|(_, ready)| *ready).max().unwrap_or(0) as f64;
    let most = highest.max(limit.unwrap_or(0.0)).max(1.0) * 1.1;
    let y = |count: f64| base - (base - top) * count / most;
    svg.scale(left, width - right, most, y);
    svg.text("small", 0.0, 14.0, "batches ready");
    let together = ready.len().div_ceil(200).max(1);
    let pitch = (width - left - right) / ready.len().div_ceil(together) as f64;
    let (mut path, mut found_none) = (String::new(), String::new());
    for (number, steps) in ready.chunks(together).enumerate() {
        let x = left + pitch * number as f64;
        let mean = steps.iter().map(|(_, ready)| *ready as f64).sum::<f64>() / steps.len() as f64;
        push_box(&mut path, x, y(mean), pitch, base - y(mean));
        let none = steps.iter().filter(|(_, ready)| *ready == 0).count() as f64 / steps.len() as f64;
        if none > 0.0 {
            push_box(&mut found_none, x, base + 9.0, pitch * 0.7, 2.0 + 12.0 * none);
        }
    }
    svg.path("f-sync", &path);
    svg.path("f-wait", &found_none);
    if let Some(limit) = limit {
        svg.line("cap", left, y(limit), width - right, y(limit));
        svg.text(
            "small end halo",
            width - right,
            y(limit) - 6.0,
            &format!("made ahead at most: {}", figure(limit)),
        );
    }
    let (first, last) = (ready[0].0, ready[ready.len() - 1].0);
    svg.text("small", left, height - 6.0, &format!("step {}", figure(first as f64)));
    svg.text("small end", width - right, height - 6.0, &format!("step {}", figure(last as f64)));
    svg.text("small end", left - 6.0, base + 20.0, "none");
    chart.pictures = vec![svg];
    chart
}
