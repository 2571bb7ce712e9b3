//! Collapse: what a file has of an aligned block becomes one large folio.
//!
//! Of shared memory, holes become zeros. Of any other file, which must be open for writing nowhere, the
//! caller reads what is missing first, and everything is clean.
//!
//! Everything that is allocated comes first. Then, with Invalidate held alone, the folios of the block are
//! locked and unmapped. From then on nothing writes to them, and who looks one up waits for its lock, finds
//! that it has left, and looks again. So they are copied, and one word takes the place of theirs. A pin is
//! all that another thread may have of a folio without its lock: then nothing is changed.

use super::PageCache;
use super::held_folios::{HeldFolios, MOST};
use super::new_folio::SITE;
use crate::cached_file::{CachedPages, OnlyRead, UNUSED, UnusedPages};
use crate::entry::{Entry, Payload, Stored};
use crate::error::{PageError, SwappedPage};
use crate::file_core::{FileCore, Mapping};
use crate::index::{IndexRange, PageIndex};
use crate::locked_folio::LockedFolio;
use crate::store::Filter;
use crate::users::FileUsers;
use core::fmt;
use quire_arch::{Order, Pfn, Platform};
use quire_frame::{AllocRequest, FolioGuard, Frame, FrameFlags, Migratetype, OwnerWord, VmEvent};
use quire_memcg::{Membership, MemcgStat, Memcgs, OverLimit};
use quire_sync::atomic::raw::Ordering;

/// Times that a folio is tried that others hold for a moment, and that a block is that others fill.
const ATTEMPTS: u32 = 16;

/// Entries that are looked at under one hold of the store's lock.
const AT_ONCE: usize = 16;

/// What a file has of a block, at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockFigures {
    /// Pages that are cached.
    pub cached: u64,
    /// Pages that are on swap devices.
    pub swapped: u64,
    /// Whether one folio has all of them.
    pub is_whole: bool,
    /// Whether a folio is pinned.
    pub is_pinned: bool,
}

/// Why a block is as it was; programs may have lost entries for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockRefusal {
    /// The shared memory has nothing of it.
    Empty,
    /// A folio of it is pinned, or in use by another thread all the time.
    Busy,
    /// A page of it is to be brought in first.
    Missing(MissingPage),
    /// The file's owner has no room for the holes; or it has a page behind the end that no program has used.
    NoRoom,
    /// The file, which is not shared memory, ends within it.
    PastEnd,
    /// A folio of it is dirty, or being written: in a file that none writes to, from before.
    Dirty,
    /// The file, which is not shared memory, is open for writing.
    Written,
}

/// A page that is not cached, and has contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MissingPage {
    /// It is on a swap device.
    Swapped(SwappedPage),
    /// The backing has it.
    Unread(PageIndex),
}

impl MissingPage {
    /// Where it is in the file.
    pub const fn index(self) -> PageIndex {
        match self {
            Self::Swapped(page) => page.index,
            Self::Unread(index) => index,
        }
    }
}

/// A charged folio for a block, and a frame for the list of the folios that it replaces. Both are freed if
/// they are not used.
pub struct NewBlock<'m, P: Platform> {
    memcgs: &'m Memcgs<P>,
    head: Option<Pfn>,
    order: Order,
    list: Pfn,
}

impl<P: Platform> Drop for NewBlock<'_, P> {
    fn drop(&mut self) {
        let frames = self.memcgs.frames();
        let pin = frames.platform().pin();
        let freed = frames.free(&pin, self.list, Order::ZERO);
        debug_assert!(freed.is_ok(), "{:?} was allocated for a list", self.list);
        if let Some(head) = self.head {
            self.memcgs.folios().release_unused(&pin, head, self.order);
        }
    }
}

impl<P: Platform> fmt::Debug for NewBlock<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewBlock").field("head", &self.head).finish_non_exhaustive()
    }
}

/// An aligned block of a file.
pub struct FileBlock<'c, 'm, P: Platform, V: Mapping> {
    cache: PageCache<'m, P, V>,
    file: &'c FileCore<P, V>,
    start: PageIndex,
    order: Order,
}

/// Why one attempt came to nothing.
enum Failed {
    /// For good.
    Refused(BlockRefusal),
    /// The file has other holes by now.
    Changed,
}

