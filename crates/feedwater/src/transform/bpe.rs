//! Byte-level BPE, the tokenizer of GPT-2 and Whisper, without what a loader does not need.
//!
//! `tokenizers` keeps, for each character, where it came from, and makes a string of every token. A loader wants ids.
//! So where a `tokenizer.json` is of this one kind (no normaliser, the byte-level pre-tokenizer with its regular
//! expression, plain BPE), the text is split by hand as that expression splits it, and each word is looked up in a
//! small table of words met before; only new words are merged. What is a letter, a digit or a space is asked of the
//! regular expression engine of `tokenizers` itself, once for each page of 256 characters, so that both agree.
//! Everything else, and every text that contains an added token, goes through `tokenizers`.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::OnceLock,
};

use serde_json::Value as Json;
use tokenizers::utils::SysRegex;
use xxhash_rust::xxh3::xxh3_64;

/// The tables of one tokenizer.
pub(crate) struct Bpe {
    bytes: [u32; 256],
    /// (left id, right id) to (rank, id of the two merged).
    merges: HashMap<u64, (u32, u32), BuildHasherDefault<MixHasher>>,
    prefix_space: bool,
    pages: Vec<OnceLock<[Class; 256]>>,
    classes: [SysRegex; 3],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

impl Bpe {
    /// The tables of this `tokenizer.json`, if it is of the kind that they are right for.
    pub(crate) fn of(tokenizer: &Json) -> Option<Self> {
        let unset = |value: &Json| value.is_null() || value.as_str() == Some("");
        let pre = &tokenizer["pre_tokenizer"];
        let model = &tokenizer["model"];
        let plain = tokenizer["normalizer"].is_null()
            && pre["type"] == "ByteLevel"
            && pre["use_regex"].as_bool().unwrap_or(true)
            && model["type"].as_str().unwrap_or("BPE") == "BPE"
            && model["dropout"].as_f64().unwrap_or(0.0) == 0.0
            && unset(&model["unk_token"])
            && unset(&model["continuing_subword_prefix"])
            && unset(&model["end_of_word_suffix"])
            && !model["byte_fallback"].as_bool().unwrap_or(false)
            && !model["ignore_merges"].as_bool().unwrap_or(false);
        if !plain {
            return None;
        }
        let vocabulary = model["vocab"].as_object()?;
        let id = |token: &str| vocabulary.get(token)?.as_u64().and_then(|id| u32::try_from(id).ok());
        let mut bytes = [0; 256];
        for (byte, slot) in bytes.iter_mut().enumerate() {
            *slot = id(byte_character(byte as u8).encode_utf8(&mut [0; 4]))?;
        }
        let mut merges = HashMap::default();
        for (rank, merge) in model["merges"].as_array()?.iter().enumerate() {
            let (left, right) = match merge {
                Json::String(pair) => pair.split_once(' ')?,
                Json::Array(pair) => (pair.first()?.as_str()?, pair.get(1)?.as_str()?),
                _ => return None,
            };
            let merged = id(&format!("{left}{right}"))?;
            merges.entry(pair_key(id(left)?, id(right)?)).or_insert((rank as u32, merged));
        }
        let classes = [SysRegex::new(r"\p{L}"), SysRegex::new(r"\p{N}"), SysRegex::new(r"\s")];
        let [Ok(letter), Ok(number), Ok(space)] = classes else { return None };
        Some(Self {
            bytes,
            merges,
            prefix_space: pre["add_prefix_space"].as_bool().unwrap_or(true),
            pages: (0..0x1100).map(|_| OnceLock::new()).collect(),
            classes: [letter, number, space],
        })
    }

    /// Appends the ids of `text`.
    pub(crate) fn encode(&self, text: &str, words: &mut Words, out: &mut Vec<u32>) {
        if self.prefix_space && !text.starts_with(' ') && !text.is_empty() {
            let text = format!(" {text}");
            self.split(&text, |word| self.word(word, words, out));
        } else {
            self.split(text, |word| self.word(word, words, out));
        }
    }

    /// Splits as `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+` does.
    fn split<'t>(&self, text: &'t str, mut word: impl FnMut(&'t [u8])) {
        let bytes = text.as_bytes();
        let mut start = 0;
        while start < bytes.len() {
            let (first, width) = self.class_at(text, start);
            let end = match (bytes[start], first) {
                (b'\'', _) if contraction(&bytes[start..]) > 0 => start + contraction(&bytes[start..]),
                (b' ', _) if start + 1 < bytes.len() && self.class_at(text, start + 1).0 != Class::Space => {
                    self.run_end(text, start + 1)
                }
                (_, Class::Space) => {
                    // All of the run of spaces but its last, which goes with the word that follows.
                    let (mut end, mut last) = (start + width, start);
                    while end < bytes.len() {
                        let (class, width) = self.class_at(text, end);
                        if class != Class::Space {
                            break;
                        }
                        (last, end) = (end, end + width);
                    }
                    if end < bytes.len() && last > start { last } else { end }
                }
                _ => self.run_end(text, start),
            };
            word(&bytes[start..end]);
            start = end;
        }
    }

