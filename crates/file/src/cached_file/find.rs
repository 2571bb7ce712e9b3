//! Looking pages up.

use super::CachedFile;
use super::unused::UnusedPages;
use crate::entry::{Entry, Stored};
use crate::error::SwappedPage;
use crate::index::{IndexRange, PageIndex};
use crate::locked_folio::LockedFolio;
use crate::store::Filter;
use core::fmt;
use quire_arch::{Pfn, Pin, Platform};
use quire_frame::{FrameChain, FrameFlags, Frames};
use quire_memcg::Memcgs;
use quire_swap::Swap;

/// What was found without waiting.
#[must_use = "a folio that was found is locked"]
pub enum Lookup<'m, P: Platform> {
    /// The folio.
    Folio(LockedFolio<'m, P>),
    /// Another thread has locked it: it reads it, writes it, or removes it.
    Busy,
    /// The page is not cached.
    Nothing,
    /// Neither is this one, of shared memory: it is on a swap device.
    Swapped(SwappedPage),
    /// The file ends before it.
    PastEnd,
}

impl<P: Platform> fmt::Debug for Lookup<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folio(folio) => f.debug_tuple("Folio").field(folio).finish(),
            Self::Busy => f.write_str("Busy"),
            Self::Nothing => f.write_str("Nothing"),
            Self::Swapped(page) => f.debug_tuple("Swapped").field(page).finish(),
            Self::PastEnd => f.write_str("PastEnd"),
        }
    }
}

/// What a folio is that was found and then locked.
pub(crate) enum Is<'m, P: Platform> {
    /// What was looked for.
    Wanted(LockedFolio<'m, P>),
    /// It could not be read, and has left the cache.
    Failed,
    /// It has left the cache.
    Gone,
}

/// Which pages of a file are cached.
#[derive(Debug)]
pub struct CachedPages<'f, P: Platform>(&'f CachedFile<P>);

impl<'f, P: Platform> CachedPages<'f, P> {
    /// Those of this file.
    #[inline]
    pub const fn of(file: &'f CachedFile<P>) -> Self {
        Self(file)
    }

    /// The pages of a range of 32 at most that are not cached, as bits from the first one on. A snapshot.
    pub(crate) fn missing(&self, frames: &Frames<P>, pages: IndexRange) -> u32 {
        let bits = |part: IndexRange| {
            let ones = ((1_u64 << part.pages()) - 1) as u32;
            ones << (part.start() - pages.start())
        };
        self.0.with_store(frames, |store| {
            let (mut missing, mut rest) = (bits(pages), pages);
            while let Some(stored) = store.next(rest, Filter::All) {
                if !stored.entry.is_shadow() {
                    missing &= !bits(stored.range().intersect(pages));
                }
                rest = IndexRange::new(stored.range().end(), pages.end());
            }
            missing
        })
    }

    /// Those of 32 pages from `first` on that are `wanted` and cached, as bits from the first one on. A
    /// snapshot. `frames` are those of the file's machine.
    pub fn among(&self, pin: &Pin<'_, P>, frames: &Frames<P>, first: PageIndex, wanted: u32) -> u32 {
        let section = frames.epoch().enter(pin);
        // SAFETY: as in `CachedFile::look_up`.
        unsafe { self.0.store.folio_bits(first, wanted, &section) }
    }
}

