//! The buddy lists of one zone (K. C. Knowlton, "A fast storage allocator", CACM 8(10), 1965; the split by
//! mobility is described at [`Migratetype`]).
//!
//! What holds whenever the zone's lock is free:
//! - a free block is on the list of its order and of its page block's migratetype, and its word says the
//!   same;
//! - the frames inside a block, free or not, are [`Kind::Tail`], so that allocating a block touches one
//!   descriptor;
//! - no two free buddies of one order exist below the largest order.

mod fallback;
mod isolate;
mod reserve;

pub(crate) use isolate::page_blocks;

use crate::counters::{EventSet, VmEvent};
use crate::frame_list::FrameList;
use crate::kind::Kind;
use crate::map::{FrameIndex, FrameState, MemoryMap, Migratetype, PAGEBLOCK_ORDER};
use crate::zone_id::ZoneId;
use quire_arch::{Order, Pfn, PfnRange};

/// Free blocks of a zone, for buddyinfo and pagetypeinfo: by order, then by migratetype.
pub type BuddyCounts = [[u64; Migratetype::COUNT]; Order::COUNT];

/// The lists of one zone, behind the zone's lock.
#[derive(Debug)]
pub(crate) struct Buddy {
    id: ZoneId,
    lists: [[FrameList; Migratetype::COUNT]; Order::COUNT],
    /// For each migratetype, the orders whose list is not empty, as bits.
    occupied: [u32; Migratetype::COUNT],
    /// Free frames by the type of the list that they are on.
    free: [u64; Migratetype::COUNT],
    /// Page blocks of each type.
    blocks: [u64; Migratetype::COUNT],
    /// Frames of page blocks that came to hold more than one type since this was last taken.
    mixed: u64,
    /// Searches of the CPUs' lists to leave out, by type.
    skip: [u32; Migratetype::COUNT],
}

/// Searches of the CPUs' lists that are left out after one that found nothing.
const SKIPPED_SEARCHES: u32 = 16;

impl Buddy {
    pub(super) fn new(id: ZoneId) -> Self {
        Self {
            id,
            lists: [[FrameList::EMPTY; Migratetype::COUNT]; Order::COUNT],
            occupied: [0; Migratetype::COUNT],
            free: [0; Migratetype::COUNT],
            blocks: [0; Migratetype::COUNT],
            mixed: 0,
            skip: [0; Migratetype::COUNT],
        }
    }

    /// Free frames, less those that are isolated.
    #[inline]
    pub(crate) fn free(&self) -> u64 {
        self.available() + self.free[Migratetype::HighAtomic.index()]
    }

    /// Free frames that any request may get.
    #[inline]
    pub(crate) fn available(&self) -> u64 {
        Migratetype::PCP_TYPES.into_iter().map(|migratetype| self.free[migratetype.index()]).sum()
    }

    /// Free frames on the lists of one type.
    #[inline]
    pub(crate) fn free_of(&self, migratetype: Migratetype) -> u64 {
        self.free[migratetype.index()]
    }

    /// The list of one order and type.
    #[inline]
    pub(crate) fn list(&self, order: Order, migratetype: Migratetype) -> &FrameList {
        &self.lists[order.index()][migratetype.index()]
    }

    /// Free blocks on every list.
    pub(crate) fn counts(&self) -> BuddyCounts {
        self.lists.each_ref().map(|types| types.each_ref().map(FrameList::count))
    }

    /// Page blocks of each type.
    pub(crate) fn block_counts(&self) -> [u64; Migratetype::COUNT] {
        self.blocks
    }

    /// Records that a page block came to hold more than one type.
    pub(super) fn note_mixed(&mut self) {
        self.mixed += PAGEBLOCK_ORDER.pages();
    }

    /// Frames of page blocks that came to hold more than one type since this was last asked.
    #[inline]
    pub(super) fn take_mixed(&mut self) -> u64 {
        core::mem::take(&mut self.mixed)
    }

    /// Notes page blocks that the zone starts with; their type was set when the map was made.
    pub(crate) fn add_blocks(&mut self, count: u64, migratetype: Migratetype) {
        self.blocks[migratetype.index()] += count;
    }

    /// The smallest order from `order` on at which a list of `migratetype` holds a block.
    #[inline]
    pub(super) fn smallest(&self, order: Order, migratetype: Migratetype) -> Option<Order> {
        let orders = self.occupied[migratetype.index()] >> order.get() << order.get();
        Order::new(orders.trailing_zeros() as u8)
    }

