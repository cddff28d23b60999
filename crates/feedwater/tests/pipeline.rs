//! What a pipeline promises while it runs: bad samples leave holes and are written down, panics and hangs are named, and
//! dropping it ends its threads.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::{
    fs,
    io::Write as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use common::{audio_folder, clip, digests, everything, wav};
use feedwater::{
    Audio, Batch, Builder, Chunk, DType, Error, Fault, LogMel, Npy, Pad, Pipeline, Policy, WithoutTimes,
    field,
};

fn lines(file: &Path) -> Vec<serde_json::Value> {
    fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_bad_sample_leaves_a_hole_and_is_written_down_once() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 100);
    let mut pipeline = everything(folder.path(), Batch::of(10)).shuffle(false).build().unwrap();
    for epoch in 0..2 {
        let batches: Vec<_> = pipeline.epoch(epoch).map(Result::unwrap).collect();
        let sizes: Vec<usize> = batches.iter().map(feedwater::ReadyBatch::rows).collect();
        assert_eq!(
            sizes,
            [10, 10, 10, 10, 10, 9, 10, 10, 10, 10],
            "the hole does not shift what comes after it"
        );
        assert_eq!(batches[6].keys[0], "clip0060.wav");
    }
    assert_eq!((pipeline.report().bad, pipeline.report().bad_samples), (2, 1));
    let quarantine = folder.path().join("quarantine.jsonl");
    fs::OpenOptions::new().append(true).open(&quarantine).unwrap().write_all(b"what is no note\n").unwrap();
    let mut again = everything(folder.path(), Batch::of(10)).build().unwrap();
    assert_eq!(again.epoch(0).map(Result::unwrap).count(), 10);
    let text = fs::read_to_string(&quarantine).unwrap();
    fs::write(&quarantine, text.replace("what is no note\n", "")).unwrap();
    let written = lines(&quarantine);
    assert_eq!(written.len(), 1, "once, not once an epoch or a run");
    assert_eq!((&written[0]["key"], &written[0]["stage"]), (&"clip0050.wav".into(), &"decode".into()));
    assert!(written[0]["file"].as_str().unwrap().ends_with("clip0050.wav"));
    assert!(written[0]["reason"].as_str().unwrap().contains("data"), "{}", written[0]);
}

#[test]
fn where_shapes_are_fixed_a_bad_sample_leaves_a_masked_row() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 100);
    let mut pipeline = Pipeline::open(folder.path())
        .unwrap()
        .decode(Audio::mono(16_000))
        .log_mel(LogMel::whisper(80))
        .tokenize(common::tokenizer())
        .batch(Batch::of(10))
        .shuffle(false)
        .policy(Policy::skip().quarantine(folder.path().join("q.jsonl")))
        .build()
        .unwrap();
    let batch = pipeline.epoch(0).nth(5).unwrap().unwrap();
    assert_eq!(batch.valid, [false, true, true, true, true, true, true, true, true, true]);
    assert_eq!(batch.keys[0], "");
    let features = batch.get(field::FEATURES).unwrap();
    assert_eq!(features.shape, [10, 80, 3000]);
    assert!(features.as_f32().unwrap()[..80 * 3000].iter().all(|value| *value == 0.0));
    let labels = batch.get(field::LABELS).unwrap();
    assert!(labels.as_i64().unwrap()[..labels.shape[1]].iter().all(|label| *label == -100));
}

#[test]
fn the_ceiling_and_the_fail_policy_stop_the_run() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 300);
    let quarantine = folder.path().join("q.jsonl");
    let run = |policy: Policy| -> Result<usize, Error> {
        let mut pipeline =
            everything(folder.path(), Batch::of(10)).policy(policy.quarantine(&quarantine)).build().unwrap();
        pipeline.epoch(0).try_fold(0, |sum, batch| batch.map(|batch| sum + batch.rows()))
    };
    assert_eq!(run(Policy::skip()).unwrap(), 297, "three of 300 are not more than 1 %");
    let Err(Error::TooManyBad { bad, allowed, .. }) = run(Policy::skip_up_to(0.005)) else {
        panic!("it went on")
    };
    assert_eq!((bad, allowed), (3, 2));
    let Err(Error::Sample { key, stage, .. }) = run(Policy::fail()) else { panic!("it went on") };
    assert!(key.ends_with("50.wav"));
    assert_eq!(stage, "decode");
}

