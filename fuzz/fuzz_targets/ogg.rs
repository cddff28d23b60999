//! An Ogg file, as it is and with the checksums of its pages put right, whole and by windows.

#![no_main]

fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let mut at = 0;
    while let Some(segments) = bytes.get(at + 26).map(|count| usize::from(*count)) {
        let Some(lengths) = bytes.get(at + 27..at + 27 + segments) else { break };
        let end = at + 27 + segments + lengths.iter().map(|length| usize::from(*length)).sum::<usize>();
        let Some(page) = bytes.get_mut(at..end) else { break };
        page[22..26].fill(0);
        let crc = page.iter().fold(0_u32, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte) << 24, |crc, _| {
                crc << 1 ^ if crc >> 31 == 1 { 0x04C1_1DB7 } else { 0 }
            })
        });
        page[22..26].copy_from_slice(&crc.to_le_bytes());
        at = end;
    }
    bytes
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mended = with_checksums(bytes);
    feedwater_fuzz::sound(&bytes);
    feedwater_fuzz::sound(&mended);
    feedwater_fuzz::window(&mended, 0.25, 0.1, None);
});
