//! The gather: frames and tables of an address space on their way to the page-frame allocator.
//!
//! Unmapped pages may still be in some CPU's TLB, and a lock-free walker may still be in an unlinked table.
//! So nothing that enters a gather is reused before [`Unmapper::finish`](crate::Unmapper::finish) has flushed
//! the TLBs once for all of it. Frames are freed then, tables after an epoch. Nothing is allocated, whatever
//! the size:
//!
//! - Tables all of whose addresses are unmapped are unlinked *with their entries* and chained through their
//!   descriptors. They are read after the flush, when neither the MMU nor a fault can change them any more:
//!   the table is the batch, and no entry needs an exchange, or to be cleared.
//! - In tables that stay, a folio without other mappings is chained through its descriptor.
//! - A folio with other mappings, or of which only a part is unmapped, keeps its map count until the flush,
//!   so that it is not freed before. Such runs are noted in a short list. When the list is full, what it
//!   holds is flushed and dropped. Alternatively, where no fault can happen, the other entries are made not
//!   present in place and removed after the one flush.
//!
//! After the flush tables are read one at a time and frames freed in batches, so that no thread waits for all
//! of them.

mod counts;

use self::counts::GatherCounts;
use crate::cpus::FlushCause;
use crate::huge_slot::HugeSlot;
use crate::memory::MemoryCore;
use crate::residency::Residency;
use crate::table::{Tables, pages_from};
use arrayvec::ArrayVec;
use core::{fmt, mem};
use quire_arch::{Level, Order, PagingFormat, Pfn, Pin, Platform, VirtAddr, VirtRange};
use quire_frame::{Folio, FrameChain, FrameFlags, FreeError, HeadGuard, Kind, MapsLeft, SingleUnmapped};
use quire_memcg::SinglesToChain;
use quire_swap::SlotId;
use quire_sync::atomic::raw::{AtomicU64, Ordering};

/// Runs that are noted before they are flushed.
const NOTED: usize = 64;
/// Runs of slots that are noted.
const CACHED: usize = 16;
/// Pages that are freed under one pin, about.
const BATCH: u64 = 2048;
/// Folios in a chain that is not freed under one pin.
const MANY: u32 = 2 * BATCH as u32;

/// A run whose map count falls after the flush.
#[derive(Clone, Copy)]
struct Noted {
    /// Its first frame.
    pfn: Pfn,
    /// Its pages; none for a folio of which only the reference of its mappings is left.
    pages: u32,
}

/// Frames and tables that were taken out of the page tables of one space.
pub struct Gather<'s, P: Platform> {
    /// Where they were.
    pub(crate) tables: Tables<'s, P>,
    /// Folios that nothing maps any more.
    folios: FrameChain,
    noted: ArrayVec<Noted, NOTED>,
    /// Empty tables.
    emptied: FrameChain,
    /// The last table that was unlinked with its entries; each links to the one before it.
    pub(crate) unlinked: Option<Pfn>,
    /// About where what the first of these tables map begins.
    pub(crate) unlinked_from: VirtAddr,
    /// Entries that were made unusable and are still to be taken out.
    absent: Option<VirtRange>,
    /// Large leaves that were made unusable, and the part of each that is to be unmapped: those at the two
    /// ends of a range.
    pending_splits: ArrayVec<(HugeSlot, VirtRange), 2>,
    /// The huge zero page, and the entries that mapped it.
    zeros: Option<(Pfn, u32)>,
    /// Slots that no entry names any more and whose folio the swap cache may have.
    cached: ArrayVec<(SlotId, u32), CACHED>,
    /// The remains of large leaves whose parts were moved: unusable until the flush.
    restored: ArrayVec<VirtRange, 2>,
    /// Smallest range that holds every translation that must be flushed.
    stale: Option<VirtRange>,
    cause: FlushCause,
    pub(crate) counts: GatherCounts,
}

/// The smallest range that holds both.
fn join(old: Option<VirtRange>, range: VirtRange) -> Option<VirtRange> {
    Some(match old {
        None => range,
        Some(old) => VirtRange::new(old.start().min(range.start()), old.end().max(range.end())),
    })
}

impl<'s, P: Platform> Gather<'s, P> {
    /// An empty one, for what is unmapped from `tables` for `cause`.
    pub(crate) fn new(tables: Tables<'s, P>, cause: FlushCause) -> Self {
        Self {
            tables,
            folios: FrameChain::new(),
            noted: ArrayVec::new_const(),
            emptied: FrameChain::new(),
            unlinked: None,
            unlinked_from: VirtAddr(u64::MAX),
            absent: None,
            pending_splits: ArrayVec::new_const(),
            zeros: None,
            cached: ArrayVec::new_const(),
            restored: ArrayVec::new_const(),
            stale: None,
            cause,
            counts: GatherCounts::default(),
        }
    }

