//! How is a diagnosis shown? One [`Diagnosis`](crate::Diagnosis), several renderers; JSON is the diagnosis itself.

pub mod html;
pub mod text;
pub mod trace;

use crate::{
    diagnosis::{Change, Diagnosis, Finding},
    what_if::Prediction,
};

/// The changes of all findings, each once; what saves the most first.
pub(crate) fn ranked(diagnosis: &Diagnosis) -> Vec<(&Finding, &Change)> {
    let mut seen: Vec<&str> = Vec::new();
    let mut changes: Vec<_> = diagnosis
        .findings
        .iter()
        .flat_map(|finding| finding.changes.iter().map(move |change| (finding, change)))
        .filter(|(_, change)| {
            let new = !seen.contains(&change.setting.as_str());
            seen.push(&change.setting);
            new
        })
        .collect();
    let saves = |predicted: Option<Prediction>| predicted.map_or(0.0, |predicted| predicted.saves_nanos);
    changes.sort_by(|a, b| saves(b.1.predicted).total_cmp(&saves(a.1.predicted)));
    changes
}

/// Text that moves no cursor, whatever a record says: a sample may be called by an escape sequence.
pub(crate) fn plain(text: &str) -> String {
    let odd = |letter: char| {
        letter.is_control() || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|letter| if odd(letter) { '\u{fffd}' } else { letter }).collect()
}

/// Breaks at spaces. What has no space is left whole.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(' ') {
        let line = lines.last().map_or(0, |line| line.chars().count());
        if line > 0 && line + word.trim_end().chars().count() > width {
            lines.push(String::new());
        }
        if let Some(last) = lines.last_mut() {
            last.push_str(word);
        }
    }
    lines
}
