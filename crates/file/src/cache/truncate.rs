//! Taking pages out of the cache: truncation, holes, invalidation, moves of what is stored.
//!
//! The size is changed first; then the pages are unmapped everywhere and removed, one locked folio after the
//! other. A fault that locked a folio before it was removed finds the old size, and what it maps is unmapped
//! with the folio's lock held; one that comes later finds the new size. A folio in which the file ends that
//! cannot be cut there stays: what it has past the end is zeros, and mapped nowhere.

use super::PageCache;
use super::cut::{Cut, Cutter};
use super::hole::{Hole, edges_of};
use super::seal::{check_size, check_write};
use super::writeback::Wait;
use crate::backing::FileError;
use crate::cached_file::{CachedFile, MAX_FILE_BYTES};
use crate::error::{Busy, PageError};
use crate::file_core::{FileCore, Mapping};
use crate::index::{IndexRange, PageIndex};
use crate::locked_folio::LockedFolio;
use crate::store::Filter;
use crate::users::{Cleaned, FileUsers};
use arrayvec::ArrayVec;
use core::ops::Range;
use quire_arch::{PAGE_SHIFT, PAGE_SIZE, Platform};
use quire_frame::{Folio, FrameFlags, Kind};
use quire_memcg::Membership;
use quire_sync::atomic::raw::Ordering;

impl<'m, P: Platform, V: Mapping> PageCache<'m, P, V> {
    /// Changes the size of a file. What is past the new one leaves the cache, and programs lose their copies
    /// of it, too; what is new is zeros. The caller keeps other calls away that write to the file or change
    /// its size. May sleep.
    ///
    /// # Errors
    ///
    /// [`PageError::TooLarge`], [`PageError::Sealed`], or [`PageError::Swapped`] for the page that the new
    /// end is in; [`PageError::NoMemory`] for the nodes of what is swapped out in one piece. Nothing has
    /// changed then.
    pub fn set_size(
        self,
        file: &FileCore<P, V>,
        size: u64,
        users: &dyn FileUsers<P, V>,
    ) -> Result<(), PageError> {
        if size > MAX_FILE_BYTES {
            return Err(PageError::TooLarge);
        }
        let nodes = file.memory().nodes(self.frames());
        let cutter = Cutter { cache: self, file, users };
        loop {
            let had_large = cutter.has_large();
            let mut reserve = cutter.reserve(&nodes, 1);
            let _alone = file.invalidate.write(self.platform());
            if cutter.has_large() != had_large {
                continue;
            }
            check_size(file, size)?;
            let tail = (size & (PAGE_SIZE - 1) != 0).then(|| PageIndex::new(size >> PAGE_SHIFT)).flatten();
            if size > file.size() {
                self.extend(file, size, users);
                return Ok(());
            }
            tail.map_or(Ok(()), |tail| self.shmem().check_part(file, tail))?;
            // None is paged out while Invalidate is held.
            if let (1.., Err(short)) = (file.swapped.load(Ordering::Relaxed), &reserve) {
                // What is swapped out in one piece has to be divided.
                return Err(PageError::NoMemory(*short));
            }
            let _cut = file.cut();
            // Release: pairs with the load of a thread that has locked a folio.
            file.size.store(size, Ordering::Release);
            let gone = IndexRange::new(size.div_ceil(PAGE_SIZE), IndexRange::ALL.end());
            users.unmap(file, gone, true);
            if let Some(shmem) = file.shmem() {
                shmem.allocated.cut(gone);
            }
            // Where memory is short, or the folio is held, all of it stays, as in Linux.
            let isolated = match &mut reserve {
                Ok(reserve) if file.is_shmem() => {
                    let [first, _] = cutter.isolate_ends(&(size..gone.bytes().end), (&nodes, reserve));
                    first
                }
                _ => Cut::Done,
            };
            if isolated == Cut::Done {
                let _ = cutter.cut_at(gone.start(), (&nodes, reserve.as_mut().ok()));
            }
            self.zero_behind(file, size);
            self.remove_range(file, gone, users);
            // Copies that programs have made for themselves in the meantime, of what was not unmapped yet.
            users.unmap(file, gone, true);
            return Ok(());
        }
    }

