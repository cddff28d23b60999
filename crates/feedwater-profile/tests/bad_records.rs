//! Records that are not what they should be: a clear error, or what can be read. Never a panic, never a hang, never
//! another verdict than the whole record's.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod common;

use std::path::Path;

use common::{Case, compute_bound, input_bound, lines, simulate};
use feedwater_profile::{Boundness, Diagnosis, Error, Record, compare::Comparison, gate::Gate, render};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Opens bytes as a record.
fn open(bytes: impl AsRef<[u8]>) -> feedwater_profile::Result<Record> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    std::fs::write(&path, bytes).unwrap();
    Record::open(&path)
}

/// Everything that can be done with a record. What it is made of must not matter.
fn everything(record: &Record) -> Option<Diagnosis> {
    let trace = render::trace::render(record, 50);
    assert!(serde_json::from_str::<Value>(&trace).is_ok());
    let _ = Comparison::of(record, record);
    let diagnosis = Diagnosis::of(record).ok()?;
    let text = render::text::render(&diagnosis, render::text::Colour::None);
    assert!(text.starts_with("VERDICT"));
    let page = render::html::render(record, &diagnosis).unwrap();
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
    assert!(serde_json::to_string(&diagnosis).is_ok());
    let gate = Gate::parse("busy>=0,variation<=1,idle_ms<1,overhead<1,p99_ms>0").unwrap();
    assert_eq!(gate.check(&diagnosis).len(), 5);
    Some(diagnosis)
}

fn kind(bound: &Boundness) -> &'static str {
    match bound {
        Boundness::Input(_) => "input",
        Boundness::Copy => "copy",
        Boundness::Sync => "sync",
        Boundness::Unknown => "unknown",
        Boundness::Compute => "compute",
    }
}

fn small(case: Case) -> String {
    lines(&simulate(&Case { steps: 40, ..case }))
}

fn refused(bytes: impl AsRef<[u8]>, says: &str) {
    let error = open(bytes).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, Error::NotARecord { .. }), "{message}");
    assert!(message.contains(says) && message.contains("\nhint: "), "{message}");
}

/// A record of which one line is another.
fn with_line(number: usize, line: &str) -> Record {
    let text = small(input_bound());
    let mut all: Vec<&str> = text.lines().collect();
    all[number] = line;
    open(all.join("\n") + "\n").unwrap()
}

#[test]
fn what_is_no_record_is_refused_and_says_why() {
    refused("", "first line");
    refused("\n", "first line");
    refused([0_u8, 159, 146, 150, 255, 0, 10, 1], "first line");
    refused("hello\n", "not JSON");
    refused("[]\n", "does not say");
    refused("{\"record\":\"other\",\"version\":1}\n", "does not say");
    refused("{\"record\":\"feedwater\"}\n", "no version");
    refused("{\"record\":\"feedwater\",\"version\":\"1\"}\n", "no version");
    refused("{\"record\":\"feedwater\",\"version\":2}\n", "version 2");
    refused("{\"record\":\"feedwater\",\"version\":1,\"run\":7}\n", "first line is wrong");
    refused(
        "{\"record\":\"feedwater\",\"version\":1,\"run\":{\"settings\":{\"threads\":-1}}}\n",
        "first line is wrong",
    );
    refused(format!("{}\n", "[".repeat(100_000)), "not JSON");
    assert!(matches!(Record::open(Path::new("/nowhere/at all")), Err(Error::Read { .. })));
    assert!(matches!(Record::open(std::env::temp_dir()), Err(Error::Read { .. })));
}

#[test]
fn nineteen_steps_are_too_few_and_twenty_are_enough() {
    let of = |steps| Diagnosis::of(&simulate(&Case { steps, ..compute_bound() }));
    let error = of(22).unwrap_err();
    assert!(matches!(error, Error::TooFewSteps { steps: 19, needed: 20, warm_up: 3 }), "{error}");
    assert_eq!(of(23).unwrap().steps, 20);
    assert!(everything(&Record::default()).is_none());
}

