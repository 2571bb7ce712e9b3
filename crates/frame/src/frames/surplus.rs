//! What a CPU's lists do not keep: it goes to the CPU whose list it came from, or to the zone.

use super::Frames;
use super::zone_blocks::ZoneBlocks;
use crate::counters::VmEvent;
use crate::kind::Kind;
use crate::map::{FrameIndex, FrameState, Migratetype};
use crate::pcp::{Chunk, LARGE_ORDER, PcpLists, PcpSet, ReturnChain};
use crate::zone::Zone;
use quire_arch::{CpuId, Order, Pin, Platform};

quire_arch::part_of! {
    /// Blocks that are freed past the lists of the caller's CPU.
    pub(super) struct Surplus { pub(super) frames: Frames }
}

impl<P: Platform> Surplus<'_, P> {
    /// Brings the lists back into their budget after a block of this order and type was pushed.
    #[cold]
    pub(super) fn spill(
        self,
        pin: &Pin<'_, P>,
        zone: &Zone<P>,
        (set, pcp): (&PcpSet<P>, &mut PcpLists),
        (order, migratetype): (Order, Migratetype),
    ) {
        if !self.frames.technique.tunes() {
            let chunk = pcp.take_cold(&self.frames.map, pcp.limits().batch);
            ZoneBlocks::new(self.frames).drained(pin, zone, &chunk);
            return;
        }
        let pages = pcp.overflow(order, zone.lists_bound());
        if order >= LARGE_ORDER
            && let Some((index, frame)) = pcp.pop(&self.frames.map, order, migratetype)
        {
            set.set_full(true);
            if self.free_past_lists(pin, zone, index, order) {
                return;
            }
            frame.set_word(FrameState::new(Kind::Pcp, order, migratetype));
            pcp.push(&self.frames.map, (index, frame), order, migratetype);
        }
        let chunk = pcp.take_cold(&self.frames.map, pages);
        let to_zone = self.return_or_free(pin, zone, &chunk);
        self.frames.events.add(pin, VmEvent::PcpDrain, to_zone);
    }

    /// Frees a block that is on no list, bypassing the caller's own lists: to the CPU whose list it came
    /// from, if that CPU runs short, else to the zone. Returns false if the zone's lock is contended: then it
    /// is better to go there rarely, with many blocks at once.
    pub(super) fn free_past_lists(
        self,
        pin: &Pin<'_, P>,
        zone: &Zone<P>,
        index: FrameIndex,
        order: Order,
    ) -> bool {
        let frame = self.frames.map.at(index);
        let migratetype = self.frames.map.block_migratetype(self.frames.map.pfn(index));
        let target = frame.home().filter(|&home| home != pin.cpu()).and_then(|home| zone.pcp.get(home));
        if let Some(target) = target.filter(|target| migratetype.is_pcp_type() && target.returned.is_wanted())
        {
            frame.set_word(FrameState::new(Kind::Pcp, order, migratetype));
            if self.return_run(pin, target, &[index]) {
                return true;
            }
        }
        let Some(mut buddy) = zone.try_lock(&self.frames.platform) else { return false };
        buddy.free_block(&self.frames.map, index, order, self.frames.events.mine(pin));
        true
    }

    /// Returns the blocks of `chunk`, which are on no list, to the CPUs whose lists they came from, if those
    /// run short, and the others to the zone. The zone's lock is taken once, and only if needed. Returns the
    /// number of frames that went to the zone.
    pub(super) fn return_or_free(self, pin: &Pin<'_, P>, zone: &Zone<P>, chunk: &Chunk) -> u64 {
        let mut others = Chunk::new();
        let mut rest = chunk.blocks();
        while let Some(&first) = rest.first() {
            let home = self.returns_to(first);
            let same = rest.iter().take_while(|&&index| self.returns_to(index) == home).count();
            let run;
            (run, rest) = rest.split_at(same);
            let target = home.filter(|&home| home != pin.cpu()).and_then(|home| zone.pcp.get(home));
            if !target.is_some_and(|target| self.return_run(pin, target, run)) {
                for &index in run {
                    others.push(index, self.frames.map.at(index).word().order().pages());
                }
            }
        }
        if others.pages > 0 {
            ZoneBlocks::new(self.frames).free_to_zone(pin, zone, others.blocks());
        }
        others.pages
    }

    /// The CPU whose list the block came from, if a list may hold it.
    fn returns_to(self, index: FrameIndex) -> Option<CpuId> {
        let frame = self.frames.map.at(index);
        let may = self.frames.technique.covers(frame.word().order())
            && self.frames.map.block_migratetype(self.frames.map.pfn(index)).is_pcp_type();
        frame.home().filter(|_| may)
    }

    /// Returns `run` to the CPU of `target`; false if that CPU has no use for it.
    fn return_run(self, pin: &Pin<'_, P>, target: &PcpSet<P>, run: &[FrameIndex]) -> bool {
        if !target.returned.is_wanted() {
            return false;
        }
        let (Some(&first), Some(&last)) = (run.first(), run.last()) else { return false };
        let mut pages = 0;
        for (at, &index) in run.iter().enumerate() {
            let frame = self.frames.map.at(index);
            let order = frame.word().order();
            // Its type is read again when the owner sorts it.
            frame.set_word(FrameState::new(Kind::Pcp, order, frame.word().migratetype()));
            frame.set_next(run.get(at + 1).copied().unwrap_or(FrameIndex::NONE));
            pages += order.pages();
        }
        let chain = ReturnChain { first, last: self.frames.map.at(last), pages: pages as u32 };
        let returned = target.returned.push(&chain);
        if returned {
            self.frames.events.add(pin, VmEvent::PcpReturn, pages);
        }
        returned
    }
}
