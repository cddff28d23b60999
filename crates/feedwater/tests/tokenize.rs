//! Token ids are those of Hugging Face's `tokenizers`, by whichever way they are made.
//!
//! The reference ids come from `fixtures/make_tokenizer.py`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{fs, path::PathBuf, sync::LazyLock};

use feedwater::{Error, Tokenize};
use proptest::prelude::*;
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer").join(name)
}

fn tokenizer(name: &str) -> Tokenize {
    Tokenize::file(fixture(&format!("{name}.json"))).unwrap()
}

#[test]
fn ids_are_those_of_the_reference() {
    let expected: Value = serde_json::from_slice(&fs::read(fixture("expected.json")).unwrap()).unwrap();
    for name in ["gpt2", "prefix", "wordpiece"] {
        let tokenizer = tokenizer(name);
        for (text, ids) in
            expected["texts"].as_array().unwrap().iter().zip(expected[name].as_array().unwrap())
        {
            let text = text.as_str().unwrap();
            let ids: Vec<u32> =
                ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
            assert_eq!(tokenizer.encode(text).unwrap(), ids, "{name}: {text:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn any_text_gives_the_ids_of_the_library(text in "(\\PC|[ \\n\\t'<|0-9a-zA-Z])*") {
        static BOTH: LazyLock<(Tokenize, tokenizers::Tokenizer)> =
            LazyLock::new(|| (tokenizer("gpt2"), tokenizers::Tokenizer::from_file(fixture("gpt2.json")).unwrap()));
        let encoding = BOTH.1.encode_fast(text.as_str(), false).unwrap();
        prop_assert_eq!(BOTH.0.encode(&text).unwrap(), encoding.get_ids());
    }
}

#[test]
fn every_character_is_of_the_class_that_the_library_says() {
    let reference = tokenizers::Tokenizer::from_file(fixture("gpt2.json")).unwrap();
    let ours = tokenizer("gpt2");
    // Between a letter and a digit, each character shows by where the words break what it is taken for.
    for start in (0..0x0011_0000_u32).step_by(64) {
        let text: String = (start..start + 64)
            .filter_map(char::from_u32)
            .flat_map(|c| ['a', c, '1', c, ' ', c, '\n'])
            .collect();
        if !text.is_empty() {
            let encoding = reference.encode_fast(text.as_str(), false).unwrap();
            assert_eq!(ours.encode(&text).unwrap(), encoding.get_ids(), "from U+{start:04X}");
        }
    }
}

#[test]
fn prefix_and_suffix_go_by_name() {
    let plain = tokenizer("gpt2").encode("hello").unwrap();
    let tokenize = tokenizer("gpt2")
        .prefix(["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"])
        .unwrap()
        .suffix(["<|endoftext|>"])
        .unwrap();
    let ids = tokenize.encode("hello").unwrap();
    assert_eq!(ids[..4], [1, 2, 3, 4]);
    assert_eq!(ids[4..ids.len() - 1], plain);
    assert_eq!(ids[ids.len() - 1], 0);
}

#[test]
fn a_token_that_is_not_there_is_named_with_one_that_is() {
    let Err(error) = tokenizer("gpt2").suffix(["endoftext"]) else { panic!("it was taken") };
    insta::assert_snapshot!(error, @r"
    the tokenizer has no token `endoftext`
    hint: did you mean `<|endoftext|>`?
    ");
}

#[test]
fn a_text_that_is_too_long_is_refused() {
    let fault = tokenizer("gpt2").max_tokens(3).encode("a b c d e f g").unwrap_err();
    assert_eq!(fault.reason, "the text has 7 tokens, more than the 3 allowed");
}

#[test]
fn what_is_not_a_tokenizer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for wrong in ["", "{", "[]", "{}", r#"{"model": {"type": "BPE"}}"#, "null"] {
        let file = folder.path().join("tokenizer.json");
        fs::write(&file, wrong).unwrap();
        assert!(matches!(Tokenize::file(&file), Err(Error::Dataset { .. })), "{wrong}");
    }
    assert!(matches!(Tokenize::file(folder.path().join("none.json")), Err(Error::Read { .. })));
}
