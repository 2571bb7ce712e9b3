//! Taking a range of frames out of use, and back, while the machine runs.
//!
//! 1. Each page block of the range is isolated, under its zone's lock: its free memory goes to lists that nobody is
//!    served from, and what is freed from then on goes there too.
//! 2. The CPUs' lists are drained, twice: a list that is drained second may have returned blocks to a CPU that was
//!    drained first. After that no block of the range is on a CPU's list, and none can get there, since the block's
//!    type is read under the lock of the list ([`PcpLists::push_released`](crate::pcp::PcpLists::push_released)).
//! 3. Slabs and limbo give back what they can.
//! 4. If every frame of the range is free now, they leave their zone. If one is not, everything is undone and the
//!    caller learns which.

use super::Frames;
use crate::error::OfflineError;
use crate::map::{Kind, PAGEBLOCK_ORDER};
use crate::zone::Zone;
use quire_arch::{Pfn, PfnRange, Pin, Platform};

impl<P: Platform> Frames<P> {
    /// Takes the frames of `range` out of use and returns how many. They are nobody's afterwards, until
    /// [`bring_online`](Self::bring_online). Other CPUs may allocate and free meanwhile.
    ///
    /// # Errors
    ///
    /// [`OfflineError`]; nothing was changed then. With [`OfflineError::Busy`] another try may succeed: it moves nothing
    /// away, so whoever has frames of the range must have given them back.
    pub fn take_offline(&self, pin: &Pin<'_, P>, range: PfnRange) -> Result<u64, OfflineError> {
        self.check_range(range)?;
        let mut isolated = range.start();
        for block in blocks(range) {
            if let Some(zone) = self.zone_at(block)
                && !zone.lock(&self.platform).isolate_block(&self.map, block)
            {
                self.restore(pin, PfnRange::new(range.start(), isolated));
                return Err(OfflineError::Busy(block.start()));
            }
            isolated = block.end();
        }
        self.drain_all(pin);
        self.drain_all(pin);
        self.caches.shrink(self, pin);
        self.reap_all(pin);
        self.drain_all(pin);
        // What is isolated and free stays so: nobody can get it.
        let busy = blocks(range).find_map(|block| {
            let zone = self.zone_at(block)?;
            zone.lock(&self.platform).first_busy(&self.map, block)
        });
        if let Some(pfn) = busy {
            self.restore(pin, range);
            return Err(OfflineError::Busy(pfn));
        }
        let mut removed = 0;
        for block in blocks(range) {
            if let Some(zone) = self.zone_at(block) {
                let mut zone = zone.lock(&self.platform);
                let frames = zone.remove_block(&self.map, block);
                zone.remove_managed(frames);
                removed += frames;
            }
        }
        self.reset_levels();
        Ok(removed)
    }

    /// Takes the frames of `range` into use again that [`take_offline`](Self::take_offline) took out of it, and returns
    /// how many.
    pub fn bring_online(&self, pin: &Pin<'_, P>, range: PfnRange) -> u64 {
        let mut returned = 0;
        for block in blocks(range) {
            let Some(zone) = self.zone_at(block) else { continue };
            let mut zone = zone.lock(&self.platform);
            let frames = zone.return_block(&self.map, block, self.events.mine(pin));
            zone.add_managed(frames);
            returned += frames;
        }
        self.reset_levels();
        returned
    }

    /// Makes isolated blocks ordinary ones again.
    fn restore(&self, pin: &Pin<'_, P>, range: PfnRange) {
        for block in blocks(range) {
            if let Some(zone) = self.zone_at(block) {
                let events = self.events.mine(pin);
                zone.lock(&self.platform).restore_block(&self.map, block, events);
            }
        }
    }

    /// The zone of a page block, or `None` if it is all hole.
    fn zone_at(&self, block: PfnRange) -> Option<&Zone<P>> {
        super::boot::zone_of_block(&self.map, block.start()).map(|id| self.zone(id))
    }

    /// Whether the range can be taken out of use at all.
    fn check_range(&self, range: PfnRange) -> Result<(), OfflineError> {
        let aligned = range.start().is_aligned(PAGEBLOCK_ORDER) && range.end().is_aligned(PAGEBLOCK_ORDER);
        if !aligned {
            return Err(OfflineError::Unaligned);
        }
        let mut ram = 0u64;
        for pfn in (range.start().0..range.end().0).map(Pfn) {
            match self.map.known(pfn).kind() {
                Kind::Hole => {}
                Kind::Reserved => return Err(OfflineError::Reserved(pfn)),
                Kind::Offline => return Err(OfflineError::Offline(pfn)),
                _ => ram += 1,
            }
        }
        if ram == 0 { Err(OfflineError::NoRam) } else { Ok(()) }
    }
}

/// The page blocks of `range`.
fn blocks(range: PfnRange) -> impl Iterator<Item = PfnRange> {
    let size = PAGEBLOCK_ORDER.pages();
    (range.start().0..range.end().0)
        .step_by(size as usize)
        .map(move |start| PfnRange::new(Pfn(start), Pfn(start + size)))
}
