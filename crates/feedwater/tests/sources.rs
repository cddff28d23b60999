//! Each kind of dataset is found by looking, and gives the samples that it holds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow_array::{ArrayRef, BinaryArray, RecordBatch, StringArray, StructArray};
use arrow_schema::{DataType, Field};
use common::{clip, wav};
use feedwater::{
    Audio, Batch, Npy, Pipeline, Policy, ReadyBatch, Value,
    decode::{Limits, npy},
    field,
    source::{self, Kind, Source},
};
use parquet::{arrow::ArrowWriter, file::properties::WriterProperties};

/// Writes clips of 0.1, 0.2, … s.
fn clips(folder: &Path, names: &[&str]) {
    for (number, name) in names.iter().enumerate() {
        let file = folder.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, wav(&clip(number, 0.1 * (number + 1) as f64), 16_000)).unwrap();
    }
}

/// All samples of a dataset in one batch, in the order of the source.
fn all(path: &Path) -> ReadyBatch {
    let source = source::open(path).unwrap();
    let (kind, count) = (source.kind(), source.len());
    let builder = Pipeline::from_source(source).batch(Batch::of(count)).shuffle(false).policy(Policy::fail());
    let builder = match kind {
        Kind::Npy | Kind::NpyManifest | Kind::Hdf5 => builder.decode(Npy),
        Kind::Text => builder,
        _ => builder.decode(Audio::mono(16_000)),
    };
    builder.build().unwrap().epoch(0).next().unwrap().unwrap()
}

fn sound_lengths(batch: &ReadyBatch) -> Vec<usize> {
    batch.get("input_values").unwrap().lengths.clone()
}

#[test]
fn audiofolder_with_jsonl_and_with_csv() {
    let folder = tempfile::tempdir().unwrap();
    clips(folder.path(), &["train/a.wav", "train/b.wav"]);
    let jsonl = folder.path().join("metadata.jsonl");
    // The first row has no text; that must not hide the second's.
    fs::write(
        &jsonl,
        "{\"file_name\": \"train/a.wav\"}\n\n{\"file_name\": \"train/b.wav\", \"text\": \"b\", \"x\": [1]}\n",
    )
    .unwrap();
    assert_eq!(source::detect(folder.path()).unwrap(), Kind::AudioFolder);
    let batch = all(folder.path());
    assert_eq!(batch.keys, ["train/a.wav", "train/b.wav"]);
    assert_eq!(batch.texts[0].1, ["", "b"]);
    assert_eq!(sound_lengths(&batch), [1600, 3200]);

    fs::remove_file(jsonl).unwrap();
    let csv = "\u{feff}file_name,transcription\ntrain/a.wav,\"one, \"\"two\"\"\nthree\"\ntrain/b.wav,b\n";
    fs::write(folder.path().join("metadata.csv"), csv).unwrap();
    let batch = all(folder.path());
    assert_eq!(batch.texts[0].1, ["one, \"two\"\nthree", "b"]);
}

#[test]
fn nemo_manifest_with_offsets() {
    let folder = tempfile::tempdir().unwrap();
    clips(folder.path(), &["a.wav", "b.wav"]);
    let manifest = folder.path().join("manifest.jsonl");
    let lines = "{\"audio_filepath\": \"b.wav\", \"duration\": 0.05, \"offset\": 0.1, \"text\": \"part\"}\n\
                 {\"audio_filepath\": \"a.wav\", \"duration\": 0.1, \"text\": \"whole\"}\n";
    fs::write(&manifest, lines).unwrap();
    assert_eq!(source::detect(&manifest).unwrap(), Kind::Manifest);
    let batch = all(&manifest);
    assert_eq!(batch.keys, ["b.wav#0", "a.wav#1"]);
    assert_eq!(sound_lengths(&batch), [800, 1600]);
    let whole: Vec<f32> = clip(1, 0.2).iter().map(|sample| f32::from(*sample) / 32768.0).collect();
    assert_eq!(batch.get("input_values").unwrap().as_f32().unwrap()[..800], whole[1600..2400]);
}

