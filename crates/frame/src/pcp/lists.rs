//! One CPU's lists for one zone.

use super::limits::{CHUNK_BLOCKS, PcpLimits};
use super::tuning::{Signs, Tuning};
use crate::frame_list::FrameList;
use crate::kind::Kind;
use crate::map::{Frame, FrameIndex, FrameState, MemoryMap, Migratetype, PAGEBLOCK_ORDER};
use crate::zone_id::ZoneId;
use quire_arch::{Order, Pfn};

/// Orders that lists can hold.
const ORDERS: usize = Order::PMD.index() + 1;
/// Lists.
const LISTS: usize = ORDERS * Migratetype::PCP_COUNT;
const _: () = assert!(LISTS <= u32::BITS as usize);

/// Blocks that were taken off the lists together.
#[derive(Debug)]
pub(crate) struct Chunk {
    blocks: [FrameIndex; CHUNK_BLOCKS],
    count: usize,
    pub(crate) pages: u64,
}

impl Chunk {
    pub(crate) const fn new() -> Self {
        Self { blocks: [FrameIndex::NONE; CHUNK_BLOCKS], count: 0, pages: 0 }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// Blocks that there is room for.
    fn room(&self) -> u64 {
        (CHUNK_BLOCKS - self.count) as u64
    }

    /// Adds the single page that `take` returns, and returns what else it does. `None`, without a call, if
    /// there is no room. The caller counts the [pages](Self::count_singles) when all are there.
    #[inline]
    pub(crate) fn push_single<R>(&mut self, take: impl FnOnce() -> (Option<FrameIndex>, R)) -> Option<R> {
        let place = self.blocks.get_mut(self.count)?;
        let (taken, result) = take();
        if let Some(index) = taken {
            *place = index;
            self.count += 1;
        }
        Some(result)
    }

    /// Counts the base pages of what are single pages.
    #[inline]
    pub(crate) fn count_singles(&mut self) -> u64 {
        self.pages = self.count as u64;
        self.pages
    }

    /// Adds a block; the caller has looked whether there is room.
    pub(crate) fn push(&mut self, index: FrameIndex, pages: u64) {
        if let Some(place) = self.blocks.get_mut(self.count) {
            *place = index;
            self.count += 1;
            self.pages += pages;
        }
    }

    pub(crate) fn blocks(&self) -> &[FrameIndex] {
        &self.blocks[..self.count]
    }
}

/// The lists of one CPU for one zone, behind a lock of class `Pcp`.
#[derive(Debug)]
pub(crate) struct PcpLists {
    lists: [[FrameList; Migratetype::PCP_COUNT]; ORDERS],
    /// Lists that hold something, as bits.
    occupied: u32,
    /// The list that the next drain begins with.
    cursor: u32,
    /// Base pages on all lists, those that were returned included.
    pages: u64,
    /// The most that there were.
    peak: u64,
    /// What was returned by other CPUs and is on no list yet: linked from here.
    incoming: FrameIndex,
    /// Base pages there.
    incoming_pages: u64,
    pub(super) tuning: Tuning,
    limits: PcpLimits,
}

const fn bit(order: Order, migratetype: Migratetype) -> u32 {
    1 << (order.index() * Migratetype::PCP_COUNT + migratetype.index())
}

impl PcpLists {
    pub(crate) fn new(limits: PcpLimits) -> Self {
        Self {
            lists: [[FrameList::EMPTY; Migratetype::PCP_COUNT]; ORDERS],
            occupied: 0,
            cursor: 0,
            pages: 0,
            peak: 0,
            incoming: FrameIndex::NONE,
            incoming_pages: 0,
            tuning: Tuning::new(limits.high_min),
            limits,
        }
    }

    #[inline]
    pub(crate) fn limits(&self) -> PcpLimits {
        self.limits
    }