#[test]
fn bad_lines_are_left_out_and_named() {
    for (line, says) in [
        ("{\"step\":4,\"wall_nanos\":", "is not JSON"),
        ("{\"step\":\"four\",\"wall_nanos\":1,\"wait_nanos\":0}", "wrong type"),
        ("{\"step\":4,\"wall_nanos\":-5,\"wait_nanos\":0}", "wrong type"),
        ("{\"step\":4,\"wall_nanos\":1.5,\"wait_nanos\":0}", "wrong type"),
        ("{\"step\":4,\"wall_nanos\":NaN,\"wait_nanos\":0}", "is not JSON"),
        ("{\"step\":4,\"wall_nanos\":1e400,\"wait_nanos\":0}", "is not JSON"),
        ("{\"step\":4,\"wall_nanos\":18446744073709551615,\"wait_nanos\":0}", "has a step of"),
        ("{\"step\":4,\"wall_nanos\":0,\"wait_nanos\":0}", "has a step of"),
        ("{\"step\":4,\"wall_nanos\":5000000,\"wait_nanos\":50000000}", "longer than the step"),
        ("{\"step\":4}", "lacks one"),
        ("{\"step\":4,\"wall_nanos\":9,\"wait_nanos\":1,\"input\":[7]}", "wrong type"),
        ("{\"step\":4,\"wall_nanos\":9,\"wait_nanos\":1,\"rows\":9000000000000000000}", "samples"),
        ("{\"step\":18446744073709551615,\"wall_nanos\":9,\"wait_nanos\":1}", "number"),
        (
            "{\"step\":4,\"wall_nanos\":9,\"wait_nanos\":1,\"input\":{\"work_nanos\":{\"a\":18446744073709551615,\"b\":9}}}",
            "work",
        ),
        ("{\"step\":1,\"wall_nanos\":9000000,\"wait_nanos\":0}", "repeats step 1"),
        ("{\"device\":{\"index\":0,\"at_nanos\":1,\"busy_percent\":250}}", "0 … 100 %"),
        ("{\"end\":[]}", "wrong type"),
        ("42", "not an object"),
        ("\"step\"", "not an object"),
    ] {
        let record = with_line(5, line);
        let damage = record.damage.join("; ");
        assert!(damage.starts_with("line 6 ") && damage.contains(says), "{line}: {damage}");
        assert_eq!(record.damage.len(), 1);
        let diagnosis = everything(&record).unwrap();
        assert_eq!((kind(&diagnosis.bound), diagnosis.steps), ("input", 36), "{line}");
        assert_eq!(diagnosis.damage, record.damage);
    }
}

#[test]
fn lines_and_fields_of_a_later_writer_are_left_alone() {
    for line in ["{\"weather\":\"fine\"}", "", "   ", "{}"] {
        assert_eq!(with_line(5, line).damage, Vec::<String>::new(), "{line}");
    }
    let text = small(input_bound()).replace("{\"step\":", "{\"colour\":[1,{}],\"step\":");
    assert_eq!(open(&text).unwrap(), open(small(input_bound())).unwrap());
}

#[test]
fn invalid_text_is_damage_and_not_an_end() {
    let mut bytes = small(input_bound()).into_bytes();
    let key = bytes.windows(8).position(|window| window == b"\"key\":\"c").unwrap() + 7;
    bytes[key] = 0xff;
    let record = open(&bytes).unwrap();
    assert_eq!((record.damage.len(), record.steps.len()), (1, 39));
}

#[test]
fn steps_that_come_twice_or_in_another_order_count_once() {
    let record = simulate(&Case { steps: 60, ..input_bound() });
    let mut text = lines(&record);
    let steps = text.split_once('\n').unwrap().1.to_owned();
    text += &steps;
    let again = open(&text).unwrap();
    assert_eq!(again.steps, record.steps);
    assert_eq!(again.damage.len(), 21, "{:?}", again.damage);
    assert_eq!(again.damage[20], "and 40 more lines");
}

#[test]
fn a_line_without_end_is_not_kept() {
    // What a file of 10 GB without a line end does, in small: it is read past and not kept.
    let mut text = small(input_bound());
    text.extend(["{\"step\":99,\"x\":\"", &"x".repeat(9 << 20), "\"}\n"]);
    text += "{\"step\":100,\"wall_nanos\":9000000,\"wait_nanos\":0}\n";
    let record = open(&text).unwrap();
    assert_eq!(record.steps.last().unwrap().step, 100);
    assert_eq!(record.damage, ["line 45 is longer than 4 MiB"]);
    refused("x".repeat(9 << 20), "first line");
}

#[test]
fn settings_that_cannot_be_are_left_out_and_said() {
    let settings = json!({
        "threads": u64::MAX, "prefetch": u64::MAX, "batch_size": u64::MAX, "longest_seconds": 1e300, "over_30s_share": -3e9,
    });
    let host = json!({"cores": 1e300, "usable_cores": 1e18, "quota_cores": -4, "crowding": 1e300, "memory_bytes": u64::MAX});
    let head = json!({
        "record": "feedwater", "version": 1,
        "run": {"settings": settings, "host": host, "planned_steps": u64::MAX, "started_unix_seconds": u64::MAX},
    });
    for case in [input_bound(), compute_bound()] {
        let bound = kind(&Diagnosis::of(&simulate(&Case { steps: 40, ..case.clone() })).unwrap().bound);
        let text = small(case);
        let rest = text.split_once('\n').unwrap().1;
        let record = open(format!("{head}\n{rest}")).unwrap();
        assert!(record.damage[0].starts_with("line 1 "), "{:?}", record.damage);
        assert_eq!(kind(&everything(&record).unwrap().bound), bound);
    }
}

