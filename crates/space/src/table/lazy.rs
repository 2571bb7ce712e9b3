//! Pages whose contents nobody needs any more (MADV_FREE).

use super::{HugeSlot, LockedTable, Place, Step, Tables};
use crate::gather::Gather;
use core::sync::atomic::Ordering;
use quire_arch::{Entry, LeafFlags, Level, PagingFormat, Pfn, Pin, Platform, VirtAddr, VirtRange};
use quire_frame::{FrameFlags, Kind, LockedFolio, VmEvent};
use quire_group::LruList;

impl<P: Platform> Tables<'_, P> {
    /// Marks the pages of `range` as such whose contents nobody needs any more (MADV_FREE): what is written to from now on
    /// is needed again, so accessed and dirty are cleared. Folios that others see too, or that lie in the range only in
    /// part, are left alone. Old translations are noted in `gather`, since they would not mark a write.
    pub(crate) fn free_lazily(&self, range: VirtRange, gather: &mut Gather<'_, P>) {
        self.walk(range, &mut |place, part| {
            let pin = self.pin();
            let (locked, level) = match place {
                Place::Table(table) => (self.lock(&pin, table, Level::PTE), Level::PTE),
                Place::Huge(slot) if part != self.slot_range(slot) => return self.cut_to_free(slot),
                Place::Huge(slot) => (self.lock_slot(&pin, slot), Level::PMD),
            };
            let start = match place {
                Place::Table(_) => P::Paging::index(part.start(), Level::PTE),
                Place::Huge(slot) => slot.index,
            };
            let end = if level == Level::PTE { start + part.pages() as usize } else { start + 1 };
            let mut index = start;
            while index < end {
                let raw = locked.entries[index].load(Ordering::Relaxed);
                index += match P::Paging::decode(raw, level) {
                    Entry::Leaf(leaf)
                        if leaf.flags & (LeafFlags::READ | LeafFlags::SPECIAL) == LeafFlags::READ =>
                    {
                        let entries = self.free_run(&pin, &locked, (index, end), (raw, leaf.pfn), level);
                        let shift = P::Paging::shift(level);
                        let at = VirtAddr(part.start().0 + (((index - start) as u64) << shift));
                        gather.add_stale(VirtRange::new(at, VirtAddr(at.0 + ((entries as u64) << shift))));
                        entries
                    }
                    Entry::Swap(entry) => {
                        let pages = self.zap_swapped(&locked, (index, end), entry, gather);
                        if self.core.cpus.is_paging_out() {
                            gather.add_stale(part);
                        }
                        pages
                    }
                    _ => 1,
                };
            }
            Step::Next
        });
    }

    /// A part of what a large leaf maps is to be freed: the leaf is cut if nobody else has the folio, else left alone, as
    /// zeros are.
    fn cut_to_free(&self, slot: HugeSlot) -> Step {
        let pin = self.pin();
        let locked = self.lock_slot(&pin, slot);
        let Some(leaf) = Self::huge_leaf(&locked, slot) else { return Step::Again };
        let alone = !leaf.flags.contains(LeafFlags::SPECIAL)
            && self.spaces.frames().lock_folio(leaf.pfn).maps() == Self::huge_pages();
        if alone { Step::Split } else { Step::Next }
    }

    /// The same for the run that starts with the leaf `raw` at `index`. Answers its length in entries.
    fn free_run(
        &self,
        pin: &Pin<'_, P>,
        locked: &LockedTable<'_, P>,
        (index, end): (usize, usize),
        (raw, pfn): (u64, Pfn),
        level: Level,
    ) -> usize {
        let folio = self.spaces.frames().lock_folio(pfn);
        let (entries, pages) = if level == Level::PTE {
            let pages = self.run_length(locked.entries, (index, end), (raw, pfn), &folio);
            (pages, pages as u64)
        } else {
            (1, u64::from(Self::huge_pages()))
        };
        let whole = pages == folio.folio().order().pages() && u64::from(folio.maps()) == pages;
        if folio.folio().kind() == Kind::Anonymous && whole && self.leaves_cache_or_is_not_in_it(&folio) {
            // Whether it was dirty before does not matter any more.
            folio.folio().frame().change_flags(FrameFlags::LAZY_FREE, FrameFlags::DIRTY);
            self.list_lazy(pin, folio.folio().head(), pages);
            for slot in &locked.entries[index..index + entries] {
                // The MMU may be setting the same bits: a page that is used in this moment is needed.
                slot.fetch_and(!(P::Paging::ACCESSED | P::Paging::DIRTY), Ordering::AcqRel);
            }
        }
        entries
    }

    /// A folio in the swap cache has slots, and what a device has there is older than what the program wrote last: were such a
    /// folio taken for clean, that would come back. So it leaves the cache first, or is left alone if it cannot: somebody else
    /// names its slots, it is being written, or in the hands of reclaim.
    fn leaves_cache_or_is_not_in_it(&self, folio: &LockedFolio<'_, P>) -> bool {
        let cached = folio.folio().frame().word().flags().contains(FrameFlags::SWAP_CACHE);
        !cached || self.spaces.leave_cache_if_unnamed(folio.folio().head())
    }

    /// Puts a folio where reclaim looks first: it takes no device to free it, so also a machine without one lists it.
    fn list_lazy(&self, pin: &Pin<'_, P>, head: Pfn, pages: u64) {
        self.spaces.frames().events().add(pin, VmEvent::Pglazyfree, pages);
        let groups = self.spaces.memory_groups();
        // One that is not listed where all are is in the hands of reclaim, which puts it where it belongs.
        if !groups.move_to(pin, head, LruList::InactiveFile, true) && !groups.lists_anonymous() {
            groups.list_folio(pin, head, LruList::InactiveFile);
        }
    }
}
