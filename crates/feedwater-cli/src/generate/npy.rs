//! What is in a dataset of feature matrices?
//!
//! `class_0/000000.npy`, float32, a row a frame and 128 bins a row, with lengths as uneven as recordings are:
//! most are short, a few are very long, and it is the long ones that make padding dear. The classes can be
//! learnt, in two steps: each *pair* of classes alternates between two spectra of its own, and the two
//! classes of a pair differ only in how fast. A model that averages over time reaches half of the accuracy of
//! one that listens.

use std::f64::consts::TAU;

use serde::Serialize;
use serde_json::json;

use super::random::{Purpose, Random};
use super::{Job, Made, human_bytes, parallel, space};

/// Bins of a frame.
pub(crate) const BINS: usize = 128;

/// Deviation of the noise; the spectra swing by about 1.
const NOISE: f32 = 0.8;

// How many and how long. (Not a doc comment: clap would print it as the description of the command.)
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct Settings {
    /// Number of matrices
    #[arg(long, default_value_t = 1000)]
    pub(crate) samples: usize,
    /// Number of classes, a folder each; each two share their spectra and differ in tempo
    #[arg(long, default_value_t = 8)]
    pub(crate) classes: usize,
    /// Frames of the shortest matrix
    #[arg(long, default_value_t = 100, value_name = "FRAMES")]
    pub(crate) min_frames: usize,
    /// Frames of the longest matrix; lengths are lognormal in between
    #[arg(long, default_value_t = 2000, value_name = "FRAMES")]
    pub(crate) max_frames: usize,
}

impl Settings {
    pub(crate) fn check(&self) -> miette::Result<()> {
        if self.samples == 0 || self.classes == 0 {
            return Err(miette::miette!(
                help = "for example --samples 1000 --classes 8",
                "there would be no samples"
            ));
        }
        if self.samples > space::MOST_FILES {
            return Err(miette::miette!(
                help = "for example --samples 1000",
                "`--samples {}` is above {}",
                self.samples,
                space::MOST_FILES
            ));
        }
        if self.classes > 1000 {
            return Err(miette::miette!(
                help = "for example --classes 8",
                "`--classes {}` is above 1000",
                self.classes
            ));
        }
        if self.min_frames < 8 || self.max_frames > 1_000_000 || self.min_frames > self.max_frames {
            return Err(miette::miette!(
                help = "for example --min-frames 100 --max-frames 2000",
                "`--min-frames {} --max-frames {}` is not a range within 8..1000000",
                self.min_frames,
                self.max_frames
            ));
        }
        Ok(())
    }

    /// About what it takes on disk.
    pub(crate) fn bytes(&self) -> u64 {
        let (median, deviation) = self.lognormal();
        // The mean of a lognormal; that the longest are cut off makes it a little less.
        let frames = (median * (deviation * deviation / 2.0).exp()).min(self.max_frames as f64);
        let file = space::on_disk(128.0 + frames * (BINS * size_of::<f32>()) as f64);
        (self.samples as f64 * file) as u64
    }

    /// Of the lengths: the median at two fifths of the way (in ratios), the longest 2.5 deviations above it.
    fn lognormal(&self) -> (f64, f64) {
        let (low, high) = (self.min_frames as f64, self.max_frames as f64);
        let median = low * (high / low).powf(0.4);
        (median, (high / median).ln() / 2.5)
    }

    pub(crate) fn flags(&self) -> String {
        format!(
            "--samples {} --classes {} --min-frames {} --max-frames {}",
            self.samples, self.classes, self.min_frames, self.max_frames
        )
    }
}

/// What the matrices of a class have in common: the middle and the swing of its spectrum, and the tempo.
#[derive(Debug)]
struct Class {
    middle: [f32; BINS],
    swing: [f32; BINS],
    frames_a_turn: f64,
}

impl Class {
    fn new(seed: u64, number: usize) -> Self {
        let mut random = Random::keyed(seed, Purpose::Class, number as u64 / 2);
        let (first, second) = (spectrum(&mut random), spectrum(&mut random));
        let slow = random.between(28.0, 48.0);
        Self {
            middle: std::array::from_fn(|bin| f32::midpoint(first[bin], second[bin])),
            swing: std::array::from_fn(|bin| (first[bin] - second[bin]) / 2.0),
            frames_a_turn: if number.is_multiple_of(2) { slow } else { slow / 2.5 },
        }
    }

    /// Writes one matrix, row by row, into `values`.
    fn draw(&self, frames: usize, values: &mut Vec<f32>, random: &mut Random) {
        // What differs between two recordings of the same thing: loudness, level, tempo, a shift in pitch,
        // the start.
        let gain = random.between(0.8, 1.25) as f32;
        let level = 0.2 * random.normal() as f32;
        let turn = TAU / (self.frames_a_turn * random.between(0.9, 1.1));
        let shift = random.below(5);
        let start = random.between(0.0, TAU);
        let moved = |spectrum: &[f32; BINS]| -> [f32; BINS] {
            std::array::from_fn(|bin| gain * spectrum[(bin + shift).saturating_sub(2).min(BINS - 1)])
        };
        let (middle, swing) = (moved(&self.middle), moved(&self.swing));
        values.clear();
        values.resize(frames * BINS, level);
        for (frame, row) in values.chunks_exact_mut(BINS).enumerate() {
            let phase = (start + turn * frame as f64).sin() as f32;
            for ((value, middle), swing) in row.iter_mut().zip(&middle).zip(&swing) {
                *value += middle + phase * swing;
            }
        }
        random.add_noise(values, NOISE);
    }
}