    /// The end of the run of characters of one class that starts here.
    fn run_end(&self, text: &str, start: usize) -> usize {
        let (class, mut width) = self.class_at(text, start);
        let mut end = start;
        loop {
            end += width;
            if end >= text.len() {
                return text.len();
            }
            let (next, next_width) = self.class_at(text, end);
            if next != class {
                return end;
            }
            width = next_width;
        }
    }

    /// The class of the character at this byte, and how many bytes it has.
    #[inline]
    fn class_at(&self, text: &str, at: usize) -> (Class, usize) {
        let byte = text.as_bytes()[at];
        if byte < 0x80 {
            return (ASCII[byte as usize], 1);
        }
        let character = text[at..].chars().next().unwrap_or('\u{fffd}');
        let code = character as usize;
        let page = self.pages[code >> 8].get_or_init(|| self.page(code as u32 & !0xff));
        (page[code & 0xff], character.len_utf8())
    }

    #[cold]
    fn page(&self, first: u32) -> [Class; 256] {
        let mut page = [Class::Other; 256];
        for (offset, class) in page.iter_mut().enumerate() {
            let Some(character) = char::from_u32(first + offset as u32) else { continue };
            let mut buffer = [0; 4];
            let text: &str = character.encode_utf8(&mut buffer);
            let is = |which: usize| self.classes[which].find_iter(text).next().is_some();
            *class = match (is(0), is(1), is(2)) {
                (true, ..) => Class::Letter,
                (_, true, _) => Class::Number,
                (_, _, true) => Class::Space,
                _ => Class::Other,
            };
        }
        page
    }

    /// Appends the ids of one word: from the table of words met before, or by merging.
    fn word(&self, word: &[u8], words: &mut Words, out: &mut Vec<u32>) {
        if let [byte] = word {
            out.push(self.bytes[*byte as usize]);
            return;
        }
        if word.len() > Slot::BYTES {
            let from = out.len();
            self.merge(word, &mut words.parts);
            out.extend(words.parts.iter());
            debug_assert!(out.len() > from);
            return;
        }
        let at = (xxh3_64(word) as usize) % words.slots.len();
        let slot = &words.slots[at];
        if slot.holds(word) {
            out.extend_from_slice(&slot.ids[..slot.count as usize]);
            return;
        }
        self.merge(word, &mut words.parts);
        out.extend_from_slice(&words.parts);
        words.slots[at].set(word, &words.parts);
    }

    /// Merges the pair of the lowest rank, the leftmost of equals, until there is none.
    fn merge(&self, word: &[u8], parts: &mut Vec<u32>) {
        parts.clear();
        parts.extend(word.iter().map(|byte| self.bytes[*byte as usize]));
        loop {
            let best = parts
                .windows(2)
                .enumerate()
                .filter_map(|(at, pair)| {
                    let (rank, merged) = self.merges.get(&pair_key(pair[0], pair[1]))?;
                    Some((*rank, at, *merged))
                })
                .min();
            let Some((_, at, merged)) = best else { return };
            parts[at] = merged;
            parts.remove(at + 1);
        }
    }
}

fn pair_key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

fn contraction(bytes: &[u8]) -> usize {
    match bytes {
        [_, b's' | b't' | b'm' | b'd', ..] => 2,
        [_, b'r' | b'v', b'e', ..] | [_, b'l', b'l', ..] => 3,
        _ => 0,
    }
}

/// The printable character that stands for a byte in a byte-level vocabulary.
pub fn byte_character(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let nth = (0..byte).filter(|b| !printable(*b)).count() as u32;
    char::from_u32(256 + nth).unwrap_or('\u{fffd}')
}

const ASCII: [Class; 128] = {
    let mut classes = [Class::Other; 128];
    let mut byte = 0;
    while byte < 128 {
        classes[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
            b'0'..=b'9' => Class::Number,
            b' ' | 0x09..=0x0d => Class::Space,
            _ => Class::Other,
        };
        byte += 1;
    }
    classes
};

/// Words met before, and their ids. A fixed table in which a newer word takes an older one's place: bounded, and most
/// words of a text are few.
pub(crate) struct Words {
    slots: Vec<Slot>,
    parts: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Slot {
    ids: [u32; 7],
    word: [u8; Slot::BYTES],
    length: u8,
    count: u8,
}

impl Slot {
    const BYTES: usize = 34;

    fn holds(&self, word: &[u8]) -> bool {
        self.length as usize == word.len() && self.word[..word.len()] == *word
    }

    fn set(&mut self, word: &[u8], ids: &[u32]) {
        if ids.len() <= self.ids.len() {
            self.ids[..ids.len()].copy_from_slice(ids);
            self.word[..word.len()].copy_from_slice(word);
            (self.length, self.count) = (word.len() as u8, ids.len() as u8);
        }
    }
}

impl Default for Words {
    fn default() -> Self {
        let empty = Slot { ids: [0; 7], word: [0; Slot::BYTES], length: 0, count: 0 };
        Self { slots: vec![empty; 1 << 15], parts: Vec::new() }
    }
}

/// A multiplication and a fold: the keys are pairs of small numbers, nobody chooses them to collide.
#[derive(Default)]
pub(crate) struct MixHasher(u64);

impl Hasher for MixHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let wide = u128::from(self.0 ^ value) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (wide as u64) ^ ((wide >> 64) as u64);
    }
}
