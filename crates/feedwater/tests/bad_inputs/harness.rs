//! Opens what a test has built, and checks what every bad input has in common.

use std::{
    cell::Cell,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Once, atomic::AtomicBool},
};

use feedwater::{
    Audio, Batch, Decode, Error, Fault, Npy, Pipeline, Policy, Value,
    decode::{Decoder, Limits, Window, count_frames, npy, npy_shape, probe_audio},
    error::Place,
    read::{ReadAt, Section},
    sample::{Media, MediaPlace},
    source,
};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde_json::Value as Json;
use tempfile::TempDir;

use crate::memory::bounded;

/// A valid sound file of the fixtures.
pub(crate) fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/audio");
    fs::read(folder.join(name)).unwrap()
}

/// A valid file of the other fixtures: `hdf5/rows.h5`.
pub(crate) fn other_fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

/// A folder with these files.
pub(crate) fn folder<B: AsRef<[u8]>>(files: &[(&str, B)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    folder
}

/// What is done with the samples.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum As {
    Sound,
    Arrays,
    Text,
}

fn pipeline(path: &Path, samples_are: As, policy: Policy) -> Result<Pipeline, Error> {
    let builder = Pipeline::open(path)?;
    let builder = match samples_are {
        As::Sound => builder.decode(Decode::from(Audio::mono(16_000))),
        As::Arrays => builder.decode(Decode::from(Npy)),
        As::Text => builder,
    };
    builder.batch(Batch::of(64)).shuffle(false).threads(2).policy(policy).build()
}

/// A bad sample, as it stands in `quarantine.jsonl`.
#[derive(Debug)]
pub(crate) struct Bad {
    pub(crate) key: String,
    pub(crate) reason: String,
    pub(crate) line: Json,
}

/// What came of a dataset under `skip`.
pub(crate) struct Run {
    /// The keys that travelled.
    pub(crate) good: Vec<String>,
    pub(crate) bad: Vec<Bad>,
    /// The text of each that travelled, where it has one.
    pub(crate) texts: Vec<String>,
    pub(crate) lengths: Vec<usize>,
}

/// Runs one epoch under `skip`, and holds the memory it takes to its bound.
#[track_caller]
pub(crate) fn skipping(path: &Path, samples_are: As) -> Run {
    quietly();
    let beside = tempfile::tempdir().unwrap();
    let list = beside.path().join("quarantine.jsonl");
    let mut run = Run { good: Vec::new(), bad: Vec::new(), texts: Vec::new(), lengths: Vec::new() };
    bounded(|| {
        let policy = Policy::skip_up_to(1.0).quarantine(&list);
        let mut pipeline = pipeline(path, samples_are, policy).unwrap_or_else(|error| panic!("{error}"));
        for batch in pipeline.epoch(0) {
            let batch = match batch {
                // There was nothing good in it; what was bad is written down all the same.
                Err(Error::AllBad { .. }) => break,
                batch => batch.unwrap_or_else(|error| panic!("{error}")),
            };
            run.good.extend(
                batch.keys.iter().zip(&batch.valid).filter(|(_, valid)| **valid).map(|(key, _)| key.clone()),
            );
            run.texts.extend(
                batch.texts.iter().filter(|(name, _)| name == "text").flat_map(|(_, texts)| texts.clone()),
            );
            run.lengths.extend(batch.tensors.iter().flat_map(|tensor| tensor.lengths.clone()));
        }
    });
    for line in fs::read_to_string(&list).unwrap_or_default().lines() {
        let line: Json = serde_json::from_str(line).unwrap();
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        run.bad.push(Bad { key: text("key"), reason: text("reason"), line });
    }
    run
}

/// Runs one epoch under `fail`, to the first bad sample.
#[track_caller]
pub(crate) fn failing(path: &Path, samples_are: As) -> (String, Fault) {
    quietly();
    let mut pipeline = pipeline(path, samples_are, Policy::fail()).unwrap_or_else(|error| panic!("{error}"));
    let error = pipeline.epoch(0).find_map(Result::err).expect("nothing failed");
    let said = error.to_string();
    let Error::Sample { key, fault, .. } = error else { panic!("another error: {said}") };
    assert!(said.contains(&key) && said.contains(&fault.reason), "{said}");
    (key, fault)
}

