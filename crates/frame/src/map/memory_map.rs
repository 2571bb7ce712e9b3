//! Finding descriptors by frame number, frames by address, and the page blocks.

use super::descriptor::{Frame, FrameIndex};
use super::migratetype::Migratetype;
use crate::kind::Kind;
use core::ptr::NonNull;
use quire_arch::{Order, PAGE_SHIFT, Pfn, PfnRange};
use quire_sync::atomic::raw::{AtomicU8, Ordering};

/// Frames of a page block share one migratetype. The order is Linux's on x86-64. That it equals
/// [`Order::PMD`] here is a choice, not a law; nothing relies on it.
pub const PAGEBLOCK_ORDER: Order = Order::ALL[9];

/// Position in a page block's byte of the type that it had before it was reserved or isolated.
const BEFORE_SHIFT: u32 = 4;

/// One range of RAM and where it can be reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RamRange {
    pub(crate) frames: PfnRange,
    pub(crate) first: NonNull<u8>,
}

/// Descriptors that are permuted among themselves, as a power of two: those of a block of the PMD's order.
const GROUP_SHIFT: u32 = 9;
const GROUP: u32 = 1 << GROUP_SHIFT;

/// The most frames from the lowest to the highest. With one descriptor more they fill whole groups, whose number
/// of slots fits in 32 bits, and no slot has the number that ends a list.
pub(super) const MOST_FRAMES: u64 = (u32::MAX - GROUP) as u64;

/// Where in the array the descriptor of a frame lies: within its group of 512, at a place that differs from
/// group to group.
///
/// Were descriptors in the order of frames, those of the first frames of large blocks, which are the ones in
/// use, would lie a power of two apart and share a few sets of each cache: with 32 KiB from one order-9 block
/// to the next, and a second-level cache of 1 MiB in 8 ways, 32 of them would fill it. This way they spread
/// over all sets.
#[inline]
pub(super) const fn slot(index: u32) -> u32 {
    index ^ ((index >> GROUP_SHIFT) & (GROUP - 1))
}

/// Slots for `count` frames and one descriptor more: whole groups, unless the first is not full.
pub(super) const fn slots(count: u32) -> usize {
    let needed = count as usize + 1;
    if needed <= GROUP as usize { needed } else { needed.next_multiple_of(GROUP as usize) }
}

/// The descriptors of a machine, one for each frame from its lowest to its highest. Frames between two ranges
/// of RAM have one too ([`Kind::Hole`]), so that finding a descriptor is one subtraction.
#[derive(Debug)]
pub struct MemoryMap {
    base: Pfn,
    count: u32,
    /// Descriptors in the array.
    slots: u32,
    /// The slot of the descriptor for frames outside.
    outside: u32,
    /// `count` descriptors, one more of kind `Hole` that stands for every frame outside, and what fills the
    /// last group up; each in its [`slot`].
    frames: NonNull<Frame>,
    blocks: NonNull<AtomicU8>,
    block_count: usize,
    /// The number of the first page block.
    first_block: u64,
    ranges: NonNull<RamRange>,
    range_count: usize,
}

// SAFETY: the pointers lead to memory that the map owns for as long as it lives; descriptors and block types
// are atomics, and the ranges are never written after the map was made.
unsafe impl Send for MemoryMap {}
// SAFETY: as for `Send`.
unsafe impl Sync for MemoryMap {}

/// The arrays that a map is made of, as carved at boot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrays {
    pub(crate) frames: NonNull<Frame>,
    pub(crate) blocks: NonNull<AtomicU8>,
    pub(crate) ranges: NonNull<RamRange>,
    pub(crate) range_count: usize,
}

impl MemoryMap {
    /// Page blocks that `count` frames from `base` touch.
    pub(crate) fn blocks_of(base: Pfn, count: u32) -> usize {
        let first = base.0 >> PAGEBLOCK_ORDER.get();
        let last = (base.0 + u64::from(count) - 1) >> PAGEBLOCK_ORDER.get();
        (last - first + 1) as usize
    }

