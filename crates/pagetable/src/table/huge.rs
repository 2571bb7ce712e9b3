//! PMD leaves: a folio of the PMD's order that one entry maps in place of a bottom table.
//!
//! Splitting such a leaf needs a table, and must not fail, so the table is *deposited* when the leaf is made:
//! tables that were deposited wait in a list behind the PMD table's descriptor (the user's word of each leads
//! to the next), one for each leaf. As in Linux they count as tables of the space.

use super::{HugeSlot, LockedTable, Tables, WalkEntry, WalkStep, Zap};
use crate::attributes::NewPage;
use crate::cpus::FlushCause;
use crate::gather::Gather;
use crate::residency::Residency;
use quire_arch::{
    Entry, Leaf, LeafFlags, Level, Order, PAGE_SIZE, PagingFormat, Pfn, Pin, Platform, VirtAddr, VirtRange,
};
use quire_frame::{AllocError, AllocRequest, HeadGuard, Kind, VmEvent};
use quire_sync::atomic::raw::Ordering;

impl<'s, P: Platform> Tables<'s, P> {
    /// The order of a folio that an entry of a PMD table maps, or `None` where the format has no such leaves.
    #[inline]
    pub fn huge_order() -> Option<Order> {
        if P::Paging::leaf_allowed(Level::PMD) { P::Paging::leaf_order(Level::PMD) } else { None }
    }

    /// Base pages that an entry of a PMD table maps.
    #[inline]
    pub fn huge_pages() -> u32 {
        (P::Paging::entry_bytes(Level::PMD) / PAGE_SIZE) as u32
    }

    /// The addresses of the PMD entry that covers `addr`.
    #[inline]
    pub fn huge_range(addr: VirtAddr) -> VirtRange {
        P::Paging::table_range(addr, Level::PTE)
    }

