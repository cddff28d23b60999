//! One file a verb: its options, what it does, what it prints, its tests.

pub(crate) mod advise;
pub(crate) mod cache;
pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod doctor;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod monitor;
pub(crate) mod profile;
pub(crate) mod report;
#[cfg(feature = "train")]
pub(crate) mod quickstart;
pub(crate) mod train;
pub(crate) mod tune;
#[cfg(feature = "train")]
pub(crate) mod transcribe;
