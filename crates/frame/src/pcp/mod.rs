//! The per-CPU lists of free blocks, one set per zone.
//!
//! Most allocations and frees end here and never see the zone's lock. A set is behind a lock of its own,
//! which its CPU takes without contention, so that any other CPU can drain it (M. Gorman, "High-order pages
//! on the per-CPU lists", 2016; the lock in place of interrupts off came with remote draining in Linux 6.0).
//!
//! Sizes are counted in base pages whatever the order of the blocks, and all orders share one budget. With
//! [`PcpTechnique::All`] the budget follows the traffic ([`tuning`]), and a CPU's surplus is returned to the
//! CPU whose list it came from, if that CPU runs short ([`returned`]).

mod limits;
mod lists;
#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used, reason = "models are tests")]
mod models;
mod returned;
mod technique;
mod tuning;

pub(crate) use limits::{CHUNK_BLOCKS, PcpLimits};
pub(crate) use lists::{Chunk, PcpLists};
pub(crate) use returned::{ReturnChain, Returned};
pub(crate) use technique::PcpSwitch;
pub use technique::PcpTechnique;
pub(crate) use tuning::TICKS_TO_EMPTY;

use quire_arch::{LockClass, Order, Platform};
use quire_sync::atomic::raw::{AtomicBool, Ordering};
use quire_sync::{CachePadded, SpinLock};

/// Blocks from this order on (256 KiB) do not displace others: which one was used last does not matter, since
/// no cache holds much of either. So when the budget is used up they are freed to the zone one by one, while
/// its lock is uncontended, instead of displacing the oldest blocks.
pub(crate) const LARGE_ORDER: Order = Order::ALL[6];

/// What one CPU keeps of one zone.
#[derive(Debug)]
pub(crate) struct PcpSet<P> {
    pub(crate) lists: SpinLock<PcpLists, P>,
    /// Whether the budget was used up when a large block came last. Then the next ones bypass the lists
    /// without taking their lock, until a miss or a tick. A hint: the budget itself is checked under the
    /// lock.
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

    /// Whether a block of `order` bypasses the lists now.
    #[inline]
    pub(crate) fn is_full_for(&self, order: Order) -> bool {
        order >= LARGE_ORDER && self.full.load(Ordering::Relaxed)
    }

    /// Records that the budget is used up, or that there may be room again.
    pub(crate) fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }

    /// Moves what other CPUs returned to the lists' own, unless some of what came before is not used up: to
    /// join the two would take as long as one of them is.
    pub(crate) fn receive(&self, pcp: &mut PcpLists) {
        if pcp.incoming_pages() == 0
            && let Some((first, pages)) = self.returned.take()
        {
            pcp.receive(first, pages);
        }
    }
}