/// Two of 59 ended a run that had asked for long clips to be left out.
#[test]
fn what_was_to_be_left_out_does_not_count_as_bad() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 40);
    let quarantine = folder.path().join("q.jsonl");
    let run = |seconds: f64| {
        let flow = Pipeline::open(folder.path()).unwrap().decode(Audio::mono(16_000)).longest(seconds);
        let policy = Policy::fail().quarantine(&quarantine);
        let mut pipeline = flow.batch(Batch::of(10)).policy(policy).build().unwrap();
        let rows = pipeline.epoch(0).try_fold(0, |sum, batch| batch.map(|batch| sum + batch.rows()));
        rows.map(|rows| (rows, pipeline.report().bad))
    };
    let (rows, bad) = run(0.5).unwrap();
    assert!((10..30).contains(&rows), "{rows}");
    assert_eq!((lines(&quarantine).len(), bad), (40 - rows, 0), "and is written down");
    let error = run(0.01).unwrap_err().to_string();
    assert!(error.starts_with("all 40 samples failed; the first was"), "{error}");
}

/// It ended well, with a batch of nothing.
#[test]
fn an_epoch_of_bad_samples_alone_is_an_error_that_names_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let quarantine = folder.path().join("q.jsonl");
    let run = |name: &str, files: usize, policy: Policy, world: usize| {
        let data = folder.path().join(name);
        fs::create_dir(&data).unwrap();
        for number in 0..files {
            fs::write(data.join(format!("zero{number}.wav")), b"").unwrap();
        }
        let mut pipeline = Pipeline::open(&data)
            .unwrap()
            .decode(Audio::mono(16_000))
            .batch(Batch::of(2))
            .shuffle(false)
            .policy(policy.quarantine(&quarantine))
            .ranks(world - 1, world)
            .build()
            .unwrap();
        let results: Vec<_> = pipeline.epoch(0).collect();
        let Some(Err(error)) = results.last() else { panic!("it ended well") };
        let rows: usize = results.iter().flatten().map(feedwater::ReadyBatch::rows).sum();
        assert_eq!(rows, 0);
        (results.len(), error.to_string().replace(data.to_str().unwrap(), name))
    };
    let (results, one) = run("one", 1, Policy::skip(), 1);
    assert_eq!(results, 1, "no empty batch comes before the error");
    insta::assert_snapshot!(one, @"
    the only sample failed; the first was `zero0.wav` in decode: the file is empty (byte 0 of `one/zero0.wav`)
    hint: `feedwater inspect` on the dataset says what is wrong with it
    ");
    let (_, all) = run("all", 5, Policy::skip_up_to(1.0), 1);
    assert!(all.starts_with("all 5 samples failed; the first was `zero0.wav` in decode"), "{all}");
    // The last rank has one sample less than its share.
    let (_, fewer) = run("fewer", 3, Policy::skip_up_to(1.0), 2);
    assert!(fewer.starts_with("the only sample failed; the first was `zero1.wav`"), "{fewer}");
}

#[test]
fn one_bad_sample_of_a_small_set_does_not_end_a_run_and_the_second_does() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("good.wav"), wav(&clip(1, 0.2), 16_000)).unwrap();
    fs::write(data.join("zero.wav"), b"").unwrap();
    let run = || {
        let builder = Pipeline::open(&data).unwrap().decode(Audio::mono(16_000)).batch(Batch::of(4));
        let policy = Policy::skip().quarantine(folder.path().join("q.jsonl"));
        let mut pipeline = builder.policy(policy).build().unwrap();
        pipeline.epoch(0).try_fold(0, |sum, batch| batch.map(|batch| sum + batch.rows()))
    };
    assert_eq!(run().unwrap(), 1);
    fs::write(data.join("zero2.wav"), b"").unwrap();
    let Err(error @ Error::TooManyBad { bad: 2, allowed: 1, .. }) = run() else { panic!("it went on") };
    assert!(error.to_string().contains("q.jsonl"), "{error}");
}

