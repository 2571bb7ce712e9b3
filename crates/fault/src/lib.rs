//! Page faults: what one attempt at a fault does.
//!
//! An attempt finds a page, or makes one, and maps it; or it says what is missing ([`Refusal`]). What frees
//! memory then, takes the mmap lock or lets a stack grow is above, and makes the next attempt.
//! docs/architecture.md says how a fault flows, docs/swap.md describes the swap cache, through which all
//! swap-ins go.
//!
//! # Modules, lowest first
//!
//! - `error`: why a page could not be made available.
//! - `step`: how a step of a fault ended.
//! - `refault`: refault distances: whether pages were evicted too soon.
//! - `swapped_in`: a folio that was swapped in.
//! - `swap_in`: bringing folios into the swap cache.
//! - `vm_fault`: a fault as a value, and what it maps out of the swap cache.
//! - `readahead`: which pages are read ahead.
//! - `cow`: copy-on-write.
//! - `cached`: mapping pages of the page cache.
//! - `new_page`: the usual fault, which maps a new page.
//! - `resolve`: making a page available where a fault asks for it.
//! - `vma_hold`: finding a VMA and holding it without the mmap lock.
//! - `faults`: the faults of one space.

#![no_std]

#[cfg(test)]
extern crate std;

mod cached;
mod cow;
mod error;
mod faults;
mod new_page;
mod readahead;
mod refault;
mod resolve;
mod step;
mod swap_in;
mod swapped_in;
mod vm_fault;
mod vma_hold;

pub use cow::{HeldPage, copy_on_write, hold_page, is_own, must_copy};
pub use error::{FaultError, FilePage, Need, Refusal, SwapInError, Swapped};
pub use faults::Faults;
pub use step::Step;
pub use swap_in::{Ahead, SwapIn};
pub use swapped_in::SwappedIn;
pub use vm_fault::VmFault;
