//! What do samples of this dataset take? A few are made, before the first batch is asked for.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use feedwater_profile::machine::{self, DiskKind};

use super::{
    Cache, Choice, Level,
    choose::{Cost, Costs, Room, SHARE_OF_MEMORY, choose},
    disk, entry,
    keep::{chain, exact, kept},
    shard,
};
use crate::{
    batch::DType,
    pipeline::{Context, Stage},
    sample::{MediaPlace, Sample, Value},
    source::Source,
};

/// So many are made, or as many as this time suffices for.
const LOOKED_AT: u64 = 24;
const LONGEST_LOOK: Duration = Duration::from_millis(400);

/// Makes a few samples and chooses.
pub(super) fn look(cache: &Cache, source: &dyn Source, stages: &[Arc<dyn Stage>], batch: DType) -> Choice {
    let room = room(cache);
    match costs(cache, source, stages, batch, room.memory_bytes) {
        Some(costs) => choose(&costs, &room),
        None => {
            Choice { level: Level::Off, why: "off: no sample could be made to see what it takes".to_owned() }
        }
    }
}

fn room(cache: &Cache) -> Room {
    let disk_bytes_a_second = match machine::disk(&cache.folder).map(|disk| disk.kind) {
        Some(DiskKind::SolidState) => 500e6,
        Some(DiskKind::Rotating) => 100e6,
        Some(DiskKind::Network) => 50e6,
        Some(DiskKind::Memory) => 4e9,
        Some(DiskKind::Unknown) | None => 200e6,
    };
    let free = machine::room(&cache.folder).map_or(f64::INFINITY, |room| room.free_bytes as f64);
    Room {
        memory_bytes: machine::memory().available_bytes.map_or(2e9, |bytes| bytes as f64)
            / cache.sharers as f64,
        disk_bytes: free,
        most_bytes: cache.most_bytes.map(|most| most as f64),
        disk_bytes_a_second,
        cores: std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64),
    }
}

fn costs(
    cache: &Cache,
    source: &dyn Source,
    stages: &[Arc<dyn Stage>],
    batch: DType,
    memory_bytes: f64,
) -> Option<Costs> {
    let (decoded, all) = (kept(Level::Decoded, stages), kept(Level::Features, stages));
    let dtype = cache.dtype.unwrap_or_else(|| exact(stages, all, batch));
    let mut context = Context::alone();
    let length = source.len();
    // As they are found, and as they are when the system has their files in memory.
    let (mut found, mut warm) = ([(0.0, 0.0); 3], [(0.0, 0.0); 3]);
    let (mut made, began) = (0_u32, Instant::now());
    for number in 0..LOOKED_AT.min(length) {
        // One in the midst of each part of the dataset; the first warms up what is warm later.
        let index = (number * 2 + 1) * length / (2 * LOOKED_AT.min(length));
        // A file that a codec panics on is a bad sample, which is told when its turn comes.
        let measured = catch_unwind(AssertUnwindSafe(|| {
            let mut make = || one(source, index, &stages[..all], decoded, dtype, &mut context);
            let first = make()?;
            let counts = number > 0 || length == 1;
            counts.then(|| Some((first, make()?))).flatten()
        }));
        if let Ok(Some((first, second))) = measured {
            made += 1;
            for (level, (nanos, bytes)) in first.into_iter().enumerate() {
                found[level] = (found[level].0 + nanos, found[level].1 + bytes);
                // A moment in which the machine was not alone is seldom in both.
                warm[level] = (warm[level].0 + nanos.min(second[level].0), warm[level].1 + bytes);
            }
        }
        if made > 0 && began.elapsed() > LONGEST_LOOK {
            break;
        }
    }
    // What was kept by a run before takes no room that is free.
    let there = |level| {
        let prefix = shard::prefix(&chain(cache, level, stages, batch));
        let names = disk::names(&cache.folder, &prefix);
        names.iter().map(|name| shard::size(&cache.folder, name)).sum::<u64>() as f64
    };
    let mean = |level, (nanos, bytes): (f64, f64)| Cost {
        nanos: nanos / f64::from(made),
        bytes: bytes / f64::from(made),
        there_bytes: there(level),
    };
    // Files that memory holds are read from there from the second epoch on.
    let files_bytes = found[0].1 / f64::from(made) * length as f64;
    let sums = if files_bytes <= memory_bytes * SHARE_OF_MEMORY { warm } else { found };
    let decodes = stages[..all].iter().any(|stage| stage.name() == "decode");
    (made > 0).then(|| Costs {
        samples: length,
        raw: mean(Level::Raw, sums[0]),
        decoded: decodes.then(|| mean(Level::Decoded, sums[1])),
        features: (all > 0).then(|| mean(Level::Features, sums[2])),
    })
}

