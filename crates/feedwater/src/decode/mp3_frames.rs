//! Where are the frames of an MP3?
//!
//! Four bytes of header, of which eleven bits must be ones, are found by chance in any file; so a frame counts when
//! the next one stands right behind it, or the file ends there.

use crate::{
    error::Fault,
    read::{ReadAt, read_full_at},
};

/// Bytes read at once when a window is looked for.
const BLOCK_BYTES: usize = 32 * 1024;

/// Junk in front of the first frame, at most.
const MOST_JUNK: u64 = 128 * 1024;

/// No frame is longer: 320 kbit/s at 32 kHz, padded.
const LONGEST_FRAME: usize = 1441;

/// The header of a frame, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    /// The byte it starts at.
    pub(super) at: u64,
    /// Its length with the header.
    pub(super) bytes: usize,
    pub(super) rate: u32,
    pub(super) channels: u16,
    /// Samples a channel.
    pub(super) samples: u32,
    bit_rate: u32,
}

impl Frame {
    /// The frame whose header is at the start of `bytes`.
    fn parse(bytes: &[u8], at: u64) -> Option<Self> {
        const KBITS_1: [u32; 14] = [32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320];
        const KBITS_2: [u32; 14] = [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160];
        const RATES: [u32; 3] = [44_100, 48_000, 32_000];

        let [0xFF, b, c, d, ..] = *bytes else { return None };
        if b & 0xE6 != 0xE2 {
            return None;
        }
        let version_shift = match b >> 3 & 3 {
            0b11 => 0,
            0b10 => 1,
            0b00 => 2,
            _ => return None,
        };
        // Rate 0 is "free format", which nothing writes and symphonia does not decode.
        let kbits = if version_shift == 0 { KBITS_1 } else { KBITS_2 };
        let bit_rate = kbits.get(usize::from(c >> 4).checked_sub(1)?)? * 1000;
        let rate = RATES.get(usize::from(c >> 2 & 3))? >> version_shift;
        let samples = if version_shift == 0 { 1152 } else { 576 };
        let bytes = samples / 8 * bit_rate / rate + u32::from(c >> 1 & 1);
        let channels = if d >> 6 == 3 { 1 } else { 2 };
        Some(Self { at, bytes: bytes as usize, rate, channels, samples, bit_rate })
    }

    /// The byte behind it.
    pub(super) fn end(&self) -> u64 {
        self.at + self.bytes as u64
    }

    /// The length of the side information, behind which an encoder's tag stands.
    pub(super) fn side_info_bytes(&self) -> usize {
        match (self.samples, self.channels) {
            (1152, 1) | (576, 2) => 17,
            (1152, _) => 32,
            _ => 9,
        }
    }

    /// Whether both can be of one stream.
    fn goes_with(&self, other: &Self) -> bool {
        (self.rate, self.channels, self.samples) == (other.rate, other.channels, other.samples)
    }
}

/// The frames of a file, one behind the other.
pub(super) struct Frames<'a> {
    input: &'a dyn ReadAt,
    buffer: &'a mut Vec<u8>,
    /// The byte of the file that the buffer starts at.
    buffer_at: u64,
    size: u64,
    at: u64,
    like: Option<Frame>,
}

impl<'a> Frames<'a> {
    /// Of a file that is wholly in `buffer`.
    pub(super) fn whole(input: &'a dyn ReadAt, buffer: &'a mut Vec<u8>) -> Self {
        let size = buffer.len() as u64;
        Self { input, buffer, buffer_at: 0, size, at: 0, like: None }
    }

    /// Of a file that is read block by block, from `at` on.
    pub(super) fn blocks(input: &'a dyn ReadAt, buffer: &'a mut Vec<u8>, at: u64) -> Result<Self, Fault> {
        buffer.clear();
        Ok(Self { size: input.size()?, input, buffer, buffer_at: 0, at, like: None })
    }

    /// The `len` bytes at `at`, or fewer where the file ends.
    fn window(&mut self, at: u64, len: usize) -> Result<&[u8], Fault> {
        let len = usize::try_from(self.size.saturating_sub(at)).map_or(len, |rest| rest.min(len));
        if len == 0 {
            return Ok(&[]);
        }
        let inside = at >= self.buffer_at && at + len as u64 <= self.buffer_at + self.buffer.len() as u64;
        if !inside {
            self.buffer.resize(BLOCK_BYTES.max(len), 0);
            let filled = read_full_at(self.input, self.buffer, at)?;
            self.buffer.truncate(filled);
            self.buffer_at = at;
        }
        let start = (at - self.buffer_at) as usize;
        Ok(&self.buffer[start.min(self.buffer.len())..(start + len).min(self.buffer.len())])
    }

    /// How many bytes there are to find frames in.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The bytes of a frame.
    pub(super) fn bytes_of(&mut self, frame: Frame) -> Result<&[u8], Fault> {
        self.window(frame.at, frame.bytes)
    }

    /// Goes on behind `frame`.
    pub(super) fn skip(&mut self, frame: Frame) {
        self.at = frame.end();
    }

