//! The format of recordings.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod format;
mod host;
mod salvage;
mod versions;