#[test]
fn a_panic_in_a_stage_is_that_samples_error() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 40);
    let quarantine = folder.path().join("q.jsonl");
    let mut pipeline = everything(folder.path(), Batch::of(4))
        .map("careless", |sample, _| {
            assert!(sample.key != "clip0007.wav", "no sevens");
            Ok(())
        })
        .policy(Policy::skip_up_to(0.1).quarantine(&quarantine))
        .build()
        .unwrap();
    assert_eq!(pipeline.epoch(0).map(|batch| batch.unwrap().rows()).sum::<usize>(), 39);
    let written = lines(&quarantine);
    assert_eq!(
        (&written[0]["stage"], &written[0]["reason"]),
        (&"careless".into(), &"panicked: no sevens".into())
    );
}

#[test]
fn a_panic_where_no_sample_is_at_fault_stops_the_run_and_does_not_hang_it() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 8);
    // Memory for rows of fixed shape is asked for when a step is planned, for others when it is put together.
    for log_mel in [LogMel::whisper(80), LogMel::any_length(80)] {
        let builder = Pipeline::open(folder.path()).unwrap().decode(Audio::mono(16_000)).log_mel(log_mel);
        let mut pipeline = builder.buffers(|_| panic!("no pinned memory")).build().unwrap();
        let Some(Err(Error::Sample { stage, fault, .. })) = pipeline.epoch(0).next() else {
            panic!("it went on")
        };
        assert_eq!((stage, fault.reason.as_str()), ("batch", "panicked: no pinned memory"));
    }
}

#[test]
fn a_stage_that_hangs_is_named() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 8);
    let (release, held) = mpsc::sync_channel::<()>(0);
    let held = std::sync::Mutex::new(held);
    let mut pipeline = everything(folder.path(), Batch::of(4))
        .map("tarry", move |sample, _| {
            if sample.key == "clip0003.wav" {
                let _ = held.lock().unwrap().recv();
            }
            Ok(())
        })
        .stuck_after(Duration::from_millis(700))
        .threads(2)
        .build()
        .unwrap();
    let Some(Err(Error::Stuck { stage, key, .. })) = pipeline.epoch(0).find(Result::is_err) else {
        panic!("not seen")
    };
    assert_eq!((stage, key.as_str()), ("tarry", "clip0003.wav"));
    drop(release);
}

#[test]
fn dropping_a_half_read_epoch_ends_all_threads() {
    struct Alive(Arc<AtomicUsize>);
    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    thread_local!(static HERE: std::cell::RefCell<Option<Alive>> = const { std::cell::RefCell::new(None) });
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 100);
    let alive = Arc::new(AtomicUsize::new(0));
    let count = alive.clone();
    let mut pipeline = everything(folder.path(), Batch::of(4))
        .map("count", move |_, _| {
            HERE.with_borrow_mut(|here| {
                here.get_or_insert_with(|| {
                    count.fetch_add(1, Ordering::SeqCst);
                    Alive(count.clone())
                });
            });
            Ok(())
        })
        .threads(4)
        .build()
        .unwrap();
    let mut epoch = pipeline.epoch(0);
    epoch.next().unwrap().unwrap();
    assert!(alive.load(Ordering::SeqCst) > 0);
    drop(epoch);
    // `drop` waits for its threads: each takes its mark with it.
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    assert_eq!(digests(&mut pipeline, 0).len(), 25, "and it can be read again");
}

