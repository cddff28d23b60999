//! What does a text cost, when nobody says which frame belongs to which letter?
//!
//! Connectionist temporal classification: the probability of a text is the sum over all ways to spread it over the frames,
//! with blanks between. Class 0 is the blank. As PyTorch's `ctc_loss` with its mean and with `zero_infinity`: a row's loss is
//! divided by the length of its text, rows are averaged, and a row with too few frames for its text counts nothing.

use burn_tensor::Tensor;
use rayon::prelude::*;

use super::{Numbers, Operation, is_here, loss::scale, plain, run};

/// The loss of logits `[rows, frames, classes]`, given how many frames each row has and its text as classes.
pub fn ctc_loss(logits: Tensor<3>, lengths: &[usize], texts: &[Vec<u32>]) -> Tensor<1> {
    let [_, frames, classes] = logits.dims();
    let operation = Ctc { frames, classes, lengths: lengths.to_vec(), texts: texts.to_vec() };
    if !is_here(&logits) {
        // A small part of the work, and one that no device but a CPU is good at.
        let (loss, gradient) = operation.computed(&crate::weights::on_host(logits.clone().inner()));
        return plain::given(logits.reshape([-1]), loss, gradient);
    }
    run(operation, [logits.reshape([-1])])
}

/// The likeliest class of each frame of logits `[rows, frames, classes]`, repeats and blanks left out.
pub fn ctc_greedy(logits: Tensor<3>, lengths: &[usize]) -> Vec<Vec<u32>> {
    let [_, frames, classes] = logits.dims();
    let values = crate::weights::on_host(logits.inner());
    let row = |(row, length): (&[f32], &usize)| {
        let mut text = Vec::new();
        let mut last = 0;
        for frame in row.chunks_exact(classes).take(*length) {
            let best = (0..classes).max_by(|a, b| frame[*a].total_cmp(&frame[*b])).unwrap_or(0) as u32;
            if best != last && best != 0 {
                text.push(best);
            }
            last = best;
        }
        text
    };
    values.chunks_exact((frames * classes).max(1)).zip(lengths).map(row).collect()
}

#[derive(Debug)]
struct Ctc {
    frames: usize,
    classes: usize,
    lengths: Vec<usize>,
    texts: Vec<Vec<u32>>,
}

impl Operation<1> for Ctc {
    /// The gradient: it falls out on the way.
    type Kept = Vec<f32>;

    fn forward(&self, [logits]: [Numbers; 1]) -> (Vec<f32>, Vec<f32>) {
        let (loss, gradient) = self.computed(&logits);
        (vec![loss], gradient)
    }

    fn backward(self, mut kept: Vec<f32>, gradient: Numbers, _: [bool; 1]) -> [Vec<f32>; 1] {
        scale(&mut kept, gradient[0]);
        [kept]
    }
}

impl Ctc {
    /// The loss and its gradient.
    fn computed(&self, logits: &[f32]) -> (f32, Vec<f32>) {
        let rows = self.lengths.len();
        let mut gradient = vec![0.0; logits.len()];
        let size = (self.frames * self.classes).max(1);
        let each = logits.par_chunks_exact(size).zip(gradient.par_chunks_exact_mut(size));
        let each = each.zip(self.lengths.par_iter().zip(&self.texts));
        let loss: Vec<f64> = each
            .map(|((logits, gradient), (length, text))| {
                let scale = 1.0 / (rows * text.len().max(1)) as f64;
                let used = length * self.classes;
                row(&logits[..used], &mut gradient[..used], self.classes, text, scale)
            })
            .collect();
        // In the order of the rows, so that it is the same on any number of threads.
        (loss.iter().sum::<f64>() as f32, gradient)
    }
}

/// One row's loss, and its gradient.
fn row(logits: &[f32], gradient: &mut [f32], classes: usize, text: &[u32], scale: f64) -> f64 {
    quickly(logits, gradient, classes, text, scale)
        .unwrap_or_else(|| slowly(logits, gradient, classes, text, scale))
}

