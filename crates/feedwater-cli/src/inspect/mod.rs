//! What is in a dataset, and what is wrong with it, without decoding it?
//!
//! A sample is looked at by [`look`]: its metadata and the header of its file. [`scan`] does so for all of them on all
//! cores, and [`tally`] adds up what was seen. [`problems`] judges the sums, [`elsewhere`] looks for
//! metadata beside the path, [`lengths`] puts the lengths into a histogram, and [`report`] is the whole of it: the object that `--json` prints and that [`text`] writes out for people.

pub(crate) mod elsewhere;
pub(crate) mod lengths;
pub(crate) mod look;
pub(crate) mod problems;
pub(crate) mod report;
pub(crate) mod scan;
pub(crate) mod tally;
pub(crate) mod text;
