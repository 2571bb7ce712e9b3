//! An open file that a call holds while nothing is locked.

use super::{CALL_ATTEMPTS, Spaces};
use crate::error::Error;
use core::ops::Range;
use core::ptr::NonNull;
use quire_arch::{Order, OrderSet, Platform};
use quire_fault::{Ahead, Need, SwapIn, SwapInError};
use quire_file::{
    BlockRefusal, FileBlock, FileError, IndexRange, LargeOrders, MissingPage, OpenFile, Opening, PageError,
    PageIndex, SwappedPage, Wait,
};
use quire_frame::AllocError;
use quire_pageout::FileMappers;
use quire_thp::{CollapseError, CollapseLimits};
use quire_vma::{SpaceCore, Vma};

/// How often what is paged out again is brought back for a collapse, and a page of it is asked for.
const ATTEMPTS: u32 = 4;

/// Pages that are read ahead of one mapping at most: 8 MiB. Linux's bound depends on the device, as the
/// largest request of a disk (`force_page_cache_ra`).
const MOST_AHEAD: u64 = 2048;

/// A holder's share of an open file. Dropping it may close the file, so nothing is locked then.
#[derive(Debug)]
pub(crate) struct HeldOpening<'s, P: Platform> {
    spaces: &'s Spaces<P>,
    opening: NonNull<Opening<Vma>>,
}

// SAFETY: an opening is Send and Sync, and so are the spaces.
unsafe impl<P: Platform> Send for HeldOpening<'_, P> {}
// SAFETY: as for `Send`.
unsafe impl<P: Platform> Sync for HeldOpening<'_, P> {}

impl<'s, P: Platform> HeldOpening<'s, P> {
    /// One more share, beside that of a VMA that is held meanwhile.
    pub(crate) fn new(spaces: &'s Spaces<P>, opening: &Opening<Vma>) -> Self {
        opening.hold();
        Self { spaces, opening: NonNull::from(opening) }
    }

    /// Writes what is dirty of these bytes to the file and makes it lasting, as Linux's `msync` does: what is
    /// not needed to read it again may be left out.
    ///
    /// # Errors
    ///
    /// An error of writeback that the opening has not been told of.
    pub(crate) fn sync(&self, bytes: Range<u64>) -> Result<(), FileError> {
        // SAFETY: VMAs name openings of this machine's files only, and this is a holder.
        let open = unsafe { OpenFile::<P, Vma>::of(self.opening) };
        let mappers = FileMappers::new(self.spaces.rmap());
        self.spaces.page_cache().sync(open, bytes, true, &mappers)
    }

    /// Makes a hole of these bytes, which are whole pages.
    ///
    /// # Errors
    ///
    /// [`Error::NotSupportedByFile`], [`Error::Sealed`], [`Error::NoFrames`], or the backing's.
    pub(crate) fn remove(&self, bytes: Range<u64>) -> Result<(), Error> {
        // SAFETY: as in `sync`.
        let file = unsafe { OpenFile::<P, Vma>::of(self.opening) }.file();
        if !file.has_holes() {
            return Err(Error::NotSupportedByFile);
        }
        let mappers = FileMappers::new(self.spaces.rmap());
        let mut failed = 0;
        loop {
            match self.spaces.page_cache().remove_pages(file, bytes.clone(), &mappers) {
                Ok(()) => return Ok(()),
                Err(PageError::File(error)) => return Err(Error::File(error)),
                Err(PageError::Sealed) => return Err(Error::Sealed),
                Err(PageError::NoMemory(cause)) => {
                    failed += 1;
                    let may_help = cause != AllocError::Injected && failed < CALL_ATTEMPTS;
                    let need = Need::Frames(Order::ZERO);
                    if !may_help || !self.spaces.direct_reclaim().free_some(cause, need) {
                        return Err(Error::NoFrames(cause));
                    }
                }
                // Nothing is asked of the program's pages or memcg.
                Err(_) => return Err(Error::NoFrames(AllocError::OutOfMemory)),
            }
        }
    }

