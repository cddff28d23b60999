//! Is every page and every frame there, one behind the other?
//!
//! Symphonia steps over what it cannot read and looks for the next good place. These walks over a file in memory find
//! the first place that is not good, and its byte.

use crate::error::Fault;

/// Every page of an Ogg file must follow the one before, with its checksum right.
pub(super) fn check_ogg(bytes: &[u8]) -> Result<(), Fault> {
    const HEADER: usize = 27;

    let mut at = 0;
    let mut ended = true;
    while at < bytes.len() {
        let page = &bytes[at..];
        let early = || Fault::at_byte(bytes.len() as u64, "the ogg file ends inside of a page");
        if !page.starts_with(b"OggS") {
            return Err(Fault::at_byte(at as u64, "an ogg page is missing or damaged"));
        }
        let segments = usize::from(*page.get(HEADER - 1).ok_or_else(early)?);
        let lengths = page.get(HEADER..HEADER + segments).ok_or_else(early)?;
        let body: usize = lengths.iter().map(|&len| usize::from(len)).sum();
        let page = page.get(..HEADER + segments + body).ok_or_else(early)?;
        let said = page[22..].first_chunk().map(|crc| u32::from_le_bytes(*crc));
        if said != Some(ogg_crc(page)) {
            return Err(Fault::at_byte(at as u64, "the checksum of an ogg page is wrong"));
        }
        let flags = page[5];
        if ended && flags & 2 == 0 {
            return Err(Fault::at_byte(at as u64, "the first page of an ogg stream is missing"));
        }
        ended = flags & 4 != 0;
        at += page.len();
    }
    Ok(())
}

/// Ogg's own CRC-32: not reflected, over the page with the checksum's place as zeros.
fn ogg_crc(page: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let mut crc = (i as u32) << 24;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x8000_0000 == 0 { crc << 1 } else { crc << 1 ^ 0x04C1_1DB7 };
                bit += 1;
            }
            table[i] = crc;
            i += 1;
        }
        table
    };
    let (before, rest) = page.split_at(22);
    let after = rest.get(4..).unwrap_or_default();
    [before, &[0; 4], after]
        .into_iter()
        .flatten()
        .fold(0, |crc: u32, byte| crc << 8 ^ TABLE[(crc >> 24) as usize ^ usize::from(*byte)])
}

/// Every ADTS frame must follow the one before. A last one that is cut off, or a tag behind it, is common.
pub(super) fn check_adts(bytes: &[u8]) -> Result<(), Fault> {
    const HEADER: usize = 7;
    /// Thirteen bits.
    const LONGEST_FRAME: usize = 8191;

    let mut at = 0;
    let mut frames = 0;
    while let Some(&[0xFF, b, _, d, e, f, _]) = bytes.get(at..at + HEADER)
        && b & 0xF6 == 0xF0
    {
        let len = usize::from(d & 3) << 11 | usize::from(e) << 3 | usize::from(f >> 5);
        if len < HEADER {
            break;
        }
        if at + len > bytes.len() {
            break;
        }
        frames += 1;
        at += len;
    }
    let rest = &bytes[at.min(bytes.len())..];
    let tag = rest.starts_with(b"TAG") || rest.starts_with(b"ID3") || rest.starts_with(b"APETAGEX");
    if frames > 0 && (rest.len() <= LONGEST_FRAME || tag) {
        return Ok(());
    }
    Err(Fault::at_byte(at as u64, "what follows is no aac frame"))
}

/// Makes faults at the place of `packet` in `bytes`, where it can be found.
pub(super) fn place_of(bytes: &[u8], packet: &[u8]) -> impl Fn(&str) -> Fault {
    let head = &packet[..packet.len().min(64)];
    let found = if head.len() < 8 { None } else { memchr::memmem::find(bytes, head) };
    move |reason| found.map_or_else(|| Fault::new(reason), |at| Fault::at_byte(at as u64, reason))
}
