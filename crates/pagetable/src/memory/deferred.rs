//! Deferred split: partially mapped large folios, some of whose pages are not mapped any more. They are split
//! when memory runs short, which frees those pages; until then they may be freed whole without a split.
//!
//! A folio is on a list of the machine, linked through the words of its second descriptor, and its first one
//! has the flag [`FrameFlags::PARTLY_MAPPED`]. It enters and leaves under its head lock and the lock of the
//! list. It leaves when its last page is unmapped, so folios on the list are mapped.

use super::MemoryCore;
use quire_arch::{Order, Pfn, Platform};
use quire_frame::{DeferredLink, FolioCounter, FrameFlags, HeadGuard};

/// The list of folios some of whose pages are no longer mapped.
#[derive(Debug, Default)]
pub(super) struct DeferredSplits {
    first: Option<Pfn>,
    last: Option<Pfn>,
    folios: u64,
}

impl<P: Platform> MemoryCore<P> {
    /// The descriptor whose words link the folio `head`: a large folio has a second frame, whose words are
    /// unused.
    fn deferred_link(&self, head: Pfn) -> DeferredLink<'_> {
        self.frames().known(head.offset(1)).as_deferred_link()
    }

    /// A part of a large folio was unmapped: queues it for deferred split, if it is not queued.
    #[inline]
    pub fn defer_split(&self, locked: &HeadGuard<'_, P>) {
        if !locked.folio().frame().word().flags().contains(FrameFlags::PARTLY_MAPPED) {
            self.queue(locked);
            let pin = self.platform().pin();
            self.frames().events().count_folio(&pin, locked.folio().order(), FolioCounter::SplitDeferred, 1);
        }
    }

    /// Queues a folio that is not queued, without counting it as deferred.
    fn queue(&self, locked: &HeadGuard<'_, P>) {
        let folio = locked.folio();
        let frame = folio.frame();
        frame.set_flags(FrameFlags::PARTLY_MAPPED);
        {
            let mut list = self.deferred.lock();
            let link = self.deferred_link(folio.head());
            link.set_next(None);
            link.set_previous(list.last);
            match list.last {
                Some(last) => {
                    self.deferred_link(last).set_next(Some(folio.head()));
                }
                None => list.first = Some(folio.head()),
            }
            list.last = Some(folio.head());
            list.folios += 1;
        }
        let pin = self.platform().pin();
        self.frames().events().count_folio(&pin, folio.order(), FolioCounter::NrAnonPartiallyMapped, 1);
    }

    /// Removes the folio from the deferred split list, if it is on it: it is unmapped, or was split.
    #[inline]
    pub fn undefer_split(&self, locked: &HeadGuard<'_, P>) {
        let folio = locked.folio();
        if folio.is_large() && folio.frame().word().flags().contains(FrameFlags::PARTLY_MAPPED) {
            self.take_off_deferred(folio.head(), folio.order());
        }
    }

    #[cold]
    fn take_off_deferred(&self, head: Pfn, order: Order) {
        {
            let mut list = self.deferred.lock();
            let link = self.deferred_link(head);
            let (next, previous) = (link.next(), link.previous());
            match previous {
                Some(previous) => self.deferred_link(previous).set_next(next),
                None => list.first = next,
            }
            match next {
                Some(next) => self.deferred_link(next).set_previous(previous),
                None => list.last = previous,
            }
            list.folios -= 1;
        }
        self.frames().known(head).clear_flags(FrameFlags::PARTLY_MAPPED);
        let pin = self.platform().pin();
        self.frames().events().count_folio(&pin, order, FolioCounter::NrAnonPartiallyMapped, -1);
    }

    /// Number of folios on the deferred split list.
    pub fn deferred_splits(&self) -> u64 {
        let _pin = self.platform().pin();
        self.deferred.lock().folios
    }

    /// Takes the oldest folio off the list, with a reference to it.
    pub fn hold_first_deferred(&self) -> Option<Pfn> {
        let _pin = self.platform().pin();
        loop {
            let head = {
                let list = self.deferred.lock();
                let head = list.first?;
                // It leaves the list before the mappings' reference is dropped, so it has one.
                let held = self.frames().known(head).try_get();
                debug_assert!(held, "a folio that waits to be split is free");
                head
            };
            // The head lock comes before that of the list, so the folio is checked again under it.
            let locked = self.frames().lock_head(head);
            let waits = locked.folio().frame().word().flags().contains(FrameFlags::PARTLY_MAPPED);
            if waits {
                self.undefer_split(&locked);
                return Some(head);
            }
            drop(locked);
            self.memcgs().release_folio(head);
        }
    }

    /// Puts a folio that could not be split at the end of the list, if it is still partially mapped.
    pub fn defer_again(&self, head: Pfn) {
        let _pin = self.platform().pin();
        let locked = self.frames().lock_head(head);
        let folio = locked.folio();
        if folio.is_large()
            && folio.head() == head
            && (1..folio.order().pages()).contains(&u64::from(locked.maps()))
            && !folio.frame().word().flags().contains(FrameFlags::PARTLY_MAPPED)
        {
            self.queue(&locked);
        }
    }
}
