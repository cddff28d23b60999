//! Does a cache survive what happens while it is built, and does the command say what is there?

#![expect(clippy::unwrap_used, reason = "a test that fails may stop")]

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use common::{FEEDWATER, feedwater, ok, text};
use serde_json::Value;

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&ok(arguments)).unwrap()
}

/// Changes a bit of an entry. Returns the file that it is in.
fn damaged(kept: &Path) -> PathBuf {
    let mut files = fs::read_dir(kept).unwrap().map(|entry| entry.unwrap().path());
    let shard = files.find(|path| path.extension().is_some_and(|ending| ending == "data")).unwrap();
    let mut bytes = fs::read(&shard).unwrap();
    bytes[10_000] ^= 4;
    fs::write(&shard, bytes).unwrap();
    shard
}

#[test]
fn it_is_built_shown_checked_and_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let (data, kept) = (folder.path().join("data"), folder.path().join("cache"));
    ok(&["generate", "morse", "--out", text(&data), "--clips", "30", "--max-seconds", "3"]);
    let place = ["--cache-dir", text(&kept)];
    let built = json(&[&["cache", "build", text(&data), "--json"], &place[..]].concat());
    assert_eq!((&built["cache"]["level"], &built["cache"]["entries"]), (&"features".into(), &30.into()));
    let again = ok(&[&["cache", "build", text(&data)], &place[..]].concat());
    assert!(again.contains("30 were there before, 0 bytes written"), "{again}");
    let stat = ok(&[&["cache", "stat"], &place[..]].concat());
    assert!(stat.contains("decode, log_mel: f32\n    30 entries, "), "{stat}");
    assert!(ok(&[&["cache", "verify"], &place[..]].concat()).starts_with("30 entries are whole ("));
    // What a run finds there it does not make.
    let profile =
        ["profile", text(&data), "--num-steps", "60", "--step-ms", "0", "--cache", "features", "--json"];
    let found = json(&[&profile, &place[..]].concat());
    let stages = found["run"]["idle_nanos"].to_string();
    assert!(stages.contains("\"cache\"") && !stages.contains("\"log_mel\""), "{found}");
    assert_eq!(json(&[&["cache", "stat", "--json"], &place[..]].concat())["held"][0]["entries"], 30);

    let shard = damaged(&kept);
    let verified = feedwater(&[&["cache", "verify"], &place[..]].concat());
    let said = String::from_utf8(verified.stdout).unwrap();
    assert_eq!(verified.status.code(), Some(1));
    assert!(
        said.starts_with("29 entries are whole (") && said.contains("1 of 30 entries are damaged"),
        "{said}"
    );
    // It was meant for this folder, and did not name it.
    let here = kept.display();
    let hint =
        format!("`feedwater cache clear --damaged --cache-dir {here}` drops the files, and the 29 entries");
    assert!(said.contains(&format!("hint: runs do without it, and keep it anew; {hint}")), "{said}");
    // And it does, and says what it found. It said that one was damaged in one line and that none was in the next.
    let said = ok(&[&["cache", "build", text(&data)], &place[..]].concat());
    assert!(said.contains("; 1 was damaged, and is made anew") && said.contains("warning:"), "{said}");
    let said = ok(&[&["cache", "verify"], &place[..]].concat());
    assert!(said.ends_with(" 0 damaged; 1 more were damaged, and made anew since\n"), "{said}");
    // It counted the one that was damaged beside the one that stands for it.
    assert_eq!(json(&[&["cache", "stat", "--json"], &place[..]].concat())["held"][0]["entries"], 30);
    // Without its index it is of no use to anybody: a run says so, and what is left of it can go alone.
    fs::remove_file(shard.with_extension("index")).unwrap();
    let said = ok(&[&["cache", "build", text(&data)], &place[..]].concat());
    assert!(said.contains("one of its two files is gone"), "{said}");
    assert_eq!(feedwater(&[&["cache", "verify"], &place[..]].concat()).status.code(), Some(1));
    ok(&[&["cache", "clear", "--damaged"], &place[..]].concat());
    let said = ok(&[&["cache", "verify"], &place[..]].concat());
    assert!(
        !shard.exists() && said.starts_with("30 entries are whole (") && said.contains(" 0 damaged"),
        "{said}"
    );

    ok(&[&["cache", "clear"], &place[..]].concat());
    assert!(ok(&[&["cache", "stat"], &place[..]].concat()).ends_with("nothing is kept here\n"));
    // `clear` ended as if something had been taken away.
    for verb in ["stat", "verify", "clear"] {
        let done = feedwater(&["cache", verb, "--cache-dir", text(&folder.path().join("a slip"))]);
        assert_eq!(done.status.code(), Some(2), "{verb}");
    }
}

