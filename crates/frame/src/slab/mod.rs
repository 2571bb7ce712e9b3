//! Typed objects on frames.
//!
//! After J. Bonwick, "The slab allocator", USENIX 1994, and "Magazines and Vmem", USENIX 2001: objects of one type
//! share blocks of frames (slabs), and each CPU has a stack of free ones in front. All links live in the objects'
//! own slots and in the frames' descriptors, so that giving an object back, at once or after an epoch, never
//! allocates. The word that links a slot lies beside the object, not in it: a retired object stays intact for
//! lock-free readers.

mod cache;
mod census;
mod core;
mod front;
mod geometry;
mod registry;
mod slot;

pub use self::cache::SlabCache;
pub use self::census::CacheReport;
pub(crate) use self::registry::CacheRegistry;
