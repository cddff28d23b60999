//! How does a dataset do against an accelerator?
//!
//! Read in this order: [`setup`] (what is run), [`run`] (how it is run and recorded), [`kept`] (what would it take with a cache?), [`verify`] (is what was predicted
//! true?).

pub(crate) mod attach;
pub(crate) mod cold;
pub(crate) mod kept;
pub(crate) mod run;
pub(crate) mod setup;
pub(crate) mod verify;
pub(crate) mod vocabulary;
