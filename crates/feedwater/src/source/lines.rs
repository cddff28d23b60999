//! A file of records, one a line (or, quoted, several lines), found again by their offsets.
//!
//! The file is read once, in blocks, to find where records start and to hash it; nothing of it is kept but 8 bytes a
//! record. A record is then one positional read. Not mapped into memory: a file that shrinks under a mapping kills the
//! process.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use memchr::{memchr_iter, memchr2_iter};
use xxhash_rust::xxh3::Xxh3;

use crate::{
    error::{Error, Fault, Result},
    read::{ReadAt, read_exact_at},
};

/// A longer record than this is refused when it is asked for; one runaway line must not take all memory.
pub(super) const MAX_RECORD_BYTES: u64 = 64 << 20;

const BLOCK_BYTES: usize = 1 << 20;
/// Once in so many bytes, the number of lines before is remembered, where somebody asked for one.
const MARK_BYTES: u64 = 16 << 10;

/// Where the records of a file are.
pub struct Lines {
    path: PathBuf,
    file: File,
    /// The first byte of each record, and one more for the end.
    starts: Vec<u64>,
    hash: u128,
    quoted: bool,
    marks: Mutex<Vec<u64>>,
}

impl Lines {
    /// Finds the records. `quoted`: a line break between double quotes belongs to the record, as in CSV.
    pub fn open(path: &Path, quoted: bool) -> Result<Self> {
        let file = File::open(path).map_err(|error| Error::read(path, error))?;
        let size = file.metadata().map_err(|error| Error::read(path, error))?.len();
        // A guess, and not more than that: a file can be all hole, and as large as it likes.
        let guess = (size / 128).min(1 << 20) as usize + 2;
        let mut scan = Scan { starts: Vec::with_capacity(guess), blank: true, ..Scan::default() };
        let mut hasher = Xxh3::new();
        let mut block = vec![0; block_bytes(size)];
        let mut offset = 0;
        loop {
            let read = file.read_at(&mut block, offset).map_err(|error| Error::read(path, error))?;
            if read == 0 {
                break;
            }
            hasher.update(&block[..read]);
            let skip = if offset == 0 && block.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
            scan.start = scan.start.max(skip as u64);
            scan.block(&block[skip..read], offset + skip as u64, quoted);
            offset += read as u64;
        }
        if let Some(at) = scan.open_quote {
            let line = line_of(&file, at, &mut Vec::new());
            return Err(Error::dataset(path, Fault::at_line(line, "a quote is opened and never closed")));
        }
        scan.end_record(offset);
        let mut starts = scan.starts;
        starts.push(offset);
        starts.shrink_to_fit();
        Ok(Self {
            path: path.to_owned(),
            file,
            starts,
            hash: hasher.digest128(),
            quoted,
            marks: Mutex::default(),
        })
    }