    /// Takes the lock of the table of `slot`.
    #[inline]
    pub fn lock_slot<'p>(&'p self, pin: &'p Pin<'_, P>, slot: HugeSlot) -> LockedTable<'p, P> {
        self.lock(pin, slot.table, Level::PMD)
    }

    /// The leaf at `slot`, with its table locked, unless it is gone.
    #[inline]
    pub fn huge_leaf(locked: &LockedTable<'_, P>, slot: HugeSlot) -> Option<Leaf> {
        match locked.get(slot.index) {
            Entry::Leaf(leaf) => Some(leaf),
            _ => None,
        }
    }

    /// The addresses of `slot`.
    pub fn slot_range(&self, slot: HugeSlot) -> VirtRange {
        let table = self.memory.frames().known(slot.table).as_table().start();
        Self::huge_range(VirtAddr(table.0 + slot.index as u64 * P::Paging::entry_bytes(Level::PMD)))
    }

    /// Deposits `table` behind the locked PMD table of `slot`.
    pub fn deposit(&self, slot: HugeSlot, table: Pfn) {
        let frames = self.memory.frames();
        let top = frames.known(slot.table).as_table();
        frames.known(table).as_table().set_deposit(top.deposit());
        top.set_deposit(Some(table));
    }

    /// Takes a deposited table back. There is one for each leaf.
    pub fn withdraw(&self, slot: HugeSlot) -> Option<Pfn> {
        let frames = self.memory.frames();
        let top = frames.known(slot.table).as_table();
        let table = top.deposit();
        debug_assert!(table.is_some(), "a large leaf has no table deposited");
        if let Some(table) = table {
            top.set_deposit(frames.known(table).as_table().deposit());
            frames.known(table).as_table().set_deposit(None);
        }
        table
    }

    /// A table to deposit for the leaf that will cover `addr`.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn new_deposit(&self, pin: &Pin<'_, P>, addr: VirtAddr) -> Result<Pfn, AllocError> {
        let table = self.memory.frames().allocate(pin, AllocRequest::table().kind(Kind::Table))?;
        self.space.init_table(self.memory.frames(), table, Level::PTE, Self::huge_range(addr).start());
        Ok(table)
    }

    /// Counts one more PMD leaf of the folio `head`.
    pub fn count_whole_map(&self, pin: &Pin<'_, P>, head: Pfn) {
        if self.memory.frames().known(head).as_folio().add_whole_map() == 0 {
            self.memory.frames().events().count_pmd_mapped(pin, 1);
        }
    }

    /// Counts one PMD leaf fewer.
    pub fn uncount_whole_map(&self, pin: &Pin<'_, P>, head: Pfn) {
        if self.memory.frames().known(head).as_folio().remove_whole_map() == 1 {
            self.memory.frames().events().count_pmd_mapped(pin, -1);
        }
    }

    /// Maps `head`, a new folio, for a private anonymous mapping by one leaf at `slot`, whose table is
    /// locked, with `deposit` for its split, and lists it. Returns false, with nothing changed, if something
    /// is there already.
    pub fn install_huge(
        &self,
        pin: &Pin<'_, P>,
        (locked, slot): (&LockedTable<'_, P>, HugeSlot),
        (head, deposit): (Pfn, Pfn),
        new: &NewPage,
    ) -> bool {
        if locked.get(slot.index) != Entry::None || locked.is_dead() {
            return false;
        }
        self.space.flush_discarded(self.memory.frames(), pin, self.slot_range(slot));
        let leaf = self.init_leaf(pin, head, new);
        self.deposit(slot, deposit);
        locked.install(slot.index, leaf);
        // Under the lock: the folio cannot be unmapped before it is on a list.
        self.memory().memcgs().folios().list_new(pin, head, new.locked);
        self.space.residency.table_made();
        true
    }

    /// Makes `head`, a new folio, ready to be mapped, counts it, and returns the leaf.
    fn init_leaf(&self, pin: &Pin<'_, P>, head: Pfn, new: &NewPage) -> Entry {
        new.init_folio(self.memory.frames().known(head), Self::huge_pages());
        self.count_whole_map(pin, head);
        self.space.residency.anonymous_mapped(u64::from(Self::huge_pages()));
        let flags = new.leaf | LeafFlags::ACCESSED | LeafFlags::DIRTY;
        Entry::Leaf(Leaf { pfn: head, flags })
    }

    /// Maps the huge zero page `zero`, of which the caller holds a reference for this entry, as
    /// [`install_huge`](Self::install_huge) does a folio.
    pub fn install_huge_zero(
        &self,
        pin: &Pin<'_, P>,
        (locked, slot): (&LockedTable<'_, P>, HugeSlot),
        (zero, deposit): (Pfn, Pfn),
        new: &NewPage,
    ) -> bool {
        if locked.get(slot.index) != Entry::None || locked.is_dead() {
            return false;
        }
        self.space.flush_discarded(self.memory.frames(), pin, self.slot_range(slot));
        let flags = (new.leaf - LeafFlags::WRITE) | LeafFlags::ACCESSED | LeafFlags::SPECIAL;
        self.deposit(slot, deposit);
        locked.install(slot.index, Entry::Leaf(Leaf { pfn: zero, flags }));
        self.space.residency.table_made();
        true
    }

    /// Maps `head`, a new folio of zeros, in place of the huge zero page, and lists it. Returns false, with
    /// nothing changed, if that is not mapped any more.
    pub fn replace_huge_zero(&self, pin: &Pin<'_, P>, slot: HugeSlot, head: Pfn, new: &NewPage) -> bool {
        let locked = self.lock_slot(pin, slot);
        let Some(leaf) = Self::huge_leaf(&locked, slot) else { return false };
        if !leaf.flags.contains(LeafFlags::SPECIAL) {
            return false;
        }
        // First not present, then the flush, then the folio: no CPU may still read zeros after another has
        // written.
        let absent = Leaf { flags: leaf.flags - LeafFlags::READ, ..leaf };
        locked.replace(slot.index, Entry::Leaf(absent));
        self.space.flush(self.memory.frames(), pin, self.slot_range(slot), FlushCause::CopyOnWrite);
        let leaf_now = self.init_leaf(pin, head, new);
        locked.replace(slot.index, leaf_now);
        // Under the lock, as above.
        self.memory().memcgs().folios().list_new(pin, head, new.locked);
        self.memory.put_huge_zero(leaf.pfn, 1);
        true
    }

    /// A place for a large leaf around `addr`, with a table to deposit for it; `None` where something larger
    /// is there.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn place_huge(
        &self,
        pin: &Pin<'_, P>,
        addr: VirtAddr,
    ) -> Result<Option<(HugeSlot, Pfn)>, AllocError> {
        let deposit = self.new_deposit(pin, addr)?;
        match self.make(pin, addr, Level::PMD) {
            Ok(Some(table)) => {
                Ok(Some((HugeSlot { table, index: P::Paging::index(addr, Level::PMD) }, deposit)))
            }
            other => {
                self.memory.memcgs().folios().release_unused(pin, deposit, Order::ZERO);
                other.map(|_| None)
            }
        }
    }

    /// Empties the large leaf at `slot` into `gather`, which is not full. Returns false if there is none any
    /// more.
    pub fn zap_huge(&self, slot: HugeSlot, what: Zap, gather: &mut Gather<'_, P>) -> bool {
        let pin = self.pin();
        let locked = self.lock_slot(&pin, slot);
        if Self::huge_leaf(&locked, slot).is_none() {
            return false;
        }
        if let Some(table) = self.take_huge(&pin, &locked, slot, what, gather) {
            self.space.residency.table_gone();
            gather.add_empty_table(table);
        }
        true
    }

    /// The same, with the PMD table locked. Returns the table that was deposited for the leaf; it stays
    /// counted as one of the space.
    pub(super) fn take_huge(
        &self,
        pin: &Pin<'_, P>,
        locked: &LockedTable<'_, P>,
        slot: HugeSlot,
        what: Zap,
        gather: &mut Gather<'_, P>,
    ) -> Option<Pfn> {
        let leaf = Self::huge_leaf(locked, slot)?;
        if leaf.flags.contains(LeafFlags::READ) {
            gather.add_stale(self.slot_range(slot));
        }
        if leaf.flags.contains(LeafFlags::SPECIAL) {
            locked.take(slot.index);
            gather.add_huge_zero(leaf.pfn);
        } else {
            self.zap_whole_folio(pin, (locked, slot), leaf, what, gather);
        }
        self.withdraw(slot)
    }

    /// Empties the leaf at `slot`, which maps a folio.
    fn zap_whole_folio(
        &self,
        pin: &Pin<'_, P>,
        (locked, slot): (&LockedTable<'_, P>, HugeSlot),
        leaf: Leaf,
        what: Zap,
        gather: &mut Gather<'_, P>,
    ) {
        let pages = Self::huge_pages();
        let folio = self.memory.frames().lock_head(leaf.pfn);
        locked.take(slot.index);
        if what == Zap::LockedContents {
            self.memory().memcgs().folios().munlock(pin, &folio);
        }
        let whole = folio.maps() == pages;
        if whole {
            let _ = folio.remove_maps(pages);
            self.memory.memcgs().splits().undefer_split(&folio);
        }
        let (head, order, kind) = (folio.folio().head(), folio.folio().order(), folio.folio().kind());
        drop(folio);
        self.uncount_whole_map(pin, head);
        gather.count_gone(Residency::of(kind, u64::from(pages)));
        if whole {
            gather.add_folio(head, order);
        } else {
            gather.add_run(leaf.pfn, pages);
        }
    }

    /// What page `nth` of a large leaf maps when it has an entry of its own.
    pub(super) fn page_of_leaf(&self, leaf: Leaf, nth: usize) -> Leaf {
        let special = leaf.flags.contains(LeafFlags::SPECIAL);
        let pfn = if special { self.memory.zero_page() } else { leaf.pfn.offset(nth as u64) };
        Leaf { pfn, ..leaf }
    }

    /// The folio that a large leaf maps, with its counts locked; `None` for the huge zero page.
    fn lock_head_of(&self, leaf: Leaf) -> Option<HeadGuard<'s, P>> {
        let special = leaf.flags.contains(LeafFlags::SPECIAL);
        (!special).then(|| self.memory.frames().lock_head(leaf.pfn))
    }

    /// Whether there is a leaf at `slot` that maps the folio of `order` at `head`. Without the lock of the
    /// table; it stays so while the folio's counts are locked.
    pub fn slot_maps(&self, slot: HugeSlot, head: Pfn, order: Order) -> bool {
        let raw = self.entries(slot.table)[slot.index].load(Ordering::Relaxed);
        match P::Paging::decode(raw, Level::PMD) {
            Entry::Leaf(Leaf { pfn, .. }) => pfn.0.wrapping_sub(head.0) < order.pages(),
            _ => false,
        }
    }

    /// Puts the deposited table in the place of the leaf at `slot`, with an entry for each page. Nothing is
    /// allocated, and no count of the folio changes. Does nothing where the leaf is gone.
    pub fn split_huge(&self, slot: HugeSlot) {
        let pin = self.pin();
        let locked = self.lock_slot(&pin, slot);
        let Some(leaf) = Self::huge_leaf(&locked, slot) else { return };
        let Some(table) = self.withdraw(slot) else { return };
        // No thread may find the folio half mapped: its counts are locked meanwhile.
        let folio = self.lock_head_of(leaf);
        // Not present, but never none: a lock-free walker must not take it for a hole.
        let absent = Leaf { pfn: leaf.pfn, flags: leaf.flags - LeafFlags::READ };
        let raw = locked.entries[slot.index]
            .swap(P::Paging::encode(Entry::Leaf(absent), Level::PMD), Ordering::AcqRel);
        if leaf.flags.contains(LeafFlags::READ) {
            // No CPU may have translations of both sizes, and the MMU's accessed and dirty bits must be
            // final.
            self.space.flush(self.memory.frames(), &pin, self.slot_range(slot), FlushCause::Split);
        }
        if let Entry::Leaf(leaf) = P::Paging::decode(raw, Level::PMD) {
            let entries = self.entries(table);
            for (nth, entry) in entries[..P::Paging::entries(Level::PTE)].iter().enumerate() {
                let page = Entry::Leaf(self.page_of_leaf(leaf, nth));
                entry.store(P::Paging::encode(page, Level::PTE), Ordering::Relaxed);
            }
            self.memory.frames().known(table).as_table().set_live(Self::huge_pages());
        }
        match &folio {
            Some(folio) => self.uncount_whole_map(&pin, folio.folio().head()),
            None => self.memory.put_huge_zero(leaf.pfn, 1),
        }
        // Release: a walker that finds the table finds it filled. The entry was live and is again.
        let linked = P::Paging::encode(Entry::Table(table), Level::PMD);
        locked.entries[slot.index].store(linked, Ordering::Release);
        self.memory.frames().events().add(&pin, VmEvent::ThpSplitPmd, 1);
    }

    /// Makes the large leaf at `slot` unusable for the MMU, keeping all else. Returns false, with nothing
    /// changed, if there is none, or if it was unusable before.
    pub fn make_huge_absent(&self, slot: HugeSlot) -> bool {
        let pin = self.pin();
        let locked = self.lock_slot(&pin, slot);
        let Some(leaf) = Self::huge_leaf(&locked, slot) else { return false };
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

    /// Puts the deposited table in the place of the leaf at `slot`, which was [made
    /// absent](Self::make_huge_absent) and flushed, with an entry for each page that does not lie in `part`;
    /// those are unmapped.
    pub fn cut_huge(&self, slot: HugeSlot, part: VirtRange, gather: &mut Gather<'_, P>) {
        let pin = self.pin();
        let locked = self.lock_slot(&pin, slot);
        let Some(leaf) = Self::huge_leaf(&locked, slot) else {
            // Another thread split the folio for another mapping, and with it this leaf: its entries are as
            // unusable as it was.
            drop(locked);
            self.take_out_absent(part, gather);
            self.restore(self.slot_range(slot));
            return;
        };
        let Some(table) = self.withdraw(slot) else { return };
        let folio = self.lock_head_of(leaf);
        let live = self.fill_around(table, Leaf { flags: leaf.flags | LeafFlags::READ, ..leaf }, part);
        self.memory.frames().known(table).as_table().set_live(live);
        if let Some(folio) = &folio {
            self.uncount_whole_map(&pin, folio.folio().head());
        }
        // Release, as when a leaf is split.
        let linked = P::Paging::encode(Entry::Table(table), Level::PMD);
        locked.entries[slot.index].store(linked, Ordering::Release);
        match folio {
            Some(folio) => {
                gather.count_gone(Residency::of(folio.folio().kind(), part.pages()));
                gather.unmap_locked(folio, part.pages() as u32);
            }
            None => gather.add_huge_zero(leaf.pfn),
        }
        self.memory.frames().events().add(&pin, VmEvent::ThpSplitPmd, 1);
    }

    /// Makes the leaves of tables in `range` usable again that were made unusable, all of them, before a
    /// flush that is done. No fault can happen.
    pub fn restore(&self, range: VirtRange) {
        self.walk(range, &mut |place, part| {
            if let WalkEntry::Table(table) = place {
                let pin = self.pin();
                let locked = self.lock(&pin, table, Level::PTE);
                for (index, _) in Self::pages(part) {
                    locked.widen(index, LeafFlags::READ);
                }
            }
            WalkStep::Next
        });
    }

    /// Puts the deposited table in the place of the leaf at `slot`, with an entry for each page that does not
    /// lie in `part`; those are the caller's, with the flags of the leaf that is returned. Nothing is
    /// flushed, so the entries that stay are unusable: no CPU may have translations of both sizes. `None`,
    /// with nothing changed, where the leaf is gone.
    pub fn detach_part(&self, slot: HugeSlot, part: VirtRange, gather: &mut Gather<'_, P>) -> Option<Leaf> {
        self.make_huge_absent(slot);
        let pin = self.pin();
        let locked = self.lock_slot(&pin, slot);
        let leaf = Self::huge_leaf(&locked, slot)?;
        let table = self.withdraw(slot)?;
        let folio = self.lock_head_of(leaf);
        let live = self.fill_around(table, leaf, part);
        self.memory.frames().known(table).as_table().set_live(live);
        match &folio {
            Some(folio) => self.uncount_whole_map(&pin, folio.folio().head()),
            None => gather.add_huge_zero(leaf.pfn),
        }
        // Release, as when a leaf is split.
        let linked = P::Paging::encode(Entry::Table(table), Level::PMD);
        locked.entries[slot.index].store(linked, Ordering::Release);
        self.memory.frames().events().add(&pin, VmEvent::ThpSplitPmd, 1);
        Some(leaf)
    }

    /// Fills `table`, which is not linked anywhere, with entries for the pages of a large leaf, but for those
    /// in `part`. Returns how many.
    fn fill_around(&self, table: Pfn, leaf: Leaf, part: VirtRange) -> u32 {
        let first = P::Paging::index(part.start(), Level::PTE);
        let gone = first..first + part.pages() as usize;
        let entries = &self.entries(table)[..P::Paging::entries(Level::PTE)];
        for (nth, entry) in entries.iter().enumerate().filter(|(nth, _)| !gone.contains(nth)) {
            let page = Entry::Leaf(self.page_of_leaf(leaf, nth));
            entry.store(P::Paging::encode(page, Level::PTE), Ordering::Relaxed);
        }
        Self::huge_pages() - part.pages() as u32
    }

    /// Splits the large leaf that `addr` lies in the middle of, if there is one: the border of two mappings.
    pub fn split_huge_at(&self, addr: VirtAddr) {
        if addr.0 & (P::Paging::entry_bytes(Level::PMD) - 1) != 0
            && let super::Found::Huge(slot) = self.lookup(addr)
        {
            self.split_huge(slot);
        }
    }
}
