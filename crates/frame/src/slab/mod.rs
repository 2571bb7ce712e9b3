//! Objects on frames.
//!
//! After J. Bonwick, "The slab allocator", USENIX 1994, and "Magazines and Vmem", USENIX 2001: objects of one
//! type share blocks of frames (slabs), each CPU has two batches of free ones in front, and a depot between
//! the CPUs and the slabs takes and gives whole batches. All links live in the objects' own slots and in the
//! frames' descriptors, so that giving an object back, at once or after an epoch, never allocates. The word
//! that links a slot of a typed cache lies beside the object, not in it: a retired object stays intact for
//! lock-free readers.
//!
//! [`Heap`] is one such cache for each of some sizes, without types; [`GlobalHeap`] is a heap as Rust's
//! global allocator.

mod cache;
mod census;
mod core;
mod front;
mod geometry;
mod global;
mod heap;
#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used, reason = "models are tests")]
mod models;
mod once;
mod place;
mod registry;
mod slabs;
mod slot;

pub use self::cache::SlabCache;
pub use self::census::CacheReport;
pub use self::global::{AttachError, GlobalHeap};
pub use self::heap::Heap;
pub(crate) use self::registry::CacheRegistry;
