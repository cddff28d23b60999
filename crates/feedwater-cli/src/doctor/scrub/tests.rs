//! What must be taken out, what must stay, and what must still be a record.

use super::*;
use feedwater_profile::Record;
use proptest::prelude::*;

fn identities() -> Identities {
    let variables = [
        ("HOME", "/home/quillon"),
        ("USER", "quillon"),
        ("HOSTNAME", "gandalf.lab.example"),
        ("WANDB_API_KEY", "correct horse battery"),
        ("HTTPS_PROXY", "http://proxy-user:pr0xy-word@proxy:3128"),
        ("PATH", "/usr/bin"),
        ("PWD", "/usr/share"),
    ];
    let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
    let mut identities = Identities::of_environment(variables);
    identities.add_accounts(
        "root:x:0:0:root:/root:/bin/sh\nquillon:x:1000:1000:Ada Quill-Ononymous,,,:/home/quillon:/bin/sh\nbad line\n\
         other:x:1001:1001:Some Body:/home/other:/bin/sh\n",
    );
    identities
}

fn scrubbed(text: &str) -> String {
    Scrubber::new(&identities(), &[text]).text(text)
}

#[test]
fn names_and_homes() {
    for (text, expected) in [
        ("/home/quillon/data", "[home]/data"),
        ("/home/quillon", "[home]"),
        ("/scratch/quillon/x", "/scratch/[user]/x"),
        ("Quillon's run, quillon_2", "[user]'s run, [user]_2"),
        ("on gandalf and gandalf.lab.example.", "on [host] and [host]."),
        ("/Users/jane/set and jane", "/Users/[user]/set and [user]"),
        (r"C:\Users\Jane Doe\set, Jane Doe", r"C:\Users\[user]\set, [user]"),
        (r"C:\\Users\\jane\\set", r"C:\\Users\\[user]\\set"),
        ("file:///home/bob/x", "file:///home/[user]/x"),
        ("%2Fhome%2Fquillon%2Fx", "[home]%2Fx"),
        (r"\/home\/bob\/x and bob", r"\/home\/[user]\/x and [user]"),
        ("%2Fhome%2Fbob%2Fx", "%2Fhome%2F[user]%2Fx"),
        ("Ada Quill-Ononymous", "[user]"),
        ("/home/ubuntu/x", "/home/ubuntu/x"),
        ("mail jane.doe@example.org now", "mail [user]@[host] now"),
        ("root, data, feedwater, /usr/share/x", "root, data, feedwater, /usr/share/x"),
        ("Some Body", "Some Body"),
    ] {
        assert_eq!(scrubbed(text), expected, "{text}");
    }
}