#[test]
fn ljspeech_common_voice_and_bare_folders() {
    let folder = tempfile::tempdir().unwrap();
    clips(folder.path(), &["wavs/LJ1.wav", "wavs/LJ2.wav"]);
    fs::write(folder.path().join("metadata.csv"), "LJ1|raw \"1|normal 1\nLJ2|raw 2\n").unwrap();
    assert_eq!(source::detect(folder.path()).unwrap(), Kind::LjSpeech);
    let batch = all(folder.path());
    assert_eq!(
        (batch.keys, batch.texts[0].1.clone()),
        (vec!["LJ1".into(), "LJ2".into()], vec!["normal 1".into(), "raw 2".to_owned()])
    );

    let folder = tempfile::tempdir().unwrap();
    clips(folder.path(), &["clips/x.wav"]);
    let table = folder.path().join("validated.tsv");
    fs::write(&table, "client_id\tpath\tsentence\n7\tx.wav\tSaid \"so\n").unwrap();
    let batch = all(&table);
    assert_eq!(batch.texts[0].1, ["Said \"so"]);

    let folder = tempfile::tempdir().unwrap();
    clips(folder.path(), &["b/2.wav", "a/1.wav"]);
    assert_eq!(source::detect(folder.path()).unwrap(), Kind::Audio);
    assert_eq!(all(folder.path()).keys, ["a/1.wav", "b/2.wav"]);
    let list = folder.path().join("list.txt");
    fs::write(&list, "b/2.wav\na/1.wav\n").unwrap();
    assert_eq!(source::detect(&list).unwrap(), Kind::PathList);
    assert_eq!(all(&list).keys, ["b/2.wav#0", "a/1.wav#1"]);
}

/// A `.npy` of one row with one number.
fn npy_file(value: f32) -> Vec<u8> {
    let mut file = b"\x93NUMPY\x01\x00\x40\x00".to_vec();
    file.extend(
        format!("{:<63}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1), }").as_bytes(),
    );
    file.extend(value.to_le_bytes());
    file
}

#[test]
fn arrays_with_labels_from_tables() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.npy", "b.npy", "c.npy"] {
        fs::write(folder.path().join(name), npy_file(1.0)).unwrap();
    }
    let labels = |batch: &ReadyBatch| batch.get(field::LABELS).unwrap().as_i64().unwrap().to_vec();
    fs::write(folder.path().join("labels.csv"), "file,label\na.npy,zebra\nb.npy,ant\nc.npy,zebra\n").unwrap();
    assert_eq!(labels(&all(folder.path())), [1, 0, 1]);
    let table = folder.path().join("table.csv");
    fs::write(&table, "path,label\nc.npy,5\na.npy,6\n").unwrap();
    assert_eq!(source::detect(&table).unwrap(), Kind::NpyManifest);
    assert_eq!(labels(&all(&table)), [5, 6]);
    fs::write(&table, "path,label\nc.npy,x\na.npy,w\n").unwrap();
    assert_eq!(labels(&all(&table)), [1, 0]);
}

#[test]
fn text_in_lines_and_in_json() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.txt"), "one\r\n\n  two  \nthree").unwrap();
    fs::write(
        folder.path().join("b.jsonl"),
        "{\"id\": 1, \"words\": 7, \"label\": [], \"text\": \"fo\\u00fcr\"}\n",
    )
    .unwrap();
    assert_eq!(source::detect(folder.path()).unwrap(), Kind::Text);
    let batch = all(folder.path());
    assert_eq!(batch.keys, ["a.txt#0", "a.txt#1", "a.txt#2", "b.jsonl#0"]);
    assert_eq!(batch.texts[0].1, ["one", "  two  ", "three", "foür"]);
}

fn tar(path: &Path, members: &[(&str, Vec<u8>)]) {
    let mut builder = tar::Builder::new(fs::File::create(path).unwrap());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append_data(&mut header, name, bytes.as_slice()).unwrap();
    }
    builder.finish().unwrap();
}

