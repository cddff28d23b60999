//! What a cache promises: the same batches to the last bit, whatever happens to its files; and nothing done twice.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use common::{audio_folder, clip, digests, everything, tokenizer, wav};
use feedwater::{
    Audio, Batch, Builder, Cache, DType, Error, LogMel, Noise, Npy, Pipeline, Policy, SpecAugment,
    cache::{self, Identity, Level},
};

const LEVELS: [Level; 4] = [Level::Raw, Level::Decoded, Level::Features, Level::Ram];

/// Features first, then what is random: the usual order of fine-tuning.
fn features_first(data: &Path) -> Builder {
    Pipeline::open(data)
        .unwrap()
        .decode(Audio::mono(16_000))
        .log_mel(LogMel::any_length(80))
        .tokenize(tokenizer())
        .spec_augment(SpecAugment::default())
        .batch(Batch::of(8).buckets(4))
        .seed(5)
        .policy(Policy::skip_up_to(0.05).quarantine(data.join("quarantine.jsonl")))
}

/// The batches of some epochs, and what the cache did meanwhile. It may have made the first of the next epoch.
fn epochs(builder: Builder, epochs: u64) -> (Vec<Vec<u64>>, Option<cache::CacheReport>) {
    // Not further ahead than this, so that little of the next epoch is made.
    let mut pipeline = builder.prefetch(2).build().unwrap();
    let digests = (0..epochs).map(|epoch| digests(&mut pipeline, epoch)).collect();
    (digests, pipeline.report().cache)
}

fn shards(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == ending))
        .collect();
    paths.sort();
    paths
}

/// Features of a fixed shape with nothing behind them are written from the entry into the row, in whatever type each is.
#[test]
fn numbers_that_go_straight_into_their_rows_are_those_that_were_made() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    audio_folder(&data, 12);
    let flow = |batch: DType| {
        Pipeline::open(&data)
            .unwrap()
            .decode(Audio::mono(16_000))
            .log_mel(LogMel::whisper(80))
            .tokenize(tokenizer())
            .batch(Batch::of(5).output(batch))
            .seed(5)
    };
    for batch in [DType::F32, DType::F16, DType::BF16] {
        let (plain, _) = epochs(flow(batch), 2);
        for dtype in [None, Some(DType::F32), Some(DType::F16), Some(DType::BF16)] {
            for level in [Level::Features, Level::Ram] {
                let kept = folder.path().join(format!("{batch:?}-{dtype:?}"));
                let mut cache = Cache::of(level).in_folder(kept);
                if let Some(dtype) = dtype {
                    cache = cache.dtype(dtype);
                }
                let (made, _) = epochs(flow(batch).cache(Some(cache.clone())), 2);
                let (found, report) = epochs(flow(batch).cache(Some(cache)), 2);
                assert_eq!(made, found, "{batch:?} {dtype:?} {level:?}");
                assert!(report.unwrap().hits >= 12);
                // Rounded or not, as the batch would have rounded them.
                let exact = dtype.is_none_or(|dtype| dtype == DType::F32 || dtype == batch);
                assert_eq!(made == plain, exact, "{batch:?} {dtype:?}");
            }
        }
    }
}

