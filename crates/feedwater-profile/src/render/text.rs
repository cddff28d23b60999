//! The verdict on one screen of 80 columns.

use std::fmt::Write as _;

use super::{plain, ranked, wrapped};
use crate::{
    diagnosis::{Boundness, Change, Confidence, Diagnosis, Finding},
    rules::millis,
    steps::OTHER_SETTINGS,
    worth::Decision,
};

/// How wide a line may be.
const WIDTH: usize = 80;
/// Where the text of a line begins.
const INDENT: usize = 11;

/// Whether there is colour. It never carries meaning of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    /// For a terminal.
    Ansi,
    /// For a pipe.
    None,
}

/// The verdict.
pub fn render(diagnosis: &Diagnosis, colour: Colour) -> String {
    let mut out = Screen { text: String::new(), colour };
    verdict(diagnosis, &mut out);
    let fixes = fixes(diagnosis, &mut out);
    decision(diagnosis, fixes, &mut out);
    foot(diagnosis, &mut out);
    out.text
}

fn verdict(d: &Diagnosis, out: &mut Screen) {
    let sure = match d.confidence {
        Confidence::High => "high",
        Confidence::Medium => "medium",
        Confidence::Low => "low",
    };
    let target = d.busy_percent.map(|_| format!(" · {}", d.target.words())).unwrap_or_default();
    out.line("VERDICT", &format!("{}{target} · confidence {sure} ({} steps)", d.headline, d.steps));
    // A loop that does not say how many samples a step has is not one of none.
    let samples = (d.samples_per_second > 0.0).then(|| format!(", {:.0} samples/s", d.samples_per_second));
    let pace = format!("{:.1} steps/s{}", d.steps_per_second, samples.unwrap_or_default());
    match (d.busy_percent, d.ceiling_steps_per_second) {
        (Some(busy), Some((ceiling, spread))) => {
            out.line("busy", &format!("{busy:.0} %   {pace}; ceiling {ceiling:.1} ± {spread:.1} steps/s"));
        }
        _ => out.line("pace", &format!("{pace} (no accelerator: as fast as the input goes)")),
    }
    let idle: f64 = d.idle_nanos.iter().map(|(_, nanos)| nanos).sum();
    let parts: Vec<String> = d
        .idle_nanos
        .iter()
        .filter(|(_, nanos)| *nanos >= 0.005 * d.mean.wall_nanos.min(idle * 4.0))
        .map(|(part, nanos)| format!("{part} {}", millis(*nanos)))
        .collect();
    let label = if d.busy_percent.is_some() { "idle/step" } else { "wait/step" };
    out.line(label, &format!("{} ms   {}", millis(idle), parts.join(" · ")));
    let mut spread = format!(
        "{:.0} % (robust {:.0} %)   p50 {} ms, p99 {} ms",
        d.variation_percent,
        d.robust_variation_percent,
        millis(d.p50_nanos as f64),
        millis(d.p99_nanos as f64),
    );
    if let Some(worst) = &d.worst {
        let _ = write!(spread, "; worst: step {} waited {} ms", worst.step, millis(worst.wait_nanos as f64));
        if let (Some(key), Some(stage)) = (&worst.key, &worst.stage)
            && !key.is_empty()
        {
            let _ = write!(spread, " for {key} ({stage})");
        }
    }
    out.line("variation", &spread);
    if let Some(first) = d.findings.first() {
        for evidence in first.evidence.iter().take(2) {
            out.line("why", evidence);
        }
    }
}

/// The changes that can be felt; the others are in the full report. Returns how many.
fn fixes(d: &Diagnosis, out: &mut Screen) -> usize {
    let felt = |(finding, change): &(&Finding, &Change)| {
        let dearest =
            d.findings.first().is_some_and(|first| first.id == finding.id && first.idle_nanos > 0.0);
        change.predicted.map_or(dearest, |p| p.saves_nanos > 0.02 * d.mean.wall_nanos)
    };
    let changes: Vec<_> = ranked(d).into_iter().filter(felt).collect();
    let shown = changes.len().min(4);
    for (number, (_, change)) in changes.into_iter().take(shown).enumerate() {
        let brings = change
            .predicted
            .map(|p| format!("   → {:.1} steps/s [{:.1}–{:.1}]", p.steps_per_second, p.low, p.high));
        out.line(&format!("FIX {}", number + 1), &format!("{}{}", change.what, brings.unwrap_or_default()));
        if change.setting.trim_start_matches('-') != change.what {
            out.line("", &change.setting);
        }
    }
    if let Some(first) = d.findings.first()
        && !first.no_help.is_empty()
    {
        out.line("no help", &first.no_help.join(", "));
    }
    shown
}

