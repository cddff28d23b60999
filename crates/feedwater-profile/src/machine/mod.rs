//! What is this machine, and what is it doing?
//!
//! What the system says about itself, read and never guessed. What it does not say is `None`.

mod crowding;
mod fill;
mod gpu;
mod host;
pub mod load;

pub use crowding::crowding;
pub use fill::fill;
pub use gpu::{GpuSample, Gpus, NoGpus};
pub use host::{Disk, DiskKind, Memory, Room, affinity_cores, disk, host, host_with_data, memory, room};