    /// Makes a file larger. Bytes of its last folio that are past the end come to be in it, as zeros: what a
    /// program wrote there by a mapping is gone, unless the [limits](crate::IoLimits::tail_stays) say
    /// otherwise of the last page, or it is shared memory. Invalidate is held.
    pub(super) fn extend(self, file: &FileCore<P, V>, size: u64, users: &dyn FileUsers<P, V>) {
        let grow = || file.size.fetch_max(size, Ordering::Release);
        let mut attempt = 0;
        loop {
            let old = file.size();
            if size <= old {
                return;
            }
            let first = file.zeros_from(old);
            let Some(folio) = self.cached_folio_of(file, first) else {
                grow();
                return;
            };
            // An entry in transit can still write there.
            if self.clean(file, &folio, users) == Cleaned::All {
                folio.zero(&(first..folio.bytes().end));
                grow();
                return;
            }
            drop(folio);
            P::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
    }

    /// The folio in which the byte `at` is, but not as its first one, locked, if there is one.
    fn cached_folio_of(self, file: &CachedFile<P>, at: u64) -> Option<LockedFolio<'m, P>> {
        let before = at.checked_sub(1)?;
        let index = PageIndex::new(before >> PAGE_SHIFT)?;
        // A page that could not be read is not cached.
        let folio = self.lock_cached(file, index).ok().flatten()?;
        (at < folio.bytes().end).then_some(folio)
    }

    /// Fills what the folio in which the byte `end` is has from there on with zeros, if it is cached.
    fn zero_behind(self, file: &CachedFile<P>, end: u64) {
        if let Some(folio) = self.cached_folio_of(file, end) {
            self.transfers(file).wait_written(folio.head());
            folio.zero(&(end..folio.bytes().end));
        }
    }

    /// Makes bytes of a file zeros (`FALLOC_FL_PUNCH_HOLE`, `FALLOC_FL_ZERO_RANGE`), also past its end in the
    /// last page. Pages that are all in the hole leave the cache; copies that programs have made stay. Where
    /// the hole begins or ends within a page that is written as zeros. The caller keeps other calls away that
    /// write to the file or change its size. May sleep. `program` pays.
    ///
    /// `free` frees what is stored of the bytes of whole pages that it is called with, of which the last may
    /// have the end of the file. It is called once, if there are such: when no page of them is cached or
    /// being written, and none can come, since Invalidate is held alone. So what it frees is neither read
    /// before nor written after.
    ///
    /// # Errors
    ///
    /// [`PageError::Sealed`]; there is no memory; a page at the edge of the hole could not be had, or there
    /// is no space for it; nothing has changed then. Or `free` failed: the whole pages that it was called
    /// with have what is stored.
    pub fn punch(
        self,
        file: &FileCore<P, V>,
        bytes: Range<u64>,
        program: &Membership,
        users: &dyn FileUsers<P, V>,
        free: &mut dyn FnMut(Range<u64>) -> Result<(), FileError>,
    ) -> Result<(), PageError> {
        check_write(file, 0)?;
        // A program may have written past the end in the last page; there is nothing behind that.
        let last = match file.is_shmem() {
            true => MAX_FILE_BYTES,
            false => file.size().next_multiple_of(PAGE_SIZE),
        };
        let (start, end) = (bytes.start, bytes.end.min(last));
        if start >= end {
            return Ok(());
        }
        let whole = IndexRange::new(start.div_ceil(PAGE_SIZE), end >> PAGE_SHIFT);
        let hole = Hole(Cutter { cache: self, file, users });
        let find = &mut || Ok((hole.bring_in_edges(edges_of(start, end, whole), program)?, whole));
        hole.make(&(start..end), free, find)
    }

