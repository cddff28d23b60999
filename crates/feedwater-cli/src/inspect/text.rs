//! How is a report told to a person? Plain lines with a label each, no colour, no wider than the terminal.

use std::fmt::Write as _;
use std::io::IsTerminal;

use super::lengths::{Bin, Lengths};
use super::look::Content;
use super::problems::{Problem, Severity, channels_text};
use super::report::{Counted, Report};
use super::tally::{Example, shape_text};

/// Where the text behind a label starts.
const INDENT: usize = 10;
const EXAMPLES: usize = 5;
const CLASSES: usize = 20;

/// Writes a report out.
pub(crate) fn render(report: &Report, width: usize) -> String {
    let mut page = Page { out: String::new(), width };
    page.line("dataset", &format!("{}: {}", report.title, report.path));
    page.line("samples", &samples(report));
    if let Some(text) = texts(report) {
        page.line("text", &text);
    }
    if !report.classes.is_empty() {
        page.line("classes", &classes(&report.classes));
    }
    if let Some(lengths) = &report.lengths {
        let figure = |value: f64| number(value, lengths.unit);
        let Lengths { unit, min, p50, p95, max, .. } = lengths;
        let [min, p50, p95, max] = [min, p50, p95, max].map(|value| figure(*value));
        page.line("lengths", &format!("{unit}: min {min}, p50 {p50}, p95 {p95}, max {max}"));
        page.histogram(&lengths.histogram);
    }
    page.line("problems", &verdict(report));
    for problem in &report.problems {
        page.problem(problem);
    }
    let how = match report.content {
        Some(Content::Text) => "every text read",
        _ if report.decoded => "every sample decoded",
        _ => "headers only",
    };
    page.line("took", &format!("{:.2} s, {how}", report.took.as_secs_f64()));
    // Never broken: it is there to be pasted.
    let _ = write!(page.out, "{:<INDENT$}{}", "next", report.next);
    page.out
}

fn samples(report: &Report) -> String {
    let mut text = report.samples.to_string();
    let limited = report.looked_at < report.samples;
    if let Some(hours) = report.hours {
        let about = if limited { "about " } else { "" };
        let _ = match hours {
            ..0.02 => write!(text, ", {about}{:.1} seconds of sound", hours * 3600.0),
            ..1.0 => write!(text, ", {about}{:.1} minutes of sound", hours * 60.0),
            _ => write!(text, ", {about}{hours:.1} hours of sound"),
        };
    }
    let mut facts: Vec<String> = Vec::new();
    match report.content {
        Some(Content::Sound) => {
            facts.extend(some(&report.formats, |format| (*format).to_owned()));
            facts.extend(some(&report.rates, |rate| format!("{rate} Hz")));
            facts.extend(some(&report.channels, |channels| channels_text(*channels)));
        }
        Some(Content::Arrays) => {
            facts.extend(some(&report.shapes, |shape| format!("shape {}", shape_text(shape))));
        }
        _ => {}
    }
    if !facts.is_empty() {
        let _ = write!(text, " ({})", facts.join(", "));
    }
    if limited {
        let _ = write!(text, "; what follows is said of an even sample of {} of them", report.looked_at);
    }
    text
}

/// What all have in common. Where they differ, it is told among the problems.
fn some<T>(values: &[Counted<T>], name: impl Fn(&T) -> String) -> Option<String> {
    match values {
        [one] => Some(name(&one.value)),
        _ => None,
    }
}

fn texts(report: &Report) -> Option<String> {
    if report.content == Some(Content::Text) || report.with_text == 0 {
        return None;
    }
    let times = match report.with_times {
        0 => "none with word or segment times".to_owned(),
        all if all == report.looked_at => "all with word or segment times".to_owned(),
        some => format!("{some} with word or segment times"),
    };
    let plural = if report.with_text == 1 { "" } else { "s" };
    Some(format!("{} transcript{plural}, {times}", report.with_text))
}

fn classes(classes: &[Counted<String>]) -> String {
    let named: Vec<String> =
        classes.iter().take(CLASSES).map(|class| format!("{} ({})", class.value, class.count)).collect();
    let more = match classes.len().saturating_sub(CLASSES) {
        0 => String::new(),
        more => format!(" and {more} more; --json lists them"),
    };
    format!("{}: {}{more}", classes.len(), named.join(", "))
}

fn verdict(report: &Report) -> String {
    let count = |severity| report.problems.iter().filter(|problem| problem.severity == severity).count();
    let plural = |count, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    match (count(Severity::Error), count(Severity::Note)) {
        (0, 0) if report.decoded || report.content == Some(Content::Text) => "none".to_owned(),
        (0, 0) => "none in metadata and headers; --decode looks at what is behind the headers".to_owned(),
        (0, notes) => plural(notes, "note"),
        (errors, 0) => plural(errors, "error"),
        (errors, notes) => format!("{}, {}", plural(errors, "error"), plural(notes, "note")),
    }
}

/// Lines with a label each, wrapped. Other commands print with it too.
pub(crate) struct Page {
    pub(crate) out: String,
    pub(crate) width: usize,
}

impl Page {
    pub(crate) fn line(&mut self, label: &str, text: &str) {
        let head = format!("{label:<INDENT$}");
        self.wrapped(&head, INDENT, text);
    }

