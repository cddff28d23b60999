//! Where are the members of a tar file?
//!
//! The `tar` crate reads one header; the walk from header to header is ours. Its own walk reads long names into memory
//! whatever size they claim, unpacks nothing but still believes sparse members, and takes a file that was cut off
//! between two members for a whole one.

use std::{borrow::Cow, fs::File};

use tar::{EntryType, Header};

use crate::{
    error::Fault,
    read::{read_exact_at, read_full_at},
};

const BLOCK_BYTES: u64 = 512;

/// A longer name or set of PAX records is an attack.
const MOST_NAME_BYTES: u64 = 1 << 20;

/// A member that is not a folder.
pub(super) struct Found {
    pub(super) name: String,
    pub(super) kind: EntryType,
    /// Stored with its holes left out, so that its bytes are not where they seem to be.
    pub(super) has_holes: bool,
    /// Its first byte.
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// A walk over the headers.
pub(super) struct Walk<'a> {
    file: &'a File,
    size: u64,
    /// The header that is read next.
    at: u64,
    done: bool,
}

/// What extension headers say about the member behind them.
#[derive(Default)]
struct Extensions {
    long_name: Option<Vec<u8>>,
    pax_name: Option<Vec<u8>>,
    size: Option<u64>,
    has_holes: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn new(file: &'a File, size: u64) -> Self {
        Self { file, size, at: 0, done: false }
    }

    /// The next member, or the fault that ends the walk.
    fn advance(&mut self) -> Result<Option<Found>, Fault> {
        let mut extensions = Extensions::default();
        loop {
            let at = self.at;
            let mut block = [0; BLOCK_BYTES as usize];
            let count = read_full_at(self.file, &mut block, at)?;
            if count == 0 {
                return Err(Fault::at_byte(at.min(self.size), "the shard has no end mark: it was cut off"));
            }
            if block == [0; BLOCK_BYTES as usize] {
                return Ok(None);
            }
            if count < block.len() {
                return Err(Fault::at_byte(self.size, "the shard ends inside of a header"));
            }
            let header = Header::from_byte_slice(&block);
            let sum: u32 = block[..148].iter().chain(&block[156..]).map(|byte| u32::from(*byte)).sum();
            if header.cksum().ok() != Some(sum + 8 * u32::from(b' ')) {
                return Err(Fault::at_byte(at, "the checksum of a tar header is wrong"));
            }
            let kind = header.entry_type();
            let of_next = kind.is_gnu_longname()
                || kind.is_gnu_longlink()
                || kind.is_pax_local_extensions()
                || kind.is_pax_global_extensions();
            let stored = header.entry_size().map_err(|error| Fault::at_byte(at, error.to_string()))?;
            let length = if of_next { stored } else { extensions.size.unwrap_or(stored) };
            let offset = self.behind_sparse_headers(header, at + BLOCK_BYTES)?;
            let end = offset.checked_add(length).and_then(|end| end.checked_next_multiple_of(BLOCK_BYTES));
            self.at =
                end.ok_or_else(|| Fault::at_byte(at, format!("a member of {length} bytes is not possible")))?;
            if of_next {
                self.extend(&mut extensions, kind, offset, length)?;
            } else if !kind.is_dir() {
                let own = || header.path_bytes();
                let Extensions { long_name, pax_name, has_holes, .. } = extensions;
                let name = pax_name.or(long_name).map_or_else(own, Cow::Owned);
                let name = String::from_utf8_lossy(&name).into_owned();
                let has_holes = has_holes || kind.is_gnu_sparse();
                // What reaches beyond the end is said of this member; there is nothing behind it to walk to.
                self.done = offset.saturating_add(length) > self.size;
                return Ok(Some(Found { name, kind, has_holes, offset, length }));
            } else {
                extensions = Extensions::default();
            }
        }
    }

    /// Takes note of a header that is about the next member.
    fn extend(
        &self,
        extensions: &mut Extensions,
        kind: EntryType,
        offset: u64,
        length: u64,
    ) -> Result<(), Fault> {
        let wanted = kind.is_gnu_longname() || kind.is_pax_local_extensions();
        if length > MOST_NAME_BYTES {
            return Err(Fault::at_byte(
                offset,
                format!("a name or PAX header of {length} bytes is not possible"),
            ));
        }
        if !wanted {
            return Ok(());
        }
        let mut bytes = vec![0; length as usize];
        read_exact_at(self.file, &mut bytes, offset)?;
        if kind.is_gnu_longname() {
            bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
            extensions.long_name = Some(bytes);
            return Ok(());
        }
        let damaged = || Fault::at_byte(offset, "a PAX header is damaged");
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (key, value, behind) = pax_record(rest).ok_or_else(damaged)?;
            match key {
                b"path" => extensions.pax_name = Some(value.to_vec()),
                b"size" => {
                    let size = str::from_utf8(value).ok().and_then(|size| size.parse().ok());
                    extensions.size = Some(size.ok_or_else(damaged)?);
                }
                _ if key.starts_with(b"GNU.sparse.") => extensions.has_holes = true,
                _ => {}
            }
            rest = behind;
        }
        Ok(())
    }

    /// An old sparse member may have more headers, for its map.
    fn behind_sparse_headers(&self, header: &Header, mut offset: u64) -> Result<u64, Fault> {
        const GOES_ON: u64 = 504;

        let mut more =
            header.entry_type().is_gnu_sparse() && header.as_gnu().is_some_and(tar::GnuHeader::is_extended);
        while more {
            let mut flag = [0];
            read_exact_at(self.file, &mut flag, offset + GOES_ON)?;
            more = flag != [0];
            offset += BLOCK_BYTES;
        }
        Ok(offset)
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<Found, Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let next = self.advance().transpose();
        self.done = self.done || !matches!(next, Some(Ok(_)));
        next
    }
}

/// `length key=value\n`, where the length is that of all of it.
fn pax_record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let length: usize = str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
    let record = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((&record[..equals], &record[equals + 1..], &bytes[length..]))
}