    /// # Safety
    ///
    /// `arrays` holds [`slots`]`(count)` descriptors, of which those past the first `count` are holes,
    /// `blocks_of(base, count)` block types and `range_count` ranges, all initialised, aligned and used by no
    /// other thread while the map lives. The ranges lie within `count` frames from `base` and are what the
    /// platform's direct map says.
    pub(crate) unsafe fn new(base: Pfn, count: u32, arrays: Arrays) -> Self {
        Self {
            base,
            count,
            slots: slots(count) as u32,
            outside: slot(count),
            frames: arrays.frames,
            blocks: arrays.blocks,
            block_count: Self::blocks_of(base, count),
            first_block: base.0 >> PAGEBLOCK_ORDER.get(),
            ranges: arrays.ranges,
            range_count: arrays.range_count,
        }
    }

    /// All frames from the lowest to the highest, holes included.
    pub fn span(&self) -> PfnRange {
        PfnRange::new(self.base, self.base.offset(u64::from(self.count)))
    }

    /// The descriptor of `pfn`, or `None` where no RAM is.
    #[inline]
    pub fn frame(&self, pfn: Pfn) -> Option<&Frame> {
        let frame = self.known(pfn);
        if frame.kind() == Kind::Hole { None } else { Some(frame) }
    }

    /// The descriptor of a frame that is known to be RAM. For any other the result is a hole's descriptor,
    /// which refuses everything.
    #[inline]
    pub fn known(&self, pfn: Pfn) -> &Frame {
        self.known_block(pfn).1
    }

    /// The same, with its index.
    #[inline]
    pub(crate) fn known_block(&self, pfn: Pfn) -> (FrameIndex, &Frame) {
        let place = slot(pfn.0.wrapping_sub(self.base.0).min(u64::from(self.count)) as u32);
        // SAFETY: `frames` has slots for `count + 1` descriptors (`new`).
        (FrameIndex(place), unsafe { self.frames.add(place as usize).as_ref() })
    }

    /// The descriptor at `index`.
    #[inline]
    pub(crate) fn at(&self, index: FrameIndex) -> &Frame {
        let place = if index.0 < self.slots { index.0 } else { self.outside };
        // SAFETY: `frames` has `slots` descriptors, and one of them is that for frames outside (`new`).
        unsafe { self.frames.add(place as usize).as_ref() }
    }

    /// The frame at `index`.
    #[inline]
    pub(crate) fn pfn(&self, index: FrameIndex) -> Pfn {
        self.base.offset(u64::from(slot(index.0)))
    }

    /// The index of a frame inside the span.
    #[inline]
    pub(crate) fn index(&self, pfn: Pfn) -> FrameIndex {
        debug_assert!(self.span().contains(pfn));
        FrameIndex(slot((pfn.0 - self.base.0) as u32))
    }

    /// The index of `pfn`, or `None` outside the span.
    #[inline]
    pub(crate) fn checked_index(&self, pfn: Pfn) -> Option<FrameIndex> {
        let offset = pfn.0.wrapping_sub(self.base.0);
        (offset < u64::from(self.count)).then_some(FrameIndex(slot(offset as u32)))
    }

    /// The index of `pfn` with its descriptor, or `None` outside the span.
    #[inline]
    pub(crate) fn find(&self, pfn: Pfn) -> Option<(FrameIndex, &Frame)> {
        let offset = pfn.0.wrapping_sub(self.base.0);
        if offset >= u64::from(self.count) {
            return None;
        }
        let place = slot(offset as u32);
        // SAFETY: the slots of the first `count` frames lie in the array (`new`).
        Some((FrameIndex(place), unsafe { self.frames.add(place as usize).as_ref() }))
    }

