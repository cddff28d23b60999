//! What is in a record that is still being written?
//!
//! A record is followed by reading on where the last look ended, so a look costs what was written since, however long the
//! run. Half a line waits for its other half. Only the last steps are kept; how many there were follows from their numbers.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    Record,
    read::{LONGEST_LINE, Problem, head},
};
use crate::error::{Error, Result};

/// What is kept of a run.
const KEPT_STEPS: usize = 512;
const KEPT_DEVICES: usize = 64;
/// Of a record that is long already, the end is read: far more than the steps that are kept take.
const FROM_END: u64 = 4 << 20;
/// What one look reads at most, so that it takes a moment and no more.
const MOST_A_LOOK: u64 = 16 << 20;

/// Follows a record.
#[derive(Debug)]
pub struct Follow {
    path: PathBuf,
    file: File,
    /// Up to where the file has been read.
    at: u64,
    /// The beginning of a line whose end is not written yet.
    carry: Vec<u8>,
    /// Whether what comes next is the rest of a line that is not wanted.
    skipping: bool,
    has_head: bool,
    record: Record,
    bad_lines: u64,
}

impl Follow {
    /// Begins to follow. A file that is not a record is refused by the first look that can tell.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let failed = |source| Error::Read { path: path.clone(), source };
        // A pipe or a device would hold up whoever opens it.
        if !fs::metadata(&path).map_err(failed)?.is_file() {
            return Err(failed(io::Error::other("not a file")));
        }
        let file = File::open(&path).map_err(failed)?;
        Ok(Self {
            path,
            file,
            at: 0,
            carry: Vec::new(),
            skipping: false,
            has_head: false,
            record: Record::default(),
            bad_lines: 0,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads what is new. Says whether there was anything.
    pub fn look(&mut self) -> Result<bool> {
        let done = self.read_on();
        done.map_err(|problem| match problem {
            Problem::Io(source) => Error::Read { path: self.path.clone(), source },
            Problem::Not(reason, hint) => {
                Error::NotARecord { path: self.path.clone(), reason, hint: hint.to_owned() }
            }
        })
    }

    /// What is known of the run: its facts, once they are written, its last steps, and its end.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Whether the first line has been read.
    pub fn has_begun(&self) -> bool {
        self.has_head
    }

    /// Steps that are done, in the run's own count.
    pub fn steps_done(&self) -> u64 {
        self.record.steps.last().map_or(0, |step| step.step.saturating_add(1))
    }

    /// How long ago something was written; nothing where the file system does not say.
    pub fn silent_for(&self) -> Option<Duration> {
        let written = self.file.metadata().ok()?.modified().ok()?;
        // A clock that was set back is no reason to say nothing.
        Some(written.elapsed().unwrap_or_default())
    }

    /// Lines that could not be read.
    pub fn bad_lines(&self) -> u64 {
        self.bad_lines
    }

    fn read_on(&mut self) -> Result<bool, Problem> {
        let length = self.file.metadata()?.len();
        if length < self.at {
            // Begun again: another run writes to the same place.
            self.at = 0;
            self.carry.clear();
            self.skipping = false;
            self.has_head = false;
            self.record = Record::default();
        }
        if length == self.at {
            return Ok(false);
        }
        let stop = length.min(self.at + MOST_A_LOOK);
        let mut chunk = vec![0; 64 * 1024];
        while self.at < stop {
            self.file.seek(SeekFrom::Start(self.at))?;
            let count = self.file.read(&mut chunk)?;
            if count == 0 {
                break;
            }
            self.at += count as u64;
            let had_head = self.has_head;
            self.take(&chunk[..count])?;
            if self.has_head && !had_head && length.saturating_sub(self.at) > FROM_END {
                self.at = length - FROM_END;
                self.carry.clear();
                self.skipping = true;
                // What is kept are neighbours.
                self.record.steps.clear();
                self.record.devices.clear();
            }
        }
        Ok(true)
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Problem> {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (part, rest) = bytes.split_at(end);
            bytes = &rest[1..];
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            let mut line = std::mem::take(&mut self.carry);
            line.extend_from_slice(part);
            self.line(&line)?;
            line.clear();
            self.carry = line;
        }
        if !self.skipping {
            self.carry.extend_from_slice(bytes);
        }
        if self.carry.len() > LONGEST_LINE {
            if !self.has_head {
                return Err(Problem::Not("its first line is not a line of JSON".to_owned(), ""));
            }
            self.carry.clear();
            self.skipping = true;
            self.bad_lines += 1;
        }
        Ok(())
    }

    fn line(&mut self, line: &[u8]) -> Result<(), Problem> {
        if !self.has_head {
            self.record.run = head(line)?.run;
            self.has_head = true;
        } else if !line.iter().all(u8::is_ascii_whitespace) && self.record.take(line).is_err() {
            self.bad_lines += 1;
        }
        let steps = self.record.steps.len();
        if steps >= 2 * KEPT_STEPS {
            self.record.steps.drain(..steps - KEPT_STEPS);
        }
        let devices = self.record.devices.len();
        if devices >= 2 * KEPT_DEVICES {
            self.record.devices.drain(..devices - KEPT_DEVICES);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const HEAD: &str = "{\"record\":\"feedwater\",\"version\":1,\"run\":{\"name\":\"x\"}}\n";

    fn step(number: u64) -> String {
        format!("{{\"step\":{number},\"wall_nanos\":1000,\"wait_nanos\":10}}\n")
    }

    #[test]
    fn half_lines_wait_for_their_other_half() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        let mut file = File::create(&path).unwrap();
        let mut follow = Follow::open(&path).unwrap();
        assert!(!follow.look().unwrap());
        let text = format!("{HEAD}{}{}{}", step(0), step(1), "{\"end\":{\"wall_nanos\":5}}\n");
        // A byte at a time: the worst that a buffer can do.
        for byte in text.as_bytes() {
            file.write_all(&[*byte]).unwrap();
            assert!(follow.look().unwrap());
        }
        assert_eq!((follow.steps_done(), follow.bad_lines()), (2, 0));
        assert_eq!(follow.record().run.name, "x");
        assert!(follow.record().end.is_some());
        assert!(follow.silent_for().is_some_and(|since| since < Duration::from_hours(1)));
    }

    #[test]
    fn of_a_long_record_the_end_is_read_and_a_look_reads_what_is_new() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        let mut text = HEAD.to_owned();
        let mut count = 0;
        while (text.len() as u64) < FROM_END + 200_000 {
            text.push_str(&step(count));
            count += 1;
        }
        fs::write(&path, &text).unwrap();
        let mut follow = Follow::open(&path).unwrap();
        assert!(follow.look().unwrap());
        assert_eq!((follow.steps_done(), follow.bad_lines()), (count, 0));
        assert!(follow.record().steps.len() < 2 * KEPT_STEPS);
        assert!(follow.record().steps[0].step > 1000);
        // What was read is not read again: nonsense written over it changes nothing.
        let mut file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all(&vec![b'x'; text.len()]).unwrap();
        file.write_all(format!("{}nonsense\n", step(count)).as_bytes()).unwrap();
        assert!(follow.look().unwrap());
        assert_eq!((follow.steps_done(), follow.bad_lines()), (count + 1, 1));
        assert!(!follow.look().unwrap());
    }

    #[test]
    fn a_file_that_is_begun_again_is_another_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        fs::write(&path, format!("{HEAD}{}{}", step(0), step(1))).unwrap();
        let mut follow = Follow::open(&path).unwrap();
        follow.look().unwrap();
        assert_eq!(follow.steps_done(), 2);
        fs::write(&path, HEAD.replace("\"x\"", "\"y\"")).unwrap();
        follow.look().unwrap();
        assert_eq!((follow.steps_done(), follow.record().run.name.as_str()), (0, "y"));
    }

    #[test]
    fn what_is_not_a_record_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        for text in ["hello\n", "{}\n", "{\"record\":\"feedwater\",\"version\":9}\n"] {
            fs::write(&path, text).unwrap();
            let error = Follow::open(&path).unwrap().look().unwrap_err();
            assert!(matches!(error, Error::NotARecord { .. }), "{error}");
        }
        assert!(Follow::open(folder.path()).is_err(), "a folder");
    }
}