    /// Applies a change of the zone's size.
    pub(crate) fn set_limits(&mut self, limits: PcpLimits) {
        self.limits = limits;
        self.tuning.high = self.tuning.high.clamp(limits.high_min, limits.high_max);
    }

    /// More base pages than this are not kept.
    #[inline]
    pub(crate) fn high(&self) -> u64 {
        self.tuning.high
    }

    /// Notes that a list of `order` is empty and that nothing was returned, and returns how many blocks to
    /// fetch. Here and below, `bound` is what the zone allows each CPU now.
    pub(crate) fn miss(&mut self, order: Order, bound: u64) -> u64 {
        self.tuning.miss(self.limits.bounded(bound), order)
    }

    /// The signs that a miss of `order` changes.
    pub(crate) fn signs(&self, order: Order) -> Signs {
        self.tuning.signs(order)
    }

    /// Takes back what misses of `order` changed since `before`: the request found nothing.
    pub(crate) fn forget_miss(&mut self, order: Order, before: Signs) {
        self.tuning.forget_miss(order, before);
    }

    /// Notes that a free of `order` exceeds the budget, and returns how many base pages to give back.
    pub(crate) fn overflow(&mut self, order: Order, bound: u64) -> u64 {
        self.tuning.overflow(self.limits.bounded(bound), order)
    }

    /// A tick, where other CPUs returned so many base pages that the lists do not have yet. Sets how many
    /// base pages the CPU must give back, and returns whether it has use for more.
    pub(crate) fn tick(&mut self, bound: u64, returned: u64) -> bool {
        self.tuning.tick(self.limits.bounded(bound), self.pages, returned)
    }

    /// Takes a chunk of what the CPU must give back since the last tick. An empty one is the last.
    pub(crate) fn take_due(&mut self, map: &MemoryMap) -> Chunk {
        let chunk = self.take_cold(map, self.tuning.due.min(self.pages));
        let rest = self.tuning.due.saturating_sub(chunk.pages);
        self.tuning.due = if chunk.pages == 0 { 0 } else { rest };
        chunk
    }

    /// Base pages that the CPU must give back.
    pub(crate) fn due(&self) -> u64 {
        self.tuning.due
    }

    /// Base pages on the lists.
    #[inline]
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// The most base pages that were on the lists.
    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    /// The list of one order and type, or `None` for an order or a type that the lists do not hold.
    #[inline]
    pub(crate) fn list(&self, order: Order, migratetype: Migratetype) -> Option<&FrameList> {
        self.lists.get(order.index())?.get(migratetype.index())
    }

    /// What was returned and is on no list yet: the first block and the base pages.
    pub(crate) fn incoming(&self) -> (FrameIndex, u64) {
        (self.incoming, self.incoming_pages)
    }

    #[inline]
    pub(crate) fn pop<'m>(
        &mut self,
        map: &'m MemoryMap,
        order: Order,
        migratetype: Migratetype,
    ) -> Option<(FrameIndex, &'m Frame)> {
        let list = self.lists.get_mut(order.index())?.get_mut(migratetype.index())?;
        let block = list.pop(map)?;
        if list.is_empty() {
            self.occupied &= !bit(order, migratetype);
        }
        self.pages -= order.pages();
        self.tuning.used = true;
        Some(block)
    }

    /// The block that [`pop`](Self::pop) would give.
    #[inline]
    pub(crate) fn peek(&self, order: Order, migratetype: Migratetype) -> Option<FrameIndex> {
        self.list(order, migratetype)?.first()
    }

    /// Adds a block whose word says [`Kind::Pcp`] already.
    #[inline]
    pub(crate) fn push(
        &mut self,
        map: &MemoryMap,
        block: (FrameIndex, &Frame),
        order: Order,
        migratetype: Migratetype,
    ) {
        let list = self.lists.get_mut(order.index()).and_then(|types| types.get_mut(migratetype.index()));
        debug_assert!(list.is_some(), "no list holds blocks of order {order} and type {migratetype:?}");
        let Some(list) = list else { return };
        list.push(map, block);
        self.occupied |= bit(order, migratetype);
        self.pages += order.pages();
        self.peak = self.peak.max(self.pages);
        self.tuning.used = true;
    }

