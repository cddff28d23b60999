//! The stream of batches is a pure function of (dataset, seed, epoch, step): not of threads, of when it is entered, or of
//! how many ranks share it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::{collections::BTreeMap, path::Path};

use common::{audio_folder, digest, digests, everything, tokenizer};
use feedwater::{Batch, Builder, Error, Pipeline, ReadyBatch, State};
use feedwater_profile::record::Input;

type Way<A> = (&'static str, fn(A) -> Batch);

/// Every way of making batches, with buckets where there can be buckets.
fn ways() -> [Way<()>; 3] {
    [
        ("count", |()| Batch::of(12)),
        ("buckets", |()| Batch::of(12).buckets(4).mask()),
        ("budget", |()| Batch::frames(600)),
    ]
}

fn text_file(folder: &Path) -> Builder {
    let file = folder.join("text.jsonl");
    if !file.exists() {
        let line = |number: usize| {
            format!("{{\"text\": \"{}\"}}\n", format!("document {number} says ").repeat(number % 9 + 1))
        };
        // Two documents are damaged: they leave no hole in the blocks.
        let line =
            |number: usize| if number % 100 == 33 { "{\"text\": 7}\n".to_owned() } else { line(number) };
        std::fs::write(&file, (0..200).map(line).collect::<String>()).unwrap();
    }
    let quarantine = feedwater::Policy::skip_up_to(0.02).quarantine(folder.join("quarantine.jsonl"));
    Pipeline::open(file).unwrap().tokenize(tokenizer()).policy(quarantine).seed(3)
}

#[test]
fn the_stream_is_the_same_while_threads_and_batches_ahead_are_found_out() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 300);
    let plain = |batch| everything(folder.path(), batch);
    let mut fixed = plain(Batch::of(4)).threads(2).prefetch(3).build().unwrap();
    let mut tuned = plain(Batch::of(4)).start_from(1, 1).build().unwrap();
    for epoch in 0..2 {
        assert_eq!(digests(&mut tuned, epoch), digests(&mut fixed, epoch));
    }
    // A record of it says with which settings each step was made, and what became of those that were tried.
    let inputs = |pipeline: &mut Pipeline| -> Vec<Input> {
        pipeline.epoch(0).map(|batch| batch.unwrap().input.clone()).collect()
    };
    let mut fixed = plain(Batch::of(4)).threads(2).prefetch(3).build().unwrap();
    let as_set =
        |input: &Input| (input.threads, input.prefetch) == (Some(2), Some(3)) && input.tuned.is_empty();
    assert!(inputs(&mut fixed).iter().all(as_set));
    let mut from_worst = plain(Batch::of(4)).start_from(1, 1).build().unwrap();
    let said = inputs(&mut from_worst);
    assert_eq!((said[0].threads, said[0].prefetch), (Some(1), Some(1)));
    assert!(said.iter().any(|input| (input.threads, input.prefetch) != (Some(1), Some(1))));
    let judged = from_worst
        .report()
        .tuning
        .iter()
        .filter(|decision| decision.kept.is_some() || decision.from == decision.to)
        .count();
    assert!(judged > 0);
    assert_eq!(said.iter().map(|input| input.tuned.len()).sum::<usize>(), judged);
    // Nobody trains here, so every step waits, and something is tried.
    let report = tuned.report();
    assert!(!report.tuning.is_empty());
    assert!(report.threads >= 1 && report.prefetch >= 1);
}

#[test]
fn the_stream_is_the_same_for_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 300);
    for (name, batch) in ways() {
        let run = |threads: usize| {
            let mut pipeline = everything(folder.path(), batch(())).threads(threads).build().unwrap();
            let epochs: Vec<Vec<u64>> = (0..2).map(|epoch| digests(&mut pipeline, epoch)).collect();
            assert_eq!(pipeline.report().bad, 6, "three bad files, twice");
            epochs
        };
        let one = run(1);
        assert_ne!(one[0], one[1], "{name}: an epoch is not like another");
        for threads in [2, 3, 8] {
            assert_eq!(one, run(threads), "{name} with {threads} threads");
        }
    }
}

