//! How does a dataset do against an accelerator?
//!
//! Read in this order: [`setup`] (what is run), [`run`] (how it is run and recorded), [`verify`] (is what was predicted
//! true?).

pub(crate) mod attach;
pub(crate) mod cold;
pub(crate) mod run;
pub(crate) mod setup;
pub(crate) mod verify;
pub(crate) mod vocabulary;
