//! Draining a CPU's lists to the zone behind them.

use super::Frames;
use super::caches::Turn;
use crate::counters::VmEvent;
use crate::kind::Kind;
use crate::map::{FrameIndex, FrameState, Migratetype};
use crate::pcp::{CHUNK_BLOCKS, Chunk, LARGE_ORDER, PcpLists, PcpSet, ReturnChain};
use crate::request::AllocRequest;
use crate::zone::Zone;
use quire_arch::{CpuId, Order, Pin, Platform, prefetch};
use quire_sync::atomic::Ordering;

impl<P: Platform> Frames<P> {
    /// CPUs that one tick looks at, in turn: it is called in a timer's interrupt.
    pub const CPUS_AT_A_TICK: usize = 32;

    /// Blocks that all CPUs together give back at a tick: it is called in a timer's interrupt.
    pub const BLOCKS_AT_A_TICK: u64 = 64 * CHUNK_BLOCKS as u64;

    /// Ticks after which [`age_lists`](Self::age_lists) has emptied the lists of a CPU that does not use
    /// them, where all CPUs have their turn at each, and
    /// [`give_back_in_portions`](Self::give_back_in_portions) takes what a tick leaves.
    pub const TICKS_TO_EMPTY: u32 = crate::pcp::TICKS_TO_EMPTY as u32;

    /// Brings the lists back into their budget after a block of this order and type was pushed.
    #[cold]
    pub(super) fn spill(
        &self,
        pin: &Pin<'_, P>,
        zone: &Zone<P>,
        (set, pcp): (&PcpSet<P>, &mut PcpLists),
        (order, migratetype): (Order, Migratetype),
    ) {
        if !self.technique.tunes() {
            let chunk = pcp.take_cold(&self.map, pcp.limits().batch);
            self.drained(pin, zone, &chunk);
            return;
        }
        let pages = pcp.overflow(order, zone.lists_bound());
        if order >= LARGE_ORDER
            && let Some((index, frame)) = pcp.pop(&self.map, order, migratetype)
        {
            set.set_full(true);
            if self.free_past_lists(pin, zone, index, order) {
                return;
            }
            frame.set_word(FrameState::new(Kind::Pcp, order, migratetype));
            pcp.push(&self.map, (index, frame), order, migratetype);
        }
        let chunk = pcp.take_cold(&self.map, pages);
        let to_zone = self.return_or_free(pin, zone, &chunk);
        self.events.add(pin, VmEvent::PcpDrain, to_zone);
    }

    /// Frees a block that is on no list, bypassing the caller's own lists: to the CPU whose list it came
    /// from, if that CPU runs short, else to the zone. Returns false if the zone's lock is contended: then it
    /// is better to go there rarely, with many blocks at once.
    pub(super) fn free_past_lists(
        &self,
        pin: &Pin<'_, P>,
        zone: &Zone<P>,
        index: FrameIndex,
        order: Order,
    ) -> bool {
        let frame = self.map.at(index);
        let migratetype = self.map.block_migratetype(self.map.pfn(index));
        let target = frame.home().filter(|&home| home != pin.cpu()).and_then(|home| zone.pcp.get(home));
        if let Some(target) = target.filter(|target| migratetype.is_pcp_type() && target.returned.is_wanted())
        {
            frame.set_word(FrameState::new(Kind::Pcp, order, migratetype));
            if self.return_run(pin, target, &[index]) {
                return true;
            }
        }
        let Some(mut buddy) = zone.try_lock(&self.platform) else { return false };
        buddy.free_block(&self.map, index, order, self.events.mine(pin));
        true
    }

