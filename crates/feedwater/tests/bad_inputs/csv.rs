//! CSV and its relatives.

use feedwater::error::Place;

use crate::harness::{
    As, Scratch, bad_dataset, every_mutation, every_prefix, fixture, folder, only_bad, skipping,
};

const HEADER: &str = "file_name,text\n";

fn dataset(name: &str, table: &[u8]) -> tempfile::TempDir {
    let sound = fixture("pcm_s16le.wav");
    folder(&[("good.wav", sound.as_slice()), ("b.wav", &sound), ("c.wav", &sound), (name, table)])
}

#[track_caller]
fn bad(row: &[u8], words: &str) {
    let table = [HEADER.as_bytes(), b"good.wav,good\n", row, b"\n"].concat();
    let folder = dataset("train.csv", &table);
    only_bad(&folder.path().join("train.csv"), As::Sound, "train.csv", &Place::Line(3), words);
}

/// The texts of a table that is good as a whole.
#[track_caller]
fn texts(table: &[u8]) -> Vec<String> {
    let folder = dataset("train.csv", table);
    let run = skipping(&folder.path().join("train.csv"), As::Sound);
    assert!(run.bad.is_empty(), "{:?}", run.bad);
    run.texts
}

#[test]
fn a_quote_that_is_not_closed() {
    // From there on nothing can be told apart: the whole table is refused, with the line.
    let table = format!("{HEADER}good.wav,good\n\"b.wav,\"\"b\"\" is open\ngood.wav,more\n");
    let folder = dataset("train.csv", table.as_bytes());
    let place = bad_dataset(&folder.path().join("train.csv"), "a quote is opened and never closed");
    assert_eq!(place, Place::Line(3));
}

#[test]
fn quoted_cells_may_hold_anything() {
    let table = format!("{HEADER}good.wav,\"one, \"\"two\"\"\nthree\"\r\nb.wav,\"\"\nc.wav,plain\n");
    assert_eq!(texts(table.as_bytes()), ["one, \"two\"\nthree", "", "plain"]);
}

/// A quote inside of a cell is a quote. Two of them, on two rows, made the rows one record, and the second vanished.
#[test]
fn a_quote_inside_of_a_cell_opens_nothing() {
    let table = format!("{HEADER}good.wav,a 5\" disk\nb.wav,a 3\" disk\nc.wav,\"closed\" and more\n");
    assert_eq!(texts(table.as_bytes()), ["a 5\" disk", "a 3\" disk", "closed and more"]);
    let odd = format!("{HEADER}good.wav,a 5\" disk\nb.wav,b\n");
    assert_eq!(texts(odd.as_bytes()), ["a 5\" disk", "b"]);
}

/// The end of a line is a line feed, with or without a return. A return alone cut the rest of the row off in silence.
#[test]
fn a_return_alone_ends_no_row() {
    let table = format!("{HEADER}good.wav,one\rtwo\r\nb.wav,b\n");
    assert_eq!(texts(table.as_bytes()), ["one\rtwo", "b"]);
}

#[test]
fn rows_that_are_ragged() {
    bad(b"b.wav", "1 cells where the header has 2");
    bad(b"b.wav,b,more", "3 cells where the header has 2");
}

#[test]
fn bytes_that_are_no_text() {
    bad(b"b.wav,a\0b", "a NUL byte in the row");
    bad(b"b.wav,caf\xE9", "invalid UTF-8");
}

#[test]
fn a_byte_order_mark_is_stepped_over() {
    let table = [b"\xEF\xBB\xBF".as_slice(), HEADER.as_bytes(), b"good.wav,a\n"].concat();
    assert_eq!(texts(&table), ["a"]);
    let quoted = b"\xEF\xBB\xBF\"file_name\",\"text\"\n\"good.wav\",\"a\"\n";
    assert_eq!(texts(quoted), ["a"]);
}

#[test]
fn numbers_that_are_none() {
    for (row, words) in [
        ("b.wav,b,long,1", "`long` is not a number"),
        ("b.wav,b,nan,1", "`nan` is not a number"),
        ("b.wav,b,inf,1", "`inf` is not a number"),
    ] {
        let table = format!("file_name,text,duration,label\ngood.wav,a,0.2,1\n{row}\n");
        let folder = dataset("train.csv", table.as_bytes());
        only_bad(&folder.path().join("train.csv"), As::Sound, "train.csv", &Place::Line(3), words);
    }
    // A label that is no number is a name, and does not go with numbers.
    let table = "file_name,text,label\ngood.wav,a,1\nb.wav,b,nan\n";
    let folder = dataset("train.csv", table.as_bytes());
    let words = "label `nan` among labels that are numbers";
    only_bad(&folder.path().join("train.csv"), As::Sound, "train.csv", &Place::Line(3), words);
}

#[test]
fn tables_without_what_they_need() {
    let folder = folder(&[
        ("empty.csv", b"".as_slice()),
        ("none.csv", b"a,b\n1,2\n"),
        ("bare.csv", b"file_name,text\n"),
        ("zeros.csv", b"file_name,te\0xt\na,b\n"),
    ]);
    let path = |name: &str| folder.path().join(name);
    bad_dataset(&path("empty.csv"), "the table is empty, it has not even a header");
    bad_dataset(&path("none.csv"), "has no column that names files; its columns are a, b");
    bad_dataset(&path("bare.csv"), "holds no samples");
    assert_eq!(bad_dataset(&path("zeros.csv"), "a NUL byte in the row"), Place::Line(1));
}

#[test]
fn tabs_have_no_quotes() {
    let folder = dataset("train.tsv", b"path\tsentence\ngood.wav\tshe said \"no\nb.wav\tb\n");
    let run = skipping(&folder.path().join("train.tsv"), As::Sound);
    assert_eq!((run.texts, run.bad.len()), (vec!["she said \"no".to_owned(), "b".to_owned()], 0));
}

const WHOLE: &[u8] = b"\xEF\xBB\xBFfile_name,text,duration\r\n\"a.wav\",\"one, \"\"two\"\"\nthree\",1.5\n\nb.wav,caf\xC3\xA9,\nc.wav,c,2";

#[test]
fn every_truncation() {
    let scratch = Scratch::new("train.csv");
    every_prefix(
        WHOLE,
        |bytes| scratch.try_dataset(bytes) == (3, 0),
        |length, good| {
            // Without its last number, the last row is a good one.
            assert!(!good || length + 1 == WHOLE.len(), "{length}");
        },
    );
}

#[test]
fn mutations() {
    for name in ["train.csv", "train.tsv", "train.txt"] {
        let scratch = Scratch::new(name);
        let whole = if name == "train.tsv" {
            WHOLE.iter().map(|byte| if *byte == b',' { b'\t' } else { *byte }).collect()
        } else {
            WHOLE.to_vec()
        };
        every_mutation(&whole, 2000, |bytes| scratch.try_dataset(bytes).0 > 0);
    }
}
