//! When is the key down?
//!
//! The unit is the dit: 1.2 s / words-per-minute, which makes the word PARIS with the gap after it exactly 50
//! dits. A machine sends dah = 3, gaps 1 / 3 / 7 (element, letter, word). People don't: each operator has a
//! *fist*, a ratio of dah to dit and gaps of their own, and every length wavers. Farnsworth sending keeps the
//! letters fast and stretches only the gaps between letters and words.

use serde::Serialize;

use super::random::Random;

/// ITU-R M.1677-1: letters, figures, punctuation and procedure signals. The multiplication sign is left out
/// (it is sent as X), and so is "invitation to transmit" (K). `=` is also the prosign BT, `+` is AR.
#[rustfmt::skip] // as a table it can be checked against the recommendation at a glance
pub(crate) const ALPHABET: &[(&str, &str)] = &[
    ("A", ".-"), ("B", "-..."), ("C", "-.-."), ("D", "-.."), ("E", "."), ("F", "..-."), ("G", "--."),
    ("H", "...."), ("I", ".."), ("J", ".---"), ("K", "-.-"), ("L", ".-.."), ("M", "--"), ("N", "-."),
    ("O", "---"), ("P", ".--."), ("Q", "--.-"), ("R", ".-."), ("S", "..."), ("T", "-"), ("U", "..-"),
    ("V", "...-"), ("W", ".--"), ("X", "-..-"), ("Y", "-.--"), ("Z", "--.."), ("É", "..-.."),
    ("0", "-----"), ("1", ".----"), ("2", "..---"), ("3", "...--"), ("4", "....-"), ("5", "....."),
    ("6", "-...."), ("7", "--..."), ("8", "---.."), ("9", "----."),
    (".", ".-.-.-"), (",", "--..--"), (":", "---..."), ("?", "..--.."), ("'", ".----."), ("-", "-....-"),
    ("/", "-..-."), ("(", "-.--."), (")", "-.--.-"), ("\"", ".-..-."), ("=", "-...-"), ("+", ".-.-."),
    ("@", ".--.-."), ("<SK>", "...-.-"), ("<AS>", ".-..."), ("<VE>", "...-."), ("<KA>", "-.-.-"),
    ("<HH>", "........"),
];

/// The signs of a word: characters, and prosigns such as `<SK>`, which are sent as one. `None` if one is not
/// in the alphabet.
pub(crate) fn signs(word: &str) -> Option<Vec<&'static str>> {
    let mut rest = word;
    let mut codes = Vec::with_capacity(word.len());
    while let Some(first) = rest.chars().next() {
        let length = if first == '<' { rest.find('>')? + 1 } else { first.len_utf8() };
        let (sign, after) = rest.split_at(length);
        codes.push(ALPHABET.iter().find(|(name, _)| *name == sign)?.1);
        rest = after;
    }
    Some(codes)
}

/// One operator's lengths, in seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fist {
    pub(crate) dit: f64,
    pub(crate) dah: f64,
    pub(crate) element_gap: f64,
    pub(crate) letter_gap: f64,
    pub(crate) word_gap: f64,
    /// Standard deviation of every length, relative to it.
    pub(crate) jitter: f64,
}

impl Fist {
    /// A machine.
    pub(crate) fn exact(wpm: f64) -> Self {
        let dit = 1.2 / wpm;
        Self {
            dit,
            dah: 3.0 * dit,
            element_gap: dit,
            letter_gap: 3.0 * dit,
            word_gap: 7.0 * dit,
            jitter: 0.0,
        }
    }

    /// Somebody: two in five use an electronic keyer, whose letters are exact and whose gaps are theirs; the
    /// rest send by hand.
    pub(crate) fn somebody(wpm: f64, random: &mut Random) -> Self {
        let exact = Self::exact(wpm);
        let dit = exact.dit;
        if random.chance(0.4) {
            return Self {
                letter_gap: dit * random.between(2.8, 3.6),
                word_gap: dit * random.between(6.5, 8.5),
                jitter: random.between(0.0, 0.015),
                ..exact
            };
        }
        // The mean of two draws: ratios near 3.5 are common, 2.5 and 4.5 rare.
        let ratio = f64::midpoint(random.between(2.5, 4.5), random.between(2.5, 4.5));
        Self {
            dit,
            dah: ratio * dit,
            element_gap: dit * random.between(0.85, 1.2),
            letter_gap: dit * random.between(2.6, 4.2),
            word_gap: dit * random.between(6.0, 10.0),
            jitter: random.between(0.02, 0.12),
        }
    }

    /// Stretches the gaps so that the whole runs at `overall` words a minute while letters stay as fast as
    /// they are: the word PARIS has 31 dits of letters and 19 of gaps, and the gaps take up what the letters
    /// leave of 60/overall.
    pub(crate) fn farnsworth(self, overall: f64) -> Self {
        let gap_dit = (60.0 / overall - 31.0 * self.dit) / 19.0;
        let stretch = (gap_dit / self.dit).max(1.0);
        Self { letter_gap: self.letter_gap * stretch, word_gap: self.word_gap * stretch, ..self }
    }
}

/// Where a word is in a clip, in seconds: from its first key-down to its last key-up.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct WordTime {
    pub(crate) word: String,
    pub(crate) start: f64,
    pub(crate) end: f64,
}

/// Sends words one after another and writes down when the key was down.
#[derive(Debug)]
pub(crate) struct Keyer {
    fist: Fist,
    /// Key-down intervals, in order.
    pub(crate) marks: Vec<(f64, f64)>,
    pub(crate) words: Vec<WordTime>,
    clock: f64,
}