    /// Returns the blocks of `chunk`, which are on no list, to the CPUs whose lists they came from, if those
    /// run short, and the others to the zone. The zone's lock is taken once, and only if needed. Returns the
    /// number of frames that went to the zone.
    pub(super) fn return_or_free(&self, pin: &Pin<'_, P>, zone: &Zone<P>, chunk: &Chunk) -> u64 {
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
                    others.push(index, self.map.at(index).word().order().pages());
                }
            }
        }
        if others.pages > 0 {
            self.free_to_zone(pin, zone, others.blocks());
        }
        others.pages
    }

    /// The CPU whose list the block came from, if a list may hold it.
    fn returns_to(&self, index: FrameIndex) -> Option<CpuId> {
        let frame = self.map.at(index);
        let may = self.technique.covers(frame.word().order())
            && self.map.block_migratetype(self.map.pfn(index)).is_pcp_type();
        frame.home().filter(|_| may)
    }

    /// Returns `run` to the CPU of `target`; false if that CPU has no use for it.
    fn return_run(&self, pin: &Pin<'_, P>, target: &PcpSet<P>, run: &[FrameIndex]) -> bool {
        if !target.returned.is_wanted() {
            return false;
        }
        let (Some(&first), Some(&last)) = (run.first(), run.last()) else { return false };
        let mut pages = 0;
        for (at, &index) in run.iter().enumerate() {
            let frame = self.map.at(index);
            let order = frame.word().order();
            // Its type is read again when the owner sorts it.
            frame.set_word(FrameState::new(Kind::Pcp, order, frame.word().migratetype()));
            frame.set_next(run.get(at + 1).copied().unwrap_or(FrameIndex::NONE));
            pages += order.pages();
        }
        let chain = ReturnChain { first, last: self.map.at(last), pages: pages as u32 };
        let returned = target.returned.push(&chain);
        if returned {
            self.events.add(pin, VmEvent::PcpReturn, pages);
        }
        returned
    }

    /// Frees a chunk that was taken off a CPU's lists.
    pub(super) fn drained(&self, pin: &Pin<'_, P>, zone: &Zone<P>, chunk: &Chunk) {
        self.free_to_zone(pin, zone, chunk.blocks());
        self.events.add(pin, VmEvent::PcpDrain, chunk.pages);
    }

    /// Frees `blocks`, which are on no list, to their zone under one hold of its lock.
    pub(super) fn free_to_zone(&self, pin: &Pin<'_, P>, zone: &Zone<P>, blocks: &[FrameIndex]) {
        debug_assert!(blocks.len() <= CHUNK_BLOCKS, "a chunk is bounded");
        // Each block will be compared with its buddy. Prefetch their descriptors in parallel, before the lock
        // is taken.
        for &index in blocks {
            let pfn = self.map.pfn(index);
            prefetch(self.map.known(pfn.buddy(self.map.at(index).word().order())));
        }
        let events = self.events.mine(pin);
        let mut buddy = zone.lock(&self.platform);
        for &index in blocks {
            buddy.free_block(&self.map, index, self.map.at(index).word().order(), events);
        }
    }

    /// Empties one CPU's lists into the zones and returns the number of frames. Any CPU may drain any other.
    pub fn drain(&self, pin: &Pin<'_, P>, cpu: CpuId) -> u64 {
        let zones = self.zones.populated();
        zones.map(|zone| zone.pcp.get(cpu).map_or(0, |set| self.drain_set(pin, zone, set))).sum()
    }

    /// As [`drain`](Self::drain), for all CPUs.
    pub fn drain_all(&self, pin: &Pin<'_, P>) -> u64 {
        let zones = self.zones.populated();
        zones.map(|zone| zone.pcp.iter().map(|set| self.drain_set(pin, zone, set)).sum::<u64>()).sum()
    }

    /// Drains the lists of CPUs, the caller's own first, a chunk at a time, until the request finds a block.
    pub(super) fn drain_for(&self, pin: &Pin<'_, P>, request: &AllocRequest) -> Option<FrameIndex> {
        for zone in self.zones_for(pin, request) {
            for set in zone.pcp.some(pin.cpu().index(), usize::MAX) {
                let (mut drained, mut bound) = (0, None);
                while self.drain_some(pin, zone, set, (&mut drained, &mut bound)) {
                    let found = self.try_zones(pin, request);
                    if found.is_some() {
                        return found;
                    }
                }
            }
        }
        None
    }

    /// As [`drain_all`](Self::drain_all), for a caller that is not pinned: it is for a chunk at a time.
    pub fn drain_all_in_portions(&self) -> u64 {
        let mut all = 0;
        for zone in self.zones.populated() {
            for set in zone.pcp.iter() {
                let (mut drained, mut bound) = (0, None);
                while self.drain_some(&self.platform.pin(), zone, set, (&mut drained, &mut bound)) {}
                all += drained;
            }
        }
        all
    }

    /// What the lists hold is read under the first hold of their lock and bounds the whole drain, so a CPU
    /// that refills meanwhile cannot keep it busy forever. Under every later hold the lists are read again,
    /// so that blocks that left them meanwhile are not taken.
    fn drain_set(&self, pin: &Pin<'_, P>, zone: &Zone<P>, set: &PcpSet<P>) -> u64 {
        let (mut drained, mut bound) = (0, None);
        while self.drain_some(pin, zone, set, (&mut drained, &mut bound)) {}
        drained
    }

    /// A chunk of that, under one hold. False if there was none left.
    fn drain_some(
        &self,
        pin: &Pin<'_, P>,
        zone: &Zone<P>,
        set: &PcpSet<P>,
        (drained, bound): (&mut u64, &mut Option<u64>),
    ) -> bool {
        let mut pcp = set.lists.lock();
        set.set_full(false);
        Self::receive(set, &mut pcp);
        let bound = *bound.get_or_insert(pcp.pages() + set.returned.pages());
        let left = bound.saturating_sub(*drained).min(pcp.pages());
        if left > 0 {
            *drained += self.drain_chunk(pin, zone, &mut pcp, left);
        }
        left > 0
    }

    /// Moves what other CPUs returned to the lists' own, unless some of what came before is not used up: to
    /// join the two would take as long as one of them is.
    pub(super) fn receive(set: &PcpSet<P>, pcp: &mut PcpLists) {
        if pcp.incoming_pages() == 0
            && let Some((first, pages)) = set.returned.take()
        {
            pcp.receive(first, pages);
        }
    }

    /// Moves at least `pages` base pages, or a chunk of blocks, from the lists to their zone under one hold
    /// of its lock; returns how many.
    fn drain_chunk(&self, pin: &Pin<'_, P>, zone: &Zone<P>, pcp: &mut PcpLists, pages: u64) -> u64 {
        let chunk = pcp.take_cold(&self.map, pages);
        self.drained(pin, zone, &chunk);
        chunk.pages
    }

    /// A tick of the lists' clock, for all CPUs, or for some in turn on a machine of many: to be called by
    /// one of them about every second. Unused budgets shrink; a CPU that did not use its lists since the last
    /// tick has to give back half of what they hold, and everything at the
    /// [`TICKS_TO_EMPTY`](Self::TICKS_TO_EMPTY)th tick. In all they give back no more than
    /// [`BLOCKS_AT_A_TICK`](Self::BLOCKS_AT_A_TICK) blocks; the rest is left to
    /// [`give_back_in_portions`](Self::give_back_in_portions), or to later ticks. Returns the number of
    /// frames returned to their zones.
    pub fn age_lists(&self, pin: &Pin<'_, P>) -> u64 {
        let first = self.age_turn.fetch_add(Self::CPUS_AT_A_TICK as u32, Ordering::Relaxed) as usize;
        let cpus = Turn { first, most: Self::CPUS_AT_A_TICK };
        let (mut aged, mut left) = (0, Self::BLOCKS_AT_A_TICK);
        let mut zones_left = self.zones.populated().count() as u64;
        for zone in self.zones.populated() {
            zone.pcp.some(cpus.first, cpus.most).for_each(|set| Self::tick_set(zone, set));
            // What one zone does not need the next ones may use.
            cpus.deal(&zone.pcp, left.div_ceil(zones_left), |set, part| {
                let (pages, blocks) = self.give_back(pin, zone, set, part);
                aged += pages;
                left = left.saturating_sub(blocks);
                blocks
            });
            zones_left -= 1;
        }
        aged
    }

    fn tick_set(zone: &Zone<P>, set: &PcpSet<P>) {
        let mut pcp = set.lists.lock();
        set.set_full(false);
        Self::receive(set, &mut pcp);
        if !pcp.tick(zone.lists_bound(), set.returned.pages()) {
            set.returned.set_accepts(0);
        }
    }

    /// Gives back what the last tick found that a CPU holds too much, `most` blocks or a chunk. Returns how
    /// many base pages went, and how many blocks: at least `most` if there may be more.
    fn give_back(&self, pin: &Pin<'_, P>, zone: &Zone<P>, set: &PcpSet<P>, most: u64) -> (u64, u64) {
        let (mut pages, mut blocks) = (0, 0);
        while (blocks == 0 && most > 0) || blocks + CHUNK_BLOCKS as u64 <= most {
            let Some((of_chunk, blocks_of_chunk)) = self.give_back_some(pin, zone, set) else {
                return (pages, blocks);
            };
            pages += of_chunk;
            blocks += blocks_of_chunk;
        }
        self.due.store(1, Ordering::Relaxed);
        (pages, blocks.max(most))
    }

    /// A chunk of that, under one hold.
    fn give_back_some(&self, pin: &Pin<'_, P>, zone: &Zone<P>, set: &PcpSet<P>) -> Option<(u64, u64)> {
        let mut pcp = set.lists.lock();
        if pcp.due() == 0 {
            return None;
        }
        Self::receive(set, &mut pcp);
        let chunk = pcp.take_due(&self.map);
        if chunk.pages == 0 {
            return None;
        }
        self.drained(pin, zone, &chunk);
        Some((chunk.pages, chunk.blocks().len() as u64))
    }

    /// Gives back what the last ticks found that CPUs hold too much, and left there: for a thread that is not
    /// pinned; it is for a chunk at a time. Returns the number of frames.
    pub fn give_back_in_portions(&self) -> u64 {
        if self.due.swap(0, Ordering::Relaxed) == 0 {
            return 0;
        }
        let mut all = 0;
        for zone in self.zones.populated() {
            for set in zone.pcp.iter() {
                while let Some((pages, _)) = self.give_back_some(&self.platform.pin(), zone, set) {
                    all += pages;
                }
            }
        }
        all
    }
}
