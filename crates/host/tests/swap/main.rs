//! Swap: devices, the swap cache, errors, memcgs, counters.

#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/disk.rs"]
mod disk;

mod churn;
mod collapse;
mod collapse_memcgs;
mod hasty_device;
mod lazily_freed;
mod little_swap;
mod many_references;
mod oom;
mod oom_group;
mod oom_waits;
mod other_machine;
mod paging;
mod partly_mapped;
mod protection;
mod refault;
mod removed_beside;
mod removed_memcg;
mod reparented;
mod slow_device;
mod starved;
mod swap_counters;
mod swap_errors;
mod swap_file;
mod swap_high;
mod swap_memcgs;
mod swap_sharers;
mod swap_techniques;
mod swapon;
mod watched;
mod watched_device;
mod zswap_memcgs;