    #[inline]
    fn memory(&self) -> &'s MemoryCore<P> {
        self.tables.memory()
    }

    /// Notes that translations in `range` may be cached and must not outlive the gather.
    #[inline]
    pub fn add_stale(&mut self, range: VirtRange) {
        self.stale = join(self.stale, range);
    }

    /// Notes that what `range` mapped may be cached if page-outs of the space are not flushed, whatever its
    /// entries hold now. A change of a range calls this when it has seen its tables.
    #[inline]
    pub fn add_paged_out(&mut self, range: VirtRange) {
        if self.tables.space().pageouts.is_pending() {
            self.add_stale(range);
        }
    }

    /// Notes that CPUs may have cached the walk to a table for `range`, which has no entries. One address in
    /// it is enough: a flush of an address drops the cached walk to it, too.
    pub fn add_stale_table(&mut self, range: VirtRange) {
        if self.stale.is_none_or(|stale| stale.intersect(range).is_empty()) {
            self.add_stale(pages_from(range.start(), 1));
        }
    }

    /// Whether no more runs can be noted: see [`relieve`](Self::relieve) and
    /// [`add_absent`](Self::add_absent).
    #[inline]
    pub fn is_full(&self) -> bool {
        self.noted.is_full() || self.cached.is_full()
    }

    /// Takes a folio whose last mapping was just removed.
    #[inline]
    pub fn add_folio(&mut self, head: Pfn, order: Order) {
        self.counts.removals += 1;
        self.counts.freed += 1;
        match self.memory().memcgs().folios().gather_folio(&mut self.folios, head, order) {
            Ok(()) => {}
            // Another thread has a reference for a moment, which may be the last to be dropped. So the
            // mappings' reference is dropped after the flush.
            Err(FreeError::Referenced { .. }) => self.note(head, 0),
            Err(error) => debug_assert!(false, "an unmapped folio could not be gathered: {error}"),
        }
    }

    /// Takes the pages that the first of `entries`, of a locked table, map, and empties these, up to one that
    /// is not the only mapping of a single page of private memory, or where something else stands in the way.
    /// Some are taken only when all are [settled](Self::settle_singles), which has said that there is room.
    /// Returns how many; the caller counts them as gone from the table.
    #[inline(always)]
    pub(crate) fn take_singles(
        &mut self,
        pin: &Pin<'_, P>,
        singles: &mut SinglesToChain<'_, P>,
        entries: &[AtomicU64],
    ) -> usize {
        let room = self.noted.remaining_capacity();
        let mut taken = 0;
        for entry in entries {
            let raw = entry.load(Ordering::Relaxed);
            if !P::Paging::is_present_leaf(raw, Level::PTE) || singles.is_full(room) {
                break;
            }
            let gathered = singles.gather(pin, &mut self.folios, P::Paging::frame_of(raw));
            if !gathered.is_taken() && gathered != SingleUnmapped::Listed {
                break;
            }
            // As in `LockedTable::clear`. The page is taken while its entry is there. A thread that finds it
            // by the entry, without the lock, cannot get a reference; the MMU may use it until the flush.
            entry.store(0, Ordering::Relaxed);
            self.tables.fetch_ahead(entries, taken, 1);
            taken += 1;
        }
        self.counts.add_singles(taken as u64, taken as u64);
        taken
    }

    /// Settles single pages, whose entries are gone. Those that others use are unmapped after the flush.
    /// Unless these were the last (`all`), only where each of them might need one of the places that are left
    /// for runs. Returns whether there is a place for what the next entry adds, beside theirs.
    #[inline]
    pub(crate) fn settle_singles(
        &mut self,
        pin: &Pin<'_, P>,
        singles: &mut SinglesToChain<'_, P>,
        all: bool,
    ) -> bool {
        if !singles.is_empty() && (all || singles.is_full(self.noted.remaining_capacity())) {
            let Self { folios, noted, counts, .. } = self;
            singles.settle(pin, folios, |pfn| {
                counts.refuse_single();
                let is_noted = noted.try_push(Noted { pfn, pages: 1 });
                debug_assert!(is_noted.is_ok(), "a page was refused by a full gather");
            });
        }
        !self.is_full()
    }

    /// Takes a run of `pages` from `pfn` on that stays counted as mapped until the flush. The gather is not
    /// full.
    #[inline]
    pub fn add_run(&mut self, pfn: Pfn, pages: u32) {
        self.note(pfn, pages);
    }

    #[inline]
    fn note(&mut self, pfn: Pfn, pages: u32) {
        let noted = self.noted.try_push(Noted { pfn, pages });
        debug_assert!(noted.is_ok(), "a run was added to a full gather");
    }

    /// Notes that the leaves in `range` were made unusable, to be removed after the flush. No fault can
    /// happen.
    pub fn add_absent(&mut self, range: VirtRange) {
        self.absent = join(self.absent, range);
    }

    /// Notes that the large leaf at `slot` was made unusable, and that `part` of what it maps is to be
    /// unmapped after the flush. No fault can happen. A range has two ends, so there are at most two.
    pub fn add_split(&mut self, slot: HugeSlot, part: VirtRange) {
        let noted = self.pending_splits.try_push((slot, part));
        debug_assert!(noted.is_ok(), "a range has more than two ends");
    }

    /// Notes `pages` slots from `slot` on that no entry names any more: if the swap cache has their folio, it
    /// is freed. Where there is no room for the note, reclaim will find it.
    pub fn add_cached(&mut self, slot: SlotId, pages: u32) {
        let _ = self.cached.try_push((slot, pages));
    }

    /// Whether no more slots can be noted: see [`drop_cached`](Self::drop_cached).
    #[inline]
    pub(crate) fn is_full_of_slots(&self) -> bool {
        self.cached.is_full()
    }

    /// Takes folios out of the swap cache whose slots no entry names any more. No lock of a table is held.
    #[inline]
    pub fn drop_cached(&mut self) {
        if !self.cached.is_empty() {
            drop_cached(self);
        }
    }

    /// Takes the reference of an entry that mapped the huge zero page. There is no other such page while
    /// it has one.
    pub fn add_huge_zero(&mut self, zero: Pfn) {
        let entries = self.zeros.map_or(0, |(_, entries)| entries);
        self.zeros = Some((zero, entries + 1));
    }

    /// Notes that the leaves in `range` were made unusable and are to be usable again after the flush. No
    /// fault can happen. As for pending splits there are at most two such ranges.
    pub fn add_restored(&mut self, range: VirtRange) {
        let noted = self.restored.try_push(range);
        debug_assert!(noted.is_ok(), "a range has more than two ends");
    }

    /// Takes a table that no TLB or walk cache has any more.
    #[inline]
    pub fn add_empty_table(&mut self, pfn: Pfn) {
        let gathered = self.memory().frames().gather(&mut self.emptied, pfn, Order::ZERO);
        debug_assert!(gathered.is_ok(), "an unlinked table could not be gathered: {gathered:?}");
    }

    /// Counts a table as freed because it was empty.
    pub(crate) fn count_empty_table(&mut self) {
        self.counts.empty_tables += 1;
    }

    /// Counts `entries` as moved.
    pub(crate) fn count_moved(&mut self, entries: usize) {
        self.counts.moved += entries as u64;
    }

    /// Takes a table that was unlinked from its parent with all that it leads to, which begins about at
    /// `from`; the caller notes what may be cached of it. Only the MMU can change it, and after the flush not
    /// even the MMU.
    #[inline]
    pub fn add_unlinked(&mut self, pfn: Pfn, from: VirtAddr) {
        self.unlinked_from = self.unlinked_from.min(from);
        self.memory().frames().known(pfn).as_table().set_next_unlinked(self.unlinked);
        self.unlinked = Some(pfn);
    }

    /// Flushes, and frees what was noted and chained so far, to make room.
    pub fn relieve(&mut self) {
        let mut pin = self.memory().platform().pin();
        self.flush(&pin);
        if self.folios.blocks() > MANY {
            drop(pin);
            self.free_many();
            pin = self.memory().platform().pin();
        }
        self.drop_noted();
        self.free_folios(&pin);
        drop(pin);
        self.drop_cached();
    }

    /// Makes room for a run, where the flush is done already.
    pub fn make_room_flushed(&mut self) {
        if self.is_full() {
            self.drop_noted();
            self.drop_cached();
        }
    }

    /// Flushes what was noted as stale so far.
    pub fn flush(&mut self, pin: &Pin<'_, P>) {
        if let Some(range) = self.stale.take() {
            self.tables.space().flush(self.memory().frames(), pin, range, self.cause);
        }
    }

    /// Whether entries were made unusable that are still to be taken out of their tables.
    pub fn has_absent(&self) -> bool {
        self.absent.is_some() || !self.pending_splits.is_empty()
    }

    /// Whether entries are unusable, and in their tables, until the flush.
    pub fn is_unsettled(&self) -> bool {
        self.has_absent() || !self.restored.is_empty()
    }

    /// Takes the range noted as stale.
    pub(crate) fn take_stale(&mut self) -> Option<VirtRange> {
        self.stale.take()
    }

    /// Whether something is noted as stale.
    pub(crate) fn has_stale(&self) -> bool {
        self.stale.is_some()
    }

    /// The entries that were made unusable, to be removed now.
    pub(crate) fn take_absent(&mut self) -> Option<VirtRange> {
        self.absent.take()
    }

    /// A large leaf that is to be split now, and the part of it that is to be unmapped.
    pub(crate) fn pop_split(&mut self) -> Option<(HugeSlot, VirtRange)> {
        self.pending_splits.pop()
    }

    /// Entries that are to be usable again.
    pub(crate) fn pop_restored(&mut self) -> Option<VirtRange> {
        self.restored.pop()
    }

    /// The table that was unlinked last.
    pub(crate) fn pop_unlinked(&mut self) -> Option<Pfn> {
        let table = self.unlinked?;
        self.unlinked = self.memory().frames().known(table).as_table().next_unlinked();
        Some(table)
    }

    /// Whether nothing is in it but slots.
    pub(crate) fn holds_nothing(&self) -> bool {
        let empty = self.folios.is_empty() && self.emptied.is_empty() && self.noted.is_empty();
        empty && self.unlinked.is_none() && self.stale.is_none() && self.zeros.is_none()
    }

    /// Whether nothing is in it, and nothing waits for its flush.
    #[cfg(debug_assertions)]
    pub(crate) fn is_done(&self) -> bool {
        self.holds_nothing() && self.cached.is_empty() && !self.is_unsettled()
    }

    /// Whether something was counted: folios were unmapped, or entries moved.
    pub(crate) fn has_counted(&self) -> bool {
        self.counts.removals + self.counts.moved > 0
    }

    /// Adds what was counted to the counters of the machine.
    pub(crate) fn count(&mut self, pin: &Pin<'_, P>) {
        self.counts.write(self.memory().frames(), pin);
    }

    /// Frees everything, the first part of it under `pin`. The flush is done, and nothing is unlinked or
    /// unusable any more.
    #[inline]
    pub(crate) fn free_all(&mut self, pin: Pin<'_, P>) {
        self.drop_noted();
        self.free_folios(&pin);
        self.count(&pin);
        drop(pin);
        if !self.emptied.is_empty() {
            self.retire_portions();
        }
        self.drop_cached();
    }

    /// Retires tables, a portion under each pin.
    #[inline(never)]
    fn retire_portions(&mut self) {
        while !self.emptied.is_empty() {
            let pin = self.memory().platform().pin();
            let portion = self.memory().frames().take_portion(&mut self.emptied, BATCH as u32);
            self.memory().frames().limbo().retire_chain(&pin, portion);
        }
    }

    /// Counts the noted runs, and the entries of the huge zero page, as unmapped. The flush is done, and no
    /// lock of a table is held.
    #[inline]
    pub(crate) fn drop_noted(&mut self) {
        if self.zeros.is_some() || !self.noted.is_empty() {
            drop_noted(self);
        }
    }

    /// Counts a run, no entry of which is in a TLB or can be changed by others, as unmapped.
    #[inline]
    pub fn unmap_flushed(&mut self, pfn: Pfn, pages: u32) {
        self.unmap_locked(self.memory().frames().folios().lock_head(pfn), pages);
    }

    /// As [`unmap_flushed`](Self::unmap_flushed), with the counts locked already.
    #[inline]
    pub fn unmap_locked(&mut self, locked: HeadGuard<'_, P>, pages: u32) {
        let folio = locked.folio();
        let left = locked.remove_maps(pages);
        self.counts.removals += 1;
        match left {
            MapsLeft::None => self.memory().memcgs().splits().undefer_split(&locked),
            MapsLeft::Part if folio.kind() == Kind::Anonymous => {
                self.memory().memcgs().splits().defer_split(&locked);
            }
            MapsLeft::Part | MapsLeft::Some => {}
        }
        drop(locked);
        if left == MapsLeft::None {
            self.counts.freed += 1;
            // The reference of the mappings still keeps what is read here as it is.
            if folio.frame().word().flags().contains(FrameFlags::SWAP_CACHE) {
                self.put_cached(folio.head(), folio.order());
            } else if folio.is_large() {
                self.put_large(folio);
            } else {
                self.memory().memcgs().folios().put_uncounted(&mut self.folios, folio.head(), Order::ZERO);
            }
        }
    }

    /// Drops the reference of the mappings of a large folio, and counts it if that was the last one.
    // A frame of its own: most folios are of one page.
    #[inline(never)]
    fn put_large(&mut self, folio: Folio<'_>) {
        // When it is gone its kind does not say so any more.
        let is_of_file = folio.kind().is_of_file();
        let order = folio.order();
        let gone = self.memory().memcgs().folios().put_uncounted(&mut self.folios, folio.head(), order);
        if gone && !is_of_file {
            self.counts.add_large(self.memory().frames(), order);
        }
    }

    /// Drops a reference, of the mappings of a folio or of another holder. If the folio is in the swap cache,
    /// where it stayed while it was written, it leaves that when the slots are [dropped](Self::drop_cached).
    pub fn put(&mut self, head: Pfn, order: Order) {
        if self.memory().frames().known(head).word().flags().contains(FrameFlags::SWAP_CACHE) {
            self.put_cached(head, order);
        } else {
            self.memory().memcgs().folios().put_folio(&mut self.folios, head, order);
        }
    }

    #[cold]
    fn put_cached(&mut self, head: Pfn, order: Order) {
        let slot = SlotId::from_raw(self.memory().frames().known(head).as_folio().slot());
        self.memory().memcgs().folios().put_folio(&mut self.folios, head, order);
        self.add_cached(slot, order.pages() as u32);
    }

    /// Frees what is chained if there is a batch of it. The flush is done.
    #[inline]
    pub fn free_batch(&mut self) {
        if self.folios.pages() >= BATCH {
            let pin = self.memory().platform().pin();
            self.free_folios(&pin);
        }
    }

    /// Frees a long chain of folios but for its end, a portion under each pin. The flush is done.
    #[inline]
    pub(crate) fn free_many(&mut self) {
        if self.has_many() {
            free_portions(self);
        }
    }

    /// Whether there are more folios than are freed under one pin.
    #[inline]
    pub(crate) fn has_many(&self) -> bool {
        self.folios.blocks() > MANY
    }

    fn free_folios(&mut self, pin: &Pin<'_, P>) {
        let folios = mem::take(&mut self.folios);
        if !folios.is_empty() {
            self.memory().frames().free_chain(pin, folios);
        }
    }

    /// Subtracts pages of the space. A collapse has subtracted those that it replaces
    /// ([`pages_replaced`](crate::ResidencyCounts::pages_replaced)).
    #[inline]
    pub fn count_gone(&self, gone: Residency) {
        if gone != Residency::default() && self.cause != FlushCause::Collapse {
            self.tables.space().residency.pages_unmapped(gone);
        }
    }
}