#[test]
fn what_goes_with_damaged_files_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (data, kept) = (folder.path().join("data"), folder.path().join("cache"));
    ok(&["generate", "morse", "--out", text(&data), "--clips", "30", "--max-seconds", "2"]);
    let place = ["--cache-dir", text(&kept)];
    let clear = [&["cache", "clear", "--damaged"], &place[..]].concat();
    for in_json in [false, true] {
        ok(&[&["cache", "build", text(&data), "--cache", "features"], &place[..]].concat());
        let shard = damaged(&kept);
        if in_json {
            assert_eq!(json(&[&clear[..], &["--json"]].concat())["whole_entries"], 29);
        } else {
            let said = ok(&clear);
            assert!(said.ends_with(", with 29 entries that were whole: a run makes them anew\n"), "{said}");
        }
        assert!(!shard.exists());
    }
}

#[test]
fn a_cache_that_cannot_be_kept_is_told_and_so_is_why_there_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let (data, file) = (folder.path().join("data"), folder.path().join("file"));
    ok(&["generate", "morse", "--out", text(&data), "--clips", "30", "--max-seconds", "2"]);
    fs::write(&file, "no folder").unwrap();
    let profile = ["profile", text(&data), "--num-steps", "40", "--step-ms", "0"];
    let done = feedwater(&[&profile[..], &["--cache", "features", "--cache-dir", text(&file)]].concat());
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(
        done.status.success() && said.contains("warning: cache: `") && said.contains("cannot be made"),
        "{said}"
    );
    let kept = folder.path().join("cache");
    let done =
        feedwater(&[&profile[..], &["--cache", "auto", "--cache-dir", text(&kept), "--json"]].concat());
    let said: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert!(said["cache"]["why"].as_str().is_some_and(|why| !why.is_empty()), "{said}");
}

#[test]
fn a_file_of_settings_by_hand_is_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let (file, data) = (folder.path().join("feedwater.toml"), folder.path().join("data"));
    let refused = |file: &std::path::Path| {
        let done = feedwater(&["tune", text(&data), "--write", text(file)]);
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(2));
        assert!(
            said.contains("is there already, and not as `tune` wrote it") && said.contains("--write"),
            "{said}"
        );
    };
    fs::write(&file, "threads = 2 # by hand\n").unwrap();
    refused(&file);
    // Its own it may replace, until somebody changes it. Epochs are short here: every setting has a figure all the same.
    fs::remove_file(&file).unwrap();
    ok(&["generate", "npy", "--out", text(&data), "--samples", "60"]);
    let tune = [
        "tune",
        text(&data),
        "--write",
        text(&file),
        "--num-steps",
        "30",
        "--step-ms",
        "0",
        "--pad-longest",
        "--json",
    ];
    for _ in 0..2 {
        let found: serde_json::Value = serde_json::from_str(&ok(&tune)).unwrap();
        for row in found["rows"].as_array().unwrap() {
            assert!(row["measured"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
    let written = fs::read_to_string(&file).unwrap();
    assert!(
        written.contains("\n[cache]\npad-longest = true\n"),
        "what is built is what `profile` looks for: {written}"
    );
    fs::write(&file, written.replacen("threads = ", "threads = 1", 1)).unwrap();
    refused(&file);
}

#[test]
fn tune_begins_with_what_a_configuration_says() {
    let folder = tempfile::tempdir().unwrap();
    let (config, data) = (folder.path().join("config.yaml"), folder.path().join("data"));
    ok(&["generate", "npy", "--out", text(&data), "--samples", "60"]);
    let said = format!(
        "train_data: '{}'\nlearning_rate: 0.001\ndata:\n  num_workers: 3\n  prefetch_buffer_size: 6\n",
        text(&data)
    );
    fs::write(&config, said).unwrap();
    let file = folder.path().join("feedwater.toml");
    let tune = [
        "tune",
        text(&config),
        "--write",
        text(&file),
        "--batch-size",
        "8",
        "--num-steps",
        "30",
        "--step-ms",
        "5",
        "--cache",
    ];
    // `auto` looks where the cache would lie: not at the user's own.
    let kept = folder.path().join("kept");
    let done = Command::new(FEEDWATER).args(tune).env("FEEDWATER_CACHE", &kept).output().unwrap();
    assert_eq!(done.status.code(), Some(0));
    let (table, said) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap());
    // What `auto` would keep is tried; where that is nothing, or in memory, it is said.
    let why =
        said.lines().find_map(|line| line.strip_prefix("cache     ")).unwrap_or_else(|| panic!("{said}"));
    let level = why.split(':').next().unwrap();
    let tried = table.contains(&format!(", batch 8, {level} "));
    assert_ne!(tried, why.ends_with("; no cache is tried"), "{said}{table}");
    assert!(said.lines().any(|line| line.starts_with("takes     ")), "{said}");
    assert!(
        table.contains("\nWith it, an accelerator that is busy for 5 ms with 8 samples is busy "),
        "{table}"
    );
    let row = table.lines().find(|line| line.contains("as it is")).unwrap_or_else(|| panic!("{table}"));
    assert!(row.starts_with("3 threads, 6 ahead, batch 8 "), "{table}");
    let written = fs::read_to_string(&file).unwrap();
    assert!(
        written.contains("\n# It was looked for with an accelerator that is busy for 5 ms with 8 samples.\n"),
        "{written}"
    );
    assert!(written.contains("\nthreads = "), "{written}");
    let done = feedwater(&["tune", text(&folder.path().join("none.yaml"))]);
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.code() == Some(2) && said.contains("none.yaml` cannot be used"), "{said}");
}

#[test]
fn what_cannot_be_built_or_looked_at_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let (data, file) = (folder.path().join("data"), folder.path().join("file"));
    ok(&["generate", "npy", "--out", text(&data), "--samples", "8"]);
    fs::write(&file, "no folder").unwrap();
    let refused = |words: &[&str], why: &str| {
        let done = feedwater(words);
        let said = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.code() == Some(2) && said.contains(why), "{words:?}: {said}");
    };
    refused(&["cache", "build", text(&data), "--cache", "off"], "there is nothing to build");
    for verb in ["stat", "verify", "clear"] {
        refused(&["cache", verb, "--cache-dir", text(&file)], "cannot read `");
    }
}

