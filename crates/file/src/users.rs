//! What the cache needs of those who map files.

use crate::file_core::FileCore;
use crate::index::IndexRange;
use quire_arch::{Pfn, Platform};

/// How the entries that map a folio were made clean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a folio with a mapping in transit stays dirty"]
pub enum Cleaned {
    /// All of them: none is writable or dirty, and no TLB has it so.
    All,
    /// There are fewer than the folio counts: one has left its table and is not flushed yet. What is written
    /// by it may not be seen yet.
    InTransit,
}

/// Those who map files: they lie above the cache.
pub trait FileUsers<P: Platform, V> {
    /// Unmaps pages of a file everywhere, with `private_too` also the copies that programs made for
    /// themselves. When it returns no TLB has an entry for them that was there at the call. The caller may
    /// hold Invalidate and a folio lock.
    fn unmap(&self, file: &FileCore<P, V>, pages: IndexRange, private_too: bool);

    /// Makes the entries that map the folio at `head`, which has these pages of the file, clean and read-only
    /// (Linux's `folio_mkclean`). The caller holds the folio lock.
    fn clean(&self, file: &FileCore<P, V>, head: Pfn, pages: IndexRange) -> Cleaned;

    /// Frees the tables of an aligned block of pages that are left empty where the file is mapped, of spaces
    /// whose mmap lock is free: so the next fault there may map a folio as a whole. The caller may hold a
    /// folio lock.
    fn free_tables(&self, file: &FileCore<P, V>, block: IndexRange);
}

/// There is no mapping of any file.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoUsers;

impl<P: Platform, V> FileUsers<P, V> for NoUsers {
    fn unmap(&self, _file: &FileCore<P, V>, _pages: IndexRange, _private_too: bool) {}

    fn clean(&self, _file: &FileCore<P, V>, _head: Pfn, _pages: IndexRange) -> Cleaned {
        Cleaned::All
    }

    fn free_tables(&self, _file: &FileCore<P, V>, _block: IndexRange) {}
}
