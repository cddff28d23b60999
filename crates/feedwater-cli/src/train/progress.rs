//! What does somebody see who waits for a run? A line that moves on a terminal, and a line for each evaluation anywhere.

use std::{
    collections::VecDeque,
    io::IsTerminal,
    time::{Duration, Instant},
};

use feedwater_train::trainer::{Event, Score, Took, Wrong};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shows what a run does.
pub(crate) struct Progress {
    bar: ProgressBar,
    terminal: bool,
    began: Instant,
    recent: VecDeque<Took>,
    told: Instant,
}

const RECENT: usize = 40;

impl Progress {
    /// Of a run with so many steps.
    pub(crate) fn new(steps: u64) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(steps), target);
        if let Ok(style) = ProgressStyle::with_template("{bar:16} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        let (began, told) = (Instant::now(), Instant::now());
        Self { bar, terminal, began, recent: VecDeque::new(), told }
    }

    fn line(&self, text: &str) {
        if self.terminal {
            self.bar.println(text);
        } else {
            eprintln!("{text}");
        }
    }

    pub(crate) fn tell(&mut self, event: &Event<'_>) {
        match event {
            Event::Resumed(path, step) => {
                self.bar.set_position(*step);
                self.line(&format!("resumed   after step {step}, from {}", path.display()));
            }
            Event::Step(took) => self.step(*took),
            Event::Evaluated(score, better) => {
                let star = if *better { ", the best so far" } else { "" };
                let wrong = wrong_in_words(score);
                self.line(&format!("step {:<6} held out: loss {:.3}{wrong}{star}", score.step, score.loss));
            }
            Event::Saved(_) => {}
            Event::Warning(text) => self.line(&format!("warning: {text}")),
        }
    }

    fn step(&mut self, took: Took) {
        self.recent.push_back(took);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        self.bar.set_position(took.step);
        let message = self.message(took);
        if self.terminal {
            self.bar.set_message(message);
        } else if self.told.elapsed() > Duration::from_secs(10) {
            self.told = Instant::now();
            eprintln!("step {:<6} {message}", took.step);
        }
    }

    fn message(&self, took: Took) -> String {
        let nanos: u64 = self.recent.iter().map(|took| took.nanos).sum();
        let wait: u64 = self.recent.iter().map(|took| took.wait_nanos).sum();
        let rows: u64 = self.recent.iter().map(|took| took.rows).sum();
        let seconds = nanos as f64 / 1e9;
        let pace = self.recent.len() as f64 / seconds.max(1e-9);
        let loss = self.recent.iter().map(|took| took.loss).sum::<f64>() / self.recent.len() as f64;
        let left = self.bar.length().unwrap_or(0).saturating_sub(took.step) as f64 / pace.max(1e-9);
        format!(
            "loss {loss:.3}  {pace:.1} steps/s  {:.0} samples/s  busy {:.0} %  {} left",
            rows as f64 / seconds.max(1e-9),
            100.0 * (1.0 - wait as f64 / nanos.max(1) as f64),
            clock(left)
        )
    }

    /// Ends it, and gives back how long it took.
    pub(crate) fn finish(&self) -> Duration {
        self.bar.finish_and_clear();
        self.began.elapsed()
    }
}

/// What is wrong, behind a loss.
pub(crate) fn wrong_in_words(score: &Score) -> String {
    match score.wrong {
        Wrong::Texts { cer, wer } => {
            format!(", {:.1} % of letters wrong, {:.1} % of words", 100.0 * cer, 100.0 * wer)
        }
        Wrong::Classes { error } => format!(", {:.1} % wrong", 100.0 * error),
        Wrong::Nothing => String::new(),
    }
}

/// Seconds as people read them.
fn clock(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s} s"),
        (h, m, _) => format!("{h} h {m} min"),
    }
}