#[test]
fn secrets_of_every_form() {
    for secret in [
        "hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ012345",
        "sk-proj-abcdef0123456789abcdef",
        "ghp_0123456789abcdefghijABCDEFGHIJ012345",
        "github_pat_11ABCDEFG0123456789_abcdefghijk",
        "AKIAIOSFODNN7EXAMPLE",
        "xoxb-123456789012-abcdefghijkl",
        "glpat-abcDEF0123456789wxyz",
        "AIzaSyA0123456789abcdefghijklmnopqrstuv",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "0123456789abcdef0123456789abcdef01234567",
        "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY0a",
    ] {
        for text in [
            secret.to_owned(),
            format!("with {secret}, and more"),
            format!("x={secret}"),
            format!("\"{secret}\""),
            format!("https://a.example/x?y={secret}&z=1"),
        ] {
            let out = scrubbed(&text);
            assert!(!out.contains(secret), "{text} → {out}");
            assert!(out.contains(SECRET), "{text} → {out}");
        }
    }
    for (text, expected) in [
        ("https://user:pass@host/x", "https://[secret]@host/x"),
        ("https://user:p@ss@host/x", "https://[secret]@host/x"),
        ("https://user:p/ss@host/x", "https://[secret]@host/x"),
        ("https://ghp_x@host/x", "https://[secret]@host/x"),
        ("https://host/x?token=abc", "https://host/x?[secret]"),
        ("s3://b/k?X-Amz-Signature=abc&v=1 end", "s3://b/k?[secret] end"),
        ("Authorization: Basic dXNlcg==", "Authorization: [secret] [secret]"),
        ("Bearer abc.def-123", "Bearer [secret]"),
        ("note: token=abc", "note: token=[secret]"),
        ("a=1;password=x,y z", "a=1;password=[secret] z"),
        ("--hf-token abc --steps 3", "--hf-token [secret] --steps 3"),
        ("apiKey: 'abc'", "apiKey: '[secret]'"),
        (r#"{\"secret\": \"abc\"}"#, r#"{\"secret\": \"[secret]\"}"#),
        ("db_password=hunter2", "db_password=[secret]"),
        ("login correct horse battery today", "login [secret] today"),
        ("pr0xy-word", "[secret]"),
    ] {
        assert_eq!(scrubbed(text), expected, "{text}");
    }
    let pem = "a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----\nb";
    assert_eq!(scrubbed(pem), "a\n[secret]\nb");
}

#[test]
fn what_is_no_secret_stays() {
    for text in [
        "tokenize 171 ms, max_tokens=448, tokenizer: whisper, tokens: 12",
        "author: nobody, key: clip00012.wav, keyboard=us",
        "LibriSpeech-train-clean-100-1272-128104-0000.flac",
        "common_voice_en_19676522.mp3, commonvoice/clips/a.mp3",
        "GPU-00000000-0000-0000-0000-000000000001 NVIDIA GeForce RTX 4090",
        "3.6 it/s of 15.4, p50 270 ms: decode 171 · read 22",
        "http://www.w3.org/2000/svg",
        "hf_transfer, sk-learn",
        "<img src=\"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAUA/9hAFCAYAAACNbyblAAAAHElEQVQI12P4z8DAAA==\">",
        "<path d=\"M10.5 20L30 40Z\" class=\"fw-wait\"/>",
    ] {
        assert_eq!(scrubbed(text), text);
    }
}

#[test]
fn names_of_variables() {
    for name in [
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "WANDB_API_KEY",
        "apiKey",
        "DB_PASSWORD",
        "GITHUB_PAT",
        "access-token",
    ] {
        assert!(is_secret_name(name), "{name}");
    }
    for name in
        ["TOKENIZERS_PARALLELISM", "max_tokens", "author", "key", "tokenize", "path", "compass", "PYTHONPATH"]
    {
        assert!(!is_secret_name(name), "{name}");
    }
}

fn record() -> String {
    let head = serde_json::json!({"record": "feedwater", "version": 1, "run": {
        "name": "quillon-whisper", "host": {"os": "Linux", "cpu": "x", "cores": 2.0},
        "devices": [{"index": 0, "name": "GPU", "links": {"1": "SYS"}}],
        "settings": {"loader": "feedwater", "data": "/home/quillon/morse", "threads": 2},
    }});
    let step = serde_json::json!({"step": 0, "wall_nanos": 61_000_000, "wait_nanos": 900_000, "input": {
        "work_nanos": {"decode": 5, "/home/quillon/stage.py": 7},
        "waited_for": {"key": "https://u:p@h/a.wav?token=abc", "stage": "decode", "nanos": 12},
    }});
    let device = serde_json::json!({"device": {"index": 0, "at_nanos": 1, "busy_percent": 97.5}});
    format!("{head}\n{step}\n{device}\n{{\"end\":{{\"wall_nanos\":61000000}}}}\nhalf a li /home/quillon")
}

fn read(text: &str) -> Record {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.jsonl");
    std::fs::write(&path, text).unwrap();
    Record::open(&path).unwrap()
}

#[test]
fn a_scrubbed_record_is_the_same_record_without_the_names() {
    let text = record();
    let out = Scrubber::new(&identities(), &[&text]).lines(&text);
    assert!(!out.contains("quillon"), "{out}");
    let (before, after) = (read(&text), read(&out));
    assert_eq!(after.run.settings.data.as_deref(), Some("[home]/morse"));
    assert_eq!(after.steps[0].wait_nanos, before.steps[0].wait_nanos);
    let input = after.steps[0].input.as_ref().unwrap();
    assert_eq!(input.work_nanos, [("decode".to_owned(), 5), ("[home]/stage.py".to_owned(), 7)].into());
    assert_eq!(input.waited_for.as_ref().unwrap().key, "https://[secret]@h/a.wav?[secret]");
    assert_eq!((before.devices, before.end), (after.devices, after.end));
    assert_eq!(before.damage, after.damage);
}

#[test]
fn a_record_survives_users_who_are_called_like_its_fields() {
    let text = record();
    let before = read(&text);
    for name in FIELDS.split(' ').chain(["feedwater", "nanos", "wall", "input"]) {
        let mine = Identities { users: vec![name.to_owned()], ..Identities::default() };
        let after = read(&Scrubber::new(&mine, &[]).lines(&text));
        assert_eq!(after.steps.len(), before.steps.len(), "{name}");
        assert_eq!(after.steps[0].wall_nanos, before.steps[0].wall_nanos, "{name}");
        assert_eq!(after.end, before.end, "{name}");
    }
}

/// The list has every field that a record can have.
#[test]
fn all_fields_of_a_record_are_known() {
    use feedwater_profile::record::{Blame, DeviceSample, End, Input, Run, Step};
    fn names(value: &Value, found: &mut BTreeSet<String>) {
        if let Value::Object(fields) = value {
            for (name, value) in fields {
                found.insert(name.clone());
                names(value, found);
            }
        }
    }
    let blame = Some(Blame::default());
    let input = Input {
        cpu_nanos: Some(1),
        queued_nanos: Some(1),
        waited_for: blame.clone(),
        slowest: blame.into_iter().collect(),
        ready: Some(1),
        ..Input::default()
    };
    let step = Step {
        step: 1,
        epoch: 1,
        wall_nanos: 1,
        wait_nanos: 1,
        copy_nanos: 1,
        compute_nanos: 1,
        optimizer_nanos: 1,
        sync_nanos: 1,
        rows: 1,
        input: Some(input),
        loss: Some(1.0),
        mark: Some(String::new()),
    };
    let shares = ["cer", "wer", "error"].map(|name| (name.to_owned(), 0.0)).into();
    let score = feedwater_profile::record::Score { steps: 1, loss: Some(1.0), shares };
    let device = feedwater_profile::record::Device::default();
    let mut found = BTreeSet::new();
    for value in [
        serde_json::to_value(Run::default()).unwrap(),
        serde_json::to_value(step).unwrap(),
        serde_json::to_value(device).unwrap(),
        serde_json::to_value(DeviceSample::default()).unwrap(),
        serde_json::to_value(End::default()).unwrap(),
        serde_json::to_value(score).unwrap(),
    ] {
        names(&value, &mut found);
    }
    let missing: Vec<&String> = found.iter().filter(|name| !is_field(name)).collect();
    assert_eq!(missing, Vec::<&String>::new());
}

proptest! {
    #[test]
    fn nothing_planted_survives_wherever_it_stands(
        before in "\\PC{0,30}", after in "\\PC{0,30}",
        planted in prop::sample::select(vec![
            "quillon", "QUILLON", "/home/quillon", "gandalf", "correct horse battery", "pr0xy-word",
        ]),
    ) {
        let text = format!("{before}{planted}{after}");
        let mut scrubber = Scrubber::new(&identities(), &[&text]);
        let out = scrubber.text(&text);
        for word in ["quillon", "gandalf", "correct horse battery", "pr0xy-word"] {
            prop_assert!(!out.to_lowercase().contains(word), "{} → {}", text, out);
        }
        prop_assert!(!scrubber.leaks(&out));
    }

    #[test]
    fn tokens_do_not_survive_between_other_words(
        before in "[ a-z:=\"(,/]{0,12}[ :=\"(,/]", token in "hf_[A-Za-z0-9]{20,34}", after in "[ \",)&\n]\\PC{0,20}",
    ) {
        let text = format!("{before}{token}{after}");
        let out = scrubbed(&text);
        prop_assert!(!out.contains(&token), "{} → {}", text, out);
    }

    #[test]
    fn scrubbing_twice_changes_nothing_more(text in "[a-z0-9=:/@.?& _\"\\\\-]{0,60}|\\PC{0,60}") {
        let once = scrubbed(&text);
        prop_assert_eq!(&scrubbed(&once), &once);
    }

    #[test]
    fn json_stays_json(text in "\\PC{0,40}", name in "\\PC{0,10}") {
        let value = serde_json::json!({ name: [text, 1, null, { "step": 3 }] });
        let out = Scrubber::new(&identities(), &[]).value(value.clone());
        prop_assert_eq!(out.as_object().unwrap().len(), 1);
    }
}