    /// Adds `blocks` blocks of `order` that lie side by side from `first` on, so that the lowest is popped
    /// first. They are described here.
    pub(crate) fn push_run(
        &mut self,
        map: &MemoryMap,
        first: FrameIndex,
        blocks: u64,
        order: Order,
        migratetype: Migratetype,
    ) {
        let on_list = FrameState::new(Kind::Pcp, order, migratetype);
        let start = map.pfn(first);
        for block in (0..blocks).rev() {
            let index = map.index(start.offset(block << order.get()));
            let frame = map.at(index);
            frame.set_word(on_list);
            self.push(map, (index, frame), order, migratetype);
        }
    }

    /// Adds a block that was freed, on the list of its page block's type. The type may change while the
    /// block is here; a thread that drains the list asks again. Returns false, and adds nothing, where blocks
    /// of the type must go to their zone at once.
    ///
    /// The type is read under the lists' lock. So when a range is isolated and then the lists are drained,
    /// the drain finds every block of the range that was added before, and none is added after it.
    #[inline]
    pub(crate) fn push_released(
        &mut self,
        map: &MemoryMap,
        block: (FrameIndex, &Frame),
        pfn: Pfn,
        order: Order,
    ) -> bool {
        let migratetype = map.block_migratetype(pfn);
        if !migratetype.is_pcp_type() {
            return false;
        }
        block.1.set_word(FrameState::new(Kind::Pcp, order, migratetype));
        self.push(map, block, order, migratetype);
        true
    }

    /// As [`push_released`](Self::push_released), for single pages of `zone`. Returns how many were added: up
    /// to the first that is of another zone, or must go to its zone at once.
    pub(crate) fn push_singles(&mut self, map: &MemoryMap, pages: &[FrameIndex], zone: ZoneId) -> usize {
        let Some(types) = self.lists.first_mut() else { return 0 };
        let mut pushed = 0;
        let mut block = None;
        let mut migratetype = Migratetype::Movable;
        for &index in pages {
            let (frame, pfn) = (map.at(index), map.pfn(index));
            if frame.zone() != zone {
                break;
            }
            let here = pfn.block_start(PAGEBLOCK_ORDER);
            if block != Some(here) {
                block = Some(here);
                migratetype = map.block_migratetype(pfn);
                if migratetype.is_pcp_type() {
                    self.occupied |= bit(Order::ZERO, migratetype);
                }
            }
            let Some(list) = types.get_mut(migratetype.index()) else { break };
            frame.set_word(FrameState::new(Kind::Pcp, Order::ZERO, migratetype));
            list.push(map, (index, frame));
            pushed += 1;
        }
        self.pages += pushed as u64;
        self.peak = self.peak.max(self.pages);
        self.tuning.used = true;
        pushed
    }

    /// Takes the smallest block of a larger order of the type, if there is one, and splits it; so large ones
    /// stay whole. The remainder goes to the lists of the smaller orders.
    pub(crate) fn pop_part(
        &mut self,
        map: &MemoryMap,
        order: Order,
        migratetype: Migratetype,
    ) -> Option<FrameIndex> {
        let larger = Order::ALL.into_iter().filter(|&larger| larger > order);
        let found = larger.into_iter().find(|&larger| self.peek(larger, migratetype).is_some())?;
        let (index, frame) = self.pop(map, found, migratetype)?;
        let start = map.pfn(index);
        let mut size = found;
        while let Some(half) = size.smaller().filter(|_| size > order) {
            size = half;
            self.push_run(map, map.index(start.offset(half.pages())), 1, half, migratetype);
        }
        frame.set_word(FrameState::new(Kind::Pcp, order, migratetype));
        Some(index)
    }