#[test]
fn no_bit_of_a_batch_changes_and_nothing_is_made_twice() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    audio_folder(&data, 60);
    for (name, build) in [
        ("features first", &features_first as &dyn Fn(&Path) -> Builder),
        ("sound disturbed first", &|data: &Path| everything(data, Batch::of(8))),
    ] {
        let (without, none) = epochs(build(&data), 2);
        assert!(none.is_none());
        for level in LEVELS {
            for threads in [1, 3] {
                let kept = folder.path().join(format!("{name}-{}-{threads}", level.name()));
                let cache = || Cache::of(level).in_folder(&kept);
                let (with, report) = epochs(build(&data).threads(threads).cache(cache()), 2);
                assert_eq!(with, without, "{name}, {level:?}, {threads} threads");
                let report = report.unwrap();
                // The one that is cut off can be kept as a file alone, and is tried anew in each epoch.
                let good = if level == Level::Raw { 60 } else { 59 };
                let tried = |report: &cache::CacheReport| {
                    if level == Level::Raw { 0 } else { (report.hits + report.misses).div_ceil(60) }
                };
                assert_eq!(report.entries, good, "{name}, {level:?}");
                // Where epochs meet, one sample may be under way twice.
                let most = good + tried(&report) + 2 * threads as u64;
                assert!((good..=most).contains(&report.misses), "{name}, {report:?}");
                assert!(report.hits >= good);
                assert_eq!((report.damaged, report.failed, report.trouble), (0, 0, None));
                if level != Level::Ram {
                    let (again, report) = epochs(build(&data).cache(cache()), 1);
                    assert_eq!(again, without[..1]);
                    let report = report.unwrap();
                    assert!(report.misses <= tried(&report), "another process has it too: {report:?}");
                }
            }
        }
    }
}

#[test]
fn tokens_and_arrays_are_kept_too() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.jsonl");
    let line =
        |number: usize| format!("{{\"text\": \"{}\"}}\n", format!("line {number} ").repeat(number % 7 + 1));
    fs::write(&text, (0..100).map(line).collect::<String>()).unwrap();
    let arrays = folder.path().join("arrays");
    fs::create_dir(&arrays).unwrap();
    for number in 0..20_u8 {
        fs::write(arrays.join(format!("{number}.npy")), npy(3 + number as usize, number)).unwrap();
    }
    let packed = || Pipeline::open(&text).unwrap().tokenize(tokenizer()).batch(Batch::packed(32, 4));
    let noisy =
        || Pipeline::open(&arrays).unwrap().decode(Npy).noise(Noise::deviation(0.1)).batch(Batch::of(4));
    let cache = || Cache::of(Level::Features).in_folder(folder.path().join("cache"));
    for (build, samples) in [(&packed as &dyn Fn() -> Builder, 100), (&noisy, 20)] {
        let (with, report) = epochs(build().threads(1).cache(cache()), 2);
        assert_eq!(with, epochs(build(), 2).0);
        assert_eq!(report.unwrap().misses, samples);
    }
    assert_eq!(cache::held(&folder.path().join("cache")).len(), 2);
}

/// `[rows, 3]` of single precision.
fn npy(rows: usize, value: u8) -> Vec<u8> {
    let head = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, 3), }}");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((head.len() as u16 + 1).to_le_bytes());
    file.extend(head.as_bytes());
    file.push(b'\n');
    file.extend((0..rows * 3).flat_map(|at| (at as f32 + f32::from(value)).to_le_bytes()));
    file
}

#[test]
fn what_was_made_of_something_else_is_never_served() {
    let folder = tempfile::tempdir().unwrap();
    let (data, kept) = (folder.path().join("data"), folder.path().join("cache"));
    fs::create_dir(&data).unwrap();
    audio_folder(&data, 12);
    let cache = || Cache::of(Level::Features).in_folder(&kept);
    let same = |what: &str, build: &dyn Fn() -> Builder, made: u64| {
        let (with, report) = epochs(build().threads(1).cache(cache()), 1);
        assert_eq!(with, epochs(build(), 1).0, "{what}");
        assert_eq!(report.unwrap().misses, made, "{what}");
    };
    let plain = || features_first(&data);
    same("nothing is kept yet", &plain, 12);
    same("all is", &plain, 0);
    fs::write(data.join("clip0003.wav"), wav(&clip(77, 0.3), 16_000)).unwrap();
    same("a file has changed", &plain, 1);
    let metadata = fs::read_to_string(data.join("metadata.jsonl")).unwrap();
    fs::write(data.join("metadata.jsonl"), metadata.replace("clip number 5", "another text")).unwrap();
    same("a text has changed", &plain, 1);
    let bins = || {
        Pipeline::open(&data)
            .unwrap()
            .decode(Audio::mono(16_000))
            .log_mel(LogMel::any_length(128))
            .tokenize(tokenizer())
            .batch(Batch::of(4))
    };
    same("a setting has changed", &bins, 12);
    same("the first setting is still there", &plain, 0);
    // Behind what is kept, anything may change.
    same("another seed, another batch", &|| plain().seed(99).batch(Batch::of(3)), 0);
}

