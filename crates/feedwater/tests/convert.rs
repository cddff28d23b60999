//! A dataset is the same in shards as it was in files, and what is damaged in a shard is noticed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
};

use common::{clip, wav};
use feedwater::{
    Fault, Sample, Value,
    convert::{Form, convert, shards_in},
    field,
    source::{self, Kind, Source},
};

fn npy(rows: usize, columns: usize, first: f32) -> Vec<u8> {
    let head = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    let whole = (10 + head.len() + 1).next_multiple_of(64);
    bytes.extend(((whole - 10) as u16).to_le_bytes());
    bytes.extend(head.bytes());
    bytes.resize(whole - 1, b' ');
    bytes.push(b'\n');
    bytes.extend((0..rows * columns).flat_map(|at| (first + at as f32).to_le_bytes()));
    bytes
}

/// Everything that is known of a sample, with the bytes of its media.
fn all_of(sample: &Sample) -> Result<Vec<String>, Fault> {
    let mut fields = Vec::new();
    for (name, value) in sample.fields() {
        fields.push(match value {
            Value::Media(media) => {
                let mut bytes = Vec::new();
                media.read(|input| feedwater::read::read_all(input, &mut bytes, 1 << 30))?;
                format!("{name}: {bytes:?}")
            }
            other => format!("{name}: {other:?}"),
        });
    }
    fields.sort();
    Ok(fields)
}

fn same(before: &dyn Source, after: &dyn Source, keys: bool) {
    assert_eq!(before.len(), after.len());
    for index in 0..before.len() {
        let (one, two) = (before.sample(index).unwrap(), after.sample(index).unwrap());
        assert_eq!(all_of(&one).unwrap(), all_of(&two).unwrap());
        assert!(!keys || (one.key == two.key && before.key(index) == after.key(index)));
    }
    assert_eq!(before.classes(), after.classes());
}

fn converted(data: &Path, out: &Path, form: Form, bytes: u64) -> Box<dyn Source> {
    let source = source::open(data).unwrap();
    let done = convert(&*source, out, form, bytes, |_| true).unwrap();
    assert!(done.bad.is_empty() && done.samples == source.len(), "{:?}", done.bad);
    assert_eq!(done.bytes, done.files.iter().map(|file| fs::metadata(file).unwrap().len()).sum::<u64>());
    let kind = if form == Form::Tar { Kind::Tar } else { Kind::Shard };
    assert_eq!(source::detect(out).unwrap(), kind);
    source::open(out).unwrap()
}

fn arrays(folder: &Path) -> PathBuf {
    for (number, class) in ["dog", "cat", "cat", "dog", "bird"].into_iter().enumerate() {
        fs::create_dir_all(folder.join(class)).unwrap();
        let bytes = npy(3 + number, 4, number as f32);
        // A dot in a name is where WebDataset thinks it ends.
        fs::write(folder.join(class).join(format!("take.{number}.npy")), bytes).unwrap();
    }
    folder.to_owned()
}

#[test]
fn arrays_with_classes_sound_with_transcripts_and_text_come_back_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let npy = arrays(&folder.path().join("npy"));
    let speech = folder.path().join("speech");
    fs::create_dir_all(&speech).unwrap();
    let mut lines = Vec::new();
    for number in 0..4 {
        fs::write(speech.join(format!("{number}.wav")), wav(&clip(number, 0.1), 16_000)).unwrap();
        // White space at an end belongs to a transcript.
        let end = " ".repeat(number % 2);
        lines.push(format!("{{\"file_name\": \"{number}.wav\", \"text\": \"clip {number}{end}\"}}"));
    }
    fs::write(speech.join("metadata.jsonl"), lines.join("\n")).unwrap();
    let text = folder.path().join("corpus.jsonl");
    fs::write(&text, "{\"text\": \"one\"}\n{\"text\": \"two\\nlines\\n\"}\n{\"text\": \"\"}\n").unwrap();
    for (number, data) in [npy, speech, text].into_iter().enumerate() {
        for (form, keys) in [(Form::Tar, false), (Form::Shard, true)] {
            for bytes in [1, 1 << 20] {
                let out = folder.path().join(format!("{number}-{form:?}-{bytes}"));
                let after = converted(&data, &out, form, bytes);
                same(&*source::open(&data).unwrap(), &*after, keys);
            }
        }
    }
}

#[test]
fn names_that_would_be_one_in_tar_stay_apart_and_windows_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir_all(data.join("..").join("data")).unwrap();
    for name in ["a.b.npy", "a_b.npy", "a.npy"] {
        fs::write(data.join(name), npy(2, 2, 1.0)).unwrap();
    }
    let after = converted(&data, &folder.path().join("tar"), Form::Tar, 1 << 20);
    let keys: Vec<String> = (0..3).map(|index| after.key(index)).collect();
    assert_eq!(keys, ["a_b", "a", "a_b~2"]);

    fs::write(data.join("long.wav"), wav(&clip(1, 1.0), 16_000)).unwrap();
    let line = "{\"audio_filepath\": \"long.wav\", \"duration\": 0.2, \"offset\": 0.1, \"text\": \"part\"}\n";
    let manifest = data.join("manifest.jsonl");
    fs::write(&manifest, line).unwrap();
    let source = source::open(&manifest).unwrap();
    let done = convert(&*source, &folder.path().join("none"), Form::Shard, 1 << 20, |_| true).unwrap();
    assert_eq!(done.samples, 0);
    assert!(done.bad[0].1.contains("a part of a recording"), "{:?}", done.bad);
}