impl From<BlockRefusal> for Failed {
    fn from(refusal: BlockRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl<'c, 'm, P: Platform, V: Mapping> FileBlock<'c, 'm, P, V> {
    /// The block of `order` that begins at page `start`, if one begins there.
    pub fn of(
        cache: PageCache<'m, P, V>,
        file: &'c FileCore<P, V>,
        (start, order): (PageIndex, Order),
    ) -> Option<Self> {
        let is_one = start.is_aligned(order) && order.pages() <= MOST as u64;
        is_one.then_some(Self { cache, file, start, order })
    }

    fn pages(&self) -> IndexRange {
        IndexRange::block(self.start, self.order)
    }

    /// What the file has of it.
    pub fn look(&self) -> BlockFigures {
        let mut figures = BlockFigures::default();
        let frames = self.cache.frames();
        let mut rest = self.pages();
        while !rest.is_empty() {
            rest = self.file.with_store(frames, |store| {
                let found = store.batch::<AT_ONCE>(rest, Filter::All);
                for stored in &found {
                    let pages = stored.range().intersect(self.pages()).pages();
                    match stored.entry {
                        Entry::Folio(head) => {
                            figures.cached += pages;
                            figures.is_whole |= stored.order >= self.order;
                            // The cache has a reference as long as the lock is held.
                            figures.is_pinned |= frames.folio(head).may_be_pinned();
                        }
                        Entry::Slot(_) => figures.swapped += pages,
                        Entry::Shadow(_) => {}
                    }
                }
                found.last().map_or(IndexRange::default(), |last| {
                    IndexRange::new(last.range().end(), self.pages().end())
                })
            });
        }
        figures
    }

    /// The first page of it that is to be brought in.
    ///
    /// # Errors
    ///
    /// It is behind the end of the file.
    pub fn next_missing(&self) -> Result<Option<MissingPage>, BlockRefusal> {
        if !self.file.is_shmem() {
            return self.next_unread();
        }
        let pages = (self.pages().start(), self.pages().end());
        match self.cache.shmem().next(self.file, pages, |_| true) {
            Some(page) if self.file.ends_before(page.index) => Err(BlockRefusal::NoRoom),
            found => Ok(found.map(MissingPage::Swapped)),
        }
    }

    fn next_unread(&self) -> Result<Option<MissingPage>, BlockRefusal> {
        if !self.file.reaches(self.pages()) {
            return Err(BlockRefusal::PastEnd);
        }
        let mut rest = self.pages();
        while !rest.is_empty() {
            let part = rest.intersect(IndexRange::new(rest.start(), rest.start() + u64::from(u32::BITS)));
            let missing = CachedPages::of(self.file).missing(self.cache.frames(), part);
            if missing != 0 {
                let first = part.start() + u64::from(missing.trailing_zeros());
                return Ok(PageIndex::new(first).map(MissingPage::Unread));
            }
            rest = IndexRange::new(part.end(), rest.end());
        }
        Ok(None)
    }

    /// A folio for it, charged to `program`. It is allocated once, and charged again for as long as
    /// `make_room`, which is called without a pin, has made room in the memcg.
    ///
    /// # Errors
    ///
    /// There is no memory, which the caller counts if it gives up, or the memcg stays at its limit.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate(
        &self,
        program: &Membership,
        mut make_room: impl FnMut(OverLimit) -> bool,
    ) -> Result<NewBlock<'m, P>, PageError> {
        let memcgs = self.cache.memcgs;
        let new = self.allocate_uncharged()?;
        let Some(head) = new.head else { return Ok(new) };
        loop {
            let over = {
                let pin = self.cache.platform().pin();
                match memcgs.programs().charge_collapsed(&pin, program, head, self.order) {
                    Ok(()) => {
                        memcgs.programs().count(&pin, program, MemcgStat::ThpCollapseAlloc);
                        return Ok(new);
                    }
                    Err(over) => over,
                }
            };
            if !make_room(over) {
                return Err(PageError::OverLimit(over));
            }
        }
    }

    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate_uncharged(&self) -> Result<NewBlock<'m, P>, PageError> {
        let (frames, memcgs) = (self.cache.frames(), self.cache.memcgs);
        let pin = self.cache.platform().pin();
        let list = frames.allocate(&pin, AllocRequest::new(Order::ZERO, SITE))?;
        let mut new = NewBlock { memcgs, head: None, order: self.order, list };
        let request = AllocRequest::new(self.order, SITE).movability(Migratetype::Movable);
        let head = frames.allocate(&pin, request.kind(self.file.kind()))?;
        frames.known(head).as_folio().set_owner(OwnerWord::NONE);
        frames.known(head).as_folio().set_maps(0);
        new.head = Some(head);
        frames.events().add(&pin, VmEvent::ThpCollapseAlloc, 1);
        Ok(new)
    }

    /// Puts the folio `new`, which is not used any more then, in the place of what the file has of the block,
    /// with zeros in its holes. A block that one folio has is left as it is. May sleep; nothing is held.
    ///
    /// # Errors
    ///
    /// See [`BlockRefusal`].
    #[inline(never)]
    pub fn replace(
        &self,
        new: &mut NewBlock<'m, P>,
        users: &dyn FileUsers<P, V>,
    ) -> Result<(), BlockRefusal> {
        let mut attempt = 0;
        loop {
            let figures = self.look();
            if figures.is_whole {
                return Ok(());
            }
            if let Some(page) = self.next_missing()? {
                return Err(BlockRefusal::Missing(page));
            }
            if figures.cached == 0 {
                return Err(BlockRefusal::Empty);
            }
            if figures.is_pinned && attempt >= ATTEMPTS {
                return Err(BlockRefusal::Busy);
            }
            attempt += 1;
            if figures.is_pinned {
                // A thread that looks for what a frame was before may have pinned it for a moment.
                P::relax(attempt);
                continue;
            }
            // What another file lacks by now was to be brought in.
            let holes = if self.file.is_shmem() { self.order.pages() - figures.cached } else { 0 };
            self.file.take_pages(holes).map_err(|_| BlockRefusal::NoRoom)?;
            let failed = match self.replace_taken((new, holes), users) {
                Ok(()) => return Ok(()),
                Err(failed) => failed,
            };
            self.file.give_back_pages(holes);
            match failed {
                Failed::Refused(refusal) => return Err(refusal),
                Failed::Changed if attempt >= ATTEMPTS => return Err(BlockRefusal::Busy),
                Failed::Changed => P::relax(attempt),
            }
        }
    }

    /// The same, when the owner has given so many holes.
    fn replace_taken(
        &self,
        (new, holes): (&mut NewBlock<'m, P>, u64),
        users: &dyn FileUsers<P, V>,
    ) -> Result<(), Failed> {
        let Self { cache, file, order, .. } = *self;
        let Some(head) = new.head else { return Ok(()) };
        let alone = file.invalidate.write(cache.platform());
        let mut held = HeldFolios::new(cache, new.list);
        self.lock_all(&mut held)?;
        if self.order.pages() - held.pages != holes {
            return Err(Failed::Changed);
        }
        // Each mapping is flushed once. None comes while the folios are locked; one that is in transit is
        // waited for.
        users.unmap(file, self.pages(), false);
        for nth in 0..held.count {
            let folio = held.lend(nth);
            cache.unmap_locked(file, &folio, users);
            if self.is_pinned(&folio) {
                return Err(BlockRefusal::Busy.into());
            }
            self.check_clean(folio.frame())?;
        }
        self.begin_large()?;
        // Nothing fails from here on.
        self.copy(&held, head);
        let guard = self.lock_new(head);
        self.publish(head);
        new.head = None;
        let folio = LockedFolio::new(cache.memcgs, head, guard);
        file.count_came(cache.memcgs, head, order);
        if file.is_shmem() {
            cache.shmem().list(file, head);
        }
        while let Some(old) = held.pop() {
            cache.disown(file, &old);
            if file.is_shmem() {
                cache.shmem().leave_unnamed(old);
            }
        }
        drop(held);
        // Its lock keeps faults away while mmap locks are tried, which come before Invalidate.
        drop(alone);
        users.free_tables(file, self.pages());
        drop(folio);
        Ok(())
    }

    /// Locks the folios that the file has of the block. Invalidate is held exclusively.
    fn lock_all(&self, held: &mut HeldFolios<'m, P, V>) -> Result<(), Failed> {
        let Self { cache, file, .. } = *self;
        let frames = cache.frames();
        let mut rest = self.pages();
        loop {
            let found = file.with_store(frames, |store| {
                let stored = store.next(rest, Filter::All)?;
                match stored.entry {
                    // The cache has a reference as long as the lock is held.
                    Entry::Folio(head) => frames.known(head).get(1).then_some((stored, head)).map(Ok),
                    Entry::Slot(Payload::LOST) => Some(Err(BlockRefusal::NoRoom.into())),
                    Entry::Slot(_) | Entry::Shadow(_) => Some(Err(Failed::Changed)),
                }
            });
            let Some(found) = found else { return Ok(()) };
            let (stored, head) = found?;
            let reference = cache.hold(head);
            if stored.order >= self.order {
                return Err(Failed::Changed);
            }
            let is_unused = file.is_shmem() && UnusedPages::of(file).has(frames, stored.start);
            if is_unused && file.ends_before(stored.start) {
                return Err(BlockRefusal::NoRoom.into());
            }
            let mut attempt = 0;
            let guard = loop {
                if let Some(guard) = frames.folios().try_lock_folio(head) {
                    break guard;
                }
                if attempt == ATTEMPTS {
                    return Err(BlockRefusal::Busy.into());
                }
                P::relax(attempt);
                attempt += 1;
            };
            // No thread takes it out of the file, or splits it, while Invalidate is held.
            debug_assert!(file.has(frames.known(head), stored.start), "{head:?} has left the file");
            let _ = reference.into_head();
            held.push(head, stored.order, guard);
            self.check_clean(frames.known(head))?;
            rest = IndexRange::new(stored.range().end(), rest.end());
        }
    }

    /// Refuses a locked folio of a file that is to be written, or is being written. Shared memory is dirty.
    fn check_clean(&self, frame: &Frame) -> Result<(), BlockRefusal> {
        let is_dirty = frame.word().flags().intersects(FrameFlags::DIRTY | FrameFlags::WRITEBACK);
        if is_dirty && !self.file.is_shmem() { Err(BlockRefusal::Dirty) } else { Ok(()) }
    }

    /// Counts the new folio, if the file may have it only while none writes to it, and refuses it where it is
    /// open for writing. What there is of the block is locked, and Invalidate held exclusively: so who opens
    /// it from now on finds the folio.
    fn begin_large(&self) -> Result<(), BlockRefusal> {
        let Self { file, order, .. } = *self;
        let counted = u64::from(OnlyRead::of(file).limits(order));
        if file.is_shmem() || file.access.begin_large(counted) { Ok(()) } else { Err(BlockRefusal::Written) }
    }

    /// Whether a locked folio that nothing maps is pinned, and stays so.
    fn is_pinned(&self, folio: &LockedFolio<'m, P>) -> bool {
        // A fast pin that is not found finds that its entry is gone.
        let is_pinned = || self.cache.frames().folio(folio.head()).may_be_pinned_after_unmap();
        (0..ATTEMPTS).all(|attempt| {
            if attempt > 0 {
                P::relax(attempt);
            }
            is_pinned()
        })
    }

    /// Copies what the locked folios have to the one at `head`, which is new, with zeros between.
    fn copy(&self, held: &HeldFolios<'m, P, V>, head: Pfn) {
        let platform = self.cache.platform();
        let mut next = self.start.get();
        let zero = |from: u64, to: u64| {
            for page in from..to {
                // SAFETY: the new folio is this call's, and has the page.
                unsafe { platform.zero_user(head.offset(page - self.start.get()), Order::ZERO) };
            }
        };
        for nth in 0..held.count {
            let folio = held.lend(nth);
            let pages = folio.range();
            zero(next, pages.start());
            next = pages.end();
            let to = head.offset(pages.start() - self.start.get());
            // SAFETY: the new folio is this call's, and has the pages; the old one is locked, and mapped and
            // pinned by no thread, so nothing is written to it.
            unsafe { platform.copy_user(folio.head(), to, folio.order()) };
        }
        zero(next, self.pages().end());
    }

    /// The lock of the new folio at `head`. A thread that looks for what its frame was before may have it for
    /// a moment.
    fn lock_new(&self, head: Pfn) -> FolioGuard<'m, P> {
        let mut attempt = 0;
        loop {
            if let Some(guard) = self.cache.frames().folios().try_lock_folio(head) {
                return guard;
            }
            P::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
    }

    /// Puts the folio at `head`, which is locked and has its contents, in the place of all that the store has
    /// of the block: folios that are locked.
    fn publish(&self, head: Pfn) {
        let Self { cache, file, start, order } = *self;
        let frame = cache.frames().known(head);
        if let Some(shmem) = file.shmem() {
            shmem.has_large.store(true, Ordering::Relaxed);
        }
        let dirty = if file.is_shmem() { FrameFlags::DIRTY } else { FrameFlags::empty() };
        frame.set_flags(FrameFlags::SHARED_BY_NAME | dirty);
        frame.as_folio().set_index(start.get());
        frame.as_folio().set_owner(file.owner_word());
        let got = frame.get(1);
        debug_assert!(got, "a new folio has one reference");
        let is_merged = file.with_store(cache.frames(), |store| {
            let mut rest = self.pages();
            // As a program that used each of them.
            while file.is_shmem()
                && let Some(stored) = store.next(rest, Filter::Tagged(UNUSED))
            {
                UnusedPages::of(file).unmark(store, stored.start);
                rest = IndexRange::new(stored.range().end(), rest.end());
            }
            store.merge(Stored { start, order, entry: Entry::Folio(head) })
        });
        debug_assert!(is_merged, "nothing was in the place of {head:?}");
    }
}

impl<P: Platform, V: Mapping> fmt::Debug for FileBlock<'_, '_, P, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBlock").field("pages", &self.pages()).finish_non_exhaustive()
    }
}
