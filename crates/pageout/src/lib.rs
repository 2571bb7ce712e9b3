//! Page-out: what takes folios out of their mappings, and what is looked at before.
//!
//! docs/swap.md describes the way of a page to a device, docs/locking.md which lock orders what.
//!
//! # Modules, lowest first
//!
//! - `referenced`: whether a folio was referenced or mlocked through its mappings.
//! - `unmap_batch`: the spaces that folios were taken out of, whose TLBs are flushed together.
//! - `unmap`: taking a folio out of every table that maps it.
//! - `file_users`: pages of files, made clean or unmapped everywhere.
//! - `mlock`: mlocked pages on the LRU lists.
//! - `madvise`: MADV_COLD, MADV_PAGEOUT, MADV_FREE.

#![no_std]

#[cfg(test)]
extern crate std;

mod file_users;
mod madvise;
mod mlock;
mod referenced;
mod unmap;
mod unmap_batch;

pub use file_users::FileMappers;
pub use madvise::{Ageing, Cold, LazyFree};
pub use mlock::set_mlocked;
pub use referenced::{LockFound, Referenced, referenced};
pub use unmap::{Unmapped, unmap_cached, unmap_to_discard, unmap_to_swap};
pub use unmap_batch::UnmapBatch;
