//! What is in a text dataset?
//!
//! Documents that look like English to a tokenizer: common words, rare and made-up ones, names, figures,
//! punctuation, paragraphs, and now and then an accent, another script or an emoji. `text.jsonl` has one
//! object a line; `text.txt` has one document a line, for readers that know nothing but lines.

use serde::Serialize;
use serde_json::json;

use super::prose::Writer;
use super::random::{Purpose, Random};
use super::span::Span;
use super::{Job, Made, folder, human_bytes, parallel};

/// More than anybody reads, and less than where numbers run over.
const MOST_DOCUMENTS: usize = 1_000_000_000;

// How much. (Not a doc comment: clap would print it as the description of the command.)
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct Settings {
    /// Number of documents
    #[arg(long, default_value_t = 10_000)]
    pub(crate) documents: usize,
    /// Words of a document; short documents are more frequent than long ones
    #[arg(long, default_value = "20..400", value_name = "LO..HI")]
    pub(crate) words: Span,
    /// `text.jsonl` with {"id", "text"} a line, or `text.txt` with a document a line
    #[arg(long, value_enum, default_value_t = Format::Jsonl)]
    pub(crate) format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    Jsonl,
    Txt,
}

impl Format {
    fn file_name(self) -> &'static str {
        match self {
            Self::Jsonl => "text.jsonl",
            Self::Txt => "text.txt",
        }
    }

    fn flag(self) -> &'static str {
        match self {
            Self::Jsonl => "jsonl",
            Self::Txt => "txt",
        }
    }
}

impl Settings {
    pub(crate) fn check(&self) -> miette::Result<()> {
        if self.documents == 0 {
            return Err(miette::miette!(
                help = "for example --documents 10000",
                "there would be no documents"
            ));
        }
        if self.documents > MOST_DOCUMENTS {
            return Err(miette::miette!(
                help = "for example --documents 10000",
                "`--documents {}` is above {MOST_DOCUMENTS}",
                self.documents
            ));
        }
        self.words.within(Span { low: 1.0, high: 1_000_000.0 }, "--words")
    }

    /// About what it takes on disk.
    pub(crate) fn bytes(&self) -> u64 {
        /// A word and the space behind it.
        const WORD_BYTES: f64 = 5.8;
        let Span { low, high } = self.words;
        // The mean of a log-uniform number.
        let words = if high > low { (high - low) / (high / low).ln() } else { low };
        (self.documents as f64 * (30.0 + words * WORD_BYTES)) as u64
    }

    pub(crate) fn flags(&self) -> String {
        format!("--documents {} --words {} --format {}", self.documents, self.words, self.format.flag())
    }
}

/// Whether this generator writes files of that name.
pub(crate) fn owns(name: &str) -> bool {
    matches!(name, "text.jsonl" | "text.txt" | "README.md")
}

#[derive(Serialize)]
struct Row<'a> {
    id: &'a str,
    text: &'a str,
}

/// Document `number`, and how many words it has.
fn document(settings: &Settings, seed: u64, number: usize) -> (String, usize) {
    let mut random = Random::keyed(seed, Purpose::Document, number as u64);
    // Log-uniform: as many documents of 20 to 40 words as of 200 to 400.
    let Span { low, high } = settings.words;
    let wanted = (low * (high / low).powf(random.unit())).round().max(1.0) as usize;
    let mut writer = Writer::new(seed, random);
    let mut text = String::with_capacity(wanted * 7);
    let mut written = 0;
    while written < wanted {
        if written > 0 {
            let paragraph = settings.format == Format::Jsonl && writer.random.chance(0.12);
            text.push_str(if paragraph { "\n\n" } else { " " });
        }
        let words = writer.sentence(wanted - written);
        written += words.len();
        text.push_str(&words.join(" "));
    }
    (text, written)
}

