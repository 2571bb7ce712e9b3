//! Refilling a CPU's lists from the zone behind them.

use super::Frames;
use super::zone_blocks::{ZoneBlocks, allowance, may_reserve};
use crate::counters::VmEvent;
use crate::kind::Kind;
use crate::map::{Frame, FrameIndex, FrameState, Migratetype};
use crate::pcp::{CHUNK_BLOCKS, PcpLists, PcpSet};
use crate::request::AllocRequest;
use crate::zone::Zone;
use quire_arch::{Pin, Platform};

/// Runs of adjacent blocks that were taken under one hold of a zone's lock.
struct Runs {
    /// Where each begins, and its blocks.
    runs: [(FrameIndex, u32); CHUNK_BLOCKS],
    count: usize,
}

impl Runs {
    const fn new() -> Self {
        Self { runs: [(FrameIndex::NONE, 0); CHUNK_BLOCKS], count: 0 }
    }

    fn push(&mut self, (first, blocks): (FrameIndex, u64)) {
        if let Some(place) = self.runs.get_mut(self.count) {
            // A zone hands out no more at a time than a CPU's lists hold.
            *place = (first, blocks as u32);
            self.count += 1;
        }
    }
}

/// Whether a refill may take memory of another type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mixing {
    /// Only after memory of the type was looked for on the CPUs' lists.
    Ask,
    Allowed,
}

/// The result of a refill.
#[derive(Clone, Copy, Debug)]
enum Refill {
    /// This block, which is on no list.
    Block(FrameIndex),
    /// The zone has nothing for the request.
    Nothing,
    /// The zone has only memory of other types.
    WouldMix,
}

quire_arch::part_of! {
    /// The lists of the caller's CPU, to allocate from.
    pub(super) struct PcpRefill { pub(super) frames: Frames }
}

