//! Parquet tables.

use std::{path::Path, sync::Arc};

use arrow_array::{
    Array, ArrayRef, BinaryArray, Int32Array, Int64Array, RecordBatch, StringArray, StringViewArray,
    StructArray,
};
use arrow_schema::{DataType, Field};
use feedwater::error::Place;
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    file::properties::WriterProperties,
};

use crate::harness::{
    As, Scratch, bad_dataset, every_mutation, every_prefix, fixture, folder, only_bad, skipping,
};

fn write(columns: &[(&str, ArrayRef)], compression: Compression) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.iter().map(|(name, array)| (*name, array.clone(), true)),
    );
    let batch = batch.unwrap();
    let settings =
        WriterProperties::builder().set_compression(compression).set_max_row_group_row_count(Some(2)).build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(settings)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

fn texts(texts: &[Option<&str>]) -> ArrayRef {
    Arc::new(StringArray::from(texts.to_vec()))
}

fn table() -> Vec<u8> {
    write(&[("text", texts(&[Some("one"), Some("two"), Some("three")]))], Compression::SNAPPY)
}

fn sounds(cells: &[Option<&[u8]>]) -> ArrayRef {
    let bytes: ArrayRef = Arc::new(BinaryArray::from(cells.to_vec()));
    let path = texts(&vec![Some("a.wav"); cells.len()]);
    let field = |name: &str, of: &ArrayRef| Arc::new(Field::new(name, of.data_type().clone(), true));
    Arc::new(StructArray::from(vec![(field("bytes", &bytes), bytes), (field("path", &path), path)]))
}

#[track_caller]
fn refused(bytes: &[u8], words: &str) {
    let folder = folder(&[("train.parquet", bytes)]);
    bad_dataset(&folder.path().join("train.parquet"), words);
}

#[track_caller]
fn bad(bytes: &[u8], samples_are: As, row: u64, words: &str) {
    let folder = folder(&[("train.parquet", bytes)]);
    only_bad(&folder.path().join("train.parquet"), samples_are, "train.parquet", &Place::Row(row), words);
}

#[test]
fn a_footer_that_is_not_there() {
    let whole = table();
    let with = |footer: u32| {
        let mut bytes = whole.clone();
        let at = bytes.len() - 8;
        bytes[at..at + 4].copy_from_slice(&footer.to_le_bytes());
        bytes
    };
    refused(&with(whole.len() as u32 * 2), "Parquet file too small");
    refused(&with(u32::MAX), "Parquet file too small");
    refused(&with(0), "is not usable");
    refused(b"", "is not usable");
    refused(b"PAR1", "is not usable");
    refused(b"this is not a table at all", "Corrupt footer");
}

#[test]
fn a_table_that_was_cut_off() {
    let whole = table();
    refused(&whole[..whole.len() - 1], "Corrupt footer");
    refused(&whole[..whole.len() / 2], "Corrupt footer");
    // Pages that were cut out of the middle: the footer is whole, and what it speaks of is not there.
    let cut = [&whole[..20], &whole[whole.len() - footer_bytes(&whole)..]].concat();
    let folder = folder(&[("train.parquet", cut)]);
    let run = skipping(&folder.path().join("train.parquet"), As::Text);
    assert_eq!(run.bad.len(), 3, "{:?}", run.bad);
    for (row, bad) in run.bad.iter().enumerate() {
        assert_eq!(bad.line["row"], row);
        assert_eq!(bad.key, format!("train.parquet#{row}"));
    }
}

fn footer_bytes(whole: &[u8]) -> usize {
    let length = u32::from_le_bytes(*whole[whole.len() - 8..].first_chunk().unwrap());
    length as usize + 8
}

#[test]
fn pages_that_are_damaged() {
    let mut damaged = table();
    // In the pages of the first row group; the second is good.
    damaged[6..40].fill(0xFF);
    let folder = folder(&[("train.parquet", damaged)]);
    let run = skipping(&folder.path().join("train.parquet"), As::Text);
    assert_eq!((run.good.len(), run.bad.len()), (1, 2), "{:?}", run.bad);
    assert_eq!(run.texts, ["three"]);
    assert_eq!((&run.bad[0].line["row"], &run.bad[1].line["row"]), (&0.into(), &1.into()));
}

#[test]
fn columns_of_the_wrong_type() {
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    refused(
        &write(&[("text", numbers.clone())], Compression::UNCOMPRESSED),
        "the column `text` holds Int64, not text",
    );
    refused(
        &write(&[("audio", numbers.clone())], Compression::UNCOMPRESSED),
        "the column `audio` holds Int64, not sound",
    );
    let words = texts(&[Some("a"), Some("b")]);
    let no_bytes =
        StructArray::from(vec![(Arc::new(Field::new("path", DataType::Utf8, true)), words.clone())]);
    refused(&write(&[("audio", Arc::new(no_bytes))], Compression::UNCOMPRESSED), "`audio` holds");
    refused(
        &write(&[("a", numbers)], Compression::UNCOMPRESSED),
        "neither a text nor an audio column, only a",
    );
}

