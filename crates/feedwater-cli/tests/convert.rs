//! Does the command put small files into shards, say what that brings, and refuse to spoil what is there?

#![expect(clippy::unwrap_used, reason = "a test that fails may stop")]

mod common;

use std::fs;

use common::{feedwater, ok, text};
use serde_json::Value;

#[test]
fn files_become_shards_that_train_as_the_files_did() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    ok(&["generate", "morse", "--out", text(&data), "--clips", "24", "--max-seconds", "2"]);
    for (form, kind) in [("shard", "Feedwater shards"), ("tar", "WebDataset tar shards")] {
        let out = folder.path().join(form);
        let said = ok(&["convert", text(&data), "--out", text(&out), "--to", form, "--shard-size", "500KB"]);
        assert!(said.starts_with("24 samples in ") && said.contains("samples from memory"), "{said}");
        let inspected = ok(&["inspect", text(&out)]);
        assert!(inspected.contains(kind), "{inspected}");
        let profile =
            ["profile", text(&out), "--num-steps", "60", "--batch-size", "2", "--step-ms", "1", "--json"];
        let profile: Value = serde_json::from_str(&ok(&profile)).unwrap();
        assert!(profile["run"]["samples_per_second"].as_f64().unwrap() > 0.0);

        let again = feedwater(&["convert", text(&data), "--out", text(&out), "--to", form]);
        assert_eq!(again.status.code(), Some(2));
        let said = String::from_utf8(again.stderr).unwrap();
        assert!(said.contains(" already") && said.contains("--force replaces them"), "{said}");
        let forced =
            ["convert", text(&data), "--out", text(&out), "--to", form, "--force", "--no-figures", "--json"];
        let forced: Value = serde_json::from_str(&ok(&forced)).unwrap();
        assert_eq!((&forced["samples"], forced["files"].as_array().unwrap().len()), (&24.into(), 1));
        let left = fs::read_dir(&out).unwrap().count();
        assert_eq!(left, 1, "what was there before is gone");
    }
}

#[test]
fn what_cannot_be_read_is_listed_and_the_exit_code_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    ok(&["generate", "morse", "--out", text(&data), "--clips", "6", "--max-seconds", "2"]);
    let wavs: Vec<_> = fs::read_dir(&data)
        .unwrap()
        .flat_map(|entry| {
            let path = entry.unwrap().path();
            if path.is_dir() {
                fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect()
            } else {
                vec![path]
            }
        })
        .filter(|path| path.extension().is_some_and(|ending| ending == "wav" || ending == "flac"))
        .collect();
    fs::remove_file(&wavs[0]).unwrap();
    let out = folder.path().join("out");
    let done = feedwater(&["convert", text(&data), "--out", text(&out), "--no-figures"]);
    assert_eq!(done.status.code(), Some(1), "{}", String::from_utf8_lossy(&done.stderr));
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(
        said.starts_with("5 samples in 1 shard") && said.contains("warning: 1 could not be read"),
        "{said}"
    );
    let listed = fs::read_to_string(out.join("quarantine.jsonl")).unwrap();
    assert!(listed.contains(wavs[0].file_name().unwrap().to_str().unwrap()), "{listed}");
}

/// It was deleted: the shards that were to be replaced were what was to be converted.
#[test]
fn what_is_converted_is_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (folder.path().join("data"), folder.path().join("out"));
    ok(&["generate", "morse", "--out", text(&data), "--clips", "6", "--max-seconds", "2"]);
    ok(&["convert", text(&data), "--out", text(&out), "--no-figures", "--to", "tar"]);
    let (shard, pattern) = (out.join("shard-00000.tar"), out.join("shard-{00000..00000}.tar"));
    for (from, to) in [
        (&data, &data),
        (&shard, &out),
        (&pattern, &out),
        (&out, &out.join("sub")),
        (&data, &data.join("sub")),
    ] {
        let refused = feedwater(&["convert", text(from), "--out", text(to), "--force"]);
        assert_eq!(refused.status.code(), Some(2));
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains("among the files that they are made of"), "{said}");
        assert!(shard.is_file());
    }
    // Nor does it go among the files of another dataset, where nobody would find it.
    let arrays = folder.path().join("arrays");
    ok(&["generate", "npy", "--out", text(&arrays), "--samples", "6"]);
    let refused = feedwater(&["convert", text(&data), "--out", text(&arrays), "--force"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("has other files, such as "), "{said}");
    // Nor is what is there, where nothing comes in its place.
    let manifest = folder.path().join("manifest.jsonl");
    let line =
        "{\"audio_filepath\": \"data/x.wav\", \"duration\": 0.2, \"offset\": 0.1, \"text\": \"part\"}\n";
    fs::write(&manifest, line).unwrap();
    let failed = feedwater(&["convert", text(&manifest), "--out", text(&out), "--force", "--to", "tar"]);
    assert_eq!(failed.status.code(), Some(2), "{}", String::from_utf8_lossy(&failed.stdout));
    assert!(shard.is_file());
}
