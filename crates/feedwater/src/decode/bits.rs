//! How are bits read fast, and is what they say whole?

use multiversion::multiversion;

/// Bits of a slice, the highest of each byte first. Beyond the end they are zeros, and [`Bits::overrun`] is true: the
/// check is made once a subframe instead of once a bit.
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    /// The next byte to load.
    at: usize,
    /// Loaded bits, left-aligned. Below the first `count` there may be more, and they are right.
    cache: u64,
    count: u32,
}

impl<'a> Bits<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, cache: 0, count: 0 }
    }

    /// Loads until at least 56 bits are there.
    #[expect(
        clippy::inline_always,
        reason = "in every loop that matters, and compiled for several processors"
    )]
    #[inline(always)]
    fn refill(&mut self) {
        if let Some(word) = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk) {
            self.cache |= u64::from_be_bytes(*word) >> self.count;
            self.at += (63 - self.count as usize) / 8;
            self.count |= 0b11_1000;
        } else {
            self.refill_at_the_end();
        }
    }

    #[cold]
    fn refill_at_the_end(&mut self) {
        // Bits below `count` were loaded from bytes that come again now.
        self.cache &= u64::MAX.checked_shl(64 - self.count).unwrap_or(0);
        while self.count < 56 {
            let byte = self.bytes.get(self.at).copied().unwrap_or(0);
            self.cache |= u64::from(byte) << (56 - self.count);
            self.at += 1;
            self.count += 8;
        }
    }

    /// Whether more was read than there is.
    pub(super) fn overrun(&self) -> bool {
        self.at * 8 - self.count as usize > self.bytes.len() * 8
    }

    /// How many bytes were begun.
    pub(super) fn bytes_used(&self) -> usize {
        (self.at * 8 - self.count as usize).div_ceil(8)
    }

    /// The next `count` bits, at most 32.
    #[inline]
    pub(super) fn take(&mut self, count: u32) -> u32 {
        self.refill();
        let value = (self.cache >> 32) as u32;
        self.cache <<= count;
        self.count -= count;
        (u64::from(value) >> (32 - count)) as u32
    }

    /// The next `count` bits, 1 to 32 of them, as a number with a sign.
    #[inline]
    pub(super) fn take_signed(&mut self, count: u32) -> i32 {
        let value = self.take(count);
        ((value << (32 - count)) as i32) >> (32 - count)
    }

    /// How many zeros come before the next one. `None` where no one comes.
    #[inline]
    pub(super) fn unary(&mut self) -> Option<u32> {
        let mut zeros = 0;
        loop {
            self.refill();
            let here = self.cache.leading_zeros();
            if here < self.count {
                self.cache <<= here;
                self.cache <<= 1;
                self.count -= here + 1;
                return Some(zeros + here);
            }
            zeros += self.count;
            (self.cache, self.count) = (0, 0);
            if self.overrun() {
                return None;
            }
        }
    }
}

/// Fills `out` with Rice codes of this parameter, at most 30. `None` where one does not end.
///
/// Much of the time that FLAC takes is spent here, in counting zeros and shifting: newer processors have better
/// instructions for both.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
pub(super) fn rice(bits: &mut Bits, parameter: u32, out: &mut [i32]) -> Option<()> {
    for sample in out {
        bits.refill();
        let zeros = bits.cache.leading_zeros();
        let len = zeros + 1 + parameter;
        let code = if len <= 56 {
            // Nearly always: the whole code is loaded.
            let rest = bits.cache << zeros << 1;
            bits.cache = rest << parameter;
            bits.count -= len;
            zeros << parameter | (rest >> 32 >> (32 - parameter)) as u32
        } else {
            let zeros = bits.unary()?;
            zeros << parameter | bits.take(parameter)
        };
        *sample = (code >> 1) as i32 ^ -((code & 1) as i32);
    }
    Some(())
}

/// CRC-8 with polynomial 0x07, over a FLAC frame's header.
pub(super) fn crc8(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ byte, |crc: u8, _| if crc & 0x80 == 0 { crc << 1 } else { crc << 1 ^ 0x07 })
    })
}

/// CRC-16 with polynomial 0x8005, over a FLAC frame. Eight bytes a step, each with its own table, so that a step does
/// not wait for the one before it eight times.
pub(super) fn crc16(bytes: &[u8]) -> u16 {
    const TABLES: [[u16; 256]; 8] = {
        let mut tables = [[0; 256]; 8];
        let mut i = 0;
        while i < 256 {
            let mut crc = (i as u16) << 8;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x8005 };
                bit += 1;
            }
            tables[0][i] = crc;
            i += 1;
        }
        let mut t = 1;
        while t < 8 {
            let mut i = 0;
            while i < 256 {
                let before = tables[t - 1][i];
                tables[t][i] = before << 8 ^ tables[0][(before >> 8) as usize];
                i += 1;
            }
            t += 1;
        }
        tables
    };
    let (blocks, rest) = bytes.as_chunks::<8>();
    let crc = blocks.iter().fold(0_u16, |crc, block| {
        let [high, low] = crc.to_be_bytes();
        let table = |n: usize, byte: u8| TABLES[n][usize::from(byte)];
        table(7, block[0] ^ high)
            ^ table(6, block[1] ^ low)
            ^ table(5, block[2])
            ^ table(4, block[3])
            ^ table(3, block[4])
            ^ table(2, block[5])
            ^ table(1, block[6])
            ^ table(0, block[7])
    });
    rest.iter().fold(crc, |crc, byte| crc << 8 ^ TABLES[0][usize::from((crc >> 8) as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_the_published_ones() {
        // The check values of CRC-8/SMBUS and CRC-16/UMTS.
        assert_eq!(crc8(b"123456789"), 0xF4);
        assert_eq!(crc16(b"123456789"), 0xFEE8);
    }

    #[test]
    fn bits_are_read_across_bytes_and_beyond_the_end() {
        let bytes: Vec<u8> = (1..=20).map(|n: u8| n.wrapping_mul(73)).collect();
        let mut bits = Bits::new(&bytes);
        let mut place = 0;
        for width in [1, 7, 3, 32, 13, 31, 5, 32, 24, 11] {
            let expected = (place..place + width)
                .fold(0_u64, |value, bit| value << 1 | u64::from(bytes[bit / 8] >> (7 - bit % 8) & 1));
            assert_eq!(u64::from(bits.take(width as u32)), expected, "{width} bits from bit {place}");
            place += width;
        }
        assert!(!bits.overrun() && bits.bytes_used() == place.div_ceil(8));
        assert_eq!((bits.take(1), bits.take(1), bits.overrun()), (0, 0, true));
        assert_eq!(Bits::new(&[0; 30]).unary(), None);
        assert_eq!(Bits::new(&[[0; 15].as_slice(), &[1; 15]].concat()).unary(), Some(127));
    }
}
