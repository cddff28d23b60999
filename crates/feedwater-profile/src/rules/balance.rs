//! Two devices out of balance.
//!
//! **What it sees.** Of the device that prepares data and the one that trains, one is far from its target: 40, 50 or 60 %
//! busy for the first, 70, 80 or 90 % for the second.
//! **Why it costs.** The one that trains waits while the other has too much to do, or the other is not needed at all.
//! **How to confirm.** `feedwater monitor` shows both.
//! **What to change.** More of the preparation on the host where the data device is full; one device for both where it idles.

use crate::diagnosis::{Change, Facts, Finding, Kind, Target};

pub(super) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let record = facts.record;
    let busy = |role: &str| {
        let index = record.run.devices.iter().find(|device| device.role.as_deref() == Some(role))?.index;
        let of = record.devices.iter().filter(|sample| sample.index == index);
        let values: Vec<f64> = of.filter_map(|sample| sample.busy_percent).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let (data, model) = (busy("data")?, busy("model")?);
    let met = Target::met(Some(data), model, facts.steps.variation_percent);
    if met == Target::Excellent {
        return None;
    }
    let mut finding = facts.finding("balance", "two devices out of balance", Kind::Circumstance, 0.0);
    finding.evidence.push(format!(
        "data device busy {data:.0} %, model device busy {model:.0} %, variation {:.0} %: {}",
        facts.steps.variation_percent,
        met.words()
    ));
    finding.evidence.push("minimum is 40/70/40, good 50/80/30, excellent 60/90/20".to_owned());
    let (what, setting) = if data > 90.0 {
        ("prepare on the host what the data device is too slow for", "leave --data-gpu out")
    } else if data < 40.0 {
        ("one device for both: the data device is hardly used", "--model-gpu 0")
    } else {
        ("a deeper queue between them", "--prefetch-buffer-size 8")
    };
    finding.changes.push(Change { what: what.to_owned(), setting: setting.to_owned(), predicted: None });
    "`feedwater monitor` shows both".clone_into(&mut finding.confirm);
    finding.no_help = vec!["a faster disk"];
    Some(finding)
}
