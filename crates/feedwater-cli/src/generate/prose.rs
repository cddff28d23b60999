//! How does a sentence come about?
//!
//! From a small grammar: noun phrases, verb phrases, clauses joined by conjunctions. Words drawn one by one
//! from a frequency list would have the counts of English and none of its order, and the pairs that a
//! byte-pair encoder or a language model lives on (`of the`, `it was`) would be missing. A document has a
//! subject: some nouns return in it.

use super::lexicon::{
    ADJECTIVES, ADVERBS, CONJUNCTIONS, DETERMINERS, EMOJI, GIVEN_NAMES, LOANS, NOUNS, OTHER_SCRIPTS,
    PREPOSITIONS, PRONOUNS, VERBS, coined, with_ing, with_s,
};
use super::random::Random;

/// Somebody writing one document.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) random: Random,
    seed: u64,
    past: bool,
    subject: Vec<String>,
    words: Vec<String>,
}

impl Writer {
    pub(crate) fn new(seed: u64, mut random: Random) -> Self {
        let past = random.chance(0.6);
        let mut writer = Self { random, seed, past, subject: Vec::new(), words: Vec::new() };
        writer.subject = (0..6).map(|_| writer.any_noun()).collect();
        writer
    }

    /// The words of one sentence, punctuation attached, at most `limit` of them.
    pub(crate) fn sentence(&mut self, limit: usize) -> Vec<String> {
        self.words.clear();
        if self.random.chance(0.12) {
            let adverb = self.random.pick_common(ADVERBS);
            self.push(format!("{adverb},"));
        }
        let quoted = self.random.chance(0.06);
        let opening = self.words.len();
        self.clause();
        while self.random.chance(0.38) {
            let comma = self.random.chance(0.5);
            self.attach(if comma { "," } else { "" });
            let conjunction = self.random.pick_common(CONJUNCTIONS);
            self.push(conjunction);
            self.clause();
        }
        self.words.truncate(limit);
        // A word that was cut off from what it opens may carry a comma.
        if let Some(last) = self.words.last_mut() {
            last.truncate(last.trim_end_matches([',', ';']).len());
        }
        let end = match self.random.below(20) {
            0 => "?",
            1 => "!",
            2 => ";",
            _ => ".",
        };
        let end = if end == ";" || quoted { "." } else { end };
        self.attach(end);
        if quoted && opening < self.words.len() {
            self.words[opening].insert(0, '“');
            self.attach("”");
        }
        if let Some(first) = self.words.first_mut() {
            *first = capitalised(first);
        }
        std::mem::take(&mut self.words)
    }

    fn clause(&mut self) {
        let singular = self.subject_phrase();
        let (base, past) = self.random.pick_common(VERBS);
        match self.random.below(10) {
            0 => {
                let modal = self.random.pick(&["can", "will", "should", "could", "might", "don't", "would"]);
                self.push(modal);
                self.push(base);
            }
            1 => {
                let form = match (self.past, singular) {
                    (true, true) => "was",
                    (true, false) => "were",
                    (false, true) => "is",
                    (false, false) => "are",
                };
                self.push(form);
                self.push(with_ing(base));
            }
            _ if self.past => self.push(past),
            _ if singular => self.push(with_s(base)),
            _ => self.push(base),
        }
        if self.random.chance(0.75) {
            self.noun_phrase(2);
        }
        if self.random.chance(0.4) {
            self.prepositional_phrase(1);
        }
        if self.random.chance(0.15) {
            let adverb = self.random.pick_common(ADVERBS);
            self.push(adverb);
        }
        if self.random.chance(0.02) {
            let aside = self.rarity();
            self.push(aside);
        }
    }

    /// Says whether the verb takes an s.
    fn subject_phrase(&mut self) -> bool {
        if self.random.chance(0.35) {
            let pronoun = self.random.pick_common(PRONOUNS);
            self.push(pronoun);
            return !matches!(pronoun, "they" | "we" | "you" | "I");
        }
        self.noun_phrase(1)
    }

    /// Says whether it is singular.
    fn noun_phrase(&mut self, depth: usize) -> bool {
        let kind = self.random.below(20);
        let singular = match kind {
            0 | 1 => {
                let name = self.name();
                self.push(name);
                true
            }
            2 => {
                let number = self.number();
                self.push(number);
                let noun = with_s(&self.noun());
                self.push(noun);
                false
            }
            3..=6 => {
                if self.random.chance(0.4) {
                    let adjective = self.adjective();
                    self.push(adjective);
                }
                let noun = with_s(&self.noun());
                self.push(noun);
                false
            }
            _ => {
                let determiner = self.random.pick_common(DETERMINERS);
                let adjective = self.random.chance(0.35).then(|| self.adjective());
                let noun = self.noun();
                let next = adjective.as_deref().unwrap_or(&noun);
                let before_vowel = next.starts_with(['a', 'e', 'i', 'o', 'u']);
                self.push(if determiner == "a" && before_vowel { "an" } else { determiner });
                if let Some(adjective) = adjective {
                    self.push(adjective);
                }
                self.push(noun);
                true
            }
        };
        if depth > 0 && self.random.chance(0.25) {
            self.prepositional_phrase(depth - 1);
        }
        singular
    }

