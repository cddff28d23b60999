//! How do many small files become a few large ones?
//!
//! A folder of a hundred thousand files is opened, looked up and read a hundred thousand times an epoch. In shards the same
//! bytes lie one behind the other: `WebDataset` tar, which other programs read too, or shards of ours, which say what every
//! entry must hash to, keep all that the source knew, and open without being walked through. Media stay the bytes they were.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::{
    decode::sound_ending,
    error::{Error, Fault, Result},
    read::read_all,
    sample::{Sample, Span, Value, field},
    source::{
        Source, is_audio,
        shard::{ENDING, Writer},
    },
};

/// What a dataset becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// `WebDataset` tar shards.
    Tar,
    /// Shards of ours.
    Shard,
}

impl Form {
    fn ending(self) -> &'static str {
        match self {
            Self::Tar => "tar",
            Self::Shard => ENDING,
        }
    }
}

/// What became of a dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Converted {
    /// Samples that were written.
    pub samples: u64,
    /// The shards, in order.
    pub files: Vec<PathBuf>,
    /// Bytes of the shards.
    pub bytes: u64,
    /// Samples that could not be read, and why.
    pub bad: Vec<(String, String)>,
}

/// Larger media than this are no small files.
const MOST_MEDIA_BYTES: u64 = 2 << 30;

/// The file beside tar shards that names the classes.
pub(crate) const CLASSES: &str = "classes.json";

/// The shards in a folder that an earlier conversion has made.
pub fn shards_in(folder: &Path) -> Vec<PathBuf> {
    named(folder, [".tar", ".feedwater"])
}

/// What a conversion has left in a folder that was ended before all of it was there.
pub(crate) fn unfinished(folder: &Path) -> Vec<PathBuf> {
    named(folder, [".tar.part", ".feedwater.part"])
}

fn named(folder: &Path, endings: [&str; 2]) -> Vec<PathBuf> {
    let ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("shard-") && endings.iter().any(|ending| name.ends_with(ending))
    };
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).filter(ours).collect()
}

/// Writes a dataset into shards of about `shard_bytes` in `folder`, which take the place of those that are there. `told` hears
/// of every sample; where it says no, that is an end. Shards have their names when all are whole; before that, there are files
/// that end in `.part`, and a folder with such is refused by whoever opens it.
pub fn convert(
    source: &dyn Source,
    folder: &Path,
    form: Form,
    shard_bytes: u64,
    mut told: impl FnMut(u64) -> bool,
) -> Result<Converted> {
    fs::create_dir_all(folder).map_err(|error| Error::write(folder, error))?;
    // Of a conversion that was ended.
    for part in unfinished(folder) {
        fs::remove_file(&part).map_err(|error| Error::write(&part, error))?;
    }
    let mut converted = Converted::default();
    let mut open: Option<Shard> = None;
    let mut whole_ones: Vec<Shard> = Vec::new();
    let mut names = HashSet::new();
    for index in 0..source.len() {
        let sample = source.sample(index).and_then(whole);
        let sample = match sample {
            Ok(sample) => sample,
            Err(fault) => {
                converted.bad.push((source.key(index), fault.to_string()));
                continue;
            }
        };
        if open.as_ref().is_some_and(|shard| shard.len() >= shard_bytes)
            && let Some(shard) = open.take()
        {
            converted.bytes += shard.written(&mut whole_ones)?;
        }
        let shard = match &mut open {
            Some(shard) => shard,
            none => {
                let path = folder.join(format!("shard-{:05}.{}", whole_ones.len(), form.ending()));
                none.insert(Shard::begin(path, form, source.classes())?)
            }
        };
        let added = match &mut shard.open {
            Some(Open::Tar(tar)) => add_to_tar(tar, &sample, &mut names),
            Some(Open::Ours(writer)) => writer.add(sample, source.seconds(index)),
            None => Ok(()),
        };
        added.map_err(|error| Error::write(&shard.path, error))?;
        converted.samples += 1;
        if !told(index + 1) {
            return Err(Error::Interrupted);
        }
    }
    if let Some(shard) = open.take() {
        converted.bytes += shard.written(&mut whole_ones)?;
    }
    // As long as there are parts nobody takes what is there for a dataset: old and new are never one.
    let replaced = if whole_ones.is_empty() { Vec::new() } else { shards_in(folder) };
    for old in replaced {
        fs::remove_file(&old).map_err(|error| Error::write(&old, error))?;
    }
    for shard in whole_ones {
        fs::rename(&shard.part, &shard.path).map_err(|error| Error::write(&shard.path, error))?;
        converted.files.push(shard.path.clone());
    }
    let path = folder.join(CLASSES);
    if form == Form::Tar && source.classes().is_empty() && path.exists() {
        // Of what was here before.
        fs::remove_file(&path).map_err(|error| Error::write(&path, error))?;
    } else if form == Form::Tar && !source.classes().is_empty() {
        let classes = serde_json::to_vec(source.classes()).unwrap_or_default();
        fs::write(&path, classes).map_err(|error| Error::write(&path, error))?;
    }
    Ok(converted)
}

/// A shard on its way. Where it is not given its name, nothing of it is left.
struct Shard {
    path: PathBuf,
    part: PathBuf,
    /// Nothing when it is whole.
    open: Option<Open>,
}

type Out = BufWriter<File>;

