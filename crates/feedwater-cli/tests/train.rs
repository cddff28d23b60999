//! Does training survive what happens to it, and does it say what is wrong? The command itself, on small data.

#![expect(clippy::unwrap_used, reason = "a test that fails may stop")]

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use common::{FEEDWATER, feedwater, ok, text};
use feedwater_train::weights::{read_safetensors, to_safetensors};
use serde_json::{Value, json};

/// What is said where it fails, without the folder of this test.
fn said(arguments: &[&str], folder: &Path) -> String {
    let done = feedwater(arguments);
    assert_eq!(done.status.code(), Some(2), "{}", String::from_utf8_lossy(&done.stderr));
    let said = String::from_utf8(done.stderr).unwrap().replace(&format!("{}/", folder.display()), "");
    let lines = said.lines().skip_while(|line| !line.starts_with("error: "));
    lines.collect::<Vec<_>>().join("\n")
}

fn morse(folder: &Path, clips: &str) -> PathBuf {
    let data = folder.join("data");
    ok(&["generate", "morse", "--out", text(&data), "--clips", clips, "--max-seconds", "3"]);
    data
}

/// A run that takes a second or two.
fn small<'a>(data: &'a Path, out: &'a Path) -> Vec<&'a str> {
    let mut line = vec![
        "train",
        "cnn-lstm",
        "--engine",
        "native",
        "--data-dir",
        text(data),
        "--output-dir",
        text(out),
        "--resume",
    ];
    line.extend(
        "--hidden 16 --channels 8 --batch-size 4 --max-steps 60 --save-steps 4 --eval-steps 20".split(' '),
    );
    line
}

fn weights(run: &Path) -> Vec<u8> {
    fs::read(run.join("checkpoints/step-00000060/model.safetensors")).unwrap()
}

#[test]
fn killed_at_fifty_moments_it_ends_with_the_same_weights() {
    let folder = tempfile::tempdir().unwrap();
    let data = morse(folder.path(), "24");
    let whole = folder.path().join("whole");
    ok(&small(&data, &whole));
    let (mut kills, mut runs, mut state) = (0, 0, 0x2545_F491_4F6C_DD1D_u64);
    while kills < 50 {
        runs += 1;
        let run = folder.path().join(format!("run{runs}"));
        loop {
            let mut child = Command::new(FEEDWATER)
                .args(small(&data, &run))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            std::thread::sleep(Duration::from_millis(20 + state % 700));
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success());
                break;
            }
            if kills >= 50 {
                assert!(child.wait().unwrap().success());
                break;
            }
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
        }
        assert_eq!(weights(&whole), weights(&run), "after {kills} kills");
    }
}

/// A file system of two megabytes, where a user may make one; elsewhere there is nothing to see.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_keeps_the_checkpoint_before() {
    let folder = tempfile::tempdir().unwrap();
    let data = morse(folder.path(), "24");
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    // Room for the first checkpoints; then a file takes what is left.
    let script = format!(
        "mount -t tmpfs -o size=2m tmpfs {disk} && cd {disk} && \
         {FEEDWATER} {first} --max-steps 8 >/dev/null 2>&1 && cp -r checkpoints/step-00000008 {folder}/kept && \
         head -c 3m /dev/zero > filler 2>/dev/null; \
         {FEEDWATER} {first} --max-steps 16 2>&1; echo exit $?; \
         cmp checkpoints/step-00000008/model.safetensors {folder}/kept/model.safetensors && echo whole; \
         rm filler; {FEEDWATER} {first} --max-steps 16 2>&1 >/dev/null | grep resumed",
        disk = disk.display(),
        folder = folder.path().display(),
        first = format_args!(
            "train cnn-lstm --engine native --data-dir {} --output-dir . --resume --hidden 16 --channels 8 --batch-size 4 --save-steps 4 \
             --eval-steps 100 --num-epochs 1",
            data.display()
        ),
    );
    let done =
        Command::new("unshare").args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]).output();
    let said = done.map(|done| String::from_utf8_lossy(&done.stdout).into_owned()).unwrap_or_default();
    if !said.contains("exit ") {
        eprintln!("skipped: no file system can be made here");
        return;
    }
    assert!(said.contains("cannot write") && said.contains("No space left"), "{said}");
    assert!(said.contains("the run goes on, with the checkpoint before"), "{said}");
    assert!(said.contains("whole") && said.contains("resumed   after step 8"), "{said}");
}

