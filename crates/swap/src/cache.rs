//! The swap cache: which page has which slot, decided under the cluster's lock.

use crate::Swap;
use crate::cluster::{CLUSTER_ORDER, CLUSTER_SLOTS, Unit};
use crate::error::NoTable;
use crate::held::Held;
use crate::shadow::Shadow;
use crate::slot::SlotId;
use crate::word::{Out, Word};
use quire_arch::{Order, Pfn, Platform};
use quire_frame::{FrameFlags, MAX_REFS};
use quire_sync::atomic::Ordering;

/// What became of an insertion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "who lost gives his folio back, who found a page has a reference to it"]
pub enum Inserted {
    /// The cache has the folio, and the caller fills it.
    Won {
        /// When the page was paged out, and by whom, if that is known; of a large folio what its first slot
        /// says.
        shadow: Option<Shadow>,
        /// The pages are all zeros.
        zero: bool,
        /// The memory group that the slots are charged to, now the folio's too
        /// ([`memcg`](quire_frame::Frame::memcg)): it is the one to charge.
        group: u16,
    },
    /// The cache had the page already; the caller has a reference to its folio. Of a large folio this is the
    /// page of the first slot, and the pages of the others follow it.
    Found(Pfn),
    /// A slot is free, or nothing names it: whatever entry led here has changed.
    Gone,
    /// A large folio does not fit: its slots are not all alike. For a single page: another thread reads it
    /// past the cache.
    Conflict,
    /// Slots of one word are to be told apart, and there is no memory for their words.
    NoMemory,
}

/// What a slot is at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a page that was found comes with a reference"]
pub enum Seen {
    /// The cache has the page; the caller has a reference to its folio.
    Cached(Pfn),
    /// On the device only.
    Out {
        /// The largest order, of those that were asked for, at which a folio could be inserted.
        order: Order,
        /// The memory group that the slot is charged to.
        group: u16,
    },
    /// Nothing could be inserted: nothing names the slot, or another thread reads it past the cache.
    Gone,
}

/// What stands in the way of an insertion.
enum Refusal {
    Found(Word),
    Gone,
    Conflict,
}

/// A look at the cache during which the folio was being split.
struct Retry;

impl<P: Platform> Swap<P> {
    /// The page that the cache has for `slot`, with a reference to its folio.
    pub fn lookup(&self, slot: SlotId) -> Option<Pfn> {
        self.without_splits(|| {
            let found = self.with_cluster(slot, |held, at| {
                let word = held.guard.word_of(at);
                if !word.is_cached() {
                    return Ok(None);
                }
                held.get_page(word).map(Some).ok_or(Retry)
            });
            found.unwrap_or(Ok(None))
        })
    }

    /// What the slot is, all in one look: the page if the cache has it, else what is needed to get a folio
    /// for it, of order `most` or less.
    pub fn look(&self, slot: SlotId, most: Order) -> Seen {
        self.without_splits(|| {
            let seen = self.with_cluster(slot, |held, at| {
                let word = held.guard.word_of(at);
                if word.is_cached() {
                    return held.get_page(word).map(Seen::Cached).ok_or(Retry);
                }
                Ok(match held.largest(at, most) {
                    Some(order) => Seen::Out { order, group: word.group().unwrap_or_default() },
                    None => Seen::Gone,
                })
            });
            seen.unwrap_or(Ok(Seen::Gone))
        })
    }

    /// Calls `look` until no split is in its way.
    #[inline]
    fn without_splits<R>(&self, mut look: impl FnMut() -> Result<R, Retry>) -> R {
        let mut attempt = 0;
        loop {
            match look() {
                Ok(result) => return result,
                Err(Retry) => P::relax(attempt),
            }
            attempt = attempt.saturating_add(1);
        }
    }

    /// Puts a folio in whose pages are to be read from the slots from `slot` on, which is a multiple of its
    /// order. The caller holds the folio lock and a reference, and the folio is in no cache.
    ///
    /// On [`Inserted::Won`] the folio has [`FrameFlags::SWAP_CACHE`], `private` is its first slot, and the
    /// cache holds one more reference. The slots are named as often as before.
    pub fn insert(&self, slot: SlotId, head: Pfn) -> Inserted {
        let order = self.frames().known(head).word().order();
        if order > CLUSTER_ORDER {
            return Inserted::Conflict;
        }
        self.without_splits(|| {
            let inserted = self.with_cluster(slot, |held, at| held.insert(at, head, order));
            inserted.unwrap_or(Ok(Inserted::Gone))
        })
    }