#[test]
fn tar_shards_group_neighbours_by_key() {
    let folder = tempfile::tempdir().unwrap();
    for shard in 0..2 {
        let sound = |seconds| wav(&clip(shard, seconds), 16_000);
        let members = [
            ("x/a.wav", sound(0.1)),
            ("x/a.txt", b"first\n".to_vec()),
            ("x/a.json", b"{\"speaker\": 7}".to_vec()),
            ("x/b.json", b"{\"text\": \"second\"}".to_vec()),
            ("x/b.wav", sound(0.2)),
        ];
        tar(&folder.path().join(format!("s-{shard:03}.tar")), &members);
    }
    let pattern = folder.path().join("s-{000..001}.tar");
    for path in [folder.path(), &pattern] {
        assert_eq!(source::detect(path).unwrap(), Kind::Tar);
        let batch = all(path);
        assert_eq!(batch.keys, ["s-000/x/a", "s-000/x/b", "s-001/x/a", "s-001/x/b"]);
        assert_eq!(batch.texts[0].1, ["first", "second", "first", "second"]);
        assert_eq!(sound_lengths(&batch), [1600, 3200, 1600, 3200]);
    }
}

#[test]
fn a_key_that_comes_twice_is_one_refused_sample_not_one_for_each_member() {
    let folder = tempfile::tempdir().unwrap();
    let sound = wav(&clip(0, 0.1), 16_000);
    let pair = |name: &'static str| {
        [(name, sound.clone()), (if name == "a.wav" { "a.txt" } else { "b.txt" }, b"t".to_vec())]
    };
    let members: Vec<_> = [pair("a.wav"), pair("b.wav"), pair("a.wav")].concat();
    let file = folder.path().join("s.tar");
    tar(&file, &members);
    let source = source::open(&file).unwrap();
    assert_eq!(source.len(), 3);
    assert!(source.sample(1).is_ok());
    let fault = source.sample(2).unwrap_err();
    assert!(fault.reason.contains("twice"), "{fault}");
}

#[test]
fn parquet_with_sound_and_text() {
    let folder = tempfile::tempdir().unwrap();
    let count = 40;
    let sounds: Vec<Vec<u8>> = (0..count).map(|n| wav(&clip(n, 0.05 + n as f64 / 1000.0), 16_000)).collect();
    let bytes: ArrayRef = Arc::new(BinaryArray::from_iter_values(&sounds));
    let paths: ArrayRef = Arc::new(StringArray::from_iter_values((0..count).map(|n| format!("{n}.wav"))));
    let audio: ArrayRef = Arc::new(StructArray::from(vec![
        (Arc::new(Field::new("bytes", DataType::Binary, true)), bytes),
        (Arc::new(Field::new("path", DataType::Utf8, true)), paths),
    ]));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..count).map(|n| format!("text {n}"))));
    let batch = RecordBatch::try_from_iter([("audio", audio), ("sentence", texts)]).unwrap();
    let file = folder.path().join("train.parquet");
    // Row groups of 2: more of them than are kept decoded, so that they are read again and again.
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(2)).build();
    let mut writer =
        ArrowWriter::try_new(fs::File::create(&file).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();

    assert_eq!(source::detect(folder.path()).unwrap(), Kind::Parquet);
    let batch = all(folder.path());
    assert_eq!(batch.keys[39], "train.parquet#39");
    assert_eq!(batch.texts[0].1[39], "text 39");
    assert_eq!(sound_lengths(&batch)[..2], [800, 816]);

    // Many threads, again and again: once, they shared a position in the file and read each other's pages.
    let mut pipeline = Pipeline::open(&file)
        .unwrap()
        .decode(Audio::mono(16_000))
        .batch(Batch::of(8))
        .seed(1)
        .threads(8)
        .policy(Policy::fail())
        .build()
        .unwrap();
    for epoch in 0..20 {
        let mut keys: Vec<String> =
            pipeline.epoch(epoch).flat_map(|batch| batch.unwrap().keys.clone()).collect();
        let shuffled = keys.clone();
        keys.sort_by_key(|key| key.rsplit('#').next().unwrap().parse::<u32>().unwrap());
        assert_ne!(keys, shuffled);
        assert_eq!(keys, (0..40).map(|n| format!("train.parquet#{n}")).collect::<Vec<_>>());
    }
}

