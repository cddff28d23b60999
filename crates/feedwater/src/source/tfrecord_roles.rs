//! Which feature of a record is what? Its name decides, and what stands in it; once for all records, so that all samples of a
//! dataset have the same fields.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use super::{
    array,
    example::{Feature, Features, tensor},
    row::{LABEL_COLUMNS, TEXT_COLUMNS},
};
use crate::{
    error::{Error, Result},
    sample::{Media, MediaPlace, Sample, Value, field},
};

const SOUND: [&str; 8] =
    ["audio", "wav", "audio_bytes", "audio/encoded", "audio/bytes", "encoded_audio", "sound", "speech"];
/// The names that arrays of features go by, here and in HDF5; the first that is there counts.
pub(super) const ARRAYS: [&str; 14] = [
    "input_features",
    "features",
    "feature",
    "mel",
    "mels",
    "log_mel",
    "mel_spectrogram",
    "spectrogram",
    "fbank",
    "mfcc",
    "inputs",
    "data",
    "x",
    "X",
];
const TOKENS: [&str; 3] = ["input_ids", "tokens", "token_ids"];
const MORE_LABELS: [&str; 4] = ["labels", "label_id", "class_id", "y"];

/// What is made of which feature.
#[derive(Default)]
pub(super) struct Roles {
    /// What was seen: of a name, what it holds and how many values at least and at most.
    seen: BTreeMap<String, (&'static str, usize, usize)>,
    sound: Option<String>,
    text: Option<String>,
    array: Option<String>,
    shape: Option<Shape>,
    tokens: Option<String>,
    label: Option<(String, Label)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Number,
    Name,
    Tokens,
}

/// A feature that says how an array is laid out.
enum Shape {
    Lengths(String),
    Frames(String),
}

impl Roles {
    /// Takes note of a record.
    pub(super) fn look(&mut self, features: &Features) {
        for (name, feature) in features {
            if *feature == Feature::Nothing {
                continue;
            }
            let count = feature.len();
            let (_, least, most) =
                self.seen.entry((*name).to_owned()).or_insert((feature.kind(), count, count));
            (*least, *most) = ((*least).min(count), (*most).max(count));
        }
    }

    /// Decides, after some records were looked at.
    pub(super) fn choose(mut self, path: &Path) -> Result<Self> {
        let kind = |name: &str| self.seen.get(name).map(|(kind, ..)| *kind);
        let find = |names: &[&str], kinds: &[&str]| {
            let fits = |name: &&&str| kind(name).is_some_and(|kind| kinds.contains(&kind));
            names.iter().find(fits).map(|name| (*name).to_owned())
        };
        let sound = find(&SOUND, &["bytes"]);
        let text = find(&TEXT_COLUMNS, &["bytes"]);
        let tokens = find(&TOKENS, &["integers"]);
        // The only list of floats can be nothing else.
        let lists: Vec<&String> = self
            .seen
            .iter()
            .filter(|(_, (kind, _, most))| *kind == "floats" && *most > 1)
            .map(|(name, _)| name)
            .collect();
        let array = find(&ARRAYS, &["floats", "integers", "bytes"])
            .or_else(|| if let [only] = lists[..] { Some(only.clone()) } else { None });
        let shape = array.as_deref().and_then(|array| {
            let known = |names: &[String]| names.iter().find(|name| kind(name) == Some("integers")).cloned();
            known(&[format!("{array}_shape"), format!("{array}/shape"), "shape".to_owned()])
                .map(Shape::Lengths)
                .or_else(|| {
                    let frames = [
                        format!("{array}_frames"),
                        format!("{array}/frames"),
                        "frames".to_owned(),
                        "num_frames".to_owned(),
                    ];
                    known(&frames).map(Shape::Frames)
                })
        });
        let label = find(&[&LABEL_COLUMNS[..], &MORE_LABELS].concat(), &["integers", "floats", "bytes"]);
        let label = label.filter(|name| Some(name) != array.as_ref()).map(|name| {
            let is = match self.seen.get(&name) {
                Some(("bytes", ..)) => Label::Name,
                // A list in some records is a list in all, also where it has one element.
                Some(("integers", least, most)) if (*least, *most) != (1, 1) => Label::Tokens,
                _ => Label::Number,
            };
            (name, is)
        });
        if sound.is_none() && text.is_none() && array.is_none() && tokens.is_none() {
            let seen: Vec<String> =
                self.seen.iter().map(|(name, (kind, ..))| format!("{name} ({kind})")).collect();
            let seen = if seen.is_empty() { "nothing".to_owned() } else { seen.join(", ") };
            return Err(Error::config_hint(
                format!("`{}` has neither sound, text, arrays nor tokens, only {seen}", path.display()),
                "call encoded sound `audio` (bytes), a transcript `text` (bytes), an array `features` (floats), token ids \
                 `input_ids` (integers)",
            ));
        }
        (self.sound, self.text, self.tokens, self.array, self.shape, self.label) =
            (sound, text, tokens, array, shape, label);
        Ok(self)
    }

    pub(super) fn labels_are_names(&self) -> bool {
        matches!(self.label, Some((_, Label::Name)))
    }

