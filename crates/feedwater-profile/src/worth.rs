//! Is it worth stopping this run for?
//!
//! Stopping a run costs what it did since its last checkpoint, the time to start again and to warm up. What it saves is
//! the rest of the run at the old pace less the rest at the new one. For a run of a few minutes the answer is almost
//! always to let it finish, and to say so is part of the diagnosis.

use serde::Serialize;

/// What a restart costs and how much of the run is left.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Restart {
    /// Steps that are left.
    pub steps_left: u64,
    /// Starting again: imports, the model, the data.
    pub restart_seconds: f64,
    /// Work since the last checkpoint, which would be done again.
    pub lost_seconds: f64,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum Decision {
    /// Nothing in the input would make it faster.
    NothingToFix,
    /// Stopping costs more than it saves.
    LetItFinish {
        /// What is left at the present pace.
        left_minutes: f64,
        /// What the change would save of it.
        saves_minutes: f64,
        /// What stopping costs.
        costs_minutes: f64,
    },
    /// Stopping saves more than it costs.
    Restart {
        /// What is left at the present pace.
        left_minutes: f64,
        /// What remains of the saving after the restart is paid.
        saves_minutes: f64,
    },
    /// How long the run is to be is not known: this much is saved of every hour.
    PerHour {
        /// Minutes saved of an hour.
        saves_minutes_per_hour: f64,
    },
}

/// Less than this is not worth anybody's attention.
const LEAST_MINUTES: f64 = 5.0;

/// Weighs the rest of a run at its present pace against a restart at a new one.
pub fn decide(step_seconds: f64, new_step_seconds: f64, restart: Option<Restart>) -> Decision {
    let share = 1.0 - new_step_seconds / step_seconds;
    if share < 0.02 {
        return Decision::NothingToFix;
    }
    let Some(restart) = restart else {
        return Decision::PerHour { saves_minutes_per_hour: 60.0 * share };
    };
    let left = restart.steps_left as f64 * step_seconds / 60.0;
    let saves = left * share;
    let costs = (restart.restart_seconds + restart.lost_seconds) / 60.0;
    if saves - costs >= LEAST_MINUTES {
        Decision::Restart { left_minutes: left, saves_minutes: saves - costs }
    } else {
        Decision::LetItFinish { left_minutes: left, saves_minutes: saves, costs_minutes: costs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_five_examples_finish_and_a_long_run_does_not() {
        // 25 examples, 200 epochs, 280 ms a step against 65: most of it is left, and it still is minutes.
        let small = Restart { steps_left: 1_000, restart_seconds: 120.0, lost_seconds: 60.0 };
        assert!(matches!(decide(0.28, 0.065, Some(small)), Decision::LetItFinish { .. }));
        let large = Restart { steps_left: 200_000, ..small };
        let Decision::Restart { saves_minutes, .. } = decide(0.28, 0.065, Some(large)) else { panic!() };
        assert!((saves_minutes - (200_000.0 * 0.215 / 60.0 - 3.0)).abs() < 1.0);
        assert_eq!(decide(0.28, 0.279, Some(large)), Decision::NothingToFix);
        assert!(
            matches!(decide(0.28, 0.14, None), Decision::PerHour { saves_minutes_per_hour } if (saves_minutes_per_hour - 30.0).abs() < 1e-9)
        );
    }
}