/// A few bumps, as formants or partials are.
fn spectrum(random: &mut Random) -> [f32; BINS] {
    let bumps: [(f64, f64, f64); 4] = std::array::from_fn(|_| {
        let height = random.between(0.6, 1.6) * if random.chance(0.3) { -1.0 } else { 1.0 };
        (random.between(4.0, 124.0), random.between(3.0, 10.0), height)
    });
    std::array::from_fn(|bin| {
        let at = |(centre, width, height): (f64, f64, f64)| {
            height * (-((bin as f64 - centre) / width).powi(2)).exp()
        };
        bumps.into_iter().map(at).sum::<f64>() as f32
    })
}

/// A lognormal length. Lengths outside of the range are drawn again, so that no spike stands at its ends.
fn frames(settings: &Settings, random: &mut Random) -> usize {
    let (low, high) = (settings.min_frames as f64, settings.max_frames as f64);
    let (median, deviation) = settings.lognormal();
    for _ in 0..32 {
        let length = median * (deviation * random.normal()).exp();
        if (low..=high).contains(&length) {
            return length as usize;
        }
    }
    settings.min_frames
}

/// A file of format 1.0. Its data begin at a multiple of 64 bytes, so that they can be mapped and used in
/// place.
pub(crate) fn encode(values: &[f32], columns: usize, file: &mut Vec<u8>) {
    let rows = values.len() / columns;
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    let begins = (10 + header.len() + 1).next_multiple_of(64);
    header.extend(std::iter::repeat_n(' ', begins - 10 - header.len() - 1));
    header.push('\n');
    file.clear();
    file.reserve(begins + values.len() * 4);
    file.extend_from_slice(b"\x93NUMPY\x01\x00");
    file.extend_from_slice(&(header.len() as u16).to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    file.resize(begins + values.len() * 4, 0);
    for (bytes, value) in file[begins..].chunks_exact_mut(4).zip(values) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

fn name(settings: &Settings, number: usize) -> String {
    let width = (settings.classes - 1).to_string().len();
    format!("class_{:0width$}/{number:06}.npy", number % settings.classes)
}

/// Whether this generator writes files of that name.
pub(crate) fn owns(name: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let matrix = name.strip_prefix("class_").and_then(|rest| rest.strip_suffix(".npy")?.split_once('/'));
    name == "README.md" || matrix.is_some_and(|(class, number)| digits(class) && digits(number))
}

pub(crate) fn generate(settings: &Settings, job: Job<'_>) -> miette::Result<Made> {
    let classes: Vec<Class> = (0..settings.classes).map(|number| Class::new(job.seed, number)).collect();
    for number in 0..settings.classes.min(settings.samples) {
        if let Some((class, _)) = name(settings, number).split_once('/') {
            job.folder.create_inside(class)?;
        }
    }
    job.progress.set_length(settings.samples as u64);
    let (mut bytes, mut lengths) = (0, Vec::with_capacity(settings.samples));
    let make = |number: usize, (values, file): &mut (Vec<f32>, Vec<u8>)| {
        let mut random = Random::keyed(job.seed, Purpose::Matrix, number as u64);
        let frames = frames(settings, &mut random);
        classes[number % settings.classes].draw(frames, values, &mut random);
        encode(values, BINS, file);
        job.folder.write(&name(settings, number), file)?;
        Ok((frames, file.len()))
    };
    parallel::in_order(settings.samples, job.threads, job.progress, make, |_, (frames, size)| {
        lengths.push(frames);
        bytes += size as u64;
        Ok(())
    })?;
    job.folder.write("README.md", readme(settings, job.command).as_bytes())?;
    let total: usize = lengths.iter().sum();
    lengths.sort_unstable();
    let (shortest, median, longest) = (lengths[0], lengths[lengths.len() / 2], lengths[lengths.len() - 1]);
    Ok(Made {
        lines: vec![
            (
                "samples",
                format!("{} in {} classes", settings.samples, settings.classes.min(settings.samples)),
            ),
            (
                "frames",
                format!("{total} of {BINS} bins; a sample has {shortest} to {longest}, median {median}"),
            ),
            ("size", human_bytes(bytes)),
        ],
        facts: json!({
            "samples": settings.samples, "classes": settings.classes, "bins": BINS, "frames": total,
            "frames_min": shortest, "frames_median": median, "frames_max": longest, "bytes": bytes,
        }),
    })
}

fn readme(settings: &Settings, command: &str) -> String {
    format!(
        "# Synthetic feature matrices\n\n\
         {} files, `<class>/<number>.npy`, float32 [frames, {BINS}], in {} classes. Nothing in it was recorded.\n\n\
         Made by feedwater {} with\n\n```\n{command}\n```\n\nwhich makes the same files again.\n\n\
         Classes 0 and 1, 2 and 3, … share two spectra, between which a matrix swings; they differ in how fast it does. \
         Lengths are lognormal. An accuracy on these files says whether a training run works, and nothing about any \
         real task.\n",
        settings.samples,
        settings.classes,
        env!("CARGO_PKG_VERSION"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::tests::{Flags, files_made};

    #[test]
    fn the_header_parses_back() {
        for rows in [1, 9, 10, 1999, 123_456] {
            let mut file = Vec::new();
            encode(&vec![1.5; rows * BINS], BINS, &mut file);
            assert_eq!(&file[..8], b"\x93NUMPY\x01\x00");
            let begins = 10 + usize::from(u16::from_le_bytes([file[8], file[9]]));
            assert!(begins.is_multiple_of(64) && file[begins - 1] == b'\n');
            let header = std::str::from_utf8(&file[10..begins]).unwrap().trim();
            assert_eq!(
                header,
                format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, 128), }}")
            );
            assert_eq!(file.len() - begins, rows * BINS * 4);
            assert_eq!(file[begins..begins + 4], 1.5_f32.to_le_bytes());
        }
    }

    #[test]
    fn lengths_are_in_range_and_heavy_tailed() {
        let settings = Flags::<Settings>::read("");
        let mut random = Random::keyed(7, Purpose::Matrix, 0);
        let mut lengths: Vec<usize> = (0..20_000).map(|_| frames(&settings, &mut random)).collect();
        lengths.sort_unstable();
        assert!(lengths[0] >= 100 && lengths[19_999] <= 2000);
        let (median, top) = (lengths[10_000] as f64, lengths[19_800] as f64);
        let mean = lengths.iter().sum::<usize>() as f64 / 20_000.0;
        assert!(
            (300.0..400.0).contains(&median) && mean > 1.15 * median && top > 4.0 * median,
            "{mean} {median} {top}"
        );
        assert!(lengths[19_999] > 1800);
        let same = Flags::<Settings>::read("--min-frames 50 --max-frames 50");
        assert_eq!(frames(&same, &mut random), 50);
    }

    #[test]
    fn one_thread_and_three_write_the_same_bytes() {
        let settings = Flags::<Settings>::read("--samples 150 --classes 11 --max-frames 200");
        let make = |threads, seed| files_made(threads, seed, |job| generate(&settings, job));
        let one = make(1, 7);
        assert!(one == make(3, 7) && one != make(1, 8));
        assert_eq!(one.len(), 151);
        assert!(one.contains_key("class_10/000010.npy") && one.keys().all(|name| owns(name)));
    }

    /// The spectra tell the pair, and the tempo (strength of the swing at either rate) tells the class within
    /// it.
    #[test]
    fn classes_can_be_learnt() {
        let classes: Vec<Class> = (0..8).map(|number| Class::new(7, number)).collect();
        let (mut values, mut right_pair, mut right_tempo) = (Vec::new(), 0, 0);
        for number in 0..400 {
            let mut random = Random::keyed(7, Purpose::Matrix, number as u64);
            let truth = number % 8;
            classes[truth].draw(200, &mut values, &mut random);
            let mean: Vec<f32> =
                (0..BINS).map(|bin| values.iter().skip(bin).step_by(BINS).sum::<f32>() / 200.0).collect();
            let distance = |pair: usize| {
                classes[2 * pair].middle.iter().zip(&mean).map(|(a, b)| (a - b).powi(2)).sum::<f32>()
            };
            let nearest = (0..4).min_by(|a, b| distance(*a).total_cmp(&distance(*b))).unwrap();
            right_pair += usize::from(nearest == truth / 2);
            let strength = |class: &Class| {
                let rows = values.chunks_exact(BINS);
                let course: Vec<f32> =
                    rows.map(|row| row.iter().zip(&class.swing).map(|(a, b)| a * b).sum()).collect();
                let level = course.iter().sum::<f32>() / 200.0;
                (90..=110)
                    .map(|percent| {
                        let turn = TAU / (class.frames_a_turn * f64::from(percent) / 100.0);
                        let (mut re, mut im) = (0.0, 0.0);
                        for (frame, value) in course.iter().enumerate() {
                            let (s, c) = (turn * frame as f64).sin_cos();
                            re += f64::from(value - level) * c;
                            im += f64::from(value - level) * s;
                        }
                        re * re + im * im
                    })
                    .fold(0.0, f64::max)
            };
            right_tempo += usize::from(strength(&classes[truth]) > strength(&classes[truth ^ 1]));
        }
        assert!(right_pair > 360, "pairs: {right_pair} of 400");
        assert!(right_tempo > 390, "tempi: {right_tempo} of 400");
    }
}