    /// Words behind `head`, and below it as far to the right as `indent`.
    pub(crate) fn wrapped(&mut self, head: &str, indent: usize, text: &str) {
        let mut line = head.to_owned();
        let mut used = head.chars().count();
        let mut empty = true;
        for word in text.split_whitespace() {
            let length = word.chars().count();
            if !empty && used + 1 + length > self.width {
                let _ = writeln!(self.out, "{line}");
                line = " ".repeat(indent);
                (used, empty) = (indent, true);
            }
            if !empty {
                line.push(' ');
                used += 1;
            }
            line.push_str(word);
            used += length;
            empty = false;
        }
        let _ = writeln!(self.out, "{}", line.trim_end());
    }

    fn problem(&mut self, problem: &Problem) {
        let severity = match problem.severity {
            Severity::Error => "error",
            Severity::Note => "note",
        };
        let head = format!("  {severity:<8}");
        self.wrapped(&head, INDENT, &format!("{}: {}", problem.id.name(), problem.what));
        for example in problem.examples.iter().take(EXAMPLES) {
            self.wrapped(&" ".repeat(INDENT + 2), INDENT + 4, &example_line(example));
        }
        // Where values are mixed there is one example of each.
        let listed = problem.examples.len().min(EXAMPLES) as u64;
        let rest = if problem.id.is_mixed() { problem.examples.len() as u64 } else { problem.count } - listed;
        if listed > 0 && rest > 0 {
            self.wrapped(&" ".repeat(INDENT + 2), INDENT + 4, &format!("and {rest} more; --json lists them"));
        }
        self.wrapped(&" ".repeat(INDENT), INDENT + 6, &format!("hint: {}", problem.hint));
    }

    fn histogram(&mut self, bins: &[Bin]) {
        let step = bins.first().and_then(|bin| Some(bin.to? - bin.from)).unwrap_or(1.0);
        let decimals = if step >= 0.999 {
            0
        } else if step >= 0.0999 {
            1
        } else {
            2
        };
        let label = |bin: &Bin| match bin.to {
            Some(to) => format!("{:.decimals$} – {to:.decimals$}", bin.from),
            None => format!("≥ {:.decimals$}", bin.from),
        };
        let labels: Vec<String> = bins.iter().map(label).collect();
        let label_width = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
        let most = bins.iter().map(|bin| bin.count).max().unwrap_or(1).max(1);
        let count_width = most.to_string().len();
        let room = self.width.saturating_sub(INDENT + label_width + count_width + 4).clamp(8, 60);
        for (bin, label) in bins.iter().zip(&labels) {
            let bar = bar(bin.count as f64 / most as f64, room);
            let line = format!("{:INDENT$}{label:>label_width$}  {:>count_width$}  {bar}", "", bin.count);
            let _ = writeln!(self.out, "{}", line.trim_end());
        }
    }
}

/// A bar of eighths of a character. What is not nothing is seen.
fn bar(share: f64, room: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let least = usize::from(share > 0.0);
    let eighths = ((share * room as f64 * 8.0).round() as usize).max(least);
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// Which sample, where, and why.
fn example_line(example: &Example) -> String {
    let Example { key, file, place, reason, .. } = example;
    let name = match file {
        Some(file) if file.replace('\\', "/").ends_with(key) => file.clone(),
        Some(file) => format!("{key} in {file}"),
        None => key.clone(),
    };
    let place = place.as_ref().map(|place| format!(", {place}")).unwrap_or_default();
    format!("{name}{place}: {reason}")
}

fn number(value: f64, unit: &str) -> String {
    if unit == Content::Sound.unit() { format!("{value:.2}") } else { format!("{value:.0}") }
}

/// How wide the terminal is; 80 where there is none. `COLUMNS` counts before all else.
pub(crate) fn width() -> usize {
    const USUAL: usize = 80;
    let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let width = match told {
        Some(width) => width,
        None if std::io::stdout().is_terminal() => help_width().unwrap_or(USUAL),
        None => USUAL,
    };
    width.clamp(40, 200)
}

/// clap asks the terminal how wide it is to wrap its help, and does not tell. So this wraps something.
fn help_width() -> Option<usize> {
    let mut ruler = clap::Command::new("ruler").help_template("{about}").about("x ".repeat(200));
    ruler.render_help().to_string().lines().map(str::len).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_eighths_and_little_is_not_nothing() {
        assert_eq!([bar(0.0, 4), bar(1e-9, 4), bar(0.5, 4), bar(1.0, 4)], ["", "▏", "██", "████"]);
        assert_eq!(bar(0.40625, 4), "█▋");
    }

    #[test]
    fn lines_end_before_the_edge_and_words_stay_whole() {
        let mut page = Page { out: String::new(), width: 24 };
        page.line("label", "one two three a-word-that-is-much-too-long four");
        let expected = "label     one two three\n          a-word-that-is-much-too-long\n          four\n";
        assert_eq!(page.out, expected);
    }

    #[test]
    fn an_example_names_a_file_once() {
        let example = |key: &str, file: Option<&str>, place: Option<&str>| Example {
            key: key.to_owned(),
            file: file.map(str::to_owned),
            place: place.map(str::to_owned),
            reason: "torn".to_owned(),
            ..Example::default()
        };
        assert_eq!(
            example_line(&example("a/b.wav", Some("d/a/b.wav"), Some("byte 4"))),
            "d/a/b.wav, byte 4: torn"
        );
        assert_eq!(
            example_line(&example("b", Some("s.tar"), Some("member `b.wav`"))),
            "b in s.tar, member `b.wav`: torn"
        );
        assert_eq!(example_line(&example("t.jsonl#3", None, None)), "t.jsonl#3: torn");
    }
}
