//! Splitting large folios while they are mapped.

use super::Thp;
use core::ops::ControlFlow;
use core::ptr;
use quire_arch::{Entry, Leaf, LeafFlags, Level, Order, PAGE_SIZE, PagingFormat, Pfn, Platform, VirtRange};
use quire_frame::{FolioCounter, FolioSplit, FrameChain, FrameFlags, HeldParts, SplitError};
use quire_memcg::{DeferredOf, MemcgId};
use quire_pagetable::{Found, HugeLeaves, SpaceTables, Tables, WalkEntry, WalkStep, Walker};
use quire_sync::atomic::raw::Ordering;
use quire_vma::Mapped;

/// Times that a split is tried while others map and unmap pages.
const ATTEMPTS: u32 = 3;

impl<P: Platform> Thp<'_, P> {
    /// Splits the folio at `head`, to which the caller holds one reference; with `unless_mapped` only if some
    /// page of it is not mapped. Returns the number of frames freed.
    pub fn split_held(self, head: Pfn, to: Order, unless_mapped: bool) -> Result<u64, SplitError> {
        // Of two threads that split one folio, the second finds it split.
        let Some(_locked) = self.memory().frames().folios().lock_folio(head) else {
            return Err(SplitError::NotLarger);
        };
        self.split_locked(head, to, unless_mapped)
    }

    /// The same for a caller that has the folio lock.
    pub fn split_locked(self, head: Pfn, to: Order, unless_mapped: bool) -> Result<u64, SplitError> {
        self.split_into(head, to, unless_mapped, None)
    }

    fn split_into(
        self,
        head: Pfn,
        to: Order,
        unless_mapped: bool,
        mut parts: Option<&mut HeldParts>,
    ) -> Result<u64, SplitError> {
        let order = self.memory().frames().folio(head).order();
        if to >= order {
            return Err(SplitError::NotLarger);
        }
        let was_cached = self.memory().frames().known(head).word().flags().contains(FrameFlags::SWAP_CACHE);
        if was_cached {
            // Its slots are one block as long as it is one folio.
            if self.is_held_elsewhere(head) || !self.memory().swap().cache().remove_unnamed(head) {
                return Err(SplitError::Busy);
            }
            self.memory().memcgs().folios().release_folio(head);
        }
        let mut result = Err(SplitError::Busy);
        for _ in 0..ATTEMPTS {
            // Else each attempt would split its PMD leaves, and look at all its entries, for nothing.
            if self.is_held_elsewhere(head) {
                continue;
            }
            // PMD leaves are split into tables first: what they map is counted page by page.
            let _ = self.rmap.walk(head, |mapped| -> ControlFlow<()> {
                let tables = mapped.tables;
                if let Found::Huge(slot) = tables.lookup(mapped.range.start())
                    && tables.slot_maps(slot, head, order)
                {
                    HugeLeaves::new(&tables).split_huge(slot);
                }
                ControlFlow::Continue(())
            });
            result = self.try_split((head, order), to, unless_mapped, parts.as_deref_mut());
            if result != Err(SplitError::Busy) {
                break;
            }
        }
        if was_cached && result.is_err() {
            self.memory().memcgs().splits().left_swap_cache(head);
        }
        let pin = self.memory().platform().pin();
        let events = self.memory().frames().events();
        match result {
            Ok(_) => {
                events.count_folio(&pin, order, FolioCounter::Split, 1);
            }
            Err(SplitError::Busy) => events.count_folio(&pin, order, FolioCounter::SplitFailed, 1),
            Err(_) => {}
        }
        result
    }

    /// Splits the large folio at `head`, which is isolated, into single pages; with `unless_mapped` only if
    /// some page of it is not mapped. The caller has the folio lock and one reference, which is to the first
    /// part then. The other parts are isolated too, and enter `parts`, which has none yet: each with a
    /// reference. Returns the number of frames freed.
    ///
    /// # Errors
    ///
    /// [`SplitError`]; then the folio is as it was, and `parts` has none.
    pub fn split_isolated(
        self,
        head: Pfn,
        unless_mapped: bool,
        parts: &mut HeldParts,
    ) -> Result<u64, SplitError> {
        self.split_into(head, Order::ZERO, unless_mapped, Some(parts))
    }

    /// Splits folios of the deferred split queues, the oldest of each first and each at most once, until
    /// `wanted` frames were freed. Returns how many were. The caller is not pinned and holds no lock of class
    /// Rmap or later.
    pub fn split_deferred(self, wanted: u64) -> u64 {
        self.split_some(DeferredOf::All, self.memory().memcgs().splits().waiting(), wanted)
    }

    /// The same for the queue of a memcg, not of those below it, and for a part of it only: at `priority` 0
    /// all of it, and at those above twice the part that is scanned of a list (Linux's shrinker of the
    /// queue). Reclaim also splits what it finds on a list, but it looks at none while there is no swap for
    /// it.
    pub fn split_deferred_of(self, memcg: MemcgId, priority: u32, wanted: u64) -> u64 {
        let whose = DeferredOf::Memcg(memcg);
        let folios = self.memory().memcgs().splits().waiting_of(whose);
        self.split_some(whose, folios.min((folios >> priority) * 2), wanted)
    }

    fn split_some(self, whose: DeferredOf, most: u64, wanted: u64) -> u64 {
        let mut freed = 0;
        for _ in 0..most {
            if freed >= wanted {
                break;
            }
            let Some(head) = self.memory().memcgs().splits().hold_first(whose) else { break };
            // Only tried: the caller may be a fault that has swapped this folio in, and then has its lock.
            let result = match self.memory().frames().folios().try_lock_folio(head) {
                Some(_locked) => self.split_locked(head, Order::ZERO, true),
                None => Err(SplitError::Busy),
            };
            freed += *result.as_ref().unwrap_or(&0);
            if result == Err(SplitError::Busy) {
                self.memory().memcgs().splits().defer_again(head);
            }
            self.memory().memcgs().folios().release_folio(head);
        }
        freed
    }

    /// Whether another space than `space` maps a page of the folio at `head`, to which the caller has a
    /// reference. The caller is as for [`Rmap::walk`](quire_vma::Rmap::walk).
    pub fn is_mapped_elsewhere(self, head: Pfn, space: &SpaceTables) -> bool {
        let order = self.memory().frames().folio(head).order();
        let walked = self.rmap.walk(head, |mapped| {
            let Mapped { tables, range, .. } = *mapped;
            if !ptr::eq(tables.space(), space) && Walker::new(&tables).maps_some(range, (head, order)) {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        walked.is_break()
    }

    /// Whether others than the caller, the mappings and the swap cache have references to the folio at this
    /// moment, so that it cannot be split: pins, or a thread that looks at it (Linux's
    /// `folio_expected_ref_count`).
    pub fn is_held_elsewhere(self, head: Pfn) -> bool {
        let frame = self.memory().frames().known(head);
        let word = frame.word();
        let cached = word.flags().contains(FrameFlags::SWAP_CACHE);
        word.refs() > 1 + u32::from(cached) + u32::from(frame.as_folio().maps() > 0)
    }

    fn try_split(
        self,
        (head, order): (Pfn, Order),
        to: Order,
        unless_mapped: bool,
        mut parts: Option<&mut HeldParts>,
    ) -> Result<u64, SplitError> {
        let frames = self.memory().frames();
        let mut unmapped = FrameChain::new();
        let mut waited = false;
        let result = self.rmap.hold(head, |mappings| {
            {
                let pin = self.memory().platform().pin();
                let locked = frames.folios().lock_head(head);
                if locked.folio().head() != head || locked.folio().order() != order {
                    return Err(SplitError::NotLarger);
                }
                // The list links use words that the parts will need.
                waited = locked.folio().frame().word().flags().contains(FrameFlags::PARTLY_MAPPED);
                self.memory().memcgs().splits().undefer_split(&locked);
                let mut split = frames.folios().begin_split(locked);
                let counted = mappings.walk(|mapped| count_maps(&mapped.tables, &mut split, mapped.range));
                if counted.is_break() {
                    return Err(SplitError::Busy);
                }
                let how = (to, 1, unless_mapped);
                self.memory().memcgs().folios().split_folio(
                    &pin,
                    split,
                    how,
                    &mut unmapped,
                    parts.as_deref_mut(),
                )?;
            }
            // With the pin gone: the pages of all mappings are looked at.
            if to == Order::ZERO && !unless_mapped {
                self.share_zeros(mappings, (head, order), &mut unmapped);
                if let Some(parts) = parts {
                    self.drop_unmapped(parts, &mut unmapped);
                }
            }
            Ok(())
        });
        // One that is mapped whole waits for the next unmapping.
        if waited && matches!(result, None | Some(Err(SplitError::Busy))) {
            self.memory().memcgs().splits().defer_again(head);
        }
        let freed = unmapped.pages();
        let pin = self.memory().platform().pin();
        frames.free_chain(&pin, unmapped);
        result.unwrap_or(Err(SplitError::Busy))?;
        // Folios of the new order, except those that were freed.
        let parts = (order.pages() - freed) >> to.get();
        frames.events().count_folio(&pin, order, FolioCounter::NrAnon, -1);
        if to > Order::ZERO {
            frames.events().count_folio(&pin, to, FolioCounter::NrAnon, parts as i64);
        }
        // The first part is freed with the caller's reference.
        let first = frames.known(head).as_folio().maps();
        Ok(if first == 0 { freed + to.pages() } else { freed })
    }
}

impl<P: Platform> Thp<'_, P> {
    /// Drops the references to those of `parts` that nothing maps any more. Those of which it was the last
    /// enter `unmapped`.
    fn drop_unmapped(self, parts: &mut HeldParts, unmapped: &mut FrameChain) {
        let _pin = self.memory().platform().pin();
        parts.retain(|part| {
            let mapped = self.memory().frames().known(part).as_folio().maps() > 0;
            if !mapped {
                self.memory().memcgs().folios().put_folio(unmapped, part, Order::ZERO);
            }
            mapped
        });
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
    Walker::new(tables).walk(range, &mut |place, part| {
        let table = match place {
            WalkEntry::Table(table) => table,
            WalkEntry::Huge(slot) => {
                if tables.slot_maps(slot, head, order) {
                    flow = ControlFlow::Break(());
                }
                return WalkStep::Next;
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
        WalkStep::Next
    });
    flow
}
