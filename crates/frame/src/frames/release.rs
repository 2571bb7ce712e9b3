//! Freeing blocks.

use super::Frames;
use super::surplus::Surplus;
use super::zone_blocks::ZoneBlocks;
use crate::chain::FrameChain;
use crate::counters::VmEvent;
use crate::error::FreeError;
use crate::map::{Frame, FrameFlags, FrameIndex, LockCheck};
use crate::pcp::{CHUNK_BLOCKS, Chunk, PcpLists};
use crate::zone::Zone;
use quire_arch::{Order, Pfn, Pin, Platform};

impl<P: Platform> Frames<P> {
    /// Frees a block and drops its last reference (a block without references is accepted too, see
    /// [`Frame::put`](crate::Frame::put)). Never allocates.
    ///
    /// # Errors
    ///
    /// See [`FreeError`]; nothing was changed. Every frame of the block is checked, not only the first, if
    /// its user said that inner frames are in use ([`FrameFlags::TAILS_IN_USE`]) or the machine checks always
    /// ([`FrameConfig::check_tails`](crate::FrameConfig::check_tails)).
    #[inline]
    pub fn free(&self, pin: &Pin<'_, P>, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        let (index, frame) = self.take_back(pfn, order, LockCheck::MustBeFree)?;
        self.events.add(pin, VmEvent::Pgfree, order.pages());
        let zone = self.zone(frame.zone());
        if self.technique.covers(order) {
            let set = zone.pcp.mine(pin);
            if set.is_full_for(order) && Surplus::new(self).free_past_lists(pin, zone, index, order) {
                return Ok(());
            }
            let mut pcp = set.lists.lock();
            if pcp.push_released(&self.map, (index, frame), pfn, order) {
                if pcp.pages() + set.returned.pages() > pcp.high() {
                    let migratetype = frame.word().migratetype();
                    Surplus::new(self).spill(pin, zone, (set, &mut pcp), (order, migratetype));
                }
                return Ok(());
            }
        }
        let events = self.events.mine(pin);
        zone.lock(&self.platform).free_block(&self.map, index, order, events);
        Ok(())
    }

    /// Takes a block from its user and adds it to `chain`, to be freed later: as [`free`](Self::free), but no
    /// thread can get it before the chain is freed. Constant time, unless inner frames must be checked.
    ///
    /// # Errors
    ///
    /// As for [`free`](Self::free).
    #[inline]
    pub fn gather(&self, chain: &mut FrameChain, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        if self.try_gather(chain, pfn, order) {
            return Ok(());
        }
        self.gather_checked(chain, pfn, order)
    }

    /// As [`gather`](Self::gather) in the usual case: nothing stands in the way, and only the first frame
    /// must be checked. Otherwise changes nothing and returns false.
    #[inline]
    pub(super) fn try_gather(&self, chain: &mut FrameChain, pfn: Pfn, order: Order) -> bool {
        let Some((index, frame)) = self.map.find(pfn) else { return false };
        let taken = !(order > Order::ZERO && self.must_check_tails(frame)) && frame.try_release(order);
        if taken {
            chain.push(&self.map, (index, frame), order.pages());
        }
        taken
    }

    #[inline(never)]
    fn gather_checked(&self, chain: &mut FrameChain, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        // A reader of a table may hold its lock until it notices that the table was unlinked.
        let block = self.take_back(pfn, order, LockCheck::MayBeHeld)?;
        chain.push(&self.map, block, order.pages());
        Ok(())
    }

    /// Whether the inner frames of a block of several are checked when it is freed. If no thread used them,
    /// checking its first frame is enough.
    #[inline]
    fn must_check_tails(&self, frame: &Frame) -> bool {
        self.checks_tails || frame.word().flags().contains(FrameFlags::TAILS_IN_USE)
    }

    /// Takes up to `blocks` blocks off a chain: a long one is retired, or freed, in portions, each under a
    /// pin of its own.
    #[inline]
    pub fn take_portion(&self, chain: &mut FrameChain, blocks: u32) -> FrameChain {
        chain.split(&self.map, blocks)
    }

    /// Frees all blocks of `chain`. Locks are dropped after every few dozen blocks, so that other CPUs do not
    /// wait for the whole chain. Interrupts do, since the caller is pinned: a long chain is freed [in
    /// portions](Self::take_portion).
    pub fn free_chain(&self, pin: &Pin<'_, P>, mut chain: FrameChain) {
        self.events.add(pin, VmEvent::Pgfree, chain.pages());
        while let Some((index, frame, order)) = chain.pop(&self.map) {
            if order == Order::ZERO
                && let Some(next) = chain.pop_single(&self.map)
            {
                let mut singles = Chunk::new();
                singles.push(index, 1);
                singles.push(next, 1);
                while !singles.is_full()
                    && let Some(index) = chain.pop_single(&self.map)
                {
                    singles.push(index, 1);
                }
                self.free_counted_singles(pin, &singles);
                continue;
            }
            let zone = self.zone(frame.zone());
            if self.technique.covers(order) {
                let set = zone.pcp.mine(pin);
                let mut pcp = set.lists.lock();
                let room = pcp.high().saturating_sub(pcp.pages() + set.returned.pages());
                if room >= order.pages()
                    && pcp.push_released(&self.map, (index, frame), self.map.pfn(index), order)
                {
                    self.chunk_to_pcp(&mut pcp, zone, &mut chain, room - order.pages());
                    continue;
                }
            }
            self.chunk_past_lists(pin, zone, &mut chain, (index, frame, order));
        }
    }

