//! Blocks that leave the lists of a zone, or come back to them, with its lock taken here.

use super::Frames;
use crate::counters::VmEvent;
use crate::map::{FrameIndex, FrameState, Migratetype};
use crate::pcp::{CHUNK_BLOCKS, Chunk};
use crate::request::AllocRequest;
use crate::zone::{Buddy, Zone};
use quire_arch::{Pin, Platform, prefetch};

quire_arch::part_of! {
    /// The zones' lists of free blocks.
    pub(super) struct ZoneBlocks { pub(super) frames: Frames }
}

impl<P: Platform> ZoneBlocks<'_, P> {
    /// From the zone's lists.
    pub(super) fn allocate_buddy(
        self,
        pin: &Pin<'_, P>,
        zone: &Zone<P>,
        request: &AllocRequest,
    ) -> Option<FrameIndex> {
        let AllocRequest { order, migratetype, .. } = *request;
        let given = FrameState::given_out(request.kind, order, migratetype);
        let mut buddy = zone.lock(&self.frames.platform);
        let allowed = allowance(zone, &buddy, request) >= order.pages();
        let events = self.frames.events.mine(pin);
        let index =
            if allowed { buddy.allocate(&self.frames.map, order, migratetype, given, events) } else { None };
        if let Some(index) = index {
            self.reserve_around(zone, &mut buddy, index, request);
            return Some(index);
        }
        drop(buddy);
        self.allocate_reserved(pin, zone, request, given)
    }

    /// From the high-order atomic reserve, for requests that may use it.
    pub(super) fn allocate_reserved(
        self,
        pin: &Pin<'_, P>,
        zone: &Zone<P>,
        request: &AllocRequest,
        given: FrameState,
    ) -> Option<FrameIndex> {
        if !request.atomic {
            return None;
        }
        let mut buddy = zone.lock(&self.frames.platform);
        // What the reserve holds counts as well for a request that may use it.
        let reserved = buddy.free_of(Migratetype::HighAtomic);
        if allowance(zone, &buddy, request).saturating_add(reserved) < request.order.pages() {
            return None;
        }
        buddy.allocate_reserved(&self.frames.map, request.order, given, self.frames.events.mine(pin))
    }

    /// Keeps the page block of a block that was just allocated for the next request of its kind, if the zone
    /// is low: the next one could fail.
    pub(super) fn reserve_around(
        self,
        zone: &Zone<P>,
        buddy: &mut Buddy,
        index: FrameIndex,
        request: &AllocRequest,
    ) {
        if may_reserve(zone, buddy, request) {
            buddy.reserve_block(&self.frames.map, index, request.order, zone.managed());
        }
    }

    /// Frees a chunk that was taken off a CPU's lists.
    pub(super) fn drained(self, pin: &Pin<'_, P>, zone: &Zone<P>, chunk: &Chunk) {
        self.free_to_zone(pin, zone, chunk.blocks());
        self.frames.events.add(pin, VmEvent::PcpDrain, chunk.pages);
    }

    /// Frees `blocks`, which are on no list, to their zone under one hold of its lock.
    pub(super) fn free_to_zone(self, pin: &Pin<'_, P>, zone: &Zone<P>, blocks: &[FrameIndex]) {
        debug_assert!(blocks.len() <= CHUNK_BLOCKS, "a chunk is bounded");
        // Each block will be compared with its buddy. Prefetch their descriptors in parallel, before the lock
        // is taken.
        for &index in blocks {
            let pfn = self.frames.map.pfn(index);
            prefetch(self.frames.map.known(pfn.buddy(self.frames.map.at(index).word().order())));
        }
        let events = self.frames.events.mine(pin);
        let mut buddy = zone.lock(&self.frames.platform);
        for &index in blocks {
            buddy.free_block(&self.frames.map, index, self.frames.map.at(index).word().order(), events);
        }
    }
}

/// Whether the page block of what the request gets will be kept for the next one.
pub(super) fn may_reserve<P: Platform>(zone: &Zone<P>, buddy: &Buddy, request: &AllocRequest) -> bool {
    request.has_reserve() && buddy.available() < zone.levels.get().low
}

/// Frames that the request may take out of the zone before it is at its watermark.
#[inline]
pub(super) fn allowance<P: Platform>(zone: &Zone<P>, buddy: &Buddy, request: &AllocRequest) -> u64 {
    if request.below_min {
        return u64::MAX;
    }
    let (free, mut min) = (buddy.available(), zone.levels.min());
    if request.atomic {
        // Linux: half of it for urgent requests, and a quarter of the rest for those that cannot wait.
        min -= min / 2;
        min -= min / 4;
    }
    let reserve = if request.highest_zone > zone.id.kind() { zone.levels.lowmem_reserve() } else { 0 };
    free.saturating_sub(min + reserve)
}
