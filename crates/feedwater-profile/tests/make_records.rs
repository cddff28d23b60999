//! Records to look at: `cargo test --release -p feedwater-profile --test make_records -- --ignored`.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

#[test]
#[ignore = "writes files to look at: RECORDS names the folder"]
fn write() {
    let folder = std::path::PathBuf::from(std::env::var_os("RECORDS").expect("RECORDS names a folder"));
    let long = common::Case { steps: 100_000, ..common::input_bound() };
    let hostile = common::Case { steps: 120, ..common::input_bound() };
    for (name, case) in [
        ("input", common::input_bound()),
        ("compute", common::compute_bound()),
        ("slow", common::slow_files()),
        ("foreign", common::foreign()),
        ("tuned", common::Case { threads: 4, ..common::input_bound() }),
        ("long", long),
        ("hostile", hostile),
    ] {
        let mut record = common::simulate(&case);
        if name == "hostile" {
            common::disguise(&mut record);
        }
        let diagnosis = feedwater_profile::Diagnosis::of(&record).unwrap();
        let page = feedwater_profile::render::html::render(&record, &diagnosis).unwrap();
        std::fs::write(folder.join(format!("{name}.html")), page).unwrap();
        std::fs::write(folder.join(format!("{name}.jsonl")), common::lines(&record)).unwrap();
    }
}
