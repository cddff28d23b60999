//! How is a cache asked for? The flags that every command has that makes batches.

use std::path::PathBuf;

use clap::ValueEnum;
use feedwater::{
    Cache, DType,
    cache::{CacheReport, Identity, Level},
};
use serde::Serialize;

#[derive(Debug, Clone, Default, clap::Args, Serialize)]
#[command(next_help_heading = "What need not be done again")]
pub(crate) struct Caching {
    /// Keep what is the same each time
    #[arg(long, value_enum, default_value_t = Kept::Off)]
    pub(crate) cache: Kept,
    /// Where [default: `FEEDWATER_CACHE`, or feedwater in the user's folder for caches]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Numbers that are kept; half precision takes half the bytes [default: as exact as the batch]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) cache_dtype: Option<Numbers>,
    /// By what a file is known: its path, size and time, or what is in it
    #[arg(long, value_enum, default_value_t = By::Path)]
    pub(crate) cache_key: By,
    /// How many bytes it may take: 20GB, 500MB [default: all but 2 GB of the disk]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) cache_size: Option<u64>,
}

/// How much is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kept {
    /// Nothing
    #[default]
    Off,
    /// What pays, as a few samples tell
    Auto,
    /// The bytes of files, for slow disks
    Raw,
    /// What was decoded
    Decoded,
    /// Features and token ids
    Features,
    /// The same, in memory, for one run
    Ram,
}

impl Kept {
    /// Its name, as the flag takes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Raw => "raw",
            Self::Decoded => "decoded",
            Self::Features => "features",
            Self::Ram => "ram",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Numbers {
    F32,
    #[value(alias = "fp16")]
    F16,
    Bf16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum By {
    /// Its path, its size and when it was changed
    #[default]
    Path,
    /// What is in it: it is read every time
    Content,
}

impl Caching {
    /// Says of settings of a cache that there is none.
    pub(crate) fn warn(&self) {
        let Self { cache, cache_dir, cache_dtype, cache_key, cache_size } = self;
        let said = [
            ("--cache-dir", cache_dir.is_some()),
            ("--cache-dtype", cache_dtype.is_some()),
            ("--cache-key", *cache_key != By::Path),
            ("--cache-size", cache_size.is_some()),
        ];
        if let Some((flag, _)) = said.iter().find(|(_, is_there)| *is_there && *cache == Kept::Off) {
            eprintln!(
                "warning: {flag} is for a cache, and nothing is kept without --cache, as in --cache features"
            );
        }
    }

    /// What was asked for.
    pub(crate) fn cache(&self) -> Option<Cache> {
        let mut cache = Cache::named(self.cache.name()).ok()?;
        if let Some(folder) = &self.cache_dir {
            cache = cache.in_folder(folder);
        }
        if let Some(numbers) = self.cache_dtype {
            cache = cache.dtype(match numbers {
                Numbers::F32 => DType::F32,
                Numbers::F16 => DType::F16,
                Numbers::Bf16 => DType::BF16,
            });
        }
        if let Some(bytes) = self.cache_size {
            cache = cache.most_bytes(bytes);
        }
        Some(cache.identity(match self.cache_key {
            By::Path => Identity::Path,
            By::Content => Identity::Content,
        }))
    }
}

/// Of entries that were not what was written, where there were any: a piece of a sentence.
pub(crate) fn damaged(cache: &CacheReport) -> String {
    match cache.damaged {
        0 => String::new(),
        1 => "; 1 was damaged, and is made anew".to_owned(),
        count => format!("; {count} were damaged, and are made anew"),
    }
}

/// What is to be said of a run that had to make what later ones read.
pub(crate) fn filled(cache: &CacheReport) -> Option<String> {
    let count = cache.hits + cache.misses;
    // What is kept in memory is gone with each run.
    let kept = !matches!(cache.level, Level::Off | Level::Ram);
    (kept && cache.misses * 10 > count).then(|| {
        format!(
            "note      {} of these samples were not there yet: figures and fixes are of a first epoch, TUNED may be of a later one; the same command again says what is left when they are there",
            cache.misses
        )
    })
}

/// What a cache did, in a line or two.
pub(crate) fn told(cache: &CacheReport) -> String {
    if cache.level == Level::Off {
        return format!("cache     {}", cache.why.as_deref().unwrap_or("off: nothing is kept"));
    }
    let count = cache.hits + cache.misses;
    let share = if count > 0 { 100.0 * cache.hits as f64 / count as f64 } else { 0.0 };
    let why = cache.why.as_ref().map(|why| format!("\nwhy       {why}")).unwrap_or_default();
    let trouble = cache.trouble.as_ref().map(|what| format!("\nwarning: cache: {what}")).unwrap_or_default();
    let damaged = damaged(cache);
    format!(
        "cache     {}: {share:.0} % of {count} lookups found their sample, {} are there now{damaged}{why}{trouble}",
        cache.level.name(),
        cache.entries
    )
}

/// Bytes with a unit, or without.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1_048_576.0,
        "gib" => 1_073_741_824.0,
        "tib" => 1_099_511_627_776.0,
        _ => return Err("a number of bytes: 20GB, 500MB".to_owned()),
    };
    match number.parse::<f64>() {
        Ok(number) if number > 0.0 => Ok((number * factor) as u64),
        _ => Err("a number of bytes: 20GB, 500MB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads were credited with what the cache did, which the first run had filled.
    #[test]
    fn of_a_run_that_fills_a_cache_it_is_said() {
        let report = |level, hits, misses| CacheReport {
            level,
            hits,
            misses,
            damaged: 0,
            failed: 0,
            refused: 0,
            entries: 0,
            read_bytes: 0,
            written_bytes: 0,
            why: None,
            trouble: None,
        };
        assert!(
            filled(&report(Level::Features, 0, 1600)).is_some_and(|said| said.contains(" 1600 of these "))
        );
        assert_eq!(filled(&report(Level::Features, 1590, 10)), None);
        assert_eq!(filled(&report(Level::Ram, 0, 1600)), None, "it will be the same again");
        assert_eq!(filled(&report(Level::Off, 0, 0)), None);
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("20GB"), Ok(20_000_000_000));
        assert_eq!(size("1.5 MiB"), Ok(1_572_864));
        assert_eq!(size("4096"), Ok(4096));
        assert!(size("much").is_err() && size("0").is_err() && size("-1GB").is_err());
    }
}
