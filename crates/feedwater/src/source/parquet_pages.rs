//! Can the pages of a column be as large as they say?
//!
//! The reader allocates what a page's header claims that it is when unpacked, up to 2 GiB, before it unpacks anything.
//! So the headers are walked first: no codec packs tighter than a known ratio, and what claims to be is damaged. Only
//! the two sizes in a header are read; all else in it is stepped over.

use parquet::{basic::Compression, file::metadata::ColumnChunkMetaData};

use crate::{
    error::Fault,
    read::{ReadAt, read_full_at},
};

/// Walks over all pages of a column in a row group.
pub(super) fn check(file: &dyn ReadAt, column: &ColumnChunkMetaData) -> Result<(), Fault> {
    let (start, length) = column.byte_range();
    let end = start.checked_add(length).filter(|end| file.size().is_ok_and(|size| *end <= size));
    let end = end.ok_or_else(|| Fault::new("a column is said to lie beyond the end of the file"))?;
    let most = most_to_one(column.compression());
    let mut at = start;
    let mut buffer = Vec::new();
    while at < end {
        let page = header(file, at, end, &mut buffer)?;
        let packed = u64::try_from(page.packed).map_err(|_| damaged(at))?;
        let unpacked = u64::try_from(page.unpacked).map_err(|_| damaged(at))?;
        if unpacked > packed.saturating_mul(most) + 64 {
            let reason =
                format!("a page of {packed} bytes at byte {at} is said to be {unpacked} bytes unpacked");
            return Err(Fault::new(reason));
        }
        at += page.length as u64 + packed;
    }
    if at > end { Err(damaged(end)) } else { Ok(()) }
}

/// How many bytes one byte can stand for.
fn most_to_one(codec: Compression) -> u64 {
    match codec {
        Compression::UNCOMPRESSED => 1,
        Compression::SNAPPY => 64,
        Compression::LZ4 | Compression::LZ4_RAW => 256,
        Compression::GZIP(_) => 1100,
        // A block of 128 KiB that is one byte repeated takes four.
        _ => 33_000,
    }
}

fn damaged(at: u64) -> Fault {
    Fault::new(format!("the header of a page at byte {at} is damaged"))
}

struct Page {
    unpacked: i32,
    packed: i32,
    /// Of the header itself.
    length: usize,
}

/// The header at `at`. It is as long as the statistics in it, so as much is read as it turns out to need.
fn header(file: &dyn ReadAt, at: u64, end: u64, buffer: &mut Vec<u8>) -> Result<Page, Fault> {
    let mut wanted = 256;
    loop {
        let there = usize::try_from(end - at).unwrap_or(usize::MAX).min(wanted);
        buffer.resize(there, 0);
        let filled = read_full_at(file, buffer, at)?;
        if let Some(page) = (Thrift { bytes: &buffer[..filled], at: 0 }).page() {
            return Ok(page);
        }
        if filled < wanted || wanted > 16 << 20 {
            return Err(damaged(at));
        }
        wanted *= 8;
    }
}

/// Thrift's compact protocol, as far as it is needed to step over things.
struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Thrift<'_> {
    const MOST_DEPTH: usize = 8;

    fn page(mut self) -> Option<Page> {
        let (mut field, mut unpacked, mut packed) = (0, None, None);
        while let Some((number, kind)) = self.field(field)? {
            match (number, kind) {
                (2, 5) => unpacked = Some(self.int()?),
                (3, 5) => packed = Some(self.int()?),
                _ => self.skip(kind, Self::MOST_DEPTH)?,
            }
            field = number;
        }
        Some(Page { unpacked: unpacked?, packed: packed?, length: self.at })
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn int(&mut self) -> Option<i32> {
        let zigzag = self.varint()?;
        i32::try_from((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64)).ok()
    }

    /// The number and the kind of the next field; `Some(None)` at the end of the struct.
    #[expect(clippy::option_option, reason = "the bytes may end, or the struct")]
    fn field(&mut self, before: i32) -> Option<Option<(i32, u8)>> {
        let head = self.byte()?;
        if head == 0 {
            return Some(None);
        }
        let number = if head >> 4 == 0 { self.int()? } else { before.checked_add(i32::from(head >> 4))? };
        Some(Some((number, head & 0x0F)))
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            // A bool is in its field's head.
            1 | 2 => {}
            3 => self.at += 1,
            4..=6 => {
                self.varint()?;
            }
            7 => self.at += 8,
            8 => {
                let length = usize::try_from(self.varint()?).ok()?;
                self.at = self.at.checked_add(length)?;
            }
            9 | 10 => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                // In a list a bool has a byte of its own.
                let kind = if matches!(head & 0x0F, 1 | 2) { 3 } else { head & 0x0F };
                for _ in 0..count {
                    self.skip(kind, depth)?;
                    if self.at > self.bytes.len() {
                        return None;
                    }
                }
            }
            12 => {
                let mut field = 0;
                while let Some((number, kind)) = self.field(field)? {
                    self.skip(kind, depth)?;
                    field = number;
                }
            }
            _ => return None,
        }
        (self.at <= self.bytes.len()).then_some(())
    }
}