    /// The largest order at which a folio for the naturally aligned block around `slot` could be inserted
    /// now; none if not even a single page could.
    pub fn peek_order(&self, slot: SlotId) -> Option<Order> {
        self.with_cluster(slot, |held, at| held.largest(at, CLUSTER_ORDER))?
    }

    /// Takes a folio out of the cache and frees its slots, if nothing names any of them. True if so: then the
    /// cache's reference is the caller's to drop, and the folio is dirty. The caller holds the folio lock and
    /// a reference.
    pub fn remove_unnamed(&self, head: Pfn) -> bool {
        self.with_folio(head, |held, first, end| held.remove_unnamed(head, first, end)).unwrap_or(false)
    }

    /// Takes the folio at `head`, to which the caller has a reference, out of the cache, if nothing names its
    /// slots and no thread is busy with it. Returns whether it did.
    pub fn leave_if_unnamed(&self, head: Pfn) -> bool {
        loop {
            let Some(guard) = self.frames().try_lock_folio_long(head) else { return false };
            let folio = self.frames().folio(head);
            let (order, flags) = (folio.order(), folio.frame().word().flags());
            if flags & (FrameFlags::SWAP_CACHE | FrameFlags::WRITEBACK) != FrameFlags::SWAP_CACHE {
                return false;
            }
            let first = SlotId::from_raw(folio.frame().private().load(Ordering::Relaxed));
            let leaves = self.remove_unnamed(head);
            drop(guard);
            if leaves {
                self.put_folio(&self.platform().pin(), head, order);
                return true;
            }
            // A thread that took the last name away in between found the folio locked, and left it to this.
            if !self.is_cached_only(first, order.pages() as u32) {
                return false;
            }
        }
    }

    /// Entries that named all slots of the folio at `head` name them no more, and it leaves the cache if
    /// nothing else names them: [`drop_counts`](Self::drop_counts) and
    /// [`remove_unnamed`](Self::remove_unnamed) in one. True if it left. The caller holds the folio lock and
    /// a reference; the folio is in the cache.
    pub fn drop_counts_and_leave(&self, head: Pfn) -> bool {
        self.with_folio(head, |held, first, end| {
            held.unname(first, end);
            held.remove_unnamed(head, first, end)
        })
        .unwrap_or(false)
    }

    /// Takes a folio out of the cache that could not be read. Its slots stay named as they are. The cache's
    /// reference is the caller's to drop, who holds the folio lock and a reference. A folio that is not in
    /// the cache, or that is still being read, stays as it is, and the result is false.
    pub fn discard_failed(&self, head: Pfn) -> bool {
        self.with_folio(head, |held, first, end| {
            let frame = held.swap.frames().known(head);
            if frame.word().flags().intersects(FrameFlags::WRITEBACK | FrameFlags::READING) {
                return false;
            }
            let group = frame.memcg().load(Ordering::Relaxed);
            held.leave(first, end, Out::Bare(group), group);
            frame.clear_flags(FrameFlags::SWAP_CACHE);
            true
        })
        .unwrap_or(false)
    }

    /// Takes a folio out of the cache for good, if it is clean, no device is at it and exactly
    /// `expected_refs` references are held: the cache's and the caller's. Then its slots say what `shadow`
    /// says, those that nothing names are free, and the folio is frozen: it has no references, no thread can
    /// get one, and the caller gives it back. If not, nothing changed. The caller holds the folio lock.
    pub fn evict(&self, head: Pfn, expected_refs: u32, shadow: Option<Shadow>) -> bool {
        debug_assert!((1..=MAX_REFS).contains(&expected_refs));
        self.with_folio(head, |held, first, end| {
            let frame = held.swap.frames().known(head);
            let busy = FrameFlags::DIRTY | FrameFlags::WRITEBACK | FrameFlags::READING;
            if !frame.freeze(expected_refs, busy) {
                return false;
            }
            let group = frame.memcg().load(Ordering::Relaxed);
            held.leave(first, end, shadow.map_or(Out::Bare(group), Out::Shadow), group);
            frame.clear_flags(FrameFlags::SWAP_CACHE);
            true
        })
        .unwrap_or(false)
    }

