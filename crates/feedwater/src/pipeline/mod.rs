//! Who drives it? The driver: how it is put together (`build`, `needs`), which samples when (`order`, `plan`), by whom
//! (`engine`), how many of them (`tune`), to whom (`epoch`), where it is (`state`), what went wrong (`policy`) and where the time went (`report`).

mod build;
mod clock;
mod engine;
mod epoch;
mod needs;
mod order;
mod plan;
mod policy;
mod report;
mod stage;
mod state;
mod tune;

pub use build::{Builder, Threads};
pub use epoch::{Epoch, Pipeline, Reading};
pub use plan::Cursor;
pub use policy::{BadSample, Policy};
pub use report::{Report, StageReport, Wait};
pub use stage::{Context, Pool, Stage};
pub use state::State;
pub use tune::Decision;
pub(crate) use tune::span;
