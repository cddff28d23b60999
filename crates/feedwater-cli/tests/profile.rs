//! What a new user sees of `feedwater profile`. Figures are not looked at here: they are the machine's.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;

fn feedwater() -> Command {
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("feedwater");
    command.env_remove("FEEDWATER_NVML");
    command
}

fn printed(arguments: &[&str], folder: &Path) -> String {
    let cache = folder.join("cache");
    let done =
        feedwater().args(arguments).current_dir(folder).env("FEEDWATER_CACHE", cache).assert().success();
    String::from_utf8(done.get_output().stdout.clone()).unwrap()
}

fn with_morse() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    feedwater()
        .args(["generate", "morse", "--out", "morse", "--clips", "40"])
        .current_dir(folder.path())
        .assert()
        .success();
    folder
}

#[test]
fn the_verdict_fits_on_a_screen_and_has_no_colour_in_a_pipe() {
    let folder = with_morse();
    let line = ["profile", "morse", "--num-steps", "40", "--step-ms", "4"];
    feedwater().args(line).args(["--cache-dir", "c"]).current_dir(folder.path()).assert().success().stderr(
        "warning: --cache-dir is for a cache, and nothing is kept without --cache, as in --cache features\n",
    );
    let text = printed(&line, folder.path());
    assert!(!text.contains('\u{1b}'), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() <= 30, "{} lines:\n{text}", lines.len());
    for line in &lines {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let labels: Vec<&str> = lines
        .iter()
        .map(|line| line.get(..11).unwrap_or(line).trim())
        .filter(|label| !label.is_empty())
        .collect();
    for label in ["RUN", "VERDICT", "busy", "idle/step", "variation", "DECISION", "TUNED"] {
        assert!(labels.contains(&label), "no {label}:\n{text}");
    }
    assert!(text.contains("overhead"), "{text}");
    assert!(text.contains("the accelerator is pretended"), "{text}");
}

#[test]
fn a_record_a_report_and_a_trace_can_be_kept() {
    let folder = with_morse();
    let arguments = ["--record", "run.jsonl", "--html", "report.html", "--trace", "trace.json", "--json"];
    let line = ["profile", "morse", "--num-steps", "40", "--step-ms", "0"];
    let json: Value =
        serde_json::from_str(&printed(&[&line[..], &arguments].concat(), folder.path())).unwrap();
    assert_eq!(json["version"], 1);
    assert_eq!(json["run"]["run"]["settings"]["threads"], 1);
    assert!(json["run"]["samples_per_second"].as_f64().unwrap() > 0.0);
    assert!(json["tuned"]["overhead_percent"].as_f64().unwrap() >= 0.0);
    // What a cache would bring was tried on some samples, in no folder that stays.
    for pass in ["first_nanos_per_mib", "nanos_per_mib", "handover_nanos"] {
        assert!(json["run"]["run"]["host"]["cached"][pass].as_f64().unwrap() > 0.0, "{pass}");
    }
    assert!(!folder.path().join("cache").exists());
    // No accelerator, so nothing is said of how busy it is.
    assert!(json["run"]["busy_percent"].is_null());
    let text = printed(&["report", "run.jsonl"], folder.path());
    assert!(text.starts_with("VERDICT"), "{text}");
    assert!(std::fs::read_to_string(folder.path().join("report.html")).unwrap().contains("</html>"));
    let trace = std::fs::read(folder.path().join("trace.json")).unwrap();
    assert!(serde_json::from_slice::<Value>(&trace).unwrap()["traceEvents"].is_array());
}

/// Where documents are packed, the verdict was "input, stage not recorded", and no fix had a figure.
#[test]
fn tokenizing_is_named_where_documents_are_packed() {
    let folder = tempfile::tempdir().unwrap();
    let generate = ["generate", "text", "--out", "text"];
    feedwater().args(generate).current_dir(folder.path()).assert().success();
    // So small that a run of documents suffices for several.
    let line = ["profile", "text", "--num-steps", "120", "--batch-size", "2", "--step-ms", "0", "--json"];
    let json: Value = serde_json::from_str(&printed(&line, folder.path())).unwrap();
    assert!(json["run"]["run"]["host"]["cached"]["nanos_per_mib"].as_f64().unwrap() > 0.0);
    let findings = json["run"]["findings"].as_array().unwrap();
    let of = |id: &str| findings.iter().find(|finding| finding["id"] == id);
    assert!(of("input").is_none(), "{findings:?}");
    let fixes = of("tokenize").unwrap()["changes"].as_array().unwrap();
    let cache = fixes.iter().find(|fix| fix["setting"].as_str().unwrap().contains("--cache")).unwrap();
    assert!(cache["predicted"]["samples_per_second"].as_f64().unwrap() > 0.0, "{cache}");
}

#[test]
fn what_was_predicted_is_tried() {
    let folder = with_morse();
    let line = [
        "profile",
        "morse",
        "--num-steps",
        "40",
        "--batch-size",
        "4",
        "--step-ms",
        "1",
        "--verify=1",
        "--json",
    ];
    let json: Value = serde_json::from_str(&printed(&line, folder.path())).unwrap();
    let verified = json["verified"].as_array().unwrap();
    assert!(verified.len() >= 3, "{verified:?}");
    for line in verified {
        assert!(line["predicted"]["samples_per_second"].as_f64().unwrap() > 0.0);
        assert!(line["measured_samples_per_second"].as_f64().unwrap() > 0.0);
        let [low, high] = [0, 1].map(|at| line["quartiles_percent"][at].as_f64().unwrap());
        assert!((low..=high).contains(&line["off_percent"].as_f64().unwrap()), "{line}");
    }
}

#[test]
fn without_data_a_small_set_is_made_and_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let line = [
        "profile",
        "--batch_size",
        "16",
        "--num-steps",
        "30",
        "--step-ms",
        "2",
        "--data-gpu",
        "0",
        "--model-gpu",
        "1",
    ];
    let text = printed(&line, folder.path());
    assert!(text.contains("no DATA was given"), "{text}");
    assert!(text.contains("no NVIDIA driver here"), "{text}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "something was left behind");
}

#[test]
fn every_task_can_be_profiled() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, count, task) in [("npy", "--samples", "npy"), ("text", "--documents", "text")] {
        feedwater()
            .args(["generate", kind, "--out", kind, count, "200"])
            .current_dir(folder.path())
            .assert()
            .success();
        let line = ["profile", kind, "--num-steps", "30", "--batch-size", "4", "--step-ms", "1", "--json"];
        let json: Value = serde_json::from_str(&printed(&line, folder.path())).unwrap();
        assert_eq!(json["run"]["run"]["settings"]["task"], task);
    }
}

