//! Runs: entries of a bottom table, one after the other, that map consecutive frames of one folio.
//!
//! A run is found from the entries. Of its folio only the first descriptor is read: its order limits the run,
//! so that neighbouring folios are never taken for one. A run ends also where the caller's part of the table
//! ends. Entries of one run map as the same kind of page, but each has its own permissions, accessed and
//! dirty bits, and keeps them.

use super::{Entries, Tables};
use quire_arch::{Entry, Leaf, LeafFlags, Level, PagingFormat, Pfn, Platform, SwapEntry, prefetch};
use quire_frame::HeadGuard;
use quire_swap::SlotId;
use quire_sync::atomic::raw::{AtomicU64, Ordering};

impl<P: Platform> Tables<'_, P> {
    /// The number of entries from `index` on, and before `end`, that make a run with the first of them, the
    /// present leaf `raw`, which maps `pfn`, a page of `folio`.
    ///
    /// Entries past the first may be changing in this moment by the MMU's accessed and dirty bits only.
    #[inline(always)]
    pub fn run_length(
        &self,
        entries: &Entries,
        (index, end): (usize, usize),
        (raw, pfn): (u64, Pfn),
        folio: &HeadGuard<'_, P>,
    ) -> usize {
        let most = self.run_bound((index, end), pfn, folio);
        if most == 1 { 1 } else { Self::equal_entries(&entries[index..index + most], raw) }
    }

    /// The same for a leaf that may allow no access: it is not present then, so its bits say nothing of the
    /// next one. Its run is of leaves that allow none.
    pub fn run_of_any(
        &self,
        entries: &Entries,
        (index, end): (usize, usize),
        (raw, leaf): (u64, Leaf),
        folio: &HeadGuard<'_, P>,
    ) -> usize {
        if leaf.flags.contains(LeafFlags::READ) {
            return self.run_length(entries, (index, end), (raw, leaf.pfn), folio);
        }
        let most = self.run_bound((index, end), leaf.pfn, folio);
        let goes_on = |(entry, nth): &(&AtomicU64, u64)| match P::Paging::decode(
            entry.load(Ordering::Relaxed),
            Level::PTE,
        ) {
            Entry::Leaf(Leaf { pfn, flags }) => {
                pfn.0 == leaf.pfn.0 + nth && !flags.intersects(LeafFlags::READ | LeafFlags::SPECIAL)
            }
            _ => false,
        };
        entries[index..index + most].iter().zip(0..).take_while(goes_on).count()
    }

    /// The number of `entries`, starting with `raw`, that map consecutive frames and are otherwise equal,
    /// except for permissions and the bits that the MMU sets.
    #[inline(never)]
    fn equal_entries(entries: &[AtomicU64], raw: u64) -> usize {
        let differing = |entry: &AtomicU64, expected| entry.load(Ordering::Relaxed) ^ expected;
        let (mut rest, mut expected) = (entries, raw);
        // Several are compared per branch: most runs are as long as their folio.
        while let Some((block, after)) = rest.split_first_chunk::<AT_ONCE>() {
            let all = block
                .iter()
                .zip(0..)
                .fold(0, |all, (entry, nth)| all | differing(entry, P::Paging::frames_on(expected, nth)));
            if all & P::Paging::IDENTITY != 0 {
                break;
            }
            (rest, expected) = (after, P::Paging::frames_on(expected, AT_ONCE as u64));
        }
        let goes_on = |(entry, nth): &(&AtomicU64, u64)| {
            differing(entry, P::Paging::frames_on(expected, *nth)) & P::Paging::IDENTITY == 0
        };
        entries.len() - rest.len() + rest.iter().zip(0..).take_while(goes_on).count()
    }
}

impl<P: Platform> Tables<'_, P> {
    /// The most entries from `index` on, and before `end`, that can make a run with an entry that maps `pfn`,
    /// a page of `folio`.
    #[inline]
    pub fn run_bound(&self, (index, end): (usize, usize), pfn: Pfn, folio: &HeadGuard<'_, P>) -> usize {
        if !folio.folio().is_large() {
            return 1;
        }
        let most = folio.folio().pages_from(pfn).min(self.memory.techniques().gather.longest_run());
        (most as usize).min(end - index)
    }

    /// The number of entries from `index` on, and before `end`, that name consecutive slots with the first of
    /// them, `first`. A run does not leave its block of slots.
    pub fn swap_run(entries: &Entries, (index, end): (usize, usize), first: SwapEntry) -> usize {
        let most = (SlotId::of(first).left_in_cluster() as usize).min(end - index);
        let goes_on = |&(entry, nth): &(&AtomicU64, u64)| {
            let wanted = SwapEntry { slot: first.slot + nth, ..first };
            // As they are stored: to encode one is less than to decode the other.
            entry.load(Ordering::Relaxed) == P::Paging::encode(Entry::Swap(wanted), Level::PTE)
        };
        entries[index..index + most].iter().zip(0..).take_while(goes_on).count()
    }
}

/// Entries that are compared at once.
const AT_ONCE: usize = 8;

/// Number of runs ahead of the current one whose folio's descriptor is prefetched, and entries at least:
/// about as many as are processed during one cache miss.
const RUNS_AHEAD: usize = 4;
const ENTRIES_AHEAD: usize = 8;

impl<P: Platform> Tables<'_, P> {
    /// The run of `pages` entries at `index` is being processed: prefetches the descriptor of the folio that
    /// a later entry maps, so that a walk of a table does not stall on each.
    #[inline]
    pub fn fetch_ahead(&self, entries: &[AtomicU64], index: usize, pages: usize) {
        if let Some(entry) = entries.get(index + (RUNS_AHEAD * pages).max(ENTRIES_AHEAD))
            && let raw = entry.load(Ordering::Relaxed)
            && P::Paging::is_present_leaf(raw, Level::PTE)
        {
            prefetch(self.memory.frames().known(P::Paging::frame_of(raw)));
        }
    }
}
