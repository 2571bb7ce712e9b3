//! Collapse: the pages of an aligned block become one large folio, mapped by one PMD entry.
//!
//! The mmap lock is held for writing and the VMA is write-locked, so no fault is in the block; the root lock
//! is held exclusively, so no walk of the rmap is. The table is unhooked and flushed, so the MMU is out of
//! it. Only a fast pin may have come since the first look for pins; so there is another, and if it finds one
//! the table is hooked again. Then pages are copied, and the leaf takes the table's place. The old table is
//! freed with all that it maps through the gather, as any table that is unhooked whole.

use crate::cpus::FlushCause;
use crate::gather::Gather;
use crate::mmap_writer::MmapWriter;
use crate::table::{Found, HugeSlot, Tables};
use crate::vma::{VmFlags, Vma, VmaSnapshot};
use quire_arch::{Entry, Leaf, LeafFlags, Level, Order, PagingFormat, Pfn, Platform, VirtAddr};
use quire_frame::{AllocError, AllocRequest, FolioCounter, Kind, VmEvent};
use quire_memcg::MemcgStat;
use quire_sync::atomic::fence;
use quire_sync::atomic::raw::Ordering;

/// What a collapse may not do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CollapseLimits {
    /// Empty entries and pages of zeros that may become memory.
    pub(crate) none: u32,
    /// Pages that other spaces map too, and that would be copied.
    pub(crate) shared: u32,
    /// Whether a block that was not used lately is left alone.
    pub(crate) must_be_used: bool,
}

impl CollapseLimits {
    /// A program's own request.
    pub(crate) const NONE: Self = Self { none: u32::MAX, shared: u32::MAX, must_be_used: false };
}

/// Why a block was not collapsed. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CollapseError {
    /// Nothing was ever mapped there.
    NoTable,
    /// Something else than private pages is there, or more of something than the limits allow.
    Unfit,
    /// A page is pinned, or another thread has a reference for a moment.
    Busy,
    /// No memory for the folio or the table that is deposited for it.
    OutOfMemory(AllocError),
}

impl<'s, P: Platform> MmapWriter<'s, P> {
    /// Collapses the aligned block at `start`, which lies in `vma`, private anonymous memory with an
    /// anon_vma. A block that one leaf maps already is left as it is.
    pub(crate) fn collapse_block(
        &mut self,
        vma: &'s Vma,
        start: VirtAddr,
        limits: CollapseLimits,
    ) -> Result<(), CollapseError> {
        let tables = self.tables();
        let table = match tables.lookup(start) {
            Found::Huge(_) => return Ok(()),
            Found::Nothing => return Err(CollapseError::NoTable),
            Found::Table(table) => table,
        };
        let Some((order, pmd)) = Tables::<P>::huge_order().zip(tables.find_pmd(start)) else {
            return Err(CollapseError::Unfit);
        };
        let facts = vma.facts();
        // A first look costs nothing if it fails.
        tables.check_collapse(table, limits)?;
        self.lock_vma(vma);
        let _family = self.lock_anon_vmas([facts.anon]);
        tables.check_collapse(table, limits)?;
        let (head, deposit) = tables.allocate_collapse(start, order).map_err(CollapseError::OutOfMemory)?;
        let slot = HugeSlot { table: pmd, index: P::Paging::index(start, Level::PMD) };
        let mut gather = Gather::new(self.spaces, self.core, FlushCause::Collapse);
        let result = tables.replace_by_leaf(slot, table, (head, deposit), &facts, &mut gather);
        gather.finish();
        result
    }
}

