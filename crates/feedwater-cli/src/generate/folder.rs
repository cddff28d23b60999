//! May this folder be written into, and what is left there if the run is cut short?
//!
//! A generator must never mix its files with somebody's recordings. So it writes into an empty folder, or
//! into one that carries the note (`.feedwater-generate.json`) of an earlier run. The note is written first
//! and holds the settings: the same settings again write the same bytes again, other settings would leave
//! files of the old dataset among the new, and need `--force`. Every file appears whole, by renaming; the
//! index of the dataset appears last.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use miette::miette;
use serde_json::Value;

const NOTE: &str = ".feedwater-generate.json";

/// Says of a path (relative, `/`-separated) whether a generator writes files of that name.
pub(crate) type Owns = fn(&str) -> bool;

/// A folder that may be written into.
#[derive(Debug)]
pub(crate) struct Folder {
    root: PathBuf,
}

impl Folder {
    /// Prepares `root`, or says why not.
    pub(crate) fn claim(root: &Path, settings: &Value, owns: Owns, force: bool) -> miette::Result<Self> {
        let folder = Self { root: root.to_owned() };
        if root.exists() && !root.is_dir() {
            return Err(miette!(help = "give --out a folder", "`{}` is a file", root.display()));
        }
        fs::create_dir_all(root).map_err(failed("create", root))?;
        let empty = fs::read_dir(root).map_err(failed("list", root))?.next().is_none();
        // Compared as text: a number that is read back may differ from the one written by its last bit.
        let note = format!("{settings}\n");
        match fs::read_to_string(root.join(NOTE)).ok() {
            Some(earlier) if earlier == note => {}
            Some(_) if force => folder.remove_earlier(owns)?,
            Some(_) => {
                return Err(miette!(
                    help = "choose another --out, or add --force to replace that dataset",
                    "`{}` holds a dataset that was made with other settings",
                    root.display()
                ));
            }
            None if empty || force => {}
            None => {
                return Err(miette!(
                    help = "choose another --out, or add --force to write beside what is there",
                    "`{}` is not empty and was not made by `feedwater generate`",
                    root.display()
                ));
            }
        }
        folder.write(NOTE, note.as_bytes())?;
        Ok(folder)
    }

    /// How many bytes of an earlier run are in `root`, which a new one writes over or removes.
    pub(crate) fn replaceable_bytes(root: &Path, owns: Owns) -> u64 {
        if !root.join(NOTE).is_file() {
            return 0;
        }
        let list = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
        let size = |path: &Path| path.metadata().map_or(0, |file| file.len());
        let mut bytes = 0;
        for entry in list(root) {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if path.is_dir() {
                let inside = list(&path).filter(|file| {
                    owns(&format!("{name}/{}", finished_name(&file.file_name().to_string_lossy())))
                });
                bytes += inside.map(|file| size(&file.path())).sum::<u64>();
            } else if owns(finished_name(&name)) {
                bytes += size(&path);
            }
        }
        bytes
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn create_inside(&self, name: &str) -> miette::Result<()> {
        let path = self.root.join(name);
        fs::create_dir_all(&path).map_err(failed("create", &path))
    }

    /// Writes a file that is either there in full or not at all.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> miette::Result<()> {
        let (path, partial) = self.paths(name);
        fs::write(&partial, bytes).map_err(failed("write", &partial))?;
        fs::rename(&partial, &path).map_err(failed("rename a finished file to", &path))
    }

    /// The same for a file that is too large to hold: `fill` writes it piece by piece.
    pub(crate) fn write_with<T>(
        &self,
        name: &str,
        fill: impl FnOnce(&mut dyn io::Write) -> miette::Result<T>,
    ) -> miette::Result<T> {
        let (path, partial) = self.paths(name);
        let file = fs::File::create(&partial).map_err(failed("create", &partial))?;
        let mut writer = io::BufWriter::with_capacity(1 << 20, file);
        let value = fill(&mut writer)?;
        // Dropping a BufWriter swallows the error of its last write: a full disk would pass for success.
        writer.into_inner().map_err(|error| failed("write", &partial)(error.into_error()))?;
        fs::rename(&partial, &path).map_err(failed("rename a finished file to", &path))?;
        Ok(value)
    }

