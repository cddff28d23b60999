//! Who travels together? The plan of an epoch: for each step, which samples.
//!
//! The plan knows nothing of threads or time. It is made in windows of the order, so it can be entered at any [`Cursor`]
//! without walking there. It is made for all ranks together; each takes every `world`-th sample of a step, so that the
//! same run on another number of ranks goes through the same samples in the same steps.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use serde::{Deserialize, Serialize};

use super::order::{Order, Permutation};

/// Where in an epoch: enough to go on from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cursor {
    /// The step, from 0.
    pub step: u64,
    /// The window of the plan; where documents are packed, the position of the document.
    pub window: u64,
    /// The step in the window; where documents are packed, the token in the document.
    pub within: u64,
}

/// How long a sample is, as the plan sees it: frames, tokens, or anything that grows with them.
pub(crate) type Measure = Arc<dyn Fn(u64) -> u64 + Send + Sync>;

/// How steps are made of samples.
#[derive(Clone)]
pub(crate) enum Grouping {
    /// So many in a step, as they come.
    Count(u64),
    /// So many in a step, of similar length: each window of so many steps is sorted by length first.
    Buckets { count: u64, window_steps: u64, measure: Measure },
    /// As many of similar length as fit: (longest · count) of a rank stays within the budget.
    Budget { budget: u64, world: u64, window: u64, measure: Measure },
    /// Runs of documents, to be packed later.
    Runs(u64),
}

impl std::fmt::Debug for Grouping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count} a step"),
            Self::Buckets { count, window_steps, .. } => {
                write!(f, "{count} a step, sorted over {window_steps} steps")
            }
            Self::Budget { budget, world, window, .. } => {
                write!(f, "{budget} a rank of {world}, sorted over {window}")
            }
            Self::Runs(count) => write!(f, "runs of {count}"),
        }
    }
}

/// The plan of all epochs.
pub(crate) struct Plan {
    pub(crate) length: u64,
    pub(crate) grouping: Grouping,
    pub(crate) drop_last: bool,
    pub(crate) shuffle: bool,
    pub(crate) blocks: Option<Vec<u64>>,
    pub(crate) fingerprint: u128,
    pub(crate) seed: u64,
}

/// The samples of one step, of all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// Where this step stands.
    pub(crate) at: Cursor,
    /// Where the next one stands.
    pub(crate) next: Cursor,
    /// The samples, in the order of their rows.
    pub(crate) samples: Vec<u64>,
    /// How long each is, where the plan had to know.
    pub(crate) lengths: Vec<u64>,
}

/// The plan of one epoch.
pub(crate) struct EpochPlan {
    plan: Arc<Plan>,
    order: Order,
    key: [u64; 4],
    /// The windows in use, and the one that comes next. Whoever asks first plans; the lock is not held meanwhile.
    windows: Mutex<VecDeque<(u64, Planned)>>,
}

/// A window, once it is planned; nothing, where the epoch has ended before it.
type Planned = Arc<OnceLock<Option<Window>>>;

/// The steps of a window, in the order in which they come: samples and their lengths.
type Window = Vec<(Vec<u64>, Vec<u64>)>;

impl Plan {
    pub(crate) fn epoch(self: &Arc<Self>, epoch: u64) -> EpochPlan {
        let key = [self.fingerprint as u64, (self.fingerprint >> 64) as u64, self.seed, epoch];
        let order = Order::new(self.length, self.shuffle, self.blocks.as_deref(), key);
        EpochPlan { plan: self.clone(), order, key, windows: Mutex::default() }
    }

    /// How many steps an epoch has, where that can be said without planning all of it.
    pub(crate) fn steps(&self) -> Option<u64> {
        match self.grouping {
            Grouping::Count(count) | Grouping::Buckets { count, .. } => {
                Some(if self.drop_last { self.length / count } else { self.length.div_ceil(count) })
            }
            Grouping::Budget { .. } | Grouping::Runs(_) => None,
        }
    }
}

