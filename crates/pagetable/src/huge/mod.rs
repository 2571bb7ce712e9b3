//! PMD leaves: a folio of the PMD's order that one entry maps in place of a bottom table.
//!
//! Splitting such a leaf needs a table, and must not fail, so the table is *deposited* when the leaf is made:
//! tables that were deposited wait in a list behind the PMD table's descriptor (the user's word of each leads
//! to the next), one for each leaf. As in Linux they count as tables of the space.

mod split;

use crate::attributes::NewPage;
use crate::cpus::FlushCause;
use crate::huge_slot::HugeSlot;
use crate::residency::Residency;
use crate::table::{LockedTable, Tables};
use quire_arch::{Entry, Leaf, LeafFlags, Level, Order, PagingFormat, Pfn, Pin, Platform, VirtAddr};
use quire_frame::{AllocError, AllocRequest, Kind};

quire_arch::part_of! {
    /// The large leaves of a space, and the tables that are deposited for them.
    pub struct HugeLeaves { pub tables: Tables<'w> }
}

impl<P: Platform> HugeLeaves<'_, P> {
    /// Deposits `table` behind the locked PMD table of `slot`.
    pub fn deposit(self, slot: HugeSlot, table: Pfn) {
        let frames = self.tables.memory().frames();
        let top = frames.known(slot.table).as_table();
        frames.known(table).as_table().set_deposit(top.deposit());
        top.set_deposit(Some(table));
    }

    /// Takes a deposited table back. There is one for each leaf.
    pub fn withdraw(self, slot: HugeSlot) -> Option<Pfn> {
        let frames = self.tables.memory().frames();
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
    pub fn new_deposit(self, pin: &Pin<'_, P>, addr: VirtAddr) -> Result<Pfn, AllocError> {
        let table = self.tables.memory().frames().allocate(pin, AllocRequest::table().kind(Kind::Table))?;
        self.tables.space().init_table(
            self.tables.memory().frames(),
            table,
            Level::PTE,
            Tables::<P>::huge_range(addr).start(),
        );
        Ok(table)
    }

    /// A place for a large leaf around `addr`, with a table to deposit for it; `None` where something larger
    /// is there.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn place_huge(self, pin: &Pin<'_, P>, addr: VirtAddr) -> Result<Option<(HugeSlot, Pfn)>, AllocError> {
        let deposit = self.new_deposit(pin, addr)?;
        match self.tables.make(pin, addr, Level::PMD) {
            Ok(Some(table)) => {
                Ok(Some((HugeSlot { table, index: P::Paging::index(addr, Level::PMD) }, deposit)))
            }
            other => {
                self.tables.memory().memcgs().folios().release_unused(pin, deposit, Order::ZERO);
                other.map(|_| None)
            }
        }
    }

    /// Counts one more PMD leaf of the folio `head`.
    pub fn count_whole_map(self, pin: &Pin<'_, P>, head: Pfn) {
        let frame = self.tables.memory().frames().known(head);
        if frame.as_folio().add_whole_map() == 0 {
            self.tables.memory().frames().events().count_pmd_mapped(pin, frame.kind(), 1);
        }
    }

    /// Counts one PMD leaf fewer.
    pub fn uncount_whole_map(self, pin: &Pin<'_, P>, head: Pfn) {
        let frame = self.tables.memory().frames().known(head);
        if frame.as_folio().remove_whole_map() == 1 {
            self.tables.memory().frames().events().count_pmd_mapped(pin, frame.kind(), -1);
        }
    }

    /// Maps `head`, a new folio, for a private anonymous mapping by one leaf at `slot`, whose table is
    /// locked, with `deposit` for its split, and lists it. Returns false, with nothing changed, if something
    /// is there already.
    pub fn install_huge(
        self,
        pin: &Pin<'_, P>,
        (locked, slot): (&LockedTable<'_, P>, HugeSlot),
        (head, deposit): (Pfn, Pfn),
        new: &NewPage,
    ) -> bool {
        if locked.get(slot.index) != Entry::None || locked.is_dead() {
            return false;
        }
        self.tables.space().flush_discarded(self.tables.memory().frames(), pin, self.tables.slot_range(slot));
        let leaf = self.init_leaf(pin, head, new);
        self.deposit(slot, deposit);
        locked.install(slot.index, leaf);
        // Under the lock: the folio cannot be unmapped before it is on a list.
        self.tables.memory().memcgs().folios().list_new(pin, head, new.locked);
        self.tables.space().residency.table_made();
        true
    }

    /// Maps a folio of the cache of a file, whose folio lock the caller has, by `leaf` at `slot`, whose table
    /// is locked. Returns false, with nothing changed, if something is there already, or the folio is mapped
    /// as often as can be.
    pub fn install_cached(
        self,
        pin: &Pin<'_, P>,
        (locked, slot): (&LockedTable<'_, P>, HugeSlot),
        leaf: Leaf,
        deposit: Pfn,
    ) -> bool {
        if locked.get(slot.index) != Entry::None || locked.is_dead() {
            return false;
        }
        self.tables.space().flush_discarded(self.tables.memory().frames(), pin, self.tables.slot_range(slot));
        let pages = Tables::<P>::huge_pages();
        {
            let folio = self.tables.memory().frames().folios().lock_head(leaf.pfn);
            // The mappings' reference, before they are made.
            if !folio.may_add(pages) || !folio.folio().frame().get(1) {
                return false;
            }
            if !folio.add_cached_maps(pages) {
                // They had one; and so has the caller.
                folio.folio().frame().put(1);
            }
        }
        self.count_whole_map(pin, leaf.pfn);
        let kind = self.tables.memory().frames().known(leaf.pfn).kind();
        self.tables.space().residency.pages_mapped(Residency::of(kind, u64::from(pages)));
        self.deposit(slot, deposit);
        locked.install(slot.index, Entry::Leaf(leaf));
        self.tables.space().residency.table_made();
        true
    }

    /// Makes `head`, a new folio, ready to be mapped, counts it, and returns the leaf.
    fn init_leaf(self, pin: &Pin<'_, P>, head: Pfn, new: &NewPage) -> Entry {
        new.init_folio(self.tables.memory().frames().known(head), Tables::<P>::huge_pages());
        self.count_whole_map(pin, head);
        self.tables.space().residency.anonymous_mapped(u64::from(Tables::<P>::huge_pages()));
        let flags = new.leaf | LeafFlags::ACCESSED | LeafFlags::DIRTY;
        Entry::Leaf(Leaf { pfn: head, flags })
    }

    /// Maps the huge zero page `zero`, of which the caller holds a reference for this entry, as
    /// [`install_huge`](Self::install_huge) does a folio.
    pub fn install_huge_zero(
        self,
        pin: &Pin<'_, P>,
        (locked, slot): (&LockedTable<'_, P>, HugeSlot),
        (zero, deposit): (Pfn, Pfn),
        new: &NewPage,
    ) -> bool {
        if locked.get(slot.index) != Entry::None || locked.is_dead() {
            return false;
        }
        self.tables.space().flush_discarded(self.tables.memory().frames(), pin, self.tables.slot_range(slot));
        let flags = (new.leaf - LeafFlags::WRITE) | LeafFlags::ACCESSED | LeafFlags::SPECIAL;
        self.deposit(slot, deposit);
        locked.install(slot.index, Entry::Leaf(Leaf { pfn: zero, flags }));
        self.tables.space().residency.table_made();
        true
    }

    /// Maps `head`, a new folio of zeros, in place of the huge zero page, and lists it. Returns false, with
    /// nothing changed, if that is not mapped any more.
    pub fn replace_huge_zero(self, pin: &Pin<'_, P>, slot: HugeSlot, head: Pfn, new: &NewPage) -> bool {
        let locked = self.tables.lock_slot(pin, slot);
        let Some(leaf) = Tables::<P>::huge_leaf(&locked, slot) else { return false };
        if !leaf.flags.contains(LeafFlags::SPECIAL) {
            return false;
        }
        // First not present, then the flush, then the folio: no CPU may still read zeros after another has
        // written.
        let absent = Leaf { flags: leaf.flags - LeafFlags::READ, ..leaf };
        locked.replace(slot.index, Entry::Leaf(absent));
        self.tables.space().flush(
            self.tables.memory().frames(),
            pin,
            self.tables.slot_range(slot),
            FlushCause::CopyOnWrite,
        );
        let leaf_now = self.init_leaf(pin, head, new);
        locked.replace(slot.index, leaf_now);
        // Under the lock: the folio cannot be unmapped before it is on a list.
        self.tables.memory().memcgs().folios().list_new(pin, head, new.locked);
        self.tables.memory().put_huge_zero(leaf.pfn, 1);
        true
    }
}