/// With probabilities that are made to sum to 1 in each frame. Nothing, where one is too small to be told from 0.
fn quickly(logits: &[f32], gradient: &mut [f32], classes: usize, text: &[u32], scale: f64) -> Option<f64> {
    let frames = logits.len() / classes;
    let end = frames.checked_sub(1)?;
    // The text with blanks around each letter; in front, two states that nothing is ever in.
    let states = 2 * text.len() + 1;
    let class: Vec<usize> =
        (0..states).map(|state| if state.is_multiple_of(2) { 0 } else { text[state / 2] as usize }).collect();
    // From the state two before: not over a blank that keeps two equal letters apart.
    let jumps: Vec<f64> = (0..states)
        .map(|state| f64::from(state >= 2 && state % 2 == 1 && class[state] != class[state - 2]))
        .collect();
    let shares: Vec<f64> = logits
        .chunks_exact(classes)
        .flat_map(|frame| {
            let most = frame.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let shares: Vec<f64> = frame.iter().map(|value| f64::from(value - most).exp()).collect();
            let sum: f64 = shares.iter().sum();
            shares.into_iter().map(move |share| share / sum)
        })
        .collect();

    let wide = states + 2;
    let mut there = vec![0.0; frames * wide];
    let mut sums = vec![0.0; frames];
    for frame in 0..frames {
        let (before, here) = there.split_at_mut(frame * wide);
        let (here, shares) = (&mut here[2..wide], &shares[frame * classes..][..classes]);
        if let Some(before) = before.len().checked_sub(wide).map(|at| &before[at..]) {
            for state in 0..states {
                let came = before[state + 2] + before[state + 1] + jumps[state] * before[state];
                here[state] = came * shares[class[state]];
            }
        } else {
            for state in 0..states.min(2) {
                here[state] = shares[class[state]];
            }
        }
        let sum: f64 = here.iter().sum();
        if sum < f64::MIN_POSITIVE {
            return None;
        }
        sums[frame] = sum;
        for value in here.iter_mut() {
            *value /= sum;
        }
    }
    let last = &there[end * wide..];
    let whole = last[states + 1] + if states > 1 { last[states] } else { 0.0 };
    if whole < 1e-200 {
        return None;
    }

    // On the way back, each state has what can still become of it; behind the last, two that nothing is ever in.
    let (mut after, mut here) = (vec![0.0; wide], vec![0.0; wide]);
    for frame in (0..frames).rev() {
        if frame == end {
            here[states.saturating_sub(2)..states].fill(1.0);
        } else {
            let next = &shares[(frame + 1) * classes..][..classes];
            for state in 0..states {
                after[state] = here[state] * next[class[state]] / sums[frame + 1];
            }
            for state in 0..states {
                let jump = if state + 2 < states { jumps[state + 2] * after[state + 2] } else { 0.0 };
                here[state] = after[state] + after[state + 1] + jump;
            }
        }
        let there = &there[frame * wide + 2..][..states];
        let mut of: Vec<f64> = shares[frame * classes..][..classes].to_vec();
        for state in 0..states {
            of[class[state]] -= there[state] * here[state] / whole;
        }
        for (to, of) in gradient[frame * classes..].iter_mut().zip(of) {
            *to = (of * scale) as f32;
        }
    }
    let log = sums.iter().map(|sum| sum.ln()).sum::<f64>() + whole.ln();
    Some(-log * scale)
}

