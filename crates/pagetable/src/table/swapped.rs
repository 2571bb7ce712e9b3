//! Swap entries.
//!
//! The MMU does not write to them, so they change by stores under the lock of their table.

use super::{Entries, LockedTable, Tables, WalkEntry, WalkStep};
use crate::gather::Gather;
use quire_arch::{Entry, Level, PAGE_SIZE, PagingFormat, Platform, SwapEntry, VirtAddr, VirtRange};
use quire_swap::SlotId;
use quire_sync::atomic::raw::Ordering;

/// A run of swap entries: consecutive pages that name consecutive slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwappedRun {
    /// The first page.
    pub addr: VirtAddr,
    /// Its entry.
    pub entry: SwapEntry,
    /// How many there are.
    pub pages: u64,
}

impl SwappedRun {
    /// The `nth` page of it.
    pub fn page(&self, nth: u64) -> VirtAddr {
        VirtAddr(self.addr.0 + nth * PAGE_SIZE)
    }
}

impl<P: Platform> Tables<'_, P> {
    /// The first run of swapped-out pages in `range`.
    pub fn first_swapped(&self, range: VirtRange) -> Option<SwappedRun> {
        let mut found = None;
        self.walk(range, &mut |place, part| {
            let WalkEntry::Table(table) = place else { return WalkStep::Next };
            let pin = self.pin();
            let locked = self.lock(&pin, table, Level::PTE);
            let end = P::Paging::index(part.start(), Level::PTE) + part.pages() as usize;
            found = Self::pages(part).find_map(|(index, addr)| match locked.get(index) {
                Entry::Swap(entry) => {
                    let pages = Self::swap_run(locked.entries, (index, end), entry) as u64;
                    Some(SwappedRun { addr, entry, pages })
                }
                _ => None,
            });
            if found.is_some() { WalkStep::Stop } else { WalkStep::Next }
        });
        found
    }

    /// The number of entries from `index` on, and before `end`, that name consecutive slots with the first of
    /// them, `first`. A run does not leave its block of slots.
    pub fn swap_run(entries: &Entries, (index, end): (usize, usize), first: SwapEntry) -> usize {
        let most = (SlotId::of(first).left_in_cluster() as usize).min(end - index);
        let goes_on = |&(entry, nth): &(&quire_sync::atomic::raw::AtomicU64, u64)| {
            let wanted = SwapEntry { slot: first.slot + nth, ..first };
            // As they are stored: to encode one is less than to decode the other.
            entry.load(Ordering::Relaxed) == P::Paging::encode(Entry::Swap(wanted), Level::PTE)
        };
        entries[index..index + most].iter().zip(0..).take_while(goes_on).count()
    }

    /// Empties the run that starts with `first` at `index`, and returns its length.
    pub fn zap_swapped(
        &self,
        locked: &LockedTable<'_, P>,
        (index, end): (usize, usize),
        first: SwapEntry,
        gather: &mut Gather<'_, P>,
    ) -> usize {
        let pages = Self::swap_run(locked.entries, (index, end), first);
        for entry in &locked.entries[index..index + pages] {
            entry.store(0, Ordering::Relaxed);
        }
        locked.count_taken(pages);
        self.drop_swapped(first, pages, gather);
        pages
    }

    /// `pages` entries that named slots from `first` on are gone.
    pub(super) fn drop_swapped(&self, first: SwapEntry, pages: usize, gather: &mut Gather<'_, P>) {
        let slot = SlotId::of(first);
        if self.memory.swap().counts().drop_counts(slot, pages as u32).cached_only {
            gather.add_cached(slot, pages as u32);
        }
        self.space.residency.swap_gone(pages as u64);
    }

    /// Gives the child's table the run that starts with `first` at `index` of the parent's, and returns its
    /// length. The pages are exclusive to neither from then on.
    pub(super) fn share_swapped(
        &self,
        (here, there): (&LockedTable<'_, P>, &LockedTable<'_, P>),
        (index, end): (usize, usize),
        first: SwapEntry,
        child: &Tables<'_, P>,
    ) -> usize {
        let pages = Self::swap_run(here.entries, (index, end), first);
        self.memory.swap().counts().add_counts(SlotId::of(first), pages as u32);
        let pairs = here.entries[index..index + pages].iter().zip(&there.entries[index..index + pages]);
        for ((own, childs), nth) in pairs.zip(0..) {
            let shared = SwapEntry { slot: first.slot + nth, exclusive: false, ..first };
            let raw = P::Paging::encode(Entry::Swap(shared), Level::PTE);
            if first.exclusive {
                own.store(raw, Ordering::Relaxed);
            }
            LockedTable::<P>::put_raw(childs, raw);
        }
        there.count_installed(pages);
        child.space.residency.swapped_out(pages as u64);
        pages
    }
}