    /// Prepares a folio in the cache, of `order`, for being split into parts of order `to`: each slot gets a
    /// word of its own, and each part knows its first slot. Whether the split then happens or not, the cache
    /// is right. The caller holds the folio lock. Of a folio that is not in the cache nothing is done.
    ///
    /// # Errors
    ///
    /// [`NoTable`], for a folio as large as a cluster. Nothing was changed.
    pub fn split_folio(&self, head: Pfn, order: Order, to: Order) -> Result<(), NoTable> {
        let split = self.with_folio(head, |held, first, end| {
            if held.guard.unit(first).word.is_whole() && !held.ensure_table() {
                return Err(NoTable);
            }
            held.each(first, end, |held, unit| held.guard.split(unit));
            let frames = held.swap.frames();
            let group = frames.known(head).memcg().load(Ordering::Relaxed);
            for part in 1..order.pages() >> to.get() {
                let nth = part << to.get();
                let frame = frames.known(head.offset(nth));
                frame.private().store(held.slot(first + nth as u32).raw(), Ordering::Relaxed);
                frame.memcg().store(group, Ordering::Relaxed);
            }
            Ok(())
        });
        split.unwrap_or(Ok(()))
    }

    /// Calls `work` with the cluster of a folio in the cache and the folio's slots in it. `None` if the folio
    /// is in no cache. The caller holds the folio lock, so it does not enter or leave meanwhile.
    pub(crate) fn with_folio<R>(
        &self,
        head: Pfn,
        work: impl FnOnce(&mut Held<'_, P>, u32, u32) -> R,
    ) -> Option<R> {
        let frame = self.frames().known(head);
        let word = frame.word();
        if !word.flags().contains(FrameFlags::SWAP_CACHE) {
            return None;
        }
        let slot = SlotId::from_raw(frame.private().load(Ordering::Relaxed));
        let pages = word.order().pages() as u32;
        self.with_cluster(slot, |held, first| {
            debug_assert!(
                held.pfn(held.guard.word_of(first)) == Some(head),
                "{head:?} is not what {slot} has: {:?}",
                held.guard.unit(first)
            );
            work(held, first, first + pages)
        })
    }
}

impl<P: Platform> Held<'_, P> {
    /// Calls `work` with each unit of the slots from `first` up to `end`.
    pub(crate) fn each(&mut self, first: u32, end: u32, mut work: impl FnMut(&mut Self, Unit)) {
        let mut at = first;
        while let Some(unit) = self.guard.next_unit(at, end) {
            at = unit.first + unit.pages;
            work(self, unit);
        }
    }

    /// The page that the word has, with a reference to its folio. None while that is being split.
    pub(crate) fn get_page(&self, word: Word) -> Option<Pfn> {
        let page = self.pfn(word)?;
        let frames = self.swap.frames();
        let folio = frames.folio(page);
        if !folio.frame().try_get() {
            return None;
        }
        if frames.folio(page).head() != folio.head() {
            // It was split in between. The other part has more references than this: its slots are of this
            // cluster, so that the cache's reference stays.
            let last = folio.frame().put(1);
            debug_assert!(!last);
            return None;
        }
        Some(page)
    }

    /// The largest order up to `most` at which a folio for the naturally aligned block around `at` could be
    /// inserted; none if not even a single page could.
    fn largest(&self, at: u32, most: Order) -> Option<Order> {
        let fits = |order: Order| {
            let pages = order.pages() as u32;
            let first = at & !(pages - 1);
            first + pages <= self.limit() && self.admits(first, first + pages).is_ok()
        };
        if !fits(Order::ZERO) {
            return None;
        }
        if self.guard.torn || most == Order::ZERO {
            return Some(Order::ZERO);
        }
        if most.min(CLUSTER_ORDER) == self.guard.order && self.guard.unit(at).word.is_whole() {
            // All its slots are as the one.
            return Some(self.guard.order);
        }
        let larger = Order::ALL
            .into_iter()
            .skip(1)
            .take_while(|&order| order <= most.min(CLUSTER_ORDER) && fits(order));
        Some(larger.last().unwrap_or(Order::ZERO))
    }

