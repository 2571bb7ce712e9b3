//! Splitting large leaves.

use super::HugeLeaves;
use crate::cpus::FlushCause;
use crate::gather::Gather;
use crate::huge_slot::HugeSlot;
use crate::residency::Residency;
use crate::table::{Found, LockedTable, Tables};
use quire_arch::{
    Entry, Leaf, LeafFlags, Level, Order, PagingFormat, Pfn, Pin, Platform, VirtAddr, VirtRange,
};
use quire_frame::{FrameFlags, HeadGuard, MapsLeft, VmEvent};
use quire_memcg::UnevictableFolios;
use quire_sync::atomic::raw::Ordering;

impl<'w, P: Platform> HugeLeaves<'w, P> {
    /// What page `nth` of a large leaf maps when it has an entry of its own.
    pub(crate) fn page_of_leaf(self, leaf: Leaf, nth: usize) -> Leaf {
        let special = leaf.flags.contains(LeafFlags::SPECIAL);
        let pfn = if special { self.tables.memory().zero_page() } else { leaf.pfn.offset(nth as u64) };
        Leaf { pfn, ..leaf }
    }

    /// The folio that a large leaf maps, with its counts locked; `None` for the huge zero page.
    pub(crate) fn lock_head_of(self, leaf: Leaf) -> Option<HeadGuard<'w, P>> {
        let special = leaf.flags.contains(LeafFlags::SPECIAL);
        (!special).then(|| self.tables.memory().frames().folios().lock_head(leaf.pfn))
    }

    /// Puts the deposited table in the place of the leaf at `slot`, with an entry for each page. Nothing is
    /// allocated, and no count of the folio changes. Does nothing where the leaf is gone. As in Linux, a leaf
    /// that maps the cache of a file is taken out instead: what is needed of it comes back by faults.
    pub fn split_huge(self, slot: HugeSlot) {
        let pin = self.tables.pin();
        let locked = self.tables.lock_slot(&pin, slot);
        let Some(leaf) = Tables::<P>::huge_leaf(&locked, slot) else { return };
        let Some(table) = self.withdraw(slot) else { return };
        if self.tables.maps_cached(leaf) {
            return self.take_out_cached(&pin, (locked, slot), leaf, table);
        }
        // No thread may find the folio half mapped: its counts are locked meanwhile.
        let folio = self.lock_head_of(leaf);
        // Not present, but never none: a lock-free walker must not take it for a hole.
        let absent = Leaf { pfn: leaf.pfn, flags: leaf.flags - LeafFlags::READ };
        let raw = locked.entries[slot.index]
            .swap(P::Paging::encode(Entry::Leaf(absent), Level::PMD), Ordering::AcqRel);
        if leaf.flags.contains(LeafFlags::READ) {
            // No CPU may have translations of both sizes, and the MMU's accessed and dirty bits must be
            // final.
            self.tables.space().flush(
                self.tables.memory().frames(),
                &pin,
                self.tables.slot_range(slot),
                FlushCause::Split,
            );
        }
        if let Entry::Leaf(leaf) = P::Paging::decode(raw, Level::PMD) {
            let entries = self.tables.entries(table);
            for (nth, entry) in entries[..P::Paging::entries(Level::PTE)].iter().enumerate() {
                let page = Entry::Leaf(self.page_of_leaf(leaf, nth));
                entry.store(P::Paging::encode(page, Level::PTE), Ordering::Relaxed);
            }
            self.tables.memory().frames().known(table).as_table().set_live(Tables::<P>::huge_pages());
        }
        match &folio {
            Some(folio) => self.uncount_whole_map(&pin, folio.folio().head()),
            None => self.tables.memory().put_huge_zero(leaf.pfn, 1),
        }
        // Release: a walker that finds the table finds it filled. The entry was live and is again.
        let linked = P::Paging::encode(Entry::Table(table), Level::PMD);
        locked.entries[slot.index].store(linked, Ordering::Release);
        self.tables.memory().frames().events().add(&pin, VmEvent::ThpSplitPmd, 1);
    }

    /// Empties the leaf at `slot`, which maps the cache of a file, and frees its `table`.
    fn take_out_cached(
        self,
        pin: &Pin<'_, P>,
        (locked, slot): (LockedTable<'_, P>, HugeSlot),
        leaf: Leaf,
        table: Pfn,
    ) {
        let memory = self.tables.memory();
        locked.take(slot.index);
        // Always: without the mmap lock mprotect may not have flushed a leaf that it has made unusable.
        let range = self.tables.slot_range(slot);
        self.tables.space().flush(memory.frames(), pin, range, FlushCause::Split);
        self.uncount_whole_map(pin, leaf.pfn);
        let pages = Tables::<P>::huge_pages();
        let folio = memory.frames().folios().lock_head(leaf.pfn);
        if folio.folio().frame().word().flags().contains(FrameFlags::MLOCKED) {
            // Reclaim sets the mark again where a mapping locks it. That of what nothing maps stays for ever.
            UnevictableFolios::of(memory.memcgs().folios()).munlock(pin, &folio, || false);
        }
        let (left, kind) = (folio.remove_maps(pages), folio.folio().kind());
        drop(folio);
        self.tables.space().residency.pages_unmapped(Residency::of(kind, u64::from(pages)));
        self.tables.space().residency.table_gone();
        memory.frames().events().add(pin, VmEvent::ThpSplitPmd, 1);
        drop(locked);
        memory.memcgs().folios().release_unused(pin, table, Order::ZERO);
        if left == MapsLeft::None {
            memory.memcgs().folios().release_folio(leaf.pfn);
        }
    }

    /// Makes the large leaf at `slot` unusable for the MMU, keeping all else. Returns false, with nothing
    /// changed, if there is none, or if it was unusable before.
    pub fn make_huge_absent(self, slot: HugeSlot) -> bool {
        let pin = self.tables.pin();
        let locked = self.tables.lock_slot(&pin, slot);
        let Some(leaf) = Tables::<P>::huge_leaf(&locked, slot) else { return false };
        let usable = leaf.flags.contains(LeafFlags::READ);
        if usable {
            let mut raw = locked.entries[slot.index].load(Ordering::Relaxed);
            // The MMU may be setting accessed and dirty, which are kept.
            while let Entry::Leaf(Leaf { pfn, flags }) = P::Paging::decode(raw, Level::PMD) {
                let absent = Entry::Leaf(Leaf { pfn, flags: flags - LeafFlags::READ });
                let new = P::Paging::encode(absent, Level::PMD);
                let slot = &locked.entries[slot.index];
                match slot.compare_exchange(raw, new, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => break,
                    Err(now) => raw = now,
                }
            }
        }
        usable
    }

    /// Puts the deposited table in the place of the leaf at `slot`, with an entry for each page that does not
    /// lie in `part`; those are the caller's, with the flags of the leaf that is returned. Nothing is
    /// flushed, so the entries that stay are unusable: no CPU may have translations of both sizes. `None`,
    /// with nothing changed, where the leaf is gone.
    pub fn detach_part(self, slot: HugeSlot, part: VirtRange, gather: &mut Gather<'_, P>) -> Option<Leaf> {
        self.make_huge_absent(slot);
        let pin = self.tables.pin();
        let locked = self.tables.lock_slot(&pin, slot);
        let leaf = Tables::<P>::huge_leaf(&locked, slot)?;
        let table = self.withdraw(slot)?;
        let folio = self.lock_head_of(leaf);
        let live = self.fill_around(table, leaf, part);
        self.tables.memory().frames().known(table).as_table().set_live(live);
        match &folio {
            Some(folio) => self.uncount_whole_map(&pin, folio.folio().head()),
            None => gather.add_huge_zero(leaf.pfn),
        }
        // Release, as when a leaf is split.
        let linked = P::Paging::encode(Entry::Table(table), Level::PMD);
        locked.entries[slot.index].store(linked, Ordering::Release);
        self.tables.memory().frames().events().add(&pin, VmEvent::ThpSplitPmd, 1);
        Some(leaf)
    }

    /// Fills `table`, which is not linked anywhere, with entries for the pages of a large leaf, but for those
    /// in `part`. Returns how many.
    pub(crate) fn fill_around(self, table: Pfn, leaf: Leaf, part: VirtRange) -> u32 {
        let first = P::Paging::index(part.start(), Level::PTE);
        let gone = first..first + part.pages() as usize;
        let entries = &self.tables.entries(table)[..P::Paging::entries(Level::PTE)];
        for (nth, entry) in entries.iter().enumerate().filter(|(nth, _)| !gone.contains(nth)) {
            let page = Entry::Leaf(self.page_of_leaf(leaf, nth));
            entry.store(P::Paging::encode(page, Level::PTE), Ordering::Relaxed);
        }
        Tables::<P>::huge_pages() - part.pages() as u32
    }

    /// Splits the large leaf that `addr` lies in the middle of, if there is one: the border of two mappings.
    pub fn split_huge_at(self, addr: VirtAddr) {
        if addr.0 & (P::Paging::entry_bytes(Level::PMD) - 1) != 0
            && let Found::Huge(slot) = self.tables.lookup(addr)
        {
            self.split_huge(slot);
        }
    }
}
