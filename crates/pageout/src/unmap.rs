//! Taking a folio out of every table that maps it, so that its frames can be used for something else.
//!
//! The caller has the folio lock and a reference. The rmap leads to each mapping; under the lock of its table
//! and the head lock of the folio a run of entries becomes swap entries, and is counted under the same locks.
//! Translations stay in TLBs until the batch is flushed. So until then
//!
//! - the folio is neither written to a device nor freed: programs may be writing to it;
//! - it stays under its folio lock: a fault that finds the swap entry waits for that;
//! - a caller that removes, moves or restricts what the range maps, or maps something else in an entry that
//!   was left none, must flush too (`Pageouts` of `quire-pagetable`).
//!
//! A page that a device may be writing to is not unmapped: its pins are checked after the entry is cleared,
//! and a fence. A fast pin that came before is seen there, one that comes after sees that the entry changed.

use crate::unmap_batch::{PteReplacement, UnmapBatch};
use core::cell::Cell;
use core::ops::ControlFlow;
use quire_arch::{Entry, Leaf, LeafFlags, Level, Order, PAGE_SIZE, PagingFormat, Pfn, Platform, VirtRange};
use quire_frame::{FrameFlags, HeadGuard, MapsLeft, VmEvent};
use quire_pagetable::{
    FlushCause, Found, HugeLeaves, HugeSlot, LockedTable, Residency, Tables, WalkEntry, WalkStep, Walker,
    pages_from,
};
use quire_swap::SlotId;
use quire_sync::atomic::raw::{AtomicU64, Ordering};
use quire_vma::Mapped;

/// Accessed and dirty bits of an entry that was cleared and is restored.
const USED: LeafFlags = LeafFlags::ACCESSED.union(LeafFlags::DIRTY);

/// The result of unmapping a folio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unmapped {
    /// Nothing maps it any more.
    All,
    /// A program mlocked it.
    Locked,
    /// A device may be using it.
    Pinned,
    /// It was lazily freed, but has been written to.
    Dirty,
    /// Some of its mappings could not be checked now.
    Busy,
}

/// One folio that is being unmapped.
struct Job {
    head: Pfn,
    order: Order,
    replacement: PteReplacement,
    /// Whether a part of it was unmapped from a space.
    in_part: Cell<bool>,
}

/// Unmaps the folio at `head`, which is in the swap cache: each entry names its slot from then on. The caller
/// has the folio lock and a reference, and flushes `batch` before it releases the lock.
pub fn unmap_to_swap<P: Platform>(batch: &mut UnmapBatch<'_, P>, head: Pfn) -> Unmapped {
    let slot = SlotId::from_raw(batch.rmap().memory().frames().known(head).as_folio().slot());
    unmap_folio(batch, head, PteReplacement::Swap(slot))
}

/// Unmaps the lazily freed folio at `head`. If it was written to again, it stays. Otherwise as
/// [`unmap_to_swap`].
pub fn unmap_to_discard<P: Platform>(batch: &mut UnmapBatch<'_, P>, head: Pfn) -> Unmapped {
    unmap_folio(batch, head, PteReplacement::Nothing)
}

/// Unmaps the folio at `head` of shared memory, which stays in the cache of its file. Otherwise as
/// [`unmap_to_swap`].
pub fn unmap_cached<P: Platform>(batch: &mut UnmapBatch<'_, P>, head: Pfn) -> Unmapped {
    unmap_folio(batch, head, PteReplacement::Cached)
}

/// Unmaps the folio at `head`, with `replacement` in place of its pages. The caller has the folio lock and a
/// reference, and flushes `batch` before it releases the lock. With [`Nothing`](PteReplacement::Nothing) a
/// page that was written to stays.
fn unmap_folio<P: Platform>(
    batch: &mut UnmapBatch<'_, P>,
    head: Pfn,
    replacement: PteReplacement,
) -> Unmapped {
    let rmap = batch.rmap();
    let frames = rmap.memory().frames();
    let frame = frames.known(head);
    let order = frames.folio(head).order();
    let job = Job { head, order, replacement, in_part: Cell::new(false) };
    let visit =
        |mapped: &Mapped<'_, P>| Unmap { mapped, job: &job, batch: &mut *batch }.unmap_mapping(mapped.range);
    // SAFETY: the caller has the folio lock and a reference.
    let walked = unsafe { rmap.try_walk_locked(head, visit) };
    let unmapped = match walked {
        Some(ControlFlow::Break(why)) => why,
        _ if frame.as_folio().maps() == 0 => Unmapped::All,
        _ => Unmapped::Busy,
    };
    let is_private = !frame.kind().is_of_file();
    if unmapped != Unmapped::All && is_private && job.in_part.get() {
        // Its swap entries may be given up, and the rest stay mapped.
        rmap.memory().memcgs().splits().stays_mapped_in_part(head);
    }
    unmapped
}

