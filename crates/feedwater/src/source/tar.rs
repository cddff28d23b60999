//! `WebDataset` shards: tar files in which neighbouring members that share a name up to the first dot are one sample.
//!
//! The headers are walked once to find where each member's bytes are; nothing is ever extracted, so a member's name is
//! only a name. A sample is then a positional read into its shard, so shards can be shuffled like files.

use std::{
    collections::HashSet,
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::{
    Kind, Source, ending, files_below, is_audio,
    row::{Role, parse_json},
    tar_walk::{Found, Walk},
};
use crate::{
    convert::CLASSES,
    error::{Error, Fault, Place, Result},
    read::{Section, read_all},
    sample::{Media, MediaPlace, Sample, Value, field},
};

/// A text or JSON member larger than this is not metadata.
const MAX_TEXT_BYTES: u64 = 16 << 20;

/// Tar shards.
pub struct Tar {
    shards: Vec<Shard>,
    samples: Vec<Entry>,
    members: Vec<Member>,
    fingerprint: u128,
    classes: Vec<String>,
}

struct Shard {
    path: Arc<Path>,
    file: Arc<File>,
}

/// A sample: its members stand together.
struct Entry {
    shard: u32,
    first: u32,
    count: u32,
    key: Box<str>,
    /// The first byte of its first member.
    at: u64,
    /// Why it cannot be used, where that was seen from the headers.
    refused: Option<Box<str>>,
}

struct Member {
    ending: Box<str>,
    offset: u64,
    length: u64,
}

impl Tar {
    /// Opens a shard, a folder of shards, or a brace pattern: `train-{000..099}.tar`.
    pub fn open(path: &Path) -> Result<Self> {
        let mut tar = Self {
            shards: Vec::new(),
            samples: Vec::new(),
            members: Vec::new(),
            fingerprint: 0,
            classes: classes(path),
        };
        let mut hasher = Xxh3::new();
        let mut keys = HashSet::new();
        let paths = shard_paths(path)?;
        if let Some(missing) = paths.iter().find(|shard| !shard.exists()) {
            return Err(Error::config_hint(
                format!("the shard `{}`, one of `{}`, does not exist", missing.display(), path.display()),
                "copy it there, or change the range of the pattern",
            ));
        }
        for path in &paths {
            tar.index(path, paths.len() > 1, &mut keys)?;
        }
        for sample in &tar.samples {
            hasher.update(sample.key.as_bytes());
            for member in &tar.members[sample.first as usize..][..sample.count as usize] {
                hasher.update(&member.length.to_le_bytes());
            }
        }
        tar.fingerprint = hasher.digest128();
        Ok(tar)
    }

    fn index(&mut self, path: &Path, several: bool, keys: &mut HashSet<u64>) -> Result<()> {
        let file = File::open(path).map_err(|error| Error::read(path, error))?;
        let size = file.metadata().map_err(|error| Error::read(path, error))?.len();
        let shard = self.shards.len() as u32;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let name = |key: &str| if several { format!("{stem}/{key}") } else { key.to_owned() };
        let mut last_key = None;
        for found in Walk::new(&file, size) {
            let Found { name: member, kind, has_holes, offset, length } = match found {
                Ok(found) => found,
                Err(fault) => {
                    // What stands before is good; the rest of the shard is one bad sample, so that it is counted.
                    let at = if let Place::Byte(byte) = fault.place { byte } else { 0 };
                    let reason = format!("the rest of the shard cannot be read: {}", fault.reason);
                    self.push(shard, name(&format!("byte {at}")), at, Some(reason));
                    break;
                }
            };
            let (folder, base) =
                member.rsplit_once('/').map_or(("", member.as_str()), |(folder, base)| (folder, base));
            let (stem, ending) = base.split_once('.').unwrap_or((base, ""));
            let key = name(&if folder.is_empty() { stem.to_owned() } else { format!("{folder}/{stem}") });
            if last_key.as_ref() != Some(&key) {
                last_key = Some(key.clone());
                let twice = !keys.insert(xxh3_64(key.as_bytes()));
                let reason =
                    twice.then(|| format!("the key `{key}` stands in the shards twice, not side by side"));
                let key = if twice { format!("{key}@{offset}") } else { key };
                self.push(shard, key, offset, reason);
            }
            let refused = if has_holes {
                Some(format!("member `{member}` is stored with holes; pack it without `--sparse`"))
            } else if !kind.is_file() && !kind.is_contiguous() {
                Some(format!("member `{member}` is a link or a device, not a file"))
            } else if member.split(['/', '\\']).any(|part| part == "..") || member.starts_with('/') {
                Some(format!("member `{member}` points out of the archive"))
            } else if offset.saturating_add(length) > size {
                Some(format!(
                    "member `{member}` ends at byte {}, the shard at byte {size}",
                    offset.saturating_add(length)
                ))
            } else {
                None
            };
            self.add(refused, ending, offset, length);
        }
        self.shards.push(Shard { path: path.into(), file: Arc::new(file) });
        Ok(())
    }

    fn push(&mut self, shard: u32, key: String, at: u64, refused: Option<String>) {
        let first = self.members.len() as u32;
        let refused = refused.map(String::into_boxed_str);
        self.samples.push(Entry { shard, first, count: 0, key: key.into(), at, refused });
    }

    /// Adds a member to the last sample.
    fn add(&mut self, refused: Option<String>, ending: &str, offset: u64, length: u64) {
        let Some(sample) = self.samples.last_mut() else { return };
        let known = &self.members[sample.first as usize..];
        let refused = refused.or_else(|| {
            let twice = known.iter().any(|member| *member.ending == *ending);
            twice.then(|| format!("two members of this sample end in `.{ending}`"))
        });
        if sample.refused.is_none() {
            sample.refused = refused.map(String::into_boxed_str);
        }
        sample.count += 1;
        self.members.push(Member { ending: ending.into(), offset, length });
    }

    fn text(shard: &Shard, member: &Member) -> Result<String, Fault> {
        let mut bytes = Vec::new();
        read_all(&Section::new(&*shard.file, member.offset, member.length), &mut bytes, MAX_TEXT_BYTES)?;
        String::from_utf8(bytes).map_err(|error| {
            Fault::at_byte(member.offset + error.utf8_error().valid_up_to() as u64, "not UTF-8")
        })
    }

    fn add_fields(sample: &mut Sample, shard: &Shard, member: &Member) -> Result<(), Fault> {
        let short = member.ending.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
        let media = || Media {
            path: shard.path.clone(),
            place: MediaPlace::Range {
                file: shard.file.clone(),
                offset: member.offset,
                length: member.length,
                member: format!("{}.{}", sample_name(&sample.key), member.ending),
                check: None,
            },
            window: None,
        };
        match short.as_str() {
            "npy" => {
                let media = media();
                sample.set(field::FEATURES, media);
            }
            "txt" => sample.set(field::TEXT, Self::text(shard, member)?.trim_end().to_owned()),
            "cls" => {
                let text = Self::text(shard, member)?;
                let class: f64 = text.trim().parse().map_err(|_| {
                    Fault::at_byte(member.offset, format!("the class `{}` is not a number", text.trim()))
                })?;
                sample.set(field::LABELS, Value::Number(class));
            }
            "json" => {
                let text = Self::text(shard, member)?;
                let row = parse_json(text.as_bytes(), |role| matches!(role, Role::Text | Role::Spans))
                    .map_err(|reason| Fault::at_byte(member.offset, reason))?;
                if let (Some(text), None) = (row.text, sample.get(field::TEXT)) {
                    sample.set(field::TEXT, text);
                }
                if !row.spans.is_empty() {
                    sample.set(field::SPANS, row.spans);
                }
            }
            _ if is_audio(Path::new(&*member.ending)) || is_audio(Path::new(&format!("x.{short}"))) => {
                let media = media();
                sample.set(field::AUDIO, media);
            }
            _ => {}
        }
        Ok(())
    }
}

fn sample_name(key: &str) -> &str {
    key.rsplit('/').next().unwrap_or(key)
}

impl Source for Tar {
    fn kind(&self) -> Kind {
        Kind::Tar
    }

    fn len(&self) -> u64 {
        self.samples.len() as u64
    }

    fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    fn key(&self, index: u64) -> String {
        self.samples[index as usize].key.to_string()
    }

    fn sample(&self, index: u64) -> Result<Sample, Fault> {
        let entry = &self.samples[index as usize];
        let shard = &self.shards[entry.shard as usize];
        let members = &self.members[entry.first as usize..][..entry.count as usize];
        if let Some(reason) = &entry.refused {
            return Err(Fault::at_byte(entry.at, &**reason).in_file(&*shard.path));
        }
        let mut sample = Sample::new(&*entry.key);
        for member in members {
            Self::add_fields(&mut sample, shard, member).map_err(|fault| {
                let name = format!("{}.{}", sample_name(&entry.key), member.ending);
                let fault = Fault::new(fault.to_string()).in_file(shard.path.to_path_buf());
                Fault { place: Place::Member(name), ..fault }
            })?;
        }
        Ok(sample)
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }
}

/// The names of classes, where they were written down beside the shards.
fn classes(path: &Path) -> Vec<String> {
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
    let bytes = std::fs::read(folder.join(CLASSES)).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// The shards that a path stands for, in order.
fn shard_paths(path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_dir() {
        return files_below(path, |file| ending(file) == "tar");
    }
    let text = path.to_string_lossy();
    if path.exists() || !text.contains('{') {
        return Ok(vec![path.to_owned()]);
    }
    expand(&text).map(|paths| paths.into_iter().map(PathBuf::from).collect())
}

/// Expands `{000..099}` and `{a,b}`, as a shell would.
fn expand(pattern: &str) -> Result<Vec<String>> {
    let wrong = || {
        Error::config_hint(
            format!("`{pattern}` is not a pattern of shards"),
            "write a range or a list: `train-{000..099}.tar`, `{train,valid}.tar`",
        )
    };
    let Some(open) = pattern.find('{') else { return Ok(vec![pattern.to_owned()]) };
    let close = pattern[open..].find('}').map(|at| open + at).ok_or_else(wrong)?;
    let (head, inner, tail) = (&pattern[..open], &pattern[open + 1..close], &pattern[close + 1..]);
    let choices: Vec<String> = if let Some((from, to)) = inner.split_once("..") {
        let width = from.len();
        let (from, to): (u64, u64) = (from.parse().map_err(|_| wrong())?, to.parse().map_err(|_| wrong())?);
        if to < from || to - from > 1_000_000 {
            return Err(wrong());
        }
        (from..=to).map(|number| format!("{number:0width$}")).collect()
    } else if inner.contains(',') {
        inner.split(',').map(str::to_owned).collect()
    } else {
        return Err(wrong());
    };
    let tails = expand(tail)?;
    Ok(choices
        .iter()
        .flat_map(|choice| tails.iter().map(move |tail| format!("{head}{choice}{tail}")))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_expand_as_in_a_shell() {
        assert_eq!(expand("a-{008..011}.tar").unwrap(), ["a-008.tar", "a-009.tar", "a-010.tar", "a-011.tar"]);
        assert_eq!(expand("{x,y}-{0..1}").unwrap(), ["x-0", "x-1", "y-0", "y-1"]);
        for wrong in ["{", "{a}", "{3..1}", "{0..99999999}"] {
            assert!(expand(wrong).is_err(), "{wrong}");
        }
    }
}
