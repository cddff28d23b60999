//! What does one Morse clip sound like, and what is known about it?
//!
//! Everything follows from (settings, seed, number). A clip is planned backwards: its length first, then as
//! many words as this operator can send in it, then what the radio adds.

use serde::Serialize;

use super::channel::{Fading, Tone, Workspace, noise_deviation};
use super::keying::{Fist, Keyer, WordTime};
use super::morse::Settings;
use super::radio;
use super::random::{Purpose, Random};
use super::span::Span;

/// Lengths of the clips that `--long` adds: past the 30 s that Whisper takes at once.
pub(crate) const LONG_SECONDS: Span = Span { low: 32.0, high: 75.0 };

/// Quiet before the first and after the last key-down.
const MARGIN_SECONDS: f64 = 0.08;

/// One line of `metadata.jsonl`. A clip of noise has no speed, SNR or pitch: they are null.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) file_name: String,
    text: String,
    pub(crate) duration: f64,
    pub(crate) words: Vec<WordTime>,
    wpm: Option<f64>,
    snr_db: Option<f64>,
    pitch_hz: Option<f64>,
}

/// Makes clip `number`: its samples are left in `space`.
pub(crate) fn clip(settings: &Settings, seed: u64, number: usize, space: &mut Workspace) -> Row {
    let mut random = Random::keyed(seed, Purpose::Clip, number as u64);
    let long = number >= settings.clips;
    let range =
        if long { LONG_SECONDS } else { Span { low: settings.min_seconds, high: settings.max_seconds } };
    let rate = settings.rate;
    let length = (range.draw(&mut random) * f64::from(rate)).round() as usize;
    let duration = length as f64 / f64::from(rate);
    let wpm = settings.wpm.draw(&mut random);
    let snr_db = settings.snr_db.draw(&mut random);
    let tone = some_tone(1.0, (320.0, 980.0), settings.fading, &mut random);
    let sounding = long || !is_noise_only(settings.noise_only, seed, number);

    space.clear(length);
    let mut peak = 0.0;
    let mut sent = Keyer::new(Fist::exact(wpm));
    if sounding {
        sent = send(wpm, settings.farnsworth, duration, &mut random);
        space.add_tone(&tone, &sent.marks, rate);
        peak += tone.amplitude;
        if random.chance(settings.interference) {
            peak += add_neighbour(tone.pitch_hz, duration, rate, space, &mut random);
        }
    }
    if random.chance(settings.impulses) {
        space.add_impulses(random.between(0.3, 4.0), random.between(0.5, 2.0), rate, &mut random);
    }
    let deviation = noise_deviation(tone.amplitude, snr_db, rate);
    random.add_noise(&mut space.samples, deviation as f32);
    // The listener's volume: signal and noise keep their proportion and fit below full scale; crackle may
    // clip.
    let volume = 10_f64.powf(random.between(-14.0, -1.0) / 20.0) / (peak + 4.5 * deviation);
    space.samples.iter_mut().for_each(|sample| *sample *= volume as f32);

    for word in &mut sent.words {
        (word.start, word.end) = (rounded(word.start), rounded(word.end));
    }
    let text = sent.words.iter().map(|word| word.word.as_str()).collect::<Vec<_>>().join(" ");
    let known = |value: f64| sounding.then(|| (value * 100.0).round() / 100.0);
    Row {
        file_name: format!("train/clip{number:05}.wav"),
        text,
        duration,
        words: sent.words,
        wpm: known(wpm),
        snr_db: known(snr_db),
        pitch_hz: known(tone.pitch_hz),
    }
}

/// Evenly spread, so that a share of 2 % of 200 clips is 4 clips and not "4 on average".
fn is_noise_only(share: f64, seed: u64, number: usize) -> bool {
    let offset = Random::keyed(seed, Purpose::Dataset, 0).unit();
    let before = |n: usize| (n as f64 * share + offset).floor();
    before(number + 1) > before(number)
}

/// Somebody's tone: pitch, drift and fading.
fn some_tone(amplitude: f64, (low, high): (f64, f64), fading: f64, random: &mut Random) -> Tone {
    let fading = random
        .chance(fading)
        .then(|| Fading { depth_db: random.between(3.0, 18.0), period_seconds: random.between(1.5, 15.0) });
    Tone {
        amplitude,
        pitch_hz: random.between(low, high),
        drift_hz: random.between(0.0, 12.0),
        drift_seconds: random.between(5.0, 40.0),
        phase: random.unit(),
        fading,
    }
}

/// Messages, as many words as fit, placed somewhere in the clip.
fn send(wpm: f64, farnsworth: f64, duration: f64, random: &mut Random) -> Keyer {
    let mut fist = Fist::somebody(wpm, random);
    if random.chance(farnsworth) {
        fist = fist.farnsworth((wpm * random.between(0.5, 0.9)).max(4.0));
    }
    let room = duration - 2.0 * MARGIN_SECONDS;
    // A long callsign that just does not fit can leave half of a clip empty: the fullest of a few attempts is
    // kept.
    let mut keyer = Keyer::new(fist);
    for _ in 0..6 {
        let attempt = listen_in(fist, room, random);
        if attempt.end() > keyer.end() {
            keyer = attempt;
        }
        if keyer.end() > 0.85 * room {
            break;
        }
    }
    if keyer.words.is_empty() {
        let _ = radio::SHORT_WORDS.iter().any(|word| keyer.send_before(room, word, random));
    }
    keyer.shift(MARGIN_SECONDS + random.unit() * (room - keyer.end()));
    keyer
}