/// A setting that is tuned already was run again as if it were another; of batches that are never full nothing was said.
#[test]
fn what_is_tuned_already_and_batches_that_are_never_full_are_told() {
    let folder = with_morse();
    let cores = std::thread::available_parallelism().unwrap().to_string();
    let line = ["profile", "morse", "--num-steps", "30", "--step-ms", "1", "--batch-size", "64"];
    let mut command = feedwater();
    command.args(line).args(["--threads", &cores, "--prefetch", "4"]).current_dir(folder.path());
    let done = command.assert().success();
    let [out, said] =
        [&done.get_output().stdout, &done.get_output().stderr].map(|text| String::from_utf8_lossy(text));
    assert!(out.contains(&format!("TUNED      {cores} threads, 4 ahead: as above\n")), "{out}");
    assert_eq!(said, "warning: no batch is full: the largest has 40 rows of 64\n");
}

#[test]
fn too_short_a_run_and_what_is_not_there_are_errors_with_a_hint() {
    let folder = with_morse();
    let short =
        feedwater().args(["profile", "morse", "--num-steps", "10"]).current_dir(folder.path()).assert();
    let said = String::from_utf8(short.failure().code(2).get_output().stderr.clone()).unwrap();
    assert!(said.contains("30 or more: the first steps"), "{said}");
    let missing = feedwater().args(["profile", "nowhere"]).current_dir(folder.path()).assert();
    let said = String::from_utf8(missing.failure().code(2).get_output().stderr.clone()).unwrap();
    assert!(said.contains("`nowhere`"), "{said}");
}

#[test]
fn bad_samples_are_told_and_listed_once_and_a_flag_lets_more_be_left_out() {
    let folder = with_morse();
    let said = |arguments: &[&str], code: i32| {
        let _ = std::fs::remove_file(folder.path().join("quarantine.jsonl"));
        let done = feedwater().args(arguments).current_dir(folder.path()).assert().code(code);
        let output = done.get_output();
        let said = [&*output.stdout, &*output.stderr].map(String::from_utf8_lossy).concat();
        let listed = std::fs::read_to_string(folder.path().join("quarantine.jsonl")).unwrap();
        (said, listed.lines().count())
    };
    for number in 0..3 {
        std::fs::write(folder.path().join(format!("morse/train/clip{number:05}.wav")), "no sound").unwrap();
    }
    let short = ["--num-steps", "30", "--batch-size", "4", "--step-ms", "1"];
    let line = |words: &'static [&'static str], more: &[&'static str]| [words, more].concat();
    for words in
        [&["profile", "morse"][..], &["tune", "morse"], &["cache", "build", "morse", "--cache-dir", "c"]]
    {
        let short = if words[0] == "cache" { &[][..] } else { &short };
        let (text, _) = said(&line(words, short), 2);
        assert!(text.contains("a higher `--bad-ceiling`"), "{text}");
        let (text, listed) = said(&[&*line(words, short), &["--bad-ceiling", "20%"]].concat(), 0);
        assert!(text.contains("left out: see quarantine.jsonl"), "{text}");
        assert_eq!(listed, 3, "{words:?}");
    }
}
