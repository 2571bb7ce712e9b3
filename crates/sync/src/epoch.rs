//! Quiescent-state epochs: memory that lock-free readers may still access is reused only after all of them
//! have left.
//!
//! The scheme is epoch-based reclamation (K. Fraser, "Practical lock-freedom", 2004, section 5.2.3) with one
//! slot per CPU. A reader copies the global epoch to its CPU's slot; the global epoch advances when every CPU
//! inside has seen the current one. What was unlinked in epoch `e` may be reused once the global epoch is
//! `e + 2`: a reader that could still hold a reference entered in `e` or earlier, or in `e + 1` before the
//! unlinking was visible, and keeps the epoch from advancing to `e + 2`.

use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::per_cpu::PerCpu;
use core::marker::PhantomData;
use quire_arch::{Execution, Pin, Platform};

/// One CPU's place in an [`Epoch`].
#[derive(Debug)]
pub struct EpochSlot {
    /// 0 outside; inside, the epoch at entry times two plus one.
    state: AtomicU64,
    /// Depth of nested entries. Only the pinned owner of the CPU changes it.
    depth: AtomicU32,
}

impl Default for EpochSlot {
    fn default() -> Self {
        Self { state: AtomicU64::new(0), depth: AtomicU32::new(0) }
    }
}

impl EpochSlot {
    #[inline]
    pub(crate) fn enter(&self, global: &AtomicU64) {
        let depth = self.depth.load(Ordering::Relaxed);
        self.depth.store(depth + 1, Ordering::Relaxed);
        if depth == 0 {
            // An exchange, for its full barrier: the announcement is visible before anything is read under
            // it. Pairs with the fence in `advance`.
            self.state.swap(global.load(Ordering::Relaxed) << 1 | 1, Ordering::SeqCst);
            // On x86 a locked exchange is a full barrier by itself (Intel SDM volume 3, "Locked Instructions
            // and Memory Ordering"), and the fence instruction would cost three times as much again.
            if cfg!(any(loom, not(target_arch = "x86_64"))) {
                fence(Ordering::SeqCst);
            }
        }
    }

    #[inline]
    pub(crate) fn exit(&self) {
        let depth = self.depth.load(Ordering::Relaxed) - 1;
        self.depth.store(depth, Ordering::Relaxed);
        if depth == 0 {
            // Pairs with the acquiring load in `advance`: what was read here was read before the epoch
            // advanced.
            self.state.store(0, Ordering::Release);
        }
    }
}

/// When something was unlinked; see [`Epoch::stamp`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Stamp(u64);

impl Stamp {
    /// Buckets that hold what is retired: of the epoch's stamp and of the one before, whose readers may still
    /// be there, and one more. The contents of a bucket have passed when another stamp uses it.
    pub const BUCKETS: usize = 3;

    /// The bucket of what is retired with this stamp.
    #[inline]
    pub const fn bucket(self) -> usize {
        (self.0 % Self::BUCKETS as u64) as usize
    }

    /// The stamp as a plain number, to be kept in a word.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The epochs of one machine.
#[derive(Debug)]
pub struct Epoch {
    global: AtomicU64,
    slots: PerCpu<EpochSlot>,
}

impl Epoch {
    /// Epochs over one slot per CPU.
    pub fn new(slots: PerCpu<EpochSlot>) -> Self {
        Self { global: AtomicU64::new(2), slots }
    }

    /// Starts a section in which nothing that it reaches without locks is reused. Nests. The section must be
    /// short: it holds back the reuse of memory on the whole machine.
    #[inline]
    pub fn enter<'e, P: Platform>(&'e self, pin: &'e Pin<'_, P>) -> EpochGuard<'e> {
        let slot = self.slots.mine(pin);
        slot.enter(&self.global);
        EpochGuard { slot, not_send: PhantomData }
    }

    /// Whether the pinned CPU is in a section.
    pub fn is_entered<P: Platform>(&self, pin: &Pin<'_, P>) -> bool {
        self.slots.mine(pin).depth.load(Ordering::Relaxed) > 0
    }

    /// Waits until all sections that are open now have closed. What was stored before this call is seen by
    /// every section that begins later, and what the others stored is seen after it. The caller is in no
    /// section.
    pub fn wait_for_sections<E: Execution>(&self) {
        let stamp = self.stamp();
        let mut attempt = 0;
        while !self.has_passed(stamp) {
            if !self.advance() {
                E::relax(attempt);
                attempt = attempt.saturating_add(1);
            }
        }
    }

    /// The stamp for something that was unlinked just before this call.
    #[inline]
    pub fn stamp(&self) -> Stamp {
        // The unlinking store comes before the read of the epoch; pairs with the barrier in
        // `EpochSlot::enter`.
        fence(Ordering::SeqCst);
        Stamp(self.global.load(Ordering::Relaxed))
    }

    /// Whether what carries `stamp` may be reused.
    #[inline]
    pub fn has_passed(&self, stamp: Stamp) -> bool {
        // Pairs with the exchange in `advance`.
        self.global.load(Ordering::Acquire) >= stamp.0 + 2
    }

    #[cfg(all(test, loom))]
    pub(crate) fn slot(&self, cpu: quire_arch::CpuId) -> &EpochSlot {
        self.slots.get(cpu).unwrap()
    }

    #[cfg(all(test, loom))]
    pub(crate) fn global(&self) -> &AtomicU64 {
        &self.global
    }

    /// Advances the epoch by one if no CPU is still in an older one, and returns whether it advanced (by any
    /// CPU).
    pub fn advance(&self) -> bool {
        let now = self.global.load(Ordering::Relaxed);
        // Pairs with the exchange in `EpochSlot::enter`: a reader whose announcement is not seen below sees
        // all that was unlinked before this call.
        fence(Ordering::SeqCst);
        for slot in self.slots.iter() {
            // Pairs with the release in `EpochSlot::exit`.
            let state = slot.state.load(Ordering::Acquire);
            if state & 1 == 1 && state >> 1 != now {
                return false;
            }
        }
        // The release pairs with the acquiring load in `has_passed`, and hands on what the loads above
        // acquired; the acquire pairs with the release of the exchange before, for the sections that ended
        // before that. A failure means that another CPU advanced it meanwhile.
        let _ = self.global.compare_exchange(now, now + 1, Ordering::AcqRel, Ordering::Relaxed);
        true
    }
}

/// A section under the epoch, until dropped.
#[must_use = "the section ends when the guard is dropped"]
#[derive(Debug)]
pub struct EpochGuard<'e> {
    slot: &'e EpochSlot,
    not_send: PhantomData<*const ()>,
}

impl Drop for EpochGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slot.exit();
    }
}
