//! Simulated records and their reports, to look at:
//! `cargo run --release -p feedwater-profile --example make_records -- FOLDER`

#![allow(clippy::unwrap_used, reason = "nothing to do but stop")]

#[path = "../tests/common/mod.rs"]
mod common;

fn main() {
    let folder = std::path::PathBuf::from(std::env::args_os().nth(1).expect("name a folder"));
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
