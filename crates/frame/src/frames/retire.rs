//! Freeing blocks that lock-free readers may still access.

use super::Frames;
use crate::chain::FrameChain;
use crate::counters::VmEvent;
use crate::error::FreeError;
use crate::limbo::LimboLists;
use quire_arch::{Order, Pfn, Pin, Platform};
use quire_sync::SpinLock;

/// Blocks without readers that each retiring call frees: more than it adds, so that the limbo cannot grow
/// without bound.
const REAP_PORTION: u32 = 8;
/// Blocks that [`Frames::reap`] frees at most under one hold of the limbo's lock.
const REAP_BLOCKS: u32 = 256;
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
            // No bucket has passed: advance the epoch, so that one will.
            self.epoch.advance();
        } else {
            self.free_reaped(pin, portion);
        }
    }

    /// Frees what the caller's CPU retired, as far as the readers are gone, and returns the number of frames.
    /// To be called from time to time where nothing is retired any more.
    pub fn reap(&self, pin: &Pin<'_, P>) -> u64 {
        self.push_epoch();
        self.reap_cpu(pin, self.limbo.mine(pin))
    }

    /// As [`reap`](Self::reap), for what any CPU retired.
    pub fn reap_all(&self, pin: &Pin<'_, P>) -> u64 {
        self.push_epoch();
        self.limbo.iter().map(|limbo| self.reap_cpu(pin, limbo)).sum()
    }

    /// Advances the epoch far enough to free what was retired before this call, unless readers hold it.
    pub fn push_epoch(&self) {
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
}
