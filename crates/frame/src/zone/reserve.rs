//! The high-order atomic reserve: page blocks that are kept for requests which cannot wait and need more than one
//! frame, e.g. a network driver's buffers in an interrupt (M. Gorman, Linux 4.4, in place of a watermark by order).
//!
//! A block enters the reserve when such a request was served while the zone was low, and leaves it before an ordinary
//! request fails. What is free in the reserve is on lists of its own, which only those requests look at; frames of it
//! never enter a CPU's list.

use super::buddy::Buddy;
use crate::counters::EventSet;
use crate::map::{FrameIndex, MemoryMap, Migratetype, PAGEBLOCK_ORDER};
use quire_arch::{Pfn, PfnRange};

/// The part of a zone that may be reserved, as a divisor; one block at least.
const SHARE: u64 = 100;

impl Buddy {
    /// Puts the page block at `index` into the reserve of a zone with `managed` frames, unless the reserve is full.
    pub(crate) fn reserve_block(&mut self, map: &MemoryMap, index: FrameIndex, managed: u64) -> bool {
        let pfn = map.pfn(index);
        let limit = ((managed / SHARE) >> PAGEBLOCK_ORDER.get()).max(1);
        let reserved = self.block_counts()[Migratetype::HighAtomic.index()];
        if reserved >= limit || !map.block_migratetype(pfn).is_pcp_type() {
            return false;
        }
        let frames = block_at(pfn);
        self.split_around(map, frames);
        self.move_free(map, frames, Migratetype::HighAtomic);
        self.change_blocks(map, frames, Migratetype::HighAtomic);
        true
    }

    /// Gives the free memory of one block of the reserve back to everybody; the block with the largest free piece.
    /// Tells whether there was one.
    pub(crate) fn unreserve_block(&mut self, map: &MemoryMap, events: &EventSet) -> bool {
        let Some(index) = self.largest(Migratetype::HighAtomic) else { return false };
        self.restore_block(map, block_at(map.pfn(index)), events);
        true
    }
}

/// The page block that holds `pfn`.
fn block_at(pfn: Pfn) -> PfnRange {
    let start = pfn.block_start(PAGEBLOCK_ORDER);
    PfnRange::new(start, start.offset(PAGEBLOCK_ORDER.pages()))
}
