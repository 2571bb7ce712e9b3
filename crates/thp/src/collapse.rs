//! Collapse: the pages of an aligned block become one large folio, mapped by one PMD entry.
//!
//! The steps have Linux's order: the block is checked, the folio is allocated and charged, only then pages
//! are swapped in, and the block is checked again and replaced.
//!
//! From the second check on the mmap lock is held for writing and the VMA is write-locked, so no fault is in
//! the block; the root lock is held exclusively, so no walk of the rmap is. The table is unlinked and
//! flushed, so the MMU no longer uses it. Only a fast pin may have come since the check for pins; so there is
//! another one, and if it finds a pin the table is linked again. Then pages are copied, and the leaf takes
//! the table's place. The old table is freed with all that it maps through the gather, as any table that is
//! unlinked whole.

use core::mem;
use quire_arch::{Entry, Leaf, LeafFlags, Level, Order, PagingFormat, Pfn, Platform, VirtAddr};
use quire_frame::{AllocError, AllocRequest, Folio, FolioCounter, FrameFlags, Kind, VmEvent};
use quire_memcg::{MemcgStat, OverLimit, UnevictableFolios};
use quire_pagetable::{Found, Gather, HugeLeaves, HugeSlot, NewPage, Tables};
use quire_sync::atomic::fence;
use quire_sync::atomic::raw::Ordering;

/// The limits of a collapse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollapseLimits {
    /// The most empty entries and zero pages that may be filled.
    pub none: u32,
    /// The most pages shared with other spaces, which would be copied.
    pub shared: u32,
    /// The most swapped-out pages, which would be swapped in first.
    pub swapped: u32,
    /// Whether a block that was not referenced recently is skipped. In a block with swapped-out pages half of
    /// its pages must be referenced, as in Linux.
    pub must_be_used: bool,
}

impl CollapseLimits {
    /// A program's own request.
    pub const NONE: Self = Self { none: u32::MAX, shared: u32::MAX, swapped: u32::MAX, must_be_used: false };
}

/// Why a block was not collapsed. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CollapseError {
    /// Nothing was ever mapped there.
    NoTable,
    /// Of shared memory: there is nothing of it, or no room for its holes; or the mapping has pages of its
    /// own there. As in Linux nothing behind it is collapsed.
    Refused,
    /// It holds other than private pages, or exceeds one of the limits.
    Unfit,
    /// A page is pinned, or another thread has a reference for a moment.
    Busy,
    /// No memory for the folio or the table that is deposited for it.
    OutOfMemory(AllocError),
    /// The memcg of the program has no room for the folio.
    OverLimit(OverLimit),
}

/// Whether all pages of a block are in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// They are.
    Whole,
    /// Some are swapped out, or are markers.
    Partial,
}

/// A charged folio for a block, and a table to deposit. Both are freed if they are not used.
#[derive(Debug)]
pub struct NewFolio<'s, P: Platform> {
    tables: Tables<'s, P>,
    start: VirtAddr,
    head: Pfn,
    deposit: Pfn,
}

impl<P: Platform> NewFolio<'_, P> {
    /// The block that it is for.
    pub fn start(&self) -> VirtAddr {
        self.start
    }

    fn into_parts(self) -> (Pfn, Pfn) {
        let parts = (self.head, self.deposit);
        mem::forget(self);
        parts
    }
}

impl<P: Platform> Drop for NewFolio<'_, P> {
    fn drop(&mut self) {
        let memory = self.tables.memory();
        let pin = self.tables.pin();
        memory.memcgs().folios().release_unused(&pin, self.deposit, Order::ZERO);
        memory.memcgs().folios().release_unused(&pin, self.head, memory.frames().folio(self.head).order());
    }
}

/// A collapse of blocks that these tables map.
#[derive(Debug)]
pub struct Collapse<'s, P: Platform>(pub Tables<'s, P>);

impl<'s, P: Platform> Collapse<'s, P> {
    /// Whether the aligned block at `start` may be collapsed, as [`check`](Self::check). `None` if one leaf
    /// maps it already.
    pub fn check_block(
        &self,
        start: VirtAddr,
        limits: CollapseLimits,
    ) -> Result<Option<Presence>, CollapseError> {
        // The table stays while the CPU is pinned.
        let _pin = self.0.pin();
        match self.0.lookup(start) {
            Found::Huge(_) => Ok(None),
            Found::Nothing => Err(CollapseError::NoTable),
            Found::Table(table) => self.check(table, limits).map(Some),
        }
    }

