//! Long clips into windows: a model that hears 30 s at a time is to hear all of a clip.
//!
//! How many windows a clip has must be known before its turn comes, so this is a source around a source: it looks once
//! at how long each clip is, in the metadata or in the file's header, and keeps 4 bytes a clip. A window's text is what
//! the words or segments in the metadata say was spoken in it; without such times nobody can know, and guessing would
//! teach a model wrong transcripts, so that is refused unless one says what is wanted instead.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use xxhash_rust::xxh3::xxh3_128;

use crate::{
    decode::{self, Window},
    error::{Error, Fault, Result},
    pipeline::{Context, Stage},
    sample::{Media, Sample, Value, field},
    source::{Kind, Source},
};

/// How long clips are cut.
#[derive(Debug, Clone, PartialEq)]
pub struct Chunk {
    seconds: f64,
    overlap_seconds: f64,
    without_times: WithoutTimes,
}

/// What becomes of a long clip whose text has no times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithoutTimes {
    /// An error when the pipeline is built.
    Refuse,
    /// The clip is left out.
    Drop,
    /// Only its first window is used, with the whole text.
    Truncate,
    /// All windows are used, without text.
    NoText,
}

impl Chunk {
    /// Windows of 30 s, one after the other.
    pub fn new() -> Self {
        Self::seconds(30.0)
    }

    /// Windows of this length.
    pub fn seconds(seconds: f64) -> Self {
        Self { seconds, overlap_seconds: 0.0, without_times: WithoutTimes::Refuse }
    }

    /// Each window begins this long before the one before it ends.
    pub fn overlap(mut self, seconds: f64) -> Self {
        self.overlap_seconds = seconds;
        self
    }

    /// What becomes of a long clip whose text has no times.
    pub fn without_times(mut self, choice: WithoutTimes) -> Self {
        self.without_times = choice;
        self
    }

    fn windows(&self, seconds: f64) -> u64 {
        let step = self.seconds - self.overlap_seconds;
        // A last window of less than a hundredth of a second is rounding, not sound.
        1 + ((seconds - self.seconds - 0.01).max(0.0) / step).ceil() as u64
    }
}

impl Default for Chunk {
    fn default() -> Self {
        Self::new()
    }
}

/// Refuses clips that are longer than so many seconds.
pub(crate) struct Longest(pub(crate) f64);

impl Stage for Longest {
    fn name(&self) -> &'static str {
        "length"
    }

    fn describe(&self) -> String {
        format!("length {}", self.0)
    }

    fn version(&self) -> Option<u32> {
        Some(1)
    }

    fn leaves_out(&self) -> bool {
        true
    }

    fn apply(&self, sample: &mut Sample, _: &mut Context) -> Result<(), Fault> {
        match sample.get(field::AUDIO) {
            Some(Value::Audio(clip)) if clip.samples.len() as f64 > self.0 * f64::from(clip.rate) + 1.0 => {
                let long = clip.samples.len() as f64 / f64::from(clip.rate);
                Err(Fault::new(format!("the clip has {long:.1} s, and the model hears {} s", self.0)))
            }
            _ => Ok(()),
        }
    }
}

/// A source whose long clips are several samples.
pub(crate) struct Chunks {
    source: Arc<dyn Source>,
    chunk: Chunk,
    /// How many samples stand before each clip, and at the end how many there are.
    before: Vec<u32>,
    /// Block starts in samples.
    blocks: Option<Vec<u64>>,
}

impl Chunks {
    pub(crate) fn new(source: Arc<dyn Source>, chunk: Chunk) -> Result<Self> {
        if !(chunk.seconds > 0.1 && chunk.overlap_seconds >= 0.0 && chunk.overlap_seconds < chunk.seconds) {
            return Err(Error::config_hint(
                format!("windows of {} s that overlap by {} s", chunk.seconds, chunk.overlap_seconds),
                "the overlap is shorter than the window: `Chunk::seconds(30.0).overlap(2.0)`",
            ));
        }
        let counts = count_all(&*source, &chunk)?;
        let mut before = Vec::with_capacity(counts.len() + 1);
        let mut total = 0_u32;
        for count in counts {
            before.push(total);
            total = total.checked_add(count).ok_or_else(|| Error::config("more than 4 billion windows"))?;
        }
        before.push(total);
        let blocks =
            source.blocks().map(|starts| starts.iter().map(|at| u64::from(before[*at as usize])).collect());
        Ok(Self { source, chunk, before, blocks })
    }

    /// The clip and the window of a sample.
    fn place(&self, index: u64) -> (u64, u64, bool) {
        let index = index as u32;
        let clip = self.before.partition_point(|before| *before <= index) - 1;
        let windows = self.before[clip + 1] - self.before[clip];
        (clip as u64, u64::from(index - self.before[clip]), windows > 1)
    }

    fn window(&self, number: u64) -> Window {
        let start_seconds = number as f64 * (self.chunk.seconds - self.chunk.overlap_seconds);
        Window { start_seconds, length_seconds: self.chunk.seconds }
    }
}

