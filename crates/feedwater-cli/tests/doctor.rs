//! What a person and a program see of `feedwater doctor`, and what a bundle does not hold.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

#[path = "../../feedwater-profile/tests/nvml/mod.rs"]
mod nvml;

use std::fs;
use std::io::{Cursor, Read as _};
use std::path::Path;

use feedwater_profile::Record;
use insta::assert_snapshot;
use serde_json::{Value, json};

const CHECKS: [&str; 12] = [
    "gpu",
    "driver",
    "topology",
    "cpu-quota",
    "affinity",
    "memory",
    "shared-memory",
    "disk-speed",
    "disk-free",
    "python",
    "torch",
    "versions",
];

/// Runs the command in a folder, with variables of its own.
fn feedwater(folder: &Path, line: &str, variables: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("feedwater");
    command
        .current_dir(folder)
        .args(line.split_whitespace())
        .env_remove("COLUMNS")
        .env_remove("FEEDWATER_NVML");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn json_of(line: &str, variables: &[(&str, &str)]) -> (i32, Value) {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, err) = feedwater(folder.path(), &format!("doctor {line} --json"), variables);
    assert_eq!((err.as_str(), out.lines().count()), ("", 1));
    (code, serde_json::from_str(&out).unwrap())
}

fn check<'a>(object: &'a Value, id: &str) -> &'a Value {
    object["checks"].as_array().unwrap().iter().find(|check| check["id"] == id).unwrap()
}

#[test]
fn help() {
    assert_snapshot!(feedwater(Path::new("."), "doctor --help", &[]).1);
}

#[test]
fn ids_are_stable_and_the_exit_code_is_the_worst() {
    let (code, object) = json_of("", &[]);
    let ids: Vec<&str> =
        object["checks"].as_array().unwrap().iter().map(|check| check["id"].as_str().unwrap()).collect();
    assert_eq!(ids, CHECKS);
    let worst =
        object["checks"].as_array().unwrap().iter().map(|check| match check["outcome"].as_str().unwrap() {
            "pass" => 0,
            "warn" => 1,
            "fail" => 2,
            other => panic!("{other}"),
        });
    assert_eq!(code, worst.max().unwrap());
    assert_eq!(object["version"], 1);
}

#[test]
fn text_is_a_line_a_check_and_fits() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.bin"), vec![1; 1000]).unwrap();
    let (_, out, err) = feedwater(folder.path(), "doctor .", &[]);
    assert_eq!(err, "");
    let heads: Vec<&str> = out
        .lines()
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect();
    assert_eq!(heads[..CHECKS.len()], CHECKS);
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    let words: Vec<&str> = out.split_whitespace().collect();
    assert!(words.join(" ").contains("too little to measure"), "{out}");
}

#[test]
fn gpus_of_a_stub() {
    let Some(stub) = nvml::stub(&["TOPOLOGY=50", "GPUS=2"]) else { return };
    let (_, object) = json_of("", &[("FEEDWATER_NVML", stub.path.to_str().unwrap())]);
    assert_eq!(check(&object, "gpu")["outcome"], "pass");
    assert_eq!(check(&object, "gpu")["what"], "0 NVIDIA Stub 4090 (24 GB), 1 NVIDIA Stub 4090 (24 GB)");
    assert_eq!(check(&object, "driver")["what"], "NVIDIA 580.65.06, CUDA up to 13.0");
    if cfg!(target_os = "linux") {
        assert_eq!(check(&object, "topology")["outcome"], "warn");
        assert_eq!(object["devices"][0]["links"]["1"], "SYS");
    }
}

#[test]
fn a_lost_gpu_and_a_broken_driver_fail() {
    let Some(stub) = nvml::stub(&[]) else { return };
    let (code, object) = json_of("", &[("FEEDWATER_NVML", stub.path.to_str().unwrap())]);
    assert_eq!((code, &check(&object, "gpu")["outcome"]), (2, &json!("fail")));
    assert!(check(&object, "gpu")["what"].as_str().unwrap().starts_with("GPU 2 does not answer"));
    let (code, object) = json_of("", &[("FEEDWATER_NVML", "/no/such/file.so")]);
    assert_eq!((code, &check(&object, "gpu")["outcome"]), (2, &json!("fail")));
}

