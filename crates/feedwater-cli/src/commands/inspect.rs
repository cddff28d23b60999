//! What is this dataset, and what is wrong with it?

use std::process::ExitCode;

/// What to look at.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// A folder, a manifest, a table, shards
    path: std::path::PathBuf,
}

/// Looks.
pub(crate) fn run(options: &Options) -> miette::Result<ExitCode> {
    let kind = feedwater::source::detect(&options.path).map_err(|error| miette::miette!("{error}"))?;
    eprintln!("{}", kind.title());
    Ok(ExitCode::SUCCESS)
}
