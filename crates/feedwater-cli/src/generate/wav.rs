//! How do samples become a WAV file?
//!
//! The plainest one there is: a 44-byte header and 16-bit mono PCM. Every reader knows it, and a reader of
//! ours may map it without decoding.

/// Length of the header: RIFF, `fmt ` and the head of `data`.
pub(crate) const HEADER: usize = 44;

/// Encodes samples (full scale is ±1) into `file`, which is cleared first. Louder samples are clipped, as a
/// sound card would.
pub(crate) fn encode(samples: &[f32], rate: u32, file: &mut Vec<u8>) {
    let data_bytes = samples.len() * 2;
    file.clear();
    file.resize(HEADER + data_bytes, 0);
    file[0..4].copy_from_slice(b"RIFF");
    put_u32(file, 4, (HEADER - 8 + data_bytes) as u32);
    file[8..16].copy_from_slice(b"WAVEfmt ");
    put_u32(file, 16, 16); // length of this chunk
    put_u16(file, 20, 1); // PCM
    put_u16(file, 22, 1); // mono
    put_u32(file, 24, rate);
    put_u32(file, 28, rate * 2); // bytes a second
    put_u16(file, 32, 2); // bytes a frame
    put_u16(file, 34, 16); // bits a sample
    file[36..40].copy_from_slice(b"data");
    put_u32(file, 40, data_bytes as u32);
    for (bytes, sample) in file[HEADER..].chunks_exact_mut(2).zip(samples) {
        // Rounded by truncating a positive number: `f32::round` is a library call on plain x86-64.
        let scaled = (sample * 32_767.0).clamp(-32_767.0, 32_767.0) + 32_768.5;
        bytes.copy_from_slice(&((scaled as i32 - 32_768) as i16).to_le_bytes());
    }
}

fn put_u32(file: &mut [u8], at: usize, value: u32) {
    file[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put_u16(file: &mut [u8], at: usize, value: u16) {
    file[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_says_what_the_file_is() {
        let mut file = b"left over".to_vec();
        encode(&[0.0, 1.0, -1.0, 0.5, -2.0, 0.4 / 32_767.0], 16_000, &mut file);
        let u32_at = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        let u16_at = |at: usize| u16::from_le_bytes(file[at..at + 2].try_into().unwrap());
        assert_eq!((&file[..4], &file[8..16], &file[36..40]), (&b"RIFF"[..], &b"WAVEfmt "[..], &b"data"[..]));
        assert_eq!(u32_at(4) as usize, file.len() - 8);
        assert_eq!((u32_at(16), u16_at(20), u16_at(22), u32_at(24)), (16, 1, 1, 16_000));
        assert_eq!((u32_at(28), u16_at(32), u16_at(34), u32_at(40)), (32_000, 2, 16, 12));
        let samples: Vec<i16> =
            file[44..].chunks(2).map(|pair| i16::from_le_bytes(pair.try_into().unwrap())).collect();
        assert_eq!(samples, [0, 32_767, -32_767, 16_384, -32_767, 0]);
    }
}
