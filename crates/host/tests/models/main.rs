//! Models of whole machines: real frames, spaces, tables and TLBs, under schedules that shuttle chooses.
//!
//! Every atomic operation of the code under test is a point where another CPU may run (`quire_sync::atomic`),
//! and every wait yields, so a few hundred schedules reach what hours of real threads do not, and a wake-up
//! that is lost is found as a deadlock. Each model ends with the auditor. `scripts/models.sh` runs them; see
//! docs/models.md.

#![cfg(shuttle)]

#[path = "../common/mod.rs"]
mod common;
mod harness;
#[path = "../common/taken.rs"]
mod taken;

mod cached;
mod collapse;
mod discard;
mod fast_pins;
mod files;
mod folios;
mod frames;
mod guards;
mod khugepaged;
mod large_shmem;
mod late;
mod listing;
mod machines;
mod memcgs;
mod mlock;
mod moves;
mod only_read;
mod oom;
mod pageout;
mod reparent;
mod rmap;
mod seals;
mod shared_zeros;
mod shmem;
mod shootdowns;
mod spaces;
mod swap;
mod swapon;
mod table_setup;
mod tables;
mod whole;
mod writeback;
mod zeros;
