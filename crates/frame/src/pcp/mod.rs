//! The lists of free blocks that each CPU keeps for itself, one set a zone.
//!
//! Most allocations and frees end here and never see the zone's lock. A set is behind a lock of its own,
//! which its CPU takes without contention, so that any other CPU can drain it (M. Gorman, "High-order pages
//! on the per-CPU lists", 2016; the lock in place of interrupts off came with remote draining in Linux 6.0).
//!
//! Sizes are counted in base pages whatever the order of the blocks, and all orders share one budget. With
//! [`PcpTechnique::All`] the budget follows the traffic ([`tuning`]), and what a CPU has too much of goes
//! back to the CPU whose list it came from, if that one runs short ([`returned`]).

mod limits;
mod lists;
#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used, reason = "models are tests")]
mod models;
mod returned;
mod technique;
mod tuning;

pub(crate) use limits::PcpLimits;
pub(crate) use lists::{CHUNK_BLOCKS, Chunk, PcpLists};
pub(crate) use returned::{ReturnChain, Returned};
pub(crate) use technique::PcpSwitch;
pub use technique::PcpTechnique;
pub(crate) use tuning::TICKS_TO_EMPTY;

use quire_arch::{LockClass, Order, Platform};
use quire_sync::atomic::raw::{AtomicBool, Ordering};
use quire_sync::{CachePadded, SpinLock};

/// Blocks from this order on (256 KiB) are not kept at the price of others: which one was used last does not
/// matter, since no cache holds much of either. So when the budget is used up they go home one by one, as
/// long as no other thread is at the zone, instead of pushing out what has lain there longest.
pub(crate) const LARGE_ORDER: Order = Order::ALL[6];

/// What one CPU keeps of one zone.
#[derive(Debug)]
pub(crate) struct PcpSet<P> {
    pub(crate) lists: SpinLock<PcpLists, P>,
    /// Whether the budget was used up when a large block came last. Then the next ones go past the lists
    /// without asking for their lock, until the CPU misses something or a tick passes. A hint: the budget
    /// itself is looked at under the lock.
    full: AtomicBool,
    /// Written by other CPUs, so on a line of its own.
    pub(crate) returned: CachePadded<Returned>,
}

impl<P: Platform> PcpSet<P> {
    pub(crate) fn new(limits: PcpLimits) -> Self {
        Self {
            lists: SpinLock::new(LockClass::Pcp, PcpLists::new(limits)),
            full: AtomicBool::new(false),
            returned: CachePadded(Returned::new()),
        }
    }

    /// Whether a block of `order` goes past the lists just now.
    #[inline]
    pub(crate) fn is_full_for(&self, order: Order) -> bool {
        order >= LARGE_ORDER && self.full.load(Ordering::Relaxed)
    }

    /// Notes that the budget is used up, or that there may be room again.
    pub(crate) fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }
}
