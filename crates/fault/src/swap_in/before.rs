//! What the old technique ([`SwapTechnique::Bypass`](quire_swap::SwapTechnique::Bypass)) does differently;
//! kept for comparison.
//!
//! It bypasses the cache for reads from a synchronous device: the slot is marked busy, and the shadow is
//! looked up and cleared separately. A thread that finds the mark sleeps a tick and tries again. If several
//! entries name the slot, or the device is asynchronous, a page goes through the cache.

use super::SwapIn;
use crate::error::SwapInError;
use crate::swapped_in::{CacheFate, SwappedIn};
use core::cell::Cell;
use quire_arch::{Order, Platform};
use quire_frame::FrameFlags;
use quire_memcg::MemcgId;
use quire_swap::SlotId;

/// How long a loser sleeps, in nanoseconds: a tick of a kernel at 1000 Hz.
const TICK: u64 = 1_000_000;

impl<'s, P: Platform> SwapIn<'s, '_, P> {
    /// Whether the page of `slot` is read without the cache: no other entry names it, and the device is
    /// synchronous.
    pub(super) fn may_bypass(self, slot: SlotId) -> bool {
        self.memory.swap().io().is_synchronous(slot) && self.memory.swap().counts().is_named_once(slot)
    }

    /// Reads the page of `slot` without the cache. `None` if another thread does.
    pub(super) fn read_past_cache(
        self,
        slot: SlotId,
        memcg: MemcgId,
    ) -> Result<Option<SwappedIn<'s, P>>, SwapInError> {
        let swap = self.memory.swap();
        if !swap.cache().try_begin_bypass(slot) {
            self.wait_for_bypass();
            return Ok(None);
        }
        let end = || swap.cache().end_bypass(slot);
        let (head, charged) = match self.new_swap_folio(Order::ZERO, (slot, memcg)) {
            Ok(Some(made)) => made,
            Ok(None) => {
                end();
                return Ok(None);
            }
            Err(error) => {
                end();
                return Err(error);
            }
        };
        let Some(guard) = self.memory.frames().folios().try_lock_folio(head) else {
            end();
            self.memory.memcgs().folios().release_folio(head);
            return Ok(None);
        };
        // The slot is charged to no other memcg while it is busy.
        let of_slot = MemcgId::from_bits(swap.counts().memcg_of(slot));
        if of_slot != charged && !self.memory.memcgs().tree().is_removed(of_slot) {
            self.settle_charge(Order::ZERO, charged, of_slot);
            self.memory.frames().known(head).as_folio().set_memcg(of_slot.get());
        }
        self.note_major(&self.memory.platform().pin(), head, swap.cache().shadow_of(slot));
        let then = Cell::new(CacheFate::PastCache);
        let held =
            SwappedIn { memory: self.memory, head, order: Order::ZERO, slot, guard: Some(guard), then };
        // SAFETY: a folio of one page that was allocated here and that this keeps. It is in no cache and no
        // page table, and its lock is held, so no other thread looks into it.
        match unsafe { swap.io().read_past_cache(slot, head) } {
            Ok(()) => {
                // No slot has these contents once its last entry is gone: as for what leaves the cache.
                self.memory.frames().known(head).set_flags(FrameFlags::DIRTY);
                Ok(Some(held))
            }
            Err(_) => Err(SwapInError::Unreadable),
        }
    }

    /// Sleeps a tick, if another thread may be reading the page past the cache.
    pub(super) fn wait_for_bypass(self) {
        if !self.memory.swap().technique().bypasses() {
            return;
        }
        let end = self.memory.platform().now() + TICK;
        let mut attempt = u32::MAX / 2;
        while self.memory.platform().now() < end {
            P::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
    }
}
