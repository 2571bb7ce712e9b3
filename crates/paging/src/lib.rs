//! Paging: swapping pages out and in.
//!
//! docs/swap.md describes the swap cache, through which all of it goes; docs/space.md describes its place in
//! a fault.
//!
//! # Modules, lowest first
//!
//! - `error`: why a page could not be made available.
//! - `refault`: refault distances: whether pages were evicted too soon.
//! - `referenced`: whether a folio was referenced or mlocked through its mappings.
//! - `unmap`: taking a folio out of every table that maps it.
//! - `swapped_in`: a folio that was swapped in.
//! - `swap_in`: bringing folios into the swap cache.
//! - `fault`: a fault as a value, and what it maps out of the swap cache.
//! - `readahead`: which pages are read ahead.
//! - `mlock`: mlocked pages on the LRU lists.
//! - `madvise`: MADV_COLD, MADV_PAGEOUT, MADV_FREE.

#![no_std]

#[cfg(test)]
extern crate std;

mod error;
mod fault;
mod madvise;
mod mlock;
mod readahead;
mod refault;
mod referenced;
mod swap_in;
mod swapped_in;
mod unmap;

pub use error::{FaultError, Need, Refusal, SwapInError, Swapped};
pub use fault::{VmFault, Zeros};
pub use madvise::{Ageing, Cold, LazyFree};
pub use mlock::set_mlocked;
pub use readahead::{ReadaheadSlots, swapped_around};
pub use referenced::{LockFound, Referenced, referenced};
pub use swap_in::{Ahead, SwapIn};
pub use swapped_in::SwappedIn;
pub use unmap::{PteReplacement, UnmapSink, Unmapped, unmap_folio};