impl EpochPlan {
    /// The step at a cursor, or nothing where the epoch has ended.
    pub(crate) fn step(&self, at: Cursor) -> Option<Step> {
        match &self.plan.grouping {
            Grouping::Count(count) => {
                let first = at.step.checked_mul(*count)?;
                let samples = self.range(first, *count);
                let whole = samples.len() as u64 == *count;
                let next = Cursor { step: at.step + 1, ..Cursor::default() };
                self.finish(at, next, samples, Vec::new(), whole)
            }
            Grouping::Runs(count) => {
                // A run ends where it would have ended had it been entered at its beginning.
                let end = (at.window / count + 1) * count;
                let samples = self.range(at.window, end - at.window);
                let next = Cursor { step: at.step, window: end, within: 0 };
                self.finish(at, next, samples, Vec::new(), true)
            }
            Grouping::Buckets { count, window_steps, .. } => {
                let at =
                    Cursor { step: at.step, window: at.step / window_steps, within: at.step % window_steps };
                let planned = self.window(at.window);
                let (samples, lengths) = planned.get()?.as_ref()?.get(at.within as usize)?.clone();
                let next = at.step + 1;
                let next = Cursor { step: next, window: next / window_steps, within: next % window_steps };
                let whole = samples.len() as u64 == *count;
                self.finish(at, next, samples, lengths, whole)
            }
            Grouping::Budget { .. } => {
                let planned = self.window(at.window);
                let window = planned.get()?.as_ref()?;
                let (samples, lengths) = window.get(at.within as usize)?.clone();
                let last = at.within as usize + 1 == window.len();
                let (window, within) = if last { (at.window + 1, 0) } else { (at.window, at.within + 1) };
                self.finish(at, Cursor { step: at.step + 1, window, within }, samples, lengths, true)
            }
        }
    }

    /// Plans the window after the one of this cursor, so that it is there when it is asked for. It may take a while:
    /// lengths are read from files. Says whether there was anything to do.
    pub(crate) fn look_ahead(&self, at: Cursor) -> bool {
        let number = match self.plan.grouping {
            Grouping::Buckets { window_steps, .. } => at.step / window_steps + 1,
            Grouping::Budget { .. } => at.window + 1,
            Grouping::Count(_) | Grouping::Runs(_) => return false,
        };
        let known = self
            .windows
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .any(|(known, _)| *known == number);
        if !known {
            self.window(number);
        }
        !known
    }

    fn finish(
        &self,
        at: Cursor,
        next: Cursor,
        samples: Vec<u64>,
        lengths: Vec<u64>,
        whole: bool,
    ) -> Option<Step> {
        let kept = !samples.is_empty() && (whole || !self.plan.drop_last);
        kept.then_some(Step { at, next, samples, lengths })
    }

    fn range(&self, first: u64, count: u64) -> Vec<u64> {
        let end = first.saturating_add(count).min(self.plan.length);
        (first..end).map(|position| self.order.index(position)).collect()
    }

