//! The pace jumps.
//!
//! **What it sees.** A few samples that take far longer than the others, or workers that each make a whole batch.
//! **Why it costs.** The whole batch waits for its slowest sample; batches made one a worker come in bursts.
//! **How to confirm.** The steps that waited the longest name the same few files.
//! **What to change.** A deeper queue hides them; better, repair, cut or convert the files that are named.

use crate::{
    diagnosis::{Change, Facts, Finding, INPUT_BOUND_SHARE, Kind},
    model::{Crew, play},
    rules::{LEAST_SHARE, millis},
    split::Part,
    what_if::Wish,
};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    slow_samples(facts).or_else(|| whole_batches(facts)).or_else(|| marked(facts))
}

fn slow_samples(facts: &Facts<'_>) -> Option<Finding> {
    let idle = facts.part(&Part::SlowSamples);
    if facts.wait_share() < INPUT_BOUND_SHARE || idle < LEAST_SHARE * facts.steps.mean.wall_nanos {
        return None;
    }
    let mut finding = facts.finding("bursty", "slow samples", Kind::Cause, idle);
    let slow = &facts.split.slow;
    let usual = facts.split.usual_sample_nanos;
    finding.evidence.push(format!("{} samples took over 5 times the usual {} ms", slow.len(), millis(usual)));
    let mut worst: Vec<_> = slow.iter().collect();
    worst.sort_by_key(|(.., nanos)| std::cmp::Reverse(*nanos));
    for (step, key, stage, nanos) in worst.into_iter().take(3) {
        finding.evidence.push(format!("{key}: {} ms, most in {stage} (step {step})", millis(*nanos as f64)));
    }
    deeper(facts, &mut finding);
    finding.changes.push(Change {
        what: "repair, cut or convert these files".to_owned(),
        setting: "feedwater inspect DATA --decode".to_owned(),
        predicted: None,
    });
    "the steps that waited the longest name the same files".clone_into(&mut finding.confirm);
    finding.no_help = vec!["a larger batch", "a faster accelerator"];
    Some(finding)
}

fn whole_batches(facts: &Facts<'_>) -> Option<Finding> {
    let crew = facts.split.crew.filter(|crew| crew.batch_at_a_time && crew.threads > 1)?;
    let now = play(&facts.split.costs, crew);
    let then = play(&facts.split.costs, Crew { batch_at_a_time: false, ..crew });
    let idle = now.wait_nanos - then.wait_nanos;
    if idle < LEAST_SHARE * facts.steps.mean.wall_nanos {
        return None;
    }
    let mut finding = facts.finding("bursty", "each worker makes a whole batch", Kind::Circumstance, idle);
    finding.evidence.push(format!("{} workers, each with a batch of its own", crew.threads));
    finding.evidence.push(format!("step times vary by {:.0} %", facts.steps.variation_percent));
    deeper(facts, &mut finding);
    "batches arrive several at a time, then none".clone_into(&mut finding.confirm);
    finding.no_help = vec!["a faster disk", "a faster accelerator"];
    Some(finding)
}

/// Checkpoints and evaluations, which are no fault of the input.
fn marked(facts: &Facts<'_>) -> Option<Finding> {
    let p50 = facts.steps.p50_nanos;
    let marked: Vec<_> =
        facts.record.steps.iter().filter(|step| step.mark.is_some() && step.wall_nanos > 2 * p50).collect();
    let beyond: u64 = marked.iter().map(|step| step.wall_nanos - p50).sum();
    let idle = beyond as f64 / facts.record.steps.len() as f64;
    if idle < LEAST_SHARE * facts.steps.mean.wall_nanos {
        return None;
    }
    let mut finding = facts.finding("bursty", "checkpoints and evaluations", Kind::Circumstance, idle);
    let first = marked.first().and_then(|step| step.mark.clone()).unwrap_or_default();
    finding.evidence.push(format!(
        "{} steps with a {first} or the like, {} ms beyond the usual each",
        marked.len(),
        millis(beyond as f64 / marked.len().max(1) as f64),
    ));
    finding.changes.push(Change {
        what: "save less often, or beside the training".to_owned(),
        setting: "--save-steps N".to_owned(),
        predicted: None,
    });
    "the long steps are the ones that are marked".clone_into(&mut finding.confirm);
    finding.no_help = vec!["more threads", "a deeper queue"];
    Some(finding)
}

fn deeper(facts: &Facts<'_>, finding: &mut Finding) {
    let Some(crew) = facts.split.crew else { return };
    for prefetch in [8, 16, 32] {
        if prefetch > crew.prefetch && finding.changes.is_empty() {
            let (what, setting) = (format!("prefetch {prefetch}"), format!("--prefetch {prefetch}"));
            facts.propose(&mut finding.changes, &what, setting, &Wish::Prefetch(prefetch));
        }
    }
}
