//! What a person and a program see of `feedwater advise`.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use insta::assert_snapshot;
use serde_json::Value;

fn feedwater(line: &str) -> (i32, String, String) {
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("feedwater");
    let output = command.args(line.split_whitespace()).env_remove("COLUMNS").output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn advise(line: &str) -> String {
    let (code, out, err) = feedwater(&format!("advise {line}"));
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    format!("{out}{err}exit code {code}")
}

#[test]
fn help() {
    assert_snapshot!(feedwater("advise -h").1);
}

#[test]
fn whisper_between_and_on_the_table() {
    assert_snapshot!(advise("--gpu-memory 24GB --model-size small"));
    assert_snapshot!(advise("--gpu-memory 32GB --model-size medium"));
}

#[test]
fn two_gpus_share_the_work() {
    assert_snapshot!(advise("--gpu-memory 24GB --model-size tiny --gpus 2 --task tts"));
    assert_snapshot!(advise("--gpu-memory 24 --model-size small --gpus 2"));
}

#[test]
fn a_model_that_does_not_fit() {
    assert_snapshot!(advise("--gpu-memory 12GB --model-size large"));
}

#[test]
fn nonsense_has_a_hint() {
    assert_snapshot!(advise("--gpu-memory lots --model-size small"));
    assert_snapshot!(advise("--gpu-memory 24576 --model-size small"));
    assert_snapshot!(advise("--gpu-memory 24GB --model-size enormous"));
    assert_snapshot!(advise("--gpu-memory 24GB --model-size small --gpus 0"));
    assert_snapshot!(advise("--gpu-memory 24GB --model-size small --task images"));
}

#[test]
fn flags_are_taken_with_underscores_too() {
    let kebab = feedwater("advise --gpu-memory 24GB --model-size small --json");
    let snake = feedwater("advise --gpu_memory 24GB --model_size small --json");
    assert_eq!(kebab, snake);
    assert_eq!(kebab.0, 0);
}

#[test]
fn json_has_what_the_help_says() {
    let (code, out, err) = feedwater("advise --gpu-memory 24GB --model-size tiny --gpus 2 --task tts --json");
    assert_eq!((code, err.as_str(), out.lines().count()), (0, "", 1));
    let object: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(object["version"], 1);
    assert_eq!(object["batch_size"], 16);
    assert_eq!(object["split"]["model_gpu_memory_mebibytes"], 16_384);
    assert_eq!(object["basis"], "table");
    let (_, help, _) = feedwater("advise --help");
    for name in object.as_object().unwrap().keys() {
        assert!(help.contains(name.as_str()), "the help does not have {name}");
    }
}