#[test]
fn what_cannot_be_used_is_said_in_a_sentence_with_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let data = morse(folder, "16");
    let at = |name: &str| folder.join(name);
    let copy = |name: &str| {
        let to = at(name);
        fs::create_dir(&to).unwrap();
        for entry in fs::read_dir(at("run/checkpoints/step-00000001")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
        to
    };
    let change = |path: PathBuf, change: &dyn Fn(&mut Value)| {
        let mut value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut value);
        fs::write(path, value.to_string()).unwrap();
    };
    let train = |data: &Path, model: Option<&Path>| {
        let out = at("out");
        let mut line = vec![
            "train",
            "whisper",
            "--engine",
            "native",
            "--data-dir",
            text(data),
            "--output-dir",
            text(&out),
        ];
        line.extend(model.into_iter().flat_map(|model| ["--model", text(model)]));
        line.extend("--max-seconds 3 --max-steps 1 --batch-size 2".split(' '));
        said(&line, folder)
    };

    fs::create_dir(at("no-sound")).unwrap();
    fs::write(at("no-sound/notes.txt"), "nothing to hear\n").unwrap();
    fs::create_dir(at("no-text")).unwrap();
    let lines = fs::read_to_string(data.join("metadata.jsonl")).unwrap();
    let emptied: Vec<String> = lines
        .lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            let file = format!("../data/{}", line["file_name"].as_str().unwrap());
            json!({"audio_filepath": file, "text": ""}).to_string()
        })
        .collect();
    fs::write(at("no-text/manifest.jsonl"), emptied.join("\n")).unwrap();

    let run = at("run");
    let mut first =
        vec!["train", "whisper", "--engine", "native", "--data-dir", text(&data), "--output-dir", text(&run)];
    first.extend("--max-seconds 3 --max-steps 1 --batch-size 2 --eval-steps 9".split(' '));
    ok(&first);
    let (tokens, broken, unknown) = (copy("tokens"), copy("broken"), copy("unknown"));
    change(tokens.join("tokenizer.json"), &|json| json["model"]["vocab"]["\u{4e00}"] = json!(999));
    change(unknown.join("config.json"), &|json| json["rope_theta"] = json!(10_000));
    let path = broken.join("model.safetensors");
    let mut named = read_safetensors(&path).unwrap();
    named.iter_mut().find(|one| one.name == "model.decoder.layer_norm.bias").unwrap().values[5] = f32::NAN;
    fs::write(&path, to_safetensors(&named).unwrap()).unwrap();

    let all = [
        train(&at("no-sound"), None),
        train(&at("no-text/manifest.jsonl"), None),
        train(&data, Some(&tokens)),
        train(&data, Some(&broken)),
        train(&data, Some(&unknown)),
        train(&data, Some(&at("openai/whisper-tiny"))),
        said(&first, folder),
    ];
    insta::assert_snapshot!(all.join("\n"));

    // One text that is too long is left out, and the run goes on.
    let long = lines.replacen("\"text\":\"", &format!("\"text\":\"{} ", "PARIS ".repeat(90)), 1);
    fs::write(data.join("metadata.jsonl"), long).unwrap();
    // In an evaluation every sample has its turn.
    let again = at("again");
    first[7] = text(&again);
    first.extend(["--eval-data", text(&data)]);
    let done = feedwater(&first);
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{told}");
    let told = told.lines().skip_while(|line| !line.starts_with("left out")).collect::<Vec<_>>().join("\n");
    assert!(
        told.contains("tokens, more than the 448 allowed") && told.contains("hint: shorten the text"),
        "{told}"
    );
}

#[test]
fn arrays_are_classified_and_sound_is_transcribed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    ok(&[
        "generate",
        "npy",
        "--out",
        &at("npy"),
        "--samples",
        "120",
        "--classes",
        "2",
        "--max-frames",
        "300",
    ]);
    let (data, run) = (at("npy"), at("run"));
    let mut line =
        vec!["train", "cnn-lstm", "--engine", "native", "--data-dir", &data, "--output-dir", &run, "--json"];
    line.extend("--hidden 16 --channels 16 --encoder-epochs 1 --num-epochs 12 --batch-size 8".split(' '));
    let said: Value = serde_json::from_str(&ok(&line)).unwrap();
    assert!(said["encoder"]["held_out"]["loss"].as_f64().unwrap() < 1.0, "{said}");
    assert!(said["best"]["wrong"].as_f64().unwrap() < 0.35, "half would be chance: {said}");
    let said = ok(&["transcribe", &run, &data, "--json"]);
    let right = said.lines().filter(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["file"].as_str().unwrap().starts_with(line["text"].as_str().unwrap())
    });
    assert!(right.count() > 80, "{said}");
}

#[test]
fn the_quick_start_goes_through_and_can_be_run_again() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let line = ["quickstart", "--out", text(&out), "--clips", "32", "--steps", "40"];
    let said = ok(&line);
    for part in [
        "[1/5] Data",
        "VERDICT",
        "with the engine",
        "trained   40 steps",
        "heard ",
        "report.html",
        "What to try next",
    ] {
        assert!(said.contains(part), "{part} is not in:\n{said}");
    }
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("id=\"learning\"") && page.contains("The loss went from"));
    assert!(ok(&line).contains("40 steps, in an earlier run"));
}
