//! Freeing blocks that lock-free readers may still access.

use super::Frames;
use super::caches::Turn;
use super::pcp::FramePcp;
use crate::chain::FrameChain;
use crate::counters::VmEvent;
use crate::error::FreeError;
use crate::limbo::LimboLists;
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
pub(super) const REAP_BLOCKS: u32 = 256;
/// Blocks that [`FrameLimbo::reap_some`] frees at most, and objects of each cache, of all CPUs together: it
/// is called in a timer's interrupt.
const SOME: u64 = 1024;
/// Epoch advances after which what is retired now can be freed.
const EPOCHS: u32 = 2;

quire_arch::part_of! {
    /// Blocks that were freed while lock-free readers may still access them.
    pub struct FrameLimbo { pub(super) frames: Frames }
}

impl<P: Platform> FrameLimbo<'_, P> {
    /// Frees a block that lock-free readers may still access: it is reused only when every section of
    /// [`epoch`](Frames::epoch) that is open now is closed. Its contents and descriptor stay as they are
    /// until then.
    ///
    /// # Errors
    ///
    /// As for [`free`](Frames::free).
    pub fn retire(self, pin: &Pin<'_, P>, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        let mut chain = FrameChain::new();
        self.frames.gather(&mut chain, pfn, order)?;
        self.retire_chain(pin, chain);
        Ok(())
    }

    /// As [`retire`](Self::retire) for all blocks of a chain, with one lock and one stamp. Frees in
    /// proportion to the chain what the caller's CPU retired before, and the chain itself if there are no
    /// readers now.
    pub fn retire_chain(self, pin: &Pin<'_, P>, chain: FrameChain) {
        if chain.is_empty() {
            return;
        }
        let added = u64::from(chain.blocks());
        self.frames.events.add(pin, VmEvent::LimboRetired, chain.pages());
        for index in chain.iter(&self.frames.map) {
            let frame = self.frames.map.at(index);
            frame.set_word(frame.word().in_limbo());
        }
        let limbo = self.frames.limbo.mine(pin);
        let (portion, left) = {
            let mut lists = limbo.lock();
            lists.retire(&self.frames.map, &self.frames.epoch, chain);
            let portion = lists.collect(&self.frames.map, &self.frames.epoch, REAP_PORTION, 0);
            (portion, lists.blocks())
        };
        if portion.is_empty() {
            // No bucket has passed: advance the epoch, so that one will.
            self.frames.epoch.advance();
        } else {
            self.free_reaped(pin, portion);
        }
        if left > KEPT_BLOCKS {
            self.push_epoch();
            self.reap_from(pin, limbo, &mut added.saturating_mul(REAP_FACTOR));
        }
    }

    /// Frees what the caller's CPU retired, as far as the readers are gone, and returns the number of frames.
    pub fn reap(self, pin: &Pin<'_, P>) -> u64 {
        self.push_epoch();
        self.reap_found(pin, self.frames.limbo.mine(pin))
    }

    /// As [`reap`](Self::reap), for what any CPU retired.
    pub fn reap_all(self, pin: &Pin<'_, P>) -> u64 {
        self.push_epoch();
        self.frames.limbo.iter().map(|limbo| self.reap_found(pin, limbo)).sum()
    }

    /// As [`reap_all`](Self::reap_all), for a bounded number of blocks, and of objects of each cache, that a
    /// bounded number of CPUs retired: the next call goes on with others. To be called from time to time, for
    /// CPUs that retire nothing any more.
    pub fn reap_some(self, pin: &Pin<'_, P>) -> u64 {
        self.push_epoch();
        let first = self.frames.reap_turn.load(Ordering::Relaxed);
        let cpus = Turn { first: first as usize, most: FramePcp::<P>::CPUS_AT_A_TICK };
        self.frames.caches().iter().for_each(|cache| cache.reap(self.frames, pin, cpus, SOME));
        let mut freed = 0;
        cpus.deal(&self.frames.limbo, SOME, |limbo, part| {
            let mut left = part;
            freed += self.reap_from(pin, limbo, &mut left);
            part - left
        });
        // Another one is the first also where all had their turn: it may use up what there is to free.
        let all = self.frames.platform().cpu_count();
        let seen = all.min(cpus.most);
        // Two calls at once may do the same.
        self.frames
            .reap_turn
            .store(first.wrapping_add((seen + usize::from(seen == all)) as u32), Ordering::Relaxed);
        freed
    }

    /// Calls of [`reap_some`](Self::reap_some) until all CPUs had their turn, if they free nothing.
    pub fn reap_turns(self) -> usize {
        self.frames.platform().cpu_count().div_ceil(FramePcp::<P>::CPUS_AT_A_TICK)
    }

    /// As [`reap_all`](Self::reap_all), for a caller that is not pinned: it is for a portion at a time.
    pub fn reap_all_in_portions(self) -> u64 {
        self.push_epoch();
        let mut freed = 0;
        for limbo in self.frames.limbo.iter() {
            let mut left = {
                let _pin = self.frames.platform.pin();
                limbo.lock().blocks()
            };
            let most = u64::from(REAP_BLOCKS);
            while let Some(frames) = self.reap_portion(&self.frames.platform.pin(), limbo, most, &mut left) {
                freed += frames;
            }
        }
        freed
    }

    /// Advances the epoch far enough to free what was retired before this call, unless readers hold it.
    pub fn push_epoch(self) {
        for _ in 0..EPOCHS {
            if !self.frames.epoch.advance() {
                return;
            }
        }
    }

    /// Frees what is in `limbo` at first: a CPU that retires meanwhile does not keep the caller busy.
    fn reap_found(self, pin: &Pin<'_, P>, limbo: &SpinLock<LimboLists, P>) -> u64 {
        let mut found = limbo.lock().blocks();
        self.reap_from(pin, limbo, &mut found)
    }

    /// Frees blocks of `limbo` whose readers are gone, up to `left`, from which they are subtracted, and
    /// returns the number of frames.
    fn reap_from(self, pin: &Pin<'_, P>, limbo: &SpinLock<LimboLists, P>, left: &mut u64) -> u64 {
        let mut freed = 0;
        while let Some(frames) = self.reap_portion(pin, limbo, u64::MAX, left) {
            freed += frames;
        }
        freed
    }

    /// What of that leaves the limbo under one hold of its lock, `most` blocks at most. `None` if there is no
    /// more.
    pub(super) fn reap_portion(
        self,
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
        let portion = limbo.lock().collect(&self.frames.map, &self.frames.epoch, limit, most);
        if portion.is_empty() {
            return None;
        }
        *left = left.saturating_sub(u64::from(portion.blocks()));
        let frames = portion.pages();
        self.free_reaped(pin, portion);
        Some(frames)
    }

    fn free_reaped(self, pin: &Pin<'_, P>, portion: FrameChain) {
        self.frames.events.add(pin, VmEvent::LimboFreed, portion.pages());
        self.frames.free_chain(pin, portion);
    }
}
