//! What the commands that train have in common: how progress is shown, and how Ctrl-C ends a run.

mod progress;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

pub(crate) use progress::Progress;

/// Set by the first Ctrl-C: the run ends after the step that it is at. The second ends the program.
pub(crate) fn interrupted() -> Arc<AtomicBool> {
    let asked = Arc::new(AtomicBool::new(false));
    #[cfg(unix)]
    {
        use signal_hook::{consts::SIGINT, flag};
        // In this order: at the first signal nothing is set yet, at the second it is.
        let again = flag::register_conditional_default(SIGINT, Arc::clone(&asked));
        let first = flag::register(SIGINT, Arc::clone(&asked));
        if again.is_err() || first.is_err() {
            asked.store(false, Ordering::Relaxed);
        }
    }
    let _ = &asked;
    asked
}
