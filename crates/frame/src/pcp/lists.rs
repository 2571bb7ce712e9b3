//! One CPU's lists for one zone.

use super::limits::PcpLimits;
use super::tuning::Tuning;
use crate::map::{Frame, FrameIndex, Kind, MemoryMap, Migratetype, Word};
use crate::zone::FrameList;
use quire_arch::{Order, Pfn};

/// Blocks that move between lists and zone under one hold of the zone's lock.
pub(crate) const CHUNK_BLOCKS: usize = 64;

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

    /// More base pages than this are not kept.
    #[inline]
    pub(crate) fn high(&self) -> u64 {
        self.tuning.high
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

    /// Adds `blocks` blocks of `order` that lie side by side from `first` on, so that the lowest is popped first. They
    /// are described here.
    pub(crate) fn push_run(
        &mut self,
        map: &MemoryMap,
        first: FrameIndex,
        blocks: u64,
        order: Order,
        migratetype: Migratetype,
    ) {
        let on_list = Word::new(Kind::Pcp, order, migratetype);
        let start = map.pfn(first);
        for block in (0..blocks).rev() {
            let index = map.index(start.offset(block << order.get()));
            let frame = map.at(index);
            frame.set_word(on_list);
            self.push(map, (index, frame), order, migratetype);
        }
    }

    /// Adds a block that was given back, on the list of its page block's type. The type may change while the block
    /// is here; whoever drains the list asks again. Answers false, and adds nothing, where blocks of the type must go
    /// to their zone at once.
    ///
    /// The type is read under the lists' lock. So when a range is isolated and then the lists are drained, the drain
    /// finds every block of the range that was added before, and none is added after it.
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
        block.1.set_word(Word::new(Kind::Pcp, order, migratetype));
        self.push(map, block, order, migratetype);
        true
    }

    /// Takes a block of a larger order of the type, if there is one, and splits it: what is left over goes to the lists of
    /// the smaller orders. The smallest that there is, so that large ones stay whole.
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
        frame.set_word(Word::new(Kind::Pcp, order, migratetype));
        Some(index)
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

    /// Takes over what other CPUs returned: blocks of any order and type, linked from `first` on.
    pub(crate) fn receive(&mut self, map: &MemoryMap, first: FrameIndex, pages: u64) {
        let before = core::mem::replace(&mut self.incoming, first);
        if before != FrameIndex::NONE {
            // Seldom: the owner uses up what it received before it asks for more.
            let mut last = first;
            while let Some(next) = map.at(last).next().some() {
                last = next;
            }
            map.at(last).set_next(before);
        }
        self.incoming_pages += pages;
        self.pages += pages;
        self.peak = self.peak.max(self.pages);
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

    /// Takes at least `pages` base pages, or all there are, or as many blocks as a chunk holds; what was used least
    /// recently first. It goes round the lists and takes from each in proportion to what is on it.
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
