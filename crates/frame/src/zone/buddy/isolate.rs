//! Isolated page blocks: their free memory is not allocated, because their range is about to go offline.

use super::Buddy;
use crate::counters::EventSet;
use crate::kind::Kind;
use crate::map::{FrameIndex, FrameState, MemoryMap, Migratetype, PAGEBLOCK_ORDER};
use quire_arch::{Order, Pfn, PfnRange};

impl Buddy {
    /// Isolates the page block `block`: from now on nothing of it is allocated, and what is freed stays in
    /// it.
    pub(crate) fn isolate_block(&mut self, map: &MemoryMap, block: PfnRange) {
        self.split_around(map, block);
        self.move_free(map, block, Migratetype::Isolate);
        self.change_blocks(map, block, Migratetype::Isolate);
    }

    /// Undoes [`isolate_block`](Self::isolate_block): what is free in the block can be allocated again.
    pub(crate) fn restore_block(&mut self, map: &MemoryMap, block: PfnRange, events: &EventSet) {
        let before = map.block_before(block.start());
        self.split_around(map, block);
        self.change_blocks(map, block, before);
        // Freed again, piece by piece, so that it merges with its neighbours.
        let mut pfn = block.start();
        while pfn < block.end() {
            let index = map.checked_index(pfn).filter(|&index| map.at(index).kind() == Kind::Free);
            let Some(index) = index else {
                pfn = pfn.offset(1);
                continue;
            };
            let word = map.at(index).word();
            self.unlink(map, index, word.order(), word.migratetype());
            map.at(index).set_word(FrameState::new(Kind::Gathered, word.order(), before));
            self.free_block(map, index, word.order(), events);
            pfn = pfn.offset(word.order().pages());
        }
    }

    /// The first frame of an isolated `block` that is neither on the lists of isolated memory nor out of use,
    /// if there is one: another thread has it, or it is on its way.
    pub(crate) fn first_busy(&self, map: &MemoryMap, block: PfnRange) -> Option<Pfn> {
        let mut pfn = block.start();
        while pfn < block.end() {
            let word = map.known(pfn).word();
            pfn = match word.kind() {
                Kind::Free if word.migratetype() == Migratetype::Isolate => pfn.offset(word.order().pages()),
                Kind::Offline | Kind::Hole => pfn.offset(1),
                // Inside a free block of several page blocks.
                Kind::Tail if self.is_isolated_inside(map, pfn) => block.end(),
                _ => return Some(pfn),
            };
        }
        None
    }

    /// Takes all frames of an isolated block that is wholly free out of use, and returns their number.
    pub(crate) fn remove_block(&mut self, map: &MemoryMap, block: PfnRange) -> u64 {
        self.split_around(map, block);
        let mut removed = 0;
        let mut pfn = block.start();
        while pfn < block.end() {
            let word = map.known(pfn).word();
            if word.kind() != Kind::Free {
                pfn = pfn.offset(1);
                continue;
            }
            let pages = word.order().pages();
            self.unlink(map, map.index(pfn), word.order(), word.migratetype());
            for frame in (pfn.0..pfn.0 + pages).map(Pfn) {
                map.known(frame).set_word(FrameState::new(
                    Kind::Offline,
                    Order::ZERO,
                    Migratetype::Unmovable,
                ));
            }
            removed += pages;
            pfn = pfn.offset(pages);
        }
        removed
    }

    /// Takes all frames of an isolated block into use again, and returns their number.
    pub(crate) fn return_block(&mut self, map: &MemoryMap, block: PfnRange, events: &EventSet) -> u64 {
        let before = map.block_before(block.start());
        self.change_blocks(map, block, before);
        let frames = (block.start().0..block.end().0).map(Pfn);
        let mut returned = 0;
        for pfn in frames.filter(|&pfn| map.known(pfn).kind() == Kind::Offline) {
            map.known(pfn).set_word(FrameState::new(Kind::Gathered, Order::ZERO, before));
            self.free_block(map, map.index(pfn), Order::ZERO, events);
            returned += 1;
        }
        returned
    }

    /// Splits a free block that is larger than a page block where it reaches out of `block`, so that the type
    /// of the one can change without the other's.
    pub(super) fn split_around(&mut self, map: &MemoryMap, block: PfnRange) {
        let Some((index, order)) = self.covering(map, block.start()) else { return };
        let migratetype = map.at(index).word().migratetype();
        self.unlink(map, index, order, migratetype);
        let (start, end) = (map.pfn(index), map.pfn(index).offset(order.pages()));
        let mut piece = start;
        while piece < end {
            self.push(map, map.index(piece), PAGEBLOCK_ORDER, migratetype);
            piece = piece.offset(PAGEBLOCK_ORDER.pages());
        }
    }

    /// Whether `pfn` lies in a free block of several page blocks that are all isolated.
    fn is_isolated_inside(&self, map: &MemoryMap, pfn: Pfn) -> bool {
        let covering = self.covering(map, pfn);
        covering.is_some_and(|(index, _)| map.at(index).word().migratetype() == Migratetype::Isolate)
    }

    /// The free block of more than a page block that covers `pfn`.
    fn covering(&self, map: &MemoryMap, pfn: Pfn) -> Option<(FrameIndex, Order)> {
        let larger = Order::ALL.into_iter().filter(|&order| order > PAGEBLOCK_ORDER);
        larger.into_iter().find_map(|order| {
            let index = map.checked_index(pfn.block_start(order))?;
            map.at(index).word().is_free_block(order).then_some((index, order))
        })
    }
}

/// The page blocks of `range`, which is made of whole ones.
pub(crate) fn page_blocks(range: PfnRange) -> impl Iterator<Item = PfnRange> {
    let size = PAGEBLOCK_ORDER.pages();
    (range.start().0..range.end().0)
        .step_by(size as usize)
        .map(move |start| PfnRange::new(Pfn(start), Pfn(start + size)))
}