/// A file that real h5py or TensorFlow has written: `tests/fixtures/make_hdf5.py`, `make_tfrecord.py`.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn open(name: &str) -> Box<dyn Source> {
    source::open(fixture(name)).unwrap()
}

/// The array of a sample, decoded, and its shape.
fn array(source: &dyn Source, index: u64) -> (Vec<f32>, Vec<usize>) {
    let sample = source.sample(index).unwrap();
    let Some(Value::Media(media)) = sample.get(field::FEATURES) else { panic!("no array") };
    let (mut out, mut shape) = (Vec::new(), Vec::new());
    media.read(|input| npy(input, &Limits::default(), &mut out, &mut shape, &mut Vec::new())).unwrap();
    (out, shape)
}

/// What the fixtures hold: frame t, bin d of sample n is n + t / 8 + d / 64.
#[track_caller]
fn is_sample(source: &dyn Source, index: u64, n: usize, frames: usize) {
    let number = |at: usize| n as f32 + (at / 4) as f32 / 8.0 + (at % 4) as f32 / 64.0;
    assert_eq!(
        array(source, index),
        ((0..frames * 4).map(number).collect(), vec![frames, 4]),
        "sample {index}"
    );
}

fn labels(source: &dyn Source) -> Vec<f64> {
    let label = |index| match source.sample(index).unwrap().get(field::LABELS) {
        Some(Value::Number(label)) => *label,
        other => panic!("{other:?}"),
    };
    (0..source.len()).map(label).collect()
}

fn texts(source: &dyn Source) -> Vec<String> {
    let text = |index| source.sample(index).unwrap().text().unwrap().to_owned();
    (0..source.len()).map(text).collect()
}

fn keys(source: &dyn Source) -> Vec<String> {
    (0..source.len()).map(|index| source.key(index)).collect()
}

#[test]
fn tfrecords_with_sound() {
    let file = fixture("tfrecord/sound.tfrecord");
    assert_eq!(source::detect(&file).unwrap(), Kind::TfRecord);
    let batch = all(&file);
    assert_eq!(batch.keys, ["sound.tfrecord#0", "sound.tfrecord#1", "sound.tfrecord#2"]);
    assert_eq!(batch.texts[0].1, ["words 0 é", "words 1 é", "words 2 é"]);
    assert_eq!(sound_lengths(&batch), [100, 101, 102]);
    assert_eq!(batch.get(field::LABELS).unwrap().as_i64().unwrap(), [5, 6, 7]);

    let folder = tempfile::tempdir().unwrap();
    let names = ["shards.tfrecord-00000-of-00002", "shards.tfrecord-00001-of-00002"];
    for name in names {
        fs::copy(fixture("tfrecord").join(name), folder.path().join(name)).unwrap();
    }
    assert_eq!(source::detect(folder.path()).unwrap(), Kind::TfRecord);
    let whole = source::open(folder.path()).unwrap();
    let expected = [format!("{}#0", names[0]), format!("{}#1", names[0]), format!("{}#0", names[1])];
    assert_eq!(keys(&*whole), expected);
    assert_eq!(sound_lengths(&all(folder.path())), [100, 101, 102]);
    fs::remove_file(folder.path().join(names[1])).unwrap();
    assert_ne!(source::open(folder.path()).unwrap().fingerprint(), whole.fingerprint());
}

