//! The report in a real browser: it draws, says nothing on the console, and asks for nothing from the network.
//!
//! Where there is no browser, the test says that it was skipped.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

#[path = "../../feedwater-profile/tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Case, compute_bound, disguise, foreign, input_bound, lines, simulate, slow_files};

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    std::env::split_paths(&path)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find(|program| program.is_file())
}

/// The page as the browser has it after loading, and all that it has to say.
fn opened(browser: &Path, page: &Path, more: &[&str]) -> (String, String) {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new(browser)
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions"])
        .args(["--disable-background-networking", "--enable-logging=stderr", "--log-level=0"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(more)
        .arg("--dump-dom")
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_report_opens_without_a_word_on_the_console() {
    let Some(browser) = browser() else {
        eprintln!("skipped: there is no Chromium here");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        ("input", input_bound()),
        ("compute", compute_bound()),
        ("slow", slow_files()),
        ("foreign", foreign()),
        ("evil", Case { steps: 120, ..input_bound() }),
    ];
    for (name, case) in cases {
        let mut record = simulate(&case);
        if name == "evil" {
            disguise(&mut record);
        }
        let path = folder.path().join(format!("{name}.jsonl"));
        fs::write(&path, lines(&record)).unwrap();
        let page = folder.path().join(format!("{name}.html"));
        let mut command = assert_cmd::cargo::cargo_bin_cmd!("feedwater");
        command.arg("report").arg(&path).arg("--html").arg(&page).assert().success();
        let source = fs::read_to_string(&page).unwrap();
        for bad in ["http:", "https:", "://", "<script", "<link", "<img", "@import", "src="] {
            // A key may say `src=`; a tag may not.
            let found = source.contains(bad) && !(name == "evil" && bad == "src=");
            assert!(!found, "{name}: {bad}");
        }
        let (dom, console) = opened(&browser, &page, &[]);
        assert!(dom.contains("</footer>"), "{name}: the page is whole\n{console}");
        let said: Vec<&str> = console.lines().filter(|line| line.contains("CONSOLE")).collect();
        assert!(said.is_empty(), "{name}: {said:?}");
        let diagnosis = feedwater_profile::Diagnosis::of(&record).unwrap();
        assert!(
            dom.contains(&format!("{:.1} <small>steps/s", diagnosis.steps_per_second)),
            "{name}: the pace"
        );
        assert!(dom.contains("How to read:") && dom.contains("id=\"waterfall\""), "{name}");
        let pictures = dom.matches("role=\"img\"").count();
        assert_eq!(pictures, if name == "foreign" { 5 } else { 8 }, "{name}: pictures");
    }
}