    /// The frame at `at`, if it is whole and `more` frames stand right behind it, or the end.
    fn frame_at(&mut self, at: u64, more: usize) -> Result<Option<Frame>, Fault> {
        let Some(frame) = Frame::parse(self.window(at, 4)?, at) else { return Ok(None) };
        if frame.end() > self.size || self.like.is_some_and(|like| !like.goes_with(&frame)) {
            return Ok(None);
        }
        if more == 0 || self.ends_at(frame.end())? {
            return Ok(Some(frame));
        }
        // The whole frame is asked for, so that looking ahead does not read the block twice.
        let behind = frame.bytes + 4;
        let next =
            self.window(at, behind)?.get(frame.bytes..).and_then(|bytes| Frame::parse(bytes, frame.end()));
        let cut_off = next.is_some_and(|next| next.end() > self.size);
        match next {
            Some(next) if next.goes_with(&frame) => {
                let confirmed = more == 1 || cut_off || self.frame_at(frame.end(), more - 1)?.is_some();
                Ok(confirmed.then_some(frame))
            }
            _ => Ok(None),
        }
    }

    /// Whether there is nothing more at `at` that could be a frame: the end, or a tag.
    fn ends_at(&mut self, at: u64) -> Result<bool, Fault> {
        let bytes = self.window(at, 16)?;
        Ok(bytes.len() < 4 || tag_bytes(bytes).is_some() || bytes.iter().all(|&byte| byte == 0))
    }

    /// Finds the first frame, with `more` right behind it.
    pub(super) fn find_first(&mut self, more: usize) -> Result<Frame, Fault> {
        let start = self.at;
        while self.at < self.size && self.at - start <= MOST_JUNK {
            // Far more bytes are looked at here than anywhere else: let the search for 0xFF be a fast one.
            let block = self.window(self.at, 4096)?;
            let Some(skip) = memchr::memchr(0xFF, block) else {
                self.at += block.len().max(1) as u64;
                continue;
            };
            self.at += skip as u64;
            if let Some(frame) = self.frame_at(self.at, more)? {
                self.like = Some(frame);
                return Ok(frame);
            }
            self.at += 1;
        }
        Err(Fault::at_byte(start, "no mp3 frames"))
    }

    /// The next frame; the walk goes on behind it.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, Fault> {
        let frame = self.peek()?;
        if let Some(frame) = frame {
            self.at = frame.end();
        }
        Ok(frame)
    }

    /// The next frame. Tags and zeros before it are stepped over.
    pub(super) fn peek(&mut self) -> Result<Option<Frame>, Fault> {
        loop {
            let (at, like) = (self.at, self.like);
            let bytes = self.window(at, 32)?;
            if bytes.len() < 4 {
                return Ok(None);
            }
            if let Some(frame) = Frame::parse(bytes, at)
                && like.is_none_or(|like| like.goes_with(&frame))
            {
                // A last frame that is cut off is common and harmless.
                return Ok((frame.end() <= self.size).then_some(frame));
            }
            if let Some(skip) = tag_bytes(bytes) {
                self.at = at.saturating_add(skip);
            } else if bytes[0] == 0 {
                let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
                self.at += zeros as u64;
            } else {
                return self.lost();
            }
        }
    }

    /// What is at `at` is no frame. At the very end that is common; anywhere else something is missing.
    fn lost(&mut self) -> Result<Option<Frame>, Fault> {
        if self.size - self.at <= LONGEST_FRAME as u64 {
            return Ok(None);
        }
        let at = self.at;
        let other = Frame::parse(self.window(at, 4)?, at);
        let reason = match other {
            Some(frame) => {
                format!("the format changes here, to {} Hz and {} channels", frame.rate, frame.channels)
            }
            None => "what follows is no mp3 frame".to_owned(),
        };
        Err(Fault::at_byte(at, reason))
    }

    /// Goes to frame `index`, counted from `first`, and returns the index that was reached.
    ///
    /// At a constant bit rate its place can be computed. That it is constant is not believed but checked, at a few
    /// places: in a stream that varies, no frame stands where it would have to. Then every header is walked over.
    pub(super) fn jump(&mut self, first: Frame, index: u64) -> Result<u64, Fault> {
        let place = |index: u64| {
            // Padding evens out the part of a byte that a frame is too short.
            first.at + index * u64::from(first.samples / 8 * first.bit_rate) / u64::from(first.rate)
        };
        let mut landed = None;
        for quarter in 1..=4 {
            landed = None;
            let about = place(index * quarter / 4);
            for at in about.saturating_sub(1)..=about + 1 {
                if let Some(frame) = self.frame_at(at, 2)?
                    && frame.bit_rate == first.bit_rate
                {
                    landed = Some(frame);
                    break;
                }
            }
            if landed.is_none() {
                break;
            }
        }
        if let Some(frame) = landed {
            self.at = frame.at;
            return Ok(index);
        }
        self.at = first.at;
        for walked in 0..index {
            if self.next()?.is_none() {
                return Ok(walked);
            }
        }
        Ok(index)
    }
}

/// The length of the tag that starts here.
fn tag_bytes(bytes: &[u8]) -> Option<u64> {
    match *bytes {
        [b'T', b'A', b'G', ..] => Some(128),
        [b'I', b'D', b'3', _, _, _, a, b, c, d, ..] => {
            Some(10 + [a, b, c, d].iter().fold(0, |size, byte| size << 7 | u64::from(byte & 0x7F)))
        }
        [b'A', b'P', b'E', b'T', b'A', b'G', b'E', b'X', _, _, _, _, a, b, c, d, ..] => {
            Some(32 + u64::from(u32::from_le_bytes([a, b, c, d])))
        }
        // Its length stands at its end; it is always the last thing but one.
        [b'L', b'Y', b'R', b'I', b'C', b'S', b'B', b'E', ..] => Some(u64::MAX / 2),
        _ => None,
    }
}
