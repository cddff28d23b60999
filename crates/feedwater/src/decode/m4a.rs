//! Where does the sound of an M4A file start?
//!
//! An AAC encoder puts a block or two of silence in front, and says in the track's edit list how much. Symphonia does
//! not read it; without it every M4A would be 20 to 50 ms late. The few boxes that matter are walked here.

use crate::read::{ReadAt, read_full_at};

/// Frames to drop in front, and frames that follow them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Edit {
    pub(super) delay: u64,
    pub(super) frames: u64,
}

/// The edit of the first track that has sound, where it is the usual one: a cut in front and at the end. Anything else,
/// and anything damaged, is `None`: then the track is taken as it is.
pub(super) fn edit(input: &dyn ReadAt, rate: u32) -> Option<Edit> {
    /// A larger index belongs to a file of many days.
    const MOST_BYTES: u64 = 64 << 20;

    let (at, len) = find_moov(input)?;
    if len > MOST_BYTES {
        return None;
    }
    let mut moov = vec![0; len as usize];
    let filled = read_full_at(input, &mut moov, at).ok()?;
    let moov = &moov[..filled];
    let movie_scale = scale(child(moov, *b"mvhd")?)?;
    let track = children(moov).filter(|(name, _)| name == b"trak").map(|(_, body)| body).find(|track| {
        let handler = child(track, *b"mdia").and_then(|media| child(media, *b"hdlr"));
        handler.and_then(|handler| handler.get(8..12)) == Some(b"soun")
    })?;
    let media_scale = scale(child(child(track, *b"mdia")?, *b"mdhd")?)?;
    let (duration, start) = only_entry(child(child(track, *b"edts")?, *b"elst")?)?;
    let in_frames =
        |ticks: u64, scale: u32| (u128::from(ticks) * u128::from(rate) / u128::from(scale)) as u64;
    let delay = in_frames(start, media_scale);
    // The movie's clock is often a coarse one, of milliseconds: round up, and let the track's own end cut it.
    let frames = in_frames(duration, movie_scale) + u64::from(rate.div_ceil(movie_scale)) - 1;
    (duration > 0).then_some(Edit { delay, frames })
}

/// The body of `moov`, which is before or behind the sound.
fn find_moov(input: &dyn ReadAt) -> Option<(u64, u64)> {
    /// Boxes on the top level. A fragmented file has thousands, but its `moov` is in front of them.
    const MOST_BOXES: usize = 64;

    let mut at = 0_u64;
    for _ in 0..MOST_BOXES {
        let mut head = [0; 16];
        if read_full_at(input, &mut head, at).ok()? < 8 {
            return None;
        }
        let short = u64::from(u32::from_be_bytes(*head.first_chunk()?));
        let (header, len) =
            if short == 1 { (16, u64::from_be_bytes(*head[8..].first_chunk()?)) } else { (8, short) };
        if len < header {
            return None;
        }
        if head[4..8] == *b"moov" {
            return Some((at + header, len - header));
        }
        at = at.checked_add(len)?;
    }
    None
}

/// The boxes in the body of one.
fn children(mut body: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let len = u32::from_be_bytes(*body.first_chunk()?) as usize;
        let name = *body.get(4..8)?.first_chunk()?;
        let inner = body.get(8..len)?;
        body = &body[len..];
        Some((name, inner))
    })
}

fn child(body: &[u8], wanted: [u8; 4]) -> Option<&[u8]> {
    children(body).find(|(name, _)| *name == wanted).map(|(_, inner)| inner)
}

/// Ticks a second, of `mvhd` or `mdhd`.
fn scale(body: &[u8]) -> Option<u32> {
    let at = if *body.first()? == 1 { 20 } else { 12 };
    let scale = u32::from_be_bytes(*body.get(at..)?.first_chunk()?);
    (scale > 0).then_some(scale)
}

/// Duration, by the movie's clock, and start, by the track's, of a list with one entry at normal speed.
fn only_entry(body: &[u8]) -> Option<(u64, u64)> {
    let entries = u32::from_be_bytes(*body.get(4..)?.first_chunk()?);
    if entries != 1 {
        return None;
    }
    let entry = body.get(8..)?;
    let (duration, start) = if *body.first()? == 1 {
        (u64::from_be_bytes(*entry.first_chunk()?), i64::from_be_bytes(*entry.get(8..)?.first_chunk()?))
    } else {
        let duration = u32::from_be_bytes(*entry.first_chunk()?);
        (u64::from(duration), i64::from(i32::from_be_bytes(*entry.get(4..)?.first_chunk()?)))
    };
    // -1 is a pause.
    Some((duration, u64::try_from(start).ok()?))
}