#[test]
fn tfrecords_with_arrays_and_tokens() {
    let shape = open("tfrecord/shape.tfrecord");
    (0..3).for_each(|n| is_sample(&*shape, n as u64, n, 2 + n));
    assert_eq!((labels(&*shape), shape.classes().join(" ").as_str()), (vec![1.0, 0.0, 1.0], "cat dog"));
    let frames = open("tfrecord/frames.tfrecord");
    (0..3).for_each(|n| is_sample(&*frames, n as u64, n, 2 + n));
    let sequence = open("tfrecord/sequence.tfrecord");
    (0..3).for_each(|n| is_sample(&*sequence, n as u64, n, 2 + n));
    assert_eq!((labels(&*sequence), texts(&*sequence)[2].as_str()), (vec![0.0, 1.0, 2.0], "words 2"));
    let tensors = open("tfrecord/tensors.tfrecord");
    (0..3).for_each(|n| is_sample(&*tensors, n as u64, n, 2));
    assert_eq!(array(&*tensors, 3), (vec![3.0; 8], vec![2, 4]));
    // The only list of floats, whatever it is called.
    let flat = open("tfrecord/flat.tfrecords");
    assert_eq!(array(&*flat, 1), (vec![1.0, 1.015_625, 1.031_25, 1.046_875], vec![4]));
    assert_eq!(labels(&*flat), [0.0, 0.5, 1.0]);

    let tokens = fixture("tfrecord/tokens.tfrec");
    let sample = source::open(&tokens).unwrap().sample(1).unwrap();
    assert!(matches!(sample.get(field::INPUT_IDS), Some(Value::Tokens(ids)) if *ids == [0, 1, 2, 3]));
    assert!(matches!(sample.get(field::LABELS), Some(Value::Tokens(ids)) if *ids == [300, 301]));
    let batch =
        Pipeline::open(&tokens).unwrap().batch(Batch::of(3)).shuffle(false).build().unwrap().epoch(0).next();
    assert_eq!(batch.unwrap().unwrap().get(field::INPUT_IDS).unwrap().lengths, [3, 4, 5]);
}

#[test]
fn hdf5_with_a_dataset_a_group_or_a_file_a_sample() {
    let datasets = open("hdf5/datasets.h5");
    assert_eq!(datasets.kind(), Kind::Hdf5);
    (0..3).for_each(|n| is_sample(&*datasets, n as u64, n, 3 + n));
    assert_eq!(keys(&*datasets)[0], "datasets.h5/train/utt0");
    assert_eq!((labels(&*datasets), datasets.classes().join(" ").as_str()), (vec![1.0, 0.0, 1.0], "cat dog"));
    assert_eq!(texts(&*datasets)[2], "words 2 é");
    let latest = open("hdf5/datasets_latest.h5");
    (0..20).for_each(|n| is_sample(&*latest, n as u64, n, 3 + n % 3));
    assert_eq!(labels(&*latest), (0..20).map(|n| f64::from(n % 4)).collect::<Vec<_>>());
    let groups = open("hdf5/groups.h5");
    (0..4).for_each(|n| is_sample(&*groups, n as u64, n, 2 + n));
    assert_eq!((labels(&*groups), texts(&*groups)[3].as_str()), (vec![5.0, 6.0, 7.0, 8.0], "words 3"));
    assert_eq!(keys(&*groups)[3], "groups.h5/utt3");
    let ids = open("hdf5/ids.h5").sample(1).unwrap();
    assert!(matches!(ids.get(field::LABELS), Some(Value::Tokens(ids)) if *ids == [10, 11, 12]));

    let folder = tempfile::tempdir().unwrap();
    for name in ["a.h5", "b/c.hdf5"] {
        fs::create_dir_all(folder.path().join("b")).unwrap();
        fs::copy(fixture("hdf5/single.h5"), folder.path().join(name)).unwrap();
    }
    assert_eq!(source::detect(folder.path()).unwrap(), Kind::Hdf5);
    let files = source::open(folder.path()).unwrap();
    assert_eq!(
        (keys(&*files), labels(&*files)),
        (vec!["a.h5".to_owned(), "b/c.hdf5".to_owned()], vec![2.0, 2.0])
    );
    is_sample(&*files, 1, 7, 3);
    fs::rename(folder.path().join("a.h5"), folder.path().join("z.h5")).unwrap();
    assert_ne!(source::open(folder.path()).unwrap().fingerprint(), files.fingerprint());
    // A disk that was away is back.
    let away = source::open(folder.path()).unwrap();
    fs::rename(folder.path().join("z.h5"), folder.path().join("gone")).unwrap();
    assert!(away.sample(1).is_err());
    fs::rename(folder.path().join("gone"), folder.path().join("z.h5")).unwrap();
    is_sample(&*away, 1, 7, 3);
}