    /// Base pages of one type on the lists, those not counted that were returned and not sorted yet.
    pub(crate) fn pages_of(&self, migratetype: Migratetype) -> u64 {
        let lists = Order::ALL.into_iter().filter_map(|order| Some((order, self.list(order, migratetype)?)));
        lists.into_iter().map(|(order, list)| list.count() * order.pages()).sum()
    }

    /// Takes a chunk of blocks of one type, what was used least recently first, small ones before large ones.
    pub(crate) fn take_type(&mut self, map: &MemoryMap, migratetype: Migratetype) -> Chunk {
        let mut chunk = Chunk::new();
        for order in Order::ALL {
            let lists = self.lists.get_mut(order.index());
            let Some(list) = lists.and_then(|types| types.get_mut(migratetype.index())) else { break };
            let before = chunk.pages;
            list.take_back(map, chunk.room(), |index| chunk.push(index, order.pages()));
            self.pages -= chunk.pages - before;
            if list.is_empty() {
                self.occupied &= !bit(order, migratetype);
            }
        }
        chunk
    }

    /// Takes over what other CPUs returned: blocks of any order and type, linked from `first` on. What came
    /// before is used up.
    pub(crate) fn receive(&mut self, first: FrameIndex, pages: u64) {
        debug_assert_eq!(self.incoming, FrameIndex::NONE, "what was returned before is lost");
        self.incoming = first;
        self.incoming_pages = pages;
        self.pages += pages;
        self.peak = self.peak.max(self.pages);
    }

    /// Base pages that were returned and are on no list yet.
    pub(crate) fn incoming_pages(&self) -> u64 {
        self.incoming_pages
    }

    /// Takes one of the returned blocks.
    pub(crate) fn pop_incoming(&mut self, map: &MemoryMap) -> Option<(FrameIndex, Order)> {
        let index = self.incoming.some()?;
        let frame = map.at(index);
        let order = frame.word().order();
        self.incoming = frame.next();
        self.incoming_pages -= order.pages();
        self.pages -= order.pages();
        Some((index, order))
    }