/// What is heard by somebody who tunes in for `room` seconds: half of the time from the middle of a message,
/// and never quite to the end of one.
fn listen_in(fist: Fist, room: f64, random: &mut Random) -> Keyer {
    let mut keyer = Keyer::new(fist);
    let mut message = radio::message(random);
    if random.chance(0.5) {
        message.drain(..random.below(message.len()));
    }
    while message.iter().all(|word| keyer.send_before(room, word, random)) {
        message = radio::message(random);
    }
    keyer
}

/// Another station, 5 to 15 dB weaker and at least 90 Hz away. Returns its amplitude.
fn add_neighbour(pitch_hz: f64, duration: f64, rate: u32, space: &mut Workspace, random: &mut Random) -> f64 {
    let amplitude = 10_f64.powf(random.between(-15.0, -5.0) / 20.0);
    let above = random.chance(0.5) || pitch_hz < 500.0;
    let range = if above { (pitch_hz + 90.0, pitch_hz + 600.0) } else { (pitch_hz - 250.0, pitch_hz - 90.0) };
    let mut tone = some_tone(amplitude, range, 0.5, random);
    tone.drift_hz = tone.drift_hz.min(3.0);
    let wpm = random.between(12.0, 35.0);
    let neighbour = send(wpm, 0.0, duration, random);
    space.add_tone(&tone, &neighbour.marks, rate);
    amplitude
}

/// To the tenth of a millisecond: finer than a sample of 16 kHz is of no use to a reader.
pub(crate) fn rounded(seconds: f64) -> f64 {
    (seconds * 10_000.0).round() / 10_000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::keying::signs;
    use crate::generate::morse::tests::settings;

    #[test]
    fn words_are_inside_the_clip_in_order_and_can_be_sent() {
        for flags in [
            "--clips 60 --long 6",
            "--clips 60 --wpm 5 --min-seconds 1 --max-seconds 2",
            "--clips 40 --wpm 40 --rate 8000",
        ] {
            let settings = settings(flags);
            let mut space = Workspace::default();
            for number in 0..settings.clips + settings.long {
                let row = clip(&settings, 7, number, &mut space);
                let long = number >= settings.clips;
                let range = if long { 32.0..=75.0 } else { settings.min_seconds..=settings.max_seconds };
                assert!(range.contains(&row.duration), "{} s", row.duration);
                assert_eq!(space.samples.len(), (row.duration * f64::from(settings.rate)).round() as usize);
                assert_eq!(row.text.is_empty(), row.wpm.is_none());
                let mut clock = 0.0;
                for word in &row.words {
                    assert!(signs(&word.word).is_some());
                    assert!(word.start > clock && word.end > word.start && word.end < row.duration);
                    clock = word.end;
                }
                assert_eq!(row.text, row.words.iter().map(|w| w.word.as_str()).collect::<Vec<_>>().join(" "));
            }
        }
    }

    #[test]
    fn the_tone_sounds_within_words_and_nowhere_else() {
        let settings =
            settings("--clips 30 --snr-db 60 --noise-only 0 --fading 0 --impulses 0 --interference 0");
        let mut space = Workspace::default();
        for number in 0..settings.clips {
            let row = clip(&settings, 7, number, &mut space);
            // A tone of 300 Hz has a peak in every 2 ms; the edges reach 2.5 ms past the moment of keying.
            let loudest = space.samples.iter().fold(0_f32, |a, s| a.max(s.abs()));
            let heard: Vec<bool> = space
                .samples
                .chunks(16 * 2)
                .map(|piece| piece.iter().any(|s| s.abs() > 0.3 * loudest))
                .collect();
            let said = |ms: f64| row.words.iter().any(|w| ms > w.start * 1e3 - 5.0 && ms < w.end * 1e3 + 5.0);
            for (i, heard) in heard.iter().enumerate() {
                assert!(!heard || said(i as f64 * 2.0 + 1.0), "{}: a tone at {} ms", row.file_name, i * 2);
            }
            for word in &row.words {
                let at = |seconds: f64| (seconds * 500.0) as usize;
                assert!(heard[at(word.start + 0.004)] && heard[at(word.end - 0.004)], "{word:?}");
            }
        }
    }

    #[test]
    fn most_of_a_clip_is_used() {
        let settings = settings("--clips 300 --noise-only 0");
        let mut space = Workspace::default();
        let used: f64 = (0..settings.clips)
            .map(|number| {
                let row = clip(&settings, 7, number, &mut space);
                (row.words.last().unwrap().end - row.words[0].start) / row.duration
            })
            .sum();
        assert!(used / 300.0 > 0.8, "{}", used / 300.0);
    }

    #[test]
    fn the_share_of_noise_is_exact_and_such_clips_are_not_silent() {
        let settings = settings("--clips 200 --noise-only 0.05");
        let mut space = Workspace::default();
        let quiet: Vec<Row> =
            (0..200).map(|n| clip(&settings, 7, n, &mut space)).filter(|row| row.text.is_empty()).collect();
        assert_eq!(quiet.len(), 10);
        assert!(quiet.iter().all(|row| row.words.is_empty() && row.snr_db.is_none()));
        assert!(space.samples.iter().any(|s| s.abs() > 0.01));
    }

    #[test]
    fn samples_stay_below_full_scale_without_crackle() {
        let settings = settings("--clips 100 --impulses 0 --interference 1 --snr-db -10..30");
        let mut space = Workspace::default();
        for number in 0..settings.clips {
            clip(&settings, 7, number, &mut space);
            assert!(space.samples.iter().all(|s| s.abs() < 1.1));
        }
    }
}
