//! The report as one file for a browser.
use crate::{diagnosis::Diagnosis, error::Result, record::Record};
/// The page.
pub fn render(_record: &Record, diagnosis: &Diagnosis) -> Result<String> {
    Ok(diagnosis.headline.clone())
}