    /// Makes one folio of the block of `order` that begins at page `start`, if it is within `limits`, charged
    /// to the program in `core`. `make_room`, which is called without a pin, makes room in its memcg, for the
    /// folio and for what is read, and kills no program. Of what is not shared memory missing pages are read,
    /// and dirty ones begin to be written, for the next time. Nothing is locked. Returns false where one
    /// folio has it already.
    ///
    /// # Errors
    ///
    /// Why it did not; there is no folio, which the caller counts if it gives up.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn collapse(
        &self,
        core: &SpaceCore,
        (start, order): (PageIndex, Order),
        limits: CollapseLimits,
        make_room: &mut dyn FnMut(Need) -> bool,
    ) -> Result<bool, CollapseError> {
        // SAFETY: as in `sync`.
        let file = unsafe { OpenFile::<P, Vma>::of(self.opening) }.file();
        let block =
            FileBlock::of(self.spaces.page_cache(), file, (start, order)).ok_or(CollapseError::Unfit)?;
        let figures = block.look();
        if figures.is_whole {
            return Ok(false);
        }
        if figures.is_pinned {
            return Err(CollapseError::Busy);
        }
        // As in Linux a page that is swapped out counts as none, too.
        let none = order.pages() - figures.cached;
        if none > u64::from(limits.none) || figures.swapped > u64::from(limits.swapped) {
            return Err(CollapseError::Unfit);
        }
        let make_room_for_folio = |over| make_room(Need::Memcg(over, order.pages()));
        let mut new =
            block.allocate(&core.tables.membership, make_room_for_folio).map_err(|error| match error {
                PageError::OverLimit(over) => CollapseError::OverLimit(over),
                PageError::NoMemory(cause) => CollapseError::OutOfMemory(cause),
                _ => CollapseError::Refused,
            })?;
        let mappers = FileMappers::new(self.spaces.rmap());
        for _ in 0..ATTEMPTS {
            let mut last = start;
            while let Some(page) = block.next_missing().map_err(refusal_of)? {
                // What is brought in may be all that can be freed for it: then there would be no end.
                if page.index() < last {
                    break;
                }
                last = page.index();
                let pages = IndexRange::block(start, order);
                if core.is_killed() || !self.bring_in(core, page, pages, make_room) {
                    return Err(CollapseError::Refused);
                }
            }
            match block.replace(&mut new, &mappers) {
                // It was paged out again, or removed.
                Err(BlockRefusal::Missing(_)) => {}
                Err(BlockRefusal::Dirty) => {
                    // As in Linux all that is dirty of the file.
                    let begun =
                        self.spaces.page_cache().write_back(file, IndexRange::ALL, Wait::No, &mappers);
                    debug_assert!(begun.is_ok(), "what is not waited for has no result");
                    return Err(CollapseError::Refused);
                }
                Err(refusal) => return Err(refusal_of(refusal)),
                Ok(()) => {
                    self.spaces.thp().count_collapsed();
                    return Ok(true);
                }
            }
        }
        // Linux's SCAN_FAIL for what was read.
        Err(if file.is_shmem() { CollapseError::Busy } else { CollapseError::Refused })
    }

    /// Brings a page into the cache, of a block that has these pages, for a caller that can give up.
    fn bring_in(
        &self,
        core: &SpaceCore,
        page: MissingPage,
        block: IndexRange,
        make_room: &mut dyn FnMut(Need) -> bool,
    ) -> bool {
        match page {
            MissingPage::Swapped(page) => self.swap_in(core, page),
            MissingPage::Unread(index) => self.read_in(core, index, block, make_room),
        }
    }

    /// Reads a page, and those `around` it as far as that is made with it. As in Linux, which reads them
    /// ahead, no program is killed for it, and the memcg is not asked for long.
    // Not inlined, so that what it reads with is not on the stack of a collapse as a whole.
    #[inline(never)]
    fn read_in(
        &self,
        core: &SpaceCore,
        index: PageIndex,
        around: IndexRange,
        make_room: &mut dyn FnMut(Need) -> bool,
    ) -> bool {
        // SAFETY: as in `sync`.
        let file = unsafe { OpenFile::<P, Vma>::of(self.opening) }.file();
        let (wanted, program) = ((index, LargeOrders::NONE), &core.tables.membership);
        for _ in 0..ATTEMPTS {
            let made = match self.spaces.page_cache().page_in(file, wanted, around, program) {
                Ok(_) => return true,
                Err(PageError::NoMemory(cause)) => {
                    self.spaces.direct_reclaim().free_some(cause, Need::Frames(Order::ZERO))
                }
                Err(PageError::OverLimit(over)) => make_room(Need::Memcg(over, 1)),
                Err(_) => false,
            };
            if !made || core.is_killed() {
                break;
            }
        }
        false
    }

    /// Brings a page of shared memory back from its swap device, for a caller that can give up.
    fn swap_in(&self, core: &SpaceCore, page: SwappedPage) -> bool {
        // SAFETY: as in `sync`.
        let file = unsafe { OpenFile::<P, Vma>::of(self.opening) }.file();
        let reclaim = self.spaces.direct_reclaim();
        loop {
            match reclaim.swap_in_shmem(&core.tables.membership, file, page) {
                Ok(()) => return true,
                Err(SwapInError::Short(cause, need))
                    if !core.is_killed() && reclaim.make_room_or_fail(cause, need) => {}
                Err(_) => return false,
            }
        }
    }

    /// Brings the first of these pages into the cache, as far as the file has them and memory is free, for
    /// the program in `core`. Shared memory is read from swap devices only, into the swap cache.
    pub(crate) fn read_ahead(&self, core: &SpaceCore, pages: Range<u64>) {
        // SAFETY: as in `sync`.
        let file = unsafe { OpenFile::<P, Vma>::of(self.opening) }.file();
        if file.is_shmem() {
            return self.read_swapped(core, pages);
        }
        let end = pages.end.min(pages.start.saturating_add(MOST_AHEAD));
        for index in (pages.start..end).map_while(PageIndex::new) {
            let (wanted, program) = ((index, LargeOrders::NONE), &core.tables.membership);
            let around = IndexRange::new(pages.start, end);
            let came = self.spaces.page_cache().page_in(file, wanted, around, program);
            if core.is_killed() || came.is_err() {
                return;
            }
        }
    }

    /// Begins to read those of these pages of shared memory that are on swap devices.
    fn read_swapped(&self, core: &SpaceCore, pages: Range<u64>) {
        // SAFETY: as in `sync`.
        let file = unsafe { OpenFile::<P, Vma>::of(self.opening) }.file();
        let swap_in = SwapIn::new(self.spaces.memory(), &core.tables.membership);
        let mut from = pages.start;
        while let Some(page) = self.spaces.page_cache().shmem().next(file, (from, pages.end), |_| true)
            && !core.is_killed()
        {
            from = page.index.get();
            let is_whole = page.index.is_aligned(page.order);
            let orders = if is_whole { OrderSet::of(page.order) } else { OrderSet::EMPTY };
            match swap_in.begin_ahead(page.slot, orders, Ahead::Wanted) {
                Ok(pages) => from += pages.max(1),
                Err((cause, need)) if self.spaces.direct_reclaim().free_some(cause, need) => {}
                Err(_) => return,
            }
        }
    }

    /// The open file.
    pub(crate) fn opening(&self) -> &Opening<Vma> {
        // SAFETY: this is a holder.
        unsafe { self.opening.as_ref() }
    }
}

/// What a block that could not be made one folio is to the call.
fn refusal_of(refusal: BlockRefusal) -> CollapseError {
    match refusal {
        BlockRefusal::Busy | BlockRefusal::Missing(_) => CollapseError::Busy,
        // Linux's SCAN_FAIL.
        BlockRefusal::Empty
        | BlockRefusal::NoRoom
        | BlockRefusal::PastEnd
        | BlockRefusal::Dirty
        | BlockRefusal::Written => CollapseError::Refused,
    }
}

impl<P: Platform> Drop for HeldOpening<'_, P> {
    fn drop(&mut self) {
        // SAFETY: this is a holder, and is none after it.
        if unsafe { self.opening().let_go() } {
            // SAFETY: that was the last one.
            unsafe { self.spaces.page_cache().close(self.opening) };
        }
    }
}
