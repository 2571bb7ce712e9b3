//! The counts of a folio, and what follows from them. Callers use [`HeadGuard`](super::HeadGuard), which
//! keeps those of a large folio stable.

use super::{Folio, MapsLeft, PIN};
use crate::map::FrameFlags;
use quire_sync::atomic::Ordering;

/// The most base pages that may be counted as mapped. Mapping one more fails long before the count overflows.
pub const MAX_MAPS: u32 = 1 << 31;

/// The flags of a single page whose count may be changed by a thread that has no entry for it: it is in the
/// swap cache, or it was and may have left after its count was read.
const BY_NAME: FrameFlags = FrameFlags::SWAP_CACHE.union(FrameFlags::SHARED_BY_NAME);

impl Folio<'_> {
    /// Whether no thread but the caller can see the folio: an entry of its own maps it, and it keeps that
    /// from changing, or looks at it again afterwards.
    #[inline]
    pub fn is_exclusive(&self) -> bool {
        // Before the word: reclaim puts a folio into the swap cache before it unmaps it. A thread that sees
        // the lowered count sees the swap cache in the word.
        let maps = self.maps();
        let word = self.frame.word();
        // A pin is of an exclusive folio, or ends at once; the references beside it are those of threads that
        // have to look for pins before they put another page in the place of this one.
        let alone = word.refs() == 1 || word.refs() >= PIN;
        alone
            && !word.flags().intersects(BY_NAME)
            && if self.is_large() {
                word.flags().contains(FrameFlags::ANONYMOUS_EXCLUSIVE)
            } else {
                // Pins are of exclusive pages only, so they take nothing away.
                maps == 1
            }
    }

    /// Acquire: a thread that finds that the others are gone may write to what they have read.
    #[inline]
    pub(super) fn maps(&self) -> u32 {
        self.frame.map_count().load(Ordering::Acquire)
    }

    /// Whether a single page is exclusive though it was shared by name; if so the mark is cleared. The caller
    /// holds the folio lock, which keeps other threads from mapping it from a swap entry and from adding it
    /// to the swap cache, and an entry of its own in a locked table, which is one of the mappings.
    pub(crate) fn forget_names(&self) -> bool {
        let word = self.frame.word();
        let alone = word.refs() == 1 && !word.flags().contains(FrameFlags::SWAP_CACHE) && self.maps() == 1;
        if alone {
            self.frame.clear_flags(FrameFlags::SHARED_BY_NAME);
        }
        alone
    }

    /// Whether swap entries may name the folio's slot, or the folio was mapped from one. Checked after the
    /// count: an unmapped entry got its swap entry before, and if only the caller's mapping is left, no swap
    /// entry is made later.
    #[inline]
    pub(super) fn may_be_named(&self) -> bool {
        self.frame.word().flags().intersects(BY_NAME)
    }

    /// As [`may_be_named`](Self::may_be_named), where the head lock does not keep others away: a large folio
    /// with this mark is one of a file's cache.
    #[inline]
    pub(super) fn may_be_mapped_by_name(&self) -> bool {
        let names = self.frame.word().flags() & BY_NAME;
        // Most folios have neither.
        !names.is_empty() && (!self.is_large() || names.contains(FrameFlags::SHARED_BY_NAME))
    }

    /// Counts mappings of a folio that was found in the swap cache or the cache of a file. Returns whether
    /// they are the first.
    pub(super) fn add_cached_maps(&self, pages: u32) -> bool {
        let count = self.frame.map_count();
        // Release: a thread that finds it mapped finds its owner.
        if self.is_large() {
            let maps = count.load(Ordering::Relaxed);
            count.store(maps + pages, Ordering::Release);
            return maps == 0;
        }
        // Before the count rises: a thread that read the lower count, and then finds that the folio has left
        // the swap cache, sees the mark. The folio lock keeps other mappings by name away.
        if count.load(Ordering::Acquire) > 0 {
            self.frame.set_flags(FrameFlags::SHARED_BY_NAME);
        }
        count.fetch_add(pages, Ordering::AcqRel) == 0
    }

    #[inline]
    pub(super) fn add_maps(&self, pages: u32) -> bool {
        let count = self.frame.map_count();
        // Acquire: before the look at the cache.
        let maps = self.maps();
        if pages > MAX_MAPS - maps.min(MAX_MAPS) {
            return false;
        }
        if self.is_large() || maps == pages && !self.may_be_named() {
            // Under the head lock no other thread counts. And what is mapped by the caller's entry alone,
            // whose table is locked, cannot be mapped by others in the meantime, unless a swap entry leads to
            // it.
            count.store(maps + pages, Ordering::Relaxed);
        } else {
            count.fetch_add(pages, Ordering::Relaxed);
        }
        true
    }

    #[inline]
    pub(super) fn remove_maps(&self, pages: u32) -> MapsLeft {
        let count = self.frame.map_count();
        // Acquire: what others did through their mappings is seen by a thread that is left to free the folio.
        let maps = count.load(Ordering::Acquire);
        debug_assert!(maps >= pages, "{self:?} is mapped {maps} times and loses {pages}");
        if self.is_large() || maps == pages && !self.may_be_named() {
            // Under the head lock no other thread counts. And the last mapping is the caller's own, in a
            // locked table: no other thread can count it up, unless a swap entry leads to the page.
            let left = maps.saturating_sub(pages);
            count.store(left, Ordering::Relaxed);
            return match left {
                0 => MapsLeft::None,
                // The whole folio was unmapped, and there may have been no other mapping of a part of it.
                _ if u64::from(pages.min(left)) < self.order.pages()
                    || self.frame.word().flags().contains(FrameFlags::MAPPED_IN_PART) =>
                {
                    MapsLeft::Part
                }
                _ => MapsLeft::Some,
            };
        }
        // Release: what was done through the mapping comes before the folio is reused. Acquire: pairs with
        // this release by those that removed the other mappings.
        if count.fetch_sub(pages, Ordering::AcqRel) == pages { MapsLeft::None } else { MapsLeft::Some }
    }
}
