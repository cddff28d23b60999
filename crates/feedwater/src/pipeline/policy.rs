//! What becomes of a bad sample? It never kills a run, and it never vanishes.

use std::{
    collections::HashSet,
    fs::{self, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Fault, Place, Result};

/// A list of earlier runs that has more bytes than this is not looked through.
const MOST_LISTED: u64 = 64 << 20;

/// What to do about samples that cannot be used.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    pub(crate) skip: bool,
    pub(crate) ceiling: f64,
    pub(crate) quarantine: PathBuf,
}

impl Policy {
    /// Leave a hole, count it, write it down; stop when more than 1 % of an epoch's samples are bad.
    ///
    /// The ceiling is rounded up to whole samples: one bad sample of a small set does not end a run, the second of a
    /// hundred does. An epoch in which every sample is bad is an error whatever the ceiling.
    pub fn skip() -> Self {
        Self::skip_up_to(0.01)
    }

    /// The same with another ceiling, as a share of an epoch's samples. 0 allows none.
    pub fn skip_up_to(ceiling: f64) -> Self {
        Self { skip: true, ceiling, quarantine: PathBuf::from("quarantine.jsonl") }
    }

    /// Stop at the first.
    pub fn fail() -> Self {
        Self { skip: false, ..Self::skip() }
    }

    /// Where bad samples are written down. Default: `quarantine.jsonl` in the current folder, made when there is
    /// something to write.
    pub fn quarantine(mut self, file: impl Into<PathBuf>) -> Self {
        self.quarantine = file.into();
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        if (0.0..=1.0).contains(&self.ceiling) {
            return Ok(());
        }
        Err(Error::config_hint(
            format!("a ceiling of {} for bad samples", self.ceiling),
            "it is a share: `Policy::skip_up_to(0.05)` allows 5 %",
        ))
    }
}

/// A sample that could not be used.
#[derive(Debug, Clone)]
pub struct BadSample {
    /// Its key.
    pub key: String,
    /// The stage that refused it.
    pub stage: &'static str,
    /// Where and why.
    pub fault: Fault,
    /// It is as it should be, and such were to be left out: it does not count as bad.
    pub left_out: bool,
}

/// Counts and writes down what was bad, in the order in which batches are taken, so that it does not depend on threads.
pub(crate) struct Quarantine {
    policy: Policy,
    /// `quarantine.jsonl`, or one for each rank.
    file: PathBuf,
    /// The keys of this run's bad samples.
    seen: HashSet<String>,
    /// What the file had before.
    listed: Option<HashSet<Listed>>,
    /// Different ones that count as bad.
    pub(crate) bad: u64,
    /// The first of this epoch.
    first: Option<BadSample>,
    /// Samples of this epoch that were good, or that came before this run went on with it.
    good: u64,
    /// Samples of this epoch that were not, whether they count as bad or were to be left out.
    others: u64,
}

/// What is written down of a bad sample: a line of `quarantine.jsonl`.
#[derive(Serialize)]
struct Note<'a> {
    key: &'a str,
    epoch: u64,
    step: u64,
    stage: &'a str,
    file: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    byte: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    member: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    row: Option<u64>,
    reason: &'a str,
}

/// What a line says that is the same in every run.
#[derive(PartialEq, Eq, Hash, Deserialize)]
struct Listed {
    key: String,
    file: Option<PathBuf>,
    reason: String,
}

impl Quarantine {
    pub(crate) fn new(policy: Policy, rank: usize, world: usize) -> Self {
        let file = if world > 1 {
            let stem = policy.quarantine.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            policy.quarantine.with_file_name(format!("{stem}.rank{rank}.jsonl"))
        } else {
            policy.quarantine.clone()
        };
        Self { policy, file, seen: HashSet::new(), listed: None, bad: 0, first: None, good: 0, others: 0 }
    }

    /// An epoch begins. `entered`: in its midst, so that it is not known what came before.
    pub(crate) fn begin_epoch(&mut self, entered: bool) {
        (self.first, self.good, self.others) = (None, u64::from(entered), 0);
    }

    /// Takes note of good samples.
    pub(crate) fn note_good(&mut self, samples: u64) {
        self.good += samples;
    }

    /// Refuses an epoch in which nothing was good.
    pub(crate) fn end_epoch(&self) -> Result<()> {
        match &self.first {
            Some(BadSample { key, stage, fault, .. }) if self.good == 0 => Err(Error::AllBad {
                bad: self.others,
                key: key.clone(),
                stage,
                fault: Box::new(fault.clone()),
            }),
            _ => Ok(()),
        }
    }

    /// Takes note of a bad sample, the `bad`-th of this epoch of `epoch_samples`.
    pub(crate) fn note(
        &mut self,
        sample: &BadSample,
        at: (u64, u64),
        bad: u64,
        epoch_samples: u64,
    ) -> Result<()> {
        let BadSample { key, stage, fault, left_out } = sample.clone();
        self.others += 1;
        if !self.policy.skip && !left_out {
            return Err(Error::Sample { key, stage, fault });
        }
        // Each once, however many epochs and runs it comes up in.
        if self.seen.insert(key.clone()) {
            self.bad += u64::from(!left_out);
            if !self.is_listed(&key, &fault) {
                self.write(sample, at).map_err(|error| Error::write(&self.file, error))?;
            }
        }
        self.first.get_or_insert_with(|| sample.clone());
        if self.others >= epoch_samples {
            // Before a batch without a row is handed out.
            self.end_epoch()?;
        }
        if left_out {
            return Ok(());
        }
        let allowed = (self.policy.ceiling * epoch_samples as f64).ceil() as u64;
        if bad > allowed {
            return Err(Error::TooManyBad {
                bad,
                epoch_samples,
                allowed,
                key,
                stage,
                fault: Box::new(fault),
                list: self.file.clone(),
            });
        }
        Ok(())
    }

    /// Whether an earlier run has written it down. A file that cannot be read says nothing.
    fn is_listed(&mut self, key: &str, fault: &Fault) -> bool {
        let listed = self.listed.get_or_insert_with(|| {
            let small = fs::metadata(&self.file).is_ok_and(|file| file.is_file() && file.len() < MOST_LISTED);
            let text = small.then(|| fs::read(&self.file).ok()).flatten().unwrap_or_default();
            text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
        });
        let (key, reason) = (key.to_owned(), fault.reason.clone());
        listed.contains(&Listed { key, file: fault.path.as_deref().map(Path::to_owned), reason })
    }

    fn write(&self, sample: &BadSample, (epoch, step): (u64, u64)) -> std::io::Result<()> {
        let BadSample { key, stage, fault, .. } = sample;
        let mut line = Note {
            key,
            epoch,
            step,
            stage,
            file: fault.path.as_deref(),
            byte: None,
            line: None,
            member: None,
            row: None,
            reason: &fault.reason,
        };
        match &fault.place {
            Place::Whole => {}
            Place::Byte(byte) => line.byte = Some(*byte),
            Place::Line(number) => line.line = Some(*number),
            Place::Member(member) => line.member = Some(member),
            Place::Row(row) => line.row = Some(*row),
        }
        let mut text = serde_json::to_string(&line)?;
        text.push('\n');
        // Opened for each line: bad samples are few, and the file may be moved away while the run goes on.
        OpenOptions::new().create(true).append(true).open(&self.file)?.write_all(text.as_bytes())
    }
}