/// Other writers than this one store text as views or as dictionaries, and say so in a note to the reader. With it
/// heeded, every row was "missing, or not a string".
#[test]
fn text_is_text_however_it_is_held_in_memory() {
    let views: ArrayRef =
        Arc::new(StringViewArray::from(vec!["one", "a text that is longer than a view is"]));
    let folder = folder(&[("train.parquet", write(&[("text", views)], Compression::UNCOMPRESSED))]);
    let run = skipping(&folder.path().join("train.parquet"), As::Text);
    assert_eq!((run.texts.len(), run.bad.len()), (2, 0), "{:?}", run.bad);
}

#[test]
fn a_file_name_beside_the_sound_is_not_the_sound() {
    let sound = fixture("pcm_s16le.wav");
    let both =
        write(&[("file_name", texts(&[Some("a")])), ("audio", sounds(&[Some(&sound)]))], Compression::SNAPPY);
    let folder = folder(&[("train.parquet", both)]);
    let run = skipping(&folder.path().join("train.parquet"), As::Sound);
    assert_eq!((run.good.len(), run.bad.len()), (1, 0), "{:?}", run.bad);
}

#[test]
fn cells_that_are_missing_or_bad() {
    let sound = fixture("pcm_s16le.wav");
    bad(
        &write(&[("text", texts(&[Some("a"), None]))], Compression::UNCOMPRESSED),
        As::Text,
        1,
        "the text is missing",
    );
    let audio = |second| write(&[("audio", sounds(&[Some(&sound), second]))], Compression::SNAPPY);
    bad(&audio(None), As::Sound, 1, "the audio is missing");
    let folder = folder(&[("train.parquet", audio(Some(b"RIFF")))]);
    let path = folder.path().join("train.parquet");
    let run = skipping(&path, As::Sound);
    assert_eq!((run.good.len(), run.bad.len()), (1, 1));
    assert_eq!(run.bad[0].key, "train.parquet#1");
    assert_eq!(run.bad[0].line["file"].as_str().map(Path::new), Some(path.as_path()));
}

/// A label that is missing was read as class 0, and one of 32 bits not at all.
#[test]
fn labels_are_read_or_refused() {
    let text = ("text", texts(&[Some("a"), Some("b")]));
    let narrow: ArrayRef = Arc::new(Int32Array::from(vec![3, 4]));
    let folder =
        folder(&[("train.parquet", write(&[text.clone(), ("label", narrow)], Compression::UNCOMPRESSED))]);
    let source = feedwater::source::open(folder.path().join("train.parquet")).unwrap();
    let sample = source.sample(1).unwrap();
    assert!(matches!(sample.get("labels"), Some(feedwater::Value::Number(4.0))), "{sample:?}");
    let missing: ArrayRef = Arc::new(Int64Array::from(vec![Some(0), None]));
    bad(&write(&[text, ("label", missing)], Compression::UNCOMPRESSED), As::Text, 1, "the label is missing");
}

/// A page that says that it is two gigabytes when it is unpacked.
#[test]
fn a_page_that_claims_gigabytes() {
    let mut bytes = write(&[("text", texts(&[Some("one"), Some("two")]))], Compression::SNAPPY);
    // The header of the first page: field 1, the kind; field 2, its size unpacked, a varint of zigzag.
    assert_eq!(bytes[4] & 0x0F, 5);
    assert_eq!(bytes[6], 0x15);
    let length = bytes[7..].iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    let huge = [0xFE, 0xFF, 0xFF, 0xFF, 0x0F];
    bytes.splice(7..7 + length, huge);
    let folder = folder(&[("train.parquet", bytes)]);
    let run = skipping(&folder.path().join("train.parquet"), As::Text);
    assert_eq!(run.bad.len(), 2, "{:?}", run.bad);
    assert!(run.bad[0].reason.contains("2147483647 bytes"), "{:?}", run.bad);
}

#[test]
fn every_truncation() {
    let scratch = Scratch::new("train.parquet");
    every_prefix(
        &table(),
        |bytes| scratch.try_dataset(bytes).0 > 0,
        |length, good| assert!(!good, "{length}"),
    );
}

#[test]
fn mutations() {
    let sound = fixture("pcm_u8.wav");
    let audio = sounds(&[Some(&sound[..200]), Some(&sound[..300]), None]);
    let labels: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    for compression in
        [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(ZstdLevel::default())]
    {
        let columns = [
            ("audio", audio.clone()),
            ("text", texts(&[Some("a"), None, Some("c")])),
            ("label", labels.clone()),
        ];
        let whole = write(&columns, compression);
        let scratch = Scratch::new("train.parquet");
        every_mutation(&whole, 1000, |bytes| scratch.try_dataset(bytes).0 > 0);
    }
}