    /// Makes zeros of whole pages, of which the backing frees what it has stored; copies that programs have
    /// made stay. May sleep; nothing is locked.
    ///
    /// # Errors
    ///
    /// There is no memory, or no space for a folio that others hold; nothing has changed then. Or the
    /// backing's: the pages that it was to free are what is stored.
    pub fn remove_pages(
        self,
        file: &FileCore<P, V>,
        bytes: Range<u64>,
        users: &dyn FileUsers<P, V>,
    ) -> Result<(), PageError> {
        let pages = CachedFile::<P>::pages_of(bytes);
        let free = &mut |bytes| file.backing().punch(bytes);
        let hole = Hole(Cutter { cache: self, file, users });
        hole.make(&pages.bytes(), free, &mut || Ok((ArrayVec::new(), pages)))
    }

    /// Drops the folios of these pages that nothing needs: what is stored may have changed. May sleep.
    ///
    /// # Errors
    ///
    /// Some are dirty, being written, mapped or held; all others are gone.
    pub fn invalidate(self, file: &FileCore<P, V>, pages: IndexRange) -> Result<(), Busy> {
        let _alone = file.invalidate.write(self.platform());
        let mut busy = 0;
        self.for_each_folio(file, pages, Filter::All, |at| {
            // The reference that is given back with the folio keeps it from being split.
            let in_use = self.frames().known(at.1).word().order().pages();
            match self.lock_found(file, at, false) {
                Some(folio) if self.is_unneeded(&folio) => self.remove(file, &folio),
                _ => busy += in_use,
            }
        });
        if busy == 0 { Ok(()) } else { Err(Busy { pages: busy }) }
    }

    /// Whether nothing needs a locked folio: there are the references of the cache and of the caller only.
    /// Shared memory is stored nowhere else, and a program writes to a page that it has read without a fault
    /// that marks it: without the mark it is needed unless it is what a hole is.
    fn is_unneeded(self, folio: &LockedFolio<'m, P>) -> bool {
        let word = folio.frame().word();
        let in_use = FrameFlags::DIRTY | FrameFlags::WRITEBACK;
        folio.frame().as_folio().maps() == 0
            && word.refs() == 2
            && !word.flags().intersects(in_use)
            && (word.kind() != Kind::Shmem || self.frames().is_zero(folio.head(), word.order()))
    }
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
    /// [`PageError::TooLarge`]; [`PageError::NotSupported`] for shared memory; a page could not be written,
    /// or `change` failed: the file has what is stored, and the size that it had.
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
        if file.is_shmem() {
            // Nothing is stored of it.
            return Err(PageError::NotSupported);
        }
        let _alone = file.invalidate.write(self.platform());
        // With the pages of the old and of the new end: what is past an end is not stored.
        let first = from.min(size).min(file.size()) >> PAGE_SHIFT;
        let pages = IndexRange::new(first, IndexRange::ALL.end());
        let _cut = file.cut();
        let mut attempt = 0;
        loop {
            self.write_back(file, pages, Wait::Yes, users)?;
            // One that is pinned stays dirty, and has been written.
            if self.remove_clean(file, pages, |folio| !folio.may_be_pinned(), users) {
                break;
            }
            P::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
        // The copies that programs have made.
        users.unmap(file, pages, true);
        change()?;
        // Release: pairs with the load of a thread that has locked a folio.
        file.size.store(size, Ordering::Release);
        Ok(())
    }

    /// Removes the folios that have some of these pages and need not be written, and returns whether these
    /// are all. `is_unwritten` says of a dirty one whether it must be. Each is unmapped with its lock held:
    /// so what a program writes until that is flushed finds it dirty, or no other thread makes it clean
    /// meanwhile. Invalidate is held exclusively.
    pub(super) fn remove_clean(
        self,
        file: &FileCore<P, V>,
        pages: IndexRange,
        is_unwritten: impl Fn(Folio<'_>) -> bool,
        users: &dyn FileUsers<P, V>,
    ) -> bool {
        let mut all = true;
        self.for_each_folio(file, pages, Filter::All, |at @ (_, head)| {
            let Some(folio) = self.lock_found(file, at, true) else { return };
            self.unmap_locked(file, &folio, users);
            let flags = folio.frame().word().flags();
            let is_dirty = flags.contains(FrameFlags::DIRTY) && is_unwritten(self.frames().folio(head));
            if is_dirty || flags.contains(FrameFlags::WRITEBACK) {
                all = false;
            } else {
                self.remove(file, &folio);
            }
        });
        all
    }
}
