//! Slots of a cluster whose pages are in the swap cache, or are to be.

use super::Held;
use crate::cluster::{CLUSTER_ORDER, CLUSTER_SLOTS, Unit};
use crate::shadow::Shadow;
use crate::word::{Out, SlotWord};
use quire_arch::{Order, Pfn, Platform};
use quire_frame::{FrameFlags, MAX_REFS};
use quire_memcg::MemcgId;

/// The result of an insertion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a caller that lost frees its folio, one that found a page has a reference to it"]
pub enum Inserted {
    /// The cache has the folio, and the caller fills it.
    Won {
        /// The shadow: when the page was evicted, and from which memcg, if known. Of a large folio, that of
        /// its first slot.
        shadow: Option<Shadow>,
        /// The pages are all zeros.
        zero: bool,
        /// The memcg that the slots are charged to, now the folio's too
        /// ([`memcg`](quire_frame::Frame::memcg)): it is the one to charge. Where theirs was removed it is
        /// the one that the folio had before.
        memcg: u16,
    },
    /// The cache had the page already; the caller has a reference to its folio. Of a large folio this is the
    /// page of the first slot, and the pages of the others follow it.
    Found(Pfn),
    /// A slot is free, or nothing names it: whatever entry led here has changed.
    Gone,
    /// A large folio does not fit: its slots are not all alike. For a single page: another thread reads it
    /// past the cache.
    Conflict,
    /// Slots that share one word need their own, and there is no memory for the words.
    NoMemory,
}

/// Why an insertion is not possible.
enum Refusal {
    Found(SlotWord),
    Gone,
    Conflict,
}

/// A look at the cache during which the folio was being split.
pub(crate) struct Retry;

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
    pub(crate) fn get_page(&self, word: SlotWord) -> Option<Pfn> {
        let page = self.pfn(word)?;
        let frames = self.devices.frames();
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
    pub(crate) fn largest(&self, at: u32, most: Order) -> Option<Order> {
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
    fn admits(&self, first: u32, end: u32) -> Result<SlotWord, Refusal> {
        let mut leader: Option<(SlotWord, u16)> = None;
        let mut at = first;
        while let Some(unit) = self.guard.next_unit(at, end) {
            if unit.word.is_cached() {
                let same = unit.first == first && self.has_folio_of(unit, end - first);
                return Err(if same { Refusal::Found(self.guard.word_of(at)) } else { Refusal::Conflict });
            }
            if unit.word.is_free() || !self.guard.is_named(unit) {
                return Err(Refusal::Gone);
            }
            let memcg = unit.word.memcg().unwrap_or_default();
            match leader {
                _ if unit.word.is_busy() => return Err(Refusal::Conflict),
                None => leader = Some((unit.word, memcg)),
                Some((word, same)) if word.is_zero() == unit.word.is_zero() && same == memcg => {}
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
            let folio = self.devices.frames().folio(page);
            folio.head() == page && folio.order().pages() == u64::from(pages)
        })
    }

    pub(crate) fn insert(&mut self, first: u32, head: Pfn, order: Order) -> Result<Inserted, Retry> {
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
        let frame = self.devices.frames().known(head);
        let of_slots = word.memcg().unwrap_or_default();
        let memcg = self.settle_memcg(frame.as_folio().memcg(), of_slots, order);
        if memcg != of_slots {
            self.recharged((first, end), MemcgId::from_bits(memcg));
        }
        let got = frame.get(1);
        debug_assert!(got, "the caller of insert holds a reference");
        frame.as_folio().set_slot(self.slot(first).raw());
        frame.as_folio().set_memcg(memcg);
        frame.set_flags(FrameFlags::SWAP_CACHE);
        let number = self.frame_number(head);
        self.each(first, end, |held, unit| {
            held.guard.store(unit, unit.word.entered(number + unit.first - first));
        });
        Ok(Inserted::Won { shadow: word.shadow(), zero: word.is_zero(), memcg })
    }

    /// The memcg of a folio that was charged to `charged`, and of its slots from now on, which were charged
    /// to `of_slots`. As in Linux nothing more is charged to a memcg that was removed; in the cache its folio
    /// alone says what slots are charged to.
    fn settle_memcg(&self, charged: u16, of_slots: u16, order: Order) -> u16 {
        let memcgs = self.devices.memcgs();
        if charged == of_slots || !memcgs.tree().is_removed(MemcgId::from_bits(of_slots)) {
            return of_slots;
        }
        // The folio's charge keeps its memcg.
        memcgs.charges().charge_swap_anyway(MemcgId::from_bits(charged), order.pages());
        self.devices.uncharge_slots(of_slots, order.pages());
        charged
    }

    pub(crate) fn remove_unnamed(&mut self, head: Pfn, first: u32, end: u32) -> bool {
        let frame = self.devices.frames().known(head);
        if frame.word().flags().intersects(FrameFlags::WRITEBACK | FrameFlags::READING)
            || !self.guard.all_unnamed(first, end)
        {
            return false;
        }
        let memcg = frame.as_folio().memcg();
        self.each(first, end, |held, unit| held.free(unit, memcg));
        frame.set_flags(FrameFlags::DIRTY);
        frame.clear_flags(FrameFlags::SWAP_CACHE);
        true
    }

    /// As [`SwapCache::evict`](crate::SwapCache::evict).
    pub(crate) fn evict(
        &mut self,
        head: Pfn,
        (first, end): (u32, u32),
        expected_refs: u32,
        shadow: Option<Shadow>,
    ) -> bool {
        debug_assert!((1..=MAX_REFS).contains(&expected_refs));
        let frame = self.devices.frames().known(head);
        let busy = FrameFlags::DIRTY | FrameFlags::WRITEBACK | FrameFlags::READING;
        if !frame.freeze(expected_refs, busy) {
            return false;
        }
        let memcg = frame.as_folio().memcg();
        self.leave(first, end, shadow.map_or(Out::Bare(memcg), Out::Shadow), memcg);
        frame.clear_flags(FrameFlags::SWAP_CACHE);
        true
    }

    /// The cache drops the slots: those that are named are on the device only from now on, the rest are free.
    pub(crate) fn leave(&mut self, first: u32, end: u32, out: Out, memcg: u16) {
        self.each(first, end, |held, unit| {
            if held.guard.is_named(unit) {
                held.guard.store(unit, unit.word.left(out));
            } else {
                held.free(unit, memcg);
            }
        });
    }
}