    /// Every frame of the span with its descriptor, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = (Pfn, &Frame)> {
        (0..self.count).map(|number| {
            let index = FrameIndex(slot(number));
            (self.pfn(index), self.at(index))
        })
    }

    #[inline]
    fn blocks(&self) -> &[AtomicU8] {
        // SAFETY: `blocks` holds `block_count` initialised bytes (`new`).
        unsafe { core::slice::from_raw_parts(self.blocks.as_ptr(), self.block_count) }
    }

    #[inline]
    fn block_of(&self, pfn: Pfn) -> Option<&AtomicU8> {
        self.blocks().get((pfn.0 >> PAGEBLOCK_ORDER.get()).wrapping_sub(self.first_block) as usize)
    }

    /// The migratetype of the page block that holds `pfn`. It changes under the zone's lock only; read
    /// without that lock it is a hint, which must be read again before anything is decided on it.
    #[inline]
    pub fn block_migratetype(&self, pfn: Pfn) -> Migratetype {
        self.block_of(pfn).map_or(Migratetype::Movable, |block| {
            Migratetype::from_bits(u64::from(block.load(Ordering::Relaxed)))
        })
    }

    /// The byte of a page block of type `migratetype`.
    pub(super) const fn block_byte(migratetype: Migratetype) -> u8 {
        migratetype as u8 | (migratetype as u8) << BEFORE_SHIFT
    }

    /// Changes a page block's type, under the zone's lock. A temporary type keeps the previous one
    /// remembered; see [`block_before`](Self::block_before).
    pub(crate) fn set_block_migratetype(&self, pfn: Pfn, migratetype: Migratetype) {
        if let Some(block) = self.block_of(pfn) {
            let now = block.load(Ordering::Relaxed);
            let kept = if migratetype.is_pcp_type() { migratetype as u8 } else { now >> BEFORE_SHIFT };
            block.store(migratetype as u8 | kept << BEFORE_SHIFT, Ordering::Relaxed);
        }
    }

    /// The type of requests that a page block last belonged to, which is its own unless it is reserved or
    /// isolated.
    pub(crate) fn block_before(&self, pfn: Pfn) -> Migratetype {
        self.block_of(pfn).map_or(Migratetype::Movable, |block| {
            Migratetype::from_bits(u64::from(block.load(Ordering::Relaxed) >> BEFORE_SHIFT))
        })
    }

    /// The ranges of RAM.
    pub(crate) fn ranges(&self) -> &[RamRange] {
        // SAFETY: `ranges` holds `range_count` initialised elements (`new`).
        unsafe { core::slice::from_raw_parts(self.ranges.as_ptr(), self.range_count) }
    }

    /// The frame whose bytes `address` lies in, by the direct map.
    #[inline]
    pub fn pfn_of_address(&self, address: usize) -> Option<Pfn> {
        self.ranges().iter().find_map(|range| {
            let frames = (address.wrapping_sub(range.first.addr().get()) as u64) >> PAGE_SHIFT;
            (frames < range.frames.len()).then(|| range.frames.start().offset(frames))
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_frame_has_a_slot_of_its_own_inside_the_array() {
        for count in [1, 511, 512, 513, 1024, 5000] {
            let places: BTreeSet<u32> = (0..=count).map(slot).collect();
            assert_eq!(places.len(), count as usize + 1);
            assert!(places.into_iter().all(|place| (place as usize) < slots(count)), "{count}");
            assert!((0..=count).all(|index| slot(slot(index)) == index));
        }
    }

    /// A hazard of docs/hazards.md: "the largest machine has no slots". As large as it gets, the number of
    /// slots fits in a descriptor's links, and so does each slot beside the end of a list.
    #[test]
    fn the_largest_span_has_slots_for_all_its_frames() {
        let count = u32::try_from(MOST_FRAMES).unwrap();
        let places = slots(count);
        assert!(places < FrameIndex::NONE.0 as usize);
        for index in count - 5000..=count {
            assert!((slot(index) as usize) < places && slot(index) != FrameIndex::NONE.0, "{index}");
        }
        // One more would not do.
        assert!(u32::try_from(slots(count + 1)).is_err());
    }

    /// Sets of a cache of 64 sets that the first descriptors of 64 neighbouring blocks fall into.
    #[test]
    fn descriptors_of_large_blocks_do_not_share_a_few_sets() {
        let sets = |order: u32| {
            let blocks = (0..1u32 << 15).step_by(1 << order).map(|index| slot(index) % 64);
            blocks.collect::<BTreeSet<u32>>().len()
        };
        assert!((0..=9).all(|order| sets(order) == 64), "{:?}", [sets(0), sets(3), sets(9)]);
    }
}
