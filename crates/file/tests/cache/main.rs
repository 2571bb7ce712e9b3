//! The page cache with files in memory of the test.

#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, reason = "the tests of quire-frame use more of it")]
#[path = "../../../frame/tests/common/mod.rs"]
mod machine;

mod ahead;
mod backings;
mod calls;
mod failures;
mod model;
mod only_read;
mod sizes;
mod support;
mod threads;
mod transfers;
mod writeback;
