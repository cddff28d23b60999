//! What is in a Morse dataset?
//!
//! Short recordings of a radio, each with what was sent and when each word was sent, in the layout that
//! Hugging Face calls an audio folder: `metadata.jsonl` and `train/clip00000.wav`. [`super::clip`] makes one
//! clip; this module makes the folder.

use serde::Serialize;
use serde_json::json;

use super::channel::Workspace;
use super::clip::{LONG_SECONDS, clip, rounded};
use super::span::{Span, parse_number, parse_share};
use super::{Job, Made, folder, human_bytes, parallel, space, wav};

// What a clip may be. (Not a doc comment: clap would print it as the description of the command.)
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct Settings {
    /// Number of clips
    #[arg(long, default_value_t = 200)]
    pub(crate) clips: usize,
    /// Length of the shortest clip
    #[arg(long, default_value_t = 2.0, value_parser = parse_number, value_name = "SECONDS")]
    pub(crate) min_seconds: f64,
    /// Length of the longest clip
    #[arg(long, default_value_t = 12.0, value_parser = parse_number, value_name = "SECONDS")]
    pub(crate) max_seconds: f64,
    /// Add N clips of 32 to 75 seconds, to see chunking at work
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) long: usize,
    /// Samples a second, 8000 to 48000
    #[arg(long, default_value_t = 16_000, value_name = "HZ")]
    pub(crate) rate: u32,
    /// Words a minute (PARIS: a dit lasts 1.2 s / WPM), within 5..40
    #[arg(long, default_value = "15..30", value_name = "LO..HI")]
    pub(crate) wpm: Span,
    /// Share of clips with letters at full speed and gaps stretched to 50-90 % of it; without a number: all
    #[arg(long, default_value = "0.1", num_args = 0..=1, default_missing_value = "1", value_parser = parse_share, value_name = "SHARE")]
    pub(crate) farnsworth: f64,
    /// Signal-to-noise ratio in dB: mean power of the tone while the key is down, before fading, over the
    /// power of the white noise in a bandwidth of 2500 Hz. (Over the full band of a 16 kHz file it is 5.1 dB
    /// lower.)
    #[arg(long, default_value = "5..25", allow_hyphen_values = true, value_name = "LO..HI")]
    pub(crate) snr_db: Span,
    /// Share of clips with noise alone and an empty text
    #[arg(long, default_value = "0.02", value_parser = parse_share, value_name = "SHARE")]
    pub(crate) noise_only: f64,
    /// Share of clips that fade (QSB, 3 to 18 dB); without a number: all
    #[arg(long, default_value = "0.3", num_args = 0..=1, default_missing_value = "1", value_parser = parse_share, value_name = "SHARE")]
    pub(crate) fading: f64,
    /// Share of clips with crackle (QRN); without a number: all
    #[arg(long, default_value = "0.15", num_args = 0..=1, default_missing_value = "1", value_parser = parse_share, value_name = "SHARE")]
    pub(crate) impulses: f64,
    /// Share of clips with a second, weaker station at another pitch (QRM); without a number: all
    #[arg(long, default_value = "0.15", num_args = 0..=1, default_missing_value = "1", value_parser = parse_share, value_name = "SHARE")]
    pub(crate) interference: f64,
    /// File format
    #[arg(long, default_value = "wav", value_parser = ["wav"])]
    pub(crate) format: String,
}

impl Settings {
    pub(crate) fn check(&self) -> miette::Result<()> {
        if self.clips == 0 && self.long == 0 {
            return Err(miette::miette!(help = "for example --clips 200", "there would be no clips"));
        }
        for (flag, count) in [("--clips", self.clips), ("--long", self.long)] {
            if count > space::MOST_FILES {
                return Err(miette::miette!(
                    help = format!("for example {flag} 200"),
                    "`{flag} {count}` is above {}",
                    space::MOST_FILES
                ));
            }
        }
        let seconds = Span { low: 1.0, high: 600.0 };
        Span { low: self.min_seconds, high: self.min_seconds }.within(seconds, "--min-seconds")?;
        Span { low: self.max_seconds, high: self.max_seconds }.within(seconds, "--max-seconds")?;
        if self.min_seconds > self.max_seconds {
            return Err(miette::miette!(
                help = format!(
                    "for example --min-seconds {} --max-seconds {}",
                    self.max_seconds, self.min_seconds
                ),
                "`--min-seconds {}` is above `--max-seconds {}`",
                self.min_seconds,
                self.max_seconds
            ));
        }
        let rate = f64::from(self.rate);
        Span { low: rate, high: rate }.within(Span { low: 8000.0, high: 48_000.0 }, "--rate")?;
        self.wpm.within(Span { low: 5.0, high: 40.0 }, "--wpm")?;
        self.snr_db.within(Span { low: -20.0, high: 60.0 }, "--snr-db")
    }