#[test]
fn mistakes_are_told() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("data.csv"), "a,b").unwrap();
    for (line, told) in [
        ("doctor nowhere", "error: there is no `nowhere`\nhint: leave it out to look at the machine alone\n"),
        (
            "doctor --bundle data.csv --yes",
            "error: `data.csv` is there, and no zip\nhint: name a new file, for example --bundle feedwater.zip\n",
        ),
    ] {
        let (code, _, err) = feedwater(folder.path(), line, &[]);
        assert_eq!((code, err.as_str()), (2, told));
    }
    let (code, _, err) = feedwater(folder.path(), "doctor --bundle b.zip --record data.csv --yes", &[]);
    assert_eq!(code, 2);
    assert!(err.starts_with("error: `data.csv` is not a record"), "{err}");
    assert!(!folder.path().join("b.zip").exists());
    assert_eq!(fs::read_to_string(folder.path().join("data.csv")).unwrap(), "a,b");
}

/// Names and secrets that the command can know of, or can recognise.
const PLANTED: [&str; 13] = [
    "zebulon",
    "moria",
    "dungeon.example",
    "hf_PlantedPlantedPlanted0123456789ab",
    "planted-environment-word",
    "planted-url-word",
    "planted-query-word",
    "sk-planted0123456789planted",
    "AKIAPLANTED012345678",
    "ghp_planted0123456789planted0123456789",
    "planted-bearer-word",
    "deadbeefdeadbeefdeadbeefdeadbeef",
    "other-person",
];

fn planted_record() -> String {
    let head = json!({"record": "feedwater", "version": 1, "run": {
        "name": "zebulon's run on moria",
        "writer": "token=hf_PlantedPlantedPlanted0123456789ab",
        "settings": {
            "loader": "feedwater",
            "data": "/home/zebulon/sets/morse",
            "task": "https://zebulon:planted-url-word@moria.dungeon.example/set?token=planted-query-word",
        },
    }});
    let mut lines = vec![head.to_string()];
    for step in 0..40 {
        lines.push(
            json!({"step": step, "wall_nanos": 61_000_000, "wait_nanos": 900_000, "compute_nanos": 60_000_000, "rows": 16,
                "input": {"work_nanos": {"decode": 5_000_000, "/home/zebulon/my_stage.py": 7},
                    "waited_for": {"key": format!("/mnt/other-person/clip{step}.wav"), "stage": "decode", "nanos": 9}}})
            .to_string(),
        );
    }
    lines.push(r#"{"end":{"wall_nanos":2440000000}}"#.to_owned());
    // Cut off, as a killed run leaves it.
    lines.push(r#"{"step":40,"key":"/home/zebulon/sk-planted0123456789planted"#.to_owned());
    lines.join("\n")
}

fn planted_report() -> &'static str {
    "<html><body><h1>Run of Zebulon</h1><p>/home/zebulon/x, C:\\Users\\other-person\\y</p>\
     <pre>Authorization: Bearer planted-bearer-word\napi_key = \"deadbeefdeadbeefdeadbeefdeadbeef\"\n\
     AKIAPLANTED012345678 ghp_planted0123456789planted0123456789</pre>\
     <a href=\"https://a.example/b?sig=planted-query-word\">b</a><svg xmlns=\"http://www.w3.org/2000/svg\"/></body></html>"
}

fn bundle(folder: &Path) -> (i32, String, String) {
    fs::write(folder.join("run.jsonl"), planted_record()).unwrap();
    fs::write(folder.join("report.html"), planted_report()).unwrap();
    let variables = [
        ("HOME", "/home/zebulon"),
        ("USER", "zebulon"),
        ("LOGNAME", "zebulon"),
        ("HOSTNAME", "moria.dungeon.example"),
        ("HF_TOKEN", "hf_PlantedPlantedPlanted0123456789ab"),
        ("MY_SERVICE_PASSWORD", "planted-environment-word"),
        ("FEEDWATER_TOKEN", "planted-environment-word"),
        ("FEEDWATER_NOTE", "for zebulon: planted-environment-word at /home/zebulon"),
        ("HTTPS_PROXY", "http://zebulon:planted-url-word@moria:3128"),
        ("RANK", "3"),
        ("HF_HOME", "/home/zebulon/.cache/huggingface"),
        ("UNLISTED", "unlisted-value"),
    ];
    feedwater(folder, "doctor . --bundle out.zip --record run.jsonl --report report.html --yes", &variables)
}

fn members(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut archive = zip::ZipArchive::new(Cursor::new(fs::read(path).unwrap())).unwrap();
    (0..archive.len())
        .map(|index| {
            let mut member = archive.by_index(index).unwrap();
            let mut bytes = Vec::new();
            member.read_to_end(&mut bytes).unwrap();
            (member.name().unwrap().into_owned(), bytes)
        })
        .collect()
}

#[test]
fn nothing_private_is_in_any_byte_of_a_bundle() {
    let folder = tempfile::tempdir().unwrap();
    let (code, _, err) = bundle(folder.path());
    assert!(code <= 1, "{err}");
    let archive = folder.path().join("out.zip");
    let members = members(&archive);
    let names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        ["README.txt", "checks.json", "record.jsonl", "report.html", "settings.json", "environment.json"]
    );
    // The archive itself has names and comments of its own.
    let mut places: Vec<(&str, Vec<u8>)> =
        members.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    places.push(("the archive", fs::read(&archive).unwrap()));
    for (place, bytes) in &places {
        let text = String::from_utf8_lossy(bytes).to_lowercase();
        for planted in PLANTED {
            assert!(!text.contains(&planted.to_lowercase()), "{planted} is in {place}:\n{text}");
        }
        assert!(!text.contains("unlisted"), "{place}");
        // Where this test runs is nobody's business either, if it is somebody's home.
        for variable in ["HOME", "USERPROFILE"] {
            let home = std::env::var(variable).unwrap_or_default();
            assert!(home.len() < 7 || !text.contains(&home.to_lowercase()), "{home} is in {place}");
        }
    }
    let environment: Value = serde_json::from_slice(&members[5].1).unwrap();
    assert_eq!(environment["RANK"], "3");
    assert_eq!(environment["HF_HOME"], "[home]/.cache/huggingface");
    assert_eq!(environment["FEEDWATER_TOKEN"], Value::Null);
    // What is left is of use.
    let record = folder.path().join("unpacked.jsonl");
    fs::write(&record, &members[2].1).unwrap();
    let (before, after) =
        (Record::open(folder.path().join("run.jsonl")).unwrap(), Record::open(&record).unwrap());
    assert_eq!(after.steps.len(), 40);
    assert_eq!((before.end, before.damage.len()), (after.end, after.damage.len()));
    assert_eq!(after.steps[7].wall_nanos, before.steps[7].wall_nanos);
    assert_eq!(after.run.settings.data.as_deref(), Some("[home]/sets/morse"));
    let report = String::from_utf8(members[3].1.clone()).unwrap();
    assert!(report.contains("<svg xmlns=\"http://www.w3.org/2000/svg\"/>"), "{report}");
}

