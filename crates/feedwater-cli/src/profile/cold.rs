//! What would it be like the first time? Drops what can be dropped of the page cache.

use std::{collections::HashSet, fs::File, path::Path};

use feedwater::{Value, source};
use miette::miette;

/// Asks the system to forget the files of a dataset. Returns how many it was asked for; none where it cannot be asked.
pub(crate) fn forget(data: &Path) -> miette::Result<usize> {
    let source = source::open(data).map_err(|error| miette!("{error}"))?;
    let mut files = HashSet::new();
    if data.is_file() {
        files.insert(data.to_path_buf());
    }
    for index in 0..source.len() {
        let Ok(sample) = source.sample(index) else { continue };
        for (_, value) in sample.fields() {
            if let Value::Media(media) = value {
                files.insert(media.path.to_path_buf());
            }
        }
    }
    Ok(files.iter().filter(|file| File::open(file).is_ok_and(|file| dropped(&file))).count())
}

#[cfg(target_os = "linux")]
fn dropped(file: &File) -> bool {
    use rustix::fs::{Advice, fadvise, fsync};
    // What is not yet on the disk cannot be dropped. A file that may not be written to has nothing to be written.
    let _ = fsync(file);
    fadvise(file, 0, None, Advice::DontNeed).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn dropped(_: &File) -> bool {
    false
}