#[test]
fn files_are_known_by_their_place_or_by_what_is_in_them() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("cache");
    for name in ["here", "there"] {
        let data = folder.path().join(name);
        fs::create_dir(&data).unwrap();
        audio_folder(&data, 10);
        for (identity, made) in [(Identity::Path, 10), (Identity::Content, 0)] {
            let cache =
                Cache::of(Level::Features).in_folder(kept.join(format!("{identity:?}"))).identity(identity);
            let report = epochs(features_first(&data).threads(1).cache(cache), 1).1.unwrap();
            assert_eq!(report.misses, if name == "there" { made } else { 10 }, "{name}, {identity:?}");
        }
    }
    // A file has many paths.
    let mut paths = vec![folder.path().join("there").join("..").join("here")];
    #[cfg(unix)]
    {
        paths.push(folder.path().join("link"));
        std::os::unix::fs::symlink(folder.path().join("here"), folder.path().join("link")).unwrap();
    }
    for path in paths {
        let cache = Cache::of(Level::Features).in_folder(kept.join("Path"));
        let report = epochs(features_first(&path).threads(1).cache(cache), 1).1.unwrap();
        assert_eq!(report.misses, 0, "{}", path.display());
    }
}

/// A link that leads elsewhere, to a file of the same size and time, gave what was made of the first.
#[cfg(unix)]
#[test]
fn a_link_is_what_it_leads_to() {
    let folder = tempfile::tempdir().unwrap();
    let (data, kept) = (folder.path().join("data"), folder.path().join("cache"));
    fs::create_dir(&data).unwrap();
    for number in 0..2 {
        let path = folder.path().join(format!("{number}.wav"));
        fs::write(&path, wav(&clip(number, 1.0), 16_000)).unwrap();
        File::options().append(true).open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }
    let heard = |number: usize| {
        let _ = fs::remove_file(data.join("clip.wav"));
        std::os::unix::fs::symlink(folder.path().join(format!("{number}.wav")), data.join("clip.wav"))
            .unwrap();
        let flow = || {
            let flow =
                Pipeline::open(&data).unwrap().decode(Audio::mono(16_000)).log_mel(LogMel::whisper(80));
            flow.batch(Batch::of(1)).threads(1)
        };
        let (got, report) = epochs(flow().cache(Cache::of(Level::Features).in_folder(&kept)), 1);
        assert_eq!(got, epochs(flow(), 1).0, "clip {number}");
        report.unwrap().misses
    };
    assert_eq!([heard(0), heard(1), heard(0)], [1, 1, 0]);
}

