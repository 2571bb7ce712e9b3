//! Deferred split: partially mapped large folios, some of whose pages are not mapped any more. They are split
//! when memory runs short, which frees those pages; until then they may be freed whole without a split.
//!
//! A folio is in the queue of its memcg, linked through the words of its second descriptor, and its first one
//! has the flag [`FrameFlags::PARTLY_MAPPED`]. It enters and leaves under its head lock and the lock of all
//! queues. It leaves when its last page is unmapped, so folios in a queue are mapped, and charged to its
//! memcg. The memcgs with folios are a ring, and a shortage of frames takes from them in turn.

use crate::deferred::{DeferredQueue, DeferredTurn};
use crate::folios::MemcgFolios;
use crate::id::MemcgId;
use crate::tree::MemcgTree;
use quire_arch::{Order, Pfn, Platform};
use quire_frame::{DeferredLink, FolioCounter, FrameFlags, HeadGuard};

/// Folios that are passed over at most, in search of one to which there can be one more reference.
const TRIES: u32 = 16;

/// Whose folios are split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeferredOf {
    /// Those of all memcgs, in turn.
    All,
    /// Those of one memcg, without those below it.
    Memcg(MemcgId),
}

quire_arch::part_of! {
    /// The deferred split queues of memcgs.
    pub struct DeferredSplits { pub(crate) tree: MemcgTree }
}