    /// Takes at least `pages` base pages, or all there are, or as many blocks as a chunk holds; what was used
    /// least recently first. It goes round the lists and takes from each in proportion to what is on it.
    pub(crate) fn take_cold(&mut self, map: &MemoryMap, pages: u64) -> Chunk {
        let mut chunk = Chunk::new();
        while chunk.pages < pages
            && !chunk.is_full()
            && let Some((index, order)) = self.pop_incoming(map)
        {
            chunk.push(index, order.pages());
        }
        let (total, left) = (self.pages.max(1), pages.saturating_sub(chunk.pages));
        while chunk.pages < pages && !chunk.is_full() && self.occupied != 0 {
            let ahead = self.occupied >> self.cursor << self.cursor;
            let number = if ahead == 0 { self.occupied } else { ahead }.trailing_zeros();
            self.cursor = (number + 1) % LISTS as u32;
            let place = number as usize;
            let (order, kind) = (place / Migratetype::PCP_COUNT, place % Migratetype::PCP_COUNT);
            let list = &mut self.lists[order][kind];
            let order = Order::ALL[order];
            let share = (list.count() * left).div_ceil(total).max(1);
            let wanted = (pages - chunk.pages).div_ceil(order.pages());
            let most = share.min(wanted).min(chunk.room());
            let before = chunk.pages;
            list.take_back(map, most, |index| chunk.push(index, order.pages()));
            self.pages -= chunk.pages - before;
            if list.is_empty() {
                self.occupied &= !(1 << number);
            }
        }
        chunk
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::Frames;
    use crate::pcp::PcpTechnique;
    use crate::request::AllocRequest;
    use crate::testing::{Machine, TEST, frames};
    use quire_arch::Platform;
    use std::vec::Vec;

    const UNMOVABLE: Migratetype = Migratetype::Unmovable;

    fn machine() -> Frames<Machine> {
        frames(&[(0, 8192)], 1, PcpTechnique::None)
    }

    /// Lists with so many blocks of each order, and the blocks in the order in which they were pushed.
    fn filled(frames: &Frames<Machine>, counts: &[(u8, usize)]) -> (PcpLists, Vec<(FrameIndex, Order)>) {
        let mut lists = PcpLists::new(PcpLimits::new(PcpTechnique::All, 8192, 100, 1));
        let pin = frames.platform().pin();
        let mut blocks = Vec::new();
        for &(order, count) in counts {
            let order = Order::new(order).unwrap();
            for _ in 0..count {
                let pfn = frames.allocate(&pin, AllocRequest::new(order, TEST)).unwrap();
                let (index, frame) = frames.map().find(pfn).unwrap();
                frame.set_word(FrameState::new(Kind::Pcp, order, UNMOVABLE));
                lists.push(frames.map(), (index, frame), order, UNMOVABLE);
                blocks.push((index, order));
            }
        }
        (lists, blocks)
    }

    fn count(lists: &PcpLists, order: u8) -> u64 {
        lists.list(Order::ALL[order as usize], UNMOVABLE).unwrap().count()
    }

    /// A drain goes round the lists and takes more from the fuller ones.
    #[test]
    fn a_partial_drain_takes_from_each_list_what_it_holds_of_all() {
        let frames = machine();
        let (mut lists, _) = filled(&frames, &[(0, 256), (3, 16), (5, 4)]);
        assert_eq!(lists.pages(), 256 + 128 + 128);
        let chunk = lists.take_cold(frames.map(), 64);
        // A whole block of order 5 is the least that its list can give.
        assert_eq!((chunk.pages, chunk.blocks().len()), (32 + 16 + 32, 32 + 2 + 1));
        assert_eq!([0, 3, 5].map(|order| count(&lists, order)), [256 - 32, 16 - 2, 4 - 1]);
        assert_eq!(lists.pages(), 512 - 80);
    }

    /// No list is skipped forever: the next drain continues where the last one stopped.
    #[test]
    fn small_drains_come_to_every_list_in_turn() {
        let frames = machine();
        let (mut lists, _) = filled(&frames, &[(0, 20), (1, 10), (2, 5)]);
        for _ in 0..3 {
            lists.take_cold(frames.map(), 1);
        }
        assert_eq!([0, 1, 2].map(|order| count(&lists, order)), [19, 9, 4]);
    }

    #[test]
    fn a_drain_takes_the_coldest_and_keeps_order_among_the_rest() {
        let frames = machine();
        let (mut lists, blocks) = filled(&frames, &[(0, 10)]);
        let chunk = lists.take_cold(frames.map(), 4);
        let taken: Vec<FrameIndex> = blocks[..4].iter().map(|&(index, _)| index).collect();
        assert_eq!(chunk.blocks(), taken);
        for &(index, order) in blocks[4..].iter().rev() {
            let popped = lists.pop(frames.map(), order, UNMOVABLE).map(|(popped, _)| popped);
            assert_eq!(popped, Some(index));
        }
        assert!(lists.pop(frames.map(), Order::ZERO, UNMOVABLE).is_none());
        assert_eq!(lists.take_cold(frames.map(), 100).pages, 0);
    }

    #[test]
    fn a_larger_block_is_cut_into_what_its_rest_is_made_of() {
        let frames = machine();
        let (mut lists, blocks) = filled(&frames, &[(4, 1), (6, 1)]);
        let part = lists.pop_part(frames.map(), Order::ALL[1], UNMOVABLE);
        assert_eq!(part, Some(blocks[0].0), "of the smaller of the two");
        assert_eq!([1, 2, 3, 4, 6].map(|order| count(&lists, order)), [1, 1, 1, 0, 1]);
        assert_eq!(lists.pages(), 64 + 16 - 2);
        assert_eq!(lists.pop_part(frames.map(), Order::ZERO, Migratetype::Movable), None);
    }
}