fn decision(d: &Diagnosis, fixes: usize, out: &mut Screen) {
    out.line("DECISION", &decision_words(d, fixes));
}

/// What to do, where so many fixes are shown.
pub(crate) fn decision_words(d: &Diagnosis, fixes: usize) -> String {
    match d.decision {
        Decision::NothingToFix if fixes == 0 && d.bound != Boundness::Compute => {
            "the record does not say enough to name a fix".to_owned()
        }
        Decision::NothingToFix if fixes == 0 => "nothing to fix in the input".to_owned(),
        Decision::NothingToFix => "nothing here makes this run noticeably faster".to_owned(),
        Decision::LetItFinish { left_minutes, saves_minutes, costs_minutes } => format!(
            "let it finish: {} remain, FIX 1 would save {}, a restart costs {}; use it next time",
            minutes(left_minutes),
            minutes(saves_minutes),
            minutes(costs_minutes)
        ),
        Decision::Restart { left_minutes, saves_minutes } => format!(
            "restart with FIX 1: {} remain at this pace, it saves {} after the restart",
            minutes(left_minutes),
            minutes(saves_minutes)
        ),
        Decision::PerHour { saves_minutes_per_hour } => {
            format!("FIX 1 saves {saves_minutes_per_hour:.0} minutes of every hour")
        }
    }
}

fn foot(d: &Diagnosis, out: &mut Screen) {
    let overhead =
        d.overhead_percent.map_or_else(|| "overhead unknown".to_owned(), |o| format!("overhead {o:.2} %"));
    let clock = if d.run.clock.is_empty() { "host" } else { &d.run.clock };
    out.line(
        "",
        &format!("{overhead} · clock: {clock} · {:.0} % of the time accounted for", d.coverage_percent),
    );
    if let Some(device) = d.run.devices.iter().find(|device| device.simulated) {
        out.line("", &format!("the accelerator is pretended: {}", device.name));
    }
    settings(d, out);
    for damage in &d.damage {
        out.line("damaged", damage);
    }
}

/// With which threads and batches ahead, where not all steps had the same.
fn settings(d: &Diagnosis, out: &mut Screen) {
    let apart = d.apart.iter().filter(|apart| apart.why == OTHER_SETTINGS).count();
    let of = match (d.run.settings.threads, d.run.settings.prefetch) {
        (Some(threads), Some(prefetch)) => format!("threads {threads}, prefetch {prefetch}"),
        _ => "of several settings".to_owned(),
    };
    let some = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut said = Vec::new();
    if !d.tuned.is_empty() {
        said.push(format!("{} while it ran", some(d.tuned.len(), "change")));
    }
    if apart > 0 {
        said.push(format!("{} with other settings left out", some(apart, "step")));
    }
    if !said.is_empty() {
        out.line("settings", &format!("{}; these figures: {of}", said.join(", ")));
    }
}

/// Minutes, in the unit that suits.
fn minutes(minutes: f64) -> String {
    match minutes {
        ..1.0 => format!("{:.0} s", minutes * 60.0),
        ..90.0 => format!("{minutes:.0} min"),
        _ => format!("{:.1} h", minutes / 60.0),
    }
}

/// A line as the verdict has them, for what stands around it.
pub fn line(label: &str, text: &str, colour: Colour) -> String {
    let mut screen = Screen { text: String::new(), colour };
    screen.line(label, text);
    screen.text
}

struct Screen {
    text: String,
    colour: Colour,
}

impl Screen {
    /// A line with its label, wrapped where it is too long.
    fn line(&mut self, label: &str, text: &str) {
        let mut label = match self.colour {
            Colour::Ansi if !label.is_empty() => format!("\x1b[1m{label:<INDENT$}\x1b[0m"),
            _ => format!("{label:<INDENT$}"),
        };
        for line in wrapped(&plain(text), WIDTH - INDENT) {
            let _ = writeln!(self.text, "{}", format!("{label}{line}").trim_end());
            label = " ".repeat(INDENT);
        }
    }
}
