//! Text to token ids, by any Hugging Face `tokenizer.json`.

use std::{borrow::Cow, path::Path};

use tokenizers::Tokenizer;
use xxhash_rust::xxh3::xxh3_64;

use super::bpe::{Bpe, Words};
use crate::{
    error::{Error, Fault, Result},
    pipeline::{Context, Pool, Stage},
    sample::{Sample, Value, field},
};

/// A tokenizer, and what stands before and after the text's own ids.
pub struct Tokenize {
    tokenizer: Tokenizer,
    bpe: Option<Bpe>,
    added: Added,
    hash: u64,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    max_tokens: Option<usize>,
    into: Cow<'static, str>,
    words: Pool<Words>,
}

impl Tokenize {
    /// Reads a `tokenizer.json`, or the one in this folder.
    pub fn file(path: impl AsRef<Path>) -> Result<Self> {
        let mut path = path.as_ref().to_path_buf();
        if path.is_dir() {
            path.push("tokenizer.json");
        }
        let json = std::fs::read(&path).map_err(|error| Error::read(&path, error))?;
        Self::json(&json).map_err(|fault| {
            let hint = "take the `tokenizer.json` of the model's page on Hugging Face; a short file may be a Git LFS \
                        pointer, and `vocab.json` or `tokenizer_config.json` is another file";
            Error::dataset_hint(path, fault, hint)
        })
    }

    /// The bytes of a `tokenizer.json`.
    pub fn json(json: &[u8]) -> Result<Self, Fault> {
        let parsed: serde_json::Value = serde_json::from_slice(json)
            .map_err(|error| Fault::at_line(error.line() as u64, format!("not a tokenizer: {error}")))?;
        let tokenizer =
            Tokenizer::from_bytes(json).map_err(|error| Fault::new(format!("not a tokenizer: {error}")))?;
        let added = Added::of(tokenizer.get_added_tokens_decoder().into_values().map(|token| token.content));
        Ok(Self {
            bpe: Bpe::of(&parsed),
            tokenizer,
            added,
            hash: xxh3_64(json),
            prefix: Vec::new(),
            suffix: Vec::new(),
            max_tokens: None,
            into: Cow::Borrowed(""),
            words: Pool::default(),
        })
    }

    /// These tokens, by name, before each text: `["<|startoftranscript|>", "<|en|>", "<|transcribe|>", …]` for Whisper.
    pub fn prefix<S: AsRef<str>>(mut self, tokens: impl IntoIterator<Item = S>) -> Result<Self> {
        self.prefix = self.ids(tokens)?;
        Ok(self)
    }

    /// These tokens, by name, after each text: `["<|endoftext|>"]`.
    pub fn suffix<S: AsRef<str>>(mut self, tokens: impl IntoIterator<Item = S>) -> Result<Self> {
        self.suffix = self.ids(tokens)?;
        Ok(self)
    }

    /// Refuses texts that come out longer than this, prefix and suffix included. (Whisper: 448.)
    pub fn max_tokens(mut self, most: usize) -> Self {
        self.max_tokens = Some(most);
        self
    }

    /// Puts the ids into this field. Default: `labels` where the samples have sound, else `input_ids`.
    pub fn into_field(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.into = name.into();
        self
    }

    /// The id of a token by its name.
    pub fn id(&self, token: &str) -> Result<u32> {
        self.tokenizer.token_to_id(token).ok_or_else(|| {
            let bare = token.trim_matches(|c: char| !c.is_alphanumeric());
            let near = self.added.tokens.iter().find(|known| !bare.is_empty() && known.contains(bare));
            Error::config_hint(
                format!("the tokenizer has no token `{token}`"),
                near.map_or("look for its name under `added_tokens` of tokenizer.json".to_owned(), |near| {
                    format!("did you mean `{near}`?")
                }),
            )
        })
    }

    /// The ids of a text, prefix and suffix included.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Fault> {
        let mut ids = Vec::with_capacity(text.len() / 3 + self.prefix.len() + self.suffix.len());
        ids.extend_from_slice(&self.prefix);
        match &self.bpe {
            Some(bpe) if !self.added.is_in(text) => {
                let mut words = self.words.take();
                bpe.encode(text, &mut words, &mut ids);
                self.words.give(words);
            }
            _ => {
                let encoding = self
                    .tokenizer
                    .encode_fast(text, false)
                    .map_err(|error| Fault::new(format!("the tokenizer refused the text: {error}")))?;
                ids.extend_from_slice(encoding.get_ids());
            }
        }
        ids.extend_from_slice(&self.suffix);
        match self.max_tokens {
            Some(most) if ids.len() > most => {
                Err(Fault::new(format!("the text has {} tokens, more than the {most} allowed", ids.len())))
            }
            _ => Ok(ids),
        }
    }

    /// The text of some ids, without the tokens that are no text.
    pub fn text(&self, ids: &[u32]) -> Result<String, Fault> {
        self.tokenizer
            .decode(ids, true)
            .map_err(|error| Fault::new(format!("the tokenizer refused the ids: {error}")))
    }

    /// How many tokens there are, those that were added among them: one more than the largest id.
    pub fn size(&self) -> usize {
        self.tokenizer.get_vocab(true).into_values().max().map_or(0, |most| most as usize + 1)
    }

    fn ids<S: AsRef<str>>(&self, tokens: impl IntoIterator<Item = S>) -> Result<Vec<u32>> {
        tokens.into_iter().map(|token| self.id(token.as_ref())).collect()
    }

    /// Where the ids go, unless it was said.
    pub(crate) fn settle(mut self, default: &'static str) -> Self {
        if self.into.is_empty() {
            self.into = Cow::Borrowed(default);
        }
        self
    }
}

/// The tokens that are cut out of a text before all else.
struct Added {
    tokens: Vec<String>,
    first: [bool; 256],
}

impl Added {
    fn of(tokens: impl Iterator<Item = String>) -> Self {
        let tokens: Vec<_> = tokens.filter(|token| !token.is_empty()).collect();
        let mut first = [false; 256];
        for token in &tokens {
            first[token.as_bytes()[0] as usize] = true;
        }
        Self { tokens, first }
    }

    /// Whether any of them is in the text. There may be thousands, but they begin with one of a few bytes.
    fn is_in(&self, text: &str) -> bool {
        let bytes = text.as_bytes();
        let candidates = bytes.iter().enumerate().filter(|(_, byte)| self.first[**byte as usize]);
        candidates
            .into_iter()
            .any(|(at, _)| self.tokens.iter().any(|token| bytes[at..].starts_with(token.as_bytes())))
    }
}

impl Stage for Tokenize {
    fn name(&self) -> &'static str {
        "tokenize"
    }

    fn describe(&self) -> String {
        let Self { hash, prefix, suffix, max_tokens, into, .. } = self;
        format!("tokenize {hash:016x} {prefix:?} {suffix:?} {max_tokens:?} {into}")
    }

    fn version(&self) -> Option<u32> {
        Some(1)
    }

    fn apply(&self, sample: &mut Sample, _: &mut Context) -> Result<(), Fault> {
        let Some(Value::Text(text)) = sample.take(field::TEXT) else {
            return Err(Fault::new("the sample has no text to tokenize"));
        };
        let ids = self.encode(&text)?;
        sample.set(self.into.clone(), ids);
        Ok(())
    }
}
