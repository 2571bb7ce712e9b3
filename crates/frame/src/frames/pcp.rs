//! What the CPUs' lists give back to the zones behind them.

use super::Frames;
use super::caches::Turn;
use super::zone_blocks::ZoneBlocks;
use crate::pcp::{CHUNK_BLOCKS, PcpLists, PcpSet};
use crate::zone::Zone;
use quire_arch::{CpuId, Pin, Platform};
use quire_sync::atomic::Ordering;

quire_arch::part_of! {
    /// The lists of free blocks that each CPU of a machine keeps for itself.
    pub struct FramePcp { pub(super) frames: Frames }
}

impl<P: Platform> FramePcp<'_, P> {
    /// CPUs that one tick looks at, in turn: it is called in a timer's interrupt.
    pub const CPUS_AT_A_TICK: usize = 32;

    /// Blocks that all CPUs together give back at a tick: it is called in a timer's interrupt.
    pub const BLOCKS_AT_A_TICK: u64 = 64 * CHUNK_BLOCKS as u64;

    /// Ticks after which [`age_lists`](Self::age_lists) has emptied the lists of a CPU that does not use
    /// them, where all CPUs have their turn at each, and
    /// [`give_back_in_portions`](Self::give_back_in_portions) takes what a tick leaves.
    pub const TICKS_TO_EMPTY: u32 = crate::pcp::TICKS_TO_EMPTY as u32;

    /// Empties one CPU's lists into the zones and returns the number of frames. Any CPU may drain any other.
    pub fn drain(self, pin: &Pin<'_, P>, cpu: CpuId) -> u64 {
        let zones = self.frames.zones.populated();
        zones.map(|zone| zone.pcp.get(cpu).map_or(0, |set| self.drain_set(pin, zone, set))).sum()
    }

    /// As [`drain`](Self::drain), for all CPUs.
    pub fn drain_all(self, pin: &Pin<'_, P>) -> u64 {
        let zones = self.frames.zones.populated();
        zones.map(|zone| zone.pcp.iter().map(|set| self.drain_set(pin, zone, set)).sum::<u64>()).sum()
    }

    /// As [`drain_all`](Self::drain_all), for a caller that is not pinned: it is for a chunk at a time.
    pub fn drain_all_in_portions(self) -> u64 {
        let mut all = 0;
        for zone in self.frames.zones.populated() {
            for set in zone.pcp.iter() {
                let (mut drained, mut bound) = (0, None);
                while self.drain_some(&self.frames.platform.pin(), zone, set, (&mut drained, &mut bound)) {}
                all += drained;
            }
        }
        all
    }

    /// What the lists hold is read under the first hold of their lock and bounds the whole drain, so a CPU
    /// that refills meanwhile cannot keep it busy forever. Under every later hold the lists are read again,
    /// so that blocks that left them meanwhile are not taken.
    fn drain_set(self, pin: &Pin<'_, P>, zone: &Zone<P>, set: &PcpSet<P>) -> u64 {
        let (mut drained, mut bound) = (0, None);
        while self.drain_some(pin, zone, set, (&mut drained, &mut bound)) {}
        drained
    }

    /// A chunk of that, under one hold. False if there was none left.
    pub(super) fn drain_some(
        self,
        pin: &Pin<'_, P>,
        zone: &Zone<P>,
        set: &PcpSet<P>,
        (drained, bound): (&mut u64, &mut Option<u64>),
    ) -> bool {
        let mut pcp = set.lists.lock();
        set.set_full(false);
        set.receive(&mut pcp);
        let bound = *bound.get_or_insert(pcp.pages() + set.returned.pages());
        let left = bound.saturating_sub(*drained).min(pcp.pages());
        if left > 0 {
            *drained += self.drain_chunk(pin, zone, &mut pcp, left);
        }
        left > 0
    }

    /// Moves at least `pages` base pages, or a chunk of blocks, from the lists to their zone under one hold
    /// of its lock; returns how many.
    fn drain_chunk(self, pin: &Pin<'_, P>, zone: &Zone<P>, pcp: &mut PcpLists, pages: u64) -> u64 {
        let chunk = pcp.take_cold(&self.frames.map, pages);
        ZoneBlocks::new(self.frames).drained(pin, zone, &chunk);
        chunk.pages
    }

    /// A tick of the lists' clock, for all CPUs, or for some in turn on a machine of many: to be called by
    /// one of them about every second. Unused budgets shrink; a CPU that did not use its lists since the last
    /// tick has to give back half of what they hold, and everything at the
    /// [`TICKS_TO_EMPTY`](Self::TICKS_TO_EMPTY)th tick. In all they give back no more than
    /// [`BLOCKS_AT_A_TICK`](Self::BLOCKS_AT_A_TICK) blocks; the rest is left to
    /// [`give_back_in_portions`](Self::give_back_in_portions), or to later ticks. Returns the number of
    /// frames returned to their zones.
    pub fn age_lists(self, pin: &Pin<'_, P>) -> u64 {
        let first = self.frames.age_turn.fetch_add(Self::CPUS_AT_A_TICK as u32, Ordering::Relaxed) as usize;
        let cpus = Turn { first, most: Self::CPUS_AT_A_TICK };
        let (mut aged, mut left) = (0, Self::BLOCKS_AT_A_TICK);
        let mut zones_left = self.frames.zones.populated().count() as u64;
        for zone in self.frames.zones.populated() {
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
        set.receive(&mut pcp);
        if !pcp.tick(zone.lists_bound(), set.returned.pages()) {
            set.returned.set_accepts(0);
        }
    }

    /// Gives back what the last tick found that a CPU holds too much, `most` blocks or a chunk. Returns how
    /// many base pages went, and how many blocks: at least `most` if there may be more.
    fn give_back(self, pin: &Pin<'_, P>, zone: &Zone<P>, set: &PcpSet<P>, most: u64) -> (u64, u64) {
        let (mut pages, mut blocks) = (0, 0);
        while (blocks == 0 && most > 0) || blocks + CHUNK_BLOCKS as u64 <= most {
            let Some((of_chunk, blocks_of_chunk)) = self.give_back_some(pin, zone, set) else {
                return (pages, blocks);
            };
            pages += of_chunk;
            blocks += blocks_of_chunk;
        }
        self.frames.due.store(1, Ordering::Relaxed);
        (pages, blocks.max(most))
    }

    /// A chunk of that, under one hold.
    fn give_back_some(self, pin: &Pin<'_, P>, zone: &Zone<P>, set: &PcpSet<P>) -> Option<(u64, u64)> {
        let mut pcp = set.lists.lock();
        if pcp.due() == 0 {
            return None;
        }
        set.receive(&mut pcp);
        let chunk = pcp.take_due(&self.frames.map);
        if chunk.pages == 0 {
            return None;
        }
        ZoneBlocks::new(self.frames).drained(pin, zone, &chunk);
        Some((chunk.pages, chunk.blocks().len() as u64))
    }

    /// Gives back what the last ticks found that CPUs hold too much, and left there: for a thread that is not
    /// pinned; it is for a chunk at a time. Returns the number of frames.
    pub fn give_back_in_portions(self) -> u64 {
        if self.frames.due.swap(0, Ordering::Relaxed) == 0 {
            return 0;
        }
        let mut all = 0;
        for zone in self.frames.zones.populated() {
            for set in zone.pcp.iter() {
                while let Some((pages, _)) = self.give_back_some(&self.frames.platform.pin(), zone, set) {
                    all += pages;
                }
            }
        }
        all
    }
}
