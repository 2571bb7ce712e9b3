//! Fallback: a request whose own migratetype has nothing takes from another type's blocks.
//!
//! As in Linux, the largest block is taken first, so that the damage stays in few page blocks, and where the
//! piece is large or the type is one that must not be scattered, the whole page block changes its type,
//! provided that at least half of it is free or in use by the same type. A small movable request takes the
//! smallest piece there is instead and leaves the block's type alone. Linux estimates what is in use from the
//! kind of page; here every given-out frame carries the type of its request, so the count is exact.

use super::Buddy;
use crate::counters::{EventSet, VmEvent};
use crate::kind::Kind;
use crate::map::{FrameIndex, FrameState, MemoryMap, Migratetype, PAGEBLOCK_ORDER};
use quire_arch::{Order, Pfn, PfnRange};

/// From this order on a fallback may claim the whole page block.
const LARGE_PIECE: Order = Order::ALL[PAGEBLOCK_ORDER.index() / 2];

/// The contents of a page block.
#[derive(Clone, Copy, Debug, Default)]
struct BlockUse {
    free: u64,
    /// In use on behalf of the type that wants the block.
    alike: u64,
}

impl Buddy {
    /// Takes a block of `order` for `wanted` from the lists of another type.
    #[cold]
    pub(super) fn fall_back(
        &mut self,
        map: &MemoryMap,
        order: Order,
        wanted: Migratetype,
        events: &EventSet,
    ) -> Option<FrameIndex> {
        let largest = Order::ALL.into_iter().rev().take_while(|&size| size >= order);
        let (size, other) = self.first_fallback(largest, wanted)?;
        let may_take_block = size >= LARGE_PIECE || wanted != Migratetype::Movable;
        let (size, other) = if may_take_block {
            (size, other)
        } else {
            let smallest = Order::ALL.into_iter().skip_while(|&size| size < order);
            self.first_fallback(smallest, wanted)?
        };
        let index = self.list(size, other).first()?;
        events.add(VmEvent::Extfrag, 1);
        if size < PAGEBLOCK_ORDER {
            self.note_mixed();
        }
        if may_take_block {
            self.take_over(map, index, size, wanted, events);
        }
        // The list that it is on now.
        let list = map.at(index).word().migratetype();
        self.take(map, index, (size, list), order, events);
        Some(index)
    }

    /// The first of `orders` at which a type that `wanted` may take from has a block.
    fn first_fallback(
        &self,
        mut orders: impl Iterator<Item = Order>,
        wanted: Migratetype,
    ) -> Option<(Order, Migratetype)> {
        orders.find_map(|order| {
            let other = wanted.fallbacks().iter().find(|&&other| !self.list(order, other).is_empty())?;
            Some((order, *other))
        })
    }

    /// Tries to turn the page block or blocks of the free block at `index` into `wanted`'s; moves all that is
    /// free in them to the lists of `wanted`. Nothing changes if too much of it is in use by other types.
    fn take_over(
        &mut self,
        map: &MemoryMap,
        index: FrameIndex,
        size: Order,
        wanted: Migratetype,
        events: &EventSet,
    ) {
        let pfn = map.pfn(index);
        let frames = if size >= PAGEBLOCK_ORDER {
            PfnRange::new(pfn, pfn.offset(size.pages()))
        } else {
            let start = pfn.block_start(PAGEBLOCK_ORDER);
            let found = Self::block_use(map, start, wanted);
            if found.free + found.alike < PAGEBLOCK_ORDER.pages() / 2 {
                return;
            }
            PfnRange::new(start, start.offset(PAGEBLOCK_ORDER.pages()))
        };
        self.move_free(map, frames, wanted);
        self.change_blocks(map, frames, wanted);
        events.add(VmEvent::PageblockSteal, frames.len() >> PAGEBLOCK_ORDER.get());
    }

    /// Calls `visit` with the frames of the page block at `start`, and their words; of a free block with the
    /// first frame only.
    ///
    /// The zone's lock keeps the words of free blocks as they are, and no others: a folio may be split
    /// meanwhile, and a part of it freed before its first frame has its new order. So all frames that are in
    /// use are looked at.
    fn visit_block(map: &MemoryMap, start: Pfn, mut visit: impl FnMut(Pfn, FrameIndex, FrameState)) {
        let mut pfn = start;
        let end = start.offset(PAGEBLOCK_ORDER.pages());
        while pfn < end {
            // A block of RAM may begin or end inside a page block.
            let Some(index) = map.checked_index(pfn) else {
                pfn = pfn.offset(1);
                continue;
            };
            let word = map.at(index).word();
            visit(pfn, index, word);
            pfn = pfn.offset(if word.kind() == Kind::Free { word.order().pages() } else { 1 });
        }
    }

    fn block_use(map: &MemoryMap, start: Pfn, wanted: Migratetype) -> BlockUse {
        let mut found = BlockUse::default();
        // Where the block in use ends that began last.
        let mut alike_until = start;
        Self::visit_block(map, start, |pfn, _, word| {
            if word.kind() == Kind::Free {
                found.free += word.order().pages();
                return;
            }
            if word.kind().is_head() && word.migratetype() == wanted {
                alike_until = alike_until.max(pfn.offset(word.order().pages()));
            }
            found.alike += u64::from(pfn < alike_until);
        });
        found
    }

    /// Moves the free blocks of `frames` to the lists of `wanted`.
    pub(super) fn move_free(&mut self, map: &MemoryMap, frames: PfnRange, wanted: Migratetype) {
        let mut start = frames.start();
        while start < frames.end() {
            Self::visit_block(map, start, |_, index, word| {
                if word.kind() == Kind::Free && word.migratetype() != wanted {
                    self.unlink(map, index, word.order(), word.migratetype());
                    self.push(map, index, word.order(), wanted);
                }
            });
            start = start.offset(PAGEBLOCK_ORDER.pages());
        }
    }
}
