//! Spaces from which reclaim unmaps folios: their TLB flush is deferred, so that one covers several folios.

use crate::unmap::{PteReplacement, UnmapSink, Unmapped, unmap_folio};
use arrayvec::ArrayVec;
use core::fmt;
use core::ptr::{self, NonNull};
use quire_arch::{Level, PagingFormat, Pfn, Platform, VirtRange};
use quire_pagetable::{FlushCause, FreeableRange, MemoryCore, Tables, Unmapper};
use quire_swap::SlotId;
use quire_vma::{Exits, Rmap, SpaceCore, SpaceHold};

/// Spaces whose flush is deferred together.
const SPACES: usize = 8;

/// Spaces from which folios were unmapped, with TLB flushes pending.
#[must_use = "what was unmapped is in use until the batch is flushed"]
pub struct UnmapBatch<'s, P: Platform> {
    rmap: Rmap<'s, P>,
    exits: &'s Exits,
    stale: ArrayVec<Stale<'s>, SPACES>,
    /// Ranges of one table each that were left empty.
    emptied: ArrayVec<(SpaceHold<'s>, VirtRange), SPACES>,
}

/// A space with a flush pending.
struct Stale<'s> {
    space: SpaceHold<'s>,
    range: VirtRange,
    /// Whether entries were left none.
    discarded: bool,
}

impl<'s, P: Platform> UnmapBatch<'s, P> {
    /// An empty batch, of the machine that both belong to.
    pub fn new(rmap: Rmap<'s, P>, exits: &'s Exits) -> Self {
        Self { rmap, exits, stale: ArrayVec::new_const(), emptied: ArrayVec::new_const() }
    }

    /// Unmaps the folio at `head`, which is in the swap cache: each entry names its slot from then on. The
    /// caller has the folio lock and a reference, and flushes before it releases the lock.
    pub fn unmap_to_swap(&mut self, head: Pfn) -> Unmapped {
        let slot = SlotId::from_raw(self.rmap.memory().frames().known(head).as_folio().slot());
        unmap_folio(self.rmap, head, PteReplacement::Swap(slot), self)
    }

    /// Unmaps the lazily freed folio at `head`. If it was written to again, it stays. Otherwise as
    /// [`unmap_to_swap`](Self::unmap_to_swap).
    pub fn unmap_to_discard(&mut self, head: Pfn) -> Unmapped {
        unmap_folio(self.rmap, head, PteReplacement::Nothing, self)
    }

    /// The handle to a space of this machine that the core counts already.
    fn counted_hold(&self, core: &SpaceCore) -> SpaceHold<'s> {
        // SAFETY: the rmap led to it, so it is the core of a space of this machine, which has handles until it
        // exits.
        unsafe { SpaceHold::adopt(NonNull::from(core), self.exits) }
    }

    /// Flushes: what was unmapped through this batch is in no TLB. The caller holds no locks but folio locks,
    /// and those of mappings.
    pub fn flush(&mut self) {
        let memory = self.rmap.memory();
        while let Some(Stale { space, range, discarded }) = self.stale.pop() {
            {
                let pin = memory.platform().pin();
                let core = space.core();
                core.tables.flush(memory.frames(), &pin, range, FlushCause::PageOut);
                core.tables.pageouts.end(discarded);
            }
        }
        while let Some((space, range)) = self.emptied.pop() {
            free_emptied(memory, space.core(), range);
        }
    }
}

/// Frees the table that covers `range` if it is empty, unless another thread is changing mappings: then the next
/// call on this range finds the table.
#[inline(never)]
fn free_emptied<P: Platform>(memory: &MemoryCore<P>, core: &SpaceCore, range: VirtRange) {
    // No VMA is locked, so the lock's holder has no section of the lock sequence to end.
    let Some(_writer) = core.mmap_lock.try_write(memory.platform()) else { return };
    let mut unmapper = Unmapper::new(Tables::new(memory, &core.tables), FlushCause::PageOut);
    unmapper.free_empty(range, FreeableRange(range));
    unmapper.finish();
}

impl<P: Platform> UnmapSink for UnmapBatch<'_, P> {
    fn add_stale(&mut self, core: &SpaceCore, range: VirtRange, replacement: PteReplacement) {
        let pageouts = &core.tables.pageouts;
        let at = match self.stale.iter().position(|stale| ptr::eq(stale.space.core(), core)) {
            Some(at) => {
                let noted = &mut self.stale[at].range;
                *noted = VirtRange::new(noted.start().min(range.start()), noted.end().max(range.end()));
                at
            }
            None if self.stale.is_full() => {
                let memory = self.rmap.memory();
                let pin = memory.platform().pin();
                core.tables.flush(memory.frames(), &pin, range, FlushCause::PageOut);
                return;
            }
            None if core.try_hold() => {
                pageouts.begin();
                let space = self.counted_hold(core);
                self.stale.push(Stale { space, range, discarded: false });
                self.stale.len() - 1
            }
            // The space exits: no CPU runs it, and the next space with its tag flushes first.
            None => return,
        };
        if replacement == PteReplacement::Nothing && !self.stale[at].discarded {
            self.stale[at].discarded = true;
            pageouts.begin_discard();
        }
    }

    fn add_emptied(&mut self, core: &SpaceCore, range: VirtRange) {
        let table = P::Paging::table_range(range.start(), Level::PTE);
        let noted = self.emptied.iter().any(|(space, at)| ptr::eq(space.core(), core) && *at == table);
        if !noted && !self.emptied.is_full() && core.try_hold() {
            self.emptied.push((self.counted_hold(core), table));
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
