//! Each experiment, and what they share.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod experiment;
mod gather;
mod mremap;
mod swap;
mod tables;