    /// How many records.
    pub fn len(&self) -> u64 {
        self.starts.len() as u64 - 1
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A hash of the whole file.
    pub fn hash(&self) -> u128 {
        self.hash
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a record, without its line break.
    pub fn read(&self, index: u64, into: &mut Vec<u8>) -> Result<(), Fault> {
        let (start, end) = (self.starts[index as usize], self.starts[index as usize + 1]);
        if end - start > MAX_RECORD_BYTES {
            let reason =
                format!("a record of {} bytes, longer than the {MAX_RECORD_BYTES} allowed", end - start);
            return Err(self.fault(index, reason));
        }
        into.resize((end - start) as usize, 0);
        read_exact_at(&self.file, into, start).map_err(|fault| fault.in_file(&self.path))?;
        // Blank lines may follow; they belong to no record.
        let end = if self.quoted {
            into.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r' | b' ' | b'\t')).map_or(0, |at| at + 1)
        } else {
            memchr::memchr(b'\n', into).unwrap_or(into.len())
        };
        into.truncate(end);
        if into.last() == Some(&b'\r') {
            into.pop();
        }
        Ok(())
    }

    /// A fault in a record, with the line that it starts on.
    pub fn fault(&self, index: u64, reason: impl Into<String>) -> Fault {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let line = line_of(&self.file, self.starts[index as usize], &mut marks);
        Fault::at_line(line, reason).in_file(self.path.clone())
    }
}

/// A small file needs no large block.
fn block_bytes(size: u64) -> usize {
    size.clamp(4096, BLOCK_BYTES as u64) as usize
}

/// The line, from 1, of a byte. Counted when something is wrong, from the last mark on: everything may be.
fn line_of(file: &File, at: u64, marks: &mut Vec<u64>) -> u64 {
    let mut block = vec![0; MARK_BYTES as usize];
    let mut breaks = |from: u64, wanted: usize| match read_exact_at(file, &mut block[..wanted], from) {
        Ok(()) => memchr_iter(b'\n', &block[..wanted]).count() as u64,
        // It has become shorter.
        Err(_) => 0,
    };
    let mark = (at / MARK_BYTES) as usize;
    while marks.len() <= mark {
        let before = marks
            .last()
            .map_or(0, |lines| lines + breaks((marks.len() as u64 - 1) * MARK_BYTES, MARK_BYTES as usize));
        marks.push(before);
    }
    1 + marks[mark] + breaks(mark as u64 * MARK_BYTES, (at % MARK_BYTES) as usize)
}

#[derive(Default)]
struct Scan {
    starts: Vec<u64>,
    /// Where the record that is being read started.
    start: u64,
    /// Whether nothing but white space was seen of it.
    blank: bool,
    open_quote: Option<u64>,
    /// The quoted cell that ended last: where it was opened, and the byte behind it.
    closed: (u64, u64),
    /// The last byte of the block before.
    last: u8,
}

impl Scan {
    fn block(&mut self, block: &[u8], offset: u64, quoted: bool) {
        let mut seen = 0;
        let mut line_end = |scan: &mut Self, at: usize| {
            scan.look(&block[seen..at]);
            scan.end_record(offset + at as u64 + 1);
            seen = at + 1;
        };
        if quoted {
            for at in memchr2_iter(b'"', b'\n', block) {
                if block[at] == b'"' {
                    let before = at.checked_sub(1).map_or(self.last, |before| block[before]);
                    self.quote(offset + at as u64, before);
                } else if self.open_quote.is_none() {
                    line_end(self, at);
                }
            }
        } else {
            for at in memchr_iter(b'\n', block) {
                line_end(self, at);
            }
        }
        self.look(&block[seen..]);
        self.last = block.last().copied().unwrap_or(self.last);
    }

    /// A quote, as the reader of the record is going to see it: it opens a cell only at the cell's start, and inside of
    /// a cell that has none it is a character like others.
    fn quote(&mut self, at: u64, before: u8) {
        if let Some(opened) = self.open_quote.take() {
            self.closed = (opened, at + 1);
        } else if self.closed.1 == at {
            // Doubled: the cell goes on.
            self.open_quote = Some(self.closed.0);
        } else if at == self.start || before == b',' {
            self.open_quote = Some(at);
        }
    }

    fn look(&mut self, bytes: &[u8]) {
        self.blank = self.blank && bytes.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'));
    }

    fn end_record(&mut self, next: u64) {
        if !self.blank {
            self.starts.push(self.start);
        }
        (self.start, self.blank) = (next, true);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    /// Every line may be wrong, in any order: each was counted from the first on, which took minutes for a few megabytes.
    #[test]
    fn faults_have_their_lines_in_any_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines.txt");
        let text: Vec<String> = (0..9_000).map(|number| ".".repeat(number % 37 + 1)).collect();
        let text = text.join("\n");
        std::fs::write(&path, text).unwrap();
        let lines = Lines::open(&path, false).unwrap();
        for index in [8_999, 0, 4_000, 4_001, 17, 8_999] {
            let told = lines.fault(index, "wrong").to_string();
            assert!(told.contains(&format!("(line {} of", index + 1)), "{told}");
        }
    }
}