#[test]
fn every_truncation_is_an_error_or_the_same_verdict() {
    for case in [input_bound(), compute_bound()] {
        let case = Case { steps: 27, stages: case.stages[..2].to_vec(), ..case };
        let whole = simulate(&case);
        let bound = kind(&Diagnosis::of(&whole).unwrap().bound);
        let text = lines(&whole);
        let (mut verdicts, mut last) = (0, (0, 0, false));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        std::fs::write(&path, &text).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        for cut in (0..text.len()).rev() {
            file.set_len(cut as u64).unwrap();
            let Ok(record) = Record::open(&path) else {
                assert!(cut <= text.find('\n').unwrap(), "a record with a first line is readable");
                continue;
            };
            assert!(record.steps.iter().zip(&whole.steps).all(|(read, written)| read == written));
            assert!(record.damage.len() <= 1);
            // Most cuts lie within a line and leave the same record behind.
            let parts = (record.steps.len(), record.devices.len(), record.end.is_some());
            if parts == last {
                continue;
            }
            last = parts;
            if let Ok(diagnosis) = Diagnosis::of(&record) {
                verdicts += 1;
                assert_eq!(kind(&diagnosis.bound), bound, "cut at {cut}");
            }
        }
        assert!(verdicts > 5, "{verdicts}");
    }
}

#[test]
fn a_run_that_was_killed_has_a_verdict_and_no_overhead() {
    let text = small(compute_bound());
    let cut = text.rfind("{\"end\"").unwrap();
    let diagnosis = everything(&open(&text[..cut]).unwrap()).unwrap();
    assert_eq!((kind(&diagnosis.bound), diagnosis.overhead_percent), ("compute", None));
}

#[test]
fn a_long_record_makes_no_larger_page() {
    let case = Case { steps: 30_000, rows: 4, ..input_bound() };
    let record = simulate(&case);
    let diagnosis = Diagnosis::of(&record).unwrap();
    let page = render::html::render(&record, &diagnosis).unwrap();
    assert!(page.len() < 300_000, "{} bytes", page.len());
    let worst = diagnosis.worst.unwrap();
    assert!(page.contains(&format!("<td>{}</td>", worst.key.unwrap())), "the worst keeps its name");
}

/// A path into a JSON value, and what is put there.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0_u64..200_000_000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        Just(json!(1e300)),
        ".{0,12}".prop_map(Value::from),
        Just(json!("<script>")),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z_]{1,8}", inner, 0..3).prop_map(|map| json!(map)),
        ]
    })
}

/// Puts something in one of a value's places.
fn disturb(value: &mut Value, mut place: usize, with: Value) {
    fn places(value: &Value) -> usize {
        match value {
            Value::Object(map) => 1 + map.values().map(places).sum::<usize>(),
            Value::Array(list) => 1 + list.iter().map(places).sum::<usize>(),
            _ => 1,
        }
    }
    place %= places(value);
    let mut here = value;
    while place > 0 {
        place -= 1;
        let inner: Vec<&mut Value> = match here {
            Value::Object(map) => map.values_mut().collect(),
            Value::Array(list) => list.iter_mut().collect(),
            _ => return,
        };
        let mut next = None;
        for child in inner {
            let count = places(child);
            if place < count {
                next = Some(child);
                break;
            }
            place -= count;
        }
        let Some(child) = next else { return };
        here = child;
    }
    *here = with;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn any_value_in_any_field_never_panics(
        changes in prop::collection::vec((0_usize..44, 0_usize..60, anything()), 1..12),
    ) {
        let text = small(Case { slow: Some((100, 300.0, "decode")), ..input_bound() });
        let mut all: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for (line, place, with) in changes {
            let line = line % all.len();
            disturb(&mut all[line], place, with);
        }
        let text = all.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
        if let Ok(record) = open(text) {
            everything(&record);
        }
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0_usize..20_000) {
        let _ = open(&bytes);
        let mut text = small(compute_bound()).into_bytes();
        let at = at % text.len();
        let end = (at + bytes.len()).min(text.len());
        text.splice(at..end, bytes);
        if let Ok(record) = open(text) {
            everything(&record);
        }
    }
}
