//! What is this machine, and what is it doing?
//!
//! What the system says about itself, read and never guessed. What it does not say is `None`.

mod crowding;

pub use crowding::crowding;