#[test]
fn the_next_epoch_is_under_way_before_this_one_ends() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 40);
    let furthest = Arc::new(AtomicUsize::new(0));
    let seen = furthest.clone();
    let mut pipeline = everything(folder.path(), Batch::of(4))
        .map("watch", move |_, context| {
            seen.fetch_max(context.epoch() as usize, Ordering::SeqCst);
            Ok(())
        })
        .prefetch(4)
        .build()
        .unwrap();
    let mut epoch = pipeline.epoch(0);
    let batches: Vec<_> = (0..10).map(|_| epoch.next().unwrap().unwrap()).collect();
    assert_eq!(batches.len(), 10);
    // Nothing of epoch 1 was asked for, yet somebody is at it. It may not be there this instant.
    while furthest.load(Ordering::SeqCst) < 1 {
        std::thread::yield_now();
    }
    assert!(epoch.next().is_none());
}

#[test]
fn what_is_in_flight_keeps_to_the_byte_budget() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 100);
    let made = Arc::new(AtomicUsize::new(0));
    let count = made.clone();
    let mut pipeline = everything(folder.path(), Batch::of(5))
        .map("count", move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
        .prefetch(8)
        .budget_bytes(1)
        .threads(4)
        .build()
        .unwrap();
    for (taken, batch) in pipeline.epoch(0).enumerate() {
        batch.unwrap();
        // One batch is always made; with nothing to spare, no more than one.
        assert!(made.load(Ordering::SeqCst) <= (taken + 2) * 5);
    }
}

#[test]
fn a_mask_covers_the_axis_that_is_padded() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 6);
    let builder = Pipeline::open(folder.path()).unwrap().decode(Audio::mono(16_000));
    let mut pipeline = builder.log_mel(LogMel::any_length(80)).batch(Batch::of(6).mask()).build().unwrap();
    let batch = pipeline.epoch(0).next().unwrap().unwrap();
    let (features, mask) = (batch.get(field::FEATURES).unwrap(), batch.get(field::ATTENTION_MASK).unwrap());
    assert_eq!(mask.shape, [6, features.shape[2]]);
    for (row, length) in mask.as_i64().unwrap().chunks(mask.shape[1]).zip(&features.lengths) {
        assert_eq!(row.iter().sum::<i64>(), *length as i64);
    }
}

#[test]
fn waits_have_names_and_stages_have_figures() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 60);
    let mut pipeline = everything(folder.path(), Batch::of(6))
        .map("dawdle", |sample, _| {
            if sample.key == "clip0005.wav" {
                std::thread::sleep(Duration::from_millis(400));
            }
            Ok(())
        })
        .build()
        .unwrap();
    digests(&mut pipeline, 0);
    let report = pipeline.report();
    let names: Vec<&str> = report.stages.iter().map(|stage| stage.name).collect();
    assert_eq!(
        names,
        [
            "source",
            "read",
            "decode",
            "resample",
            "noise",
            "log_mel",
            "spec_augment",
            "tokenize",
            "dawdle",
            "batch"
        ]
    );
    let worst = report.worst_wait().unwrap();
    assert_eq!((worst.key.as_str(), worst.stage), ("clip0005.wav", "dawdle"));
    // The next epoch is under way already, so there may be more than one epoch's samples.
    let log_mel = report.stage("log_mel").unwrap();
    assert!(log_mel.items >= 59 && log_mel.busy_nanos > 0 && log_mel.bytes > 0);
    assert!(report.stage("read").unwrap().bytes > 0);
    assert_eq!((report.batches, report.samples, report.bad), (10, 59, 1));
}

/// It had the name of a stage that its last sample had been through in a moment.
#[test]
fn a_wait_for_putting_a_batch_together_is_one_for_that() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 30);
    let slow = |bytes| {
        std::thread::sleep(Duration::from_millis(300));
        feedwater::deliver::Memory::new(bytes)
    };
    let flow = Pipeline::open(folder.path()).unwrap().decode(Audio::mono(16_000)).batch(Batch::of(6));
    let mut pipeline = flow.buffers(slow).build().unwrap();
    digests(&mut pipeline, 0);
    assert_eq!(pipeline.report().worst_wait().unwrap().stage, "batch");
}

