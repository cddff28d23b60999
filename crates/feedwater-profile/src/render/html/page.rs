//! The words of the page: the verdict, what to change, what was found, and how all this is known.

use std::fmt::Write as _;

use super::{
    cost,
    svg::{escaped, figure, shown},
    time,
};
use crate::{
    diagnosis::{Boundness, Confidence, Diagnosis, Facts, Finding, Kind, Target},
    render::{ranked, text},
    rules::millis,
    what_if::Prediction,
};

/// Fixes that are shown.
const MOST_FIXES: usize = 8;

/// Name of the run, when, and where to go on the page.
pub(super) fn top(d: &Diagnosis, name: &str) -> String {
    let when =
        date(d.run.started_unix_seconds).map(|date| format!("<span>{date}</span>")).unwrap_or_default();
    format!(
        r##"<header class="top"><b>feedwater report</b><span>{}</span>{when}<nav aria-label="On this page"><a href="#fixes">Fixes</a><a href="#waterfall">Idle time</a><a href="#timeline">Steps</a><a href="#threads">What if</a><a href="#findings">Findings</a><a href="#method">Method</a></nav></header>"##,
        shown(name, 60)
    )
}

/// What the run suffers from, in figures.
pub(super) fn verdict(d: &Diagnosis, fine: bool) -> String {
    let class = if fine { "card verdict fine" } else { "card verdict" };
    let mut out = format!(
        r#"<section class="{class}" id="verdict"><span class="kicker">Verdict</span><h1>{}</h1>"#,
        shown(&capital(&d.headline), 160)
    );
    out += r#"<div class="chips">"#;
    if d.busy_percent.is_some() {
        let (class, sign) = match d.target {
            Target::BelowMinimum => ("bad", "✕"),
            Target::Minimum => ("", "△"),
            Target::Good | Target::Excellent => ("good", "✓"),
        };
        let _ =
            write!(out, r#"<span class="chip {class}">{sign} target: <b>{}</b></span>"#, d.target.words());
    }
    let _ = write!(
        out,
        r#"<span class="chip">confidence: <b>{}</b> ({} steps)</span>"#,
        sure(d.confidence),
        figure(d.steps as f64)
    );
    for device in d.run.devices.iter().filter(|device| device.simulated).take(1) {
        let _ = write!(
            out,
            r#"<span class="chip">the accelerator is pretended: {}</span>"#,
            shown(&device.name, 80)
        );
    }
    if !d.damage.is_empty() {
        out += r##"<span class="chip bad">! <b>the record is damaged</b>, see <a href="#method">method</a></span>"##;
    }
    out += "</div>";
    let _ = write!(out, r#"<p class="lead">{}</p>"#, escaped(&in_a_sentence(d)));
    out += &tiles(d);
    let fixes = ranked(d).len().min(4);
    let _ = write!(
        out,
        r#"<div class="do"><p><b>What to do:</b> {}.</p></div></section>"#,
        shown(&text::decision_words(d, fixes).replace("FIX ", "fix "), 300)
    );
    out
}

/// The verdict for somebody who has never seen one.
fn in_a_sentence(d: &Diagnosis) -> String {
    let wall = millis(d.mean.wall_nanos);
    let idle = d.idle_nanos.iter().map(|(_, nanos)| nanos).sum::<f64>().max(0.0);
    let first = if d.busy_percent.is_some() {
        format!(
            "A training step takes {wall} ms on average. The accelerator works for {} ms of it and stands still for {} ms.",
            millis(d.mean.busy_nanos),
            millis(idle)
        )
    } else {
        format!("There was no accelerator: a batch comes every {wall} ms, as fast as the input goes.")
    };
    let second = match &d.bound {
        Boundness::Input(_) => {
            let parts = cost::idle(d);
            let part = parts
                .iter()
                .find(|(part, _)| cost::is_input(part))
                .filter(|(part, _)| part != cost::NO_STAGE);
            part.map_or_else(
                || {
                    " It waits for its input, and the record does not say which part of it is slow."
                        .to_owned()
                },
                |(part, nanos)| {
                    format!(
                        " Most of that is waiting for input: {} ms go to {}.",
                        millis(*nanos),
                        super::svg::short(part, 60)
                    )
                },
            )
        }
        Boundness::Copy => {
            " Batches are ready in time, and copying them to the device holds it up.".to_owned()
        }
        Boundness::Sync => " It waits for other devices more than for anything else.".to_owned(),
        Boundness::Unknown => " What it waits for is not in the record.".to_owned(),
        Boundness::Compute if d.busy_percent.is_some() => {
            " Batches are there when they are asked for: a faster input would change nothing.".to_owned()
        }
        Boundness::Compute => String::new(),
    };
    format!("{first}{second}")
}

fn tiles(d: &Diagnosis) -> String {
    let tile = |name: &str, big: String, unit: &str, sub: String, bar: Option<f64>| {
        let bar = bar
            .map(|percent| {
                format!(
                    r#"<span class="bar" aria-hidden="true"><i style="width:{:.1}%"></i></span>"#,
                    percent.clamp(0.0, 100.0)
                )
            })
            .unwrap_or_default();
        format!(
            r#"<div class="tile"><span class="kicker">{name}</span><span class="big">{big} <small>{unit}</small></span>{bar}<span class="sub">{}</span></div>"#,
            escaped(&sub)
        )
    };
    let mut out = r#"<div class="tiles">"#.to_owned();
    if let Some(busy) = d.busy_percent {
        let sub = "of the time the accelerator works; 70 is the minimum, 90 is excellent".to_owned();
        out += &tile("Busy", format!("{busy:.0}"), "%", sub, Some(busy));
    }
    let samples = if d.samples_per_second > 0.0 {
        format!("{} samples/s", figure(d.samples_per_second))
    } else {
        String::new()
    };
    let (sub, bar) = match d.ceiling_steps_per_second {
        Some((ceiling, spread)) => (
            format!(
                "{samples}{}the accelerator alone: {ceiling:.1} ± {spread:.1} steps/s",
                if samples.is_empty() { "" } else { "; " }
            ),
            Some(100.0 * d.steps_per_second / ceiling),
        ),
        None => (samples, None),
    };
    out += &tile("Pace", format!("{:.1}", d.steps_per_second), "steps/s", sub, bar);
    let idle: f64 = d.idle_nanos.iter().map(|(_, nanos)| nanos).sum();
    let parts: Vec<String> = cost::idle(d)
        .iter()
        .filter(|(_, nanos)| *nanos >= 0.01 * idle)
        .take(4)
        .map(|(part, nanos)| format!("{} {}", super::svg::short(part, 24), millis(*nanos)))
        .collect();
    let name = if d.busy_percent.is_some() { "Idle a step" } else { "Waiting a step" };
    out += &tile(name, millis(idle), "ms", parts.join(" · "), None);
    let mut sub = format!(
        "half of the steps take up to {} ms, one in 100 over {} ms; without outliers {:.0} %",
        millis(d.p50_nanos as f64),
        millis(d.p99_nanos as f64),
        d.robust_variation_percent
    );
    if let Some(worst) = d.worst.as_ref().filter(|worst| worst.wait_nanos as f64 > 0.5 * d.p50_nanos as f64) {
        let _ = write!(sub, "; worst: step {} waited {} ms", worst.step, millis(worst.wait_nanos as f64));
    }
    out += &tile("Variation", format!("{:.0}", d.variation_percent), "%", sub, None);
    out + "</div>"
}

/// What to change, the best first.
pub(super) fn fixes(d: &Diagnosis) -> String {
    let changes = ranked(d);
    let mut out =
        r#"<section class="card long" id="fixes"><h2>What to change, the best first</h2>"#.to_owned();
    if changes.is_empty() {
        out += if matches!(d.bound, Boundness::Compute) {
            r#"<p class="how">Nothing: the input keeps up, and a faster one would change nothing.</p>"#
        } else {
            r#"<p class="how">The record does not say enough to name a change. What was found, below, says what to record.</p>"#
        };
    } else {
        out += r#"<p class="how"><b>How to read:</b> a click on a setting selects it, to paste. Predictions are of the recorded run, played again with the change; in brackets is the range in which the truth should lie.</p><ol class="fixes">"#;
        for (number, (finding, change)) in changes.iter().take(MOST_FIXES).enumerate() {
            let _ = write!(
                out,
                r#"<li class="fix"><span class="num">{}</span><div><h3>{}</h3><span class="sub how">because of: {}</span><pre class="paste">{}</pre></div>{}</li>"#,
                number + 1,
                shown(&capital(&change.what), 160),
                shown(&finding.title, 120),
                shown(&change.setting, 400),
                gain(d, change.predicted)
            );
        }
        out += "</ol>";
    }
    if let Some(first) = d.findings.first().filter(|first| !first.no_help.is_empty()) {
        let _ = write!(
            out,
            r#"<p class="how"><b>Will not help:</b> {}.</p>"#,
            escaped(&first.no_help.join(", "))
        );
    }
    out + "</section>"
}

fn gain(d: &Diagnosis, predicted: Option<Prediction>) -> String {
    let Some(p) = predicted else {
        return r#"<div class="gain"><span class="sub">What it brings cannot be told from this record.</span></div>"#.to_owned();
    };
    let faster = d.mean.wall_nanos / (d.mean.wall_nanos - p.saves_nanos).max(1.0);
    let full =
        d.ceiling_steps_per_second.map_or(p.high, |(rate, _)| rate.max(p.high)).max(d.steps_per_second);
    let width = |rate: f64| (100.0 * rate / full).clamp(0.0, 100.0);
    let saves = match faster {
        1.2.. => format!("{faster:.1}× as fast; a step is {} ms shorter", millis(p.saves_nanos)),
        1.02.. => {
            format!("{:.0} % faster; a step is {} ms shorter", 100.0 * (faster - 1.0), millis(p.saves_nanos))
        }
        _ => "Hardly faster than now".to_owned(),
    };
    format!(
        r#"<div class="gain"><span class="big">{:.1} steps/s</span><span class="bar" aria-hidden="true"><i style="width:{:.1}%"></i><i class="now" style="width:{:.1}%"></i></span><span class="sub">[{:.1}–{:.1}], now {:.1}. {saves}.</span></div>"#,
        p.steps_per_second,
        width(p.steps_per_second),
        width(d.steps_per_second),
        p.low,
        p.high,
        d.steps_per_second
    )
}

/// What was found, with the reasons for it.
pub(super) fn findings(d: &Diagnosis) -> String {
    let mut out = r#"<section class="card long" id="findings"><h2>What was found, and how to make sure</h2><p class="how"><b>How to read:</b> causes first, the dearest first; then circumstances that make them better or worse. The price is the time a step for which the accelerator stands still because of it.</p>"#.to_owned();
    if d.findings.is_empty() {
        out += "<p>Nothing.</p>";
    }
    out += r#"<ol class="found">"#;
    for finding in &d.findings {
        out += &self::finding(finding);
    }
    out + "</ol></section>"
}

fn finding(finding: &Finding) -> String {
    let kind = match finding.kind {
        Kind::Cause => "cause",
        Kind::Circumstance => "circumstance",
    };
    let price = if finding.idle_nanos > 0.0 {
        format!("{} ms a step, {} of this run · ", millis(finding.idle_nanos), minutes(finding.run_minutes))
    } else {
        String::new()
    };
    let mut out = format!(
        r#"<li><div class="head"><h3>{}</h3><span>{kind} · {price}confidence {} · <code>{}</code></span></div><dl>"#,
        shown(&capital(&finding.title), 120),
        sure(finding.confidence),
        escaped(finding.id)
    );
    let list = |lines: Vec<String>| each(&lines, |line| format!("<li>{line}</li>"));
    if !finding.evidence.is_empty() {
        let lines = finding.evidence.iter().take(12).map(|line| shown(line, 300)).collect();
        let _ = write!(out, "<dt>Evidence</dt><dd><ul>{}</ul></dd>", list(lines));
    }
    if !finding.confirm.is_empty() {
        let _ = write!(out, "<dt>To make sure</dt><dd>{}</dd>", code(&shown(&finding.confirm, 300)));
    }
    if !finding.changes.is_empty() {
        let line = |change: &crate::Change| {
            format!("{}: <code>{}</code>", shown(&change.what, 160), shown(&change.setting, 400))
        };
        let _ = write!(
            out,
            "<dt>What to change</dt><dd><ul>{}</ul></dd>",
            list(finding.changes.iter().map(line).collect())
        );
    }
    if !finding.no_help.is_empty() {
        let _ = write!(out, "<dt>Will not help</dt><dd>{}</dd>", escaped(&finding.no_help.join(", ")));
    }
    out + "</dl></li>"
}

/// The machine and the settings.
pub(super) fn environment(d: &Diagnosis) -> String {
    let (host, settings) = (&d.run.host, &d.run.settings);
    let count = |value: Option<f64>| value.map(figure);
    let bytes =
        |value: Option<u64>| value.map(|bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)));
    let yes = |value: Option<bool>| value.map(|value| if value { "yes" } else { "no" }.to_owned());
    let text = |value: &str| (!value.is_empty()).then(|| value.to_owned());
    let mut rows: Vec<(&str, Option<String>)> = vec![
        ("Run", text(&d.run.name)),
        ("Begun", date(d.run.started_unix_seconds)),
        ("Written by", text(&d.run.writer)),
        ("System", text(&host.os)),
        ("Processor", text(&host.cpu)),
        ("Cores", count(host.cores)),
        ("Cores that may be used", count(host.usable_cores)),
        ("Quota of the container, cores", count(host.quota_cores)),
        ("Memory", bytes(host.memory_bytes)),
        ("Data lies on", host.disk.clone()),
    ];
    for device in d.run.devices.iter().take(8) {
        let mut says = device.name.clone();
        for more in [
            bytes(device.memory_bytes),
            device.role.clone(),
            device.simulated.then(|| "pretended".to_owned()),
        ]
        .into_iter()
        .flatten()
        {
            let _ = write!(says, ", {more}");
        }
        rows.push(("Accelerator", Some(says)));
    }
    rows.extend([
        ("Loader", text(&settings.loader)),
        ("Task", settings.task.clone()),
        ("Data", settings.data.clone()),
        ("Threads", settings.threads.map(|threads| threads.to_string())),
        ("Each makes a whole batch", yes(Some(settings.batch_at_a_time))),
        ("Batches made ahead", settings.prefetch.map(|prefetch| prefetch.to_string())),
        ("Samples a batch", settings.batch_size.map(|size| size.to_string())),
        ("Numbers", settings.dtype.clone()),
        ("Padding", settings.padding.clone()),
        ("Pinned memory", yes(settings.pinned)),
        ("Long clips are cut", yes(settings.chunked)),
        ("Longest clip", settings.longest_seconds.map(|seconds| format!("{} s", figure(seconds)))),
        ("Steps planned", d.run.planned_steps.map(|steps| figure(steps as f64))),
    ]);
    let missing: Vec<&str> =
        rows.iter().filter(|(_, value)| value.is_none()).map(|(name, _)| *name).collect();
    let missing = if missing.is_empty() {
        String::new()
    } else {
        format!(
            r#"<p class="how" style="margin-top:12px"><b>Not recorded:</b> {}.</p>"#,
            missing.join(", ").to_lowercase()
        )
    };
    let known = rows.iter().filter_map(|(name, value)| value.as_ref().map(|value| (name, shown(value, 160))));
    let rows =
        each(known, |(name, value)| format!(r#"<tr><th scope="row">{name}</th><td>{value}</td></tr>"#));
    let tuning = if d.tuned.is_empty() {
        String::new()
    } else {
        let said = each(&d.tuned, |said| format!("<li>{}</li>", shown(said, 400)));
        format!(
            r#"<p class="how" style="margin-top:12px"><b>Changed while it ran</b>, after so many steps of the loader; what is said here is of the threads and batches ahead above:</p><ul class="how">{said}</ul>"#
        )
    };
    format!(
        r#"<section class="card" id="environment"><h2>Where and how it ran</h2><table class="facts"><tbody>{rows}</tbody></table>{missing}{tuning}</section>"#
    )
}

/// Steps that do not count.
pub(super) fn left_out(facts: &Facts<'_>) -> String {
    let all = facts.record.steps.len();
    let out = facts.steps.apart.len();
    let wall = |places: &mut dyn Iterator<Item = usize>| {
        places.map(|at| facts.record.steps[at].wall_nanos as f64).sum::<f64>()
    };
    let apart = wall(&mut facts.steps.apart.iter().map(|(at, _)| *at));
    let total = wall(&mut (0..all)).max(1.0);
    format!(
        r#"<section class="card" id="left-out"><h2>What was left out</h2><p class="how">{} of {} steps, {:.1} % of the time, are not like the others: the first of a run fill queues and compile, a step with a checkpoint says nothing about the input, and steps with settings that were only tried say nothing of the others. They are in no mean and in no chart but the letters of the timeline.</p>{}<h2 style="margin-top:22px">Targets</h2><p class="how">What a run is held against. Variation is over the steps that count.</p>{}</section>"#,
        figure(out as f64),
        figure(all as f64),
        100.0 * apart / total,
        time::left_out(facts).render(),
        targets().render(),
    )
}

fn targets() -> super::chart::Table {
    let row = |(name, target): (&str, Target)| {
        let (data, model, most) = target.needs().unwrap_or_default();
        vec![name.to_owned(), format!("{model:.0} %"), format!("{most:.0} %"), format!("{data:.0} %")]
    };
    super::chart::Table {
        head: vec!["target", "#busy ≥", "#variation ≤", "#data device ≥"],
        rows: [("minimum", Target::Minimum), ("good", Target::Good), ("excellent", Target::Excellent)]
            .map(row)
            .to_vec(),
    }
}

/// How all this is known.
pub(super) fn method(d: &Diagnosis, facts: &Facts<'_>, shortened: bool) -> String {
    let mut lines: Vec<String> = Vec::new();
    let clock = match d.run.clock.as_str() {
        "" => "The record does not say how steps were timed; the host's clock is assumed.".to_owned(),
        "host" => "Steps were timed with the host's clock. Where work on the device runs beside the host, its share is only \
                   as good as the places at which the loop waits for it."
            .to_owned(),
        "host+events" => "Steps were timed with the host's clock, and work on the device with the device's own events.".to_owned(),
        other => format!("Steps were timed by: {}.", super::svg::short(other, 80)),
    };
    lines.push(clock);
    lines.push(match d.overhead_percent {
        Some(overhead) => format!("Measuring and recording took {overhead:.2} % of the run."),
        None => "What measuring took is not in the record: it ends with the run, and this one may have been cut off.".to_owned(),
    });
    lines.push(format!(
        "{:.1} % of a step's time is accounted for; the rest is shown as “unknown” and not shared out.",
        d.coverage_percent.clamp(0.0, 100.0)
    ));
    if facts.split.crew.is_some() {
        lines.push(format!(
            "The wait is shared out by playing the recorded run again without one part of the work after the other. \
             Played as it was, a step waits {} ms; measured were {} ms.",
            millis(facts.split.played_nanos),
            millis(d.mean.wait_nanos)
        ));
        lines.push(
            "Predictions are the same playing with another setting. Their range grows with how far the playing is off for \
             what is known, and nothing is predicted beyond the accelerator's own pace."
                .to_owned(),
        );
    } else {
        lines.push(
            "How batches were made is not in the record, so the wait cannot be shared out by stage, and no setting can be \
             predicted."
                .to_owned(),
        );
    }
    if shortened {
        lines.push(format!(
            "The two curves are played from the last {} steps.",
            figure(super::PLAYED_STEPS as f64)
        ));
    }
    lines.push(
        "A run is called input-bound where it waits for its input for 5 % of the time or more. Fewer than 20 steps that \
         count get no verdict."
            .to_owned(),
    );
    let mut items = each(&lines, |line| format!("<li>{}</li>", escaped(line)));
    for damage in &d.damage {
        let _ = write!(items, "<li><b>Damaged:</b> {}</li>", shown(damage, 200));
    }
    format!(
        r#"<section class="card" id="method"><h2>How this was measured</h2><ul class="plain">{items}</ul></section>"#
    )
}

/// The words of the page.
pub(super) fn words() -> String {
    const WORDS: [(&str, &str); 6] = [
        ("Step", "one turn of the training loop: from asking for a batch to asking for the next."),
        ("Busy", "the share of the time in which the accelerator computes. It is what a GPU is paid for."),
        ("Idle", "the rest: waiting for input, for a copy, for other devices, or for something unknown."),
        ("Ceiling", "the pace of the accelerator alone, if every batch were there at once."),
        ("Variation", "how much steps differ: the standard deviation of their time over its mean."),
        (
            "p50, p99",
            "half of the steps take no longer than p50, and all but one in a hundred no longer than p99.",
        ),
    ];
    let items = each(WORDS, |(word, says)| format!("<dt>{word}</dt><dd>{}</dd>", escaped(says)));
    format!(r#"<section class="card"><h2>Words</h2><dl>{items}</dl></section>"#)
}

/// The verdict as the command prints it.
pub(super) fn as_text(d: &Diagnosis) -> String {
    let text = text::render(d, text::Colour::None);
    format!(
        r#"<section class="card"><h2>The verdict as text</h2><p class="how">To paste into an issue or a mail.</p><pre class="paste">{}</pre></section>"#,
        shown(text.trim_end(), 12_000)
    )
}

pub(super) fn foot(d: &Diagnosis) -> String {
    let writer = if d.run.writer.is_empty() {
        String::new()
    } else {
        format!(" from a record by {}", shown(&d.run.writer, 60))
    };
    format!(
        "<footer>Made by feedwater {}{writer}. This file is complete: it has no script and asks for nothing from the network.</footer>",
        env!("CARGO_PKG_VERSION")
    )
}

/// A piece of the page for each.
fn each<T>(items: impl IntoIterator<Item = T>, piece: impl Fn(T) -> String) -> String {
    items.into_iter().map(piece).collect::<Vec<_>>().concat()
}

fn sure(confidence: Confidence) -> &'static str {
    match confidence {
        Confidence::High => "high",
        Confidence::Medium => "medium",
        Confidence::Low => "low",
    }
}

/// What stands between backticks, as code. The text is escaped already.
fn code(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    if parts.len().is_multiple_of(2) {
        return text.to_owned();
    }
    let parts = parts.iter().enumerate();
    parts
        .map(|(at, part)| if at % 2 == 1 { format!("<code>{part}</code>") } else { (*part).to_owned() })
        .collect()
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn minutes(minutes: f64) -> String {
    match minutes {
        ..1.0 => format!("{:.0} s", minutes * 60.0),
        ..90.0 => format!("{minutes:.0} min"),
        _ => format!("{:.1} h", minutes / 60.0),
    }
}

/// The moment, in the time of Greenwich; nothing where it is not known, or beyond what can be meant.
fn date(unix_seconds: u64) -> Option<String> {
    if unix_seconds == 0 || unix_seconds > 253_402_300_799 {
        return None;
    }
    let (days, seconds) = (unix_seconds / 86_400, unix_seconds % 86_400);
    // Years that begin in March, so that the odd day is the last.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    Some(format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", seconds / 3_600, seconds % 3_600 / 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(951_782_400).unwrap(), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_760_000_000).unwrap(), "2025-10-09 08:53 UTC");
        assert_eq!(date(1_735_689_599).unwrap(), "2024-12-31 23:59 UTC");
        assert_eq!((date(0), date(u64::MAX)), (None, None));
    }
}
