//! Taking a folio out of every table that maps it, so that its frames can be used for something else.
//!
//! The caller has the folio lock and a reference. The rmap leads to each mapping; under the lock of its table
//! and the head lock of the folio a run of entries becomes swap entries, and is counted under the same locks.
//! Translations stay in TLBs until the batch is flushed. So until then
//!
//! - the folio is neither written to a device nor freed: programs may be writing to it;
//! - it stays under its folio lock: a fault that finds the swap entry waits for that;
//! - a caller that clears such an entry, moves it or removes permissions from it must flush too, since the
//!   translation of the page may be in a TLB
//!   ([`SpaceCpus::is_paging_out`](crate::cpus::SpaceCpus::is_paging_out)).
//!
//! A page that a device may be writing to is not unmapped: after the entry is cleared, and a fence, its pins
//! are checked. A fast pin that came before is seen there, one that comes after sees that the entry changed.

use crate::cpus::FlushCause;
use crate::gather::pages_from;
use crate::residency::Residency;
use crate::space::{Space, SpaceCore};
use crate::spaces::Spaces;
use crate::table::{Found, FreeableRange, HugeSlot, LockedTable, Place, Step, Tables};
use crate::vma::{VmFlags, VmaSnapshot};
use arrayvec::ArrayVec;
use core::fmt;
use core::ops::ControlFlow;
use core::ptr::{self, NonNull};
use quire_arch::{Entry, Leaf, LeafFlags, Level, Order, PAGE_SIZE, PagingFormat, Pfn, Platform, VirtRange};
use quire_frame::{FrameFlags, LockedFolio, MapsLeft, VmEvent};
use quire_swap::SlotId;
use quire_sync::atomic::fence;
use quire_sync::atomic::raw::{AtomicU64, Ordering};

/// Spaces whose flush is put off together.
const SPACES: usize = 8;

/// What the MMU may have noted in an entry that was cleared and is restored.
const USED: LeafFlags = LeafFlags::ACCESSED.union(LeafFlags::DIRTY);

/// The result of unmapping a folio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unmapped {
    /// Nothing maps it any more.
    All,
    /// A program locked it.
    Locked,
    /// A device may be using it.
    Pinned,
    /// It was to be dropped, and has been written to.
    Dirty,
    /// Some of its mappings could not be looked at just now.
    Busy,
}

/// What an unmapped page leaves in its entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PteReplacement {
    /// The name of its slot: that of the folio's first page is this.
    Swap(SlotId),
    /// Nothing.
    Nothing,
}

/// One folio that is being unmapped.
struct Job {
    head: Pfn,
    order: Order,
    replacement: PteReplacement,
}

/// Spaces out of which folios were unmapped and whose TLBs are still to be flushed.
#[must_use = "what was unmapped is in use until the batch is flushed"]
pub struct UnmapBatch<'s, P: Platform> {
    spaces: &'s Spaces<P>,
    stale: ArrayVec<(Space<'s, P>, VirtRange), SPACES>,
    /// Ranges that one table each covers, and that are left empty.
    emptied: ArrayVec<(Space<'s, P>, VirtRange), SPACES>,
}

impl<'s, P: Platform> UnmapBatch<'s, P> {
    /// A batch of nothing.
    pub fn new(spaces: &'s Spaces<P>) -> Self {
        Self { spaces, stale: ArrayVec::new_const(), emptied: ArrayVec::new_const() }
    }

    /// Notes that translations of `range` may be cached. The lock of the table is held, and the root lock, so
    /// no handle may be dropped here.
    fn add_stale(&mut self, core: &SpaceCore, range: VirtRange) {
        if let Some((_, noted)) = self.stale.iter_mut().find(|(space, _)| ptr::eq(space.core(), core)) {
            *noted = VirtRange::new(noted.start().min(range.start()), noted.end().max(range.end()));
            return;
        }
        if self.stale.is_full() {
            let pin = self.spaces.platform().pin();
            core.flush(self.spaces.frames(), &pin, range, FlushCause::PageOut);
        } else if core.try_hold() {
            core.cpus.begin_pageout();
            self.stale.push((Space::adopt(self.spaces, NonNull::from(core)), range));
        }
        // Else the space exits: no CPU runs it, and the next space with its tag flushes first.
    }

    /// Notes that the table that covers `range` may be empty.
    fn add_emptied(&mut self, core: &SpaceCore, range: VirtRange) {
        let table = P::Paging::table_range(range.start(), Level::PTE);
        let noted = self.emptied.iter().any(|(space, at)| ptr::eq(space.core(), core) && *at == table);
        if !noted && !self.emptied.is_full() && core.try_hold() {
            self.emptied.push((Space::adopt(self.spaces, NonNull::from(core)), table));
        }
    }

    /// Flushes: what was unmapped through this batch is in no TLB. The caller holds no locks but folio locks,
    /// and those of mappings.
    pub fn flush(&mut self) {
        while let Some((space, range)) = self.stale.pop() {
            {
                let pin = self.spaces.platform().pin();
                let core = space.core();
                core.flush(self.spaces.frames(), &pin, range, FlushCause::PageOut);
                core.cpus.end_pageout();
            }
        }
        while let Some((space, range)) = self.emptied.pop() {
            space.free_emptied(range);
        }
    }
}

impl<P: Platform> Drop for UnmapBatch<'_, P> {
    fn drop(&mut self) {
        self.flush();
    }
}

