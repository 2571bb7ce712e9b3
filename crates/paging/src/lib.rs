//! Paging: swapping pages in.
//!
//! docs/swap.md describes the swap cache, through which all of it goes; docs/space.md describes its place in
//! a fault.
//!
//! # Modules, lowest first
//!
//! - `error`: why a page could not be made available.
//! - `refault`: refault distances: whether pages were evicted too soon.
//! - `swapped_in`: a folio that was swapped in.
//! - `swap_in`: bringing folios into the swap cache.
//! - `fault`: a fault as a value, and what it maps out of the swap cache.
//! - `readahead`: which pages are read ahead.

#![no_std]

#[cfg(test)]
extern crate std;

mod error;
mod fault;
mod readahead;
mod refault;
mod swap_in;
mod swapped_in;

pub use error::{FaultError, Need, Refusal, SwapInError, Swapped};
pub use fault::{VmFault, Zeros};
pub use readahead::{ReadaheadSlots, swapped_around};
pub use swap_in::{Ahead, SwapIn};
pub use swapped_in::SwappedIn;
