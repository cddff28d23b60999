//! A closure of the user's own, as a stage like the others: measured, isolated, named in errors.

use crate::{
    error::Fault,
    pipeline::{Context, Stage},
    sample::Sample,
};

/// A stage made from a closure.
pub struct Map<F> {
    name: &'static str,
    run: F,
}

impl<F> Map<F>
where
    F: Fn(&mut Sample, &mut Context) -> Result<(), Fault> + Send + Sync,
{
    /// `name` stands in reports, in errors and in the pipeline's fingerprint: give a changed closure a changed name,
    /// so that a run that was started with the old one is not resumed with the new.
    pub fn new(name: &'static str, run: F) -> Self {
        Self { name, run }
    }
}

impl<F> Stage for Map<F>
where
    F: Fn(&mut Sample, &mut Context) -> Result<(), Fault> + Send + Sync,
{
    fn name(&self) -> &'static str {
        self.name
    }

    fn describe(&self) -> String {
        format!("map {}", self.name)
    }

    fn apply(&self, sample: &mut Sample, context: &mut Context) -> Result<(), Fault> {
        (self.run)(sample, context)
    }
}
