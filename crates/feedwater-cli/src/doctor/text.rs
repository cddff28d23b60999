//! How is an examination told to a person? A line a check, no colour, no wider than the terminal.

use super::{Examination, Outcome};
use crate::inspect::text::Page;

/// Writes an examination out.
pub(crate) fn render(examination: &Examination, width: usize) -> String {
    let mut page = Page { out: String::new(), width };
    for check in &examination.checks {
        let outcome = match check.outcome {
            Outcome::Pass => "pass",
            Outcome::Warn => "warn",
            Outcome::Fail => "FAIL",
        };
        page.wrapped(&format!("{outcome:<6}{:<15}", check.id), 21, &check.what);
        if let Some(hint) = &check.hint {
            page.wrapped(&" ".repeat(21), 27, &format!("hint: {hint}"));
        }
    }
    let count = |outcome| examination.checks.iter().filter(|check| check.outcome == outcome).count();
    let plural = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let verdict = match (count(Outcome::Warn), count(Outcome::Fail)) {
        (0, 0) => "nothing is wrong".to_owned(),
        (warnings, 0) => plural(warnings, "warning"),
        (0, failures) => plural(failures, "failure"),
        (warnings, failures) => format!("{}, {}", plural(warnings, "warning"), plural(failures, "failure")),
    };
    page.out.push_str(&verdict);
    page.out
}
