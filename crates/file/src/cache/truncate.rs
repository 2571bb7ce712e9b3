//! Taking pages out of the cache: truncation, holes, invalidation, moves of what is stored.
//!
//! The size is changed first; then the pages are unmapped everywhere and removed, one locked folio after the
//! other. A fault that locked a folio before it was removed finds the old size, and what it maps is unmapped
//! with the folio's lock held; one that comes later finds the new size. A hole keeps the size, so what is
//! stored of it is freed while Invalidate keeps faults from reading it.

use super::PageCache;
use super::find::FolioReference;
use super::writeback::Wait;
use crate::backing::FileError;
use crate::cached_file::{CachedFile, MAX_FILE_BYTES, Prepared};
use crate::error::{Busy, PageError};
use crate::file_core::{FileCore, Mapping};
use crate::index::{IndexRange, PageIndex};
use crate::locked_folio::LockedFolio;
use crate::store::Filter;
use crate::transfers::zero_bytes;
use crate::users::{Cleaned, FileUsers};
use arrayvec::ArrayVec;
use core::ops::Range;
use quire_arch::{Order, PAGE_SHIFT, PAGE_SIZE, Pfn, Platform};
use quire_frame::FrameFlags;
use quire_memcg::Membership;
use quire_sync::atomic::raw::Ordering;

impl<'m, P: Platform, V: Mapping> PageCache<'m, P, V> {
    /// Changes the size of a file. What is past the new one leaves the cache, and programs lose their copies
    /// of it, too; what is new is zeros. The caller keeps other calls away that write to the file or change
    /// its size. May sleep.
    ///
    /// # Errors
    ///
    /// [`PageError::TooLarge`]; nothing has changed then.
    pub fn set_size(
        self,
        file: &FileCore<P, V>,
        size: u64,
        users: &dyn FileUsers<P, V>,
    ) -> Result<(), PageError> {
        if size > MAX_FILE_BYTES {
            return Err(PageError::TooLarge);
        }
        let _alone = file.invalidate.write(self.platform());
        if size > file.size() {
            self.extend(file, size, users);
            return Ok(());
        }
        let _cut = file.cut();
        // Release: pairs with the load of a thread that has locked a folio.
        file.size.store(size, Ordering::Release);
        let gone = IndexRange::new(size.div_ceil(PAGE_SIZE), IndexRange::ALL.end());
        users.unmap(file, gone, true);
        self.zero_cached(file, size..(size.next_multiple_of(PAGE_SIZE)));
        self.remove_range(file, gone, users);
        // Copies that programs have made for themselves in the meantime, of what was not unmapped yet.
        users.unmap(file, gone, true);
        Ok(())
    }