    /// Unfinished files are hidden: loaders skip names that begin with a dot.
    fn paths(&self, name: &str) -> (PathBuf, PathBuf) {
        let path = self.root.join(name);
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(path.file_name().unwrap_or_default());
        hidden.push(".partial");
        let partial = path.with_file_name(hidden);
        (path, partial)
    }

    /// Removes what an earlier run wrote, by name; anything else stays where it is.
    fn remove_earlier(&self, owns: Owns) -> miette::Result<()> {
        for entry in fs::read_dir(&self.root).map_err(failed("list", &self.root))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = entry.path();
            if path.is_file() && owns(finished_name(&name)) {
                fs::remove_file(&path).map_err(failed("remove", &path))?;
            }
            let Ok(inside) = fs::read_dir(&path) else { continue };
            let mut removed = false;
            for file in inside.flatten() {
                if owns(&format!("{name}/{}", finished_name(&file.file_name().to_string_lossy()))) {
                    fs::remove_file(file.path()).map_err(failed("remove", &file.path()))?;
                    removed = true;
                }
            }
            if removed {
                // Fails when something of somebody else's is in it, which is the wish.
                let _ = fs::remove_dir(&path);
            }
        }
        Ok(())
    }
}

/// The name that an unfinished file would have got.
fn finished_name(name: &str) -> &str {
    name.strip_prefix('.').and_then(|rest| rest.strip_suffix(".partial")).unwrap_or(name)
}

/// Turns an I/O error into a message that says what was being done and where.
pub(crate) fn failed<'a>(doing: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> miette::Report + 'a {
    move |error| {
        let hint = match error.kind() {
            io::ErrorKind::StorageFull => {
                "free some space; running the same command again starts over cleanly"
            }
            io::ErrorKind::PermissionDenied => "choose an --out that you may write to",
            _ => "check --out, then run the same command again",
        };
        miette!(help = hint, "could not {doing} `{}`: {error}", path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(root: &Path, settings: &Value, force: bool) -> miette::Result<Folder> {
        Folder::claim(
            root,
            settings,
            |name| name.starts_with("train/clip") || name == "metadata.jsonl",
            force,
        )
    }

    #[test]
    fn foreign_files_are_neither_mixed_with_nor_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("mine.txt"), "mine").unwrap();
        let refusal = claim(dir.path(), &json!(1), false).unwrap_err();
        assert!(refusal.to_string().contains("is not empty"));
        assert!(refusal.help().unwrap().to_string().contains("--force"));
        claim(dir.path(), &json!(1), true).unwrap();
        claim(dir.path(), &json!(2), true).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("mine.txt")).unwrap(), "mine");
    }

    #[test]
    fn other_settings_need_force_and_leave_no_old_file_behind() {
        let dir = tempfile::tempdir().unwrap();
        let folder = claim(dir.path(), &json!({"clips": 2}), false).unwrap();
        folder.create_inside("train").unwrap();
        folder.write("train/clip1.wav", b"old").unwrap();
        folder.write("metadata.jsonl", b"old").unwrap();
        fs::write(dir.path().join("train/.clip2.wav.partial"), b"cut short").unwrap();
        claim(dir.path(), &json!({"clips": 2}), false).unwrap();
        assert!(dir.path().join("train/clip1.wav").exists());
        assert!(
            claim(dir.path(), &json!({"clips": 1}), false)
                .unwrap_err()
                .to_string()
                .contains("other settings")
        );
        claim(dir.path(), &json!({"clips": 1}), true).unwrap();
        assert!(!dir.path().join("train").exists());
        assert!(!dir.path().join("metadata.jsonl").exists());
    }

    #[test]
    fn a_file_that_failed_half_way_does_not_appear() {
        let dir = tempfile::tempdir().unwrap();
        let folder = claim(dir.path(), &json!(1), false).unwrap();
        let outcome: miette::Result<()> = folder.write_with("text.jsonl", |out| {
            out.write_all(b"half").unwrap();
            Err(miette!("interrupted"))
        });
        assert!(outcome.is_err());
        assert!(!dir.path().join("text.jsonl").exists());
        folder.write_with("text.jsonl", |out| out.write_all(b"whole").map_err(|e| miette!("{e}"))).unwrap();
        assert_eq!(fs::read(dir.path().join("text.jsonl")).unwrap(), b"whole");
    }
}
