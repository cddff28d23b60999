//! Do the samples have what the stages want? Looked up before anything runs: a pipeline for sound on a folder of arrays is a
//! wrong setting, not a hundred bad samples.

use crate::{
    error::{Error, Result},
    sample::{Sample, Value, field},
    source::Source,
};

/// Samples that are looked at. Any one may be damaged, or lack what all others have.
const LOOKED_AT: usize = 16;
/// Where so many cannot be read, it is not for a wrong setting.
const MOST_TRIED: u64 = 64;

/// What a stage wants of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// `.decode(Audio::…)`
    Sound,
    /// `.decode(Npy)`
    Array,
    /// `.log_mel(…)`
    SoundForLogMel,
    /// `.tokenize(…)`
    Text,
}

impl Need {
    fn is_met(self, sample: &Sample) -> bool {
        match self {
            Self::Sound | Self::SoundForLogMel => sample.get(field::AUDIO).is_some(),
            Self::Array => sample.get(field::FEATURES).is_some(),
            Self::Text => sample.text().is_some(),
        }
    }

    fn is_wanted_by(self) -> &'static str {
        match self {
            Self::Sound => "`.decode(Audio::…)` wants sound (`audio`)",
            Self::Array => "`.decode(Npy)` wants arrays (`input_features`)",
            Self::SoundForLogMel => "`.log_mel(…)` wants sound (`audio`)",
            Self::Text => "`.tokenize(…)` wants text (`text`)",
        }
    }
}

/// Refuses a pipeline whose needs none of the first samples meets, and one in which media would arrive as they are.
/// `leftovers`: whether something else may become of those.
pub(crate) fn check(source: &dyn Source, needs: &[Need], leftovers: bool) -> Result<()> {
    let tried = 0..source.len().min(MOST_TRIED);
    let samples: Vec<Sample> = tried.filter_map(|index| source.sample(index).ok()).take(LOOKED_AT).collect();
    let Some(first) = samples.first() else { return Ok(()) };
    if let Some(need) = needs.iter().find(|need| !samples.iter().any(|sample| need.is_met(sample))) {
        return Err(unmet(*need, first));
    }
    let decoded = |name: &str| match name {
        field::AUDIO => needs.contains(&Need::Sound),
        field::FEATURES => needs.contains(&Need::Array),
        _ => false,
    };
    let left = |sample: &Sample| {
        let raw = |(name, value): (&str, &Value)| {
            matches!(value, Value::Media(_)).then(|| name.to_owned()).filter(|name| !decoded(name))
        };
        sample.fields().find_map(raw)
    };
    if !leftovers
        && let Some(name) = left(first)
        && samples.iter().all(|sample| left(sample).is_some())
    {
        let decode = if name == field::FEATURES { "Npy" } else { "Audio::mono(16_000)" };
        return Err(Error::config_hint(
            format!("nothing decodes the `{name}` of the samples"),
            format!("add `.decode({decode})` behind `Pipeline::open(…)`"),
        ));
    }
    Ok(())
}

fn unmet(need: Need, first: &Sample) -> Error {
    let mut has: Vec<String> = first.fields().map(|(name, _)| format!("`{name}`")).collect();
    has.sort_unstable();
    let has = if has.is_empty() { "nothing".to_owned() } else { has.join(" and ") };
    let hint = match need {
        Need::Text => "put a `text` into the metadata of each sample, or leave out `.tokenize(…)`".to_owned(),
        _ if first.get(field::FEATURES).is_some() => {
            "these are arrays: `.decode(Npy)`, without `.log_mel(…)`".to_owned()
        }
        _ if first.get(field::AUDIO).is_some() => {
            "these are sound: `.decode(Audio::mono(16_000))`".to_owned()
        }
        _ => "these are neither sound nor arrays: leave out `.decode(…)` and `.log_mel(…)`".to_owned(),
    };
    Error::config_hint(
        format!("{}, and no sample has it: the first, `{}`, has {has}", need.is_wanted_by(), first.key),
        hint,
    )
}