#[test]
fn half_precision_is_exact_where_the_batch_is_and_else_another_run() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    audio_folder(&data, 10);
    let plain = |dtype| {
        let flow = Pipeline::open(&data).unwrap().decode(Audio::mono(16_000)).log_mel(LogMel::whisper(80));
        flow.batch(Batch::of(4).output(dtype)).threads(1)
    };
    let cache = || Cache::of(Level::Features).in_folder(folder.path().join("cache"));
    let (half, _) = epochs(plain(DType::F16).cache(cache()), 2);
    assert_eq!(half, epochs(plain(DType::F16), 2).0);
    let half_bytes = cache::held(&folder.path().join("cache"))[0].bytes;
    epochs(plain(DType::F32).cache(cache()), 1);
    let bytes: u64 = cache::held(&folder.path().join("cache")).iter().map(|held| held.bytes).sum();
    assert!(bytes > half_bytes * 29 / 10, "{half_bytes} of {bytes}");
    // Rounded numbers are the same whether they were found or made.
    let rounded = || cache().dtype(DType::BF16).in_folder(folder.path().join("rounded"));
    let (first, _) = epochs(plain(DType::F32).cache(rounded()), 1);
    assert_ne!(first, epochs(plain(DType::F32), 1).0);
    assert_eq!(epochs(plain(DType::F32).cache(rounded()), 1).0, first);
    // They give another run, which does not go on with the first.
    let state = plain(DType::F32).build().unwrap().state();
    let mut rounded = plain(DType::F32).cache(cache().dtype(DType::BF16)).build().unwrap();
    assert!(matches!(rounded.restore(&state), Err(Error::State { .. })));
    plain(DType::F32).cache(cache()).build().unwrap().restore(&state).unwrap();
}

#[test]
fn what_is_random_stands_behind_what_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    audio_folder(folder.path(), 4);
    let flow = || Pipeline::open(folder.path()).unwrap();
    let cache = || Cache::of(Level::Features).in_folder(folder.path().join("cache"));
    let mapped = flow().map("mine", |_, _| Ok(())).decode(Audio::mono(16_000)).cache(cache());
    let error = mapped.build().err().unwrap().to_string();
    assert!(error.contains("nothing to keep: `mine` stands first") && error.contains("hint:"), "{error}");
    let noisy = flow().decode(Audio::mono(16_000)).noise(Noise::deviation(0.1)).log_mel(LogMel::whisper(80));
    let report = noisy.batch(Batch::of(2)).cache(cache()).build().unwrap().report();
    let why = report.cache.unwrap().why.unwrap();
    assert!(why.ends_with("so `log_mel` behind it is not kept"), "{why}");
}

/// Something happens to the files: one of ten thousand things.
fn spoil(seed: u64, folder: &Path, files: &[(PathBuf, Vec<u8>)]) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    for (path, bytes) in files {
        fs::write(path, bytes).unwrap();
    }
    let which = random(files.len());
    let (path, mut bytes) = files[which].clone();
    let name = path.strip_prefix(folder).unwrap().extension().unwrap().to_string_lossy().into_owned();
    let what = match random(4) {
        0 => {
            let (at, bit) = (random(bytes.len()), random(8));
            bytes[at] ^= 1 << bit;
            format!("bit {bit} of byte {at} of {name} is flipped")
        }
        1 => {
            let length = random(bytes.len());
            bytes.truncate(length);
            format!("{name} ends after {length} bytes")
        }
        2 if name == "index" => {
            // Two records change places.
            let head = bytes.len() % 48;
            let head = if head == 0 { 48 } else { head };
            let (records, first) = ((bytes.len() - head) / 48, 48 + head);
            let count = (bytes.len() - first) / 48;
            assert!(records > 1);
            let (a, b) = (random(count), random(count - 1));
            let b = if b >= a { b + 1 } else { b };
            let kept: Vec<u8> = bytes[first + a * 48..][..48].to_vec();
            bytes.copy_within(first + b * 48..first + (b + 1) * 48, first + a * 48);
            bytes[first + b * 48..][..48].copy_from_slice(&kept);
            format!("records {a} and {b} have changed places")
        }
        2 | 3 => {
            // Two stretches of the file change places, or one is written over with zeros.
            let length = 1 + random(200.min(bytes.len() / 3));
            let a = random(bytes.len() / 2 - length);
            let b = bytes.len() / 2 + random(bytes.len() / 2 - length);
            let kept = bytes[a..a + length].to_vec();
            bytes.copy_within(b..b + length, a);
            bytes[b..b + length].copy_from_slice(&kept);
            format!("{length} bytes at {a} and {b} of {name} have changed places")
        }
        _ => unreachable!(),
    };
    let changed = bytes != files[which].1;
    fs::write(&path, bytes).unwrap();
    if changed { what } else { String::new() }
}

