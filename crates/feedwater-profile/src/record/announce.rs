//! Which runs are going on?
//!
//! A run says so by a small file in a folder of its user's, beside one that it keeps locked. A lock ends with its process,
//! however that ends, on every system and across containers, and is not confused by a process number that was given out
//! again. What is left of a run that was killed is thus known, and taken away by whoever looks next.
//!
//! Announcing is a courtesy: where it cannot be done (no folder, a file system without locks), the run goes on without.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process,
};

use serde::{Deserialize, Serialize};

use super::Run;

/// Names the folder of the announcements, where it is not to be the usual one.
pub const FOLDER_VARIABLE: &str = "FEEDWATER_RUNS_DIR";
/// More recorders than this in one process are not announced.
const MOST_OF_A_PROCESS: u32 = 64;
/// No announcement is longer.
const LONGEST: u64 = 64 * 1024;

/// What a run says of itself when it begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// Its process.
    pub pid: u32,
    /// Where its record grows.
    pub record: PathBuf,
    /// What it is called.
    #[serde(default)]
    pub name: String,
    /// When it began, in seconds since 1970.
    #[serde(default)]
    pub started_unix_seconds: u64,
    /// How many steps it will have, where that is known.
    #[serde(default)]
    pub planned_steps: Option<u64>,
}

/// An announcement that holds as long as this is kept.
#[derive(Debug)]
pub(super) struct Held {
    json: PathBuf,
    lock: PathBuf,
    _locked: File,
}

impl Held {
    /// Announces a run, if that can be done.
    pub(super) fn announce(record: &Path, run: &Run) -> Option<Self> {
        Self::announce_in(&made_folder().ok()?, record, run)
    }

    /// The same, in a folder of the caller's.
    pub(super) fn announce_in(folder: &Path, record: &Path, run: &Run) -> Option<Self> {
        fs::create_dir_all(folder).ok()?;
        let announcement = Announcement {
            pid: process::id(),
            record: std::path::absolute(record).ok()?,
            name: run.name.clone(),
            started_unix_seconds: run.started_unix_seconds,
            planned_steps: run.planned_steps,
        };
        Self::at(folder, &announcement)
    }

    fn at(folder: &Path, announcement: &Announcement) -> Option<Self> {
        let text = serde_json::to_vec(announcement).ok()?;
        let pid = announcement.pid;
        (1..=MOST_OF_A_PROCESS).find_map(|number| {
            let stem = if number == 1 { pid.to_string() } else { format!("{pid}-{number}") };
            let lock = folder.join(format!("{stem}.lock"));
            let locked = OpenOptions::new().create(true).append(true).open(&lock).ok()?;
            locked.try_lock().ok()?;
            // Whoever cleans up holds the lock meanwhile: if the name is still there now, it stays.
            if !lock.exists() {
                return None;
            }
            let json = folder.join(format!("{stem}.json"));
            let held = Self { json, lock, _locked: locked };
            // Never through what is there, which could be a link to anywhere; and never half there.
            let new = folder.join(format!("{stem}.new"));
            let _ = fs::remove_file(&new);
            let written = OpenOptions::new()
                .create_new(true)
                .write(true)
                .open(&new)
                .and_then(|mut file| file.write_all(&text))
                .and_then(|()| fs::rename(&new, &held.json));
            written.ok().map(|()| held)
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // In this order, so that nobody sees an announcement whose lock is not there.
        let _ = fs::remove_file(&self.json);
        let _ = fs::remove_file(&self.lock);
    }
}

/// The runs of this user that are going on, the newest first. What dead ones left behind is removed.
pub fn live_runs() -> Vec<Announcement> {
    let (folder, asked_for) = folder();
    if asked_for || is_ours(&folder) { live_runs_in(&folder) } else { Vec::new() }
}

fn live_runs_in(folder: &Path) -> Vec<Announcement> {
    let mut runs: Vec<(std::time::SystemTime, Announcement)> = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let json = entry.path();
        if json.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let lock = json.with_extension("lock");
        let alive = match File::open(&lock).map(|file| (file.try_lock(), file)) {
            Ok((Err(TryLockError::WouldBlock), _)) => true,
            Ok((Ok(()), _file)) => {
                let _ = fs::remove_file(&json);
                let _ = fs::remove_file(&lock);
                false
            }
            Ok((Err(TryLockError::Error(_)), _)) => false,
            Err(error) => {
                if error.kind() == io::ErrorKind::NotFound {
                    let _ = fs::remove_file(&json);
                }
                false
            }
        };
        let Ok(facts) = fs::symlink_metadata(&json) else { continue };
        if !alive || !facts.is_file() || facts.len() > LONGEST {
            continue;
        }
        let announced = fs::read(&json).ok().and_then(|text| serde_json::from_slice(&text).ok());
        if let (Some(announced), Ok(written)) = (announced, facts.modified()) {
            runs.push((written, announced));
        }
    }
    runs.sort_by_key(|(written, _)| std::cmp::Reverse(*written));
    runs.into_iter().map(|(_, announced)| announced).collect()
}

/// Where announcements are, and whether the user has said so.
fn folder() -> (PathBuf, bool) {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        return (PathBuf::from(folder), true);
    }
    let user = std::env::var("USER").or_else(|_| std::env::var("USERNAME")).unwrap_or_default();
    let plain: String = user.chars().filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).collect();
    let name = if plain.is_empty() { "user" } else { &plain };
    (std::env::temp_dir().join(format!("feedwater-{name}")).join("runs"), false)
}