#[test]
fn packed_blocks_are_the_same_for_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let run = |threads: usize| {
        digests(
            &mut text_file(folder.path()).batch(Batch::packed(64, 4)).threads(threads).build().unwrap(),
            0,
        )
    };
    let one = run(1);
    assert!(one.len() > 10);
    for threads in [2, 3, 8] {
        assert_eq!(one, run(threads));
    }
}

/// A batch that what was left of the documents before sufficed for looked like one of a loader that does not say what it did.
#[test]
fn every_packed_batch_says_what_was_done_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut pipeline = text_file(folder.path()).batch(Batch::packed(64, 4)).threads(1).build().unwrap();
    let worked: Vec<u64> = pipeline
        .epoch(0)
        .map(|batch| {
            let input = batch.unwrap().input;
            let names: Vec<&str> = input.work_nanos.keys().map(String::as_str).collect();
            assert_eq!(names, ["batch", "source", "tokenize"]);
            input.work_nanos.values().sum()
        })
        .collect();
    assert!(worked.contains(&0) && worked.iter().any(|nanos| *nanos > 0), "{worked:?}");
}

/// Stops after every step, saves, restores in a new pipeline with other threads, and compares the rest.
fn restores_at_every_step(build: impl Fn(usize) -> Builder) {
    let mut pipeline = build(2).build().unwrap();
    let (mut whole, mut states) = (Vec::new(), vec![pipeline.state()]);
    let mut epoch = pipeline.epoch(1);
    while let Some(batch) = epoch.next() {
        whole.push(digest(&batch.unwrap()));
        states.push(epoch.state());
    }
    drop(epoch);
    let next_epoch = digests(&mut pipeline, 2);
    assert!(whole.len() > 8);
    for (step, state) in states.iter().enumerate().skip(1) {
        let json = state.to_json();
        assert!(json.len() < 400, "a state is a few hundred bytes: {json}");
        let mut resumed = build(1 + step % 3).build().unwrap();
        resumed.restore(&State::from_json(&json).unwrap()).unwrap();
        assert_eq!((state.epoch(), state.step()), (1, step as u64));
        assert_eq!(digests(&mut resumed, 1), whole[step..], "restored after step {step}");
        if step == 3 {
            assert_eq!(digests(&mut resumed, 2), next_epoch, "the epoch after a restored one");
        }
    }
}

#[test]
fn restoring_at_every_step_gives_the_identical_rest() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 200);
    for (_, batch) in ways() {
        restores_at_every_step(|threads| everything(folder.path(), batch(())).threads(threads));
    }
}

#[test]
fn restoring_packed_blocks_at_every_step_gives_the_identical_rest() {
    let folder = tempfile::tempdir().unwrap();
    restores_at_every_step(|threads| text_file(folder.path()).batch(Batch::packed(48, 3)).threads(threads));
}

/// The rows of a batch by their keys: what a rank got, whatever it was padded to.
type Rows = BTreeMap<String, Vec<Vec<u8>>>;

fn rows(batch: &ReadyBatch) -> Rows {
    let mut rows = Rows::new();
    for (row, key) in batch.keys.iter().enumerate() {
        let tensors = batch.tensors.iter().map(|tensor| {
            let row_bytes = tensor.as_bytes().len() / tensor.shape[0];
            let bytes = &tensor.as_bytes()[row * row_bytes..][..row_bytes];
            // Features are `[bins, frames]`; padding is not part of the sample.
            let bins = if tensor.shape.len() == 3 { tensor.shape[1] } else { 1 };
            let length = tensor.lengths[row] * tensor.dtype.bytes();
            bytes.chunks(row_bytes / bins).flat_map(|stretch| stretch[..length].to_vec()).collect()
        });
        rows.insert(key.clone(), tensors.collect());
    }
    rows
}

/// What all ranks together got, step by step, from a state on.
fn joined(
    build: &dyn Fn(usize, usize) -> Pipeline,
    world: usize,
    from: Option<&State>,
    steps: usize,
) -> (Vec<Rows>, State) {
    let mut together: Vec<Rows> = Vec::new();
    let mut last = None;
    for rank in 0..world {
        let mut pipeline = build(rank, world);
        if let Some(state) = from {
            pipeline.restore(state).unwrap();
        }
        let mut epoch = pipeline.epoch(0);
        for step in 0..steps {
            let Some(batch) = epoch.next() else { break };
            together.resize_with(together.len().max(step + 1), Rows::new);
            for (key, row) in rows(&batch.unwrap()) {
                assert!(together[step].insert(key.clone(), row).is_none(), "{key} went to two ranks");
            }
        }
        last = Some(epoch.state());
    }
    (together, last.unwrap())
}

