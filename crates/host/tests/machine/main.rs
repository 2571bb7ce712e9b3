//! The machine itself: the software MMU, TLB shootdowns, paranoid mode, sleeping locks, the README's example.

#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../toy/mod.rs"]
mod toy;

mod examples;
mod mmu;
mod paranoid;
mod ram_claim;
mod readme;
mod shootdown;
mod sleep_locks;
mod smoke;
