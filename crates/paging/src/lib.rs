//! Paging: pages go out to swap devices and come in again.
//!
//! docs/swap.md describes the swap cache that all of it goes through, docs/space.md where it stands in a fault.
//!
//! # Modules, lowest first
//!
//! - `error`: why a page could not be made available.
//! - `refault`: whether pages were paged out too soon.
//! - `referenced`: what the mappings of a folio say about its use.
//! - `unmap`: taking a folio out of every table that maps it.
//! - `swapped_in`: a folio that was swapped in.
//! - `swap_in`: bringing folios into the swap cache.
//! - `fault`: a fault as a value, and what it maps out of the swap cache.
//! - `readahead`: which pages are read ahead.
//! - `madvise`: MADV_COLD, MADV_PAGEOUT, MADV_FREE.

#![no_std]

#[cfg(test)]
extern crate std;

mod error;
mod fault;
mod madvise;
mod readahead;
mod refault;
mod referenced;
mod swap_in;
mod swapped_in;
mod unmap;

pub use error::{FaultError, Need, Refusal, SwapInError, Swapped};
pub use fault::{VmFault, Zeros};
pub use madvise::{Ageing, Cold, LazyFree};
pub use readahead::{ReadaheadSlots, swapped_around};
pub use referenced::{LockFound, Referenced, referenced};
pub use swap_in::{Ahead, SwapIn};
pub use swapped_in::SwappedIn;
pub use unmap::{PteReplacement, UnmapSink, Unmapped, unmap_folio};