/// The one bad sample of a dataset, after both policies were tried on it. `file` is what must be named, `words` what the
/// reason must say.
#[track_caller]
pub(crate) fn only_bad(path: &Path, samples_are: As, file: &str, place: &Place, words: &str) -> Bad {
    let mut run = skipping(path, samples_are);
    assert!(!run.good.is_empty(), "the good samples are gone, too: {:?}", run.bad);
    assert_eq!(run.bad.len(), 1, "{:?}", run.bad);
    let bad = run.bad.remove(0);
    assert!(!run.good.contains(&bad.key));
    let (key, fault) = failing(path, samples_are);
    assert_eq!((key, &fault.reason), (bad.key.clone(), &bad.reason));
    assert!(fault.reason.contains(words), "`{fault}` does not say `{words}`");
    assert!(fault.path.as_ref().is_some_and(|path| path.ends_with(file)), "{fault}");
    assert_eq!(&fault.place, place, "{fault}");
    assert!(
        bad.line["file"].as_str().is_some_and(|named| Path::new(named).ends_with(file)),
        "{:?}",
        bad.line
    );
    let (name, value) = match place {
        Place::Whole => return bad,
        Place::Byte(byte) => ("byte", Json::from(*byte)),
        Place::Line(line) => ("line", Json::from(*line)),
        Place::Member(member) => ("member", Json::from(member.as_str())),
        Place::Row(row) => ("row", Json::from(*row)),
    };
    assert_eq!(bad.line[name], value, "{:?}", bad.line);
    bad
}

/// A sound file that must be refused, beside a good one.
#[track_caller]
pub(crate) fn bad_sound(name: &str, bytes: &[u8], place: &Place, words: &str) {
    let good = fixture("pcm_s16le.wav");
    let folder = folder(&[("a good one.wav", good.as_slice()), (name, bytes)]);
    let bad = only_bad(folder.path(), As::Sound, name, place, words);
    assert_eq!((bad.key.as_str(), bad.line["stage"].as_str()), (name, Some("decode")));
}

/// A sound file that must be taken, at its own rate: its samples.
#[track_caller]
pub(crate) fn good_sound(bytes: &[u8]) -> Vec<f32> {
    bounded(|| decode(&bytes, None).unwrap_or_else(|fault| panic!("{fault}")))
}

/// A dataset that must be refused as a whole: the fault, after checking that it names the file.
#[track_caller]
pub(crate) fn bad_dataset(path: &Path, words: &str) -> Place {
    quietly();
    let error = bounded(|| source::open(path).err()).expect("it was opened");
    let said = error.to_string();
    assert!(said.contains(words), "`{said}` does not say `{words}`");
    assert!(said.contains(path.file_name().unwrap().to_str().unwrap()), "{said}");
    match error {
        Error::Dataset { fault, .. } => fault.place,
        _ => Place::Whole,
    }
}

fn decode(input: &dyn ReadAt, window: Option<Window>) -> Result<Vec<f32>, Fault> {
    let mut out = Vec::new();
    Decoder::new().audio(input, None, window, &Limits::default(), &AtomicBool::new(false), &mut out)?;
    Ok(out)
}

/// Everything that can be done with a sound file. Says whether it can be decoded as a whole.
pub(crate) fn try_sound(input: &dyn ReadAt) -> bool {
    let _ = probe_audio(input);
    let _ = count_frames(input);
    let _ = decode(input, Some(Window { start_seconds: 0.1, length_seconds: 0.05 }));
    decode(input, None).is_ok()
}