#[test]
fn ten_thousand_things_that_happen_to_its_files_are_noticed_and_no_batch_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let made = |name: &str, files: &[(String, Vec<u8>)]| {
        let data = folder.path().join(name);
        fs::create_dir(&data).unwrap();
        for (name, bytes) in files {
            fs::write(data.join(name), bytes).unwrap();
        }
        data
    };
    let arrays = |last: usize| -> Vec<(String, Vec<u8>)> {
        let rows = [3, 5, 7, 9, 11, last].into_iter().enumerate();
        rows.map(|(number, rows)| (format!("{number}.npy"), npy(rows, number as u8))).collect()
    };
    let clips: Vec<(String, Vec<u8>)> = [0.2, 1.5]
        .iter()
        .map(|seconds| (format!("{seconds}.wav"), wav(&clip(3, *seconds), 16_000)))
        .collect();
    let flow = |data: PathBuf| move || Pipeline::open(&data).unwrap().threads(1).shuffle(false);
    // What goes straight into a row of fixed shape is used where it lies, unless it is small; all else is read.
    let (small, large, fixed) =
        (flow(made("small", &arrays(13))), flow(made("large", &arrays(5_000))), flow(made("fixed", &clips)));
    let flows: [(u64, &(dyn Fn() -> Builder + Sync)); 3] = [
        (4_000, &|| small().decode(Npy).batch(Batch::of(6))),
        (3_000, &|| large().decode(Npy).batch(Batch::of(6))),
        (3_000, &|| fixed().decode(Audio::mono(16_000)).log_mel(LogMel::whisper(80)).batch(Batch::of(2))),
    ];
    std::thread::scope(|scope| {
        for (number, (times, build)) in flows.into_iter().enumerate() {
            let folder = folder.path();
            scope.spawn(move || {
                let right = epochs(build(), 1).0;
                let kept = folder.join(format!("cache{number}"));
                let cache = || Cache::of(Level::Features).in_folder(&kept);
                epochs(build().cache(cache()), 1);
                let files: Vec<(PathBuf, Vec<u8>)> = ["index", "data"]
                    .iter()
                    .flat_map(|ending| shards(&kept, ending))
                    .map(|path| (path.clone(), fs::read(path).unwrap()))
                    .collect();
                for seed in 0..times {
                    let what = spoil(seed * 3 + number as u64, &kept, &files);
                    let verified = cache::verify(&kept, |_, _| {});
                    let (got, report) = epochs(build().cache(cache()), 1);
                    assert_eq!(got, right, "{what}");
                    let report = report.unwrap();
                    if !what.is_empty() {
                        assert!(verified.damaged + verified.torn > 0, "not noticed: {what}");
                        assert!(report.misses > 0 || verified.torn > 0, "served: {what}");
                    }
                    // What was lost was made anew, into a shard of its own.
                    for ending in ["index", "data"] {
                        for path in shards(&kept, ending) {
                            if files.iter().all(|(known, _)| *known != path) {
                                fs::remove_file(path).unwrap();
                            }
                        }
                    }
                }
            });
        }
    });
}

/// What is looked at where it lies may go away meanwhile, which `read` would tell and a process could end by.
#[test]
fn a_file_that_is_cut_short_while_it_is_read_ends_nothing_and_spoils_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    for number in 0..8 {
        fs::write(data.join(format!("{number}.wav")), wav(&clip(number, 5.0), 16_000)).unwrap();
    }
    let flow = || Pipeline::open(&data).unwrap().decode(Audio::mono(16_000)).log_mel(LogMel::whisper(80));
    let build = || flow().batch(Batch::of(4)).threads(2);
    let right = epochs(build(), 4).0;
    let mut damaged = 0;
    for round in 0..40_u64 {
        let kept = folder.path().join(format!("cache{round}"));
        let cache = || Cache::of(Level::Features).in_folder(&kept);
        epochs(build().cache(cache()), 1);
        let shard = File::options().write(true).open(&shards(&kept, "data")[0]).unwrap();
        let length = shard.metadata().unwrap().len();
        let (got, report) = std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_micros(round * 50));
                shard.set_len(length * (round % 8) / 8).unwrap();
            });
            epochs(build().cache(cache()), 4)
        });
        assert_eq!(got, right, "round {round}");
        damaged += report.unwrap().damaged;
        fs::remove_dir_all(&kept).unwrap();
    }
    assert!(damaged > 0, "nothing was lost in time");
}