fn npy(shape: &[usize], value: f32) -> Vec<u8> {
    let shape_text: Vec<String> = shape.iter().map(ToString::to_string).collect();
    let mut header =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}", shape_text.join(", "));
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend((0..shape.iter().product()).flat_map(|_| value.to_le_bytes()));
    file
}

#[test]
fn arrays_are_padded_and_labelled_by_their_folders() {
    let folder = tempfile::tempdir().unwrap();
    for (class, length) in [("cat", 3), ("dog", 5), ("dog", 2), ("emu", 4)] {
        fs::create_dir_all(folder.path().join(class)).unwrap();
        fs::write(folder.path().join(class).join(format!("{length}.npy")), npy(&[length, 2], length as f32))
            .unwrap();
    }
    let build = |batch| {
        Pipeline::open(folder.path()).unwrap().decode(Npy).batch(batch).shuffle(false).build().unwrap()
    };
    let mut pipeline = build(Batch::of(4).mask());
    assert_eq!(pipeline.classes(), ["cat", "dog", "emu"]);
    let batch = pipeline.epoch(0).next().unwrap().unwrap();
    assert_eq!(batch.keys, ["cat/3.npy", "dog/2.npy", "dog/5.npy", "emu/4.npy"]);
    assert_eq!(batch.get(field::LABELS).unwrap().as_i64().unwrap(), [0, 1, 1, 2]);
    let features = batch.get(field::FEATURES).unwrap();
    assert_eq!(
        (features.shape.as_slice(), features.lengths.as_slice()),
        ([4, 5, 2].as_slice(), [3, 2, 5, 4].as_slice())
    );
    assert_eq!(features.as_f32().unwrap()[..10], [3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0]);
    let mask = batch.get(field::ATTENTION_MASK).unwrap();
    assert_eq!(mask.as_i64().unwrap()[..10], [1, 1, 1, 0, 0, 1, 1, 0, 0, 0]);
    for (pad, length) in [(Pad::Multiple(8), 8), (Pad::Shapes(vec![6, 12]), 6)] {
        let batch = build(Batch::of(4).pad(pad).output(DType::BF16)).epoch(0).next().unwrap().unwrap();
        assert_eq!(batch.get(field::FEATURES).unwrap().shape, [4, length, 2]);
    }
}