    #[inline]
    pub(super) fn push(
        &mut self,
        map: &MemoryMap,
        index: FrameIndex,
        order: Order,
        migratetype: Migratetype,
    ) {
        let frame = map.at(index);
        frame.set_word(FrameState::new(Kind::Free, order, migratetype));
        self.lists[order.index()][migratetype.index()].push(map, (index, frame));
        self.occupied[migratetype.index()] |= 1 << order.get();
        self.free[migratetype.index()] += order.pages();
    }

    /// Takes a block off its list. Its word still says free: the caller changes that before it drops the
    /// lock.
    #[inline]
    pub(super) fn unlink(
        &mut self,
        map: &MemoryMap,
        index: FrameIndex,
        order: Order,
        migratetype: Migratetype,
    ) {
        let list = &mut self.lists[order.index()][migratetype.index()];
        list.remove(map, map.at(index));
        if list.is_empty() {
            self.occupied[migratetype.index()] &= !(1 << order.get());
        }
        self.free[migratetype.index()] -= order.pages();
    }

    /// Allocates a block of `order`, as `given`, or returns `None` if no list can provide one. The caller
    /// checks the watermark.
    #[inline]
    pub(crate) fn allocate(
        &mut self,
        map: &MemoryMap,
        order: Order,
        migratetype: Migratetype,
        given: FrameState,
        events: &EventSet,
    ) -> Option<FrameIndex> {
        let index = match self.smallest(order, migratetype) {
            Some(found) => {
                let index = self.list(found, migratetype).first()?;
                self.take(map, index, (found, migratetype), order, events);
                index
            }
            None => self.fall_back(map, order, migratetype, events)?,
        };
        map.at(index).set_word(given);
        Some(index)
    }

    /// Whether the lists of `migratetype` cannot provide a block of `order`, so that another type's must.
    #[inline]
    pub(crate) fn would_mix(&self, order: Order, migratetype: Migratetype) -> bool {
        self.smallest(order, migratetype).is_none()
    }

    /// Whether to search the CPUs' lists for memory of `migratetype` before taking another type's. After a
    /// search that found nothing, the next few are skipped.
    pub(crate) fn may_collect(&mut self, migratetype: Migratetype) -> bool {
        let skip = &mut self.skip[migratetype.index()];
        *skip = skip.saturating_sub(1);
        *skip == 0
    }

    /// Records that a search of the CPUs' lists found nothing of `migratetype`.
    pub(crate) fn note_nothing_collected(&mut self, migratetype: Migratetype) {
        self.skip[migratetype.index()] = SKIPPED_SEARCHES;
    }

    /// Gives out up to `blocks` blocks of `order` that lie side by side. Only the first is described, as
    /// `given`: the caller describes the others, for which it need not hold the lock. Returns the first and
    /// how many there are.
    ///
    /// The piece is what as many single allocations would have taken one after another, since each of them
    /// prefers the smallest piece that fits: the rest of the one before.
    #[inline]
    pub(crate) fn allocate_run(
        &mut self,
        map: &MemoryMap,
        order: Order,
        migratetype: Migratetype,
        blocks: u64,
        given: FrameState,
        events: &EventSet,
    ) -> Option<(FrameIndex, u64)> {
        let (index, size) = match self.smallest(order, migratetype) {
            Some(found) => {
                let index = self.list(found, migratetype).first()?;
                let fits = u32::from(order.get()) + blocks.max(1).ilog2();
                let size = Order::new(fits as u8).map_or(found, |fits| found.min(fits));
                self.take(map, index, (found, migratetype), size, events);
                (index, size)
            }
            None => (self.fall_back(map, order, migratetype, events)?, order),
        };
        map.at(index).set_word(given);
        Some((index, size.pages() >> order.get()))
    }

    /// Allocates a block of `order` from the high-order atomic reserve, as `given`.
    #[cold]
    pub(crate) fn allocate_reserved(
        &mut self,
        map: &MemoryMap,
        order: Order,
        given: FrameState,
        events: &EventSet,
    ) -> Option<FrameIndex> {
        let found = self.smallest(order, Migratetype::HighAtomic)?;
        let index = self.list(found, Migratetype::HighAtomic).first()?;
        self.take(map, index, (found, Migratetype::HighAtomic), order, events);
        map.at(index).set_word(given);
        Some(index)
    }

    /// A block of the largest size that is on the lists of `migratetype`.
    pub(super) fn largest(&self, migratetype: Migratetype) -> Option<FrameIndex> {
        let order = Order::new(self.occupied[migratetype.index()].checked_ilog2()? as u8)?;
        self.list(order, migratetype).first()
    }