    /// About what it takes on disk: the files, and a line of metadata for each.
    pub(crate) fn bytes(&self) -> u64 {
        /// What the words of a second of keying and their times take as JSON.
        const LINE_BYTES_A_SECOND: f64 = 40.0;
        let clips = |count: usize, seconds: Span| {
            let seconds = f64::midpoint(seconds.low, seconds.high);
            let file = space::on_disk(wav::HEADER as f64 + seconds * f64::from(self.rate) * 2.0);
            count as f64 * (file + 150.0 + seconds * LINE_BYTES_A_SECOND)
        };
        let usual = Span { low: self.min_seconds, high: self.max_seconds };
        (clips(self.clips, usual) + clips(self.long, LONG_SECONDS)) as u64
    }

    /// The flags that give these settings.
    pub(crate) fn flags(&self) -> String {
        format!(
            "--clips {} --min-seconds {} --max-seconds {} --long {} --rate {} --wpm {} --farnsworth {} --snr-db {} \
             --noise-only {} --fading {} --impulses {} --interference {} --format {}",
            self.clips,
            self.min_seconds,
            self.max_seconds,
            self.long,
            self.rate,
            self.wpm,
            self.farnsworth,
            self.snr_db,
            self.noise_only,
            self.fading,
            self.impulses,
            self.interference,
            self.format
        )
    }
}

/// Whether this generator writes files of that name.
pub(crate) fn owns(name: &str) -> bool {
    matches!(name, "metadata.jsonl" | "README.md")
        || name
            .strip_prefix("train/clip")
            .and_then(|rest| rest.strip_suffix(".wav"))
            .is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()))
}

pub(crate) fn generate(settings: &Settings, job: Job<'_>) -> miette::Result<Made> {
    job.folder.create_inside("train")?;
    let total = settings.clips + settings.long;
    job.progress.set_length(total as u64);
    let (mut seconds, mut bytes, mut words, mut silent) = (0.0, 0, 0, 0);
    let make = |number, (space, file): &mut (Workspace, Vec<u8>)| {
        let row = clip(settings, job.seed, number, space);
        wav::encode(&space.samples, settings.rate, file);
        job.folder.write(&row.file_name, file)?;
        Ok((row, file.len()))
    };
    job.folder.write_with("metadata.jsonl", |out| {
        parallel::in_order(total, job.threads, job.progress, make, |_, (row, size)| {
            seconds += row.duration;
            bytes += size as u64;
            words += row.words.len();
            silent += usize::from(row.words.is_empty());
            let written = serde_json::to_writer(&mut *out, &row).map_err(std::io::Error::from);
            written.and_then(|()| out.write_all(b"\n")).map_err(folder::failed("write", job.folder.root()))
        })
    })?;
    job.folder.write("README.md", readme(settings, job.command).as_bytes())?;
    let long = if settings.long > 0 { format!(", {} of 32 to 75 s", settings.long) } else { String::new() };
    let facts = json!({
        "clips": total, "long_clips": settings.long, "noise_only_clips": silent, "words": words,
        "audio_seconds": rounded(seconds), "rate": settings.rate, "bytes": bytes,
    });
    Ok(Made {
        lines: vec![
            ("clips", format!("{total}, {silent} of them noise alone{long}")),
            ("audio", format!("{seconds:.1} s at {} Hz, {}", settings.rate, human_bytes(bytes))),
            ("text", format!("{words} words, with the time of each")),
        ],
        facts,
    })
}

