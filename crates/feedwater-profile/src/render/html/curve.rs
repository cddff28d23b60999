//! How did the model learn? Its loss step by step, and how it did on what it does not learn from.

use std::fmt::Write as _;

use super::{
    chart::{Chart, HALF, Table},
    svg::{Svg, figure},
};
use crate::record::{Record, Score};

/// The curves of a run that says what its loss was; nothing of one that does not.
pub(super) fn learning(record: &Record) -> String {
    let losses: Vec<(f64, f64)> = record
        .steps
        .iter()
        .filter_map(|step| Some((step.step as f64 + 1.0, step.loss.filter(|loss| loss.is_finite())?)))
        .collect();
    if losses.len() < 2 {
        return String::new();
    }
    let tried: Vec<(f64, f64)> =
        record.scores.iter().filter_map(|score| Some((score.steps as f64, score.loss?))).collect();
    let left = loss(&losses, &tried).render();
    let right = rate(&record.scores).map(Chart::render).unwrap_or_default();
    super::pair(&left, &right)
}

fn loss(losses: &[(f64, f64)], tried: &[(f64, f64)]) -> Chart {
    let (first, last) = (losses[0].1, losses[losses.len() - 1].1);
    let title = format!("The loss went from {} to {}", figure(first), figure(last));
    let how = "the line is the loss of the training steps, a mean of neighbours where there are many; what is above the picture is \
               drawn at its edge. Dots are the loss on \
               what was held out; when they rise while the line falls, the model learns its samples by heart.";
    let mut chart = Chart::new("learning", title, how);
    chart.shows = format!("{} steps, {} evaluations", losses.len(), tried.len());
    // As many points as can be told apart.
    let together = losses.len().div_ceil(240).max(1);
    let line: Vec<(f64, f64)> = losses
        .chunks(together)
        .map(|part| {
            let sum = part.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
            (sum.0 / part.len() as f64, sum.1 / part.len() as f64)
        })
        .collect();
    chart.pictures = vec![plot("loss", &line, tried)];
    chart.legend = vec![("f-sync", "training".to_owned()), ("f-wait", "held out".to_owned())];
    chart.table = Some(Table {
        head: vec!["#steps", "#loss"],
        rows: line
            .iter()
            .step_by(line.len().div_ceil(20).max(1))
            .map(|(step, loss)| vec![figure(step.round()), figure(*loss)])
            .collect(),
    });
    chart
}

fn rate(scores: &[Score]) -> Option<Chart> {
    // Letters before words: their rate moves earlier.
    let name = ["cer", "error", "wer"]
        .into_iter()
        .find(|name| scores.iter().any(|s| s.shares.contains_key(*name)))?;
    let points: Vec<(f64, f64)> = scores
        .iter()
        .filter_map(|score| Some((score.steps as f64, 100.0 * score.shares.get(name)?)))
        .collect();
    let best = points.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let what = match name {
        "cer" => "of letters wrong",
        "wer" => "of words wrong",
        _ => "wrong",
    };
    let title = format!("At best {} % {what}, on what it never saw", figure(best.1));
    let how = "each dot is one evaluation on the samples that were held out. Lower is better.";
    let mut chart = Chart::new("errors", title, how);
    chart.shows = format!("{} evaluations, the best after {} steps", points.len(), figure(best.0));
    chart.pictures = vec![plot(&format!("% {what}"), &points, &points)];
    chart.table = Some(Table {
        head: vec!["#steps", "#%"],
        rows: points.iter().map(|(step, share)| vec![figure(*step), figure(*share)]).collect(),
    });
    Some(chart)
}

/// A line and dots over steps, from 0 up.
fn plot(unit: &str, line: &[(f64, f64)], dots: &[(f64, f64)]) -> Svg {
    let (width, height, left, right, top, bottom) = (HALF, 270.0, 48.0, 12.0, 30.0, 34.0);
    let mut svg = Svg::new(width, height);
    let base = height - bottom;
    let all = || line.iter().chain(dots);
    // The first steps of a run are often far above all others, which would be a line at the bottom.
    let skipped = line.len() / 20;
    let most =
        line.iter().skip(skipped).chain(dots).map(|point| point.1).fold(0.0, f64::max).max(1e-9) * 1.05;
    let from = all().map(|point| point.0).fold(f64::INFINITY, f64::min).floor();
    let to = all().map(|point| point.0).fold(0.0, f64::max).max(from + 1.0);
    let x = |step: f64| left + (width - left - right) * (step - from) / (to - from);
    let y = |value: f64| base - (base - top) * value.clamp(0.0, most) / most;
    svg.scale(left, width - right, most, y);
    svg.text("small", 0.0, 14.0, unit);
    let mut path = String::new();
    for (step, value) in line {
        let command = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{command}{:.1} {:.1}", x(*step), y(*value));
    }
    svg.path("learned", &path);
    for (step, value) in dots.iter().step_by(dots.len().div_ceil(200).max(1)) {
        svg.circle("f-wait", x(*step), y(*value), 3.0);
    }
    svg.text("small", left, height - 8.0, &format!("step {}", figure(from)));
    svg.text("small end", width - right, height - 8.0, &format!("step {}", figure(to)));
    svg
}
