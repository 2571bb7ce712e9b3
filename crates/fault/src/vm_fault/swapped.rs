//! Mapping what was swapped in.

use super::VmFault;
use crate::error::{FaultError, Refusal, Swapped};
use crate::step::Step;
use crate::swapped_in::SwappedIn;
use quire_arch::{
    Access, Entry, Leaf, LeafFlags, Level, Order, OrderSet, PAGE_SIZE, PagingFormat, Platform, SwapEntry,
    VirtAddr,
};
use quire_frame::{AllocError, FrameFlags};
use quire_pagetable::{LockedTable, Tables, pages_from};
use quire_swap::SlotId;
use quire_sync::atomic::raw::Ordering;

impl<P: Platform> VmFault<'_, P> {
    /// Maps the page that entry `index` names, or all of its folio if the entries around name the rest.
    /// [`Step::LookAgain`] if it was mapped for reading, and a write needs a copy.
    // A frame of its own: most faults find no swap entry.
    #[inline(never)]
    pub fn map_swapped(
        &self,
        tables: &Tables<'_, P>,
        locked: &LockedTable<'_, P>,
        index: usize,
        entry: SwapEntry,
    ) -> Result<Step, Refusal> {
        let slot = SlotId::of(entry);
        let found = self.swapped.and_then(|held| held.page_of(slot).map(|nth| (held, nth)));
        let Some((held, nth)) = found else {
            return Err(Refusal::Swapped(self.look_around(locked, index, entry)));
        };
        let frames = tables.memory().frames();
        let whole = self.names_whole_folio(locked, index, (entry, nth), held);
        let (first, page, pages) =
            if whole { (index - nth as usize, 0, held.order.pages()) } else { (index, nth, 1) };
        let start = held.slot.plus(page);
        let folio = frames.folios().lock_head(held.head);
        let frame = folio.folio().frame();
        let unmapped = folio.maps() == 0;
        let large = folio.folio().is_large();
        let exclusive = unmapped
            && (entry.exclusive && (whole || !large)
                || !large && tables.memory().swap().counts().is_named_once(start));
        // The mappings' reference, before they are made.
        if !folio.may_add(pages as u32) || !frame.get(1) {
            return Err(FaultError::OutOfMemory(AllocError::OutOfMemory).into());
        }
        let first_addr = VirtAddr(self.addr.page_start().0 - (index - first) as u64 * PAGE_SIZE);
        if unmapped {
            let offset = self.vma.page_offset_at(first_addr) - page;
            frame.as_folio().set_index(offset);
            if exclusive {
                frame.as_folio().set_owner(self.vma.anon.owner_word());
            } else {
                frame.as_folio().set_owner(self.vma.anon.root_owner_word());
            }
        }
        // Others may have unmapped the folio since the check. It keeps its anon_vma then, which is an
        // ancestor of this VMA's.
        if !folio.add_cached_maps(pages as u32) {
            // They had one; and so has the caller.
            frame.put(1);
        }
        if !whole && large {
            tables.memory().memcgs().splits().mapped_in_part(&folio);
        }
        // No page of a file's cache has a slot.
        let mut flags = self.vma.flags.leaf_flags() | LeafFlags::ACCESSED;
        if exclusive {
            if large {
                frame.set_flags(FrameFlags::ANONYMOUS_EXCLUSIVE);
            }
            flags.set(LeafFlags::DIRTY, self.access == Access::Write);
        } else {
            // The mark may be older than a fork that shared the entries while nothing mapped the folio.
            folio.no_longer_exclusive();
            flags.remove(LeafFlags::WRITE);
        }
        let raw = P::Paging::encode(Entry::Leaf(Leaf { pfn: held.head.offset(page), flags }), Level::PTE);
        for (entry, nth) in locked.entries[first..first + pages as usize].iter().zip(0..) {
            // Release: a walker that reads it sees the page filled.
            entry.store(P::Paging::frames_on(raw, nth), Ordering::Release);
        }
        tables.space().residency.swap_gone(pages);
        tables.space().residency.anonymous_mapped(pages);
        held.names_gone(start, pages);
        drop(folio);
        Ok(if exclusive || self.access != Access::Write { Step::Done } else { Step::LookAgain })
    }

    /// Whether the entries around `index`, which names page `nth` of `held`, name all its pages, in one table
    /// and one mapping.
    fn names_whole_folio(
        &self,
        locked: &LockedTable<'_, P>,
        index: usize,
        (entry, nth): (SwapEntry, u64),
        held: &SwappedIn<'_, P>,
    ) -> bool {
        let pages = held.order.pages();
        if pages == 1 {
            return false;
        }
        let Some(first) = index.checked_sub(nth as usize) else { return false };
        let last = first + pages as usize;
        let start = self.addr.page_start().0.wrapping_sub(nth * PAGE_SIZE);
        let range = pages_from(VirtAddr(start), pages as usize);
        let head = SwapEntry { slot: entry.slot - nth, ..entry };
        last <= P::Paging::entries(Level::PTE)
            && self.vma.range.covers(range)
            && Tables::<P>::swap_run(locked.entries, (first, last), head) as u64 == pages
    }

    /// The orders of a folio for the slot that entry `index` names: aligned in the table, in the mapping and
    /// among the slots alike, with the entries to match, and allowed by the policy and by what the program
    /// does.
    fn look_around(&self, locked: &LockedTable<'_, P>, index: usize, entry: SwapEntry) -> Swapped {
        let fits = |order: &Order| {
            let pages = order.pages();
            let nth = entry.slot & (pages - 1);
            let Some(first) = index.checked_sub(nth as usize) else { return false };
            let last = first + pages as usize;
            let start = self.addr.page_start().0.wrapping_sub(nth * PAGE_SIZE);
            start.is_multiple_of(order.bytes())
                && last <= P::Paging::entries(Level::PTE)
                && self.vma.range.covers(pages_from(VirtAddr(start), pages as usize))
                && Tables::<P>::swap_run(
                    locked.entries,
                    (first, last),
                    SwapEntry { slot: entry.slot - nth, ..entry },
                ) as u64
                    == pages
        };
        let allowed = self.orders();
        let largest = if allowed.is_empty() {
            None
        } else {
            let most = self.window.order(self.addr, self.vma.flags);
            allowed.up_to(most).iter().find(|order| fits(order))
        };
        // A block that fits is made of smaller ones that do.
        Swapped { entry, orders: largest.map_or(OrderSet::EMPTY, |order| allowed.up_to(order)) }
    }
}
