//! Which level pays? What it takes to make a sample again, against what it takes to read it back, and whether it fits.

use std::fmt::Write as _;

use serde::Serialize;

use super::Level;
use crate::pipeline::span;

/// Bytes that a core copies and checks in a second, from memory.
const COPIED_BYTES_A_SECOND: f64 = 4e9;
/// What finding an entry takes, whatever its size.
const FOUND_NANOS: f64 = 4_000.0;
/// A cache has to be worth its bytes: so much faster than making samples.
const WORTH: f64 = 1.25;
/// Within this, fewer bytes are better than a little more speed.
const AS_GOOD: f64 = 1.1;
/// The share of what is free on the disk, and in memory, that it may take.
const SHARE_OF_DISK: f64 = 0.8;
pub(super) const SHARE_OF_MEMORY: f64 = 0.5;

/// What a sample takes up to a level, from the files on, and what is then kept of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Nanoseconds of one core.
    pub nanos: f64,
    /// Bytes.
    pub bytes: f64,
    /// Bytes of all samples that are kept so already.
    pub there_bytes: f64,
}

/// What was measured on a few samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Samples of the dataset.
    pub samples: u64,
    /// Reading a file.
    pub raw: Cost,
    /// Reading and decoding it, where something is decoded.
    pub decoded: Option<Cost>,
    /// All that is not random, where that is anything.
    pub features: Option<Cost>,
}

/// What there is room for, and how fast it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Room {
    /// Memory that can be had.
    pub memory_bytes: f64,
    /// What is free where the cache lies.
    pub disk_bytes: f64,
    /// What it may take at most, wherever it lies.
    pub most_bytes: Option<f64>,
    /// How fast that is when memory does not hold it.
    pub disk_bytes_a_second: f64,
    /// Cores that make samples.
    pub cores: f64,
}

/// What was chosen, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// Off where no cache pays.
    pub level: Level,
    /// In a sentence.
    pub why: String,
}

/// Chooses.
pub fn choose(costs: &Costs, room: &Room) -> Choice {
    let samples = costs.samples as f64;
    let all = costs.features.or(costs.decoded).unwrap_or(costs.raw);
    let make = all.nanos / room.cores;
    // What a sample takes when this level is read back and the rest is made.
    let served = |cost: &Cost, disk: bool| {
        let own = all.nanos - cost.nanos + FOUND_NANOS + cost.bytes / COPIED_BYTES_A_SECOND * 1e9;
        let fits_memory = cost.bytes * samples <= room.memory_bytes * SHARE_OF_MEMORY;
        let disk = if disk && !fits_memory { cost.bytes / room.disk_bytes_a_second * 1e9 } else { 0.0 };
        (own / room.cores).max(disk)
    };
    let levels = [
        (Level::Raw, Some(costs.raw)),
        (Level::Decoded, costs.decoded),
        (Level::Features, costs.features),
        (Level::Ram, costs.features.or(costs.decoded)),
    ];
    let mut best: Option<(Level, Cost, f64)> = None;
    let mut least: Option<f64> = None;
    for (level, cost) in levels {
        let Some(cost) = cost else { continue };
        let bytes = cost.bytes * samples;
        let time = served(&cost, level != Level::Ram);
        if time * WORTH >= make {
            continue;
        }
        least = Some(least.map_or(bytes, |least| least.min(bytes)));
        let allowed = room.most_bytes.is_none_or(|most| bytes <= most);
        let fits = if level == Level::Ram {
            bytes <= room.memory_bytes * SHARE_OF_MEMORY
        } else {
            bytes <= room.disk_bytes * SHARE_OF_DISK + cost.there_bytes
        };
        let better = best.is_none_or(|(_, known, fastest)| {
            time * AS_GOOD < fastest || (time < fastest * AS_GOOD && cost.bytes < known.bytes)
        });
        if allowed && fits && better {
            best = Some((level, cost, time));
        }
    }
    let Some((level, cost, time)) = best else {
        let why = match least {
            Some(bytes) if room.most_bytes.is_some_and(|most| bytes > most) => format!(
                "off: it would take {}, and may take {}",
                human(bytes),
                human(room.most_bytes.unwrap_or(0.0))
            ),
            Some(bytes) => format!(
                "off: there is no room for {}: {} free on the disk, {} of memory",
                human(bytes),
                human(room.disk_bytes),
                human(room.memory_bytes)
            ),
            None => {
                format!("off: a sample is made in {}, reading it back is not much faster", span(all.nanos))
            }
        };
        return Choice { level: Level::Off, why };
    };
    let bytes = human(cost.bytes * samples);
    let (back, make) = (span(time * room.cores), span(all.nanos));
    let mut why = format!("{}: a sample takes {make} to make, and {back} from the cache", level.name());
    let _ = match level {
        Level::Ram => {
            write!(
                why,
                "; {bytes} in memory ({} there), the disk has {}",
                human(room.memory_bytes),
                human(room.disk_bytes)
            )
        }
        _ => write!(why, "; {bytes} on the disk ({} free)", human(room.disk_bytes)),
    };
    Choice { level, why }
}

