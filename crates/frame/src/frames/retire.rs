//! Freeing blocks that lock-free readers may still access.

use super::Frames;
use super::caches::Turn;
use crate::chain::FrameChain;
use crate::counters::VmEvent;
use crate::error::FreeError;
use crate::limbo::LimboLists;
use crate::map::FrameIndex;
use crate::request::AllocRequest;
use quire_arch::{Order, Pfn, Pin, Platform};
use quire_sync::SpinLock;
use quire_sync::atomic::Ordering;

/// Blocks without readers that each retiring call frees, however few it adds.
const REAP_PORTION: u32 = 8;
/// Blocks that a CPU's limbo may have at the end of a retiring call though no reader needs them. Beyond that
/// the call moves the epoch on and frees, for each block that it added, up to [`REAP_FACTOR`]: what long
/// readers have left behind shrinks by as much as is added, and no call takes longer than its own work
/// justifies.
const KEPT_BLOCKS: u64 = 64;
const REAP_FACTOR: u64 = 2;
/// Blocks that leave the limbo at most under one hold of its lock, if not all that are ready do.
const REAP_BLOCKS: u32 = 256;
/// Blocks that [`Frames::reap_some`] frees at most, and objects of each cache, of all CPUs together: it is
/// called in a timer's interrupt.
const SOME: u64 = 1024;
/// Epoch advances after which what is retired now can be freed.
const EPOCHS: u32 = 2;

impl<P: Platform> Frames<P> {
    /// Frees a block that lock-free readers may still access: it is reused only when every section of
    /// [`epoch`](Self::epoch) that is open now is closed. Its contents and descriptor stay as they are until
    /// then.
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

    /// As [`retire`](Self::retire) for all blocks of a chain, with one lock and one stamp. Frees in
    /// proportion to the chain what the caller's CPU retired before, and the chain itself if there are no
    /// readers now.
    pub fn retire_chain(&self, pin: &Pin<'_, P>, chain: FrameChain) {
        if chain.is_empty() {
            return;
        }
        let added = u64::from(chain.blocks());
        self.events.add(pin, VmEvent::LimboRetired, chain.pages());
        for index in chain.iter(&self.map) {
            let frame = self.map.at(index);
            frame.set_word(frame.word().in_limbo());
        }
        let limbo = self.limbo.mine(pin);
        let (portion, left) = {
            let mut lists = limbo.lock();
            lists.retire(&self.map, &self.epoch, chain);
            let portion = lists.collect(&self.map, &self.epoch, REAP_PORTION, 0);
            (portion, lists.blocks())
        };
        if portion.is_empty() {
            // No bucket has passed: advance the epoch, so that one will.
            self.epoch.advance();
        } else {
            self.free_reaped(pin, portion);
        }
        if left > KEPT_BLOCKS {
            self.push_epoch();
            self.reap_from(pin, limbo, &mut added.saturating_mul(REAP_FACTOR));
        }
    }

    /// Takes up to `blocks` blocks off a chain: a long one is retired, or freed, in portions, each under a
    /// pin of its own.
    #[inline]
    pub fn take_portion(&self, chain: &mut FrameChain, blocks: u32) -> FrameChain {
        chain.split(&self.map, blocks)
    }

    /// Frees what the caller's CPU retired, as far as the readers are gone, and returns the number of frames.
    pub fn reap(&self, pin: &Pin<'_, P>) -> u64 {
        self.push_epoch();
        self.reap_found(pin, self.limbo.mine(pin))
    }

    /// As [`reap`](Self::reap), for what any CPU retired.
    pub fn reap_all(&self, pin: &Pin<'_, P>) -> u64 {
        self.push_epoch();
        self.limbo.iter().map(|limbo| self.reap_found(pin, limbo)).sum()
    }