    /// Pushes what is in `chain`, up to `pages` and up to a chunk, to the CPU's lists of `zone`.
    fn chunk_to_pcp(&self, pcp: &mut PcpLists, zone: &Zone<P>, chain: &mut FrameChain, pages: u64) {
        let mut left = pages;
        for _ in 1..CHUNK_BLOCKS {
            let Some((index, frame, order)) = chain.pop(&self.map) else { return };
            let fits = order.pages() <= left && self.technique.covers(order) && frame.zone() == zone.id;
            if !fits || !pcp.push_released(&self.map, (index, frame), self.map.pfn(index), order) {
                chain.push_front(&self.map, index);
                return;
            }
            left -= order.pages();
        }
    }

    /// Frees single pages that were counted as freed: to the CPU's own lists as far as they have room.
    pub(super) fn free_counted_singles(&self, pin: &Pin<'_, P>, pages: &Chunk) {
        let mut rest = pages.blocks();
        while let Some(&first) = rest.first() {
            let zone = self.zone(self.map.at(first).zone());
            let mut done = 0;
            if self.technique.covers(Order::ZERO) {
                let set = zone.pcp.mine(pin);
                let mut pcp = set.lists.lock();
                let kept = pcp.pages() + set.returned.pages();
                let room = usize::try_from(pcp.high().saturating_sub(kept)).unwrap_or(usize::MAX);
                done = pcp.push_singles(&self.map, &rest[..rest.len().min(room)], zone.id);
            }
            if done == 0 {
                let mut past = Chunk::new();
                let of_zone = rest.iter().take_while(|&&index| self.map.at(index).zone() == zone.id);
                of_zone.for_each(|&index| past.push(index, 1));
                done = past.blocks().len();
                self.free_past_lists(pin, zone, &past);
            }
            rest = &rest[done..];
        }
    }

    /// Gives the blocks of `chunk` back past the CPU's own lists: to the CPUs whose lists they came from, or
    /// to `zone`.
    fn free_past_lists(&self, pin: &Pin<'_, P>, zone: &Zone<P>, chunk: &Chunk) {
        if self.technique.tunes() {
            Surplus::new(self).return_or_free(pin, zone, chunk);
        } else {
            ZoneBlocks::new(self).free_to_zone(pin, zone, chunk.blocks());
        }
    }

    /// Gives `first` and what follows it in `chain` back past the CPU's own lists, up to a chunk: to the CPUs
    /// whose lists they came from, or to `zone`.
    fn chunk_past_lists(
        &self,
        pin: &Pin<'_, P>,
        zone: &Zone<P>,
        chain: &mut FrameChain,
        first: (FrameIndex, &Frame, Order),
    ) {
        let mut chunk = Chunk::new();
        let mut next = Some(first);
        while let Some((index, frame, order)) = next {
            if frame.zone() != zone.id || chunk.is_full() {
                chain.push_front(&self.map, index);
                break;
            }
            chunk.push(index, order.pages());
            next = chain.pop(&self.map);
        }
        self.free_past_lists(pin, zone, &chunk);
    }

    /// Checks a block and takes it from its user.
    #[inline]
    fn take_back(&self, pfn: Pfn, order: Order, lock: LockCheck) -> Result<(FrameIndex, &Frame), FreeError> {
        let (index, frame) = self.map.find(pfn).ok_or(FreeError::OutOfRange)?;
        if order > Order::ZERO && self.must_check_tails(frame) {
            self.check_tails(pfn, order)?;
        }
        match frame.release(order, lock) {
            Ok(()) => Ok((index, frame)),
            Err(error) => Err(self.explain(pfn, error)),
        }
    }

    /// Checks the inner frames of a block that is about to be freed with `order`. Whether the block has that
    /// order at all is found out by its first frame.
    fn check_tails(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        let word = self.map.known(pfn).word();
        if !word.kind().is_given_out() || word.order() != order {
            return Ok(());
        }
        let tails = (pfn.0 + 1..pfn.0 + order.pages()).map(Pfn);
        match tails.into_iter().find(|&pfn| !self.map.known(pfn).is_clean_tail()) {
            Some(pfn) => Err(FreeError::BadTail { pfn }),
            None => Ok(()),
        }
    }

    /// A tail's word does not say whether its block is free; the block's first frame does.
    #[cold]
    fn explain(&self, pfn: Pfn, error: FreeError) -> FreeError {
        if error != FreeError::NotHead {
            return error;
        }
        let head = Order::ALL.into_iter().find_map(|order| {
            let word = self.map.known(pfn.block_start(order)).word();
            (word.kind().is_head() && word.order() >= order).then_some(word)
        });
        match head {
            Some(word) if !word.kind().is_given_out() => FreeError::DoubleFree,
            _ => error,
        }
    }
}
