//! What a person and a program see of `feedwater report` and `feedwater compare`: the real command, on simulated records.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

#[path = "../../feedwater-profile/tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::Path;

use common::{Case, compute_bound, disguise, foreign, input_bound, lines, simulate};
use insta::assert_snapshot;
use serde_json::Value;
use tempfile::TempDir;

/// Runs the command in a folder, so that no path of this machine is in what it prints.
fn feedwater(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("feedwater");
    let output = command.current_dir(folder).args(arguments).env_remove("COLUMNS").output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap().replace('\r', "");
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// All that is seen, with the exit code.
fn seen(folder: &Path, arguments: &[&str]) -> String {
    let (code, out, err) = feedwater(folder, arguments);
    let err = if err.is_empty() { String::new() } else { format!("on stderr:\n{err}") };
    format!("{out}{err}exit code {code}")
}

fn records(cases: &[(&str, Case)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, case) in cases {
        fs::write(folder.path().join(name), lines(&simulate(case))).unwrap();
    }
    folder
}

#[test]
fn the_text_is_the_verdict() {
    let folder =
        records(&[("run.jsonl", input_bound()), ("good.jsonl", compute_bound()), ("torch.jsonl", foreign())]);
    assert_snapshot!("input_bound", seen(folder.path(), &["report", "run.jsonl"]));
    assert_snapshot!("compute_bound", seen(folder.path(), &["report", "good.jsonl"]));
    assert_snapshot!("foreign", seen(folder.path(), &["report", "torch.jsonl"]));
    let restart = seen(folder.path(), &["report", "run.jsonl", "--restart-seconds", "7200"]);
    assert!(restart.contains("let it finish"), "{restart}");
}

#[test]
fn the_gate_is_an_exit_code() {
    let folder = records(&[("run.jsonl", input_bound()), ("good.jsonl", compute_bound())]);
    let gate = |record: &str, gate: &str| {
        let text = seen(folder.path(), &["report", record, "--gate", gate]);
        text[text.find("GATE").or(text.find("error")).unwrap()..].to_owned()
    };
    assert_snapshot!(gate("good.jsonl", "busy>=90,variation<=20"), @r"
    GATE       passed: 2 conditions
      pass     busy >= 90        is 97.86 %
      pass     variation <= 20   is 1.42 %
    exit code 0
    ");
    assert_snapshot!(gate("run.jsonl", "busy >= 90 %, p50_ms < 1000, samples_per_second > 500"), @r#"
    GATE       failed: 2 of 3 conditions
      FAIL     busy >= 90                 is 31.10 %
      pass     p50_ms < 1000              is 193.52 ms
      FAIL     samples_per_second > 500   is 77.55 /s
    exit code 1
    "#);
    assert_snapshot!(gate("run.jsonl", "speed>3"), @r#"
    error: `speed` is not a figure of a run
    hint: --gate "busy>=90,variation<=20"; the figures are busy, variation, robust_variation, wait_share, idle_ms, steps_per_second, samples_per_second, p50_ms, p99_ms, overhead
    exit code 2
    "#);
    let mut record = simulate(&compute_bound());
    for step in &mut record.steps {
        (step.wait_nanos, step.compute_nanos, step.optimizer_nanos) = (step.wall_nanos, 0, 0);
        (step.copy_nanos, step.sync_nanos) = (0, 0);
    }
    record.end = None;
    fs::write(folder.path().join("none.jsonl"), lines(&record)).unwrap();
    assert_snapshot!(gate("none.jsonl", "busy>0,idle_ms<10,overhead<1,p99_ms<1000"), @r#"
    GATE       failed: 3 of 4 conditions
      FAIL     busy > 0        is not known: the record has no accelerator time
      FAIL     idle_ms < 10    is not known: the record has no accelerator time
      FAIL     overhead < 1    is not known: the record does not say what measuring took
      pass     p99_ms < 1000   is 101.42 ms
    exit code 1
    "#);
}

#[test]
fn json_is_one_object_with_the_gate_in_it() {
    let folder = records(&[("run.jsonl", input_bound())]);
    let (code, out, err) = feedwater(folder.path(), &["report", "run.jsonl", "--json", "--gate", "busy>=90"]);
    assert_eq!((code, err.as_str(), out.lines().count()), (1, "", 1));
    let object: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(object["bound"]["by"], "input");
    assert_eq!(object["gate"]["passed"], false);
    assert_eq!(object["gate"]["conditions"][0]["condition"], "busy >= 90");
    // Every field that is there is in the help.
    let (_, help, _) = feedwater(folder.path(), &["report", "--help"]);
    for name in object.as_object().unwrap().keys() {
        assert!(help.contains(name.as_str()), "`{name}` is not in the help");
    }
}

#[test]
fn a_damaged_record_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let text = lines(&simulate(&Case { steps: 60, ..compute_bound() }));
    let cut = text.find("{\"step\":40").unwrap() + 30;
    fs::write(folder.path().join("cut.jsonl"), &text[..cut]).unwrap();
    let verdict = seen(folder.path(), &["report", "cut.jsonl"]);
    assert!(
        verdict.contains("damaged    line 42 is cut off") && verdict.ends_with("exit code 0"),
        "{verdict}"
    );
    let cut = text.find("{\"step\":15").unwrap() + 30;
    fs::write(folder.path().join("short.jsonl"), &text[..cut]).unwrap();
    assert_snapshot!(seen(folder.path(), &["report", "short.jsonl"]), @r#"
    on stderr:
    error: the record has 12 steps that count, and 20 are the least for a verdict
      damaged: line 17 is cut off
    hint: record 50 steps or more: warm-up and the edges of epochs do not count
    exit code 2
    "#);
    let (code, _, err) = feedwater(folder.path(), &["report", "nothing.jsonl"]);
    assert_eq!(code, 2);
    assert!(err.starts_with("error: cannot read `nothing.jsonl`: "), "{err}");
    fs::write(folder.path().join("text.jsonl"), "hello\n").unwrap();
    assert_snapshot!(seen(folder.path(), &["report", "text.jsonl"]), @r#"
    on stderr:
    error: `text.jsonl` is not a record that can be read: its first line is not JSON: expected value at line 1 column 1
    hint: `feedwater profile DATA --record run.jsonl` writes one
    exit code 2
    "#);
    fs::write(folder.path().join("later.jsonl"), "{\"record\":\"feedwater\",\"version\":9}\n").unwrap();
    assert_snapshot!(seen(folder.path(), &["report", "later.jsonl"]), @r#"
    on stderr:
    error: `later.jsonl` is not a record that can be read: it has version 9, and this program knows version 1
    hint: use a newer feedwater
    exit code 2
    "#);
}

#[test]
fn files_are_written_and_named() {
    let folder = records(&[("run.jsonl", input_bound())]);
    let line = ["report", "run.jsonl", "--html", "r.html", "--trace", "t.json", "--trace-steps", "20"];
    let text = seen(folder.path(), &line);
    assert!(text.contains("wrote      r.html\nwrote      t.json"), "{text}");
    assert!(fs::read_to_string(folder.path().join("r.html")).unwrap().starts_with("<!doctype html>"));
    let trace: Value = serde_json::from_slice(&fs::read(folder.path().join("t.json")).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 60);
    let (code, _, err) = feedwater(folder.path(), &["report", "run.jsonl", "--html", "no/where.html"]);
    assert_eq!(code, 2);
    assert!(err.starts_with("error: cannot write `no/where.html`"), "{err}");
}

#[test]
fn nothing_of_a_record_becomes_markup_or_moves_a_cursor() {
    let folder = tempfile::tempdir().unwrap();
    let mut record = simulate(&Case { steps: 120, ..input_bound() });
    disguise(&mut record);
    fs::write(folder.path().join("evil.jsonl"), lines(&record)).unwrap();
    let (code, out, _) = feedwater(folder.path(), &["report", "evil.jsonl", "--html", "evil.html"]);
    assert_eq!(code, 0);
    fs::write(folder.path().join("run.jsonl"), lines(&simulate(&input_bound()))).unwrap();
    let (_, compared, _) = feedwater(folder.path(), &["compare", "evil.jsonl", "run.jsonl"]);
    assert!(out.contains("<script>") && compared.contains("<script>"));
    assert!(!(out + &compared).contains(['\u{1b}', '\u{202e}']), "a terminal is not told what to do either");
    let page = fs::read_to_string(folder.path().join("evil.html")).unwrap();
    assert!(page.contains("&lt;script&gt;"));
    for bad in ["<script", "<img", "\u{1b}", "\u{202e}", "://"] {
        assert!(!page.contains(bad), "{bad:?}");
    }
}

#[test]
fn compare_tells_a_change_from_noise() {
    let folder = records(&[
        ("one.jsonl", input_bound()),
        ("four.jsonl", Case { threads: 4, ..input_bound() }),
        ("again.jsonl", Case { seed: 8, slow: None, ..input_bound() }),
        ("once.jsonl", Case { slow: None, ..input_bound() }),
        ("large.jsonl", Case { rows: 32, ..input_bound() }),
    ]);
    let compare = |line: &[&str]| seen(folder.path(), &[&["compare"], line].concat());
    assert_snapshot!("compare_better", compare(&["one.jsonl", "four.jsonl"]));
    assert_snapshot!("compare_other_batch", compare(&["one.jsonl", "large.jsonl"]));
    let noise = compare(&["once.jsonl", "again.jsonl", "--fail-if-worse"]);
    assert!(noise.contains("RESULT     no difference") && noise.ends_with("exit code 0"), "{noise}");
    let worse = compare(&["four.jsonl", "one.jsonl", "--fail-if-worse"]);
    assert!(worse.contains("RESULT     worse") && worse.ends_with("exit code 1"), "{worse}");
    assert!(compare(&["four.jsonl", "one.jsonl"]).ends_with("exit code 0"));
    let (code, out, _) = feedwater(folder.path(), &["compare", "one.jsonl", "four.jsonl", "--json"]);
    let object: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, &object["result"], &object["decided_by"]),
        (0, &"better".into(), &"steps_per_second".into())
    );
    fs::write(folder.path().join("short.jsonl"), lines(&simulate(&Case { steps: 10, ..input_bound() })))
        .unwrap();
    assert_snapshot!(compare(&["one.jsonl", "short.jsonl"]), @r#"
    on stderr:
    error: short.jsonl: the record has 7 steps that count, and 20 are the least for a verdict
    hint: record 50 steps or more: warm-up and the edges of epochs do not count
    exit code 2
    "#);
}

#[test]
fn the_help_has_it_all() {
    let folder = tempfile::tempdir().unwrap();
    assert_snapshot!("report_help", seen(folder.path(), &["report", "--help"]));
    assert_snapshot!("compare_help", seen(folder.path(), &["compare", "--help"]));
}