impl<'s, P: Platform> DeferredSplits<'s, P> {
    /// The descriptor whose words link the folio `head`: a large folio has a second frame, whose words are
    /// unused.
    fn deferred_link(self, head: Pfn) -> DeferredLink<'s> {
        self.tree.frames().known(head.offset(1)).as_deferred_link()
    }

    /// A part of a large folio may be unmapped: queues it for deferred split, if it is not queued. It is
    /// counted once.
    #[inline]
    pub fn defer_split(self, locked: &HeadGuard<'_, P>) {
        let flags = locked.folio().frame().word().flags();
        if !flags.contains(FrameFlags::PARTLY_MAPPED) {
            self.defer_first_split(locked, flags);
        }
    }

    #[cold]
    fn defer_first_split(self, locked: &HeadGuard<'_, P>, flags: FrameFlags) {
        let was_queued = flags.contains(FrameFlags::MAPPED_IN_PART) && self.was_queued(locked);
        self.queue(locked);
        if was_queued {
            return;
        }
        let pin = self.tree.frames().platform().pin();
        self.tree.frames().events().count_folio(&pin, locked.folio().order(), FolioCounter::SplitDeferred, 1);
    }

    /// A space has got a part of a large folio only: from now on an unmapping may leave pages that nothing
    /// maps, whatever it unmaps. Fork and swap-in call it; that a part is unmapped is seen then.
    #[inline]
    pub fn mapped_in_part(self, locked: &HeadGuard<'_, P>) {
        if !locked.folio().frame().word().flags().contains(FrameFlags::MAPPED_IN_PART) {
            self.note_mapped_in_part(locked);
        }
    }

    #[cold]
    fn note_mapped_in_part(self, locked: &HeadGuard<'_, P>) {
        let folio = locked.folio();
        if folio.kind().is_of_file() {
            // Its file has the pages that nothing maps.
            return;
        }
        // It was not queued before.
        self.deferred_link(folio.head()).set_next(None);
        folio.frame().set_flags(FrameFlags::MAPPED_IN_PART);
    }

    /// A folio to which the caller has a reference was to be unmapped everywhere, and is not: spaces have got
    /// swap entries for a part of it only.
    #[cold]
    pub fn stays_mapped_in_part(self, head: Pfn) {
        let _pin = self.tree.frames().platform().pin();
        let locked = self.tree.frames().folios().lock_head(head);
        if locked.folio().head() == head && locked.folio().is_large() && locked.maps() > 0 {
            self.mapped_in_part(&locked);
        }
    }

    /// A folio to which the caller has a reference has left the swap cache. If a part of it is mapped, and
    /// the rest had swap entries that were given up, nothing maps that any more, and no unmapping tells of
    /// it. How many pages several spaces map together does not say so; then the next unmapping does.
    pub fn left_swap_cache(self, head: Pfn) {
        if self.tree.frames().known(head).word().flags().contains(FrameFlags::MAPPED_IN_PART) {
            self.defer_if_partly_mapped(head);
        }
    }

    #[cold]
    fn defer_if_partly_mapped(self, head: Pfn) {
        let _pin = self.tree.frames().platform().pin();
        let locked = self.tree.frames().folios().lock_head(head);
        let folio = locked.folio();
        let is_cached = folio.frame().word().flags().contains(FrameFlags::SWAP_CACHE);
        let part = 1..folio.order().pages();
        if folio.head() == head && !is_cached && part.contains(&u64::from(locked.maps())) {
            self.defer_split(&locked);
        }
    }

    /// Whether a folio with [`FrameFlags::MAPPED_IN_PART`] that is in no queue was in one: it links to itself
    /// then.
    fn was_queued(self, locked: &HeadGuard<'_, P>) -> bool {
        let head = locked.folio().head();
        self.deferred_link(head).next() == Some(head)
    }

    /// Queues a folio that is not queued, without counting it as deferred.
    pub(crate) fn queue(self, locked: &HeadGuard<'_, P>) {
        let folio = locked.folio();
        let frame = folio.frame();
        let memcg = MemcgId::from_bits(frame.as_folio().memcg());
        let Some(queue) = self.tree.deferred_queue(memcg) else { return };
        frame.set_flags(FrameFlags::PARTLY_MAPPED | FrameFlags::MAPPED_IN_PART);
        {
            let mut all = self.tree.deferred.lock();
            let link = self.deferred_link(folio.head());
            link.set_next(None);
            link.set_previous(queue.last());
            match queue.last() {
                Some(last) => {
                    self.deferred_link(last).set_next(Some(folio.head()));
                }
                None => {
                    queue.set_first(Some(folio.head()));
                    self.enter_ring(&mut all, memcg, queue);
                }
            }
            queue.set_last(Some(folio.head()));
            queue.set_folios(queue.folios() + 1);
            all.folios += 1;
        }
        let pin = self.tree.frames().platform().pin();
        self.tree.frames().events().count_folio(&pin, folio.order(), FolioCounter::NrAnonPartiallyMapped, 1);
    }

    /// Removes the folio from its deferred split queue, if it is in it: it is unmapped, or was split.
    #[inline]
    pub fn undefer_split(self, locked: &HeadGuard<'_, P>) {
        let folio = locked.folio();
        if folio.is_large() && folio.frame().word().flags().contains(FrameFlags::PARTLY_MAPPED) {
            self.take_off(folio.head(), folio.order());
        }
    }

    /// The queue of `memcg` has its first folio: its turn comes last. Under the lock of the queues.
    fn enter_ring(self, all: &mut DeferredTurn, memcg: MemcgId, queue: &DeferredQueue) {
        let next = *all.turn.get_or_insert(memcg);
        let previous = match self.tree.deferred_queue(next) {
            Some(first) if next != memcg => first.neighbours().0,
            _ => memcg,
        };
        queue.set_previous(previous);
        queue.set_next(next);
        for (at, is_before) in [(previous, true), (next, false)] {
            match self.tree.deferred_queue(at) {
                Some(beside) if is_before => beside.set_next(memcg),
                Some(beside) => beside.set_previous(memcg),
                None => {}
            }
        }
    }

    /// The queue of `memcg` has no folio any more. Under the lock of the queues.
    fn leave_ring(self, all: &mut DeferredTurn, memcg: MemcgId, queue: &DeferredQueue) {
        let (previous, next) = queue.neighbours();
        if let Some(before) = self.tree.deferred_queue(previous) {
            before.set_next(next);
        }
        if let Some(after) = self.tree.deferred_queue(next) {
            after.set_previous(previous);
        }
        if all.turn == Some(memcg) {
            all.turn = (next != memcg).then_some(next);
        }
    }

    #[cold]
    fn take_off(self, head: Pfn, order: Order) {
        let memcg = MemcgId::from_bits(self.tree.frames().known(head).as_folio().memcg());
        let Some(queue) = self.tree.deferred_queue(memcg) else { return };
        {
            let mut all = self.tree.deferred.lock();
            let link = self.deferred_link(head);
            let (next, previous) = (link.next(), link.previous());
            match previous {
                Some(previous) => self.deferred_link(previous).set_next(next),
                None => queue.set_first(next),
            }
            match next {
                Some(next) => self.deferred_link(next).set_previous(previous),
                None => queue.set_last(previous),
            }
            queue.set_folios(queue.folios() - 1);
            all.folios -= 1;
            if queue.first().is_none() {
                self.leave_ring(&mut all, memcg, queue);
            }
            link.set_next(Some(head));
        }
        self.tree.frames().known(head).clear_flags(FrameFlags::PARTLY_MAPPED);
        let pin = self.tree.frames().platform().pin();
        self.tree.frames().events().count_folio(&pin, order, FolioCounter::NrAnonPartiallyMapped, -1);
    }

    /// Number of folios that wait to be split.
    pub fn waiting(self) -> u64 {
        self.waiting_of(DeferredOf::All)
    }

    /// The same, of some memcgs.
    pub fn waiting_of(self, whose: DeferredOf) -> u64 {
        match whose {
            DeferredOf::All => {
                let _pin = self.tree.frames().platform().pin();
                self.tree.deferred.lock().folios
            }
            DeferredOf::Memcg(memcg) => self.tree.deferred_queue(memcg).map_or(0, DeferredQueue::folios),
        }
    }

    /// The oldest folio of the memcg whose turn it is, or of the one that is asked for, and its queue. Under
    /// the lock of the queues.
    fn first_deferred(self, all: &mut DeferredTurn, whose: DeferredOf) -> Option<(&'s DeferredQueue, Pfn)> {
        let memcg = match whose {
            DeferredOf::All => all.turn?,
            DeferredOf::Memcg(memcg) => memcg,
        };
        let queue = self.tree.deferred_queue(memcg)?;
        let first = queue.first()?;
        if whose == DeferredOf::All {
            all.turn = Some(queue.neighbours().1);
        }
        Some((queue, first))
    }

    /// Moves the first folio of a queue to its end. Under the lock of the queues.
    fn move_first_to_end(self, queue: &DeferredQueue, first: Pfn) {
        let link = self.deferred_link(first);
        let (Some(next), Some(last)) = (link.next(), queue.last()) else { return };
        queue.set_first(Some(next));
        self.deferred_link(next).set_previous(None);
        self.deferred_link(last).set_next(Some(first));
        link.set_previous(Some(last));
        link.set_next(None);
        queue.set_last(Some(first));
    }

    /// Takes the oldest folio off a queue, with a reference to it. One that can have no more references,
    /// since it is pinned as often as can be, goes to the end of its queue; of many such there may be `None`.
    pub fn hold_first(self, whose: DeferredOf) -> Option<Pfn> {
        let _pin = self.tree.frames().platform().pin();
        for _ in 0..TRIES {
            let head = {
                let mut all = self.tree.deferred.lock();
                let (queue, head) = self.first_deferred(&mut all, whose)?;
                // It leaves the queue before the mappings' reference is dropped, so it is not free.
                if !self.tree.frames().known(head).try_get() {
                    self.move_first_to_end(queue, head);
                    continue;
                }
                head
            };
            // The head lock comes before that of the queues, so the folio is checked again under it.
            let locked = self.tree.frames().folios().lock_head(head);
            let waits = locked.folio().frame().word().flags().contains(FrameFlags::PARTLY_MAPPED);
            if waits {
                self.undefer_split(&locked);
                return Some(head);
            }
            drop(locked);
            MemcgFolios::new(self.tree).release_folio(head);
        }
        None
    }

    /// Puts a folio that was busy when it was to be split at the end of its queue. How many pages several
    /// spaces map together does not say whether one is mapped by none: the next attempt finds out.
    pub fn defer_again(self, head: Pfn) {
        let _pin = self.tree.frames().platform().pin();
        let locked = self.tree.frames().folios().lock_head(head);
        let folio = locked.folio();
        if folio.is_large()
            && folio.head() == head
            && locked.maps() > 0
            && !folio.frame().word().flags().contains(FrameFlags::PARTLY_MAPPED)
        {
            self.queue(&locked);
        }
    }
}
