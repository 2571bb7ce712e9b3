//! The format of recordings, and their replay.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod charge;
mod forks;
mod format;
mod host;
mod hostile;
mod life;
mod limits;
mod order;
mod order_limits;
mod recordings;
mod replay;
mod reuse;
mod sizes;
mod versions;