#[test]
fn what_a_bundle_holds_is_shown_first() {
    let folder = tempfile::tempdir().unwrap();
    let (_, _, err) = bundle(folder.path());
    // Sizes and counts depend on the machine.
    let shown: Vec<String> =
        err.lines().map(|line| line.replace(|letter: char| letter.is_ascii_digit(), "#")).collect();
    let shape = |line: &String| line.split_whitespace().next().unwrap_or_default().to_owned();
    let heads: Vec<String> = shown.iter().map(shape).collect();
    assert_eq!(
        heads,
        [
            "out.zip",
            "README.txt",
            "checks.json",
            "record.jsonl",
            "report.html",
            "settings.json",
            "environment.json",
            "taken",
            "written"
        ]
    );
    assert!(
        shown[7].contains("[secret]") && shown[7].contains("[user]") && shown[7].contains("[home]"),
        "{err}"
    );
}

#[test]
fn from_a_pipe_nothing_is_written_without_yes() {
    let folder = tempfile::tempdir().unwrap();
    let (code, _, err) = feedwater(folder.path(), "doctor --bundle out.zip", &[]);
    assert_eq!(code, 2);
    assert!(err.contains("out.zip holds"), "{err}");
    assert!(err.ends_with("may be written\nhint: add --yes to write it\n"), "{err}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_bundle_replaces_an_older_one_and_leaves_nothing_else_behind() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let (code, _, err) = feedwater(folder.path(), "doctor --bundle out.zip --yes", &[]);
        assert!(code <= 1, "{err}");
        assert!(err.ends_with("written\n"), "{err}");
        let left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["out.zip"]);
        assert_eq!(members(&folder.path().join("out.zip")).len(), 4);
    }
}
