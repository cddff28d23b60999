//! Where does the accelerator wait, what does it cost, and what will fix it?
//!
//! A run writes a [`Record`]: what the machine is, and for every step how long it took and where the time went. From
//! that alone a [`Diagnosis`] is made, on any machine, by anybody the file was sent to.
//!
//! ```text
//! record ─▶ steps ─▶ model ─▶ split ─▶ rules ─▶ diagnosis ─▶ text · JSON · HTML
//! what      which    what     whose    what is  what to
//! happened  count    would    wait is  wrong    change
//!                    happen   it
//! ```
//!
//! Nothing here needs the engine: any loop that can say how long it waited for its input can write a record.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod error;
pub mod machine;
pub mod record;
pub mod steps;
pub mod model;
pub mod split;
pub mod rules;
pub mod diagnosis;
pub mod what_if;
pub mod search;
pub mod worth;
pub mod gate;
pub mod compare;
pub mod render;
pub mod advise;

pub use diagnosis::{
    Apart, Asked, Boundness, Change, Confidence, Diagnosis, Facts, Finding, Kind, Target, Worst,
};
pub use error::{Error, Result};
pub use record::{Record, Recorder};
