//! Swap: slots, the swap cache, devices, the compressed cache.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
#![allow(clippy::duplicate_mod, reason = "common and pages are each used alone by a benchmark")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../pages/mod.rs"]
mod pages;

mod cache;
mod devices;
mod front;
mod front_order;
mod model;
mod pins;
mod stress;
mod untrue;