/// The unmapping of a folio from one mapping.
struct Unmap<'a, 's, P: Platform> {
    mapped: &'a Mapped<'a, P>,
    job: &'a Job,
    batch: &'a mut UnmapBatch<'s, P>,
}

impl<'a, P: Platform> Unmap<'a, '_, P> {
    fn tables(&self) -> Tables<'a, P> {
        self.mapped.tables
    }

    /// Unmaps what `range` of one mapping maps of the folio.
    fn unmap_mapping(&mut self, range: VirtRange) -> ControlFlow<Unmapped> {
        if self.mapped.vma.is_locked() {
            let maps = Walker::new(&self.tables()).maps_some(range, (self.job.head, self.job.order));
            return if maps { ControlFlow::Break(Unmapped::Locked) } else { ControlFlow::Continue(()) };
        }
        if let Found::Huge(slot) = self.tables().lookup(range.start())
            && self.tables().slot_maps(slot, self.job.head, self.job.order)
        {
            if let PteReplacement::Swap(first) = self.job.replacement
                && self.unmaps_runs()
                && let Some(flow) = self.unmap_leaf((slot, range), first)
            {
                return flow;
            }
            HugeLeaves::new(&self.tables()).split_huge(slot);
        }
        let index = self.tables().memory().frames().known(self.job.head).as_folio().index();
        let first = self.mapped.vma.page_offset_at(range.start()).wrapping_sub(index);
        let mut flow = ControlFlow::Continue(());
        Walker::new(&self.tables()).walk(range, &mut |place, part| {
            if let WalkEntry::Table(table) = place
                && flow.is_continue()
            {
                let nth = first + (part.start().0 - range.start().0) / PAGE_SIZE;
                flow = self.unmap_in_table((table, part), nth);
            }
            WalkStep::Next
        });
        flow
    }

    /// Whether pages of a folio are unmapped together. If each has a word of its own, each is unmapped by
    /// itself.
    fn unmaps_runs(&self) -> bool {
        self.tables().memory().swap().technique().whole_words()
    }

    /// Unmaps the folio where one leaf maps all of it: the table that was deposited for that names its slots
    /// from then on, and no entry for a single page is made in between. `None` where there is no such leaf.
    fn unmap_leaf(
        &mut self,
        (slot, range): (HugeSlot, VirtRange),
        first: SlotId,
    ) -> Option<ControlFlow<Unmapped>> {
        let tables = self.tables();
        let pin = tables.pin();
        let locked = tables.lock_slot(&pin, slot);
        let leaf = Tables::<P>::huge_leaf(&locked, slot)?;
        let usable = leaf.flags & (LeafFlags::READ | LeafFlags::SPECIAL) == LeafFlags::READ;
        if leaf.pfn != self.job.head || !usable || range != tables.slot_range(slot) {
            return None;
        }
        let folio = tables.memory().frames().folios().lock_head(self.job.head);
        if folio.folio().order() != self.job.order
            || folio.folio().order().pages() != u64::from(Tables::<P>::huge_pages())
        {
            return None;
        }
        // The MMU can no longer use it, but nothing is decided yet.
        let absent = Entry::Leaf(Leaf { pfn: leaf.pfn, flags: leaf.flags - LeafFlags::READ });
        let entry = &locked.entries[slot.index];
        let raw = entry.swap(P::Paging::encode(absent, Level::PMD), Ordering::AcqRel);
        if folio.folio().may_be_pinned_after_unmap() {
            // As it was: cached translations are still right.
            let used = Entry::Leaf(Leaf { pfn: leaf.pfn, flags: leaf.flags | USED });
            entry.store(P::Paging::encode(used, Level::PMD), Ordering::Release);
            return Some(ControlFlow::Break(Unmapped::Pinned));
        }
        let Some(table) = HugeLeaves::new(&tables).withdraw(slot) else {
            entry.store(raw, Ordering::Release);
            return None;
        };
        let (frame, swap, pages) = (folio.folio().frame(), tables.memory().swap(), Tables::<P>::huge_pages());
        let own = frame.word().flags().contains(FrameFlags::ANONYMOUS_EXCLUSIVE);
        let exclusive = swap.counts().add_counts(first, pages) && own;
        for (entry, nth) in tables.entries(table)[..pages as usize].iter().zip(0..) {
            let named = Entry::Swap(first.plus(nth).entry(exclusive));
            entry.store(P::Paging::encode(named, Level::PTE), Ordering::Relaxed);
        }
        tables.memory().frames().known(table).as_table().set_live(pages);
        if raw & P::Paging::DIRTY != 0 {
            frame.set_flags(FrameFlags::DIRTY);
        }
        // Before the entries can be seen: a thread that clears them finds that a flush is missing.
        self.batch.add_stale(self.mapped.space, range, self.job.replacement);
        tables.space().residency.swapped_out(u64::from(pages));
        tables.space().residency.pages_unmapped(Residency::of(folio.folio().kind(), u64::from(pages)));
        HugeLeaves::new(&tables).uncount_whole_map(&pin, self.job.head);
        tables.memory().frames().events().add(&pin, VmEvent::ThpSplitPmd, 1);
        // Release: a walker that finds the table finds it filled. The entry was live and is again.
        entry.store(P::Paging::encode(Entry::Table(table), Level::PMD), Ordering::Release);
        if folio.remove_maps(pages) == MapsLeft::None {
            tables.memory().memcgs().splits().undefer_split(&folio);
            frame.put(1);
        }
        Some(ControlFlow::Continue(()))
    }

    fn unmap_in_table(&mut self, (table, part): (Pfn, VirtRange), first: u64) -> ControlFlow<Unmapped> {
        let tables = self.tables();
        let pin = tables.pin();
        let locked = tables.lock(&pin, table, Level::PTE);
        if locked.is_empty() || locked.is_dead() {
            return ControlFlow::Continue(());
        }
        let folio = tables.memory().frames().folios().lock_head(self.job.head);
        if folio.folio().order() != self.job.order {
            return ControlFlow::Break(Unmapped::Busy);
        }
        let start = P::Paging::index(part.start(), Level::PTE);
        let end = start + part.pages() as usize;
        let mut index = start;
        while index < end {
            let nth = first + (index - start) as u64;
            let raw = locked.entries[index].load(Ordering::Relaxed);
            index += match P::Paging::decode(raw, Level::PTE) {
                Entry::Leaf(Leaf { pfn, flags })
                    if pfn == self.job.head.offset(nth) && !flags.contains(LeafFlags::SPECIAL) =>
                {
                    let run = flags.contains(LeafFlags::READ) && self.unmaps_runs();
                    let end = if run { end } else { index + 1 };
                    let pages = tables.run_length(locked.entries, (index, end), (raw, pfn), &folio);
                    let range = pages_from(part.start(), index - start).end();
                    let run = Run { index, pages, nth, range: pages_from(range, pages) };
                    self.unmap_run((&locked, &folio), &run)?;
                    pages
                }
                _ => 1,
            };
        }
        if locked.is_empty() {
            self.batch.add_emptied(self.mapped.space, part);
        }
        ControlFlow::Continue(())
    }

    fn unmap_run(
        &mut self,
        (locked, folio): (&LockedTable<'_, P>, &HeadGuard<'_, P>),
        run: &Run,
    ) -> ControlFlow<Unmapped> {
        let tables = self.tables();
        let frame = folio.folio().frame();
        let swap = tables.memory().swap();
        let pages = run.pages as u32;
        let slots = &locked.entries[run.index..run.index + run.pages];
        let bits = self.replace_entries(slots, folio, run);
        // Several are present; one that is not has its bits elsewhere.
        let dirty = matches!(P::Paging::decode(bits, Level::PTE), Entry::Leaf(leaf)
            if leaf.flags.contains(LeafFlags::DIRTY));
        let refusal = if folio.folio().may_be_pinned_after_unmap() {
            Some(Unmapped::Pinned)
        } else if self.job.replacement == PteReplacement::Nothing
            && (dirty
                || frame.word().flags().contains(FrameFlags::DIRTY)
                || folio.folio().unpinned_refs() > 2)
        {
            // A device may have written since the caller looked at the flag, and another reference may belong
            // to a thread that writes.
            Some(Unmapped::Dirty)
        } else {
            None
        };
        if let Some(why) = refusal {
            if why == Unmapped::Dirty {
                // Its contents are needed again, like those of any other. Under the head lock: not if it is
                // freed lazily once more.
                frame.clear_flags(FrameFlags::LAZY_FREE);
            }
            // No write may use an old translation once a fault, which finds no right to write, could copy the
            // page.
            tables.space().flush(tables.memory().frames(), &tables.pin(), run.range, FlushCause::PageOut);
            self.map_again(slots, self.job.head.offset(run.nth));
            if let PteReplacement::Swap(first) = self.job.replacement {
                let _ = swap.counts().drop_counts(first.plus(run.nth), pages);
            }
            return ControlFlow::Break(why);
        }
        if dirty {
            frame.set_flags(FrameFlags::DIRTY);
        }
        if (run.pages as u64) < self.job.order.pages() {
            self.job.in_part.set(true);
        }
        // Before the count falls: a thread that finds the table empty finds that a flush is missing.
        self.batch.add_stale(self.mapped.space, run.range, self.job.replacement);
        if self.job.replacement.is_none() {
            locked.count_taken(run.pages);
        } else {
            tables.space().residency.swapped_out(u64::from(pages));
        }
        tables.space().residency.pages_unmapped(Residency::of(folio.folio().kind(), u64::from(pages)));
        match folio.remove_maps(pages) {
            MapsLeft::None => {
                tables.memory().memcgs().splits().undefer_split(folio);
                // The mappings' reference. The caller has its own.
                frame.put(1);
            }
            // One that gets swap entries is in the swap cache, which has all its pages.
            MapsLeft::Part if self.job.replacement == PteReplacement::Nothing => {
                tables.memory().memcgs().splits().defer_split(folio);
            }
            MapsLeft::Part | MapsLeft::Some => {}
        }
        ControlFlow::Continue(())
    }

    /// Puts the replacement in the place of each entry of a run. Returns all bits that were set in any of
    /// them.
    #[inline]
    fn replace_entries(&self, slots: &[AtomicU64], folio: &HeadGuard<'_, P>, run: &Run) -> u64 {
        let swap = self.tables().memory().swap();
        let pages = run.pages as u32;
        let mut bits = 0;
        match self.job.replacement {
            PteReplacement::Swap(first) => {
                let slot = first.plus(run.nth);
                let own = if folio.folio().is_large() {
                    folio.folio().frame().word().flags().contains(FrameFlags::ANONYMOUS_EXCLUSIVE)
                } else {
                    folio.maps() == 1
                };
                let exclusive = swap.counts().add_counts(slot, pages) && own;
                for (entry, nth) in slots.iter().zip(0..) {
                    let named = Entry::Swap(slot.plus(nth).entry(exclusive));
                    bits |= entry.swap(P::Paging::encode(named, Level::PTE), Ordering::AcqRel);
                }
            }
            PteReplacement::Nothing | PteReplacement::Cached => {
                for entry in slots {
                    bits |= entry.swap(0, Ordering::AcqRel);
                }
            }
        }
        bits
    }

    /// Maps pages from `first` on again. Their write permissions are not known any more: a write faults.
    fn map_again(&self, slots: &[AtomicU64], first: Pfn) {
        let flags = (self.mapped.vma.leaf_flags() - LeafFlags::WRITE) | USED;
        for (entry, nth) in slots.iter().zip(0..) {
            let leaf = Entry::Leaf(Leaf { pfn: first.offset(nth), flags });
            entry.store(P::Paging::encode(leaf, Level::PTE), Ordering::Release);
        }
    }
}

/// Entries of one table that map consecutive pages of a folio.
struct Run {
    /// The first entry.
    index: usize,
    /// How many.
    pages: usize,
    /// Which page of the folio the first one maps.
    nth: u64,
    /// Their addresses.
    range: VirtRange,
}
