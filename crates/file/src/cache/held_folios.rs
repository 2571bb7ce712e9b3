//! The folios that a collapse has locked.

use super::PageCache;
use crate::file_core::Mapping;
use crate::locked_folio::{Lent, LockedFolio};
use core::ptr::NonNull;
use quire_arch::{Order, PAGE_SIZE, Pfn, Platform};
use quire_frame::FolioGuard;

/// Folios whose locks can be kept: those of a block of the PMD's order on frames of one page.
pub(super) const MOST: usize = PAGE_SIZE as usize / size_of::<u64>();

/// Folios that a collapse has locked, each with a reference. What is left of them is unlocked when this is
/// dropped.
pub(super) struct HeldFolios<'m, P: Platform, V: Mapping> {
    cache: PageCache<'m, P, V>,
    /// A frame with their first frames, in the order of the file.
    list: Pfn,
    pub(super) count: usize,
    pub(super) pages: u64,
}

impl<'m, P: Platform, V: Mapping> HeldFolios<'m, P, V> {
    /// None yet, to be kept in the frame `list`, which is the collapse's as long as this is there.
    pub(super) const fn new(cache: PageCache<'m, P, V>, list: Pfn) -> Self {
        Self { cache, list, count: 0, pages: 0 }
    }

    fn place(&self, nth: usize) -> NonNull<u64> {
        debug_assert!(nth < MOST, "a block has {MOST} folios at most");
        // SAFETY: the frame has so many words, and is the collapse's.
        unsafe { self.cache.platform().direct_map(self.list).cast::<u64>().add(nth) }
    }

    /// Adds a folio, whose lock and reference it takes.
    pub(super) fn push(&mut self, head: Pfn, order: Order, guard: FolioGuard<'m, P>) {
        guard.leave_held();
        // SAFETY: the word is the collapse's.
        unsafe { self.place(self.count).write(head.0) };
        self.count += 1;
        self.pages += order.pages();
    }

    fn head(&self, nth: usize) -> Pfn {
        debug_assert!(nth < self.count);
        // SAFETY: so many were written.
        Pfn(unsafe { self.place(nth).read() })
    }

    /// One of them.
    pub(super) fn lend(&self, nth: usize) -> Lent<'m, P> {
        // SAFETY: its lock and its reference are held here.
        unsafe { LockedFolio::lent(self.cache.memcgs, self.head(nth)) }
    }

    /// Takes the last one out.
    pub(super) fn pop(&mut self) -> Option<LockedFolio<'m, P>> {
        let last = self.count.checked_sub(1)?;
        let head = self.head(last);
        self.count = last;
        let guard = self.cache.frames().folios().adopt_folio_lock(head);
        Some(LockedFolio::new(self.cache.memcgs, head, guard))
    }
}

impl<P: Platform, V: Mapping> Drop for HeldFolios<'_, P, V> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}
