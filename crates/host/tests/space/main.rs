//! Address spaces: calls, faults, tables, large folios, the rmap, their auditor.

#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod call_reclaim;
mod cow;
mod discard_window;
mod empty_tables;
mod file_audit;
mod file_mappings;
mod folio_hazards;
mod folio_pressure;
mod folio_runs;
mod folio_trees;
mod guards;
mod huge_zero;
mod kernel_half;
mod khugepaged;
mod kill_lets_go;
mod killed;
mod large_folios;
mod late_discard;
mod limbo;
mod madvise;
mod mlock;
mod mremap;
mod nodes;
mod pageout_advice;
mod pageout_breaks;
mod pageout_in_hand;
mod pageout_stress;
mod pageout_window;
mod pin_threads;
mod populate_walks;
mod remap_shortage;
mod rmap;
mod short_pins;
mod shortage;
mod shortage_looks;
mod space_audit;
mod space_calls;
mod space_cpus;
mod space_formats;
mod space_races;
mod space_threads;
mod special;
mod unfinished;
mod will_need;
mod wrong_vcpu;