    fn prepositional_phrase(&mut self, depth: usize) {
        let preposition = self.random.pick_common(PREPOSITIONS);
        self.push(preposition);
        self.noun_phrase(depth);
    }

    fn noun(&mut self) -> String {
        if self.random.chance(0.3) {
            let which = self.random.below(self.subject.len());
            return self.subject[which].clone();
        }
        self.any_noun()
    }

    fn any_noun(&mut self) -> String {
        match self.random.below(100) {
            0..12 => coined(self.seed, &mut self.random),
            12 => self.random.pick(LOANS).to_owned(),
            _ => self.random.pick_common(NOUNS).to_owned(),
        }
    }

    fn adjective(&mut self) -> String {
        if self.random.chance(0.08) {
            return coined(self.seed, &mut self.random);
        }
        self.random.pick_common(ADJECTIVES).to_owned()
    }

    fn name(&mut self) -> String {
        let given = self.random.pick(GIVEN_NAMES);
        if self.random.chance(0.4) {
            return given.to_owned();
        }
        format!("{given} {}", capitalised(&coined(self.seed, &mut self.random)))
    }

    fn number(&mut self) -> String {
        match self.random.below(8) {
            0 => format!("{}", 1900 + self.random.below(130)),
            1 => format!("{}.{}", self.random.below(100), self.random.below(10)),
            2 => format!("{},{:03}", 1 + self.random.below(99), self.random.below(1000)),
            3 => self
                .random
                .pick(&["two", "three", "four", "five", "seven", "ten", "twelve", "a hundred"])
                .to_owned(),
            4 => format!("${}", 5 + self.random.below(995)),
            5 => format!("{}% of", self.random.below(100)),
            _ => format!("{}", 2 + self.random.below(60)),
        }
    }

    /// What turns up in text from the web and nowhere in a dictionary.
    fn rarity(&mut self) -> String {
        let (a, b) = (coined(self.seed, &mut self.random), coined(self.seed, &mut self.random));
        match self.random.below(8) {
            0 | 1 => self.random.pick(OTHER_SCRIPTS).to_owned(),
            2 | 3 => self.random.pick(EMOJI).to_owned(),
            4 => format!("(https://www.{a}.com/{b}?id={})", self.random.below(10_000)),
            5 => format!("`{a}_{b}({})`", self.random.below(100)),
            6 => format!("— {a} {b} —"),
            _ => format!("({}; see {})", self.random.pick(LOANS), self.random.below(300)),
        }
    }

    /// Adds words; a phrase of several counts as several.
    fn push(&mut self, phrase: impl AsRef<str>) {
        self.words.extend(phrase.as_ref().split_whitespace().map(str::to_owned));
    }

    fn attach(&mut self, mark: &str) {
        if let Some(last) = self.words.last_mut() {
            last.push_str(mark);
        }
    }
}

fn capitalised(word: &str) -> String {
    // A quotation mark may stand first.
    match word.char_indices().find(|(_, c)| c.is_alphabetic()) {
        Some((at, first)) if at <= '“'.len_utf8() => {
            let after = at + first.len_utf8();
            format!("{}{}{}", &word[..at], first.to_uppercase(), &word[after..])
        }
        _ => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::random::Purpose;

    #[test]
    fn sentences_begin_large_end_with_a_mark_and_keep_to_the_limit() {
        let mut writer = Writer::new(7, Random::keyed(7, Purpose::Document, 0));
        for round in 0..5_000 {
            let limit = 1 + round % 30;
            let words = writer.sentence(limit);
            assert!((1..=limit).contains(&words.len()));
            let text = words.join(" ");
            assert!(text.ends_with(['.', '?', '!', '”']), "{text}");
            let first = text.chars().find(|c| c.is_alphanumeric());
            assert!(first.is_none_or(|c| !c.is_lowercase()), "{text}");
        }
    }

    #[test]
    fn an_stands_before_a_vowel() {
        let mut writer = Writer::new(7, Random::keyed(7, Purpose::Document, 1));
        let text: Vec<String> = (0..3_000).flat_map(|_| writer.sentence(60)).collect();
        assert!(text.iter().any(|word| word == "an"));
        for pair in text.windows(2).filter(|pair| pair[0] == "a" && pair[1] != "hundred") {
            assert!(!pair[1].starts_with(['a', 'e', 'i', 'o', 'u']), "{pair:?}");
        }
    }
}