#[test]
fn hdf5_with_a_row_a_sample() {
    let rows = open("hdf5/rows.h5");
    (0..4).for_each(|n| is_sample(&*rows, n as u64, n, 3 + n));
    assert_eq!(keys(&*rows), ["a", "b", "c", "d"].map(|key| format!("rows.h5/{key}")));
    assert_eq!((labels(&*rows), texts(&*rows)[3].as_str()), (vec![3.0, 1.0, 4.0, 1.0], "words 3"));
    assert_eq!(rows.blocks(), None);
    // Chunks of four rows; and of one, in a group that links lead to by other names, too.
    let fours = Some([0, 4, 8].as_slice());
    for (name, group, blocks) in
        [("rows_gzip", "", fours), ("rows_lzf", "", fours), ("rows_grown", "/train", None)]
    {
        let packed = open(&format!("hdf5/{name}.h5"));
        (0..10).for_each(|n| is_sample(&*packed, n as u64, n, 5));
        assert_eq!((packed.len(), packed.key(9)), (10, format!("{name}.h5{group}#9")));
        assert_eq!((packed.blocks(), packed.classes().join(" ").as_str()), (blocks, "down up"));
    }
    let flat = open("hdf5/rows_flat.h5");
    assert_eq!(keys(&*flat)[1..3], ["rows_flat.h5/test#1", "rows_flat.h5/train#0"]);
    assert_eq!(labels(&*flat), [1.0, 1.0, 0.0, 1.0, 0.0]);
    assert_eq!(array(&*flat, 4).1, [4]);
    let lists = open("hdf5/lists.h5");
    (0..3).for_each(|n| is_sample(&*lists, n as u64, n, 2 + n));
    let types = open("hdf5/types.h5");
    for (index, key) in keys(&*types).iter().enumerate() {
        let (numbers, _) = array(&*types, index as u64);
        match key.rsplit('_').next().unwrap() {
            "f2" | "f4" | "f8" => is_sample(&*types, index as u64, 1, 3),
            "types.h5/bool" => assert_eq!(numbers, [1.0, 0.0, 0.0, 1.0]),
            _ => assert_eq!(numbers[3..5], [10.0, 11.0], "{key}"),
        }
    }
    assert_eq!(types.len(), 23);

    // In batches, on many threads, again and again.
    let builder = Pipeline::open(fixture("hdf5/rows_gzip.h5")).unwrap().decode(Npy).batch(Batch::of(4));
    let mut pipeline = builder.threads(8).policy(Policy::fail()).build().unwrap();
    for epoch in 0..20 {
        let mut keys: Vec<String> =
            pipeline.epoch(epoch).flat_map(|batch| batch.unwrap().keys.clone()).collect();
        keys.sort();
        assert_eq!(keys, (0..10).map(|n| format!("rows_gzip.h5#{n}")).collect::<Vec<_>>());
    }
}

#[test]
fn a_folder_named_like_a_shard_is_no_shard() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("old.tar")).unwrap();
    tar(&folder.path().join("s.tar"), &[("a.wav", wav(&clip(0, 0.1), 16_000))]);
    assert_eq!(all(folder.path()).keys, ["a"]);
}