impl<P: Platform> CachedFile<P> {
    /// The folio of page `index`, locked, if that is possible at once. For a fault: it may map what it gets,
    /// as a thread that removes the page, or makes the file smaller, waits for the lock. `memcgs` are those
    /// of the machine.
    pub fn find<'m>(&self, memcgs: &'m Memcgs<P>, index: PageIndex) -> Lookup<'m, P> {
        loop {
            let stored = self.look_up(memcgs, index, &mut |head| memcgs.folios().release_folio(head));
            let Some(head) = stored.and_then(|stored| stored.entry.folio()) else {
                if self.ends_before(index) {
                    return Lookup::PastEnd;
                }
                let page = stored.and_then(|stored| SwappedPage::of(&stored, index));
                return page.map_or(Lookup::Nothing, Lookup::Swapped);
            };
            let Some(guard) = memcgs.frames().folios().try_lock_folio(head) else {
                memcgs.folios().release_folio(head);
                return Lookup::Busy;
            };
            match self.recheck(index, LockedFolio::new(memcgs, head, guard)) {
                // Only now: the size is stored before folios are removed.
                Is::Wanted(_) if self.ends_before(index) => return Lookup::PastEnd,
                Is::Wanted(folio) => {
                    UnusedPages::of(self).note_use(memcgs.frames(), index);
                    return Lookup::Folio(folio);
                }
                Is::Failed => return Lookup::Nothing,
                Is::Gone => {}
            }
        }
    }

    /// As [`find`](Self::find), for a caller with the lock of a table, under which no frame is freed: a folio
    /// that is lost by its last reference goes to `freed`. `None` for what the others of [`Lookup`] say.
    pub fn find_for_table<'m>(
        &self,
        memcgs: &'m Memcgs<P>,
        index: PageIndex,
        freed: &mut FrameChain,
    ) -> Option<LockedFolio<'m, P>> {
        let release = &mut |head| {
            // The reference keeps the folio from being split.
            let order = memcgs.frames().known(head).word().order();
            memcgs.folios().put_folio(freed, head, order);
        };
        let head = self.look_up(memcgs, index, release)?.entry.folio()?;
        let Some(guard) = memcgs.frames().folios().try_lock_folio(head) else {
            release(head);
            return None;
        };
        let folio = LockedFolio::new(memcgs, head, guard);
        let is_there = self.has(folio.frame(), index) && !self.ends_before(index);
        // As in Linux, what is not used yet is not mapped around a page that is.
        if is_there && !UnusedPages::of(self).has(memcgs.frames(), index) {
            return Some(folio);
        }
        release(folio.unlock_and_keep());
        None
    }

    /// Whether page `index` is cached and its contents are good, at a moment. Of shared memory that is
    /// swapped out the swap cache may have it.
    pub fn has_page(&self, swap: &Swap<P>, index: PageIndex) -> bool {
        let memcgs = swap.memcgs();
        let Some(head) = self.get(memcgs, index) else {
            let stored = self.with_store(memcgs.frames(), |store| store.get(index));
            let page = stored.and_then(|stored| SwappedPage::of(&stored, index));
            return page.is_some_and(|page| swap.counts().is_in_memory(page.slot));
        };
        let is_read = !memcgs.frames().known(head).word().flags().contains(FrameFlags::READING);
        memcgs.folios().release_folio(head);
        is_read && !UnusedPages::of(self).has(memcgs.frames(), index)
    }

    /// Whether nothing is kept of page `index`, in the cache or on a swap device, at a moment.
    pub(crate) fn is_hole(&self, frames: &Frames<P>, index: PageIndex) -> bool {
        self.with_store(frames, |store| store.get(index)).is_none_or(|stored| stored.entry.is_shadow())
    }

    /// A reference to the folio of page `index`.
    pub(crate) fn get(&self, memcgs: &Memcgs<P>, index: PageIndex) -> Option<Pfn> {
        self.look_up(memcgs, index, &mut |head| memcgs.folios().release_folio(head))?.entry.folio()
    }

    /// What there is of page `index`; with a reference, if it is a folio. One that turns out to be to another
    /// folio goes to `release`.
    // Always a part of its callers: what it returns does not fit into registers.
    #[inline(always)]
    fn look_up(&self, memcgs: &Memcgs<P>, index: PageIndex, release: &mut dyn FnMut(Pfn)) -> Option<Stored> {
        let frames = memcgs.frames();
        let pin = frames.platform().pin();
        let section = frames.epoch().enter(&pin);
        let mut attempt = 0;
        loop {
            // SAFETY: nodes are retired through the epoch of this machine's frames, and the file lives while
            // the caller has it.
            let found = unsafe { self.store.find(index, &section) }?;
            let stored = found.stored();
            let Entry::Folio(head) = stored.entry else { return Some(stored) };
            if frames.known(head).try_get_folio() {
                if found.is_current() {
                    return Some(stored);
                }
                release(head);
            }
            P::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
    }

    /// What a locked folio is that was this file's page `index` a moment ago.
    pub(crate) fn recheck<'m>(&self, index: PageIndex, folio: LockedFolio<'m, P>) -> Is<'m, P> {
        if self.has(folio.frame(), index) {
            Is::Wanted(folio)
        } else if folio.frame().word().flags().contains(FrameFlags::READ_FAILED) {
            Is::Failed
        } else {
            Is::Gone
        }
    }
}