    /// Whether the pages that `table` maps may be collapsed, once those are there that are swapped out.
    pub fn check(&self, table: Pfn, limits: CollapseLimits) -> Result<Presence, CollapseError> {
        let frames = self.0.memory().frames();
        let pin = self.0.pin();
        let locked = self.0.lock(&pin, table, Level::PTE);
        let (mut none, mut shared, mut swapped, mut used) = (0, 0, 0, 0);
        for index in 0..P::Paging::entries(Level::PTE) {
            match locked.get(index) {
                Entry::None => none += 1,
                Entry::Leaf(leaf) if leaf.flags.contains(LeafFlags::SPECIAL) => none += 1,
                Entry::Leaf(leaf) => {
                    let folio = frames.folio(leaf.pfn);
                    if folio.kind() != Kind::Anonymous {
                        return Err(CollapseError::Unfit);
                    }
                    if is_held(folio) {
                        return Err(CollapseError::Busy);
                    }
                    let alone = frames.folios().lock_head(leaf.pfn).is_exclusive();
                    shared += u32::from(!alone);
                    used += u32::from(leaf.flags.contains(LeafFlags::ACCESSED));
                }
                // As in Linux a marker counts as swapped out. It ends the swap-in.
                Entry::Swap(_) | Entry::Marker(_) => swapped += 1,
                Entry::Table(_) => return Err(CollapseError::Unfit),
            }
        }
        let must_be_used = match (limits.must_be_used, swapped) {
            (false, _) => 0,
            (true, 0) => 1,
            (true, _) => P::Paging::entries(Level::PTE) as u32 / 2,
        };
        let beyond = none > limits.none || shared > limits.shared || swapped > limits.swapped;
        if beyond || used < must_be_used {
            return Err(CollapseError::Unfit);
        }
        Ok(if swapped > 0 { Presence::Partial } else { Presence::Whole })
    }

