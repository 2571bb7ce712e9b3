//! Single pages of private memory that lose their mappings: most of what a program gives back. Each takes one
//! look-up and one exchange, and they are freed in batches.

use super::FrameFolios;
use crate::chain::FrameChain;
use crate::counters::VmEvent;
use crate::folio::{MAX_MAPS, PIN};
use crate::map::{Frame, SingleUnmapped, unmap_single};
use crate::pcp::Chunk;
use quire_arch::{Pfn, Pin, Platform};

/// Single pages that were taken from their user and are about to be freed, as many as there is room for.
///
/// Dropping some leaks them; the auditor finds them.
#[must_use = "the pages are lost unless they are given to `free_singles`"]
#[derive(Debug)]
pub struct SinglePages(Chunk);

impl SinglePages {
    /// None.
    #[inline]
    pub const fn new() -> Self {
        Self(Chunk::new())
    }

    /// Whether there is no room for another.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.0.is_full()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.blocks().is_empty()
    }
}

impl Default for SinglePages {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Platform> FrameFolios<'_, P> {
    /// Counts one more mapping of the page at `pfn`, which an entry of the caller maps, in a locked table.
    /// False if it is no single page of private memory, is pinned, has too many mappings, or may be mapped by
    /// name: nothing has changed then.
    #[inline]
    pub fn share_single(self, pfn: Pfn) -> bool {
        self.frames.map.known(pfn).share_single(PIN, MAX_MAPS)
    }

    /// A mapping of the page at `pfn` is gone, and no TLB has it. If it was the only one of a single page of
    /// private memory that is on no list, and nothing else knows the page, it enters `pages`. The count of
    /// one that others map falls. [`SingleUnmapped::Other`] also if there is no room.
    #[inline]
    pub fn unmap_single(self, pages: &mut SinglePages, pfn: Pfn) -> SingleUnmapped {
        self.push_single(pages, pfn, unmap_single)
    }

    /// As [`unmap_single`](Self::unmap_single) where that said [`SingleUnmapped::Listed`]. The caller has the
    /// lock of the list, and took the page off. If it does not enter `pages` nothing has changed.
    #[inline]
    pub fn take_listed_single(self, pages: &mut SinglePages, pfn: Pfn) -> SingleUnmapped {
        self.push_single(pages, pfn, |frame| frame.take_single(true))
    }

    #[inline]
    fn push_single(
        self,
        pages: &mut SinglePages,
        pfn: Pfn,
        unmap: impl FnOnce(&Frame) -> SingleUnmapped,
    ) -> SingleUnmapped {
        let Some((index, frame)) = self.frames.map.find(pfn) else { return SingleUnmapped::Other };
        let unmapped = pages.0.push_single(|| {
            let unmapped = unmap(frame);
            (unmapped.is_taken().then_some(index), unmapped)
        });
        unmapped.unwrap_or(SingleUnmapped::Other)
    }

    /// As [`unmap_single`](Self::unmap_single) where TLBs may have the mapping still: the page enters a
    /// chain, which is freed after the flush. One that others map keeps its count.
    #[inline]
    pub fn gather_single(self, chain: &mut FrameChain, pfn: Pfn) -> SingleUnmapped {
        self.gather_single_by(chain, pfn, false)
    }

    /// As [`take_listed_single`](Self::take_listed_single), into a chain.
    #[inline]
    pub fn gather_listed_single(self, chain: &mut FrameChain, pfn: Pfn) -> SingleUnmapped {
        self.gather_single_by(chain, pfn, true)
    }

    #[inline]
    fn gather_single_by(self, chain: &mut FrameChain, pfn: Pfn, is_listed: bool) -> SingleUnmapped {
        let Some((index, frame)) = self.frames.map.find(pfn) else { return SingleUnmapped::Other };
        let gathered = frame.take_single(is_listed);
        if gathered.is_taken() {
            chain.push(&self.frames.map, (index, frame), 1);
        }
        gathered
    }

    /// Frees all of them.
    pub fn free_singles(self, pin: &Pin<'_, P>, pages: &mut SinglePages) {
        self.frames.events.add(pin, VmEvent::Pgfree, pages.0.count_singles());
        self.frames.free_counted_singles(pin, &pages.0);
        *pages = SinglePages::new();
    }
}
