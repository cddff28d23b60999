//! A `TFRecord` file, as it is and with its checksums put right.

#![no_main]

fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8).to_le_bytes()
}

fn mend(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(length) = bytes.get(at..at + 8).and_then(|length| length.first_chunk()) {
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX).min(bytes.len());
        let head = masked(&bytes[at..at + 8]);
        let Some(slot) = bytes.get_mut(at + 8..at + 12) else { break };
        slot.copy_from_slice(&head);
        let data = at + 12;
        let Some(check) = bytes.get(data..data + length).map(masked) else { break };
        let Some(slot) = bytes.get_mut(data + length..data + length + 4) else { break };
        slot.copy_from_slice(&check);
        at = data + length + 4;
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    feedwater_fuzz::dataset("train.tfrecord", bytes);
    let mut mended = bytes.to_vec();
    mend(&mut mended);
    feedwater_fuzz::dataset("train.tfrecord", &mended);
});
