//! Where are the bytes?
//!
//! Everything that is decoded is read by position: [`ReadAt`] has no cursor, so one open file serves many threads,
//! a window of a long recording reads only its own bytes, and a member of an archive is a [`Section`] of the archive
//! that looks like a file of its own. Nothing here trusts a size that a file declares about itself; only
//! [`ReadAt::size`], which is what is really there.

mod file;
pub(crate) mod mapped;

use std::io;

use crate::error::Fault;

pub(crate) use file::write_all_at;

/// Bytes that can be read at any position, by many threads at once.
pub trait ReadAt: Send + Sync {
    /// Reads at most `buf.len()` bytes from `offset` on. Returns how many; 0 means that the end was reached.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// How many bytes there are.
    fn size(&self) -> io::Result<u64>;
}

impl ReadAt for [u8] {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)).unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
}

impl ReadAt for Vec<u8> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.as_slice().read_at(buf, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for &T {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        (**self).read_at(buf, offset)
    }

    fn size(&self) -> io::Result<u64> {
        (**self).size()
    }
}

/// A part of something readable, readable as if it were the whole: a member of a tar file, a slice of a manifest.
///
/// A section that reaches beyond the end of what it is a part of is as short as what is there: its declared length is
/// not evidence.
#[derive(Clone, Copy)]
pub struct Section<'a> {
    input: &'a dyn ReadAt,
    offset: u64,
    len: u64,
}

impl<'a> Section<'a> {
    /// The `len` bytes of `input` from `offset` on.
    pub fn new(input: &'a dyn ReadAt, offset: u64, len: u64) -> Self {
        Self { input, offset, len }
    }
}

impl ReadAt for Section<'_> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = self.len.saturating_sub(offset);
        let count = usize::try_from(rest).map_or(buf.len(), |rest| rest.min(buf.len()));
        let Some(at) = self.offset.checked_add(offset) else { return Ok(0) };
        if count == 0 { Ok(0) } else { self.input.read_at(&mut buf[..count], at) }
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.len.min(self.input.size()?.saturating_sub(self.offset)))
    }
}

/// Reads until `buf` is full or the input ends. Returns how many bytes were read.
pub fn read_full_at(input: &dyn ReadAt, buf: &mut [u8], offset: u64) -> Result<usize, Fault> {
    let mut filled = 0;
    while filled < buf.len() {
        let at = offset + filled as u64;
        match input.read_at(&mut buf[filled..], at) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Fault::at_byte(at, error.to_string())),
        }
    }
    Ok(filled)
}

/// Fills `buf` from `offset` on. Fewer bytes than that are a fault at the byte where the input ended.
pub fn read_exact_at(input: &dyn ReadAt, buf: &mut [u8], offset: u64) -> Result<(), Fault> {
    let filled = read_full_at(input, buf, offset)?;
    if filled == buf.len() {
        return Ok(());
    }
    let missing = buf.len() - filled;
    Err(Fault::at_byte(offset + filled as u64, format!("the file ends here, {missing} bytes too early")))
}

/// Reads everything into `into`, whose capacity is reused. More than `limit_bytes` is a fault.
///
/// What `into` held before is overwritten, not cleared first: a buffer that is used for file after file is zeroed once,
/// when it grows, and never again.
pub fn read_all(input: &dyn ReadAt, into: &mut Vec<u8>, limit_bytes: u64) -> Result<(), Fault> {
    /// Growth when there is more than `size` said, as in a file that is being written to.
    const STEP: usize = 64 * 1024;

    let size = input.size()?;
    if size > limit_bytes {
        return Err(too_large(size, limit_bytes));
    }
    let size = usize::try_from(size).map_err(|_| too_large(size, limit_bytes))?;
    into.resize(size, 0);
    let filled = read_full_at(input, into, 0)?;
    into.truncate(filled);
    // Some files say that they are empty and are not (`/proc`, a fifo behind a descriptor).
    let mut more = size == 0;
    while more {
        let start = into.len();
        into.resize(start + STEP, 0);
        let filled = read_full_at(input, &mut into[start..], start as u64)?;
        into.truncate(start + filled);
        if into.len() as u64 > limit_bytes {
            return Err(too_large(into.len() as u64, limit_bytes));
        }
        more = filled == STEP;
    }
    Ok(())
}

fn too_large(size: u64, limit_bytes: u64) -> Fault {
    Fault::new(format!("{size} bytes are more than the limit of {limit_bytes}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

    use super::*;
    use crate::error::Place;

    #[test]
    fn a_section_is_a_file_of_its_own() {
        let bytes: Vec<u8> = (0..100).collect();
        let outer = Section::new(&bytes, 10, 50);
        let inner = Section::new(&outer, 40, 20);
        assert_eq!(inner.size().unwrap(), 10, "no longer than what it is a part of");
        let mut all = Vec::new();
        read_all(&inner, &mut all, 100).unwrap();
        assert_eq!(all, (50..60).collect::<Vec<u8>>());
        assert_eq!(Section::new(&bytes, u64::MAX, 5).read_at(&mut [0; 4], 9).unwrap(), 0);
        assert_eq!(Section::new(&bytes, 200, 5).size().unwrap(), 0);
    }

    #[test]
    fn a_short_read_names_the_byte_where_the_input_ended() {
        let fault = read_exact_at(&[0_u8; 10].as_slice(), &mut [0; 8], 4).unwrap_err();
        assert_eq!(fault.place, Place::Byte(10));
    }

    #[test]
    fn read_all_reuses_what_is_there_and_keeps_the_limit() {
        let mut into = vec![7; 1000];
        let capacity = into.capacity();
        read_all(&[1_u8, 2, 3].as_slice(), &mut into, 3).unwrap();
        assert_eq!((into.as_slice(), into.capacity()), ([1, 2, 3].as_slice(), capacity));
        assert!(read_all(&[0_u8; 4].as_slice(), &mut into, 3).unwrap_err().reason.contains("limit of 3"));
        read_all(&[].as_slice(), &mut into, 3).unwrap();
        assert!(into.is_empty());
    }

    #[test]
    fn a_file_is_read_by_position() {
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, b"0123456789").unwrap();
        let mut four = [0; 4];
        read_exact_at(&file, &mut four, 3).unwrap();
        assert_eq!((&four, file.size().unwrap()), (b"3456", 10));
    }
}
