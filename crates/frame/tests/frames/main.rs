//! The page-frame allocator: zones, buddy lists, per-CPU lists, folios.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod between_holds;
mod boot;
mod buddy;
mod collect;
mod contexts;
mod cpu_lists;
mod folio;
mod free_errors;
mod high_orders;
mod limbo;
mod nodes;
mod offline;
mod pressure;
mod returned;
mod split_parts;
mod support;
mod zeros;