/// Everything that can be done with an array.
pub(crate) fn try_array(input: &dyn ReadAt) -> bool {
    let _ = npy_shape(input);
    let (mut out, mut shape, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
    npy(input, &Limits::default(), &mut out, &mut shape, &mut scratch).is_ok()
}

fn try_media(media: &Media) {
    let attempt = |input: &dyn ReadAt| (try_sound(input), try_array(input));
    match &media.place {
        MediaPlace::File => {
            if let Ok(file) = fs::File::open(&media.path) {
                attempt(&file);
            }
        }
        MediaPlace::Range { file, offset, length, .. } => {
            attempt(&Section::new(&**file, *offset, *length));
        }
        MediaPlace::Bytes(bytes) => {
            attempt(bytes);
        }
    }
}

/// Opens a dataset and looks at its samples. Gives how many can be used, and how many cannot.
pub(crate) fn try_dataset(path: &Path) -> (usize, usize) {
    let Ok(source) = source::open(path) else { return (0, 0) };
    let (mut usable, mut bad) = (0, 0);
    // A header may say that there are 2^60 samples.
    for index in 0..source.len().min(64) {
        let _ = (source.key(index), source.seconds(index));
        let Ok(sample) = source.sample(index) else {
            bad += 1;
            continue;
        };
        usable += 1;
        for (_, value) in sample.fields() {
            if let Value::Media(media) = value {
                try_media(media);
            }
        }
    }
    (usable, bad)
}

/// Tries every prefix of a file. No panic gets out, memory is bounded, and `check` says what else must hold.
#[track_caller]
pub(crate) fn every_prefix(
    bytes: &[u8],
    mut attempt: impl FnMut(&[u8]) -> bool,
    check: impl Fn(usize, bool),
) {
    for length in 0..bytes.len() {
        check(length, bounded(|| hushed(|| attempt(&bytes[..length]))));
    }
    assert!(attempt(bytes), "the whole file is good");
}

/// Tries a file with bytes changed, put in and taken out, the same ones each time.
#[track_caller]
pub(crate) fn every_mutation(bytes: &[u8], count: usize, mut attempt: impl FnMut(&[u8]) -> bool) {
    assert!(attempt(bytes), "the whole file is good");
    let mut random = Pcg64Mcg::seed_from_u64(count as u64);
    for number in 0..count {
        let mutated = mutate(bytes, &mut random);
        let outcome = catch_unwind(AssertUnwindSafe(|| bounded(|| hushed(|| attempt(&mutated)))));
        if outcome.is_err() {
            let kept = std::env::temp_dir().join("feedwater-mutation");
            fs::write(&kept, &mutated).unwrap();
            panic!("mutation {number} is not survived; it was kept in {}", kept.display());
        }
    }
}

fn mutate(bytes: &[u8], random: &mut Pcg64Mcg) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.next_u32() % 4 {
        if bytes.is_empty() {
            break;
        }
        // Half of them in the first bytes, where most headers are.
        let most = if random.next_u32().is_multiple_of(2) { bytes.len().min(128) } else { bytes.len() };
        let at = random.next_u64() as usize % most.max(1);
        match random.next_u32() % 8 {
            0 => bytes.insert(at, random.next_u32() as u8),
            1 => {
                bytes.remove(at);
            }
            2 => bytes.truncate(at.max(1)),
            3 | 4 => bytes[at] = [0, 1, 0x7F, 0x80, 0xFF][random.next_u32() as usize % 5],
            5 => {
                let to = (at + 4).min(bytes.len());
                bytes[at..to].fill(0xFF);
            }
            _ => bytes[at] ^= 1 << (random.next_u32() % 8),
        }
    }
    bytes
}

/// A file that is written anew for each attempt.
pub(crate) struct Scratch {
    folder: TempDir,
    name: &'static str,
}

impl Scratch {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), name }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join(self.name)
    }

    pub(crate) fn try_dataset(&self, bytes: &[u8]) -> (usize, usize) {
        fs::write(self.path(), bytes).unwrap();
        try_dataset(&self.path())
    }
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

fn hushed<T>(work: impl FnOnce() -> T) -> T {
    quietly();
    QUIET.set(true);
    let result = work();
    QUIET.set(false);
    result
}

/// Panics of codecs are caught and become faults; what they print on the way is of no use here.
fn quietly() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let of_a_worker =
                std::thread::current().name().is_some_and(|name| name.starts_with("feedwater-"));
            if !of_a_worker && !QUIET.get() {
                loud(panic);
            }
        }));
    });
}