    /// As [`reap_all`](Self::reap_all), for a bounded number of blocks, and of objects of each cache, that a
    /// bounded number of CPUs retired: the next call goes on with others. To be called from time to time, for
    /// CPUs that retire nothing any more.
    pub fn reap_some(&self, pin: &Pin<'_, P>) -> u64 {
        self.push_epoch();
        let first = self.reap_turn.load(Ordering::Relaxed);
        let cpus = Turn { first: first as usize, most: Self::CPUS_AT_A_TICK };
        self.caches().for_each(|cache| cache.reap(self, pin, cpus, SOME));
        let mut freed = 0;
        cpus.deal(&self.limbo, SOME, |limbo, part| {
            let mut left = part;
            freed += self.reap_from(pin, limbo, &mut left);
            part - left
        });
        // Another one is the first also where all had their turn: it may use up what there is to free.
        let all = self.platform().cpu_count();
        let seen = all.min(cpus.most);
        // Two calls at once may do the same.
        self.reap_turn.store(first.wrapping_add((seen + usize::from(seen == all)) as u32), Ordering::Relaxed);
        freed
    }

    /// Calls of [`reap_some`](Self::reap_some) until all CPUs had their turn, if they free nothing.
    pub fn reap_turns(&self) -> usize {
        self.platform().cpu_count().div_ceil(Self::CPUS_AT_A_TICK)
    }

    /// As [`reap_all`](Self::reap_all), for a caller that is not pinned: it is for a portion at a time.
    pub fn reap_all_in_portions(&self) -> u64 {
        self.push_epoch();
        let mut freed = 0;
        for limbo in self.limbo.iter() {
            let mut left = {
                let _pin = self.platform.pin();
                limbo.lock().blocks()
            };
            let most = u64::from(REAP_BLOCKS);
            while let Some(frames) = self.reap_portion(&self.platform.pin(), limbo, most, &mut left) {
                freed += frames;
            }
        }
        freed
    }

    /// Frees what CPUs retired, the caller's own first, a portion at a time, until the request finds a block.
    pub(super) fn reap_for(&self, pin: &Pin<'_, P>, request: &AllocRequest) -> Option<FrameIndex> {
        self.push_epoch();
        for limbo in self.limbo.some(pin.cpu().index(), usize::MAX) {
            let mut left = limbo.lock().blocks();
            while self.reap_portion(pin, limbo, u64::from(REAP_BLOCKS), &mut left).is_some() {
                // What is on a list serves requests of its order and type only.
                self.drain(pin, pin.cpu());
                let found = self.try_zones(pin, request);
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }

    /// Advances the epoch far enough to free what was retired before this call, unless readers hold it.
    pub fn push_epoch(&self) {
        for _ in 0..EPOCHS {
            if !self.epoch.advance() {
                return;
            }
        }
    }

    /// Frees what is in `limbo` at first: a CPU that retires meanwhile does not keep the caller busy.
    fn reap_found(&self, pin: &Pin<'_, P>, limbo: &SpinLock<LimboLists, P>) -> u64 {
        let mut found = limbo.lock().blocks();
        self.reap_from(pin, limbo, &mut found)
    }

    /// Frees blocks of `limbo` whose readers are gone, up to `left`, from which they are subtracted, and
    /// returns the number of frames.
    fn reap_from(&self, pin: &Pin<'_, P>, limbo: &SpinLock<LimboLists, P>, left: &mut u64) -> u64 {
        let mut freed = 0;
        while let Some(frames) = self.reap_portion(pin, limbo, u64::MAX, left) {
            freed += frames;
        }
        freed
    }

    /// What of that leaves the limbo under one hold of its lock, `most` blocks at most. `None` if there is no
    /// more.
    fn reap_portion(
        &self,
        pin: &Pin<'_, P>,
        limbo: &SpinLock<LimboLists, P>,
        most: u64,
        left: &mut u64,
    ) -> Option<u64> {
        let most = most.min(*left);
        if most == 0 {
            return None;
        }
        let limit = u64::from(REAP_BLOCKS).min(most) as u32;
        let portion = limbo.lock().collect(&self.map, &self.epoch, limit, most);
        if portion.is_empty() {
            return None;
        }
        *left = left.saturating_sub(u64::from(portion.blocks()));
        let frames = portion.pages();
        self.free_reaped(pin, portion);
        Some(frames)
    }

    fn free_reaped(&self, pin: &Pin<'_, P>, portion: FrameChain) {
        self.events.add(pin, VmEvent::LimboFreed, portion.pages());
        self.free_chain(pin, portion);
    }
}