#[test]
fn a_sample_that_cannot_be_read_is_told_and_the_others_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let data = arrays(&folder.path().join("npy"));
    fs::remove_file(data.join("cat").join("take.1.npy")).unwrap();
    let list = folder.path().join("list.txt");
    let names: Vec<String> =
        ["bird/take.4", "cat/take.1", "cat/take.2"].iter().map(|name| format!("npy/{name}.npy")).collect();
    fs::write(&list, names.join("\n")).unwrap();
    let source = source::open(&list).unwrap();
    let done = convert(&*source, &folder.path().join("out"), Form::Shard, 1 << 20, |_| true).unwrap();
    assert_eq!((done.samples, done.bad.len()), (2, 1));
    assert!(done.bad[0].0.contains("take.1.npy"), "{:?}", done.bad);
}

#[test]
fn whoever_stops_it_leaves_no_half_shard() {
    let folder = tempfile::tempdir().unwrap();
    let source = source::open(arrays(&folder.path().join("npy"))).unwrap();
    let out = folder.path().join("out");
    assert!(convert(&*source, &out, Form::Shard, 1, |done| done < 3).is_err());
    let left: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Every byte of a small shard, changed, and every length it may be cut to.
#[test]
fn whatever_becomes_of_a_shard_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let data = arrays(&folder.path().join("npy"));
    let out = folder.path().join("out");
    let whole = converted(&data, &out, Form::Shard, 1 << 20);
    let expected: Vec<Vec<String>> =
        (0..whole.len()).map(|index| all_of(&whole.sample(index).unwrap()).unwrap()).collect();
    let file = out.join("shard-00000.feedwater");
    let bytes = fs::read(&file).unwrap();
    let noticed = |what: &str| {
        let Ok(source) = source::open(&file) else { return };
        let mut bad = 0;
        for (index, expected) in expected.iter().enumerate() {
            let sample = source.sample(index as u64);
            match sample.and_then(|sample| all_of(&sample)) {
                Ok(all) => assert_eq!(&all, expected, "{what}"),
                Err(_) => bad += 1,
            }
        }
        assert!(bad > 0, "{what}: nobody noticed");
    };
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        fs::write(&file, &changed).unwrap();
        noticed(&format!("byte {at}"));
    }
    for length in (0..bytes.len()).step_by(7) {
        fs::write(&file, &bytes[..length]).unwrap();
        noticed(&format!("cut to {length}"));
    }
}

#[test]
fn a_shard_is_a_dataset_for_a_pipeline() {
    let folder = tempfile::tempdir().unwrap();
    let data = arrays(&folder.path().join("npy"));
    converted(&data, &folder.path().join("out"), Form::Shard, 1 << 20);
    let batch = |path: &Path| {
        let flow = feedwater::Pipeline::open(path).unwrap().decode(feedwater::Npy);
        let mut pipeline = flow.batch(feedwater::Batch::of(5)).shuffle(false).build().unwrap();
        let batch = pipeline.epoch(0).next().unwrap().unwrap();
        let features = batch.get(field::FEATURES).unwrap();
        (batch.keys.clone(), features.shape.clone(), features.lengths.clone())
    };
    assert_eq!(batch(&data), batch(&folder.path().join("out")));
}

#[test]
fn more_shards_than_may_be_open_are_one_dataset() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("corpus.jsonl");
    let lines: Vec<String> = (0..400).map(|number| format!("{{\"text\": \"line {number}\"}}")).collect();
    fs::write(&text, lines.join("\n")).unwrap();
    let out = folder.path().join("out");
    let open_files = || fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let before = open_files();
    let after = converted(&text, &out, Form::Shard, 1);
    assert_eq!(fs::read_dir(&out).unwrap().count(), 400);
    // Other tests have a few of their own.
    assert!(open_files() < before + 300, "{} files are open", open_files());
    same(&*source::open(&text).unwrap(), &*after, true);
}

#[test]
fn classes_of_what_was_there_before_are_not_those_of_what_is_there_now() {
    let folder = tempfile::tempdir().unwrap();
    let data = arrays(&folder.path().join("npy"));
    let out = folder.path().join("out");
    assert_eq!(converted(&data, &out, Form::Tar, 1 << 20).classes(), ["bird", "cat", "dog"]);
    let text = folder.path().join("corpus.jsonl");
    fs::write(&text, "{\"text\": \"one\"}\n").unwrap();
    assert!(converted(&text, &out, Form::Tar, 1 << 20).classes().is_empty());
}

#[test]
fn a_conversion_that_was_not_finished_is_no_dataset() {
    let folder = tempfile::tempdir().unwrap();
    let data = arrays(&folder.path().join("npy"));
    let out = folder.path().join("out");
    for form in [Form::Shard, Form::Tar] {
        converted(&data, &out, form, 1);
        assert_eq!(shards_in(&out).len(), 5, "of {form:?} alone");
        let part =
            shards_in(&out)[0].with_extension(if form == Form::Tar { "tar.part" } else { "feedwater.part" });
        fs::write(&part, b"half").unwrap();
        let said = source::open(&out).err().unwrap().to_string();
        assert!(said.contains("a conversion that was not finished") && said.contains("--force"), "{said}");
        // Also where it had finished none.
        let begun = folder.path().join("begun");
        fs::create_dir_all(&begun).unwrap();
        fs::write(begun.join(part.file_name().unwrap()), b"half").unwrap();
        let said = source::open(&begun).err().unwrap().to_string();
        assert!(said.contains("a conversion that was not finished"), "{said}");
        fs::remove_dir_all(&begun).unwrap();
        // The next one begins anew, and has fewer.
        converted(&data, &out, form, 1 << 20);
        assert_eq!(shards_in(&out).len(), 1);
        assert!(!part.exists());
    }
}