#[test]
fn arrays_that_cannot_travel_together_and_ones_too_long_are_bad_samples() {
    let folder = tempfile::tempdir().unwrap();
    for (name, shape) in [("a", [3, 2]), ("b", [3, 5]), ("c", [4, 2]), ("d", [40, 2])] {
        fs::write(folder.path().join(format!("{name}.npy")), npy(&shape, 1.0)).unwrap();
    }
    let quarantine = folder.path().join("q.jsonl");
    let mut pipeline = Pipeline::open(folder.path())
        .unwrap()
        .decode(Npy)
        .batch(Batch::of(4).pad(Pad::Shapes(vec![8])))
        .shuffle(false)
        .policy(Policy::skip_up_to(0.5).quarantine(&quarantine))
        .build()
        .unwrap();
    let batch = pipeline.epoch(0).next().unwrap().unwrap();
    assert_eq!(batch.keys, ["a.npy", "c.npy"]);
    let reasons: Vec<String> =
        lines(&quarantine).iter().map(|line| line["reason"].as_str().unwrap().to_owned()).collect();
    insta::assert_snapshot!(reasons.join("\n"), @r"
    `input_features` has the shape [3, 5], which cannot be padded to travel with [3, 2]
    `input_features` is 40 long, longer than the largest static shape
    ");
}

/// A clip of 70 s with a word every second, and a short one.
fn long_clips(folder: &Path, times: bool) -> Builder {
    fs::write(folder.join("long.wav"), wav(&clip(1, 70.0), 16_000)).unwrap();
    fs::write(folder.join("short.wav"), wav(&clip(2, 3.0), 16_000)).unwrap();
    let words: Vec<String> = (0..70)
        .map(|i| {
            format!(
                "{{\"word\": \"w{i}\", \"start\": {}, \"end\": {}}}",
                f64::from(i) + 0.2,
                f64::from(i) + 0.9
            )
        })
        .collect();
    let text: Vec<String> = (0..70).map(|i| format!("w{i}")).collect();
    let words = if times { format!(", \"words\": [{}]", words.join(", ")) } else { String::new() };
    let metadata = format!(
        "{{\"file_name\": \"long.wav\", \"text\": \"{}\"{words}}}\n{{\"file_name\": \"short.wav\", \"text\": \"short\"}}\n",
        text.join(" ")
    );
    fs::write(folder.join("metadata.jsonl"), metadata).unwrap();
    Pipeline::open(folder).unwrap().decode(Audio::mono(16_000)).batch(Batch::of(8)).shuffle(false)
}

#[test]
fn a_long_clip_becomes_windows_with_the_words_spoken_in_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut pipeline = long_clips(folder.path(), true).chunk(Chunk::new()).build().unwrap();
    assert_eq!(pipeline.samples(), 4);
    let batch = pipeline.epoch(0).next().unwrap().unwrap();
    assert_eq!(batch.keys, ["long.wav@0.00", "long.wav@30.00", "long.wav@60.00", "short.wav"]);
    let words: Vec<usize> = batch.texts[0].1.iter().map(|text| text.split(' ').count()).collect();
    assert_eq!(words, [30, 30, 10, 1]);
    assert!(batch.texts[0].1[1].starts_with("w30 w31"));
    let sound = batch.get("input_values").unwrap();
    assert_eq!(sound.lengths, [480_000, 480_000, 160_000, 48_000]);
    let whole: Vec<f32> = clip(1, 70.0).iter().map(|sample| f32::from(*sample) / 32768.0).collect();
    assert_eq!(sound.as_f32().unwrap()[480_000..960_000], whole[480_000..960_000]);
}

#[test]
fn without_times_cutting_is_refused_and_the_choices_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let Err(error) = long_clips(folder.path(), false).chunk(Chunk::new()).build() else {
        panic!("it was cut")
    };
    insta::assert_snapshot!(error, @r"
    `long.wav` is 70.0 s long and has to be cut, but nothing says which of its words fall where
    hint: put `words` or `segments` with start and end into the metadata, or choose: `.without_times(WithoutTimes::Drop)` leaves such clips out, `Truncate` keeps their first window, `NoText` keeps all windows without text
    ");
    let keys = |choice| {
        let chunk = Chunk::new().without_times(choice);
        let mut pipeline = long_clips(folder.path(), false).chunk(chunk).build().unwrap();
        let batch = pipeline.epoch(0).next().unwrap().unwrap();
        (batch.keys.clone(), batch.get("input_values").unwrap().lengths[0], batch.texts[0].1[0].len())
    };
    assert_eq!(keys(WithoutTimes::Drop), (vec!["short.wav".to_owned()], 48_000, 5));
    let (kept, length, text) = keys(WithoutTimes::Truncate);
    assert_eq!(
        (kept, length, text > 100),
        (vec!["long.wav".to_owned(), "short.wav".to_owned()], 480_000, true)
    );
    let (kept, length, text) = keys(WithoutTimes::NoText);
    assert_eq!((kept.len(), length, text), (4, 480_000, 0));
}

#[test]
fn windows_may_overlap() {
    let folder = tempfile::tempdir().unwrap();
    let mut pipeline =
        long_clips(folder.path(), true).chunk(Chunk::seconds(30.0).overlap(5.0)).build().unwrap();
    let batch = pipeline.epoch(0).next().unwrap().unwrap();
    assert_eq!(batch.keys, ["long.wav@0.00", "long.wav@25.00", "long.wav@50.00", "short.wav"]);
    assert!(batch.texts[0].1[1].starts_with("w25 "));
}