#[test]
fn ranks_share_one_global_order_and_their_number_may_change() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 200);
    let ways: [Way<u64>; 3] = [
        ("count", |world| Batch::of(12 / world)),
        ("buckets", |world| Batch::of(12 / world).buckets(4)),
        ("budget", |world| Batch::frames(1200 / world)),
    ];
    for (name, batch) in ways {
        let build = |rank: usize, world: usize| {
            everything(folder.path(), batch(world as u64)).ranks(rank, world).build().unwrap()
        };
        let (alone, _) = joined(&build, 1, None, usize::MAX);
        assert_eq!(alone.iter().map(Rows::len).sum::<usize>(), 198, "all but the two bad ones");
        for world in [2, 3, 4] {
            let (together, _) = joined(&build, world, None, usize::MAX);
            // Under a budget, steps are made for the number of ranks that the run began with.
            if name != "budget" {
                assert_eq!(together, alone, "{name} on {world} ranks");
            }
            let all: usize = together.iter().map(Rows::len).sum();
            assert_eq!(all, 198, "{name} on {world} ranks");
            // Five steps on this many ranks, the rest on another number.
            for other in [1, 2, 3, 4] {
                let (mut stream, state) = joined(&build, world, None, 5);
                stream.extend(joined(&build, other, Some(&state), usize::MAX).0);
                assert_eq!(stream, together, "{name}: {world} ranks, then {other}");
            }
        }
    }
}

#[test]
fn ranks_share_packed_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let blocks = |rank: usize, world: usize| -> Vec<Vec<Vec<u8>>> {
        let builder = text_file(folder.path()).batch(Batch::packed(32, 12 / world as u64)).ranks(rank, world);
        let mut pipeline = builder.build().unwrap();
        let batches = pipeline.epoch(0).map(|batch| {
            let batch = batch.unwrap();
            batch.get("input_ids").unwrap().as_bytes().chunks(32 * 8).map(<[u8]>::to_vec).collect()
        });
        batches.collect()
    };
    let alone = blocks(0, 1);
    for world in [2, 3, 4] {
        let ranks: Vec<_> = (0..world).map(|rank| blocks(rank, world)).collect();
        for (step, all) in alone.iter().enumerate() {
            let joined: Vec<Vec<u8>> =
                (0..all.len()).map(|block| ranks[block % world][step][block / world].clone()).collect();
            assert_eq!(&joined, all, "step {step} on {world} ranks");
        }
    }
}

#[test]
fn a_state_of_another_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 40);
    let build = || everything(folder.path(), Batch::of(4));
    let mut pipeline = build().build().unwrap();
    let mut epoch = pipeline.epoch(0);
    epoch.next().unwrap().unwrap();
    let state = epoch.state();
    let refused = |builder: Builder| {
        let Err(Error::State { what, hint }) = builder.build().unwrap().restore(&state) else {
            panic!("it was taken")
        };
        assert!(hint.is_some());
        what
    };
    insta::assert_snapshot!(refused(build().seed(8)), @"the seed was 7, and here it is 8");
    insta::assert_snapshot!(refused(build().batch(Batch::of(5))), @"a step had 4 in all ranks together, and here it has 5");
    insta::assert_snapshot!(refused(build().gain(feedwater::Gain::db(0.0..=1.0))), @"the pipeline's stages or settings are not the ones that the run began with");
    let more = folder.path().join("metadata.jsonl");
    let text =
        std::fs::read_to_string(&more).unwrap() + "{\"file_name\": \"clip0000.wav\", \"text\": \"again\"}\n";
    std::fs::write(more, text).unwrap();
    insta::assert_snapshot!(refused(build()), @"the dataset is not the one that the run began with: samples were added, removed or renamed");
    assert!(State::from_json("{}").is_err());
}
