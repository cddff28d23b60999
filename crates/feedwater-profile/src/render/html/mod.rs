//! The report as one file for a browser.
//!
//! It is opened from a disk, from an issue, from a mail, years later and without a network: everything is in it, it has no
//! script, and it asks for nothing (its own policy forbids it to). Pictures are inline SVG. Its size does not grow with
//! the record.

mod chart;
mod cost;
mod curve;
mod page;
mod style;
mod svg;
mod time;

use crate::{
    diagnosis::{Boundness, Diagnosis, Facts},
    error::Result,
    record::Record,
};

/// Curves are played from at most so many steps: more would take long and change nothing that can be seen.
const PLAYED_STEPS: usize = 10_000;

/// The page.
pub fn render(record: &Record, diagnosis: &Diagnosis) -> Result<String> {
    let facts = Facts::of(record)?;
    let end = shortened(record);
    let recent = end.as_ref().map(Facts::of).transpose()?;
    let played = recent.as_ref().unwrap_or(&facts);
    let fine = matches!(diagnosis.bound, Boundness::Compute);
    let name = if record.run.name.is_empty() { "a run" } else { &record.run.name };
    let mut body = page::top(diagnosis, name);
    body += "<main>";
    body += &page::verdict(diagnosis, fine);
    body += &curve::learning(record);
    body += &page::fixes(diagnosis);
    body += &cost::waterfall(diagnosis).render();
    body += &time::timeline(&facts).render();
    body += &pair(&time::histogram(&facts).render(), &time::queue(&facts).render());
    body += &pair(&cost::threads(played, diagnosis).render(), &cost::batch_size(played, diagnosis).render());
    body += &page::findings(diagnosis);
    let method = page::left_out(&facts) + &page::method(diagnosis, &facts, recent.is_some());
    body += &pair(&page::environment(diagnosis), &format!(r#"<div class="stack">{method}</div>"#));
    body += &page::words();
    body += &page::as_text(diagnosis);
    body += "</main>";
    body += &page::foot(diagnosis);
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{}: {}</title><style>{}</style></head><body>{}{body}</body></html>\n",
        svg::shown(name, 60),
        svg::shown(&diagnosis.headline, 120),
        style::CSS,
        style::PATTERNS,
    ))
}

/// The last steps of a long record.
fn shortened(record: &Record) -> Option<Record> {
    let skip = record.steps.len().checked_sub(PLAYED_STEPS).filter(|skip| *skip > 0)?;
    Some(Record { run: record.run.clone(), steps: record.steps[skip..].to_vec(), ..Record::default() })
}

fn pair(left: &str, right: &str) -> String {
    format!(r#"<div class="pair">{left}{right}</div>"#)
}