#[test]
fn wrong_settings_are_errors_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 4);
    let message = |change: fn(Builder) -> Builder| {
        let Err(error) = change(Pipeline::open(folder.path()).unwrap()).build() else {
            panic!("it was built")
        };
        error.to_string()
    };
    let all = [
        message(|b| b.batch(Batch::of(0))),
        message(|b| b.batch(Batch::of(9).drop_last())),
        message(|b| b.threads(0)),
        message(|b| b.prefetch(0)),
        message(|b| b.ranks(2, 2)),
        message(|b| b.decode(Audio::mono(3))),
        message(|b| b.log_mel(LogMel::whisper(0))),
        message(|b| b.decode(Audio::mono(8_000)).log_mel(LogMel::whisper(80))),
        message(|b| b.log_mel(LogMel::whisper(80)).decode(Audio::mono(16_000))),
        message(|b| b.batch(Batch::packed(512, 4))),
        message(|b| b.batch(Batch::of(4).pad(Pad::Shapes(vec![8, 4])))),
        message(|b| b.policy(Policy::skip_up_to(7.0))),
        message(|b| b.chunk(Chunk::seconds(5.0).overlap(5.0))),
    ];
    insta::assert_snapshot!(all.join("\n"), @r#"
    a batch of 0 samples
    hint: `Batch::of(16)`
    4 samples do not fill one batch of 9, and the last is dropped
    hint: make the batch smaller, or leave out `.drop_last()`
    0 threads
    hint: 1 is the least: `.threads(1)`, or `Threads::Auto`
    a prefetch of 0 batches
    hint: 1 is the least: `.prefetch(1)`
    rank 2 of 2
    hint: ranks are counted from 0: `.ranks(0, 2)` and `.ranks(1, 2)`
    `decode` cannot give 3 samples a second
    hint: Whisper takes 16 000: `Audio::mono(16_000)`
    `log_mel` cannot have 0 bins
    hint: Whisper has 80, or 128 for large-v3: `LogMel::whisper(80)`
    `log_mel` takes 16000 samples a second, and `decode` gives 8000
    hint: `.decode(Audio::mono(16_000)).log_mel(…)`
    `log_mel` stands before `decode`
    hint: stages run in the order they are written: `.decode(…).log_mel(…)`
    the batch counts tokens, and nothing makes any
    hint: add `.tokenize(Tokenize::file("tokenizer.json")?)` before `.batch(…)`
    static shapes must be positive and rise
    hint: `Pad::Shapes(vec![128, 256, 448])`
    a ceiling of 7 for bad samples
    hint: it is a share: `Policy::skip_up_to(0.05)` allows 5 %
    windows of 5 s that overlap by 5 s
    hint: the overlap is shorter than the window: `Chunk::seconds(30.0).overlap(2.0)`
    "#);
}

