//! Allocations that may wait for reclaim.

use super::Frames;
use crate::error::AllocError;
use crate::faults::FaultClass;
use crate::request::AllocRequest;
use quire_arch::{Order, Pfn, Platform};

/// Larger orders than this are costly: reclaim can free any number of frames without forming such a block, so an
/// ordinary request for one gives up early and kills nobody (Linux's `PAGE_ALLOC_COSTLY_ORDER`).
const COSTLY_ORDER: u8 = 3;
/// Rounds of reclaim after which memory counts as exhausted: such that freed nothing, or that freed frames from which no
/// block of the order came.
const MAX_VAIN_ROUNDS: u32 = 16;

/// Who can make room. The frame room asks it before an allocation fails; rooms below implement it.
///
/// Called without a pin and without locks, so all of it may sleep and use [`Frames`].
pub trait Reclaimer<P: Platform>: Sync {
    /// Tries to free memory for `request` and answers how many frames came free that it may use.
    fn reclaim(&self, frames: &Frames<P>, request: &AllocRequest) -> u64;

    /// Reclaim finds nothing more. Makes somebody give up memory, e.g. by ending a program, and answers whether there
    /// was somebody.
    fn out_of_memory(&self, frames: &Frames<P>, request: &AllocRequest) -> bool;

    /// Waits a little for memory that others are about to give back.
    fn wait(&self, frames: &Frames<P>);
}

impl<P: Platform> Frames<P> {
    /// As [`allocate`](Self::allocate), but makes room through `reclaimer` before it fails, and does not fail at all if
    /// the request is a [`no_fail`](AllocRequest::no_fail) one. The caller holds no lock and no pin.
    ///
    /// Where there is room for single frames but not for a costly order, an ordinary request fails after one round. One
    /// that must not fail goes on, and comes to [`Reclaimer::out_of_memory`] whatever its order is: reclaim alone may
    /// never form the block.
    ///
    /// # Errors
    ///
    /// As for [`allocate`](Self::allocate).
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate_with(
        &self,
        request: AllocRequest,
        reclaimer: &dyn Reclaimer<P>,
    ) -> Result<Pfn, AllocError> {
        if !request.no_fail && self.faults.strikes(FaultClass::Frames, request.site) {
            return Err(AllocError::Injected);
        }
        let costly = request.order > Order::ALL[COSTLY_ORDER as usize];
        let mut vain_rounds = 0;
        loop {
            let allocated = self.allocate_quietly(&self.platform.pin(), request);
            if allocated.is_ok() || !request.may_sleep {
                return allocated;
            }
            let freed = reclaimer.reclaim(self, &request);
            // Any frame serves a request for one, so freeing is progress for that alone; others may be faster, but not for ever.
            vain_rounds = if freed > 0 && request.order == Order::ZERO { 0 } else { vain_rounds + 1 };
            if costly && !request.no_fail {
                return self.allocate_quietly(&self.platform.pin(), request);
            }
            if vain_rounds >= MAX_VAIN_ROUNDS {
                let gave_up = reclaimer.out_of_memory(self, &request);
                if !gave_up && !request.no_fail {
                    return allocated;
                }
                vain_rounds = 0;
                reclaimer.wait(self);
            }
        }
    }

    /// Frames that background reclaim should still free in the zones of the machine: none as long as every zone is above
    /// its `low` watermark, boost included; once one fell below, as many as it lacks of `high`.
    pub fn background_target(&self) -> u64 {
        let lacking = self.zones.populated().map(|zone| {
            let marks = zone.levels.get();
            let free = zone.free() + super::report::listed_pages(zone);
            if free >= marks.low + marks.boost { 0 } else { marks.high + marks.boost - free }
        });
        lacking.sum()
    }

    /// Background reclaim has done its round: boosts that called for it end.
    pub fn end_boost(&self) {
        for zone in self.zones.populated() {
            zone.lock(&self.platform).clear_boost();
        }
    }
}