impl<P: Platform> fmt::Debug for UnmapBatch<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnmapBatch").field("spaces", &self.stale.len()).finish_non_exhaustive()
    }
}

impl<P: Platform> Spaces<P> {
    /// Unmaps the folio at `head`, which is in the swap cache: each entry names its slot from then on. The
    /// caller has the folio lock and a reference, and flushes `batch` before it releases the lock.
    pub fn unmap_to_swap(&self, head: Pfn, batch: &mut UnmapBatch<'_, P>) -> Unmapped {
        let slot = SlotId::from_raw(self.frames().known(head).private().load(Ordering::Relaxed));
        self.unmap_folio(head, PteReplacement::Swap(slot), batch)
    }

    /// Unmaps the folio at `head`, whose contents are not needed unless they were written to again: then it
    /// stays. Otherwise as [`unmap_to_swap`](Self::unmap_to_swap).
    pub fn unmap_to_discard(&self, head: Pfn, batch: &mut UnmapBatch<'_, P>) -> Unmapped {
        self.unmap_folio(head, PteReplacement::Nothing, batch)
    }

    fn unmap_folio(&self, head: Pfn, replacement: PteReplacement, batch: &mut UnmapBatch<'_, P>) -> Unmapped {
        let frame = self.frames().known(head);
        let job = Job { head, order: self.frames().folio(head).order(), replacement };
        let walked = self.rmap_try_hold(head, |mappings| {
            mappings.walk(|tables, facts, range| tables.unmap_mapping(&job, facts, range, batch))
        });
        match walked {
            Some(ControlFlow::Break(why)) => why,
            _ if frame.map_count().load(Ordering::Acquire) == 0 => Unmapped::All,
            _ => Unmapped::Busy,
        }
    }
}