/// What one sample takes up to each level, and its bytes there.
fn one(
    source: &dyn Source,
    index: u64,
    stages: &[Arc<dyn Stage>],
    decoded: usize,
    dtype: DType,
    context: &mut Context,
) -> Option<[(f64, f64); 3]> {
    let mut sample = source.sample(index).ok()?;
    let file_bytes = file_bytes(&sample);
    let mut levels = [(0.0, file_bytes); 3];
    let mut entry = Vec::new();
    let mut nanos = 0.0;
    for (number, stage) in stages.iter().enumerate() {
        context.charges.clear();
        let began = Instant::now();
        stage.apply(&mut sample, context).ok()?;
        nanos += began.elapsed().as_nanos() as f64;
        let read = context.charges.iter().filter(|charge| charge.stage == "read");
        levels[0].0 += read.map(|charge| charge.time.as_nanos() as f64).sum::<f64>();
        for (level, last) in [(1, decoded), (2, stages.len())] {
            if number + 1 == last {
                entry::write(&sample, dtype, &mut entry);
                levels[level] = (nanos, entry.len() as f64);
            }
        }
    }
    Some(levels)
}

fn file_bytes(sample: &Sample) -> f64 {
    let bytes = |value: &Value| match value {
        Value::Media(media) => match &media.place {
            MediaPlace::Bytes(bytes) => bytes.len() as u64,
            MediaPlace::Range { length, .. } => *length,
            MediaPlace::File => std::fs::metadata(&media.path).map_or(0, |about| about.len()),
        },
        other => other.bytes() as u64,
    };
    sample.fields().map(|(_, value)| bytes(value)).sum::<u64>() as f64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use std::{collections::HashSet, sync::Mutex};

    use super::*;
    use crate::{Fault, source::Kind};

    struct Ten;

    impl Source for Ten {
        fn kind(&self) -> Kind {
            Kind::Text
        }

        fn len(&self) -> u64 {
            10
        }

        fn fingerprint(&self) -> u128 {
            0
        }

        fn key(&self, index: u64) -> String {
            index.to_string()
        }

        fn sample(&self, index: u64) -> Result<Sample, Fault> {
            Ok(Sample::new(self.key(index)).with("text", Value::Text("ten".into())))
        }
    }

    /// Takes long for a sample that it has not seen, as a disk does.
    #[derive(Default)]
    struct Disk(Mutex<HashSet<String>>);

    impl Stage for Disk {
        fn name(&self) -> &'static str {
            "decode"
        }

        fn describe(&self) -> String {
            self.name().to_owned()
        }

        fn version(&self) -> Option<u32> {
            Some(1)
        }

        fn apply(&self, sample: &mut Sample, _: &mut Context) -> Result<(), Fault> {
            if self.0.lock().unwrap().insert(sample.key.clone()) {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        }
    }

    /// What was chosen for arrays depended on whether the system had their files in memory when it looked.
    #[test]
    fn files_that_memory_holds_count_as_read_from_there() {
        let nanos = |memory_bytes| {
            let stages: [Arc<dyn Stage>; 1] = [Arc::new(Disk::default())];
            costs(&Cache::of(Level::Features), &Ten, &stages, DType::F32, memory_bytes)
                .unwrap()
                .features
                .unwrap()
                .nanos
        };
        assert!(nanos(0.0) > 4e6);
        assert!(nanos(1e12) < 4e6);
    }
}
