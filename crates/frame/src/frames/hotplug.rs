//! Taking a range of frames offline, and online again, while the machine runs.
//!
//! 1. Each page block of the range is isolated, under its zone's lock: its free memory moves to lists that
//!    serve no allocation, and so does what is freed from then on.
//! 2. The CPUs' lists are drained: of each as many pages as it has at first. From then on no block of the
//!    range gets on a list, since the block's type is read under the lock of the list
//!    ([`PcpLists::push_released`](crate::pcp::PcpLists::push_released)). While its CPU frees much meanwhile,
//!    some of what was there may stay in place of that; it counts as in use.
//! 3. Slabs and limbo free what they can, and the lists are drained once more: a CPU that read the type
//!    before the first step and bypasses the lists
//!    ([`Surplus::return_or_free`](super::surplus::Surplus::return_or_free)) may have returned a block to a
//!    CPU since. A block returned even later counts as in use.
//! 4. If every frame of the range is on the lists of isolated memory now, they leave their zone. If one is
//!    not, everything is undone and the caller learns which.
//!
//! One lock lets one range come or go at a time, so no thread undoes the isolation between the look and the
//! removal.

use super::Frames;
use super::boot::{set_levels, zone_of_block};
use crate::error::HotplugError;
use crate::kind::Kind;
use crate::map::PAGEBLOCK_ORDER;
use crate::pcp::PcpLimits;
use crate::zone::{Zone, page_blocks};
use quire_arch::{Pfn, PfnRange, Pin, Platform};

quire_arch::part_of! {
    /// Frames that come into use, or go out of it, while the machine runs.
    pub struct FrameHotplug { pub(super) frames: Frames }
}

impl<'f, P: Platform> FrameHotplug<'f, P> {
    /// Takes the frames of `range` out of use and returns how many. They have no owner afterwards, until
    /// [`bring_online`](Self::bring_online). Other CPUs may allocate and free meanwhile.
    ///
    /// # Errors
    ///
    /// [`HotplugError`]; the range is in use as before, but page blocks that were in the high-order atomic
    /// reserve are ordinary ones. After [`HotplugError::Busy`] a retry may succeed: nothing is migrated, so
    /// users of the range's frames must have freed them, and a CPU that frees much meanwhile may have kept
    /// one on its lists.
    ///
    /// The caller is pinned, and all of it takes as long as the range is large, and as CPUs, slabs and
    /// readers hold memory back: a large range is taken in parts, e.g. of 128 MiB as by Linux.
    pub fn take_offline(self, pin: &Pin<'_, P>, range: PfnRange) -> Result<u64, HotplugError> {
        let _one = self.frames.hotplug.try_lock().ok_or(HotplugError::Underway)?;
        self.check_range(range)?;
        for block in page_blocks(range) {
            if let Some(zone) = self.zone_at(block) {
                zone.lock(&self.frames.platform).isolate_block(&self.frames.map, block);
            }
        }
        self.frames.pcp().drain_all(pin);
        self.frames.caches().shrink(pin);
        self.frames.limbo().reap_all(pin);
        self.frames.pcp().drain_all(pin);
        // What is isolated and free stays so: no thread can get it.
        let busy = page_blocks(range).find_map(|block| {
            let zone = self.zone_at(block)?;
            zone.lock(&self.frames.platform).first_busy(&self.frames.map, block)
        });
        if let Some(pfn) = busy {
            self.restore(pin, range);
            return Err(HotplugError::Busy(pfn));
        }
        let mut removed = 0;
        for block in page_blocks(range) {
            if let Some(zone) = self.zone_at(block) {
                let mut zone = zone.lock(&self.frames.platform);
                let frames = zone.remove_block(&self.frames.map, block);
                zone.remove_frames(frames);
                removed += frames;
            }
        }
        self.reset_levels();
        Ok(removed)
    }

    /// Takes the frames of `range` into use again that [`take_offline`](Self::take_offline) took out of it,
    /// and returns how many. The range may be a part of what was taken.
    ///
    /// # Errors
    ///
    /// [`HotplugError`]; nothing was changed.
    pub fn bring_online(self, pin: &Pin<'_, P>, range: PfnRange) -> Result<u64, HotplugError> {
        let _one = self.frames.hotplug.try_lock().ok_or(HotplugError::Underway)?;
        self.check_frames(range, |pfn, kind| match kind {
            Kind::Offline => Ok(()),
            _ => Err(HotplugError::Online(pfn)),
        })?;
        let mut returned = 0;
        for block in page_blocks(range) {
            let Some(zone) = self.zone_at(block) else { continue };
            let mut zone = zone.lock(&self.frames.platform);
            let frames = zone.return_block(&self.frames.map, block, self.frames.events.mine(pin));
            zone.add_frames(frames);
            returned += frames;
        }
        self.reset_levels();
        Ok(returned)
    }

    /// Makes isolated blocks ordinary ones again.
    fn restore(self, pin: &Pin<'_, P>, range: PfnRange) {
        for block in page_blocks(range) {
            if let Some(zone) = self.zone_at(block) {
                let events = self.frames.events.mine(pin);
                zone.lock(&self.frames.platform).restore_block(&self.frames.map, block, events);
            }
        }
    }

    /// The zone of a page block, or `None` if it is all hole.
    fn zone_at(self, block: PfnRange) -> Option<&'f Zone<P>> {
        zone_of_block(&self.frames.map, block.start()).map(|id| self.frames.zone(id))
    }

    /// Whether the range can be taken out of use at all.
    fn check_range(self, range: PfnRange) -> Result<(), HotplugError> {
        self.check_frames(range, |pfn, kind| match kind {
            Kind::Reserved => Err(HotplugError::Reserved(pfn)),
            Kind::Offline => Err(HotplugError::Offline(pfn)),
            _ => Ok(()),
        })
    }

    /// Asks `check` about every frame of RAM in `range`, which must be made of whole page blocks and hold
    /// some.
    fn check_frames(
        self,
        range: PfnRange,
        check: impl Fn(Pfn, Kind) -> Result<(), HotplugError>,
    ) -> Result<(), HotplugError> {
        if !range.start().is_aligned(PAGEBLOCK_ORDER) || !range.end().is_aligned(PAGEBLOCK_ORDER) {
            return Err(HotplugError::Unaligned);
        }
        let span = self.frames.map.span();
        // Clamped to what exists: the range may come from a user.
        let inside = range.start() >= span.start().block_start(PAGEBLOCK_ORDER)
            && range.end().0.saturating_sub(PAGEBLOCK_ORDER.pages()) < span.end().0;
        if !inside {
            return Err(HotplugError::NoRam);
        }
        let mut ram = false;
        for pfn in (range.start().0..range.end().0).map(Pfn) {
            match self.frames.map.known(pfn).kind() {
                Kind::Hole => {}
                kind => {
                    check(pfn, kind)?;
                    ram = true;
                }
            }
        }
        if ram { Ok(()) } else { Err(HotplugError::NoRam) }
    }

    /// Recomputes the watermarks and the bounds of the CPUs' lists, after a zone gained or lost frames.
    fn reset_levels(self) {
        set_levels(&self.frames.zones, self.frames.min_free_kib);
        let cpus = self.frames.platform.cpu_count() as u64;
        for zone in self.frames.zones.populated() {
            let low = zone.levels.get().low;
            let limits = PcpLimits::new(self.frames.technique.technique(), zone.managed(), low, cpus);
            zone.pcp.iter().for_each(|set| set.lists.lock().set_limits(limits));
        }
    }
}
