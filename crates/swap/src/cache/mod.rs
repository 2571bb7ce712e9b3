//! The swap cache: which page has which slot, decided under the cluster's lock.

mod bypass;
mod zeros;

use crate::cluster::CLUSTER_ORDER;
use crate::counts::SlotCounts;
use crate::devices::SwapDevices;
use crate::error::NoTable;
use crate::held::{Held, Inserted, Retry, with_cluster, with_cluster_on};
use crate::shadow::Shadow;
use crate::slot::SlotId;
use crate::word::Out;
use quire_arch::{Order, Pfn, Pin, Platform};
use quire_frame::FrameFlags;

/// A snapshot of a slot's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a page that was found comes with a reference"]
pub enum Seen {
    /// The cache has the page; the caller has a reference to its folio.
    Cached(Pfn),
    /// On the device only.
    Out {
        /// The largest order, of those that were asked for, at which a folio could be inserted.
        order: Order,
        /// The memcg that the slot is charged to.
        memcg: u16,
    },
    /// Nothing could be inserted: nothing names the slot, or another thread reads it past the cache.
    Gone,
}

quire_arch::part_of! {
    /// The swap cache: which page has which slot.
    pub struct SwapCache { pub(crate) devices: SwapDevices }
}

impl<P: Platform> SwapCache<'_, P> {
    /// The page that the cache has for `slot`, with a reference to its folio.
    pub fn lookup(self, slot: SlotId) -> Option<Pfn> {
        self.without_splits(|| {
            let found = with_cluster(self.devices, slot, |held, at| {
                let word = held.guard.word_of(at);
                if !word.is_cached() {
                    return Ok(None);
                }
                held.get_page(word).map(Some).ok_or(Retry)
            });
            found.unwrap_or(Ok(None))
        })
    }

    /// The slot's state in one lookup: the page if the cache has it, else what is needed to insert a folio
    /// for it, of order `most` or less.
    pub fn look(self, slot: SlotId, most: Order) -> Seen {
        self.without_splits(|| {
            let seen = with_cluster(self.devices, slot, |held, at| {
                let word = held.guard.word_of(at);
                if word.is_cached() {
                    return held.get_page(word).map(Seen::Cached).ok_or(Retry);
                }
                Ok(match held.largest(at, most) {
                    Some(order) => Seen::Out { order, memcg: word.memcg().unwrap_or_default() },
                    None => Seen::Gone,
                })
            });
            seen.unwrap_or(Ok(Seen::Gone))
        })
    }

    /// Calls `look` until no split interferes.
    #[inline]
    fn without_splits<R>(self, mut look: impl FnMut() -> Result<R, Retry>) -> R {
        let mut attempt = 0;
        loop {
            match look() {
                Ok(result) => return result,
                Err(Retry) => P::relax(attempt),
            }
            attempt = attempt.saturating_add(1);
        }
    }

    /// Inserts a folio whose pages are to be read from the slots from `slot` on, which is a multiple of its
    /// order. The caller holds the folio lock and a reference, and the folio is in no cache.
    ///
    /// On [`Inserted::Won`] the folio has [`FrameFlags::SWAP_CACHE`], `private` is its first slot, and the
    /// cache holds one more reference. The slots are named as often as before.
    pub fn insert(self, slot: SlotId, head: Pfn) -> Inserted {
        let order = self.devices.frames().known(head).word().order();
        if order > CLUSTER_ORDER {
            return Inserted::Conflict;
        }
        self.without_splits(|| {
            let inserted = with_cluster(self.devices, slot, |held, at| held.insert(at, head, order));
            inserted.unwrap_or(Ok(Inserted::Gone))
        })
    }

    /// Takes a folio out of the cache and frees its slots, if nothing names any of them. Returns true then:
    /// the caller drops the cache's reference, and the folio is dirty. The caller holds the folio lock and a
    /// reference.
    pub fn remove_unnamed(self, head: Pfn) -> bool {
        self.with_folio(head, |held, first, end| held.remove_unnamed(head, first, end)).unwrap_or(false)
    }

    /// Takes the folio at `head`, to which the caller has a reference, out of the cache, if nothing names its
    /// slots and no thread is busy with it. Returns whether it did.
    pub fn leave_if_unnamed(self, head: Pfn) -> bool {
        loop {
            let Some(guard) = self.devices.frames().folios().try_lock_folio(head) else { return false };
            let folio = self.devices.frames().folio(head);
            let (order, flags) = (folio.order(), folio.frame().word().flags());
            if flags & (FrameFlags::SWAP_CACHE | FrameFlags::WRITEBACK) != FrameFlags::SWAP_CACHE {
                return false;
            }
            let first = SlotId::from_raw(folio.frame().as_folio().slot());
            let leaves = self.remove_unnamed(head);
            drop(guard);
            if leaves {
                self.devices.memcgs().folios().release_folio(head);
                return true;
            }
            // A thread that removed the last name in between found the folio locked, and left the removal to
            // this one.
            if !SlotCounts::new(self.devices).is_cached_only(first, order.pages() as u32) {
                return false;
            }
        }
    }

    /// No entry names the `pages` slots from `slot` on any more. If the cache has a folio for them, and no
    /// other thread is busy with it, it leaves the cache, and `left` is called with it: it may be mapped.
    pub fn drop_unnamed(self, slot: SlotId, pages: u32, mut left: impl FnMut(Pfn)) {
        let mut nth = 0;
        while nth < u64::from(pages) {
            let Some(page) = self.lookup(slot.plus(nth)) else {
                nth += 1;
                continue;
            };
            let folio = self.devices.frames().folio(page);
            nth += folio.pages_from(page);
            if self.leave_if_unnamed(folio.head()) {
                left(folio.head());
            }
            self.devices.memcgs().folios().release_folio(folio.head());
        }
    }

    /// Drops the names of entries that named all slots of the folio at `head`; the folio leaves the cache if
    /// nothing else names them: [`drop_counts`](SlotCounts::drop_counts) and
    /// [`remove_unnamed`](Self::remove_unnamed) in one. True if it left. The caller holds the folio lock and
    /// a reference; the folio is in the cache.
    pub fn drop_counts_and_leave(self, head: Pfn) -> bool {
        self.with_folio(head, |held, first, end| {
            held.unname(first, end);
            held.remove_unnamed(head, first, end)
        })
        .unwrap_or(false)
    }

    /// Removes a folio that could not be read from the cache. Its slots stay named as they are. The caller
    /// holds the folio lock and a reference, and drops the cache's reference. A folio that is not in the
    /// cache, or that is still being read, stays as it is, and the result is false.
    pub fn discard_failed(self, head: Pfn) -> bool {
        self.with_folio(head, |held, first, end| {
            let frame = held.devices.frames().known(head);
            if frame.word().flags().intersects(FrameFlags::WRITEBACK | FrameFlags::READING) {
                return false;
            }
            let memcg = frame.as_folio().memcg();
            held.leave(first, end, Out::Bare(memcg), memcg);
            frame.clear_flags(FrameFlags::SWAP_CACHE);
            true
        })
        .unwrap_or(false)
    }

    /// Evicts a folio from the cache, if it is clean, under no I/O and exactly `expected_refs` references are
    /// held: the cache's and the caller's. Then its slots get the `shadow`, those that nothing names are
    /// freed, and the folio's refcount is frozen at zero: no thread can take a reference, and the caller
    /// frees it. Otherwise nothing changed. The caller holds the folio lock.
    pub fn evict(self, head: Pfn, expected_refs: u32, shadow: Option<Shadow>) -> bool {
        self.with_folio(head, |held, first, end| held.evict(head, (first, end), expected_refs, shadow))
            .unwrap_or(false)
    }

    /// The same for a folio that was found to be zeros since it was made clean, which is noted whether it
    /// leaves or not. `None` if it is not in the cache.
    pub(crate) fn evict_zeros(
        self,
        pin: &Pin<'_, P>,
        head: Pfn,
        expected_refs: u32,
        shadow: Shadow,
    ) -> Option<bool> {
        self.with_folio_on(pin, head, |held, first, end| {
            held.note_zero(first, end, true);
            held.evict(head, (first, end), expected_refs, Some(shadow))
        })
    }

    /// Prepares a folio in the cache, of `order`, for being split into parts of order `to`: each slot gets a
    /// word of its own, and each part knows its first slot. The cache is consistent whether the split then
    /// happens or not; parts get their memcg in the split. The caller holds the folio lock. Does nothing for
    /// a folio that is not in the cache.
    ///
    /// # Errors
    ///
    /// [`NoTable`], for a folio as large as a cluster. Nothing was changed.
    pub fn split_folio(self, head: Pfn, order: Order, to: Order) -> Result<(), NoTable> {
        let split = self.with_folio(head, |held, first, end| {
            if held.guard.unit(first).word.is_whole() && !held.ensure_table() {
                return Err(NoTable);
            }
            held.each(first, end, |held, unit| held.guard.split(unit));
            let frames = held.devices.frames();
            for part in 1..order.pages() >> to.get() {
                let nth = part << to.get();
                let frame = frames.known(head.offset(nth));
                frame.as_folio().set_slot(held.slot(first + nth as u32).raw());
            }
            Ok(())
        });
        split.unwrap_or(Ok(()))
    }

    /// Calls `work` with the cluster of a folio in the cache and the folio's slots in it. `None` if the folio
    /// is in no cache. The caller holds the folio lock, so it does not enter or leave meanwhile.
    pub(crate) fn with_folio<R>(
        self,
        head: Pfn,
        work: impl FnOnce(&mut Held<'_, P>, u32, u32) -> R,
    ) -> Option<R> {
        self.with_folio_on(&self.devices.platform().pin(), head, work)
    }

    /// The same, for a caller that is pinned.
    #[inline]
    fn with_folio_on<R>(
        self,
        pin: &Pin<'_, P>,
        head: Pfn,
        work: impl FnOnce(&mut Held<'_, P>, u32, u32) -> R,
    ) -> Option<R> {
        let frame = self.devices.frames().known(head);
        let word = frame.word();
        if !word.flags().contains(FrameFlags::SWAP_CACHE) {
            return None;
        }
        let slot = SlotId::from_raw(frame.as_folio().slot());
        let pages = word.order().pages() as u32;
        with_cluster_on(self.devices, pin, slot, |held, first| {
            debug_assert!(
                held.pfn(held.guard.word_of(first)) == Some(head),
                "{head:?} is not what {slot} has: {:?}",
                held.guard.unit(first)
            );
            work(held, first, first + pages)
        })
    }
}