#[test]
fn killed_at_two_hundred_moments_it_opens_is_whole_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    ok(&["generate", "morse", "--out", text(&data), "--clips", "160", "--max-seconds", "3"]);
    let (mut kills, mut runs, mut state) = (0, 0, 0x2545_F491_4F6C_DD1D_u64);
    while kills < 200 {
        runs += 1;
        let kept = folder.path().join(format!("cache{runs}"));
        // Killed before it makes one, there would be nothing to look at.
        fs::create_dir(&kept).unwrap();
        let build = ["cache", "build", text(&data), "--cache-dir", text(&kept), "--threads", "2"];
        for _ in 0..20 {
            let mut child = Command::new(FEEDWATER)
                .args(build)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            std::thread::sleep(Duration::from_micros(2_000 + state % 60_000));
            if child.try_wait().unwrap().is_some() {
                break;
            }
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
            let verified = json(&["cache", "verify", "--cache-dir", text(&kept), "--json"]);
            assert_eq!(verified["verified"]["damaged"], 0, "{verified}");
        }
        let built = json(&[&build[..], &["--json"]].concat());
        assert_eq!(built["cache"]["entries"], 160, "{built}");
        assert_eq!((&built["cache"]["damaged"], &built["cache"]["trouble"]), (&0.into(), &Value::Null));
        let verified = json(&["cache", "verify", "--cache-dir", text(&kept), "--json"]);
        assert_eq!(verified["verified"]["damaged"], 0);
        // Where epochs meet, one sample may be made twice.
        assert!(verified["verified"]["whole"].as_u64() >= Some(160), "{verified}");
        fs::remove_dir_all(&kept).unwrap();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_is_full_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (data, disk) = (folder.path().join("data"), folder.path().join("disk"));
    fs::create_dir(&disk).unwrap();
    ok(&["generate", "morse", "--out", text(&data), "--clips", "60", "--max-seconds", "3"]);
    let build = format!(
        "{FEEDWATER} cache build {} --cache-dir {}/cache --cache-size 1GB --json",
        data.display(),
        disk.display()
    );
    let script = format!("mount -t tmpfs -o size=2m tmpfs {} && {build}; echo exit $?", disk.display());
    let done =
        Command::new("unshare").args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]).output();
    let said = done.map(|done| String::from_utf8_lossy(&done.stdout).into_owned()).unwrap_or_default();
    if !said.contains("\"version\"") {
        eprintln!("skipped: no file system can be made here");
        return;
    }
    let built: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    assert_eq!((&built["samples"], said.ends_with("exit 1\n")), (&60.into(), true), "{said}");
    let (entries, trouble) =
        (built["cache"]["entries"].as_u64().unwrap(), built["cache"]["trouble"].to_string());
    assert!((1..60).contains(&entries) && trouble.contains("No space left"), "{said}");
}
