//! Who drives it? The driver: how it is put together (`build`, `needs`) and of what (`flow`), which samples when (`order`,
//! `plan`), by whom (`engine`) and how (`unit`), by how many of them (`tune`), to whom (`epoch`), where it is (`state`),
//! what went wrong (`policy`) and where the time went (`clock`, `report`).

mod build;
mod clock;
mod engine;
mod epoch;
mod flow;
mod needs;
mod order;
mod plan;
mod policy;
mod report;
mod stage;
mod state;
mod tune;
mod unit;

pub use build::{Builder, Threads};
pub use epoch::{Epoch, Pipeline, Reading};
pub use plan::Cursor;
pub use policy::{BadSample, Policy};
pub use report::{Report, StageReport, Wait};
pub use stage::{Context, Pool, Stage};
pub use state::State;
pub use tune::Decision;
pub(crate) use tune::span;