/// How many windows each clip has. Headers are read by several threads: opening files is mostly waiting.
fn count_all(source: &dyn Source, chunk: &Chunk) -> Result<Vec<u32>> {
    const RUN: u64 = 256;
    let length = source.len();
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism()
        .map_or(1, std::num::NonZero::get)
        .min(length.div_ceil(RUN) as usize);
    let worker = || {
        let mut found: Vec<(u64, Result<u32>)> = Vec::new();
        loop {
            let from = next.fetch_add(RUN, Ordering::Relaxed);
            if from >= length {
                return found;
            }
            found.extend((from..length.min(from + RUN)).map(|index| (index, count(source, chunk, index))));
        }
    };
    let mut counts = vec![0; length as usize];
    let mut refused: Option<(u64, Error)> = None;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            for (index, count) in worker.join().unwrap_or_default() {
                match count {
                    Ok(count) => counts[index as usize] = count,
                    // The first in the dataset's order, whoever found it.
                    Err(error) if refused.as_ref().is_none_or(|(first, _)| index < *first) => {
                        refused = Some((index, error));
                    }
                    Err(_) => {}
                }
            }
        }
    });
    refused.map_or(Ok(counts), |(_, error)| Err(error))
}

fn count(source: &dyn Source, chunk: &Chunk, index: u64) -> Result<u32> {
    // One that cannot be looked at stays one sample, and is found to be bad when its turn comes.
    let Ok(sample) = source.sample(index) else { return Ok(1) };
    let Some(Value::Media(media)) = sample.get(field::AUDIO) else { return Ok(1) };
    let Ok(seconds) = clip_seconds(source, index, media) else { return Ok(1) };
    let windows = chunk.windows(seconds);
    let timed = sample.get(field::SPANS).is_some() || sample.text().is_none_or(str::is_empty);
    if windows == 1 || timed {
        return Ok(windows.min(u64::from(u32::MAX)) as u32);
    }
    match chunk.without_times {
        WithoutTimes::Drop => Ok(0),
        WithoutTimes::Truncate => Ok(1),
        WithoutTimes::NoText => Ok(windows as u32),
        WithoutTimes::Refuse => Err(Error::config_hint(
            format!(
                "`{}` is {seconds:.1} s long and has to be cut, but nothing says which of its words fall where",
                sample.key
            ),
            "put `words` or `segments` with start and end into the metadata, or choose: \
             `.without_times(WithoutTimes::Drop)` leaves such clips out, `Truncate` keeps their first window, \
             `NoText` keeps all windows without text",
        )),
    }
}

/// How long a clip is: as the metadata say, or else as its file says.
pub(crate) fn clip_seconds(source: &dyn Source, index: u64, media: &Media) -> Result<f64, Fault> {
    if let Some(window) = media.window {
        return Ok(window.length_seconds);
    }
    if let Some(seconds) = source.seconds(index) {
        return Ok(seconds);
    }
    let info = media.read(decode::count_frames)?;
    info.seconds().ok_or_else(|| Fault::new("the file does not say how long it is").in_file(&*media.path))
}

impl Source for Chunks {
    fn kind(&self) -> Kind {
        self.source.kind()
    }

    fn len(&self) -> u64 {
        u64::from(self.before.last().copied().unwrap_or(0))
    }

    fn fingerprint(&self) -> u128 {
        let mut bytes = format!("{:?} {:032x}", self.chunk, self.source.fingerprint()).into_bytes();
        bytes.extend_from_slice(bytemuck::cast_slice(&self.before));
        xxh3_128(&bytes)
    }

    fn key(&self, index: u64) -> String {
        let (clip, number, cut) = self.place(index);
        let key = self.source.key(clip);
        if cut { format!("{key}@{:.2}", self.window(number).start_seconds) } else { key }
    }

    fn sample(&self, index: u64) -> Result<Sample, Fault> {
        let (clip, number, cut) = self.place(index);
        let mut sample = self.source.sample(clip)?;
        let window = self.window(number);
        let truncated = self.chunk.without_times == WithoutTimes::Truncate;
        if !cut && !truncated {
            return Ok(sample);
        }
        if let Some(Value::Media(media)) = sample.get_mut(field::AUDIO) {
            // A clip that is itself a stretch of a file is cut within that stretch.
            let base = media.window;
            let start_seconds = base.map_or(0.0, |base| base.start_seconds) + window.start_seconds;
            let rest = base.map_or(f64::INFINITY, |base| base.length_seconds - window.start_seconds);
            media.window = Some(Window { start_seconds, length_seconds: window.length_seconds.min(rest) });
        }
        if !cut {
            return Ok(sample);
        }
        sample.key = self.key(index);
        let text = match sample.take(field::SPANS) {
            Some(Value::Spans(spans)) => Some(text_within(&spans, window)),
            _ => sample.text().map(|_| String::new()),
        };
        if let Some(text) = text {
            sample.set(field::TEXT, text);
        }
        Ok(sample)
    }

    fn seconds(&self, index: u64) -> Option<f64> {
        let (clip, number, cut) = self.place(index);
        let seconds = self.source.seconds(clip)?;
        Some(if cut {
            (seconds - self.window(number).start_seconds).clamp(0.0, self.chunk.seconds)
        } else {
            seconds
        })
    }

    fn classes(&self) -> &[String] {
        self.source.classes()
    }

    fn blocks(&self) -> Option<&[u64]> {
        self.blocks.as_deref()
    }
}

/// What is said in a window: the words whose middle falls into it. A word on the edge is in one window, not in two.
fn text_within(spans: &[crate::sample::Span], window: Window) -> String {
    let end = window.start_seconds + window.length_seconds;
    let inside = |span: &&crate::sample::Span| {
        let middle = f64::midpoint(span.start_seconds, span.end_seconds);
        middle >= window.start_seconds && middle < end
    };
    let words: Vec<&str> = spans.iter().filter(inside).map(|span| span.text.trim()).collect();
    words.join(" ")
}
