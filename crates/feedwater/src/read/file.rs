//! How is a file read, and written, at a position? Differs between systems, as does [`super::mapped`].

use std::{fs::File, io};

use super::ReadAt;

impl ReadAt for File {
    #[cfg(unix)]
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, buf, offset)
    }

    // Moves the file's cursor, which nothing here looks at; the read itself is atomic.
    #[cfg(windows)]
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::windows::fs::FileExt::seek_read(self, buf, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

/// Writes all of `bytes` from `offset` on.
pub(crate) fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    #[cfg(unix)]
    {
        std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
    }
    #[cfg(windows)]
    {
        let (mut rest, mut at) = (bytes, offset);
        while !rest.is_empty() {
            match std::os::windows::fs::FileExt::seek_write(file, rest, at)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => (rest, at) = (&rest[count..], at + count as u64),
            }
        }
        Ok(())
    }
}
