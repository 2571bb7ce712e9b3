//! Allocating blocks.

use super::Frames;
use super::limbo::REAP_BLOCKS;
use super::refill::{PcpRefill, give_out};
use super::zone_blocks::ZoneBlocks;
use crate::counters::VmEvent;
use crate::error::AllocError;
use crate::fail_points::FailClass;
use crate::map::{Frame, FrameIndex};
use crate::request::{AllocRequest, Zero};
use crate::zone::Zone;
use quire_arch::{Pfn, Pin, Platform};
use quire_sync::atomic::Ordering;

impl<P: Platform> Frames<P> {
    /// Allocates a block. It has one reference, no flags, no maps and the kind that was asked for; the rest
    /// of its descriptor is as the last user left it.
    ///
    /// Takes, one after another, locks of the classes Slab, Limbo, Pcp and Zone, unless the request forbids
    /// draining: then Pcp and Zone only. Never sleeps, and does not reclaim.
    ///
    /// # Errors
    ///
    /// [`AllocError::OutOfMemory`] when every list is empty or at its watermark after all that holds free
    /// memory back (per-CPU lists, limbo, caches, reserves) was drained; [`AllocError::Injected`] by the
    /// fail points. Nothing else was changed.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate(&self, pin: &Pin<'_, P>, request: AllocRequest) -> Result<Pfn, AllocError> {
        self.allocate_inline(pin, request)
    }

    /// As [`allocate`](Self::allocate), as a part of its caller: for a request that is constant there.
    ///
    /// # Errors
    ///
    /// As for [`allocate`](Self::allocate).
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate_inline(&self, pin: &Pin<'_, P>, request: AllocRequest) -> Result<Pfn, AllocError> {
        if self.fail_points.strikes(FailClass::Frames, request.site) {
            return Err(AllocError::Injected);
        }
        self.allocate_quietly(pin, request)
    }

    /// As [`allocate`](Self::allocate), without asking the fail points.
    #[inline(always)]
    pub(super) fn allocate_quietly(
        &self,
        pin: &Pin<'_, P>,
        mut request: AllocRequest,
    ) -> Result<Pfn, AllocError> {
        if let Some(only) = self.only_type {
            request.migratetype = only;
        }
        let (index, frame) = match self.try_list(pin, &request) {
            Some(block) => block,
            None => self.allocate_behind(pin, request).map(|index| (index, self.map.at(index)))?,
        };
        // The block has no anon_vma until its user sets one.
        frame.owner().store(0, Ordering::Relaxed);
        let pfn = self.map.pfn(index);
        match request.zero {
            Zero::No => {}
            // SAFETY: the block has just been allocated to this call alone, and lies in RAM.
            Zero::Kernel => unsafe { self.platform.zero(pfn, request.order) },
            // SAFETY: the block has just been allocated to this call alone, and lies in RAM.
            Zero::User => unsafe { self.platform.zero_user(pfn, request.order) },
        }
        Ok(pfn)
    }

    /// The zones that the request may use from the caller's CPU, the best first.
    #[inline(always)]
    fn zones_for(&self, pin: &Pin<'_, P>, request: &AllocRequest) -> impl Iterator<Item = &Zone<P>> {
        let node = self.platform.node_of_cpu(pin.cpu());
        let highest = request.highest_zone;
        let list = self.zonelists.get(node.index()).map_or(&[][..], |list| list.zones());
        list.iter().filter(move |zone| zone.kind() <= highest).map(|&zone| self.zone(zone))
    }

    /// Pops a block off the CPU's list for the first zone on its zonelist. Most allocations end here. If it
    /// cannot serve the request, it changes nothing.
    #[inline(always)]
    fn try_list(&self, pin: &Pin<'_, P>, request: &AllocRequest) -> Option<(FrameIndex, &Frame)> {
        let zone = self.zones_for(pin, request).next()?;
        if !self.technique.covers(request.order) {
            return None;
        }
        let mut pcp = zone.pcp.mine(pin).lists.lock();
        let (index, frame) = pcp.pop(&self.map, request.order, request.migratetype)?;
        // While this frame is zeroed and mapped, the lines of the one after it can come from memory.
        if request.zero != Zero::No
            && request.order.pages() == 1
            && let Some(next) = pcp.peek(request.order, request.migratetype)
        {
            self.platform.expect_zero(self.map.pfn(next));
        }
        drop(pcp);
        let events = self.events.mine(pin);
        events.add(VmEvent::PcpHit, 1);
        events.add(VmEvent::allocation(zone.id.kind()), request.order.pages());
        give_out(pin, frame, request);
        Some((index, frame))
    }

    /// As [`allocate`](Self::allocate), where the first list has nothing.
    #[cold]
    fn allocate_behind(&self, pin: &Pin<'_, P>, request: AllocRequest) -> Result<FrameIndex, AllocError> {
        match self.try_zones(pin, &request) {
            Some(index) => Ok(index),
            None => self.allocate_slow(pin, &request),
        }
    }

    /// Asks the lists of every zone that the request may use.
    fn try_zones(&self, pin: &Pin<'_, P>, request: &AllocRequest) -> Option<FrameIndex> {
        for zone in self.zones_for(pin, request) {
            let index = if self.technique.covers(request.order) {
                PcpRefill::new(self).allocate_pcp(pin, zone, request)
            } else {
                ZoneBlocks::new(self).allocate_buddy(pin, zone, request)
            };
            if index.is_some() {
                self.events.add(pin, VmEvent::allocation(zone.id.kind()), request.order.pages());
                return index;
            }
        }
        None
    }

    /// Collects what is free but not on the zones' lists until the request finds a block: first what costs
    /// least to get. The caller is pinned, and there may be as much as the machine has pages.
    #[cold]
    fn allocate_slow(&self, pin: &Pin<'_, P>, request: &AllocRequest) -> Result<FrameIndex, AllocError> {
        if !request.may_drain {
            return Err(AllocError::OutOfMemory);
        }
        self.events.add(pin, VmEvent::stall(request.highest_zone), 1);
        if let Some(index) = self.drain_for(pin, request).or_else(|| self.reap_for(pin, request)) {
            return Ok(index);
        }
        self.caches().shrink(pin);
        self.limbo().reap_all(pin);
        self.pcp().drain_all(pin);
        loop {
            if let Some(index) = self.try_zones(pin, request) {
                return Ok(index);
            }
            // Last the reserve, a block at a time. Requests of the kind that it is kept for do not open it
            // for others.
            if request.atomic {
                return Err(AllocError::OutOfMemory);
            }
            let events = self.events.mine(pin);
            let mut zones = self.zones_for(pin, request);
            if !zones.any(|zone| zone.lock(&self.platform).unreserve_block(&self.map, events)) {
                return Err(AllocError::OutOfMemory);
            }
        }
    }

    /// Drains the lists of CPUs, the caller's own first, a chunk at a time, until the request finds a block.
    fn drain_for(&self, pin: &Pin<'_, P>, request: &AllocRequest) -> Option<FrameIndex> {
        for zone in self.zones_for(pin, request) {
            for set in zone.pcp.some(pin.cpu().index(), usize::MAX) {
                let (mut drained, mut bound) = (0, None);
                while self.pcp().drain_some(pin, zone, set, (&mut drained, &mut bound)) {
                    let found = self.try_zones(pin, request);
                    if found.is_some() {
                        return found;
                    }
                }
            }
        }
        None
    }

    /// Frees what CPUs retired, the caller's own first, a portion at a time, until the request finds a block.
    fn reap_for(&self, pin: &Pin<'_, P>, request: &AllocRequest) -> Option<FrameIndex> {
        self.limbo().push_epoch();
        for limbo in self.limbo.some(pin.cpu().index(), usize::MAX) {
            let mut left = limbo.lock().blocks();
            while self.limbo().reap_portion(pin, limbo, u64::from(REAP_BLOCKS), &mut left).is_some() {
                // What is on a list serves requests of its order and type only.
                self.pcp().drain(pin, pin.cpu());
                let found = self.try_zones(pin, request);
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }
}