    /// Takes the block at `index` off the list `from` and puts the part past `order` back as smaller blocks.
    #[inline]
    pub(super) fn take(
        &mut self,
        map: &MemoryMap,
        index: FrameIndex,
        from: (Order, Migratetype),
        order: Order,
        events: &EventSet,
    ) {
        let (mut size, migratetype) = from;
        let pfn = map.pfn(index);
        self.unlink(map, index, size, migratetype);
        let splits = size.get() - order.get();
        while let Some(half) = size.smaller().filter(|_| size > order) {
            size = half;
            self.push(map, map.index(pfn.offset(half.pages())), half, migratetype);
        }
        if splits > 0 {
            events.add(VmEvent::BuddySplit, u64::from(splits));
        }
    }

    /// Frees a block and merges it with its buddy while that is free too. The type is that of the page block
    /// *now*: it may have been stolen since the block was allocated or entered a CPU's list. A block of
    /// several page blocks is freed in pieces if one of these has changed its type meanwhile, e.g. because it
    /// is being isolated.
    pub(crate) fn free_block(&mut self, map: &MemoryMap, index: FrameIndex, order: Order, events: &EventSet) {
        let pfn = map.pfn(index);
        let migratetype = map.block_migratetype(pfn);
        if order > PAGEBLOCK_ORDER {
            let piece = PAGEBLOCK_ORDER.pages();
            let pieces = (pfn.0..pfn.0 + order.pages()).step_by(piece as usize).map(Pfn);
            if !pieces.clone().all(|start| map.block_migratetype(start) == migratetype) {
                for start in pieces {
                    self.free_piece(map, start, (PAGEBLOCK_ORDER, map.block_migratetype(start)), events);
                }
                return;
            }
        }
        self.free_piece(map, pfn, (order, migratetype), events);
    }

    /// As [`free_block`](Self::free_block), for a block that is all of one type.
    #[inline]
    fn free_piece(
        &mut self,
        map: &MemoryMap,
        mut pfn: Pfn,
        (order, migratetype): (Order, Migratetype),
        events: &EventSet,
    ) {
        let mut size = order;
        while let Some(larger) = size.larger() {
            let buddy = pfn.buddy(size);
            let Some(buddy_index) = self.free_buddy(map, buddy, size) else { break };
            let buddy_type = map.at(buddy_index).word().migratetype();
            if !migratetype.joins(buddy_type) {
                break;
            }
            self.unlink(map, buddy_index, size, buddy_type);
            if buddy_type != migratetype {
                // Only blocks of whole page blocks meet a neighbour of another type.
                self.change_blocks(map, PfnRange::new(buddy, buddy.offset(size.pages())), migratetype);
            }
            let inner = pfn.max(buddy);
            map.at(map.index(inner)).set_word(FrameState::TAIL);
            pfn = pfn.min(buddy);
            size = larger;
        }
        if size > order {
            events.add(VmEvent::BuddyMerge, u64::from(size.get() - order.get()));
        }
        self.push(map, map.index(pfn), size, migratetype);
    }

    /// The frame `buddy`, if a free block of `order` of this zone starts there.
    #[inline]
    pub(crate) fn free_buddy(&self, map: &MemoryMap, buddy: Pfn, order: Order) -> Option<FrameIndex> {
        let index = map.checked_index(buddy)?;
        let frame = map.at(index);
        (frame.word().is_free_block(order) && frame.zone() == self.id).then_some(index)
    }

    /// Gives the page blocks of `frames` (whole ones) the type `migratetype`. Free blocks are moved by the
    /// caller.
    pub(super) fn change_blocks(&mut self, map: &MemoryMap, frames: PfnRange, migratetype: Migratetype) {
        let mut block = frames.start().block_start(PAGEBLOCK_ORDER);
        while block < frames.end() {
            let before = map.block_migratetype(block);
            self.blocks[before.index()] -= 1;
            self.blocks[migratetype.index()] += 1;
            map.set_block_migratetype(block, migratetype);
            block = block.offset(PAGEBLOCK_ORDER.pages());
        }
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcp::PcpTechnique;
    use crate::testing::frames;

    /// Once the lock is released, freeing a neighbour may read the run's first frame.
    #[test]
    fn a_run_is_marked_as_given_out_under_the_lock() {
        let frames = frames(&[(0, 4096)], 1, PcpTechnique::None);
        let zone = frames.zones().populated().next().unwrap();
        let given = FrameState::new(Kind::Pcp, Order::ZERO, Migratetype::Movable);
        let mut buddy = zone.lock(frames.platform());
        let events = EventSet::new();
        let run = buddy.allocate_run(frames.map(), Order::ZERO, Migratetype::Movable, 8, given, &events);
        let (first, _) = run.unwrap();
        assert_eq!(frames.map().at(first).word(), given);
    }
}
