//! Giving blocks out.

use super::Frames;
use crate::counters::VmEvent;
use crate::error::AllocError;
use crate::faults::FaultClass;
use crate::map::{FrameIndex, Kind, Word};
use crate::pcp::PcpLists;
use crate::request::AllocRequest;
use crate::zone::{Zone, ZoneKind};
use quire_arch::{Pfn, Pin, Platform};

impl VmEvent {
    const fn allocation(zone: ZoneKind) -> Self {
        match zone {
            ZoneKind::Dma32 => Self::PgallocDma32,
            ZoneKind::Normal => Self::PgallocNormal,
        }
    }
}

impl<P: Platform> Frames<P> {
    /// Allocates a block. It has one reference, no flags, no maps and the kind that was asked for; the rest of its
    /// descriptor is whatever the last user left.
    ///
    /// Takes, one after another, locks of the classes Slab, Limbo, Pcp and Zone, unless the request forbids to
    /// drain: then Pcp and Zone only.
    ///
    /// # Errors
    ///
    /// [`AllocError::OutOfMemory`] when every list is empty or at its watermark after all that holds free memory
    /// back (per-CPU lists, limbo, slabs) was drained; [`AllocError::Injected`] by the fault plan. Nothing else was
    /// changed.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate(&self, pin: &Pin<'_, P>, request: AllocRequest) -> Result<Pfn, AllocError> {
        if self.faults.strikes(FaultClass::Frames, request.site) {
            return Err(AllocError::Injected);
        }
        let index = match self.try_zones(pin, &request) {
            Some(index) => index,
            None => self.allocate_slow(pin, &request)?,
        };
        let pfn = self.map.pfn(index);
        if request.zero {
            // SAFETY: the block has just been given out to this call alone, and lies in RAM.
            unsafe { self.platform.zero(pfn, request.order) };
        }
        Ok(pfn)
    }

    /// Asks the lists of every zone that the request may use, highest zone first.
    #[inline]
    fn try_zones(&self, pin: &Pin<'_, P>, request: &AllocRequest) -> Option<FrameIndex> {
        let mut lower = ZoneKind::ALL.into_iter().rev().skip_while(|&zone| zone > request.highest_zone);
        lower.find_map(|kind| {
            let zone = self.zone(kind);
            if zone.managed == 0 {
                return None;
            }
            let index = if self.technique.covers(request.order) {
                self.allocate_pcp(pin, zone, request)
            } else {
                self.allocate_buddy(pin, zone, request)
            }?;
            self.events.add(pin, VmEvent::allocation(kind), request.order.pages());
            Some(index)
        })
    }

    /// From the CPU's lists, which are refilled if need be.
    #[inline]
    fn allocate_pcp(&self, pin: &Pin<'_, P>, zone: &Zone<P>, request: &AllocRequest) -> Option<FrameIndex> {
        let mut pcp = self.pcp.mine(pin).zone(zone.kind).lock();
        let index = match pcp.pop(&self.map, request.order, request.migratetype) {
            Some(index) => {
                self.events.add(pin, VmEvent::PcpHit, 1);
                index
            }
            None => self.refill(pin, zone, &mut pcp, request)?,
        };
        // While this frame is zeroed and mapped, the lines of the one after it can come from memory.
        if request.zero
            && request.order.pages() == 1
            && let Some(next) = pcp.peek(request.order, request.migratetype)
        {
            self.platform.expect_zero(self.map.pfn(next));
        }
        drop(pcp);
        self.map.at(index).set_word(Word::given_out(request.kind, request.order, request.migratetype));
        Some(index)
    }

    /// Moves a batch of blocks from the zone to the CPU's lists and returns one more.
    #[cold]
    fn refill(
        &self,
        pin: &Pin<'_, P>,
        zone: &Zone<P>,
        pcp: &mut PcpLists,
        request: &AllocRequest,
    ) -> Option<FrameIndex> {
        let AllocRequest { order, migratetype, .. } = *request;
        self.events.add(pin, VmEvent::PcpMiss, 1);
        let blocks = (pcp.limits().batch >> order.get()).max(1);
        let on_list = Word::new(Kind::Pcp, order, migratetype);
        let events = self.events.mine(pin);
        let mut buddy = zone.buddy.lock();
        let mut last = None;
        for _ in 0..blocks {
            if !Self::above_watermark(zone, buddy.free(), request) {
                break;
            }
            let Some(index) = buddy.allocate(&self.map, order, migratetype, on_list, events) else { break };
            if let Some(before) = last.replace(index) {
                pcp.push(&self.map, before, order, migratetype);
            }
        }
        zone.publish_free(&buddy);
        last
    }

    /// From the zone's lists.
    fn allocate_buddy(&self, pin: &Pin<'_, P>, zone: &Zone<P>, request: &AllocRequest) -> Option<FrameIndex> {
        let AllocRequest { order, migratetype, .. } = *request;
        let mut buddy = zone.buddy.lock();
        if !Self::above_watermark(zone, buddy.free(), request) {
            return None;
        }
        let given = Word::given_out(request.kind, order, migratetype);
        let index = buddy.allocate(&self.map, order, migratetype, given, self.events.mine(pin))?;
        zone.publish_free(&buddy);
        Some(index)
    }

    /// Whether the zone with `free` frames may serve the request.
    #[inline]
    fn above_watermark(zone: &Zone<P>, free: u64, request: &AllocRequest) -> bool {
        if request.below_min {
            return true;
        }
        let reserve = if request.highest_zone > zone.kind { zone.lowmem_reserve } else { 0 };
        free >= zone.watermarks.min + reserve + request.order.pages()
    }

    /// Collects what is free but not on the zones' lists, and asks again: first what costs least to get.
    #[cold]
    fn allocate_slow(&self, pin: &Pin<'_, P>, request: &AllocRequest) -> Result<FrameIndex, AllocError> {
        if !request.may_drain {
            return Err(AllocError::OutOfMemory);
        }
        self.events.add(pin, VmEvent::Allocstall, 1);
        self.drain_all(pin);
        if let Some(index) = self.try_zones(pin, request) {
            return Ok(index);
        }
        self.caches.shrink(self, pin);
        self.reap_all(pin);
        self.drain_all(pin);
        self.try_zones(pin, request).ok_or(AllocError::OutOfMemory)
    }
}