/// The folder, made if need be, for nobody but this user.
fn made_folder() -> io::Result<PathBuf> {
    let (folder, asked_for) = folder();
    make_private(&folder)?;
    if asked_for || is_ours(&folder) { Ok(folder) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

fn make_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// The folder for temporary files is everybody's, and whoever comes first can make any folder in it. One that others own or
/// can write into, or that is a link, was not made here, and could lead anywhere.
#[cfg(unix)]
fn is_ours(folder: &Path) -> bool {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    // Elsewhere, every user has a folder for temporary files of their own.
    let me = cfg!(target_os = "linux").then(|| fs::metadata("/proc/self").map(|me| me.uid()).ok());
    let ours = |path: &Path| {
        fs::symlink_metadata(path).is_ok_and(|facts| {
            // No right for anybody else: the six lowest bits.
            let closed = facts.permissions().mode().trailing_zeros() >= 6;
            facts.is_dir() && closed && me.is_none_or(|me| me == Some(facts.uid()))
        })
    };
    ours(folder) && folder.parent().is_some_and(ours)
}

#[cfg(not(unix))]
fn is_ours(folder: &Path) -> bool {
    folder.is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announcement(name: &str) -> Announcement {
        Announcement {
            pid: 4_000_000,
            record: PathBuf::from("/x/run.jsonl"),
            name: name.to_owned(),
            started_unix_seconds: 1,
            planned_steps: Some(5),
        }
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_run_is_there_as_long_as_it_is_held() {
        let folder = tempfile::tempdir().unwrap();
        let first = Held::at(folder.path(), &announcement("first")).unwrap();
        let second = Held::at(folder.path(), &announcement("second")).unwrap();
        let names_of = || {
            let mut runs: Vec<String> = live_runs_in(folder.path()).into_iter().map(|run| run.name).collect();
            runs.sort();
            runs
        };
        assert_eq!(names_of(), ["first", "second"]);
        drop(second);
        assert_eq!(live_runs_in(folder.path()), [announcement("first")]);
        drop(first);
        assert_eq!(names(folder.path()), [] as [&str; 0]);
    }

    #[test]
    #[cfg(unix)]
    fn a_folder_that_others_could_have_made_is_not_used() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().join("feedwater-me/runs");
        make_private(&folder).unwrap();
        assert!(is_ours(&folder));
        fs::set_permissions(folder.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(!is_ours(&folder), "others see into it");
        fs::set_permissions(folder.parent().unwrap(), fs::Permissions::from_mode(0o700)).unwrap();
        symlink(folder.parent().unwrap(), temporary.path().join("feedwater-link")).unwrap();
        assert!(!is_ours(&temporary.path().join("feedwater-link/runs")));
        if cfg!(target_os = "linux") && fs::metadata("/proc/1").is_ok() {
            assert!(!is_ours(Path::new("/proc/1")), "neither ours nor closed");
        }
        // And a run that cannot be announced is still a run.
        let nowhere = Path::new("/dev/null/runs");
        let record = temporary.path().join("run.jsonl");
        assert!(super::super::Recorder::create_announced_in(record, &Run::default(), nowhere).is_ok());
    }

    #[test]
    fn what_a_killed_run_left_is_taken_away() {
        let folder = tempfile::tempdir().unwrap();
        let text = serde_json::to_vec(&announcement("dead")).unwrap();
        for name in ["7.json", "7.lock", "8.json"] {
            fs::write(folder.path().join(name), &text).unwrap();
        }
        assert_eq!(live_runs_in(folder.path()), []);
        assert_eq!(names(folder.path()), [] as [&str; 0]);
        assert_eq!(live_runs_in(Path::new("/nowhere/at/all")), []);
    }

    #[test]
    fn nonsense_is_not_a_run_and_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let held = Held::at(folder.path(), &announcement("x")).unwrap();
        fs::write(&held.json, "{\"pid\":").unwrap();
        assert_eq!(live_runs_in(folder.path()), []);
        drop(held);
        #[cfg(unix)]
        {
            let precious = folder.path().join("precious");
            fs::write(&precious, "mine").unwrap();
            for name in ["4000000.json", "4000000.new"] {
                std::os::unix::fs::symlink(&precious, folder.path().join(name)).unwrap();
            }
            let _held = Held::at(folder.path(), &announcement("y")).unwrap();
            assert_eq!(fs::read_to_string(&precious).unwrap(), "mine");
            assert_eq!(live_runs_in(folder.path()).len(), 1);
        }
    }
}
