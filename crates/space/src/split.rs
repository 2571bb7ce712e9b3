//! Splitting large folios while they are mapped.

use crate::space::Space;
use crate::spaces::Spaces;
use crate::table::{Found, Place, Step, Tables};
use core::ops::ControlFlow;
use quire_arch::{
    Entry, Leaf, LeafFlags, Level, Order, PAGE_SIZE, PagingFormat, Pfn, Platform, VirtAddr, VirtRange,
};
use quire_frame::{FolioCounter, FolioSplit, FrameChain, FrameFlags, SplitError};
use quire_sync::atomic::raw::Ordering;

/// Times that a split is tried while others map and unmap pages.
const ATTEMPTS: u32 = 3;

impl<P: Platform> Space<'_, P> {
    /// Splits the large folio that is mapped at `addr`, mapped as it is, into folios of order `to`. Pages of
    /// it that are not mapped are freed; returns how many. Programs notice nothing.
    ///
    /// # Errors
    ///
    /// [`SplitError`]; then the folio is as it was, but for large leaves that map it, which may have become
    /// tables.
    pub fn split_folio(&self, addr: VirtAddr, to: Order) -> Result<u64, SplitError> {
        let head = self.hold_mapped(addr).ok_or(SplitError::NotLarger)?;
        let result = self.spaces.split_held(head, to, false);
        self.spaces.memcgs().release_folio(head);
        result
    }

    /// Takes a reference to the folio of private memory that is mapped at `addr`, and returns its first
    /// frame.
    fn hold_mapped(&self, addr: VirtAddr) -> Option<Pfn> {
        let _guard = self.core().mmap_lock.read(self.spaces.platform());
        let tables = self.tables();
        let pin = self.spaces.platform().pin();
        let held = match tables.lookup(addr) {
            Found::Nothing => return None,
            Found::Table(table) => {
                let locked = tables.lock(&pin, table, Level::PTE);
                match locked.get(P::Paging::index(addr, Level::PTE)) {
                    Entry::Leaf(leaf) if !leaf.flags.contains(LeafFlags::SPECIAL) => tables.hold(leaf.pfn)?,
                    _ => return None,
                }
            }
            Found::Huge(slot) => {
                let locked = tables.lock_slot(&pin, slot);
                let leaf = Tables::huge_leaf(&locked, slot)?;
                if leaf.flags.contains(LeafFlags::SPECIAL) {
                    return None;
                }
                tables.hold(leaf.pfn)?
            }
        };
        Some(held.head())
    }
}

impl<P: Platform> Spaces<P> {
    /// Splits the folio at `head`, to which the caller holds one reference; with `unless_mapped` only if some
    /// page of it is not mapped. Returns the number of frames freed.
    pub(crate) fn split_held(&self, head: Pfn, to: Order, unless_mapped: bool) -> Result<u64, SplitError> {
        // Of two that split one folio, the second finds it split.
        let Some(_locked) = self.frames().lock_folio_long(head) else { return Err(SplitError::NotLarger) };
        self.split_locked(head, to, unless_mapped)
    }

    /// The same for a caller that has the folio lock.
    pub(crate) fn split_locked(&self, head: Pfn, to: Order, unless_mapped: bool) -> Result<u64, SplitError> {
        let order = self.frames().folio(head).order();
        if to >= order {
            return Err(SplitError::NotLarger);
        }
        if self.frames().known(head).word().flags().contains(FrameFlags::SWAP_CACHE) {
            // Its slots are one block as long as it is one folio.
            if !self.swap().remove_unnamed(head) {
                return Err(SplitError::Busy);
            }
            self.memcgs().release_folio(head);
        }
        let mut result = Err(SplitError::Busy);
        for _ in 0..ATTEMPTS {
            // Large leaves become tables first: what they map is counted page by page.
            let _ = self.rmap_walk(head, |tables, _, range| -> ControlFlow<()> {
                if let Found::Huge(slot) = tables.lookup(range.start())
                    && tables.slot_maps(slot, head, order)
                {
                    tables.split_huge(slot);
                }
                ControlFlow::Continue(())
            });
            result = self.try_split(head, order, to, unless_mapped);
            if result != Err(SplitError::Busy) {
                break;
            }
        }
        let pin = self.platform().pin();
        let events = self.frames().events();
        match result {
            Ok(_) => {
                events.count_folio(&pin, order, FolioCounter::Split, 1);
            }
            Err(SplitError::Busy) => events.count_folio(&pin, order, FolioCounter::SplitFailed, 1),
            Err(_) => {}
        }
        result
    }

