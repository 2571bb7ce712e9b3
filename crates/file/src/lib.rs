//! The page cache of files.
//!
//! [`FolioStore`] says what a file has at each of its pages: a folio, the shadow of one that was evicted, or
//! a swap slot. [`FileMappings`] says which VMAs map the file, and an [`Opening`] is the open file that each
//! of them names. docs/files.md says more.
//!
//! # Modules, lowest first
//!
//! - `index`: numbers of pages in a file, and ranges of them.
//! - `entry`: what a store holds.
//! - `level`: the digits of an index.
//! - `word`: an entry, or a link to a node, in 64 bits.
//! - `node`: nodes, as readers and as the lock's holder see them.
//! - `source`: where nodes come from and go to; nodes that are allocated beforehand.
//! - `slabs`: nodes in slab caches.
//! - `store`: the store.
//! - `mappings`: which VMAs map a file.
//! - `opening`: an open file, as VMAs name it.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

mod entry;
mod index;
mod level;
mod mappings;
mod node;
mod opening;
mod slabs;
mod source;
mod store;
mod word;

pub use entry::{Entry, Payload, Stored};
pub use index::{IndexRange, PageIndex};
pub use mappings::{FileMappings, FileMappingsRead, FileMappingsWrite, OfFile};
pub use node::{Narrow, Wide};
pub use opening::{ClosingStack, Opening};
pub use slabs::{NodeSlabs, NodesOn};
pub use source::{Needs, NodeSource, Reserve};
pub use store::{Filter, FolioStore, Found, InsertError, LockedStore, StoreFigures, StoreViolation, Tag};
