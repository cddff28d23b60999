//! What a person and a program see of `feedwater inspect`: the real command, on datasets that are made here.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::fs;
use std::path::Path;

use insta::assert_snapshot;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Runs the command in a folder, so that no path of this machine is in what it prints.
fn feedwater(folder: &Path, line: &str) -> (i32, String, String) {
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("feedwater");
    let command = command.current_dir(folder).args(line.split_whitespace()).env_remove("COLUMNS");
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Standard output without the time it took, and the exit code.
fn inspect(folder: &Path, line: &str) -> String {
    let (code, out, err) = feedwater(folder, &format!("inspect {line}"));
    assert_eq!(err, "", "nothing to say on stderr");
    let timed = |line: &str| match line.split_once(" s, ") {
        Some((took, how)) if took.starts_with("took") => format!("took      [time], {how}"),
        _ => line.to_owned(),
    };
    let out: Vec<String> = out.replace('\\', "/").lines().map(timed).collect();
    format!("{}\nexit code {code}", out.join("\n"))
}

fn inspect_json(folder: &Path, line: &str) -> (i32, Value) {
    let (code, out, err) = feedwater(folder, &format!("inspect {line} --json"));
    assert_eq!((err.as_str(), out.lines().count()), ("", 1));
    // A backslash of Windows is two in JSON.
    (code, serde_json::from_str(&out.replace(r"\\", "/")).unwrap())
}

/// The ids of the problems, with severity and count.
fn problems(report: &Value) -> Vec<(&str, &str, u64)> {
    let all = report["problems"].as_array().unwrap().iter();
    all.map(|problem| {
        let text = |name: &str| problem[name].as_str().unwrap();
        (text("id"), text("severity"), problem["count"].as_u64().unwrap())
    })
    .collect()
}

fn generated(line: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (code, _, err) = feedwater(folder.path(), &format!("generate {line}"));
    assert_eq!((code, err.as_str()), (0, ""));
    folder
}

/// PCM of 16 bits, or float where `float`.
fn wav(rate: u32, channels: u16, seconds: f64, float: bool) -> Vec<u8> {
    let (tag, bytes): (u16, u16) = if float { (3, 4) } else { (1, 2) };
    let align = channels * bytes;
    let data = vec![0_u8; (seconds * f64::from(rate)) as usize * usize::from(align)];
    let mut file = b"RIFF".to_vec();
    file.extend((data.len() as u32 + 36).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0");
    file.extend([tag.to_le_bytes(), channels.to_le_bytes()].concat());
    file.extend([rate.to_le_bytes(), (rate * u32::from(align)).to_le_bytes()].concat());
    file.extend([align.to_le_bytes(), (bytes * 8).to_le_bytes()].concat());
    file.extend(b"data");
    file.extend((data.len() as u32).to_le_bytes());
    file.extend(data);
    file
}

fn npy(shape: &str, numbers: usize) -> Vec<u8> {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
    let mut file = b"\x93NUMPY\x01\0".to_vec();
    file.extend(118_u16.to_le_bytes());
    file.extend(format!("{header:<117}\n").bytes());
    file.extend(vec![0_u8; numbers * 4]);
    file
}

fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, bytes) in members {
        let mut head = [0_u8; 512];
        head[..name.len()].copy_from_slice(name.as_bytes());
        head[100..108].copy_from_slice(b"0000644\0");
        head[124..136].copy_from_slice(format!("{:011o}\0", bytes.len()).as_bytes());
        head[148..156].fill(b' ');
        head[156] = b'0';
        head[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
        head[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        archive.extend(head);
        archive.extend(*bytes);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

/// An audio folder in which much is wrong.
fn damaged() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(data.join(name), bytes).unwrap();
    let good = wav(16_000, 1, 2.5, false);
    write("good.wav", &good);
    write("cut.wav", &good[..5000]);
    write("empty.wav", b"");
    write("long.wav", &wav(8000, 1, 31.0, false));
    write("long-timed.wav", &wav(16_000, 1, 32.0, false));
    write("stereo.wav", &wav(16_000, 2, 1.0, false));
    write("silent.wav", &wav(16_000, 1, 1.2, false));
    let words = json!([{ "word": "cq", "start": 0.5, "end": 1.0 }]);
    let rows = [
        json!({ "file_name": "good.wav", "text": "cq cq", "words": null }),
        json!({ "file_name": "cut.wav", "text": "cq" }),
        json!({ "file_name": "empty.wav", "text": "cq" }),
        json!({ "file_name": "long.wav", "text": "a long one" }),
        json!({ "file_name": "long-timed.wav", "text": "cq", "words": words }),
        json!({ "file_name": "stereo.wav" }),
        json!({ "file_name": "silent.wav", "text": " " }),
        json!({ "file_name": "good.wav", "text": "cq cq" }),
    ];
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    write("metadata.jsonl", lines.join("\n").as_bytes());
    folder
}

#[test]
fn morse() {
    let folder = generated("morse --out morse --clips 60 --long 2 --seed 7");
    assert_snapshot!(inspect(folder.path(), "morse"), @"
    dataset   Hugging Face audiofolder: morse
    samples   62, 9.1 minutes of sound (wav, 16000 Hz, mono)
    text      62 transcripts, 61 with word or segment times
    lengths   seconds: min 2.13, p50 7.44, p95 11.56, max 69.25
                2 – 4   9  ████████████████████████████████▏
                4 – 6  13  ██████████████████████████████████████████████▍
                6 – 8  14  █████████████████████████████████████████████████▉
               8 – 10   8  ████████████████████████████▌
              10 – 12  16  █████████████████████████████████████████████████████████
                 ≥ 12   2  ███████▏
    problems  2 notes
      note    empty-text: 1 of 62 samples has an empty text
                morse/train/clip00038.wav: the text is empty
              hint: right for clips in which nothing is said; complete the metadata
                    of all others
      note    over-30s: 2 of 62 samples are longer than 30 s and can be cut (word
              times, or no text)
                morse/train/clip00060.wav: 69.2 s
                morse/train/clip00061.wav: 42.5 s
              hint: `.chunk(Chunk::new())` cuts them; without it Whisper's features
                    end at 30 s
    took      [time], headers only
    next      cargo run --release --example batches -- morse
    exit code 0
    ");
}

#[test]
fn arrays() {
    let folder = generated("npy --out features --samples 40 --classes 4 --seed 7");
    assert_snapshot!(inspect(folder.path(), "features --decode"), @"
    dataset   folder of .npy arrays: features
    samples   40 (shape [*, 128])
    classes   4: class_0 (10), class_1 (10), class_2 (10), class_3 (10)
    lengths   frames: min 135, p50 318, p95 1066, max 1209
                  0 – 200  10  █████████████████████████████████████▉
                200 – 400  14  █████████████████████████████████████████████████████
                400 – 600   7  ██████████████████████████▌
                600 – 800   3  ███████████▍
               800 – 1000   3  ███████████▍
              1000 – 1200   2  ███████▋
              1200 – 1400   1  ███▊
    problems  none
    took      [time], every sample decoded
    next      feedwater profile features
    exit code 0
    ");
    fs::write(folder.path().join("features/class_1/odd.npy"), npy("(5, 80)", 400)).unwrap();
    fs::write(folder.path().join("features/class_1/torn.npy"), npy("(5, 128)", 400)).unwrap();
    let (code, report) = inspect_json(folder.path(), "features");
    assert_eq!(code, 1);
    assert_eq!(problems(&report), [("unreadable", "error", 1), ("mixed-shapes", "error", 1)]);
    assert_eq!(report["problems"][1]["examples"][0]["key"], "class_1/odd.npy");
    assert_eq!(report["shapes"], json!([{ "value": [128], "count": 40 }, { "value": [80], "count": 1 }]));
}

#[test]
fn text() {
    let folder = generated("text --out text --documents 200 --seed 7");
    assert_snapshot!(inspect(folder.path(), "text"), @"
    dataset   text: text
    samples   200
    lengths   characters: min 100, p50 412, p95 1826, max 2258
                  0 – 500  114  ████████████████████████████████████████████████████
               500 – 1000   42  ███████████████████▏
              1000 – 1500   22  ██████████
              1500 – 2000   14  ██████▍
              2000 – 2500    8  ███▋
    problems  none
    took      [time], every text read
    next      feedwater profile text
    exit code 0
    ");
    let lines = "{\"text\": \"a b c\"}\n{\"text\": \"\"}\n{\"id\": 3}\n{\"text\": 4}\n";
    fs::write(folder.path().join("holes.jsonl"), lines).unwrap();
    let (code, report) = inspect_json(folder.path(), "holes.jsonl");
    assert_eq!(code, 1);
    let expected = [("unreadable", "error", 1), ("missing-text", "error", 1), ("empty-text", "note", 1)];
    assert_eq!(problems(&report), expected);
    assert_eq!(report["problems"][1]["examples"][0]["place"], "line 3");
}

#[test]
fn a_damaged_folder() {
    let folder = damaged();
    assert_snapshot!(inspect(folder.path(), "data"), @"
    dataset   Hugging Face audiofolder: data
    samples   8, 70.2 seconds of sound (wav)
    text      5 transcripts, 1 with word or segment times
    lengths   seconds: min 1.00, p50 2.50, p95 32.00, max 32.00
                0 – 5  4  ██████████████████████████████████████████████████████████
               5 – 10  0
              10 – 15  0
              15 – 20  0
              20 – 25  0
              25 – 30  0
              30 – 35  2  █████████████████████████████
    problems  4 errors, 4 notes
      error   unreadable: 2 of 8 samples cannot be read (25.00 %; a run stops above
              1 sample, 1 % rounded up)
                data/cut.wav, byte 5000: the file ends here, 75044 bytes before its
                  `data` chunk does
                data/empty.wav, byte 0: the file is empty
              hint: put whole files in their place or take them out; a run leaves
                    them out and lists them in `quarantine.jsonl`
      error   duplicate-keys: 1 of 8 samples has the key of another
                good.wav: the same key as sample 0, counted from 0
              hint: a key names one sample: take the second mention out of the
                    metadata, or rename one of the files
      error   missing-text: 1 of 8 samples has no text
                data/stereo.wav: there is no text
              hint: give them a `text`, or take them out: they cannot be tokenized
      error   over-30s-without-times: 1 of 8 samples is longer than 30 s, and
              nothing says which words fall where
                data/long.wav: 31.0 s
              hint: put `words` or `segments` with start and end into the metadata,
                    or choose what `Chunk` does: `WithoutTimes::Drop` leaves such
                    clips out, `Truncate` keeps their first 30 s, `NoText` keeps all
                    of them without text
      note    empty-text: 1 of 8 samples has an empty text
                data/silent.wav: the text is empty
              hint: right for clips in which nothing is said; complete the metadata
                    of all others
      note    over-30s: 1 of 8 samples is longer than 30 s and can be cut (word
              times, or no text)
                data/long-timed.wav: 32.0 s
              hint: `.chunk(Chunk::new())` cuts them; without it Whisper's features
                    end at 30 s
      note    mixed-rates: sample rates differ: 16000 Hz (5), 8000 Hz (1)
                data/long.wav: 8000 Hz
              hint: nothing has to be done: decoding brings all to one rate; files
                    that have it already are read faster
      note    mixed-channels: numbers of channels differ: mono (5), stereo (1)
                data/stereo.wav: stereo
              hint: nothing has to be done: decoding makes one channel of all
    took      [time], headers only
    next      feedwater inspect data --decode
    exit code 1
    ");
}

#[test]
fn the_object_is_as_documented() {
    let folder = damaged();
    let (code, report) = inspect_json(folder.path(), "data");
    assert_eq!(code, 1);
    let names: Vec<&String> = report.as_object().unwrap().keys().collect();
    let (_, help, _) = feedwater(folder.path(), "inspect --help");
    for name in names {
        assert!(help.contains(name.as_str()), "`{name}` is not documented");
    }
    for (id, _, _) in problems(&report) {
        assert!(help.contains(id), "`{id}` is not documented");
    }
    assert_eq!(report["kind"], "audio-folder");
    assert_eq!((&report["samples"], &report["looked_at"]), (&json!(8), &json!(8)));
    assert_eq!(report["lengths"]["max"], 32.0);
    assert_eq!(
        report["problems"][0]["examples"],
        json!([
            { "key": "cut.wav", "file": "data/cut.wav", "place": "byte 5000",
              "reason": "the file ends here, 75044 bytes before its `data` chunk does" },
            { "key": "empty.wav", "file": "data/empty.wav", "place": "byte 0", "reason": "the file is empty" },
        ])
    );
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let folder = damaged();
    let one = inspect_json(folder.path(), "data --threads 1");
    for threads in [2, 7] {
        assert_eq!(one, inspect_json(folder.path(), &format!("data --threads {threads}")));
    }
}

#[test]
fn decoding_finds_what_headers_hide() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = wav(8000, 1, 1.0, true);
    file[1044..1048].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(folder.path().join("nan.wav"), file).unwrap();
    let (code, report) = inspect_json(folder.path(), "nan.wav");
    assert_eq!((code, problems(&report)), (0, vec![("missing-text", "note", 1)]));
    let (code, report) = inspect_json(folder.path(), "nan.wav --decode");
    assert_eq!((code, problems(&report)), (1, vec![("unreadable", "error", 1)]));
    assert_eq!(report["problems"][0]["examples"][0]["place"], "byte 1044");
}

#[test]
fn shards_are_looked_into() {
    let folder = tempfile::tempdir().unwrap();
    let (good, long) = (wav(16_000, 1, 1.0, false), wav(16_000, 1, 30.5, false));
    let members: [(&str, &[u8]); 7] = [
        ("a.wav", &good),
        ("a.txt", b"cq"),
        ("b.wav", &good[..100]),
        ("b.txt", b"cq"),
        ("c.wav", &long),
        ("c.txt", b"cq"),
        ("a.wav", &good),
    ];
    fs::write(folder.path().join("shard.tar"), tar(&members)).unwrap();
    let (code, report) = inspect_json(folder.path(), "shard.tar");
    assert_eq!(code, 1);
    let expected =
        [("unreadable", "error", 1), ("duplicate-keys", "error", 1), ("over-30s-without-times", "error", 1)];
    assert_eq!(problems(&report), expected);
    let bad = &report["problems"][0]["examples"][0];
    assert_eq!((&bad["file"], &bad["place"]), (&json!("shard.tar"), &json!("member `b.wav`")));
    assert!(bad["reason"].as_str().unwrap().ends_with("(byte 100 of it)"), "{bad}");
}

#[test]
fn windows_of_a_manifest_count_and_not_its_files() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("long.wav"), wav(8000, 1, 40.0, false)).unwrap();
    let row = |offset: f64| json!({ "audio_filepath": "long.wav", "offset": offset, "duration": 15.0, "text": "cq" });
    let lines: Vec<String> = [0.0, 15.0, 30.0, 40.0].map(|offset| row(offset).to_string()).into();
    fs::write(folder.path().join("manifest.jsonl"), lines.join("\n")).unwrap();
    let (code, report) = inspect_json(folder.path(), "manifest.jsonl");
    assert_eq!((code, problems(&report)), (1, vec![("unreadable", "error", 1)]));
    assert_eq!((&report["lengths"]["total"], &report["lengths"]["min"]), (&json!(40.0), &json!(10.0)));
}

#[test]
fn a_sample_of_the_samples() {
    let folder = generated("npy --out features --samples 40 --classes 2 --seed 7");
    assert_snapshot!(inspect(folder.path(), "features --limit 10"), @"
    dataset   folder of .npy arrays: features
    samples   40 (shape [*, 128]); what follows is said of an even sample of 10 of
              them
    classes   2: class_0 (5), class_1 (5)
    lengths   frames: min 150, p50 326, p95 1066, max 1066
                100 – 200  3  ██████████████████████████████████████████████████████
                200 – 300  0
                300 – 400  2  ████████████████████████████████████
                400 – 500  1  ██████████████████
                500 – 600  1  ██████████████████
                600 – 700  1  ██████████████████
                700 – 800  0
                800 – 900  0
               900 – 1000  1  ██████████████████
              1000 – 1100  1  ██████████████████
    problems  none in metadata and headers; --decode looks at what is behind the
              headers
    took      [time], headers only
    next      feedwater inspect features
    exit code 0
    ");
    let (_, report) = inspect_json(folder.path(), "features --limit 10");
    assert_eq!((&report["samples"], &report["looked_at"]), (&json!(40), &json!(10)));
}

/// Without a word, the files had no text.
#[test]
fn metadata_a_folder_above_or_below_are_pointed_at() {
    let folder = generated("morse --out data/morse --clips 3 --seed 7");
    let told = |path: &str| {
        let (code, report) = inspect_json(folder.path(), path);
        assert_eq!((code, problems(&report)), (0, vec![("metadata-elsewhere", "note", 3)]), "{path}");
        let problem = &report["problems"][0];
        [&problem["what"], &problem["hint"], &report["next"]]
            .map(|text| text.as_str().unwrap().to_owned())
            .join("\n")
    };
    assert_snapshot!([told("data/morse/train"), told("data")].join("\n"), @"
    `data/morse/metadata.jsonl` lists these files, a folder above this one
    inspect that folder instead: `feedwater inspect data/morse`
    feedwater inspect data/morse
    `data/morse/metadata.jsonl` lists files of its folder, which are bare files from here
    inspect that folder instead: `feedwater inspect data/morse`
    feedwater inspect data/morse
    ");
    let inside = folder.path().join("data/morse/train");
    for (path, folder) in [(".", "./.."), ("../train", "..")] {
        let (_, report) = inspect_json(&inside, path);
        assert_eq!(report["next"], format!("feedwater inspect {folder}"));
    }
}

#[test]
fn a_line_that_is_cut_off_is_a_line_to_put_right() {
    let folder = damaged();
    let metadata = folder.path().join("data/metadata.jsonl");
    fs::write(&metadata, "{\"file_name\": \"good.wav\", \"text\": \"cq\"}\n{\"file_name\": \"good.w")
        .unwrap();
    assert_snapshot!(inspect(folder.path(), "data"), @"
    dataset   Hugging Face audiofolder: data
    samples   2, 2.5 seconds of sound (wav, 16000 Hz, mono)
    text      1 transcript, none with word or segment times
    lengths   seconds: min 2.50, p50 2.50, p95 2.50, max 2.50
              2.50 – 2.51  1  ██████████████████████████████████████████████████████
    problems  1 error
      error   unreadable: 1 of 2 samples cannot be read (50.00 %)
                #1 in data/metadata.jsonl, line 2: EOF while parsing a string
                  (column 21)
              hint: put the lines right or take them out; a run leaves them out and
                    lists them in `quarantine.jsonl`
    took      [time], headers only
    next      feedwater inspect data --decode
    exit code 1
    ");
    fs::write(&metadata, "{\"file_name\": \"empty.wav\"}\n").unwrap();
    let (_, report) = inspect_json(folder.path(), "data");
    assert_eq!(
        report["problems"][0]["what"],
        "1 of 1 samples cannot be read (100.00 %; a run ends with an error)"
    );
}

/// It waited for somebody to write into the pipe.
#[cfg(unix)]
#[test]
fn a_pipe_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let made = std::process::Command::new("mkfifo").arg(folder.path().join("pipe.wav")).status();
    assert!(made.is_ok_and(|status| status.success()));
    fs::write(folder.path().join("metadata.jsonl"), "{\"file_name\": \"pipe.wav\"}\n").unwrap();
    let (code, report) = inspect_json(folder.path(), ".");
    assert_eq!((code, problems(&report)), (1, vec![("unreadable", "error", 1)]));
    assert_eq!(report["problems"][0]["examples"][0]["reason"], "it is not a file");
}

#[test]
fn what_cannot_be_opened_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, err) = feedwater(folder.path(), "inspect nowhere");
    assert_eq!((code, out.as_str()), (2, ""));
    assert_snapshot!(err, @"
    error: `nowhere` does not exist
    hint: `feedwater generate morse --out data/morse` makes a dataset to try
    ");
    let (code, out, err) = feedwater(folder.path(), "inspect . --limit 0");
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.starts_with("error: invalid value '0' for '--limit <N>'"), "{err}");
    let (code, _, err) = feedwater(folder.path(), "generate morse --out x --clips 0");
    assert_eq!((code, err.as_str()), (2, "error: there would be no clips\nhint: for example --clips 200\n"));
}