impl Keyer {
    pub(crate) fn new(fist: Fist) -> Self {
        Self { fist, marks: Vec::new(), words: Vec::new(), clock: 0.0 }
    }

    /// When the last word ended.
    pub(crate) fn end(&self) -> f64 {
        self.words.last().map_or(0.0, |word| word.end)
    }

    /// Sends `word` if it is over by `limit`; otherwise nothing has happened, and it says so.
    pub(crate) fn send_before(&mut self, limit: f64, word: &str, random: &mut Random) -> bool {
        let Some(codes) = signs(word) else { return false };
        let (clock, kept) = (self.clock, self.marks.len());
        if !self.words.is_empty() {
            self.clock += self.waver(self.fist.word_gap, random);
        }
        let start = self.clock;
        for (number, code) in codes.iter().enumerate() {
            if number > 0 {
                self.clock += self.waver(self.fist.letter_gap, random);
            }
            self.send_sign(code, random);
        }
        if codes.is_empty() || self.clock > limit {
            self.clock = clock;
            self.marks.truncate(kept);
            return false;
        }
        self.words.push(WordTime { word: word.to_owned(), start, end: self.clock });
        true
    }

    fn send_sign(&mut self, code: &str, random: &mut Random) {
        for (number, element) in code.bytes().enumerate() {
            if number > 0 {
                self.clock += self.waver(self.fist.element_gap, random);
            }
            let length = if element == b'.' { self.fist.dit } else { self.fist.dah };
            let start = self.clock;
            self.clock += self.waver(length, random);
            self.marks.push((start, self.clock));
        }
    }

    /// Bounded, so that a gap inside a letter never becomes as long as one between letters.
    fn waver(&self, length: f64, random: &mut Random) -> f64 {
        if self.fist.jitter == 0.0 {
            return length;
        }
        length * (1.0 + self.fist.jitter * random.normal()).clamp(0.65, 1.4)
    }

    /// Moves everything later by `seconds`.
    pub(crate) fn shift(&mut self, seconds: f64) {
        for (start, end) in &mut self.marks {
            *start += seconds;
            *end += seconds;
        }
        for word in &mut self.words {
            word.start += seconds;
            word.end += seconds;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::random::Purpose;

    fn send(fist: Fist, words: &[&str]) -> Keyer {
        let mut random = Random::keyed(1, Purpose::Clip, 0);
        let mut keyer = Keyer::new(fist);
        for word in words {
            assert!(keyer.send_before(1e9, word, &mut random));
        }
        keyer
    }

    #[test]
    fn paris_and_its_gap_last_fifty_dits() {
        for wpm in [5.0, 20.0, 40.0] {
            let keyer = send(Fist::exact(wpm), &["PARIS", "PARIS"]);
            assert!((keyer.words[1].start - 50.0 * 1.2 / wpm).abs() < 1e-12);
            assert!((keyer.words[1].start * wpm - 60.0).abs() < 1e-9, "{wpm} words are not a minute");
            let down: f64 = keyer.marks[..14].iter().map(|(start, end)| end - start).sum();
            assert!((down - 22.0 * 1.2 / wpm).abs() < 1e-12);
        }
    }

    #[test]
    fn farnsworth_slows_the_whole_and_not_the_letters() {
        let keyer = send(Fist::exact(20.0).farnsworth(8.0), &["PARIS", "PARIS"]);
        assert!((keyer.words[1].start - 60.0 / 8.0).abs() < 1e-9);
        assert!((keyer.marks[0].1 - keyer.marks[0].0 - 0.06).abs() < 1e-12);
    }

    #[test]
    fn fists_stay_in_their_bounds_and_differ() {
        let mut random = Random::keyed(1, Purpose::Clip, 0);
        let ratios: Vec<f64> = (0..500)
            .map(|_| {
                let fist = Fist::somebody(20.0, &mut random);
                assert!(fist.letter_gap > 1.9 * fist.element_gap && fist.word_gap > 1.3 * fist.letter_gap);
                fist.dah / fist.dit
            })
            .collect();
        assert!(ratios.iter().all(|ratio| (2.5..=4.5).contains(ratio)));
        assert!(ratios.iter().any(|ratio| *ratio < 2.8) && ratios.iter().any(|ratio| *ratio > 4.2));
    }

    #[test]
    fn a_word_that_does_not_fit_leaves_no_trace() {
        let mut random = Random::keyed(1, Purpose::Clip, 0);
        let mut keyer = Keyer::new(Fist::exact(20.0));
        assert!(keyer.send_before(3.0, "PARIS", &mut random));
        let marks = keyer.marks.clone();
        assert!(!keyer.send_before(3.5, "PARIS", &mut random));
        assert_eq!((keyer.marks.len(), keyer.words.len()), (marks.len(), 1));
        assert!(keyer.send_before(3.5, "E", &mut random));
        assert!((keyer.words[1].start - 3.0).abs() < 1e-12);
    }

    #[test]
    fn codes_are_unique_and_prosigns_are_one_sign() {
        for (i, (name, code)) in ALPHABET.iter().enumerate() {
            assert!(
                ALPHABET[i + 1..].iter().all(|(_, other)| other != code),
                "{name} is not the only {code}"
            );
        }
        assert_eq!(signs("E<SK>É").unwrap(), [".", "...-.-", "..-.."]);
        assert_eq!(signs("a"), None);
        assert_eq!(signs("<SK"), None);
    }
}
