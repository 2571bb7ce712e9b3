//! The slab allocator: objects on frames.
//!
//! After J. Bonwick, "The slab allocator", USENIX 1994, and "Magazines and Vmem", USENIX 2001: objects of one
//! type share blocks of frames (slabs), each CPU has two batches of free ones in front, and a depot between
//! the CPUs and the slabs exchanges whole batches. All links live in the objects' own slots and in the
//! frames' descriptors, so that freeing an object, at once or after an epoch, never allocates. The word that
//! links a slot of a typed cache lies beside the object, not in it: a retired object stays intact for
//! lock-free readers.
//!
//! [`SlabCache`] is a cache of one type. [`Heap`] is a cache for each of some sizes, without types;
//! [`KernelHeap`] is a
//! heap with its machine, [`GlobalHeap`] a heap as Rust's global allocator. docs/slab.md says more.
//!
//! # Modules, lowest first
//!
//! - `slot`: slots: where an object lies, and the word that links it while it is free.
//! - `geometry`: how objects of a size are laid out on frames.
//! - `front`: a CPU's front of a cache.
//! - `slabs`: the slabs of a cache by how full they are, and the depot.
//! - `untyped`: a cache without its type: slots in, slots out.
//! - `cache`: the typed interface of a cache.
//! - `place`: where the heap puts a layout: a cache of a size, or a block of frames.
//! - `heap`: memory of any size.
//! - `kernel`: the heap with its machine.
//! - `once`: a value that is set once and then shared without a lock.
//! - `global`: the heap as Rust's global allocator.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

mod cache;
mod front;
mod geometry;
mod global;
mod heap;
mod kernel;
#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used, reason = "models are tests")]
mod models;
mod once;
mod place;
mod slabs;
mod slot;
mod untyped;

pub use cache::SlabCache;
pub use global::{AttachError, GlobalHeap};
pub use heap::Heap;
pub use kernel::KernelHeap;
pub use untyped::{CacheReport, cache_reports};