/// With logarithms, which nothing is too small for.
fn slowly(logits: &[f32], gradient: &mut [f32], classes: usize, text: &[u32], scale: f64) -> f64 {
    const NEVER: f64 = f64::NEG_INFINITY;
    let frames = logits.len() / classes;
    // The text with blanks around each letter.
    let states = 2 * text.len() + 1;
    let class = |state: usize| if state.is_multiple_of(2) { 0 } else { text[state / 2] as usize };
    // From the state two before: not over a blank that keeps two equal letters apart.
    let jumps = |state: usize| state >= 2 && state % 2 == 1 && class(state) != class(state - 2);

    let logs: Vec<f64> = logits.chunks_exact(classes).flat_map(log_softmax).collect();
    let log = |frame: usize, state: usize| logs[frame * classes + class(state)];

    let mut there = vec![NEVER; frames * states];
    let mut back = vec![NEVER; frames * states];
    for frame in 0..frames {
        for state in 0..states {
            let sum = if frame == 0 {
                if state < 2 { 0.0 } else { NEVER }
            } else {
                let before = &there[(frame - 1) * states..frame * states];
                let one = if state >= 1 { before[state - 1] } else { NEVER };
                let two = if jumps(state) { before[state - 2] } else { NEVER };
                log_sum(before[state], one, two)
            };
            there[frame * states + state] = sum + log(frame, state);
        }
    }
    let Some(end) = frames.checked_sub(1) else { return 0.0 };
    let whole = {
        let last = &there[end * states..];
        log_sum(last[states - 1], if states > 1 { last[states - 2] } else { NEVER }, NEVER)
    };
    if whole == NEVER {
        return 0.0;
    }
    for frame in (0..frames).rev() {
        for state in 0..states {
            back[frame * states + state] = if frame == end {
                if state + 2 >= states { 0.0 } else { NEVER }
            } else {
                let after = |state: usize| back[(frame + 1) * states + state] + log(frame + 1, state);
                let one = if state + 1 < states { after(state + 1) } else { NEVER };
                let two = if state + 2 < states && jumps(state + 2) { after(state + 2) } else { NEVER };
                log_sum(after(state), one, two)
            };
        }
    }
    for frame in 0..frames {
        let mut share = vec![0.0; classes];
        for state in 0..states {
            let at = frame * states + state;
            share[class(state)] += (there[at] + back[at] - whole).exp();
        }
        for (k, share) in share.iter().enumerate() {
            let at = frame * classes + k;
            gradient[at] = ((logs[at].exp() - share) * scale) as f32;
        }
    }
    -whole * scale
}

fn log_softmax(frame: &[f32]) -> impl Iterator<Item = f64> {
    let most = frame.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum = frame.iter().map(|value| f64::from(value - most).exp()).sum::<f64>().ln();
    frame.iter().map(move |value| f64::from(value - most) - sum)
}

fn log_sum(a: f64, b: f64, c: f64) -> f64 {
    let most = a.max(b).max(c);
    if most == f64::NEG_INFINITY {
        return most;
    }
    most + ((a - most).exp() + (b - most).exp() + (c - most).exp()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_agree() {
        let classes = 5;
        for (frames, text, sharp) in [
            (9, vec![1, 1, 2], 1.0),
            (7, vec![3], 20.0),
            (6, vec![], 3.0),
            (8, vec![4, 4, 4, 4], 5.0),
            (1, vec![2], 1.0),
        ] {
            let logits: Vec<f32> =
                (0..frames * classes).map(|at| sharp * ((at * 7919 % 101) as f32 / 50.0 - 1.0)).collect();
            let (mut one, mut other) = (vec![0.0; logits.len()], vec![0.0; logits.len()]);
            let quick = quickly(&logits, &mut one, classes, &text, 0.5);
            let slow = slowly(&logits, &mut other, classes, &text, 0.5);
            // A text that does not fit into the frames is none for the quick way.
            let Some(quick) = quick else {
                assert!(slow.abs() < 1e-12, "{text:?}");
                continue;
            };
            assert!((quick - slow).abs() < 1e-9 * slow.abs().max(1.0), "{quick} and {slow} of {text:?}");
            for (one, other) in one.iter().zip(&other) {
                assert!((one - other).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn what_is_next_to_impossible_still_has_a_loss() {
        // Blanks are sure, and sixty letters are wanted.
        let logits: Vec<f32> = (0..120).flat_map(|_| [30.0, 0.0]).collect();
        let text = vec![1; 60];
        let mut gradient = vec![0.0; logits.len()];
        assert!(quickly(&logits, &mut gradient, 2, &text, 1.0).is_none());
        let loss = row(&logits, &mut gradient, 2, &text, 1.0);
        assert!(loss > 1_000.0 && gradient.iter().any(|value| *value != 0.0));
    }
}
