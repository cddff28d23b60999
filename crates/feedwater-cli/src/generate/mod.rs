//! How can somebody try Feedwater without having a dataset?
//!
//! Three kinds of data, one a workload: Morse audio with transcripts (fine-tuning Whisper), `.npy` feature
//! matrices of uneven length (a CNN-LSTM classifier) and text (a language model). Each is a pure function of
//! its settings and the seed: a file's content depends on (seed, its number) and on nothing that a thread or
//! a clock decides, so a benchmark can be repeated from one command line. (Between operating systems a sine
//! or a logarithm may differ in its last bit, and with it, rarely, a sample by one step of 16 bits.)
//!
//! Read in this order: [`random`] (numbers), [`span`] (settings that are ranges), [`folder`] (what may be
//! written where), [`space`] (whether it fits), [`parallel`] (all cores, fixed order), then the three datasets.

pub(crate) mod channel;
pub(crate) mod clip;
pub(crate) mod folder;
pub(crate) mod keying;
pub(crate) mod lexicon;
pub(crate) mod morse;
pub(crate) mod npy;
pub(crate) mod parallel;
pub(crate) mod prose;
pub(crate) mod radio;
pub(crate) mod random;
pub(crate) mod space;
pub(crate) mod span;
pub(crate) mod text;
pub(crate) mod wav;

use serde_json::Value;

/// What a generator has made: the same facts for a person and for a program.
#[derive(Debug)]
pub(crate) struct Made {
    /// Lines of the summary, a label and a sentence each.
    pub(crate) lines: Vec<(&'static str, String)>,
    /// The fields of `--json`: an object.
    pub(crate) facts: Value,
}

/// What every generator is told besides its own settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) folder: &'a folder::Folder,
    pub(crate) seed: u64,
    pub(crate) threads: usize,
    pub(crate) progress: &'a indicatif::ProgressBar,
    /// The command that makes this dataset again, for its README.
    pub(crate) command: &'a str,
}

/// A size for people. Decimal units, as disks and download pages use them.
pub(crate) fn human_bytes(bytes: u64) -> String {
    let (unit, scale) = match bytes {
        0..1_000 => return format!("{bytes} bytes"),
        1_000..1_000_000 => ("kB", 1e3),
        1_000_000..1_000_000_000 => ("MB", 1e6),
        1_000_000_000..1_000_000_000_000 => ("GB", 1e9),
        _ => ("TB", 1e12),
    };
    format!("{:.1} {unit}", bytes as f64 / scale)
}

/// Whether any generator writes files of that name: what `--force` may remove.
pub(crate) fn owns(name: &str) -> bool {
    morse::owns(name) || npy::owns(name) || text::owns(name)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Reads settings from flags, as the command does.
    #[derive(Debug, clap::Parser)]
    #[command(no_binary_name = true)]
    pub(crate) struct Flags<S: clap::Args> {
        #[command(flatten)]
        settings: S,
    }

    impl<S: clap::Args> Flags<S> {
        pub(crate) fn read(flags: &str) -> S {
            <Self as clap::Parser>::try_parse_from(flags.split_whitespace())
                .unwrap_or_else(|e| panic!("{e}"))
                .settings
        }
    }

    /// Runs a generator in a fresh folder: names and contents of what it wrote.
    pub(crate) fn files_made(
        threads: usize,
        seed: u64,
        generate: impl Fn(Job<'_>) -> miette::Result<Made>,
    ) -> BTreeMap<String, Vec<u8>> {
        let dir = tempfile::tempdir().unwrap();
        let folder = folder::Folder::claim(dir.path(), &serde_json::json!({}), owns, false).unwrap();
        let progress = indicatif::ProgressBar::hidden();
        generate(Job { folder: &folder, seed, threads, progress: &progress, command: "feedwater generate" })
            .unwrap();
        let mut files = BTreeMap::new();
        let mut folders = vec![dir.path().to_owned()];
        while let Some(next) = folders.pop() {
            for entry in std::fs::read_dir(next).unwrap().flatten() {
                let name =
                    entry.path().strip_prefix(dir.path()).unwrap().to_string_lossy().replace('\\', "/");
                if entry.path().is_dir() {
                    folders.push(entry.path());
                } else if !name.starts_with('.') {
                    files.insert(name, std::fs::read(entry.path()).unwrap());
                }
            }
        }
        files
    }

    #[test]
    fn sizes_are_for_people() {
        assert_eq!(human_bytes(999), "999 bytes");
        assert_eq!(human_bytes(44_800_000), "44.8 MB");
    }
}