#[cfg(unix)]
#[test]
fn a_link_to_a_file_is_a_file() {
    let folder = tempfile::tempdir().unwrap();
    clips(folder.path(), &["blobs/a.wav"]);
    fs::create_dir(folder.path().join("snapshot")).unwrap();
    std::os::unix::fs::symlink("../blobs/a.wav", folder.path().join("snapshot/clip.wav")).unwrap();
    assert_eq!(all(&folder.path().join("snapshot")).keys, ["clip.wav"]);
}

#[test]
fn a_fingerprint_follows_the_data() {
    let folder = tempfile::tempdir().unwrap();
    clips(folder.path(), &["a.wav", "b.wav"]);
    let print = || source::open(folder.path()).unwrap().fingerprint();
    let first = print();
    assert_eq!(first, print());
    fs::rename(folder.path().join("b.wav"), folder.path().join("c.wav")).unwrap();
    assert_ne!(first, print());
}

#[test]
fn what_is_nothing_is_said_to_be_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let message = |path: &Path| {
        let error = source::open(path).err().unwrap().to_string();
        error.replace(&folder.path().display().to_string(), "DIR")
    };
    fs::write(folder.path().join("x.bin"), "x").unwrap();
    insta::assert_snapshot!(message(folder.path()), @r"
    `DIR` holds no sound, arrays, text, tar shards, Parquet tables or TFRecords
    hint: known endings: wav flac mp3 ogg oga m4a mp4 aac npy jsonl txt tar parquet feedwater tfrecord tfrecords tfrec h5 hdf5; a csv or tsv table is opened by its own name, or as `metadata.csv` of its folder
    ");
    insta::assert_snapshot!(message(&folder.path().join("none")), @r"
    `DIR/none` does not exist
    hint: `feedwater generate morse --out data/morse` makes a dataset to try
    ");
    let array = folder.path().join("array.json");
    fs::write(&array, "[1, 2]").unwrap();
    insta::assert_snapshot!(message(&array), @r"
    `DIR/array.json` is not JSON lines: its first line is not an object
    hint: write one JSON object a line; a JSON array can be turned into lines with `jq -c '.[]'`
    ");
    let table = folder.path().join("t.csv");
    fs::write(&table, "name,words\na,b\n").unwrap();
    insta::assert_snapshot!(message(&table), @r"
    `DIR/t.csv` has no column that names files; its columns are name, words
    hint: name one of them file_name, audio_filepath, audio, path, file, audio_path, wav, npy, filename
    ");
}

#[test]
fn a_sample_keeps_its_fields_by_name() {
    let sample = feedwater::Sample::new("k")
        .with(field::TEXT, "a".to_owned())
        .with("score", 2.5)
        .with(field::TEXT, "b".to_owned());
    assert_eq!(sample.text(), Some("b"));
    assert!(matches!(sample.get("score"), Some(Value::Number(score)) if (*score - 2.5).abs() < 1e-9));
    assert_eq!(sample.fields().count(), 2);
}

/// macOS writes `._clip.wav` beside `clip.wav` on disks of others: bad samples, all of them.
#[test]
fn hidden_files_are_no_samples() {
    let folder = tempfile::tempdir().unwrap();
    clips(folder.path(), &["a.wav", "._a.wav", ".cache/b.wav", "c/d.wav"]);
    assert_eq!(all(folder.path()).keys, ["a.wav", "c/d.wav"]);
    let only_hidden = folder.path().join(".cache");
    assert_eq!(all(&only_hidden).keys, ["b.wav"], "what was named is not hidden");
}

/// They were left out without a word.
#[cfg(unix)]
#[test]
fn a_link_to_nothing_is_a_bad_sample() {
    let folder = tempfile::tempdir().unwrap();
    clips(folder.path(), &["a.wav"]);
    std::os::unix::fs::symlink("nowhere.wav", folder.path().join("b.wav")).unwrap();
    let source = source::open(folder.path()).unwrap();
    assert_eq!(source.len(), 2);
    let sample = source.sample(1).unwrap();
    let Some(Value::Media(media)) = sample.get(field::AUDIO) else { panic!("no sound") };
    let fault = media.read(|_| Ok(())).unwrap_err();
    assert!(fault.reason.contains("No such file"), "{fault}");
}

#[test]
fn what_cannot_be_opened_says_what_can() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let file = folder.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, bytes).unwrap();
    };
    write("opus/a.opus", b"OggS");
    write("nothing/a.xyz", b"");
    write("empty/metadata.jsonl", b"");
    write("empty/a.wav", b"");
    write("table.csv", b"file_name;text\na.wav;cq\n");
    write("empty.csv", b"");
    write("small.parquet", b"PAR1");
    write("shard-0.tar", &[0; 1024]);
    let message = |path: &str| {
        let Err(error) = source::open(folder.path().join(path)) else { panic!("`{path}` was opened") };
        let base = format!("{}/", folder.path().display()).replace('\\', "/");
        error.to_string().replace('\\', "/").replace(&base, "")
    };
    let address = source::open("https://example.org/a.tar").err().unwrap().to_string();
    let paths = [
        "nowhere",
        "opus/*.opus",
        "x-{0..3}.wav",
        "opus",
        "opus/a.opus",
        "nothing",
        "empty",
        "table.csv",
        "empty.csv",
        "small.parquet",
        "shard-{0..1}.tar",
    ];
    let all: Vec<String> = paths.into_iter().map(message).chain([address]).collect();
    insta::assert_snapshot!(all.join("\n"), @r#"
    `nowhere` does not exist
    hint: `feedwater generate morse --out data/morse` makes a dataset to try
    `opus/*.opus` does not exist, and `*`, `?` and `[]` are no patterns here
    hint: give the folder, whose files are all opened; tar shards also by a brace pattern in quotes: 'train-{000..099}.tar', '{train,valid}.tar'
    `x-{0..3}.wav` does not exist, and only tar shards can be named by a pattern
    hint: give the folder, whose files are all opened; tar shards also by a brace pattern in quotes: 'train-{000..099}.tar', '{train,valid}.tar'
    `opus` holds sound as Opus, which is not supported
    hint: convert to FLAC, WAV or MP3, for example `ffmpeg -i a.opus a.flac`
    `opus/a.opus` is Opus, which is not supported
    hint: convert to FLAC, WAV or MP3, for example `ffmpeg -i a.opus a.flac`
    `nothing` holds no sound, arrays, text, tar shards, Parquet tables or TFRecords
    hint: known endings: wav flac mp3 ogg oga m4a mp4 aac npy jsonl txt tar parquet feedwater tfrecord tfrecords tfrec h5 hdf5; a csv or tsv table is opened by its own name, or as `metadata.csv` of its folder
    `empty/metadata.jsonl` is not usable: the file is empty
    hint: write a line such as {"file_name":"a.wav","text":"hello"} for each file, or delete it to open the files alone
    `table.csv` separates its columns by `;`: `file_name;text`
    hint: separate them by commas in a file that ends in .csv, by tabs in one that ends in .tsv
    `empty.csv` is not usable: the table is empty, it has not even a header
    hint: its first line names the columns, such as `file_name,text`; a line for each file follows
    `small.parquet` is not usable: EOF: Parquet file too small. Size is 4 but need 8
    hint: it was cut off, or is something else by that name (a Git LFS pointer, an error page): copy or download it again
    the shard `shard-1.tar`, one of `shard-{0..1}.tar`, does not exist
    hint: copy it there, or change the range of the pattern
    `https://example.org/a.tar` is an address, and files must be local
    hint: download it, and give the folder that it is in
    "#);
    write("tokenizer.json", b"version https://git-lfs.github.com/spec/v1\n");
    let error = feedwater::Tokenize::file(folder.path().join("tokenizer.json")).err().unwrap().to_string();
    assert!(error.contains("(line 1)\nhint: take the `tokenizer.json`"), "{error}");
}
