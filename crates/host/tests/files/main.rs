//! Files: mapped, read, written, truncated.

#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/disk.rs"]
mod disk;

mod ahead;
mod beside;
mod cut;
mod ends;
mod large;
mod large_beside;
mod mapped;
mod only_read;
mod only_read_memcgs;
mod only_read_random;
mod random;
mod transit;
mod written;