impl<P: Platform> Tables<'_, P> {
    /// Unmaps what `range` of one mapping maps of the folio.
    fn unmap_mapping(
        &self,
        job: &Job,
        facts: &VmaSnapshot,
        range: VirtRange,
        batch: &mut UnmapBatch<'_, P>,
    ) -> ControlFlow<Unmapped> {
        if facts.flags.contains(VmFlags::LOCKED) {
            let maps = self.maps_some(range, (job.head, job.order));
            return if maps { ControlFlow::Break(Unmapped::Locked) } else { ControlFlow::Continue(()) };
        }
        if let Found::Huge(slot) = self.lookup(range.start())
            && self.slot_maps(slot, job.head, job.order)
        {
            if let PteReplacement::Swap(first) = job.replacement
                && self.unmaps_runs()
                && let Some(flow) = self.unmap_leaf(job, (slot, range), first, batch)
            {
                return flow;
            }
            self.split_huge(slot);
        }
        let index = self.spaces.frames().known(job.head).index().load(Ordering::Relaxed);
        let first = facts.page_offset_at(range.start()).wrapping_sub(index);
        let mut flow = ControlFlow::Continue(());
        self.walk(range, &mut |place, part| {
            if let Place::Table(table) = place
                && flow.is_continue()
            {
                let nth = first + (part.start().0 - range.start().0) / PAGE_SIZE;
                flow = self.unmap_in_table(job, facts, (table, part), nth, batch);
            }
            Step::Next
        });
        flow
    }

    /// Whether pages of a folio are unmapped together. If each has a word of its own, each is unmapped by
    /// itself.
    fn unmaps_runs(&self) -> bool {
        self.spaces.swap().technique().whole_words()
    }

    /// Unmaps the folio where one leaf maps all of it: the table that was deposited for that names its slots
    /// from then on, and no entry for a single page is made in between. `None` where there is no such leaf.
    fn unmap_leaf(
        &self,
        job: &Job,
        (slot, range): (HugeSlot, VirtRange),
        first: SlotId,
        batch: &mut UnmapBatch<'_, P>,
    ) -> Option<ControlFlow<Unmapped>> {
        let pin = self.pin();
        let locked = self.lock_slot(&pin, slot);
        let leaf = Self::huge_leaf(&locked, slot)?;
        let usable = leaf.flags & (LeafFlags::READ | LeafFlags::SPECIAL) == LeafFlags::READ;
        if leaf.pfn != job.head || !usable || range != self.slot_range(slot) {
            return None;
        }
        let folio = self.spaces.frames().lock_folio(job.head);
        if folio.folio().order() != job.order
            || folio.folio().order().pages() != u64::from(Self::huge_pages())
        {
            return None;
        }
        // The MMU gets no more of it, but nothing is decided yet.
        let absent = Entry::Leaf(Leaf { pfn: leaf.pfn, flags: leaf.flags - LeafFlags::READ });
        let entry = &locked.entries[slot.index];
        let raw = entry.swap(P::Paging::encode(absent, Level::PMD), Ordering::AcqRel);
        // As in `unmap_run`.
        fence(Ordering::SeqCst);
        if folio.folio().may_be_pinned() {
            // As it was: translations that a CPU still has are right.
            let used = Entry::Leaf(Leaf { pfn: leaf.pfn, flags: leaf.flags | USED });
            entry.store(P::Paging::encode(used, Level::PMD), Ordering::Release);
            return Some(ControlFlow::Break(Unmapped::Pinned));
        }
        let Some(table) = self.withdraw(slot) else {
            entry.store(raw, Ordering::Release);
            return None;
        };
        let (frame, swap, pages) = (folio.folio().frame(), self.spaces.swap(), Self::huge_pages());
        let own = frame.word().flags().contains(FrameFlags::ANONYMOUS_EXCLUSIVE);
        let exclusive = swap.add_counts(first, pages) && own;
        for (entry, nth) in self.entries(table)[..pages as usize].iter().zip(0..) {
            let named = Entry::Swap(first.plus(nth).entry(exclusive));
            entry.store(P::Paging::encode(named, Level::PTE), Ordering::Relaxed);
        }
        self.spaces.frames().known(table).live().store(pages, Ordering::Relaxed);
        if raw & P::Paging::DIRTY != 0 {
            frame.set_flags(FrameFlags::DIRTY);
        }
        // Before the entries can be seen: a thread that clears them finds that a flush is missing.
        batch.add_stale(self.core, range);
        self.core.usage.swapped_out(u64::from(pages));
        self.core.usage.pages_unmapped(Residency::of(folio.folio().kind(), u64::from(pages)));
        self.uncount_whole_map(&pin, job.head);
        self.spaces.frames().events().add(&pin, VmEvent::ThpSplitPmd, 1);
        // Release: a walker that finds the table finds it filled. The entry was live and is again.
        entry.store(P::Paging::encode(Entry::Table(table), Level::PMD), Ordering::Release);
        if folio.remove_maps(pages) == MapsLeft::None {
            self.spaces.undefer_split(&folio);
            frame.put(1);
        }
        Some(ControlFlow::Continue(()))
    }

    fn unmap_in_table(
        &self,
        job: &Job,
        facts: &VmaSnapshot,
        (table, part): (Pfn, VirtRange),
        first: u64,
        batch: &mut UnmapBatch<'_, P>,
    ) -> ControlFlow<Unmapped> {
        let pin = self.pin();
        let locked = self.lock(&pin, table, Level::PTE);
        if locked.is_empty() || locked.is_dead() {
            return ControlFlow::Continue(());
        }
        let folio = self.spaces.frames().lock_folio(job.head);
        if folio.folio().order() != job.order {
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
                    if pfn == job.head.offset(nth) && !flags.contains(LeafFlags::SPECIAL) =>
                {
                    let run = flags.contains(LeafFlags::READ) && self.unmaps_runs();
                    let end = if run { end } else { index + 1 };
                    let pages = self.run_length(locked.entries, (index, end), (raw, pfn), &folio);
                    let range = pages_from(part.start(), index - start).end();
                    let run = Run { index, pages, nth, range: pages_from(range, pages) };
                    self.unmap_run(job, facts, (&locked, &folio), &run, batch)?;
                    pages
                }
                _ => 1,
            };
        }
        if locked.is_empty() {
            batch.add_emptied(self.core, part);
        }
        ControlFlow::Continue(())
    }

    fn unmap_run(
        &self,
        job: &Job,
        facts: &VmaSnapshot,
        (locked, folio): (&LockedTable<'_, P>, &LockedFolio<'_, P>),
        run: &Run,
        batch: &mut UnmapBatch<'_, P>,
    ) -> ControlFlow<Unmapped> {
        let frame = folio.folio().frame();
        let swap = self.spaces.swap();
        let pages = run.pages as u32;
        let slots = &locked.entries[run.index..run.index + run.pages];
        let mut bits = 0;
        match job.replacement {
            PteReplacement::Swap(first) => {
                let slot = first.plus(run.nth);
                let own = if folio.folio().is_large() {
                    frame.word().flags().contains(FrameFlags::ANONYMOUS_EXCLUSIVE)
                } else {
                    folio.maps() == 1
                };
                let exclusive = swap.add_counts(slot, pages) && own;
                for (entry, nth) in slots.iter().zip(0..) {
                    let named = Entry::Swap(slot.plus(nth).entry(exclusive));
                    bits |= entry.swap(P::Paging::encode(named, Level::PTE), Ordering::AcqRel);
                }
            }
            PteReplacement::Nothing => {
                for entry in slots {
                    bits |= entry.swap(0, Ordering::AcqRel);
                }
            }
        }
        // Pairs with the one of a fast pin, between its reference and its second look at the entry.
        fence(Ordering::SeqCst);
        // Several are present; one that is not has its bits elsewhere.
        let dirty = matches!(P::Paging::decode(bits, Level::PTE), Entry::Leaf(leaf)
            if leaf.flags.contains(LeafFlags::DIRTY));
        let refusal = if folio.folio().may_be_pinned() {
            Some(Unmapped::Pinned)
        } else if job.replacement == PteReplacement::Nothing && (dirty || folio.folio().unpinned_refs() > 2) {
            // Another reference may belong to a thread that writes.
            Some(Unmapped::Dirty)
        } else {
            None
        };
        if let Some(why) = refusal {
            // No write may use an old translation once a fault, which finds no right to write, could copy the
            // page.
            self.core.flush(self.spaces.frames(), &self.pin(), run.range, FlushCause::PageOut);
            self.map_again(facts, slots, job.head.offset(run.nth));
            if let PteReplacement::Swap(first) = job.replacement {
                let _ = swap.drop_counts(first.plus(run.nth), pages);
            }
            return ControlFlow::Break(why);
        }
        if dirty {
            frame.set_flags(FrameFlags::DIRTY);
        }
        batch.add_stale(self.core, run.range);
        if job.replacement == PteReplacement::Nothing {
            locked.count_taken(run.pages);
        } else {
            self.core.usage.swapped_out(u64::from(pages));
        }
        self.core.usage.pages_unmapped(Residency::of(folio.folio().kind(), u64::from(pages)));
        if folio.remove_maps(pages) == MapsLeft::None {
            self.spaces.undefer_split(folio);
            // The mappings' reference. The caller has its own.
            frame.put(1);
        }
        ControlFlow::Continue(())
    }

    /// Maps pages from `first` on again. The right to write to each is not known any more: a write faults.
    fn map_again(&self, facts: &VmaSnapshot, slots: &[AtomicU64], first: Pfn) {
        let flags = (facts.flags.leaf_flags() - LeafFlags::WRITE) | USED;
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

impl<P: Platform> Space<'_, P> {
    /// Frees the table that covers `range` if it is empty and no thread is changing mappings just now. Else
    /// the next call on this range finds it.
    fn free_emptied(&self, range: VirtRange) {
        let Some(mut section) = crate::mmap_writer::MmapWriter::try_begin(self.spaces, self.core()) else {
            return;
        };
        section.free_emptied(range);
    }
}

impl<P: Platform> crate::mmap_writer::MmapWriter<'_, P> {
    fn free_emptied(&mut self, range: VirtRange) {
        let mut gather = crate::gather::Gather::new(self.spaces, self.core, FlushCause::PageOut);
        self.tables().free_empty(range, FreeableRange(range), &mut gather);
        gather.finish();
    }
}
