//! Calls on a tmpfs: what each does, what it refuses, and what is left when one fails.

#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod cases;
mod execute;
mod failures;
mod mapped;
mod model;
mod threads;
