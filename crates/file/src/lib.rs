//! The page cache of files.
//!
//! [`FolioStore`] says what a file has at each of its pages: a folio, the shadow of one that was evicted, or
//! a swap slot. [`FileMappings`] says which VMAs map the file, and an [`Opening`] is the open file that each
//! of them names. [`PageCache`] brings folios of a file ([`FileCore`]) in from where its bytes are
//! ([`FileBacking`]), reads, writes and removes them. docs/files.md says more.
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
//! - `backing`: the embedder's side of a file.
//! - `seals`: changes of shared memory that are refused.
//! - `huge`: which folios of shared memory are large.
//! - `shmem`: shared memory, which has no backing.
//! - `error`: why a page or bytes cannot be had.
//! - `error_sequence`: errors of writeback, each reported once to each opening.
//! - `committed`: memory that is promised to programs.
//! - `write_access`: who has a file open for writing.
//! - `user_copy`: the program's side of a call that reads or writes.
//! - `file_memory`: what the files of a machine share.
//! - `requests`: the requests of a file that are under way.
//! - `locked_folio`: a folio of a file, locked.
//! - `cached_file`: a file's cache, apart from the VMAs that map it.
//! - `transfers`: reading and writing pages by the backing.
//! - `file_core`: a file with its cache and its mappings.
//! - `users`: what the cache needs of those who map files.
//! - `open_file`: an open file.
//! - `end_list`: files that have something past their ends.
//! - `files`: the files of a machine.
//! - `audit`: the audit of the page cache.
//! - `cache`: the page cache: everything that is done with the folios of files.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

mod audit;
mod backing;
mod cache;
mod cached_file;
mod committed;
mod end_list;
mod entry;
mod error;
mod error_sequence;
mod file_core;
mod file_memory;
mod files;
mod huge;
mod index;
mod level;
mod locked_folio;
mod mappings;
mod node;
mod open_file;
mod opening;
mod requests;
mod seals;
mod shmem;
mod slabs;
mod source;
mod store;
mod transfers;
mod user_copy;
mod users;
mod word;
mod write_access;

pub use audit::{FileAudit, FileViolation, PagesOf};
pub use backing::{FileBacking, FileError, FileIo, IoLimits, IoToken, Transferred};
pub use cache::{
    Allocation, BlockFigures, BlockRefusal, FileBlock, FileHandle, HeldFile, KnownFile, LargeOrders,
    MissingPage, NewBlock, PageCache, PagedIn, Sealing, ShmemPages, Transfer, Wait,
};
pub use cached_file::{
    CachedFile, CachedPages, CameAsZeros, FileFigures, KeptFolio, Lookup, MAX_FILE_BYTES, NewFolioOrders,
    OnlyRead, SwappedPages, UnusedPages,
};
pub use committed::Committed;
pub use entry::{Entry, Payload, Stored};
pub use error::{Busy, PageError, SwappedPage};
pub use file_core::{FileCore, Mapping};
pub use file_memory::FileTotals;
pub use files::Files;
pub use huge::{ForcesSizes, ShmemEnabled, ShmemHuge, ShmemSizeEnabled};
pub use index::{IndexRange, PageIndex};
pub use locked_folio::{Lent, LockedFolio};
pub use mappings::{FileMappings, FileMappingsRead, FileMappingsWrite, OfFile};
pub use node::{Narrow, Wide};
pub use open_file::OpenFile;
pub use opening::{ClosingStack, Opening};
pub use seals::{Entering, SealError, Seals};
pub use shmem::{ShmemName, ShmemOwner, ShmemPromise, ShmemState};
pub use slabs::{NodeSlabs, NodesOn};
pub use source::{Needs, NodeSource, Reserve};
pub use store::{Filter, FolioStore, Found, InsertError, LockedStore, StoreFigures, StoreViolation, Tag};
pub use user_copy::{PageBytes, UserCopy};
pub use users::{Cleaned, FileUsers, NoUsers};
pub use write_access::Writing;