/// Killed between the making of a file and its first byte, it was called damaged.
#[test]
fn a_shard_that_was_begun_and_no_more_is_no_damage_and_goes_with_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let (data, kept) = (folder.path().join("data"), folder.path().join("cache"));
    fs::create_dir(&data).unwrap();
    audio_folder(&data, 5);
    let cache = || Cache::of(Level::Features).in_folder(&kept);
    epochs(features_first(&data).cache(cache()), 1);
    let whole = shards(&kept, "data")[0].clone();
    for (number, ending) in ["data", "index"].iter().enumerate() {
        let name = whole.file_stem().unwrap().to_str().unwrap();
        fs::write(kept.join(format!("{}{number:015x}.{ending}", &name[..34])), "").unwrap();
    }
    let verified = cache::verify(&kept, |_, _| {});
    assert_eq!((verified.whole, verified.damaged, verified.torn), (5, 0, 2));
    let report = epochs(features_first(&data).threads(1).cache(cache()), 1).1.unwrap();
    assert_eq!((report.misses, report.damaged, report.trouble), (0, 0, None));
    cache::clear(&kept).unwrap();
    assert_eq!(fs::read_dir(&kept).unwrap().count(), 0);
}

#[test]
fn what_was_damaged_is_whole_again_after_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let (data, kept) = (folder.path().join("data"), folder.path().join("cache"));
    fs::create_dir(&data).unwrap();
    audio_folder(&data, 20);
    let cache = || Cache::of(Level::Features).in_folder(&kept);
    epochs(features_first(&data).cache(cache()), 1);
    let path = &shards(&kept, "data")[0];
    let mut bytes = fs::read(path).unwrap();
    bytes[5_000] ^= 1;
    fs::write(path, bytes).unwrap();
    let report = epochs(features_first(&data).threads(1).cache(cache()), 1).1.unwrap();
    assert_eq!((report.damaged, report.misses), (1, 1));
    assert!(report.trouble.unwrap().contains("damaged"));
    let report = epochs(features_first(&data).threads(1).cache(cache()), 1).1.unwrap();
    assert_eq!((report.damaged, report.misses), (0, 0));
    let verified = cache::verify(&kept, |_, _| {});
    assert_eq!((verified.whole, verified.damaged, verified.mended), (20, 0, 1));
    // An index that was cut short has lost more than the one entry that somebody was at.
    let cut = folder.path().join("cut");
    epochs(features_first(&data).cache(Cache::of(Level::Features).in_folder(&cut)), 1);
    let index = &shards(&cut, "index")[0];
    File::options()
        .write(true)
        .open(index)
        .unwrap()
        .set_len(fs::metadata(index).unwrap().len() - 15 * 48)
        .unwrap();
    fs::OpenOptions::new().append(true).open(&shards(&cut, "data")[0]).unwrap().set_len(4 << 20).unwrap();
    let verified = cache::verify(&cut, |_, _| {});
    assert_eq!((verified.whole, verified.damaged, verified.torn), (5, 1, 0));
    let indices = shards(&kept, "index");
    for path in &indices {
        fs::remove_file(path).unwrap();
    }
    let verified = cache::verify(&kept, |_, _| {});
    assert_eq!((verified.whole, verified.damaged as usize), (0, indices.len()));
    assert_eq!(cache::held(&kept)[0].what, "damaged");
}

