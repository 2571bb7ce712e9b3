//! The page cache of files.
//!
//! [`FolioStore`] says what a file has at each of its pages: a folio, the shadow of one that was evicted, or
//! a swap slot. docs/files.md says more.
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

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

mod entry;
mod index;
mod level;
mod node;
mod slabs;
mod source;
mod store;
mod word;

pub use entry::{Entry, Payload, Stored};
pub use index::{IndexRange, PageIndex};
pub use node::{Narrow, Wide};
pub use slabs::{NodeSlabs, NodesOn};
pub use source::{Needs, NodeSource, Reserve};
pub use store::{Filter, FolioStore, Found, InsertError, LockedStore, StoreFigures, StoreViolation, Tag};
