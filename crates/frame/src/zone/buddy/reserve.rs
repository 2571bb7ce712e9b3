//! The high-order atomic reserve: page blocks that are kept for requests which cannot wait and need more than
//! one frame, e.g. a network driver's buffers in an interrupt (M. Gorman, Linux 4.4, in place of a watermark
//! by order).
//!
//! A block enters the reserve when such a request was served while the zone was low, and leaves it before an
//! ordinary request fails. What is free in the reserve is on lists of its own, which only those requests look
//! at; from then on what is freed in it goes there and not to a CPU's list.

use super::Buddy;
use super::isolate::page_blocks;
use crate::counters::EventSet;
use crate::map::{FrameIndex, MemoryMap, Migratetype, PAGEBLOCK_ORDER};
use quire_arch::{Order, Pfn, PfnRange};

/// The part of a zone that may be reserved, as a divisor; one block at least.
const SHARE: u64 = 100;

impl Buddy {
    /// Puts the page block or blocks of the block of `order` at `index` into the reserve of a zone with
    /// `managed` frames, unless the reserve is full.
    pub(crate) fn reserve_block(
        &mut self,
        map: &MemoryMap,
        index: FrameIndex,
        order: Order,
        managed: u64,
    ) -> bool {
        let pfn = map.pfn(index);
        let limit = ((managed / SHARE) >> PAGEBLOCK_ORDER.get()).max(1);
        let reserved = self.block_counts()[Migratetype::HighAtomic.index()];
        let first = block_at(pfn);
        let frames = PfnRange::new(first.start(), first.end().max(pfn.offset(order.pages())));
        let mut blocks = page_blocks(frames);
        if reserved >= limit || !blocks.all(|block| map.block_migratetype(block.start()).is_pcp_type()) {
            return false;
        }
        page_blocks(frames).for_each(|block| self.split_around(map, block));
        self.move_free(map, frames, Migratetype::HighAtomic);
        self.change_blocks(map, frames, Migratetype::HighAtomic);
        true
    }

    /// Gives the free memory of one block of the reserve back to all allocations; the block with the largest
    /// free piece. Returns whether there was one.
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
