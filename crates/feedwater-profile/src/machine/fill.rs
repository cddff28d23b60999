//! How fast is memory written?
//!
//! Batches that fit into the processor's caches are written faster than those that do not, and everything else
//! that the workers use is pushed out by those. So a larger batch makes each of its samples dearer; by how much is asked
//! here, once before a profile.

use std::{hint::black_box, time::Instant};

use crate::record::Fill;

const MIB: usize = 1 << 20;
/// Passes over the memory; the middle one counts, and the first is for the system to hand it out.
const PASSES: usize = 5;

/// What writing takes when so much memory is gone over in turn.
pub fn fill() -> Vec<Fill> {
    [8, 16, 32, 64, 128]
        .into_iter()
        .map(|mib| {
            let mut memory = vec![1_u8; mib * MIB];
            let mut times: Vec<f64> = (0..PASSES)
                .map(|pass| {
                    let began = Instant::now();
                    memory.fill(pass as u8);
                    black_box(&mut memory);
                    began.elapsed().as_nanos() as f64 / mib as f64
                })
                .collect();
            times.sort_by(f64::total_cmp);
            Fill { bytes: (mib * MIB) as u64, nanos_per_mib: times[PASSES / 2] }
        })
        .collect()
}
