//! A folio that was swapped in, and its handling after its page was mapped or not.

use core::cell::Cell;
use core::fmt;
use quire_arch::{Order, Pfn, Platform};
use quire_file::{CachedFile, Lent, SwappedPage, SwappedPages};
use quire_frame::{AllocError, FolioGuard, FrameFlags};
use quire_pagetable::MemoryCore;
use quire_swap::{SlotId, Swap};

/// A folio of the swap cache, or one that was read without it, under its folio lock, with a reference.
pub struct SwappedIn<'s, P: Platform> {
    pub(crate) memory: &'s MemoryCore<P>,
    pub(crate) head: Pfn,
    pub(crate) order: Order,
    pub(crate) slot: SlotId,
    pub(crate) guard: Option<FolioGuard<'s, P>>,
    /// The work left after mapping it.
    pub(crate) then: Cell<CacheFate>,
}

/// The work left for a folio after its page was mapped or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CacheFate {
    /// The cache keeps it.
    Kept,
    /// No entry names the slots any more, so it leaves the cache.
    Removable,
    /// It left the cache with the last entry that named it.
    Removed,
    /// It never was in the cache.
    PastCache,
    /// It could not be read, and has left the cache.
    Failed,
}

impl<P: Platform> Drop for SwappedIn<'_, P> {
    fn drop(&mut self) {
        // If the folio is exclusive to the program now, keeping it in the cache gains nothing: a synchronous
        // device rewrites it cheaply. Also, a thread that cleared the last swap entry while this one had the
        // lock leaves the removal to this one.
        let then = self.then.get();
        let mut left = match then {
            CacheFate::Kept | CacheFate::Removable => {
                !self.is_being_written() && self.memory.swap().cache().remove_unnamed(self.head)
            }
            CacheFate::Removed => true,
            CacheFate::PastCache => {
                end_past_cache(self.memory.swap(), self.slot);
                false
            }
            CacheFate::Failed => false,
        };
        drop(self.guard.take());
        if left {
            // The cache's reference; this one's own is still there.
            let last = self.memory.frames().known(self.head).put(1);
            debug_assert!(!last, "{:?} is held twice", self.head);
        } else if matches!(then, CacheFate::Kept | CacheFate::Removable) {
            left = self.memory.swap().cache().leave_if_unnamed(self.head);
        }
        if left && self.order > Order::ZERO {
            self.memory.memcgs().splits().left_swap_cache(self.head);
        }
        self.memory.memcgs().folios().release_folio(self.head);
    }
}

impl<P: Platform> fmt::Debug for SwappedIn<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwappedIn")
            .field("head", &self.head)
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}

impl<P: Platform> SwappedIn<'_, P> {
    /// Its first frame.
    pub fn head(&self) -> Pfn {
        self.head
    }

    /// Puts the folio back into the cache of its file, in the place of its slots. `None` if the file does not
    /// have these as one piece any more, or never had them so.
    ///
    /// # Errors
    ///
    /// There is no memory to note the folio apart from what it was paged out with.
    pub fn give_to(
        &self,
        file: &CachedFile<P>,
        page: SwappedPage,
    ) -> Result<Option<Lent<'_, P>>, AllocError> {
        if self.page_of(page.slot).is_none() || self.guard.is_none() {
            return Ok(None);
        }
        let names_gone = || self.names_gone(self.slot, self.order.pages());
        // SAFETY: the folio lock and the reference are this one's, from which the result is borrowed.
        unsafe { SwappedPages::of(file).adopt(self.memory.memcgs(), page, self.head, names_gone) }
    }

    fn is_being_written(&self) -> bool {
        self.memory.frames().known(self.head).word().flags().contains(FrameFlags::WRITEBACK)
    }

    /// Entries that named `pages` slots from `start` on are gone. The lock of their table is held.
    pub(crate) fn names_gone(&self, start: SlotId, pages: u64) {
        let swap = self.memory.swap();
        let is_all = pages == self.order.pages();
        match self.then.get() {
            CacheFate::Kept if is_all && swap.technique().leaves_when_mapped() => {
                if swap.cache().drop_counts_and_leave(self.head) {
                    self.then.set(CacheFate::Removed);
                }
            }
            CacheFate::Kept | CacheFate::Removable => {
                if swap.counts().drop_counts(start, pages as u32).cached_only {
                    self.then.set(CacheFate::Removable);
                }
            }
            CacheFate::PastCache => {
                let _ = swap.counts().drop_counts(start, pages as u32);
            }
            CacheFate::Removed | CacheFate::Failed => {
                debug_assert!(false, "{start} was named once more after it was free");
            }
        }
    }

    /// Which page of the folio `slot` is. `None` once the folio has left the cache: the slot may belong to
    /// another page by now.
    pub(crate) fn page_of(&self, slot: SlotId) -> Option<u64> {
        if matches!(self.then.get(), CacheFate::Removed | CacheFate::Failed) {
            return None;
        }
        let nth = slot.raw().wrapping_sub(self.slot.raw());
        (nth < self.order.pages()).then_some(nth)
    }
}

/// Ends a read that bypassed the cache, after the page was mapped or not.
fn end_past_cache<P: Platform>(swap: &Swap<P>, slot: SlotId) {
    if swap.counts().count(slot) == 0 {
        swap.cache().clear_shadow(slot);
    }
    swap.cache().end_bypass(slot);
}