/// So many writes go well; the one after them writes a half of its bytes, and none after that.
#[cfg(unix)]
static WRITES: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(0);

#[cfg(unix)]
fn until_it_is_full(file: &File, bytes: &[u8], offset: u64) -> std::io::Result<()> {
    use std::{io, os::unix::fs::FileExt as _, sync::atomic::Ordering};

    match WRITES.fetch_sub(1, Ordering::SeqCst) {
        1.. => file.write_all_at(bytes, offset),
        0 => {
            file.write_all_at(&bytes[..bytes.len() / 2], offset)?;
            Err(io::ErrorKind::StorageFull.into())
        }
        _ => Err(io::ErrorKind::StorageFull.into()),
    }
}

#[cfg(unix)]
#[test]
fn a_disk_that_is_full_at_any_write_stops_nothing_and_spoils_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    audio_folder(&data, 12);
    let build = || features_first(&data).threads(1);
    let right = epochs(build(), 2).0;
    // Two heads, and an entry and a record for each.
    for writes in 0..=26 {
        let kept = folder.path().join(format!("cache{writes}"));
        WRITES.store(writes, std::sync::atomic::Ordering::SeqCst);
        let cache = || Cache::of(Level::Features).in_folder(&kept);
        let (got, report) = epochs(build().cache(cache().written_by(until_it_is_full)), 2);
        assert_eq!(got, right, "full after {writes} writes");
        let report = report.unwrap();
        let whole = (writes as u64).saturating_sub(2) / 2;
        assert_eq!((report.entries, report.failed), (whole, u64::from(writes < 26)), "after {writes} writes");
        assert_eq!(report.trouble.is_some(), writes < 26);
        // And when there is room again, it goes on from what is there.
        let (got, report) = epochs(build().cache(cache()), 1);
        assert_eq!((got, report.unwrap().misses), (right[..1].to_vec(), 12 - whole));
        assert_eq!(epochs(build().cache(cache()), 1).1.unwrap().misses, 0);
        assert_eq!(cache::verify(&kept, |_, _| {}).damaged, 0);
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_told_and_costs_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    audio_folder(&data, 12);
    let file = folder.path().join("a-file");
    fs::write(&file, "in the way").unwrap();
    let cache = Cache::of(Level::Features).in_folder(file.join("cache"));
    let (got, report) = epochs(features_first(&data).cache(cache), 2);
    assert_eq!(got, epochs(features_first(&data), 2).0);
    let report = report.unwrap();
    assert_eq!((report.hits, report.failed), (0, 1), "it is not tried again at every sample");
    assert!(report.trouble.unwrap().contains("cannot be made"));
}

#[test]
fn several_may_use_one_folder_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (data, kept) = (folder.path().join("data"), folder.path().join("cache"));
    fs::create_dir(&data).unwrap();
    audio_folder(&data, 40);
    let cache = || Cache::of(Level::Features).in_folder(&kept);
    let right = epochs(features_first(&data), 3).0;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert_eq!(epochs(features_first(&data).threads(2).cache(cache()), 3).0, right));
        }
    });
    let report = epochs(features_first(&data).cache(cache()), 1).1.unwrap();
    assert_eq!((report.misses, report.damaged), (0, 0));
    // Ranks take other samples in the second epoch than in the first: each finds what the other has made.
    let ranks = folder.path().join("ranks");
    let cache = || Cache::of(Level::Features).in_folder(&ranks);
    let mut pair: Vec<Pipeline> = (0..2)
        .map(|rank| features_first(&data).batch(Batch::of(10)).ranks(rank, 2).cache(cache()).build().unwrap())
        .collect();
    for pipeline in &mut pair {
        digests(pipeline, 0);
    }
    // Nobody looks for what others have made at every sample.
    std::thread::sleep(Duration::from_millis(300));
    for pipeline in &mut pair {
        let before = pipeline.report().cache.unwrap().misses;
        pipeline.stop();
        digests(pipeline, 1);
        assert_eq!(pipeline.report().cache.unwrap().misses, before);
    }
}

