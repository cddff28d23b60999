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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Check;

    #[test]
    fn checks_are_lines_and_hints_are_below() {
        let checks = vec![
            Check::pass("gpu", "no NVIDIA driver: fine for the CPU"),
            Check::warn(
                "cpu-quota",
                "the container may use 1.5 cores of the 64 cores that programs see",
                "set OMP_NUM_THREADS=2 for what does not know quotas (PyTorch, NumPy); docker run --cpus gives more",
            ),
            Check::fail("disk-free", "0.1 GB of 100.0 GB are free", "make room"),
        ];
        let examination = Examination {
            version: 1,
            outcome: Outcome::Fail,
            checks,
            host: feedwater_profile::record::Host::default(),
            devices: Vec::new(),
        };
        insta::assert_snapshot!(render(&examination, 80), @r"
        pass  gpu            no NVIDIA driver: fine for the CPU
        warn  cpu-quota      the container may use 1.5 cores of the 64 cores that
                             programs see
                             hint: set OMP_NUM_THREADS=2 for what does not know quotas
                                   (PyTorch, NumPy); docker run --cpus gives more
        FAIL  disk-free      0.1 GB of 100.0 GB are free
                             hint: make room
        1 warning, 1 failure
        ");
        assert_eq!(examination.exit_code(), 2);
    }
}
