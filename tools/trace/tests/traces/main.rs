//! The format of recordings, and their replay.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod format;
mod host;
mod life;
mod limits;
mod recordings;
mod replay;
mod reuse;
mod versions;