/// As [`Gather::free_many`].
#[cold]
fn free_portions<P: Platform>(gather: &mut Gather<'_, P>) {
    while gather.has_many() {
        let pin = gather.memory().platform().pin();
        let portion = gather.memory().frames().take_portion(&mut gather.folios, BATCH as u32);
        gather.memory().frames().free_chain(&pin, portion);
    }
}

/// As [`Gather::drop_cached`].
#[inline(never)]
fn drop_cached<P: Platform>(gather: &mut Gather<'_, P>) {
    let (cache, splits) = (gather.memory().swap().cache(), gather.memory().memcgs().splits());
    while let Some((slot, pages)) = gather.cached.pop() {
        cache.drop_unnamed(slot, pages, |head| splits.left_swap_cache(head));
    }
}

/// As [`Gather::drop_noted`].
#[inline(never)]
fn drop_noted<P: Platform>(gather: &mut Gather<'_, P>) {
    // It spins for head locks.
    let _pin = gather.memory().platform().pin();
    if let Some((zero, entries)) = gather.zeros.take() {
        gather.memory().put_huge_zero(zero, entries);
    }
    while let Some(Noted { pfn, pages }) = gather.noted.pop() {
        if pages > 0 {
            gather.unmap_flushed(pfn, pages);
        } else {
            let order = gather.memory().frames().folio(pfn).order();
            gather.put(pfn, order);
        }
        if gather.cached.is_full() {
            gather.drop_cached();
        }
    }
}

impl<P: Platform> fmt::Debug for Gather<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather")
            .field("stale", &self.stale)
            .field("cause", &self.cause)
            .finish_non_exhaustive()
    }
}