    /// Makes a file larger. Bytes of its last page that are past the end come to be in it, as zeros: what a
    /// program wrote there by a mapping is gone, unless the [limits](crate::IoLimits::tail_stays) say
    /// otherwise. Invalidate is held.
    pub(super) fn extend(self, file: &FileCore<P, V>, size: u64, users: &dyn FileUsers<P, V>) {
        let grow = || file.size.fetch_max(size, Ordering::Release);
        if file.backing().limits().tail_stays {
            grow();
            return;
        }
        let mut attempt = 0;
        loop {
            let old = file.size();
            if size <= old {
                return;
            }
            let tail = old..old.next_multiple_of(PAGE_SIZE);
            let Some((folio, index)) = self.cached_page_of(file, &tail) else {
                grow();
                return;
            };
            // An entry in transit can still write there.
            if self.clean(file, &folio, index, users) == Cleaned::All {
                self.zero_in(&folio, &tail);
                grow();
                return;
            }
            drop(folio);
            P::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
    }

    /// The folio that has these bytes, which are of one page, locked, if it is cached.
    fn cached_page_of(
        self,
        file: &CachedFile<P>,
        bytes: &Range<u64>,
    ) -> Option<(LockedFolio<'m, P>, PageIndex)> {
        if bytes.is_empty() {
            return None;
        }
        let index = PageIndex::new(bytes.start >> PAGE_SHIFT)?;
        // A page that could not be read is not cached.
        let folio = self.lock_cached(file, index).ok().flatten()?;
        Some((folio, index))
    }

    /// Fills bytes of a locked folio's page with zeros, as far as they are in it.
    fn zero_in(self, folio: &LockedFolio<'m, P>, bytes: &Range<u64>) {
        let start = bytes.start & (PAGE_SIZE - 1);
        let end = (start + (bytes.end - bytes.start)).min(PAGE_SIZE);
        // SAFETY: the folio is locked, and the bytes are in its page.
        unsafe { zero_bytes(self.platform(), folio.head(), start, end) };
    }

    /// Fills bytes of one page with zeros if the page is cached.
    fn zero_cached(self, file: &CachedFile<P>, bytes: Range<u64>) {
        if let Some((folio, _)) = self.cached_page_of(file, &bytes) {
            self.transfers(file).wait_written(folio.head());
            self.zero_in(&folio, &bytes);
        }
    }

    /// Makes bytes of a file zeros (`FALLOC_FL_PUNCH_HOLE`). Pages that are all in the hole leave the cache;
    /// copies that programs have made stay. Where the hole begins or ends within a page that is written as
    /// zeros. The caller keeps other calls away that write to the file or change its size. May sleep.
    /// `program` pays.
    ///
    /// `free` frees what is stored of the bytes of whole pages that it is called with, of which the last may
    /// have the end of the file. It is called once, if there are such: when no page of them is cached or
    /// being written, and none can come, since Invalidate is held alone. So what it frees is neither read
    /// before nor written after.
    ///
    /// # Errors
    ///
    /// A page at the edge of the hole could not be had, or there is no space for it; nothing has changed
    /// then. Or `free` failed: the whole pages have what is stored.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn punch(
        self,
        file: &FileCore<P, V>,
        bytes: Range<u64>,
        program: &Membership,
        users: &dyn FileUsers<P, V>,
        free: &mut dyn FnMut(Range<u64>) -> Result<(), FileError>,
    ) -> Result<(), PageError> {
        // Past the end of the file all is zeros already, unless its tail stays.
        let tail_stays = file.backing().limits().tail_stays;
        let size = file.size();
        let last = if tail_stays { size.next_multiple_of(PAGE_SIZE) } else { size };
        let (start, end) = (bytes.start, bytes.end.min(last));
        if start >= end {
            return Ok(());
        }
        let whole_end = if end == last { end.next_multiple_of(PAGE_SIZE) } else { end };
        let whole = IndexRange::new(start.div_ceil(PAGE_SIZE), whole_end >> PAGE_SHIFT);
        let (edges, _alone) = loop {
            let edges = self.bring_in_edges(file, edges_of(start, end, whole), program)?;
            let alone = file.invalidate.write(self.platform());
            if edges.iter().all(|edge| file.is_prepared(edge.prepared)) {
                break (edges, alone);
            }
        };
        if !whole.is_empty() {
            users.unmap(file, whole, false);
        }
        for Edge { index, head, bytes, .. } in &edges {
            let kept = self.frames().known(*head).get(1);
            debug_assert!(kept, "there is a reference");
            if let Some(folio) = self.lock_found(file, (*index, *head), true) {
                self.transfers(file).wait_written(*head);
                self.zero_in(&folio, bytes);
                file.mark_dirty(self.frames(), *head);
            }
        }
        if whole.is_empty() {
            return Ok(());
        }
        let _cut = file.cut();
        self.remove_range(file, whole, users);
        Ok(free(whole.start() << PAGE_SHIFT..whole.end() << PAGE_SHIFT)?)
    }

    /// Reads the pages at the edges of a hole, and asks for space for them.
    #[cfg_attr(debug_assertions, track_caller)]
    fn bring_in_edges(
        self,
        file: &CachedFile<P>,
        edges: impl Iterator<Item = Range<u64>>,
        program: &Membership,
    ) -> Result<ArrayVec<Edge<'m, P>, 2>, PageError> {
        let mut brought_in = ArrayVec::new();
        for bytes in edges {
            let index = PageIndex::new(bytes.start >> PAGE_SHIFT).ok_or(PageError::TooLarge)?;
            let prepared = file.prepare_write(index)?;
            let head = self.page_in(file, index, program)?.folio.unlock_and_keep();
            brought_in.push(Edge { index, head, bytes, prepared, _reference: self.hold(head) });
        }
        Ok(brought_in)
    }

    /// Removes the folios of these pages. Invalidate is held exclusively.
    pub(super) fn remove_range(self, file: &FileCore<P, V>, pages: IndexRange, users: &dyn FileUsers<P, V>) {
        self.for_each_folio(file, pages, Filter::All, |at @ (index, head)| {
            let Some(folio) = self.lock_found(file, at, true) else { return };
            self.transfers(file).wait_written(head);
            let mut attempt = 0;
            while folio.frame().as_folio().maps() != 0 {
                // A fault was faster, or a mapping is in transit: that needs nothing that is held here.
                users.unmap(file, IndexRange::block(index, Order::ZERO), false);
                P::relax(attempt);
                attempt = attempt.saturating_add(1);
            }
            self.remove(file, index, &folio);
        });
    }

    /// Drops the folios of these pages that nothing needs: what is stored may have changed. May sleep.
    ///
    /// # Errors
    ///
    /// Some are dirty, being written, mapped or held; all others are gone.
    pub fn invalidate(self, file: &FileCore<P, V>, pages: IndexRange) -> Result<(), Busy> {
        let _alone = file.invalidate.write(self.platform());
        let mut busy = 0;
        self.for_each_folio(file, pages, Filter::All, |at| match self.lock_found(file, at, false) {
            Some(folio) if self.is_unneeded(&folio) => self.remove(file, at.0, &folio),
            _ => busy += Order::ZERO.pages(),
        });
        if busy == 0 { Ok(()) } else { Err(Busy { pages: busy }) }
    }

    /// Whether nothing needs a locked folio: there are the references of the cache and of the caller only.
    fn is_unneeded(self, folio: &LockedFolio<'m, P>) -> bool {
        let word = folio.frame().word();
        let in_use = FrameFlags::DIRTY | FrameFlags::WRITEBACK;
        folio.frame().as_folio().maps() == 0 && word.refs() == 2 && !word.flags().intersects(in_use)
    }
}