    /// A folio for the block at `start`, charged to the memcg of the program, and a table to deposit. It is
    /// allocated once, and charged again for as long as `make_room`, which is called without a pin, has made
    /// room in the memcg.
    ///
    /// # Errors
    ///
    /// When there is no memory for either, which the caller counts if it gives up, or the memcg stays at its
    /// limit.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate(
        &self,
        start: VirtAddr,
        mut make_room: impl FnMut(OverLimit) -> bool,
    ) -> Result<NewFolio<'s, P>, CollapseError> {
        let order = Tables::<P>::huge_order().ok_or(CollapseError::Unfit)?;
        let new = self.allocate_uncharged(start, order)?;
        while let Err(over) = self.charge(&new, order) {
            if !make_room(over) {
                return Err(CollapseError::OverLimit(over));
            }
        }
        Ok(new)
    }

    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate_uncharged(&self, start: VirtAddr, order: Order) -> Result<NewFolio<'s, P>, CollapseError> {
        let frames = self.0.memory().frames();
        let pin = self.0.pin();
        let request = AllocRequest::anonymous().uninitialised().kind(Kind::Anonymous).order(order);
        let leaves = HugeLeaves::new(&self.0);
        let made = frames.allocate(&pin, request).and_then(|head| match leaves.new_deposit(&pin, start) {
            Ok(deposit) => Ok((head, deposit)),
            Err(error) => {
                self.0.memory().memcgs().folios().release_unused(&pin, head, order);
                Err(error)
            }
        });
        let (head, deposit) = made.map_err(CollapseError::OutOfMemory)?;
        frames.events().add(&pin, VmEvent::ThpCollapseAlloc, 1);
        Ok(NewFolio { tables: self.0, start, head, deposit })
    }

    fn charge(&self, new: &NewFolio<'_, P>, order: Order) -> Result<(), OverLimit> {
        let pin = self.0.pin();
        let (programs, program) = (self.0.memory().memcgs().programs(), &self.0.space().membership);
        programs.charge_collapsed(&pin, program, new.head, order)?;
        programs.count(&pin, program, MemcgStat::ThpCollapseAlloc);
        Ok(())
    }

    /// Copies what `table` maps to the folio `new` and puts a leaf in its place, mapped as `page` says. The
    /// table goes to `gather`. If a page was pinned meanwhile nothing changes.
    pub fn replace_by_leaf(
        &self,
        slot: HugeSlot,
        table: Pfn,
        new: NewFolio<'_, P>,
        page: &NewPage,
        gather: &mut Gather<'_, P>,
    ) -> Result<(), CollapseError> {
        let tables = self.0;
        let platform = tables.memory().platform();
        {
            let pin = self.0.pin();
            let linked = tables.lock_slot(&pin, slot).take(slot.index);
            // The MMU's writes so far are in the pages; from here on it writes no more.
            gather.add_stale(tables.slot_range(slot));
            gather.flush(&pin);
            // Pairs with the fence in `pin_page_fast`: a pin from before this is seen here, and a thread that
            // pins a page later sees that the table is gone.
            fence(Ordering::SeqCst);
            if self.maps_held_page(table) {
                tables.lock_slot(&pin, slot).install(slot.index, linked);
                return Err(CollapseError::Busy);
            }
            gather.add_unlinked(table, VirtAddr(0));
        }
        let (head, deposit) = new.into_parts();
        let entries = &self.0.entries(table)[..P::Paging::entries(Level::PTE)];
        let mut replaced = 0;
        for (nth, entry) in entries.iter().enumerate() {
            let to = head.offset(nth as u64);
            match P::Paging::decode(entry.load(Ordering::Relaxed), Level::PTE) {
                Entry::Leaf(Leaf { pfn, flags }) if !flags.contains(LeafFlags::SPECIAL) => {
                    // SAFETY: the new folio is ours; the old page is mapped by the unlinked table, so it is
                    // in RAM, and no thread can write to it.
                    unsafe { platform.copy_user(pfn, to, Order::ZERO) };
                    replaced += 1;
                    if page.locked {
                        let folios = UnevictableFolios::of(tables.memory().memcgs().folios());
                        folios.munlock(
                            &tables.pin(),
                            &tables.memory().frames().folios().lock_head(pfn),
                            || false,
                        );
                    }
                }
                // SAFETY: the new folio is ours.
                _ => unsafe { platform.zero_user(to, Order::ZERO) },
            }
        }
        let pin = self.0.pin();
        let _section = tables.memory().frames().epoch().enter(&pin);
        let locked = tables.lock_slot(&pin, slot);
        tables.space().residency.pages_replaced(replaced);
        let installed = HugeLeaves::new(&tables).install_huge(&pin, (&locked, slot), (head, deposit), page);
        debug_assert!(installed, "something was mapped in a block under collapse");
        drop(locked);
        if let Some(order) = Tables::<P>::huge_order() {
            self.0.memory().frames().events().count_folio(&pin, order, FolioCounter::NrAnon, 1);
        }
        Ok(())
    }

    /// Whether `table`, which no other thread can change, maps a folio with references beyond those of its
    /// mappings.
    fn maps_held_page(&self, table: Pfn) -> bool {
        let entries = &self.0.entries(table)[..P::Paging::entries(Level::PTE)];
        entries.iter().any(|entry| match P::Paging::decode(entry.load(Ordering::Relaxed), Level::PTE) {
            Entry::Leaf(Leaf { pfn, flags }) if !flags.contains(LeafFlags::SPECIAL) => {
                is_held(self.0.memory().frames().folio(pfn))
            }
            _ => false,
        })
    }
}

/// Whether anything but mappings and the swap cache has a reference to `folio`.
fn is_held(folio: Folio<'_>) -> bool {
    let word = folio.frame().word();
    word.refs() != 1 + u32::from(word.flags().contains(FrameFlags::SWAP_CACHE))
}

/// The first border of large leaves at or after `addr`, and the last at or before.
pub fn huge_borders<P: Platform>(start: VirtAddr, end: VirtAddr) -> (VirtAddr, VirtAddr) {
    let mask = P::Paging::entry_bytes(Level::PMD) - 1;
    (VirtAddr(start.0.saturating_add(mask) & !mask), VirtAddr(end.0 & !mask))
}
