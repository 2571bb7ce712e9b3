//! Spaces from which reclaim unmaps folios: their TLB flush is deferred, so that one covers several folios.

use arrayvec::ArrayVec;
use core::fmt;
use core::ptr;
use quire_arch::{Level, PagingFormat, Platform, VirtRange};
use quire_pagetable::{FlushCause, FreeableRange, MemoryCore, Tables, Unmapper};
use quire_swap::SlotId;
use quire_vma::{Rmap, SpaceCore, SpaceHold};

/// Spaces whose flush is deferred together.
const SPACES: usize = 8;

/// What an unmapped page leaves in its entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PteReplacement {
    /// A swap entry; the slot of the folio's first page.
    Swap(SlotId),
    /// Nothing: the page is lost.
    Nothing,
    /// Nothing: the cache of its file has the page.
    Cached,
}

impl PteReplacement {
    /// Whether entries are left none.
    pub(crate) fn is_none(self) -> bool {
        !matches!(self, Self::Swap(_))
    }
}

/// Spaces from which folios were unmapped, with TLB flushes pending.
#[must_use = "what was unmapped is in use until the batch is flushed"]
pub struct UnmapBatch<'s, P: Platform> {
    rmap: Rmap<'s, P>,
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
    /// An empty batch.
    pub fn new(rmap: Rmap<'s, P>) -> Self {
        Self { rmap, stale: ArrayVec::new_const(), emptied: ArrayVec::new_const() }
    }

    /// The rmap of the machine.
    pub(crate) fn rmap(&self) -> Rmap<'s, P> {
        self.rmap
    }

    /// A handle to a space that the rmap led to.
    fn try_hold(&self, core: &SpaceCore) -> Option<SpaceHold<'s>> {
        // SAFETY: it is the core of a space of this machine, which is freed when it has no handle.
        unsafe { SpaceHold::try_new(core, self.rmap.exits()) }
    }

    /// Translations of `range` in the space may be cached, where `replacement` was left. The root lock is
    /// held shared, and the locks of the table and of the folio: no handle of a space may be dropped.
    pub(crate) fn add_stale(&mut self, core: &SpaceCore, range: VirtRange, replacement: PteReplacement) {
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
            None => {
                // If the space exits no CPU runs it, and the next space with its tag flushes first.
                let Some(space) = self.try_hold(core) else { return };
                pageouts.begin();
                self.stale.push(Stale { space, range, discarded: false });
                self.stale.len() - 1
            }
        };
        if replacement.is_none() && !self.stale[at].discarded {
            self.stale[at].discarded = true;
            pageouts.begin_discard();
        }
    }

    /// The table that covers `range` in the space may be empty. Called as [`add_stale`](Self::add_stale) is.
    pub(crate) fn add_emptied(&mut self, core: &SpaceCore, range: VirtRange) {
        let table = P::Paging::table_range(range.start(), Level::PTE);
        let noted = self.emptied.iter().any(|(space, at)| ptr::eq(space.core(), core) && *at == table);
        if !noted
            && !self.emptied.is_full()
            && let Some(space) = self.try_hold(core)
        {
            self.emptied.push((space, table));
        }
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

/// Frees the table that covers `range` if it is empty, unless another thread is changing mappings: then the
/// next call on this range finds the table.
#[inline(never)]
fn free_emptied<P: Platform>(memory: &MemoryCore<P>, core: &SpaceCore, range: VirtRange) {
    // No VMA is locked, so the lock's holder has no section of the lock sequence to end.
    let Some(_writer) = core.mmap_lock.try_write(memory.platform()) else { return };
    let mut unmapper = Unmapper::new(Tables::new(memory, &core.tables), FlushCause::PageOut);
    unmapper.free_empty(range, FreeableRange(range));
    unmapper.finish();
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
