//! memcgs: charges, limits, files, the LRU lists.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[allow(dead_code, reason = "the tests of quire-frame use more of it")]
#[path = "../../../frame/tests/common/mod.rs"]
mod common;
#[path = "../support/mod.rs"]
mod support;

mod failures;
mod files;
mod lists;
mod memcgs;
mod stress;