    /// The name of a record's class.
    pub(super) fn label_name<'a>(&self, features: &Features<'a>) -> Option<&'a str> {
        match features.get(self.label.as_ref()?.0.as_str())? {
            Feature::Bytes(values) => str::from_utf8(values.first()?).ok(),
            _ => None,
        }
    }

    /// Puts what a record holds into a sample. The error is the reason.
    pub(super) fn fill(
        &self,
        features: &Features,
        classes: &[String],
        path: &Arc<Path>,
        sample: &mut Sample,
    ) -> Result<(), String> {
        let get = |name: &str| match features.get(name) {
            None | Some(Feature::Nothing) => Err(format!("`{name}` is missing")),
            Some(feature) => Ok(feature),
        };
        let media = |bytes| Media { path: Arc::clone(path), place: MediaPlace::Bytes(bytes), window: None };
        if let Some(name) = &self.sound {
            sample.set(field::AUDIO, media(one_bytes(name, get(name)?)?.to_vec()));
        }
        if let Some(name) = &self.text {
            let text = str::from_utf8(one_bytes(name, get(name)?)?);
            sample.set(field::TEXT, text.map_err(|_| format!("`{name}` is not UTF-8"))?.to_owned());
        }
        if let Some(name) = &self.array {
            sample.set(field::FEATURES, media(self.array(name, get(name)?, &get)?));
        }
        if let Some(name) = &self.tokens {
            sample.set(field::INPUT_IDS, ids(name, get(name)?)?);
        }
        match &self.label {
            Some((name, Label::Tokens)) => sample.set(field::LABELS, ids(name, get(name)?)?),
            Some((name, Label::Number)) => {
                sample.set(field::LABELS, Value::Number(number(name, get(name)?)?));
            }
            Some((name, Label::Name)) => {
                let class = str::from_utf8(one_bytes(name, get(name)?)?).ok();
                let class =
                    class.and_then(|class| classes.binary_search_by(|known| known.as_str().cmp(class)).ok());
                let class = class.ok_or_else(|| format!("`{name}` is not UTF-8"))?;
                sample.set(field::LABELS, Value::Number(class as f64));
            }
            None => {}
        }
        Ok(())
    }

    /// An array in the form of a `.npy` file.
    fn array<'a, 'f: 'a>(
        &self,
        name: &str,
        feature: &Feature,
        get: &impl Fn(&str) -> Result<&'a Feature<'f>, String>,
    ) -> Result<Vec<u8>, String> {
        let count = feature.len();
        let shape = match (&self.shape, feature) {
            (_, Feature::Floats { frames: Some(frames), .. }) => vec![*frames, count / (*frames).max(1)],
            (Some(Shape::Lengths(name)), Feature::Floats { .. } | Feature::Ints(_)) => {
                let Feature::Ints(lengths) = get(name)? else {
                    return Err(format!("`{name}` does not hold integers"));
                };
                let shape: Option<Vec<usize>> =
                    lengths.iter().map(|length| usize::try_from(*length).ok()).collect();
                shape.ok_or_else(|| format!("`{name}` is {lengths:?}, which is no shape"))?
            }
            (Some(Shape::Frames(name)), Feature::Floats { .. } | Feature::Ints(_)) => {
                let frames = number(name, get(name)?)? as usize;
                vec![frames, count / frames.max(1)]
            }
            _ => vec![count],
        };
        if !matches!(feature, Feature::Bytes(_)) && array::count(&shape) != Some(count) {
            return Err(format!("`{name}` has {count} numbers, its shape is {shape:?}"));
        }
        match feature {
            Feature::Floats { numbers, .. } => Ok(array::npy_form("<f4", &shape, numbers)),
            Feature::Ints(numbers) => {
                let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
                Ok(array::npy_form("<i8", &shape, &bytes))
            }
            Feature::Bytes(_) => {
                let bytes = one_bytes(name, feature)?;
                if bytes.starts_with(b"\x93NUMPY") {
                    return Ok(bytes.to_vec());
                }
                tensor(bytes).ok_or_else(|| {
                    format!("`{name}` is neither a `.npy` file nor a tensor by `tf.io.serialize_tensor`")
                })
            }
            Feature::Nothing => Err(format!("`{name}` is missing")),
        }
    }
}

fn one_bytes<'a>(name: &str, feature: &'a Feature) -> Result<&'a [u8], String> {
    match feature {
        Feature::Bytes(values) => match values[..] {
            [only] => Ok(only),
            _ => Err(format!("`{name}` has {} values where one is wanted", values.len())),
        },
        other => Err(format!("`{name}` holds {}, not bytes", other.kind())),
    }
}

fn number(name: &str, feature: &Feature) -> Result<f64, String> {
    match feature {
        Feature::Ints(values) if values.len() == 1 => Ok(values[0] as f64),
        Feature::Floats { numbers, .. } => match numbers.as_chunks::<4>() {
            ([only], []) => Ok(f64::from(f32::from_le_bytes(*only))),
            _ => Err(format!("`{name}` has {} values where one is wanted", feature.len())),
        },
        other => Err(format!("`{name}` has {} {} where one number is wanted", other.len(), other.kind())),
    }
}

fn ids(name: &str, feature: &Feature) -> Result<Vec<u32>, String> {
    let Feature::Ints(values) = feature else {
        return Err(format!("`{name}` holds {}, not integers", feature.kind()));
    };
    let id = |value: &i64| u32::try_from(*value).map_err(|_| format!("{value} in `{name}` is no token id"));
    values.iter().map(id).collect()
}
