//! Slab caches, the heap, and the page-frame allocator below them under stress.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[allow(dead_code, reason = "the tests of quire-frame use more of it")]
#[path = "../../../frame/tests/common/mod.rs"]
mod common;

mod audit;
mod cache;
mod fail_points;
mod heap;
mod offline;
mod stress;
mod support;
