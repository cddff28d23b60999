//! JSON lines.

use std::{
    fs::File,
    io::{Seek, SeekFrom, Write},
};

use feedwater::{Error, error::Place, source};
use tempfile::TempDir;

use crate::harness::{
    As, Scratch, bad_dataset, every_mutation, every_prefix, fixture, folder, only_bad, skipping,
};

const GOOD: &[u8] = b"{\"text\": \"good\"}\n";

#[track_caller]
fn bad(line: &[u8], words: &str) {
    let text = [GOOD, line, b"\n", GOOD].concat();
    let folder = folder(&[("train.jsonl", text)]);
    only_bad(&folder.path().join("train.jsonl"), As::Text, "train.jsonl", &Place::Line(2), words);
}

/// A hole is read many times faster where files are kept in memory.
fn in_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

#[test]
fn a_line_of_ten_gigabytes() {
    let folder = in_memory();
    let path = folder.path().join("train.jsonl");
    let mut file = File::create(&path).unwrap();
    file.write_all(GOOD).unwrap();
    let size = 10_000_000_000;
    file.set_len(size).unwrap();
    // A hole in the file reads as zeros and takes no room. Behind it, another good line.
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(&[b"\n", GOOD].concat()).unwrap();
    // Once only: ten gigabytes of nothing take a few seconds to look through.
    let run = skipping(&path, As::Text);
    assert_eq!(run.texts, ["good", "good"]);
    assert_eq!(
        (run.bad.len(), run.bad[0].key.as_str(), &run.bad[0].line["line"]),
        (1, "train.jsonl#1", &2.into())
    );
    let words =
        format!("a record of {} bytes, longer than the 67108864 allowed", size - GOOD.len() as u64 + 1);
    assert_eq!(run.bad[0].reason, words);
}

#[test]
fn depth() {
    let brackets = "[".repeat(100_000);
    bad(format!("{{\"text\": {brackets}").as_bytes(), "expected a string");
    bad(format!("{{\"words\": {brackets}").as_bytes(), "EOF while parsing a list");
    bad(brackets.as_bytes(), "expected a JSON object");
    // In a column that nobody wants it is skipped over, without a call for each level.
    let closed = format!("{{\"other\": {brackets}{}, \"text\": \"b\"}}\n", "]".repeat(100_000));
    let folder = folder(&[("train.jsonl", [GOOD, closed.as_bytes()].concat())]);
    let run = skipping(&folder.path().join("train.jsonl"), As::Text);
    assert_eq!(run.texts, ["good", "b"]);
    // And in the columns that are known but nested.
    let spans = format!(
        "{{\"audio_filepath\": \"good.wav\", \"text\": \"a\", \"words\": []}}\n{{\"audio_filepath\": \"good.wav\", \"words\": {brackets}}}\n"
    );
    let folder = crate::harness::folder(&[
        ("good.wav", fixture("pcm_s16le.wav")),
        ("train.jsonl", spans.into_bytes()),
    ]);
    only_bad(&folder.path().join("train.jsonl"), As::Sound, "train.jsonl", &Place::Line(2), "invalid type");
}

#[test]
fn bytes_that_are_no_text() {
    bad(b"{\"text\": \"caf\xE9\"}", "invalid unicode code point");
    bad(b"{\"text\": \"\xED\xA0\x80\"}", "invalid unicode code point");
    bad(b"{\"text\": \"\\ud800\"}", "unexpected end of hex escape");
    bad(b"{\"text\": \"a\0b\"}", "control character");
    bad(b"{\"text\": \"a\"}\0", "trailing characters");
    bad(b"\0\0\0\0", "expected value");
}

#[test]
fn a_byte_order_mark_is_stepped_over() {
    let folder = folder(&[("train.jsonl", [b"\xEF\xBB\xBF", GOOD, b"\r\n", GOOD].concat())]);
    let run = skipping(&folder.path().join("train.jsonl"), As::Text);
    assert_eq!((run.texts, run.bad.len()), (vec!["good".to_owned(); 2], 0));
}

#[test]
fn types_that_drift() {
    bad(b"{\"text\": 7}", "invalid type: integer `7`, expected a string");
    bad(b"{\"text\": [\"a\"]}", "expected a string");
    bad(b"{\"text\": null}", "the row has no text");
    bad(b"{\"other\": 1}", "the row has no text");
    bad(b"[\"good\"]", "expected a JSON object");
    bad(b"{\"text\": \"a\"} {\"text\": \"b\"}", "trailing characters");
    bad(b"{\"text\": \"cut off", "EOF while parsing a string");
}

fn manifest(line: &str) -> String {
    let good = "{\"audio_filepath\": \"good.wav\", \"duration\": 0.2, \"text\": \"a\", \"label\": 1}\n";
    format!("{good}{line}\n{good}")
}

