//! What the targets have in common.

use std::{
    collections::HashSet,
    fs,
    path::PathBuf,
    sync::{Mutex, OnceLock, PoisonError, atomic::AtomicBool},
};

use feedwater::{
    Value,
    decode::{Decoder, Limits, Window, count_frames, npy, npy_shape, probe_audio},
    read::{ReadAt, Section},
    sample::{Media, MediaPlace},
    source,
};

/// libFuzzer's own hook ends the process at every panic, also at the ones of codecs, which are caught. This one ends it
/// only at our own.
fn only_our_panics_count() {
    static DONE: OnceLock<()> = OnceLock::new();
    static SEEN: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    DONE.get_or_init(|| {
        std::panic::set_hook(Box::new(|panic| {
            let place = panic.location().map_or_else(String::new, ToString::to_string);
            let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
            let ours = place.contains("crates/feedwater");
            if seen.get_or_insert_default().insert(place) || ours {
                eprintln!("panic: {panic}");
            }
            if ours {
                std::process::abort();
            }
        }));
    });
}

fn limits() -> Limits {
    Limits { max_seconds: 600.0, max_bytes: 64 << 20 }
}

/// A sound file, as a whole and from its header alone.
pub fn sound(input: &dyn ReadAt) {
    only_our_panics_count();
    let _ = probe_audio(input);
    let _ = count_frames(input);
    let mut out = Vec::new();
    let decoded = Decoder::new().audio(input, None, None, &limits(), &AtomicBool::new(false), &mut out);
    if decoded.is_ok() {
        assert!(!out.is_empty());
    }
}

/// A window of a sound file.
pub fn window(input: &dyn ReadAt, start_seconds: f64, length_seconds: f64, rate: Option<u32>) {
    only_our_panics_count();
    let window = Some(Window { start_seconds, length_seconds });
    let mut out = Vec::new();
    let decoded = Decoder::new().audio(input, rate, window, &limits(), &AtomicBool::new(false), &mut out);
    if let Ok((_, rate)) = decoded {
        assert!(!out.is_empty() && out.len() as f64 <= length_seconds * f64::from(rate) + 1.5);
    }
}

/// An array.
pub fn array(input: &dyn ReadAt) {
    only_our_panics_count();
    let _ = npy_shape(input);
    let (mut out, mut shape, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
    if npy(input, &limits(), &mut out, &mut shape, &mut scratch).is_ok() {
        assert_eq!(out.len(), shape.iter().product::<usize>());
    }
}

/// A dataset in a file of this name: its samples, and the media in it, but none elsewhere.
pub fn dataset(name: &str, bytes: &[u8]) {
    only_our_panics_count();
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let memory = PathBuf::from("/dev/shm");
        let base = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let folder = base.join(format!("feedwater-fuzz-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for the file");
        folder
    });
    let path = folder.join(name);
    fs::write(&path, bytes).expect("the file");
    let Ok(source) = source::open(&path) else { return };
    for index in 0..source.len().min(64) {
        let _ = (source.key(index), source.seconds(index));
        let Ok(sample) = source.sample(index) else { continue };
        assert_eq!(sample.key, source.key(index));
        for (_, value) in sample.fields() {
            if let Value::Media(media) = value {
                located(media);
            }
        }
    }
}

fn located(media: &Media) {
    match &media.place {
        // Whatever a fuzzer names, it is not opened.
        MediaPlace::File => {}
        MediaPlace::Range { file, offset, length, .. } => {
            let section = Section::new(&**file, *offset, *length);
            sound(&section);
            array(&section);
        }
        MediaPlace::Bytes(bytes) => {
            sound(bytes);
            array(bytes);
        }
    }
}

/// A tokenizer, and a text for it.
pub fn tokenizer(json: &[u8], text: &str) {
    only_our_panics_count();
    if let Ok(tokenize) = feedwater::Tokenize::json(json) {
        let _ = tokenize.encode(text);
        let _ = tokenize.encode("It's 5 words, isn't it?");
    }
}