pub(crate) fn generate(settings: &Settings, job: Job<'_>) -> miette::Result<Made> {
    job.progress.set_length(settings.documents as u64);
    let (mut bytes, mut words) = (0, 0);
    let make = |number, (): &mut ()| {
        let (text, words) = document(settings, job.seed, number);
        let mut line = match settings.format {
            Format::Txt => text,
            Format::Jsonl => serde_json::to_string(&Row { id: &format!("doc{number:06}"), text: &text })
                .map_err(|error| miette::miette!("document {number} has no JSON form: {error}"))?,
        };
        line.push('\n');
        Ok((line, words))
    };
    let name = settings.format.file_name();
    job.folder.write_with(name, |out| {
        parallel::in_order(settings.documents, job.threads, job.progress, make, |_, (line, count)| {
            words += count;
            bytes += line.len() as u64;
            out.write_all(line.as_bytes()).map_err(folder::failed("write", job.folder.root()))
        })
    })?;
    job.folder.write("README.md", readme(settings, job.command).as_bytes())?;
    Ok(Made {
        lines: vec![
            ("documents", format!("{}, in {name}", settings.documents)),
            ("words", format!("{words}, {} a document", words / settings.documents)),
            ("size", human_bytes(bytes)),
        ],
        facts: json!({ "documents": settings.documents, "words": words, "file": name, "bytes": bytes }),
    })
}

fn readme(settings: &Settings, command: &str) -> String {
    format!(
        "# Synthetic text\n\n\
         {} documents in `{}`. Nobody wrote them and they mean nothing.\n\n\
         Made by feedwater {} with\n\n```\n{command}\n```\n\nwhich makes the same files again.\n\n\
         It exercises tokenizers and loaders: common and made-up words, names, figures, a few other scripts and emoji. A \
         loss on it says whether a training run works, and nothing about language.\n",
        settings.documents,
        settings.format.file_name(),
        env!("CARGO_PKG_VERSION"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::tests::{Flags, files_made};
    use std::collections::HashMap;

    fn settings(flags: &str) -> Settings {
        Flags::<Settings>::read(flags)
    }

    #[test]
    fn one_thread_and_three_write_the_same_bytes() {
        for format in ["jsonl", "txt"] {
            let settings = settings(&format!("--documents 500 --format {format}"));
            let make = |threads, seed| files_made(threads, seed, |job| generate(&settings, job));
            let one = make(1, 7);
            assert!(one == make(3, 7) && one != make(1, 8));
            let file = std::str::from_utf8(&one[&format!("text.{format}")]).unwrap();
            assert_eq!(file.lines().count(), 500);
            assert!(one.keys().all(|name| owns(name)));
        }
    }

    #[test]
    fn documents_have_the_wanted_words() {
        for (flags, range) in [("--words 20..400", 20..=400), ("--words 7", 7..=7), ("--words 1..3", 1..=3)] {
            let settings = settings(flags);
            for number in 0..500 {
                let (text, words) = document(&settings, 7, number);
                assert_eq!(text.split_whitespace().count(), words);
                assert!(range.contains(&words), "{words}");
            }
        }
    }

    #[test]
    fn words_follow_zipf_and_some_letters_are_not_ascii() {
        let settings = settings("");
        let mut counts: HashMap<String, usize> = HashMap::new();
        let (mut total, mut letters, mut foreign) = (0, 0, 0);
        for number in 0..1_500 {
            let (text, words) = document(&settings, 7, number);
            total += words;
            letters += text.chars().count();
            foreign += text.chars().filter(|c| !c.is_ascii()).count();
            for word in text.split_whitespace() {
                *counts
                    .entry(word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase())
                    .or_default() += 1;
            }
        }
        let mut ranked: Vec<usize> = counts.values().copied().collect();
        ranked.sort_unstable_by(|a, b| b.cmp(a));
        let share = |ranks: usize| ranked[..ranks].iter().sum::<usize>() as f64 / total as f64;
        // English: the most frequent word is 5-7 % of text, the first hundred about half.
        assert!((0.03..0.12).contains(&share(1)), "{}", share(1));
        assert!((0.35..0.7).contains(&share(100)), "{}", share(100));
        assert!(ranked.len() > 5_000, "{} different words", ranked.len());
        assert!(ranked.iter().filter(|count| **count == 1).count() * 3 > ranked.len());
        let foreign = foreign as f64 / letters as f64;
        assert!((0.0005..0.02).contains(&foreign), "{foreign}");
    }

    #[test]
    fn wrong_settings_are_refused_with_a_hint() {
        for flags in ["--documents 0", "--words 0..5"] {
            assert!(settings(flags).check().unwrap_err().help().is_some(), "{flags}");
        }
    }
}