    fn window(&self, number: u64) -> Planned {
        let planned = {
            let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, planned)) = windows.iter().find(|(known, _)| *known == number) {
                planned.clone()
            } else {
                let planned = Planned::default();
                windows.push_back((number, planned.clone()));
                if windows.len() > 3 {
                    windows.pop_front();
                }
                planned
            }
        };
        planned.get_or_init(|| self.plan_window(number));
        planned
    }

    fn plan_window(&self, number: u64) -> Option<Window> {
        let (size, measure) = match &self.plan.grouping {
            Grouping::Buckets { count, window_steps, measure } => (count * window_steps, measure),
            Grouping::Budget { window, measure, .. } => (*window, measure),
            Grouping::Count(_) | Grouping::Runs(_) => return None,
        };
        let samples = self.range(number.checked_mul(size)?, size);
        if samples.is_empty() {
            return None;
        }
        let mut measured: Vec<(u64, usize)> =
            samples.iter().enumerate().map(|(at, sample)| (measure(*sample), at)).collect();
        measured.sort_unstable();
        let mut steps = self.cut(&measured);
        // In the order of length, an epoch would run from short to long again and again.
        let shuffled = Permutation::new(
            steps.len() as u64,
            [self.key[0], self.key[1], self.key[2], self.key[3] ^ !number],
        );
        let mut order: Vec<usize> = (0..steps.len()).collect();
        if self.plan.shuffle {
            order = (0..steps.len() as u64).map(|at| shuffled.apply(at) as usize).collect();
            // A step that is not whole stays at the end, where dropping it is dropping the last.
            if let Grouping::Buckets { count, .. } = self.plan.grouping
                && let Some(short) = order.iter().position(|step| (steps[*step].len() as u64) < count)
            {
                let short = order.remove(short);
                order.push(short);
            }
        }
        let take = |step: usize| {
            let members = std::mem::take(&mut steps[step]);
            members.iter().map(|(length, at)| (samples[*at], *length)).unzip()
        };
        Some(order.into_iter().map(take).collect())
    }

    /// Cuts samples that are sorted by length into steps.
    fn cut(&self, sorted: &[(u64, usize)]) -> Vec<Vec<(u64, usize)>> {
        match &self.plan.grouping {
            Grouping::Budget { budget, world, .. } => {
                let (mut steps, mut rest) = (Vec::new(), sorted);
                while !rest.is_empty() {
                    // As many rows for each rank as fit with the longest; one row each always does.
                    let fits = |rows: u64| {
                        let last = (rows * world).min(rest.len() as u64) as usize - 1;
                        rows * rest[last].0 <= *budget
                    };
                    let most = (rest.len() as u64).div_ceil(*world);
                    let rows = (2..=most).take_while(|rows| fits(*rows)).last().unwrap_or(1);
                    let (step, left) = rest.split_at(((rows * world) as usize).min(rest.len()));
                    steps.push(step.to_vec());
                    rest = left;
                }
                steps
            }
            Grouping::Buckets { count, .. } => sorted.chunks(*count as usize).map(<[_]>::to_vec).collect(),
            Grouping::Count(_) | Grouping::Runs(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan(length: u64, grouping: Grouping, drop_last: bool) -> Arc<Plan> {
        Arc::new(Plan { length, grouping, drop_last, shuffle: true, blocks: None, fingerprint: 9, seed: 1 })
    }

    fn steps(plan: &EpochPlan, from: Cursor) -> Vec<Step> {
        std::iter::successors(plan.step(from), |step| plan.step(step.next)).collect()
    }

    fn lengths() -> Measure {
        Arc::new(|sample| 1 + (sample * 7919) % 97)
    }

    fn groupings() -> impl Strategy<Value = Grouping> {
        prop_oneof![
            (1_u64..40).prop_map(Grouping::Count),
            (1_u64..20, 1_u64..9).prop_map(|(count, window_steps)| Grouping::Buckets {
                count,
                window_steps,
                measure: lengths()
            }),
            (100_u64..900, 1_u64..5, 10_u64..200).prop_map(|(budget, world, window)| Grouping::Budget {
                budget,
                world,
                window,
                measure: lengths()
            }),
            (1_u64..40).prop_map(Grouping::Runs),
        ]
    }

    proptest! {
        #[test]
        fn an_epoch_has_every_sample_once_and_can_be_entered_anywhere(
            length in 1_u64..700, grouping in groupings(), epoch in 0_u64..5)
        {
            let plan = plan(length, grouping, false);
            let all = steps(&plan.epoch(epoch), Cursor::default());
            let mut samples: Vec<u64> = all.iter().flat_map(|step| step.samples.clone()).collect();
            samples.sort_unstable();
            prop_assert_eq!(samples, (0..length).collect::<Vec<_>>());
            if let Some(count) = plan.steps() {
                prop_assert_eq!(count, all.len() as u64);
            }
            for (number, step) in all.iter().enumerate() {
                prop_assert_eq!(steps(&plan.epoch(epoch), step.at), all[number..].to_vec());
            }
        }

        #[test]
        fn a_budget_is_kept_on_every_rank(budget in 100_u64..900, world in 1_u64..5, length in 1_u64..400) {
            let plan = plan(length, Grouping::Budget { budget, world, window: 64, measure: lengths() }, false);
            for step in steps(&plan.epoch(0), Cursor::default()) {
                let rows = (step.samples.len() as u64).div_ceil(world);
                prop_assert!(rows * step.lengths.iter().max().unwrap() <= budget.max(97));
            }
        }
    }

    #[test]
    fn the_last_step_is_dropped_only_where_it_is_short() {
        for (length, expected) in [(30, 3), (35, 3), (9, 0)] {
            for grouping in
                [Grouping::Count(10), Grouping::Buckets { count: 10, window_steps: 2, measure: lengths() }]
            {
                let plan = plan(length, grouping, true);
                assert_eq!(steps(&plan.epoch(0), Cursor::default()).len(), expected);
                assert_eq!(plan.steps(), Some(expected as u64));
            }
        }
    }

    #[test]
    fn buckets_hold_samples_of_similar_length() {
        let spread = |grouping| {
            let steps = steps(&plan(2000, grouping, true).epoch(0), Cursor::default());
            steps
                .iter()
                .map(|step| {
                    let lengths: Vec<u64> = step.samples.iter().map(|sample| lengths()(*sample)).collect();
                    lengths.iter().max().unwrap() - lengths.iter().min().unwrap()
                })
                .sum::<u64>()
        };
        let buckets = Grouping::Buckets { count: 10, window_steps: 20, measure: lengths() };
        assert!(spread(buckets) * 5 < spread(Grouping::Count(10)));
    }
}