/// "2 of 50 samples failed … raise the ceiling", it said.
#[test]
fn a_pipeline_for_other_data_is_refused_when_it_is_built() {
    let folder = tempfile::tempdir().unwrap();
    let [sound, bare, arrays, text] = ["sound", "bare", "arrays", "text"].map(|name| {
        let folder = folder.path().join(name);
        fs::create_dir(&folder).unwrap();
        folder
    });
    audio_folder(&sound, 4);
    fs::write(bare.join("a.wav"), wav(&clip(1, 0.2), 16_000)).unwrap();
    fs::write(arrays.join("a.npy"), npy(&[3, 2], 1.0)).unwrap();
    fs::write(text.join("text.jsonl"), "{\"text\": \"a\"}\n").unwrap();
    let message = |data: &Path, change: fn(Builder) -> Builder| {
        let Err(error) = change(Pipeline::open(data).unwrap()).build() else { panic!("it was built") };
        error.to_string()
    };
    let all = [
        message(&arrays, |b| b.decode(Audio::mono(16_000))),
        message(&text, |b| b.decode(Audio::mono(16_000)).tokenize(common::tokenizer())),
        message(&arrays, |b| b.decode(Npy).log_mel(LogMel::whisper(80))),
        message(&sound, |b| b.decode(Npy)),
        message(&bare, |b| b.decode(Audio::mono(16_000)).tokenize(common::tokenizer())),
        message(&sound, |b| b),
        message(&arrays, |b| b.batch(Batch::of(2))),
        message(&sound, |b| b.tokenize(common::tokenizer())),
    ];
    insta::assert_snapshot!(all.join("\n"), @"
    `.decode(Audio::…)` wants sound (`audio`), and no sample has it: the first, `a.npy`, has `input_features`
    hint: these are arrays: `.decode(Npy)`, without `.log_mel(…)`
    `.decode(Audio::…)` wants sound (`audio`), and no sample has it: the first, `text.jsonl#0`, has `text`
    hint: these are neither sound nor arrays: leave out `.decode(…)` and `.log_mel(…)`
    `.log_mel(…)` wants sound (`audio`), and no sample has it: the first, `a.npy`, has `input_features`
    hint: these are arrays: `.decode(Npy)`, without `.log_mel(…)`
    `.decode(Npy)` wants arrays (`input_features`), and no sample has it: the first, `clip0000.wav`, has `audio` and `text`
    hint: these are sound: `.decode(Audio::mono(16_000))`
    `.tokenize(…)` wants text (`text`), and no sample has it: the first, `a.wav`, has `audio`
    hint: put a `text` into the metadata of each sample, or leave out `.tokenize(…)`
    nothing decodes the `audio` of the samples
    hint: add `.decode(Audio::mono(16_000))` behind `Pipeline::open(…)`
    nothing decodes the `input_features` of the samples
    hint: add `.decode(Npy)` behind `Pipeline::open(…)`
    nothing decodes the `audio` of the samples
    hint: add `.decode(Audio::mono(16_000))` behind `Pipeline::open(…)`
    ");
    // What a stage of one's own makes of a sample is not known before it has.
    let own =
        |data: &Path, change: fn(Builder) -> Builder| change(Pipeline::open(data).unwrap()).build().is_ok();
    assert!(own(&bare, |b| b
        .decode(Audio::mono(16_000))
        .map("say", |sample, _| {
            sample.set(field::TEXT, "cq".to_owned());
            Ok(())
        })
        .tokenize(common::tokenizer())));
    // Packed blocks are made of the tokens alone.
    assert!(own(&sound, |b| b.tokenize(common::tokenizer()).batch(Batch::packed(8, 2))));
}

#[test]
fn one_sample_without_a_field_is_bad_and_not_the_pipeline() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 4);
    let metadata = folder.path().join("metadata.jsonl");
    let mut rows: Vec<String> = fs::read_to_string(&metadata).unwrap().lines().map(str::to_owned).collect();
    rows[0] = "{\"file_name\": \"clip0000.wav\"}".to_owned();
    fs::write(&metadata, rows.join("\n")).unwrap();
    let mut pipeline = everything(folder.path(), Batch::of(4)).build().unwrap();
    assert_eq!(pipeline.epoch(0).map(|batch| batch.unwrap().rows()).sum::<usize>(), 3);
}

#[test]
fn a_forgotten_decode_says_so() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 4);
    // Behind a stage of one's own it is found by the first sample.
    let open = Pipeline::open(folder.path()).unwrap().map("nothing", |_, _| Ok(()));
    let mut pipeline = open.policy(Policy::fail()).build().unwrap();
    let Some(Err(Error::Sample { fault: Fault { reason, .. }, .. })) = pipeline.epoch(0).next() else {
        panic!()
    };
    assert!(reason.contains("add `.decode(…)`"), "{reason}");
}