#[test]
fn what_was_not_used_for_longest_makes_room_and_what_is_in_use_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (data, kept) = (folder.path().join("data"), folder.path().join("cache"));
    fs::create_dir(&data).unwrap();
    audio_folder(&data, 40);
    let bytes = |folder: &Path| cache::held(folder).iter().map(|held| held.bytes).sum::<u64>();
    let build = |bins| {
        let flow =
            Pipeline::open(&data).unwrap().decode(Audio::mono(16_000)).log_mel(LogMel::any_length(bins));
        flow.batch(Batch::of(8)).threads(1)
    };
    let free = folder.path().join("free");
    epochs(build(80).cache(Cache::of(Level::Features).in_folder(&free)), 1);
    let whole = bytes(&free);
    // Room for three quarters of it.
    let cache = || Cache::of(Level::Features).in_folder(&kept).most_bytes(whole * 3 / 4);
    let (got, report) = epochs(build(80).cache(cache()), 2);
    assert_eq!(got, epochs(build(80), 2).0);
    let report = report.unwrap();
    assert!((20..39).contains(&report.entries), "{report:?}");
    assert!(report.trouble.unwrap().contains("is as large as it may be"));
    assert!(bytes(&kept) <= whole * 3 / 4);
    // The same run, the day after the next: what it has not come to yet is not what it does not need.
    let aged = || {
        for path in shards(&kept, "index").into_iter().chain(shards(&kept, "data")) {
            let yesterday = SystemTime::now() - Duration::from_hours(25);
            File::options().append(true).open(path).unwrap().set_modified(yesterday).unwrap();
        }
    };
    aged();
    let again = epochs(build(80).cache(cache()), 2).1.unwrap();
    assert_eq!(again.entries, report.entries, "{again:?}");
    assert!(again.hits >= 2 * report.entries, "{again:?}");
    // Another run cannot take what was used just now,
    let report = epochs(build(128).cache(cache()), 2).1.unwrap();
    assert!(report.entries <= 10, "{report:?}");
    // but what nobody has used for a day it can.
    aged();
    let report = epochs(build(128).cache(cache()), 2).1.unwrap();
    assert!(report.entries > 10, "{report:?}");
    assert!(bytes(&kept) <= whole * 3 / 4);
    let foreign = kept.join("not-ours.index");
    fs::write(&foreign, "stays").unwrap();
    assert!(cache::clear(&kept).unwrap() > 0);
    assert_eq!((bytes(&kept), foreign.exists()), (0, true));
}

#[test]
fn what_pays_is_found_out_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    for number in 0..20_usize {
        fs::write(data.join(format!("{number:02}.wav")), wav(&clip(number, 8.0), 16_000)).unwrap();
    }
    let cache = || Cache::auto().in_folder(folder.path().join("cache"));
    let dear = || {
        Pipeline::open(&data)
            .unwrap()
            .decode(Audio::mono(16_000))
            .log_mel(LogMel::whisper(80))
            .batch(Batch::of(4))
    };
    let (got, report) = epochs(dear().cache(cache()), 2);
    assert_eq!(got, epochs(dear(), 2).0);
    let report = report.unwrap();
    assert_eq!((report.level, report.entries), (Level::Features, 20));
    assert!(report.why.unwrap().starts_with("features: a sample takes "));
    // Nothing is kept that is made as fast as it is read.
    let cheap = || {
        Pipeline::open(&data)
            .unwrap()
            .map("mine", |_, _| Ok(()))
            .decode(Audio::mono(16_000))
            .batch(Batch::of(4))
    };
    let report = epochs(cheap().cache(cache()), 1).1.unwrap();
    assert_eq!((report.level, report.misses), (Level::Off, 0));
    assert!(report.why.unwrap().starts_with("off: "));
}
