//! Which letters does a model know? Those of its training texts, each a class of its own, kept as a `tokenizer.json`.

use std::{collections::BTreeSet, fs, path::Path};

use feedwater::{Tokenize, source::Source, transform::byte_character};
use serde_json::{Value, json};

use crate::{Error, Result};

/// What stands between letters.
pub const BLANK: u32 = 0;

/// Letters, by the number of their class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    letters: Vec<char>,
}

impl Vocabulary {
    /// The letters of all texts of a dataset.
    pub fn of(source: &dyn Source) -> Result<Self> {
        let mut letters = BTreeSet::new();
        for index in 0..source.len() {
            // A sample that cannot be read is the pipeline's to report.
            if let Ok(sample) = source.sample(index)
                && let Some(text) = sample.text()
            {
                letters.extend(text.trim().chars());
            }
        }
        if letters.is_empty() {
            return Err(Error::config(
                "no sample of the dataset has a text to learn",
                "put a `text` into its metadata.jsonl: `feedwater inspect` shows what is there",
            ));
        }
        Ok(Self { letters: letters.into_iter().collect() })
    }

    /// How many classes: the letters, the blank, and one for what is none of them.
    pub fn classes(&self) -> usize {
        self.letters.len() + 2
    }

    /// Classes as text. What is no letter is left out.
    pub fn text(&self, classes: impl IntoIterator<Item = u32>) -> String {
        let letter = |class: u32| self.letters.get((class as usize).checked_sub(2)?).copied();
        classes.into_iter().filter_map(letter).collect()
    }

    fn json(&self) -> Value {
        tokenizer(&self.letters, &["<blank>", "<unknown>"], "<unknown>", &[])
    }

    /// A `tokenizer.json` of these letters for a model that has tokens of its own, which come first.
    pub fn with_tokens(&self, tokens: &[&str]) -> String {
        let unknown = "<|unknown|>";
        let first: Vec<&str> = tokens.iter().copied().chain([unknown]).collect();
        format!("{:#}\n", tokenizer(&self.letters, &first, unknown, tokens))
    }

    /// As a tokenizer for a pipeline.
    pub fn tokenize(&self) -> Result<Tokenize> {
        Tokenize::json(self.json().to_string().as_bytes()).map_err(|fault| {
            Error::config(format!("the letters make no tokenizer: {fault}"), "this is a bug")
        })
    }

    /// What `tokenizer.json` has.
    pub fn file(&self) -> String {
        format!("{:#}\n", self.json())
    }

    /// Writes `tokenizer.json`.
    pub fn save(&self, folder: &Path) -> Result<()> {
        let path = folder.join("tokenizer.json");
        fs::write(&path, self.file()).map_err(Error::write(&path))
    }

    /// Reads `tokenizer.json`.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        let text = fs::read_to_string(&path).map_err(Error::read(&path))?;
        let wrong = |what: &str| Error::Checkpoint { path: path.clone(), what: what.to_owned() };
        let value: Value = serde_json::from_str(&text).map_err(|error| wrong(&error.to_string()))?;
        let known = value["model"]["vocab"].as_object().ok_or_else(|| wrong("it has no `model.vocab`"))?;
        let mut letters = vec![None; known.len().saturating_sub(2)];
        for (name, class) in known {
            let class = class.as_u64().ok_or_else(|| wrong("a class is no number"))? as usize;
            if class < 2 {
                continue;
            }
            let mut name = name.chars();
            match (letters.get_mut(class - 2), name.next(), name.next()) {
                (Some(place @ None), Some(letter), None) => *place = Some(letter),
                _ => return Err(wrong("its classes are not a letter each, counted from 2")),
            }
        }
        let letters: Option<Vec<char>> = letters.into_iter().collect();
        Ok(Self { letters: letters.ok_or_else(|| wrong("a class has no letter"))? })
    }
}

/// Letters as a tokenizer, behind some tokens with names; of those, `special` are no text.
fn tokenizer(letters: &[char], first: &[&str], unknown: &str, special: &[&str]) -> Value {
    let names = first.iter().map(ToString::to_string).chain(letters.iter().map(ToString::to_string));
    let vocabulary: serde_json::Map<String, Value> =
        names.enumerate().map(|(id, name)| (name, json!(id))).collect();
    let added: Vec<Value> = special.iter().enumerate().map(|(id, name)| added_token(id, name)).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": {"type": "Strip", "strip_left": true, "strip_right": true},
        "pre_tokenizer": {
            "type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": false
        },
        "post_processor": null,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": unknown}
    })
}

fn added_token(id: usize, name: &str) -> Value {
    json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
           "normalized": false, "special": true})
}

/// A `tokenizer.json` for a new Whisper: a token for each byte, so that it can say any text, and behind them its own. That
/// they stand last is what transformers goes by: all behind `<|notimestamps|>` is a time to it.
pub fn bytes_with_tokens(tokens: &[&str]) -> String {
    let bytes = (0..=u8::MAX).map(|byte| (byte_character(byte).to_string(), json!(byte)));
    let added: Vec<Value> = tokens.iter().enumerate().map(|(at, name)| added_token(256 + at, name)).collect();
    let own = tokens.iter().enumerate().map(|(at, name)| ((*name).to_owned(), json!(256 + at)));
    let vocabulary: serde_json::Map<String, Value> = bytes.chain(own).collect();
    let whole = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": []
        }
    });
    format!("{whole:#}\n")
}