#[test]
fn a_manifest_whose_types_drift() {
    for (line, words) in [
        (r#"{"audio_filepath": 7, "text": "a"}"#, "expected a string"),
        (r#"{"audio_filepath": "", "text": "a"}"#, "the row names no file"),
        (r#"{"text": "a", "label": 1}"#, "the row names no file"),
        (r#"{"audio_filepath": "good.wav", "duration": "long"}"#, "expected f64"),
        (r#"{"audio_filepath": "good.wav", "duration": 1e999}"#, "number out of range"),
        (
            r#"{"audio_filepath": "good.wav", "offset": -1, "duration": 1}"#,
            "an offset of -1 s and a duration of 1 s",
        ),
        (
            r#"{"audio_filepath": "good.wav", "text": "a", "label": "dog"}"#,
            "label `dog` among labels that are numbers",
        ),
        (
            r#"{"audio_filepath": "good.wav", "text": "a", "label": {}}"#,
            "a label is neither a number nor a name",
        ),
        (r#"{"audio_filepath": "rm -rf / |", "text": "a", "label": 1}"#, "is a command, not a file"),
    ] {
        let folder =
            folder(&[("good.wav", fixture("pcm_s16le.wav")), ("train.jsonl", manifest(line).into_bytes())]);
        let run = skipping(&folder.path().join("train.jsonl"), As::Sound);
        assert_eq!((run.good.len(), run.bad.len()), (2, 1), "{line}: {:?}", run.bad);
        assert!(run.bad[0].reason.contains(words), "{line}: {}", run.bad[0].reason);
        assert_eq!(run.bad[0].line["line"], 2, "{line}");
    }
}

/// A first line that is damaged made a manifest of sound look like plain text, and the sound was lost without a word.
#[test]
fn a_first_line_that_is_damaged_does_not_change_what_the_dataset_is() {
    let text = format!("{{\"audio_filepath\": \"good.wav\", \"te\n{}", manifest("{\"text\": 1}"));
    let folder = folder(&[("good.wav", fixture("pcm_s16le.wav")), ("train.jsonl", text.into_bytes())]);
    let path = folder.path().join("train.jsonl");
    assert_eq!(source::detect(&path).unwrap(), source::Kind::Manifest);
    assert_eq!(skipping(&path, As::Sound).good.len(), 2);
}

#[test]
fn nothing_that_could_be_read() {
    let folder = folder(&[
        ("empty.jsonl", b"".as_slice()),
        ("array.jsonl", b"[{\"text\": \"a\"}]\n"),
        ("cut.jsonl", b"{\"text\": \"a\n{\"text\": \"b\n"),
        ("other.jsonl", b"{\"a\": 1}\n"),
    ]);
    let path = |name: &str| folder.path().join(name);
    bad_dataset(&path("empty.jsonl"), "holds no samples");
    bad_dataset(&path("array.jsonl"), "its first line is not an object");
    let place = bad_dataset(&path("cut.jsonl"), "not a JSON object");
    assert_eq!(place, Place::Line(1));
    bad_dataset(&path("other.jsonl"), "has no text column; its columns are a");
    let Err(Error::Config { hint, .. }) = source::open(path("array.jsonl")) else { panic!("another error") };
    assert!(hint.unwrap().contains("jq -c"));
}

#[test]
fn every_truncation() {
    let whole = b"\xEF\xBB\xBF{\"text\": \"one\", \"n\": [1, {\"a\": null}]}\r\n\n{\"n\": 2.5e3, \"text\": \"caf\xC3\xA9\"}\n{\"text\": \"\\u00e9\"}";
    let scratch = Scratch::new("train.jsonl");
    every_prefix(
        whole,
        |bytes| scratch.try_dataset(bytes) == (3, 0),
        |length, good| assert!(!good, "{length}"),
    );
}

#[test]
fn mutations() {
    let text = b"{\"text\": \"one\", \"n\": [1, {\"a\": null}]}\n{\"n\": 2.5e3, \"text\": \"caf\xC3\xA9\"}\n{\"text\": \"\\u00e9\"}\n";
    let rows = b"{\"audio_filepath\": \"a.wav\", \"duration\": 1.5, \"offset\": 0.5, \"label\": \"x\"}\n{\"audio_filepath\": \"b.wav\", \"words\": [{\"word\": \"a\", \"start\": 0, \"end\": 1}]}\n";
    for whole in [text.as_slice(), rows] {
        let scratch = Scratch::new("train.jsonl");
        every_mutation(whole, 3000, |bytes| scratch.try_dataset(bytes).0 > 0);
    }
}