    fn try_split(&self, head: Pfn, order: Order, to: Order, unless_mapped: bool) -> Result<u64, SplitError> {
        let frames = self.frames();
        let mut unmapped = FrameChain::new();
        let mut waited = false;
        let result = self.rmap_hold(head, |mappings| {
            let pin = self.platform().pin();
            let locked = frames.lock_folio(head);
            if locked.folio().head() != head || locked.folio().order() != order {
                return Err(SplitError::NotLarger);
            }
            // The links are where the parts' own words will be.
            waited = locked.folio().frame().word().flags().contains(FrameFlags::PARTLY_MAPPED);
            self.undefer_split(&locked);
            let mut split = frames.begin_split(locked);
            let counted = mappings.walk(|tables, _, range| count_maps(tables, &mut split, range));
            if counted.is_break() {
                return Err(SplitError::Busy);
            }
            self.memcgs().split_folio(&pin, split, (to, 1, unless_mapped), &mut unmapped)?;
            if to == Order::ZERO && !unless_mapped {
                self.share_zeros(mappings, (head, order), &mut unmapped);
            }
            Ok(())
        });
        if waited && !matches!(result, Some(Ok(()))) {
            self.defer_again(head);
        }
        let freed = unmapped.pages();
        let pin = self.platform().pin();
        frames.free_chain(&pin, unmapped);
        result.unwrap_or(Err(SplitError::Busy))?;
        // Folios of the new order, but for those that went.
        let parts = (order.pages() - freed) >> to.get();
        frames.events().count_folio(&pin, order, FolioCounter::NrAnon, -1);
        if to > Order::ZERO {
            frames.events().count_folio(&pin, to, FolioCounter::NrAnon, parts as i64);
        }
        // The first part goes with the caller's reference.
        let first = frames.known(head).map_count().load(Ordering::Relaxed);
        Ok(if first == 0 { freed + to.pages() } else { freed })
    }
}

/// Counts the entries of `range` that map pages of the folio. Breaks at a large leaf that maps it.
fn count_maps<P: Platform>(
    tables: &Tables<'_, P>,
    split: &mut FolioSplit<'_, P>,
    range: VirtRange,
) -> ControlFlow<()> {
    let (head, order) = (split.folio().head(), split.folio().order());
    let pages = order.pages();
    let mut flow = ControlFlow::Continue(());
    // The head lock is held, so no table lock may be taken, and none is needed: what maps the folio stays.
    tables.walk(range, &mut |place, part| {
        let table = match place {
            Place::Table(table) => table,
            Place::Huge(slot) => {
                if tables.slot_maps(slot, head, order) {
                    flow = ControlFlow::Break(());
                }
                return Step::Next;
            }
        };
        let entries = tables.entries(table);
        let first = P::Paging::index(part.start(), Level::PTE);
        for entry in &entries[first..first + (part.len() / PAGE_SIZE) as usize] {
            if let Entry::Leaf(Leaf { pfn, flags }) =
                P::Paging::decode(entry.load(Ordering::Relaxed), Level::PTE)
                && !flags.contains(LeafFlags::SPECIAL)
                && pfn.0.wrapping_sub(head.0) < pages
            {
                split.count_map(pfn.0 - head.0);
            }
        }
        Step::Next
    });
    flow
}
