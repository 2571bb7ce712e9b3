//! Taking blocks back.

use super::Frames;
use crate::chain::FrameChain;
use crate::counters::VmEvent;
use crate::error::FreeError;
use crate::limbo::LimboLists;
use crate::map::{FrameIndex, LockCheck};
use crate::pcp::{PcpLists, PcpSet};
use crate::zone::{Zone, ZoneKind};
use quire_arch::{CpuId, Order, Pfn, Pin, Platform};
use quire_sync::SpinLock;

/// Base pages that go back to a zone under one hold of its lock, unless a single block is larger.
const CHUNK_PAGES: u64 = 64;
/// Blocks that each retiring call frees of those whose readers are gone: more than it adds, so that the limbo
/// cannot grow for ever.
const REAP_PORTION: u32 = 8;
/// Blocks that [`Frames::reap`] frees at most under one hold of the limbo's lock.
const REAP_BLOCKS: u32 = 256;
/// Times that the epoch must move before what was retired just now is free.
const EPOCHS: u32 = 2;

impl<P: Platform> Frames<P> {
    /// Gives a block back, and with it the last reference (a block with no reference left is taken too, see
    /// [`Frame::put`](crate::Frame::put)). Never allocates.
    ///
    /// # Errors
    ///
    /// See [`FreeError`]; nothing was changed. Every frame of the block is checked, not only the first.
    #[inline]
    pub fn free(&self, pin: &Pin<'_, P>, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        let index = self.take_back(pfn, order, LockCheck::MustBeFree)?;
        self.events.add(pin, VmEvent::Pgfree, order.pages());
        let zone = self.zone(ZoneKind::of(pfn));
        if self.technique.covers(order) {
            let mut pcp = self.pcp.mine(pin).zone(zone.kind).lock();
            pcp.push_released(&self.map, index, order);
            if pcp.pages() > pcp.limits().high {
                let batch = pcp.limits().batch;
                self.drain_chunk(pin, zone, &mut pcp, batch);
            }
        } else {
            let mut buddy = zone.buddy.lock();
            buddy.free_block(&self.map, index, order, self.events.mine(pin));
            zone.publish_free(&buddy);
        }
        Ok(())
    }

    /// Takes a block from its user and adds it to `chain`, to be given back later: as [`free`](Self::free), but
    /// nobody can get it before the chain is freed. Constant time for a single frame.
    ///
    /// # Errors
    ///
    /// As for [`free`](Self::free).
    #[inline]
    pub fn gather(&self, chain: &mut FrameChain, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        // A reader of a table may hold its lock until it notices that the table was unhooked.
        let index = self.take_back(pfn, order, LockCheck::MayBeHeld)?;
        chain.push(&self.map, index, order.pages());
        Ok(())
    }

    /// Gives all blocks of `chain` back. Locks are dropped after every few dozen pages, so that neither other CPUs
    /// nor interrupts wait for the whole of it.
    pub fn free_chain(&self, pin: &Pin<'_, P>, mut chain: FrameChain) {
        self.events.add(pin, VmEvent::Pgfree, chain.pages());
        while let Some(index) = chain.pop(&self.map) {
            let zone = self.zone(ZoneKind::of(self.map.pfn(index)));
            let order = self.map.at(index).word().order();
            if self.technique.covers(order) {
                let mut pcp = self.pcp.mine(pin).zone(zone.kind).lock();
                let room = pcp.limits().high.saturating_sub(pcp.pages()).min(CHUNK_PAGES);
                if room >= order.pages() {
                    self.chunk_to_pcp(&mut pcp, zone, &mut chain, index, room);
                    continue;
                }
            }
            self.chunk_to_zone(pin, zone, &mut chain, index);
        }
    }

    /// Pushes `first` and what follows it in `chain`, up to `pages`, to the CPU's lists of `zone`.
    fn chunk_to_pcp(
        &self,
        pcp: &mut PcpLists,
        zone: &Zone<P>,
        chain: &mut FrameChain,
        first: FrameIndex,
        pages: u64,
    ) {
        let mut left = pages;
        let mut next = Some(first);
        while let Some(index) = next {
            let order = self.map.at(index).word().order();
            let fits = order.pages() <= left && self.technique.covers(order);
            if !fits || ZoneKind::of(self.map.pfn(index)) != zone.kind {
                chain.push_front(&self.map, index);
                return;
            }
            pcp.push_released(&self.map, index, order);
            left -= order.pages();
            next = chain.pop(&self.map);
        }
    }

    /// Gives `first` and what follows it in `chain` to `zone`, up to a chunk.
    fn chunk_to_zone(&self, pin: &Pin<'_, P>, zone: &Zone<P>, chain: &mut FrameChain, first: FrameIndex) {
        let events = self.events.mine(pin);
        let mut buddy = zone.buddy.lock();
        let mut done = 0;
        let mut next = Some(first);
        while let Some(index) = next {
            if done >= CHUNK_PAGES || ZoneKind::of(self.map.pfn(index)) != zone.kind {
                chain.push_front(&self.map, index);
                break;
            }
            let order = self.map.at(index).word().order();
            buddy.free_block(&self.map, index, order, events);
            done += order.pages();
            next = chain.pop(&self.map);
        }
        zone.publish_free(&buddy);
    }

    /// Gives back a block that lock-free readers may still be looking at: it is reused only when every section of
    /// [`epoch`](Self::epoch) that was open at this moment is closed. Its contents and descriptor stay as they are
    /// until then.
    ///
    /// # Errors
    ///
    /// As for [`free`](Self::free).
    pub fn retire(&self, pin: &Pin<'_, P>, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        let mut chain = FrameChain::new();
        self.gather(&mut chain, pfn, order)?;
        self.retire_chain(pin, chain);
        Ok(())
    }