impl<P: Platform> PcpRefill<'_, P> {
    /// From the CPU's lists, which are refilled if need be.
    pub(super) fn allocate_pcp(
        self,
        pin: &Pin<'_, P>,
        zone: &Zone<P>,
        request: &AllocRequest,
    ) -> Option<FrameIndex> {
        let set = zone.pcp.mine(pin);
        let mut before = None;
        let mut mixing = if self.frames.technique.tunes() { Mixing::Ask } else { Mixing::Allowed };
        let index = loop {
            let mut pcp = set.lists.lock();
            if let Some((index, _)) = pcp.pop(&self.frames.map, request.order, request.migratetype) {
                self.frames.events.add(pin, VmEvent::PcpHit, 1);
                break index;
            }
            let before = *before.get_or_insert_with(|| {
                self.frames.events.add(pin, VmEvent::PcpMiss, 1);
                pcp.signs(request.order)
            });
            match self.refill(pin, zone, (set, &mut pcp), request, mixing) {
                Refill::Block(index) => break index,
                Refill::Nothing => {
                    pcp.forget_miss(request.order, before);
                    set.returned.set_accepts(0);
                    return None;
                }
                Refill::WouldMix => {
                    drop(pcp);
                    self.collect_type(pin, zone, request.migratetype);
                    mixing = Mixing::Allowed;
                }
            }
        };
        give_out(pin, self.frames.map.at(index), request);
        Some(index)
    }

    /// Drains memory of one type from all CPUs' lists before another type's page blocks are used for it: a
    /// mixed page block stays mixed as long as its longest-lived allocation.
    #[cold]
    fn collect_type(self, pin: &Pin<'_, P>, zone: &Zone<P>, migratetype: Migratetype) {
        let collected: u64 = zone.pcp.iter().map(|set| self.collect_from(pin, zone, set, migratetype)).sum();
        if collected == 0 {
            zone.lock(&self.frames.platform).note_nothing_collected(migratetype);
        }
    }

    /// As a drain: bounded by what is there at the start. What other CPUs returned is not sorted by type, so
    /// all of it is drained.
    fn collect_from(
        self,
        pin: &Pin<'_, P>,
        zone: &Zone<P>,
        set: &PcpSet<P>,
        migratetype: Migratetype,
    ) -> u64 {
        let (mut collected, mut first) = (0, None);
        loop {
            let mut pcp = set.lists.lock();
            set.receive(&mut pcp);
            let unsorted = pcp.incoming_pages();
            let bound = unsorted + set.returned.pages() + pcp.pages_of(migratetype);
            let bound = *first.get_or_insert(bound);
            if collected >= bound {
                return collected;
            }
            let chunk = match unsorted {
                0 => pcp.take_type(&self.frames.map, migratetype),
                _ => pcp.take_cold(&self.frames.map, unsorted),
            };
            if chunk.pages == 0 {
                return collected;
            }
            ZoneBlocks::new(self.frames).drained(pin, zone, &chunk);
            collected += chunk.pages;
        }
    }

    /// Fills a list that is empty, with what other CPUs returned or else from the zone, and takes one block.
    fn refill(
        self,
        pin: &Pin<'_, P>,
        zone: &Zone<P>,
        (set, pcp): (&PcpSet<P>, &mut PcpLists),
        request: &AllocRequest,
        mixing: Mixing,
    ) -> Refill {
        let AllocRequest { order, migratetype, .. } = *request;
        let mut blocks = (pcp.limits().batch >> order.get()).max(1);
        if self.frames.technique.tunes() {
            if let Some(index) = self.sort_returned(pin, zone, (set, pcp), request) {
                return Refill::Block(index);
            }
            blocks = pcp.miss(order, zone.lists_bound());
            // Half of what is left of the budget comes from others, so that own frees do not spill at once.
            set.returned.set_accepts(pcp.high().saturating_sub(pcp.pages()) / 2);
            set.set_full(false);
        }
        match self.fetch(pin, zone, pcp, request, (blocks, mixing)) {
            Refill::Nothing => {
                // What the CPU has of another type or order may be what the zone needs to form this block;
                // the slow path drains for that. Only the reserve can help at once.
                let given = FrameState::new(Kind::Pcp, order, migratetype);
                ZoneBlocks::new(self.frames)
                    .allocate_reserved(pin, zone, request, given)
                    .map_or(Refill::Nothing, Refill::Block)
            }
            Refill::WouldMix => {
                // A larger block of the type may lie at hand.
                pcp.pop_part(&self.frames.map, order, migratetype).map_or(Refill::WouldMix, Refill::Block)
            }
            block @ Refill::Block(_) => block,
        }
    }

    /// Takes over what other CPUs returned and looks for a block that fits, among as many as fit into a
    /// chunk. The others go to their lists.
    fn sort_returned(
        self,
        pin: &Pin<'_, P>,
        zone: &Zone<P>,
        (set, pcp): (&PcpSet<P>, &mut PcpLists),
        request: &AllocRequest,
    ) -> Option<FrameIndex> {
        set.receive(pcp);
        for _ in 0..CHUNK_BLOCKS {
            let (index, order) = pcp.pop_incoming(&self.frames.map)?;
            let pfn = self.frames.map.pfn(index);
            let migratetype = self.frames.map.block_migratetype(pfn);
            if (order, migratetype) == (request.order, request.migratetype) {
                self.frames.events.add(pin, VmEvent::PcpReturned, order.pages());
                return Some(index);
            }
            if !pcp.push_released(&self.frames.map, (index, self.frames.map.at(index)), pfn, order) {
                let events = self.frames.events.mine(pin);
                zone.lock(&self.frames.platform).free_block(&self.frames.map, index, order, events);
            }
        }
        None
    }

    /// Moves up to `blocks` blocks from the zone to the CPU's lists and takes one. Not inlined: the runs are
    /// on the stack only here, not below every allocation.
    #[inline(never)]
    fn fetch(
        self,
        pin: &Pin<'_, P>,
        zone: &Zone<P>,
        pcp: &mut PcpLists,
        request: &AllocRequest,
        (blocks, mixing): (u64, Mixing),
    ) -> Refill {
        let AllocRequest { order, migratetype, .. } = *request;
        let events = self.frames.events.mine(pin);
        let given = FrameState::new(Kind::Pcp, order, migratetype);
        let mut runs = Runs::new();
        let mut left = blocks;
        {
            let mut buddy = zone.lock(&self.frames.platform);
            if may_reserve(zone, &buddy, request) {
                // What lies beside it is kept too, and must not be on a list.
                left = 1;
            }
            while left > 0 && runs.count < CHUNK_BLOCKS {
                if self.frames.technique.tunes() && buddy.would_mix(order, migratetype) {
                    // One block of another type for a request that has to have one, none to keep.
                    if runs.count > 0 {
                        break;
                    }
                    if mixing == Mixing::Ask && buddy.may_collect(migratetype) {
                        return Refill::WouldMix;
                    }
                    left = 1;
                }
                let allowed = allowance(zone, &buddy, request) >> order.get();
                let run = match left.min(allowed) {
                    0 => None,
                    most => buddy.allocate_run(&self.frames.map, order, migratetype, most, given, events),
                };
                let Some(run) = run else { break };
                left -= run.1.min(left);
                runs.push(run);
            }
            if let Some(&(first, _)) = runs.runs.first().filter(|_| runs.count > 0) {
                ZoneBlocks::new(self.frames).reserve_around(zone, &mut buddy, first, request);
            }
        }
        // Described without the zone's lock: until it is on a list only this CPU knows the run.
        for &(first, blocks) in runs.runs[..runs.count].iter().rev() {
            pcp.push_run(&self.frames.map, first, u64::from(blocks), order, migratetype);
        }
        pcp.pop(&self.frames.map, order, migratetype)
            .map_or(Refill::Nothing, |(index, _)| Refill::Block(index))
    }
}

/// Describes a block that was taken off a CPU's list as the caller's.
#[inline]
pub(super) fn give_out<P: Platform>(pin: &Pin<'_, P>, frame: &Frame, request: &AllocRequest) {
    frame.set_home(pin.cpu());
    frame.set_word(FrameState::given_out(request.kind, request.order, request.migratetype));
}
