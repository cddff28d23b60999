//! What the commands that train have in common: how progress is shown, and how Ctrl-C ends a run.

mod progress;

use std::sync::{Arc, atomic::AtomicBool};

pub(crate) use progress::Progress;

/// Set by the first Ctrl-C: the run ends after the step that it is at. The second ends the program. Where there are no such
/// signals, as on Windows, the first does; what the last checkpoint has is not lost.
pub(crate) fn interrupted() -> miette::Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    #[cfg(unix)]
    {
        use miette::IntoDiagnostic;
        use signal_hook::{consts::SIGINT, flag};
        // In this order: at the first signal nothing is set yet, at the second it is.
        flag::register_conditional_default(SIGINT, Arc::clone(&asked)).into_diagnostic()?;
        flag::register(SIGINT, Arc::clone(&asked)).into_diagnostic()?;
    }
    Ok(asked)
}