/// A page at the edge of a hole, with a reference.
struct Edge<'m, P: Platform> {
    index: PageIndex,
    head: Pfn,
    bytes: Range<u64>,
    prepared: Prepared,
    _reference: FolioReference<'m, P>,
}

/// The bytes of a hole that are not in its whole pages: those before these, and those behind.
fn edges_of(start: u64, end: u64, whole: IndexRange) -> impl Iterator<Item = Range<u64>> {
    let (first, last) = (whole.start() << PAGE_SHIFT, whole.end() << PAGE_SHIFT);
    let (before, behind) = if whole.is_empty() && start >> PAGE_SHIFT == (end - 1) >> PAGE_SHIFT {
        (start..end, end..end)
    } else {
        (start..first, last.max(start)..end)
    };
    [before, behind].into_iter().filter(|edge| !edge.is_empty())
}

impl<P: Platform, V: Mapping> PageCache<'_, P, V> {
    /// Changes what is stored of a file from the page on that has byte `from`, and its size to `size`, for
    /// calls that move bytes within the file (`FALLOC_FL_COLLAPSE_RANGE`, `FALLOC_FL_INSERT_RANGE`). What is
    /// dirty there is written first. `change` is called when no page from there on is cached, and none can
    /// come. As in Linux, programs lose their copies of these pages. The caller keeps other calls away that
    /// write to the file or change its size. May sleep.
    ///
    /// # Errors
    ///
    /// [`PageError::TooLarge`]; a page could not be written, or `change` failed: the file has what is stored,
    /// and the size that it had.
    pub fn replace_from(
        self,
        file: &FileCore<P, V>,
        (from, size): (u64, u64),
        users: &dyn FileUsers<P, V>,
        change: &mut dyn FnMut() -> Result<(), FileError>,
    ) -> Result<(), PageError> {
        if size > MAX_FILE_BYTES {
            return Err(PageError::TooLarge);
        }
        let _alone = file.invalidate.write(self.platform());
        // With the pages of the old and of the new end: what is past an end is not stored.
        let first = from.min(size).min(file.size()) >> PAGE_SHIFT;
        let pages = IndexRange::new(first, IndexRange::ALL.end());
        let _cut = file.cut();
        let mut attempt = 0;
        loop {
            self.write_back(file, pages, Wait::Yes, users)?;
            users.unmap(file, pages, true);
            if self.remove_clean(file, pages) {
                break;
            }
            P::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
        // Copies that were made of pages that were cached still.
        users.unmap(file, pages, true);
        change()?;
        // Release: pairs with the load of a thread that has locked a folio.
        file.size.store(size, Ordering::Release);
        Ok(())
    }

    /// Makes zeros of whole pages, of which the backing frees what it has stored; copies that programs have
    /// made stay. May sleep; nothing is locked.
    ///
    /// # Errors
    ///
    /// The backing's: the pages are what is stored.
    pub fn remove_pages(
        self,
        file: &FileCore<P, V>,
        bytes: Range<u64>,
        users: &dyn FileUsers<P, V>,
    ) -> Result<(), FileError> {
        let _alone = file.invalidate.write(self.platform());
        // A call that makes the file larger comes before, or after this.
        let pages = CachedFile::<P>::pages_of(bytes.start..bytes.end.min(file.size()));
        if pages.is_empty() {
            return Ok(());
        }
        let _cut = file.cut();
        users.unmap(file, pages, false);
        self.remove_range(file, pages, users);
        file.backing().punch(pages.start() << PAGE_SHIFT..pages.end() << PAGE_SHIFT)
    }

    /// Removes the folios of these pages that nothing maps and that need not be written, and returns whether
    /// these are all. A folio that is locked meanwhile can become neither. Invalidate is held exclusively.
    fn remove_clean(self, file: &CachedFile<P>, pages: IndexRange) -> bool {
        let mut all = true;
        self.for_each_folio(file, pages, Filter::All, |at @ (index, head)| {
            let Some(folio) = self.lock_found(file, at, true) else { return };
            let flags = folio.frame().word().flags();
            // One that is pinned stays dirty, and has been written.
            let is_dirty = flags.contains(FrameFlags::DIRTY) && !self.frames().folio(head).may_be_pinned();
            let is_mapped = folio.frame().as_folio().maps() != 0;
            if is_mapped || is_dirty || flags.contains(FrameFlags::WRITEBACK) {
                all = false;
            } else {
                self.remove(file, index, &folio);
            }
        });
        all
    }
}