enum Open {
    Tar(tar::Builder<Counted>),
    Ours(Writer<Out>),
}

/// A file that knows how many bytes it has.
struct Counted(Out, u64);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.0.write(bytes)?;
        self.1 += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Shard {
    fn begin(path: PathBuf, form: Form, classes: &[String]) -> Result<Self> {
        let part = path.with_extension(format!("{}.part", form.ending()));
        let begin = || -> io::Result<Open> {
            let out = BufWriter::with_capacity(1 << 20, File::create(&part)?);
            Ok(match form {
                Form::Tar => Open::Tar(tar::Builder::new(Counted(out, 0))),
                Form::Shard => Open::Ours(Writer::new(out, classes)?),
            })
        };
        let open = Some(begin().map_err(|error| Error::write(&part, error))?);
        Ok(Self { path, part, open })
    }

    fn len(&self) -> u64 {
        match &self.open {
            Some(Open::Tar(tar)) => tar.get_ref().1,
            Some(Open::Ours(writer)) => writer.len(),
            None => 0,
        }
    }

    /// Writes the rest of it, and puts it to those that are whole. Returns its bytes.
    fn written(mut self, others: &mut Vec<Self>) -> Result<u64> {
        let bytes = self.finish().map_err(|error| Error::write(&self.part, error))?;
        others.push(self);
        Ok(bytes)
    }

    fn finish(&mut self) -> io::Result<u64> {
        let file = match self.open.take() {
            Some(Open::Tar(tar)) => tar.into_inner()?.0,
            Some(Open::Ours(writer)) => writer.finish()?,
            None => return Ok(0),
        };
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        Ok(file.metadata()?.len())
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        // A shard that is whole has another name by now.
        let _ = fs::remove_file(&self.part);
    }
}

/// A sample with the bytes of its media.
fn whole(mut sample: Sample) -> Result<Sample, Fault> {
    for value in sample.values_mut() {
        if let Value::Media(media) = value {
            if media.window.is_some() {
                return Err(Fault::new("it is a part of a recording, and files are kept as they are"));
            }
            let mut bytes = Vec::new();
            media.read(|input| read_all(input, &mut bytes, MOST_MEDIA_BYTES))?;
            *value = Value::Bytes(bytes);
        }
    }
    Ok(sample)
}

fn add_to_tar(
    tar: &mut tar::Builder<Counted>,
    sample: &Sample,
    names: &mut HashSet<String>,
) -> io::Result<()> {
    let name = tar_name(&sample.key, names);
    let mut member = |ending: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, format!("{name}.{ending}"), bytes)
    };
    // What has no member of its own goes into this one.
    let mut rest = serde_json::Map::new();
    for (field_name, value) in sample.fields() {
        match value {
            Value::Bytes(bytes) if field_name == field::FEATURES => member("npy", bytes)?,
            Value::Bytes(bytes) => member(sound_ending(bytes), bytes)?,
            // Readers take white space at the end for the end of the file.
            Value::Text(text) if field_name == field::TEXT && text.trim_end() == text => {
                member("txt", text.as_bytes())?;
            }
            Value::Text(text) => {
                rest.insert(field_name.to_owned(), text.as_str().into());
            }
            Value::Number(number) if field_name == field::LABELS => {
                member("cls", number.to_string().as_bytes())?;
            }
            Value::Number(number) => {
                rest.insert(field_name.to_owned(), (*number).into());
            }
            Value::Spans(spans) => {
                rest.insert("segments".to_owned(), spans.iter().map(segment).collect());
            }
            Value::Tokens(_) | Value::Audio(_) | Value::Tensor(_) | Value::Media(_) => {
                return Err(io::Error::other(format!(
                    "`{field_name}` of `{}` is {}, for which tar has no form; shards of ours have",
                    sample.key,
                    value.kind()
                )));
            }
        }
    }
    if !rest.is_empty() {
        member("json", serde_json::Value::Object(rest).to_string().as_bytes())?;
    }
    Ok(())
}

fn segment(span: &Span) -> serde_json::Value {
    serde_json::json!({"start": span.start_seconds, "end": span.end_seconds, "text": span.text})
}

/// A name up to whose first dot is all of it, and that no other sample has.
fn tar_name(key: &str, names: &mut HashSet<String>) -> String {
    let path = Path::new(key);
    let known = is_audio(path) || path.extension().is_some_and(|ending| ending == "npy");
    let plain = if known { path.with_extension("") } else { path.to_owned() };
    let plain = plain.to_string_lossy().replace('\\', "/");
    let parts = plain.split('/').filter(|part| !matches!(*part, "" | "." | ".."));
    // Nor does a drive have a place in an archive.
    let plain = parts.map(|part| part.replace(['.', ':'], "_")).collect::<Vec<_>>().join("/");
    let plain = if plain.is_empty() { "sample".to_owned() } else { plain };
    let mut name = plain.clone();
    for number in 2_u64.. {
        if names.insert(name.clone()) {
            break;
        }
        name = format!("{plain}~{number}");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_an_archive_leads_nowhere_else() {
        let mut names = HashSet::new();
        let mut name = |key: &str| tar_name(key, &mut names);
        assert_eq!(name("C:\\data\\one.wav"), "C_/data/one");
        assert_eq!(name("/etc/../one.two.npy"), "etc/one_two");
        assert_eq!(name("../.."), "sample");
        assert_eq!(name("./"), "sample~2");
    }
}