    /// As [`retire`](Self::retire) for all blocks of a chain, with one lock and one stamp.
    pub fn retire_chain(&self, pin: &Pin<'_, P>, chain: FrameChain) {
        if chain.is_empty() {
            return;
        }
        self.events.add(pin, VmEvent::LimboRetired, chain.pages());
        for index in chain.iter(&self.map) {
            let frame = self.map.at(index);
            frame.set_word(frame.word().in_limbo());
        }
        let portion = {
            let mut limbo = self.limbo.mine(pin).lock();
            limbo.retire(&self.map, &self.epoch, chain);
            limbo.collect(&self.map, &self.epoch, REAP_PORTION)
        };
        if portion.is_empty() {
            // Nothing has passed: help the epoch on, so that something will.
            self.epoch.advance();
        } else {
            self.free_reaped(pin, portion);
        }
    }

    /// Frees what the caller's CPU retired, as far as the readers are gone, and returns the number of frames. To be
    /// called from time to time where nothing is retired any more.
    pub fn reap(&self, pin: &Pin<'_, P>) -> u64 {
        self.push_epoch();
        self.reap_cpu(pin, self.limbo.mine(pin))
    }

    /// As [`reap`](Self::reap), for what any CPU retired.
    pub fn reap_all(&self, pin: &Pin<'_, P>) -> u64 {
        self.push_epoch();
        self.limbo.iter().map(|limbo| self.reap_cpu(pin, limbo)).sum()
    }

    /// Moves the epoch so far that what was retired before this call is free, unless readers hold it.
    pub(crate) fn push_epoch(&self) {
        for _ in 0..EPOCHS {
            if !self.epoch.advance() {
                return;
            }
        }
    }

    fn reap_cpu(&self, pin: &Pin<'_, P>, limbo: &SpinLock<LimboLists, P>) -> u64 {
        let mut freed = 0;
        loop {
            let portion = limbo.lock().collect(&self.map, &self.epoch, REAP_BLOCKS);
            if portion.is_empty() {
                return freed;
            }
            freed += portion.pages();
            self.free_reaped(pin, portion);
        }
    }

    fn free_reaped(&self, pin: &Pin<'_, P>, portion: FrameChain) {
        self.events.add(pin, VmEvent::LimboFreed, portion.pages());
        self.free_chain(pin, portion);
    }

    /// Empties one CPU's lists into the zones and returns the number of frames. Any CPU may drain any other.
    pub fn drain(&self, pin: &Pin<'_, P>, cpu: CpuId) -> u64 {
        self.pcp.get(cpu).map_or(0, |set| self.drain_set(pin, set))
    }

    /// As [`drain`](Self::drain), for all CPUs.
    pub fn drain_all(&self, pin: &Pin<'_, P>) -> u64 {
        self.pcp.iter().map(|set| self.drain_set(pin, set)).sum()
    }

    fn drain_set(&self, pin: &Pin<'_, P>, set: &PcpSet<P>) -> u64 {
        self.zones.iter().map(|zone| self.drain_zone(pin, zone, set)).sum()
    }

    /// What the lists hold is read under the first hold of their lock and bounds the whole drain, so that a CPU that
    /// refills meanwhile cannot keep it busy for ever; under every later hold the lists themselves are looked at
    /// anew, so that nothing is taken from them that went elsewhere meanwhile.
    fn drain_zone(&self, pin: &Pin<'_, P>, zone: &Zone<P>, set: &PcpSet<P>) -> u64 {
        let lists = set.zone(zone.kind);
        let (mut drained, mut bound) = (0, None);
        loop {
            let mut pcp = lists.lock();
            let bound = *bound.get_or_insert(pcp.pages());
            let chunk = CHUNK_PAGES.min(bound - bound.min(drained));
            if chunk == 0 || pcp.pages() == 0 {
                return drained;
            }
            drained += self.drain_chunk(pin, zone, &mut pcp, chunk);
        }
    }

    /// Moves at least `pages` base pages, or all there are, from the lists to their zone under one hold of its lock,
    /// from the fullest list first; returns how many.
    fn drain_chunk(&self, pin: &Pin<'_, P>, zone: &Zone<P>, pcp: &mut PcpLists, pages: u64) -> u64 {
        let events = self.events.mine(pin);
        let mut done = 0;
        let mut buddy = zone.buddy.lock();
        while done < pages
            && let Some((order, migratetype)) = pcp.fullest()
        {
            while done < pages
                && let Some(index) = pcp.pop(&self.map, order, migratetype)
            {
                buddy.free_block(&self.map, index, order, events);
                done += order.pages();
            }
        }
        zone.publish_free(&buddy);
        drop(buddy);
        events.add(VmEvent::PcpDrain, done);
        done
    }

    /// Checks a block and takes it from its user.
    #[inline]
    fn take_back(&self, pfn: Pfn, order: Order, lock: LockCheck) -> Result<FrameIndex, FreeError> {
        let frame = self.map.known(pfn);
        let index = self.map.checked_index(pfn).ok_or(FreeError::OutOfRange)?;
        if order > Order::ZERO {
            self.check_tails(pfn, order)?;
        }
        match frame.release(order, lock) {
            Ok(()) => Ok(index),
            Err(error) => Err(self.explain(pfn, error)),
        }
    }

    /// Checks the inner frames of a block that is about to be freed with `order`. Whether the block has that order
    /// at all is found out by its first frame.
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

    /// A tail's word does not say whether its block is free; its first frame does.
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