pub(super) fn human(bytes: f64) -> String {
    let (value, unit) = if bytes >= 1e12 {
        (bytes / 1e12, "TB")
    } else if bytes >= 1e9 {
        (bytes / 1e9, "GB")
    } else {
        (bytes / 1e6, "MB")
    };
    format!("{value:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room {
        memory_bytes: 16e9,
        disk_bytes: 500e9,
        most_bytes: None,
        disk_bytes_a_second: 500e6,
        cores: 2.0,
    };

    fn costs(samples: u64, raw: (f64, f64), decoded: (f64, f64), features: (f64, f64)) -> Costs {
        let cost = |(micros, kilobytes): (f64, f64)| Cost {
            nanos: micros * 1e3,
            bytes: kilobytes * 1e3,
            there_bytes: 0.0,
        };
        Costs { samples, raw: cost(raw), decoded: Some(cost(decoded)), features: Some(cost(features)) }
    }

    /// It took what it had written itself for want of room.
    #[test]
    fn what_is_there_already_needs_no_room() {
        let mut costs = costs(1_000_000, (60.0, 160.0), (9_000.0, 640.0), (10_000.0, 320.0));
        let room = Room { disk_bytes: 500e9, ..ROOM };
        assert_eq!(choose(&costs, &room).level, Level::Features);
        let after = Room { disk_bytes: 180e9, ..ROOM };
        assert_ne!(choose(&costs, &after).level, Level::Features);
        costs.features = costs.features.map(|cost| Cost { there_bytes: 320e9, ..cost });
        assert_eq!(choose(&costs, &after).level, Level::Features);
    }

    #[test]
    fn the_level_that_pays() {
        let table: Vec<(&str, Costs, Room)> = vec![
            (
                "mp3 of 10 s, features fit",
                costs(10_000, (60.0, 160.0), (9_000.0, 640.0), (10_000.0, 320.0)),
                ROOM,
            ),
            (
                "wav of 10 s: features are cheap, reading them is cheaper",
                costs(10_000, (40.0, 320.0), (120.0, 640.0), (900.0, 320.0)),
                ROOM,
            ),
            ("npy: nothing to save", costs(100_000, (14.0, 60.0), (22.0, 60.0), (22.0, 60.0)), ROOM),
            (
                "files over a slow network",
                costs(10_000, (20_000.0, 160.0), (20_100.0, 640.0), (20_900.0, 320.0)),
                ROOM,
            ),
            (
                "files over a slow network, room for them alone",
                costs(1_000_000, (20_000.0, 160.0), (20_100.0, 640.0), (20_900.0, 320.0)),
                Room { disk_bytes: 250e9, ..ROOM },
            ),
            (
                "features are larger than sound, and a slow disk",
                costs(1_000_000, (60.0, 60.0), (4_000.0, 64.0), (4_300.0, 640.0)),
                Room { disk_bytes_a_second: 100e6, ..ROOM },
            ),
            (
                "no disk, some memory",
                costs(10_000, (60.0, 160.0), (9_000.0, 640.0), (10_000.0, 320.0)),
                Room { disk_bytes: 1e9, ..ROOM },
            ),
            (
                "no room at all",
                costs(10_000_000, (60.0, 160.0), (9_000.0, 640.0), (10_000.0, 320.0)),
                Room { disk_bytes: 1e9, ..ROOM },
            ),
            (
                "room, and a ceiling below it",
                costs(10_000, (60.0, 160.0), (9_000.0, 640.0), (10_000.0, 320.0)),
                Room { most_bytes: Some(1e9), ..ROOM },
            ),
        ];
        let lines: Vec<String> = table
            .iter()
            .map(|(what, costs, room)| format!("{what}\n    {}", choose(costs, room).why))
            .collect();
        insta::assert_snapshot!(lines.join("\n"), @r"
        mp3 of 10 s, features fit
            features: a sample takes 10.0 ms to make, and 84 µs from the cache; 3.2 GB on the disk (500.0 GB free)
        wav of 10 s: features are cheap, reading them is cheaper
            features: a sample takes 900 µs to make, and 84 µs from the cache; 3.2 GB on the disk (500.0 GB free)
        npy: nothing to save
            off: a sample is made in 22 µs, reading it back is not much faster
        files over a slow network
            features: a sample takes 20.9 ms to make, and 84 µs from the cache; 3.2 GB on the disk (500.0 GB free)
        files over a slow network, room for them alone
            raw: a sample takes 20.9 ms to make, and 944 µs from the cache; 160.0 GB on the disk (250.0 GB free)
        features are larger than sound, and a slow disk
            decoded: a sample takes 4.3 ms to make, and 1.3 ms from the cache; 64.0 GB on the disk (500.0 GB free)
        no disk, some memory
            ram: a sample takes 10.0 ms to make, and 84 µs from the cache; 3.2 GB in memory (16.0 GB there), the disk has 1.0 GB
        no room at all
            off: there is no room for 3.2 TB: 1.0 GB free on the disk, 16.0 GB of memory
        room, and a ceiling below it
            off: it would take 3.2 GB, and may take 1.0 GB
        ");
    }
}
