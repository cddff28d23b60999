//! A tar shard, as it is and with the checksums of its headers put right.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    feedwater_fuzz::dataset("shard.tar", bytes);
    let mut mended = bytes.to_vec();
    for block in mended.as_chunks_mut::<512>().0 {
        if block[257..].starts_with(b"ustar") {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
    feedwater_fuzz::dataset("shard.tar", &mended);
});
