//! Which format is it, by its bytes?
//!
//! Extensions lie: a `.wav` in a scraped dataset can be an MP3. `ID3v2` tags stand in front of MP3, AAC and
//! even FLAC files, so the tag is stepped over before looking; it can be many megabytes of cover pictures.

use crate::{
    error::Fault,
    read::{ReadAt, read_full_at},
};

/// How a file is going to be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Wav,
    Mp3,
    Packets(Kind),
}

/// The containers that symphonia reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Flac,
    Ogg,
    M4a,
    Adts,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Flac => "flac",
            Self::Ogg => "ogg",
            Self::M4a => "m4a",
            Self::Adts => "aac",
        }
    }
}

/// The format, and the byte at which it starts.
pub(super) fn format(input: &dyn ReadAt) -> Result<(Format, u64), Fault> {
    /// More tags than this, one behind the other, are an attack.
    const MOST_TAGS: usize = 8;

    let mut start = 0;
    for _ in 0..=MOST_TAGS {
        let mut head = [0; 16];
        let count = read_full_at(input, &mut head, start)?;
        let head = &head[..count];
        if count == 0 {
            let reason = if start == 0 { "the file is empty" } else { "there is nothing behind the id3 tag" };
            return Err(Fault::at_byte(start, reason));
        }
        match id3_bytes(head) {
            Some(bytes) => start += bytes,
            None => return Ok((format_at(input, head, start)?, start)),
        }
    }
    Err(Fault::at_byte(start, "too many id3 tags, one behind the other"))
}

/// The size of the `ID3v2` tag that starts here, with its header and footer.
fn id3_bytes(head: &[u8]) -> Option<u64> {
    let [b'I', b'D', b'3', version, _, flags, a, b, c, d, ..] = *head else { return None };
    if version == 0xFF || [a, b, c, d].iter().any(|byte| byte & 0x80 != 0) {
        return None;
    }
    let body = [a, b, c, d].iter().fold(0, |size, byte| size << 7 | u64::from(*byte));
    let footer = if flags & 0x10 == 0 { 0 } else { 10 };
    Some(10 + body + footer)
}

fn format_at(input: &dyn ReadAt, head: &[u8], start: u64) -> Result<Format, Fault> {
    let known = match head {
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..]
        | [b'R', b'F', b'6', b'4', ..]
        | [b'B', b'W', b'6', b'4', ..] => Some(Format::Wav),
        [b'f', b'L', b'a', b'C', ..] => Some(Format::Packets(Kind::Flac)),
        [b'O', b'g', b'g', b'S', ..] => Some(Format::Packets(Kind::Ogg)),
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => Some(Format::Packets(Kind::M4a)),
        // The layer bits, where MPEG audio has its layer, are 0 in AAC.
        [0xFF, b, ..] if b & 0xF6 == 0xF0 => Some(Format::Packets(Kind::Adts)),
        [0xFF, b, ..] if b & 0xE6 == 0xE2 => Some(Format::Mp3),
        _ => None,
    };
    if let Some(format) = known {
        return Ok(format);
    }
    let not_decoded = match head {
        [b'R', b'I', b'F', b'F', ..] => Some("a RIFF file that is not WAVE"),
        [b'R', b'I', b'F', b'X', ..] => Some("big-endian WAVE (RIFX)"),
        [b'F', b'O', b'R', b'M', ..] => Some("AIFF"),
        [0x1A, 0x45, 0xDF, 0xA3, ..] => Some("Matroska or WebM"),
        [0x30, 0x26, 0xB2, 0x75, ..] => Some("Windows Media"),
        [b'c', b'a', b'f', b'f', ..] => Some("Core Audio (CAF)"),
        [b'#', b'!', b'A', b'M', b'R', ..] => Some("AMR"),
        [0xFF, b, ..] if b & 0xE0 == 0xE0 => Some("MPEG audio of layer 1 or 2"),
        _ => None,
    };
    if let Some(name) = not_decoded {
        return Err(Fault::at_byte(start, format!("this is {name}, which is not decoded here")));
    }
    // An MP3 may have junk in front: a stream that was cut out of the middle, padding behind a tag.
    if super::mp3::starts_within(input, start)? {
        return Ok(Format::Mp3);
    }
    Err(Fault::at_byte(start, "this is no audio format that is known here"))
}