impl<P: Platform> Tables<'_, P> {
    /// Whether what `table` maps may be collapsed.
    pub(crate) fn check_collapse(&self, table: Pfn, limits: CollapseLimits) -> Result<(), CollapseError> {
        let frames = self.spaces.frames();
        let pin = self.pin();
        let locked = self.lock(&pin, table, Level::PTE);
        let (mut none, mut shared, mut used) = (0, 0, false);
        for index in 0..P::Paging::entries(Level::PTE) {
            match locked.get(index) {
                Entry::None => none += 1,
                Entry::Leaf(leaf) if leaf.flags.contains(LeafFlags::SPECIAL) => none += 1,
                Entry::Leaf(leaf) => {
                    let folio = frames.folio(leaf.pfn);
                    if folio.kind() != Kind::Anonymous {
                        return Err(CollapseError::Unfit);
                    }
                    if folio.frame().refs() != 1 {
                        return Err(CollapseError::Busy);
                    }
                    let alone = frames.lock_folio(leaf.pfn).is_exclusive();
                    shared += u32::from(!alone);
                    used |= leaf.flags.contains(LeafFlags::ACCESSED);
                }
                _ => return Err(CollapseError::Unfit),
            }
        }
        let fits = none <= limits.none && shared <= limits.shared && (used || !limits.must_be_used);
        if fits { Ok(()) } else { Err(CollapseError::Unfit) }
    }

    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate_collapse(&self, start: VirtAddr, order: Order) -> Result<(Pfn, Pfn), AllocError> {
        let frames = self.spaces.frames();
        let pin = self.pin();
        let request = AllocRequest::anonymous().uninitialised().kind(Kind::Anonymous).order(order);
        let made = frames.allocate(&pin, request).and_then(|head| match self.new_deposit(&pin, start) {
            Ok(deposit) => Ok((head, deposit)),
            Err(error) => {
                self.spaces.memcgs().release_unused(&pin, head, order);
                Err(error)
            }
        });
        if let Ok((head, _)) = made {
            self.charge_anyway(&pin, head, order);
        }
        let event = if made.is_ok() { VmEvent::ThpCollapseAlloc } else { VmEvent::ThpCollapseAllocFailed };
        frames.events().add(&pin, event, 1);
        if made.is_ok() {
            self.count_for_memcg(&pin, MemcgStat::ThpCollapseAlloc);
        }
        made
    }

    /// Copies what `table` maps to the new folio `head` and puts a leaf in its place. The table goes to
    /// `gather`. Where a page was pinned meanwhile all stays as it is.
    fn replace_by_leaf(
        &self,
        slot: HugeSlot,
        table: Pfn,
        (head, deposit): (Pfn, Pfn),
        facts: &VmaSnapshot,
        gather: &mut Gather<'_, P>,
    ) -> Result<(), CollapseError> {
        let platform = self.spaces.platform();
        {
            let pin = self.pin();
            let hooked = self.lock_slot(&pin, slot).take(slot.index);
            // What the MMU wrote until here is in the pages; from here on it writes no more.
            gather.add_stale(self.slot_range(slot));
            gather.flush(&pin);
            // Pairs with the fence in `pin_page_fast`: a pin from before this is seen here, and a thread that
            // pins a page later sees that the table is gone.
            fence(Ordering::SeqCst);
            if self.maps_held_page(table) {
                self.lock_slot(&pin, slot).install(slot.index, hooked);
                self.spaces.memcgs().release_unused(&pin, deposit, Order::ZERO);
                self.spaces.memcgs().release_unused(&pin, head, self.spaces.frames().folio(head).order());
                return Err(CollapseError::Busy);
            }
            gather.add_unhooked(table);
        }
        let entries = &self.entries(table)[..P::Paging::entries(Level::PTE)];
        for (nth, entry) in entries.iter().enumerate() {
            let to = head.offset(nth as u64);
            match P::Paging::decode(entry.load(Ordering::Relaxed), Level::PTE) {
                Entry::Leaf(Leaf { pfn, flags }) if !flags.contains(LeafFlags::SPECIAL) => {
                    // SAFETY: the new folio is ours; the old page is mapped by the unhooked table, so it is
                    // in RAM, and no thread can write to it.
                    unsafe { platform.copy(pfn, to, Order::ZERO) };
                    if facts.flags.contains(VmFlags::LOCKED) {
                        self.unlock_folio(&self.pin(), &self.spaces.frames().lock_folio(pfn));
                    }
                }
                // SAFETY: the new folio is ours.
                _ => unsafe { platform.zero(to, Order::ZERO) },
            }
        }
        let pin = self.pin();
        let installed = self.install_huge(&pin, slot, (head, deposit), facts);
        debug_assert!(installed, "something was mapped in a block under collapse");
        self.list_new(&pin, head, facts);
        if let Some(order) = Self::huge_order() {
            self.spaces.frames().events().count_folio(&pin, order, FolioCounter::NrAnon, 1);
        }
        Ok(())
    }

    /// Whether `table`, which no other thread can change, maps a folio with references beyond those of its
    /// mappings.
    fn maps_held_page(&self, table: Pfn) -> bool {
        let entries = &self.entries(table)[..P::Paging::entries(Level::PTE)];
        entries.iter().any(|entry| match P::Paging::decode(entry.load(Ordering::Relaxed), Level::PTE) {
            Entry::Leaf(Leaf { pfn, flags }) if !flags.contains(LeafFlags::SPECIAL) => {
                self.spaces.frames().folio(pfn).frame().refs() != 1
            }
            _ => false,
        })
    }
}

/// The first border of large leaves at or after `addr`, and the last at or before.
pub(crate) fn huge_borders<P: Platform>(start: VirtAddr, end: VirtAddr) -> (VirtAddr, VirtAddr) {
    let mask = P::Paging::entry_bytes(Level::PMD) - 1;
    (VirtAddr(start.0.saturating_add(mask) & !mask), VirtAddr(end.0 & !mask))
}