    /// Whether one folio could be inserted for the slots from `first` up to `end`; the word of the first if
    /// so.
    fn admits(&self, first: u32, end: u32) -> Result<Word, Refusal> {
        let mut leader: Option<(Word, u16)> = None;
        let mut at = first;
        while let Some(unit) = self.guard.next_unit(at, end) {
            if unit.word.is_cached() {
                let same = unit.first == first && self.has_folio_of(unit, end - first);
                return Err(if same { Refusal::Found(self.guard.word_of(at)) } else { Refusal::Conflict });
            }
            if unit.word.is_free() || !self.guard.is_named(unit) {
                return Err(Refusal::Gone);
            }
            let group = unit.word.group().unwrap_or_default();
            match leader {
                _ if unit.word.is_busy() => return Err(Refusal::Conflict),
                None => leader = Some((unit.word, group)),
                Some((word, same)) if word.is_zero() == unit.word.is_zero() && same == group => {}
                Some(_) => return Err(Refusal::Conflict),
            }
            at = unit.first + unit.pages;
        }
        leader.map(|(word, _)| word).ok_or(Refusal::Gone)
    }

    /// Whether the unit is of a folio of so many pages, and begins where that does.
    fn has_folio_of(&self, unit: Unit, pages: u32) -> bool {
        if pages == 1 || unit.pages == pages {
            return true;
        }
        self.pfn(unit.word).is_some_and(|page| {
            let folio = self.swap.frames().folio(page);
            folio.head() == page && folio.order().pages() == u64::from(pages)
        })
    }

    fn insert(&mut self, first: u32, head: Pfn, order: Order) -> Result<Inserted, Retry> {
        let end = first + order.pages() as u32;
        if !first.is_multiple_of(order.pages() as u32) || end > self.limit().min(CLUSTER_SLOTS) {
            return Ok(Inserted::Conflict);
        }
        let word = match self.admits(first, end) {
            Ok(word) => word,
            Err(Refusal::Found(word)) => return self.get_page(word).map(Inserted::Found).ok_or(Retry),
            Err(Refusal::Gone) => return Ok(Inserted::Gone),
            Err(Refusal::Conflict) => return Ok(Inserted::Conflict),
        };
        if !self.own(first, end) {
            return Ok(Inserted::NoMemory);
        }
        let group = word.group().unwrap_or_default();
        let frame = self.swap.frames().known(head);
        let got = frame.get(1);
        debug_assert!(got, "the caller of insert holds a reference");
        frame.private().store(self.slot(first).raw(), Ordering::Relaxed);
        frame.memcg().store(group, Ordering::Relaxed);
        frame.set_flags(FrameFlags::SWAP_CACHE);
        let number = self.frame_number(head);
        self.each(first, end, |held, unit| {
            held.guard.store(unit, unit.word.entered(number + unit.first - first));
        });
        Ok(Inserted::Won { shadow: word.shadow(), zero: word.is_zero(), group })
    }

    fn remove_unnamed(&mut self, head: Pfn, first: u32, end: u32) -> bool {
        let frame = self.swap.frames().known(head);
        if frame.word().flags().intersects(FrameFlags::WRITEBACK | FrameFlags::READING)
            || !self.guard.all_unnamed(first, end)
        {
            return false;
        }
        let group = frame.memcg().load(Ordering::Relaxed);
        self.each(first, end, |held, unit| held.free(unit, group));
        frame.set_flags(FrameFlags::DIRTY);
        frame.clear_flags(FrameFlags::SWAP_CACHE);
        true
    }

    /// The cache drops the slots: what is named is on the device only from now on, the rest is free.
    fn leave(&mut self, first: u32, end: u32, out: Out, group: u16) {
        self.each(first, end, |held, unit| {
            if held.guard.is_named(unit) {
                held.guard.store(unit, unit.word.left(out));
            } else {
                held.free(unit, group);
            }
        });
    }
}