fn readme(settings: &Settings, command: &str) -> String {
    format!(
        "# Synthetic Morse code\n\n\
         {total} clips of 16-bit mono WAV at {rate} Hz. No part of it was recorded from a radio.\n\n\
         Made by feedwater {version} with\n\n```\n{command}\n```\n\nwhich makes the same files again.\n\n\
         ## Fields of metadata.jsonl\n\n\
         | field | meaning |\n| --- | --- |\n\
         | file_name | path of the clip |\n\
         | text | what was sent, in capitals; `<SK> <AS> <VE> <KA> <HH>` are prosigns, `=` is BT, `+` is AR; empty for noise alone |\n\
         | duration | seconds |\n\
         | words | each word with the seconds of its first key-down and last key-up |\n\
         | wpm | speed of the letters: a dit lasts 1.2 s / wpm; null for noise alone |\n\
         | snr_db | mean power of the tone while the key is down, before fading, over the power of the white noise in 2500 Hz; null for noise alone |\n\
         | pitch_hz | middle of the slowly drifting pitch; null for noise alone |\n\n\
         ## What it is not\n\n\
         Real signals have chirp, key clicks, hum, filters, multipath echo, automatic gain and operators who change \
         their speed. A model's error rate on these clips says whether a training run works. It is not an on-air \
         figure and must not be quoted as one.\n",
        total = settings.clips + settings.long,
        rate = settings.rate,
        version = env!("CARGO_PKG_VERSION"),
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::generate::tests::{Flags, files_made};

    pub(crate) fn settings(flags: &str) -> Settings {
        Flags::<Settings>::read(flags)
    }

    #[test]
    fn one_thread_and_three_write_the_same_bytes() {
        let settings = settings("--clips 150 --long 2 --max-seconds 3");
        let make = |threads, seed| files_made(threads, seed, |job| generate(&settings, job));
        let one = make(1, 7);
        assert_eq!(one.len(), 154); // clips, metadata, README
        assert!(one == make(3, 7));
        assert!(one != make(3, 8));
    }

    #[test]
    fn a_clip_does_not_depend_on_how_many_there_are() {
        let few = files_made(1, 7, |job| generate(&settings("--clips 3"), job));
        let many = files_made(1, 7, |job| generate(&settings("--clips 5"), job));
        for name in ["train/clip00000.wav", "train/clip00002.wav"] {
            assert!(few[name] == many[name]);
        }
    }

    #[test]
    fn every_line_of_the_metadata_names_a_file_and_its_length() {
        let files = files_made(2, 7, |job| generate(&settings("--clips 50 --noise-only 0.1"), job));
        let lines = std::str::from_utf8(&files["metadata.jsonl"]).unwrap().lines();
        let mut count = 0;
        for line in lines {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            let file = &files[row["file_name"].as_str().unwrap()];
            let seconds = (file.len() - 44) as f64 / 32_000.0;
            assert!((row["duration"].as_f64().unwrap() - seconds).abs() < 1e-9);
            assert_eq!(row["text"] == "", row["wpm"].is_null());
            count += 1;
        }
        assert_eq!(count, 50);
        assert!(files.keys().all(|name| owns(name)));
    }

    #[test]
    fn wrong_settings_are_refused_with_a_hint() {
        for flags in [
            "--wpm 3..50",
            "--rate 4000",
            "--min-seconds 0.5",
            "--min-seconds 9 --max-seconds 3",
            "--clips 0",
            "--snr-db 90",
        ] {
            let refusal = settings(flags).check().expect_err(flags);
            assert!(refusal.help().unwrap().to_string().contains("for example --"), "{flags}");
        }
        assert!(settings("--fading --snr-db -5..10 --min-seconds 3").check().is_ok());
    }

    #[test]
    fn the_flags_in_the_readme_give_the_same_settings() {
        let made = settings("--clips 9 --wpm 12 --snr-db -5..10 --fading --noise-only 0.5");
        let again = settings(&made.flags());
        assert_eq!(serde_json::to_value(&made).unwrap(), serde_json::to_value(&again).unwrap());
    }
}
