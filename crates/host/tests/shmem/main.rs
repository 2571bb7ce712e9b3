//! Shared memory: mapped, resized, read and written, swapped.

#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/disk.rs"]
mod disk;
#[path = "../common/taken.rs"]
mod taken;

mod advised;
mod allocated;
mod collapse;
mod collapse_beside;
mod counted;
mod large;
mod mapped;
mod past_end;
mod pins;
mod removed_memcgs;
mod seals;
mod segments;
mod slow_device;
mod stress;
mod swapped;
