//! What are the tokens of a text that came without a tokenizer?
//!
//! To see what tokenizing costs, any vocabulary of the usual kind will do: byte-level BPE, made from the beginning of the
//! text itself. It is not for training, and whoever runs this is told so.

use std::{
    fs,
    path::{Path, PathBuf},
};

use feedwater::source;
use miette::{IntoDiagnostic, WrapErr, miette};
use tokenizers::{
    AddedToken, TokenizerBuilder,
    models::bpe::{BPE, BpeTrainerBuilder},
    normalizers::NormalizerWrapper,
    pre_tokenizers::byte_level::ByteLevel,
};

use super::setup::{Setup, Task};

const VOCABULARY: usize = 8_000;
const TEXT_BYTES: usize = 1 << 20;

/// The tokenizer of several runs: the one that was given, or one that is made once for all of them.
pub(crate) fn of(setup: &Setup, folder: &Path) -> miette::Result<Option<PathBuf>> {
    if setup.task != Task::Text || setup.tokenizer.is_some() {
        return Ok(setup.tokenizer.clone());
    }
    let file = folder.join("tokenizer.json");
    fs::write(&file, made_from(&setup.data)?).into_diagnostic().wrap_err("could not write a tokenizer")?;
    Ok(Some(file))
}

/// A tokenizer made from the first megabyte of a text.
pub(crate) fn made_from(data: &Path) -> miette::Result<String> {
    let source = source::open(data).map_err(|error| miette!("{error}"))?;
    let mut texts = Vec::new();
    let mut bytes = 0;
    for index in 0..source.len() {
        let Ok(sample) = source.sample(index) else { continue };
        let Some(text) = sample.text() else { continue };
        bytes += text.len();
        texts.push(text.to_owned());
        if bytes > TEXT_BYTES {
            break;
        }
    }
    let failed = |error: tokenizers::Error| miette!("no vocabulary could be made from the text: {error}");
    let mut trainer = BpeTrainerBuilder::new()
        .show_progress(false)
        .vocab_size(VOCABULARY)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(vec![AddedToken::from("<|endoftext|>", true)])
        .build();
    let mut tokenizer = TokenizerBuilder::new()
        .with_model(BPE::default())
        .with_normalizer(None::<NormalizerWrapper>)
        .with_pre_tokenizer(Some(ByteLevel::new(false, true, true)))
        .with_post_processor(Some(ByteLevel::default()))
        .with_decoder(Some(ByteLevel::default()))
        .build()
        .map_err(failed)?;
    tokenizer
        .train(&mut trainer, texts.iter().map(String::as_str))
        .map_err(failed)?
        .to_string(false)
        .map_err(failed)
}
