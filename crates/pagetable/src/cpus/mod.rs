//! Which CPUs a TLB flush has to reach.
//!
//! A space keeps two sets of CPUs. *Running*: the space is current there, so the CPU may walk its tables and
//! use its translations at any time. *Fresh*: whatever the CPU's TLB holds under the space's tag matches the
//! tables, or will once flushes in flight have arrived; so the CPU may switch back without a flush. A flush
//! interrupts CPUs that run the space, and only removes the others from the fresh set: they flush when they
//! switch back. (Linux gets there with a generation for each space and a copy of it for each CPU and tag.)
//!
//! # Why no stale translation is used
//!
//! A flush F changes entries, clears the fresh set ([`SpaceCpus::reach`]), then reads the running set and
//! interrupts its CPUs. A CPU C that switches to the space adds itself to the running set, then checks
//! whether it is fresh. If not, it flushes the tag and marks itself fresh ([`SpaceCpus::enter`]); only then
//! does it load the tables and walk. Both have a full barrier between their two steps, as in Dekker's
//! algorithm, so at least one sees the other:
//!
//! - *F finds C running* and interrupts it. Whatever C's bit says, C has done F when F returns.
//! - *C finds that it is not fresh.* It drops what it holds. Its walks come after it read what F has cleared,
//!   hence after F's change: what it caches from then on is new.
//! - *Both* may happen; then C flushes twice.
//!
//! Only C sets C's bit, and only on its way into the space. Hence:
//!
//! - *A bit that is cleared while C runs* stays so. C is interrupted as long as it runs, so nothing in its
//!   TLB is stale; it flushes once more when it switches back later. To set the bit again after an
//!   interruption could undo the clearing of a second flush.
//! - *Two flushes at once*: the second may find nothing to clear, and still reads the running set. It does
//!   not even write a word that has nothing to clear: if it missed a bit that C set, its barrier came before
//!   the one with which C set it, and C has loaded the tables after that.
//! - *C leaves and returns between F's two steps*: it finds its bit cleared, flushes, and is interrupted too.
//!   If it leaves once more before F looks, it keeps a set bit, which is right: it flushed after F's change.
//! - *The CPU that flushes* and runs the space keeps its bit: it is pinned, so it cannot leave before it has
//!   flushed.
//! - *C leaves* only after it has loaded other tables, and by a release that F's look at the running set
//!   acquires. So accesses through what F removed happened before F frees the memory.
//! - *Spaces without a tag of their own* ([`Asid::NONE`](quire_arch::Asid::NONE)) share one, and the platform
//!   drops everything under it whenever a CPU switches to such a space. There the fresh set decides nothing,
//!   and what a CPU holds under this tag is of the space that it runs.
//! - *A tag that is reused*: no CPU is fresh in a new space, so each flushes the tag before it walks. Entries
//!   that were left under the tag of a space that has exited can no more be used than those on a CPU that a
//!   flush skipped. So an exit sends no interrupt.
//!
//! The models in `models.rs` try all of this under loom, those in `crates/host/tests/models/shootdowns.rs` on
//! whole machines.

mod cause;
#[cfg(all(test, loom))]
mod models;
mod pageouts;
mod slot;

pub use cause::FlushCause;
pub use pageouts::Pageouts;
pub(crate) use slot::{CpuSlot, clear_everywhere};

use quire_arch::{Asid, CpuId, CpuMask};
use quire_sync::AtomicCpuMask;
use quire_sync::atomic::{AtomicUsize, Ordering};

/// The CPUs of one space.
#[derive(Debug, Default)]
pub struct SpaceCpus {
    /// CPUs that have the space current. Each changes its own bit only, pinned; an exit also those of others,
    /// when no handle is left.
    running: AtomicCpuMask,
    /// CPUs that need no flush when they switch to the space. Each sets its own bit only; flushes clear all.
    fresh: AtomicCpuMask,
    /// Whether pages were moved to other addresses, with the flush of the old ones pending.
    moving: AtomicUsize,
}

/// The CPUs that a flush has to reach.
#[derive(Debug)]
pub struct Reach {
    /// CPUs that run the space.
    pub running: CpuMask,
    /// Number of CPUs that do not, and could have switched back without a flush.
    pub spared: usize,
}

impl SpaceCpus {
    /// No CPU has run the space yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The calling CPU is about to load the space's tables. `flush` drops what its TLB holds of the space.
    pub fn enter(&self, cpu: CpuId, flush: impl FnOnce()) {
        // Contains the full barrier of the module head's argument: the bit is checked after it.
        self.running.insert(cpu);
        if !self.fresh.contains(cpu) {
            flush();
            // A barrier too: the first walk comes after it.
            self.fresh.insert(cpu);
        }
    }

    /// `cpu` has loaded other tables, or cannot use these any more.
    pub fn leave(&self, cpu: CpuId) {
        self.running.remove(cpu);
    }

    /// The CPUs that a flush must reach, called on CPU `own` after the tables were changed. All others will
    /// flush before they use a translation of this space.
    #[inline]
    pub fn reach(&self, own: CpuId) -> Reach {
        let mut kept = CpuMask::EMPTY;
        // No other CPU changes this bit, so what is read is so.
        if self.running.contains(own) {
            kept.insert(own);
        }
        let cleared = self.fresh.clear_except(kept);
        // Reads after a full barrier of its own.
        let running = self.running.load();
        Reach { running, spared: if cleared.is_empty() { 0 } else { cleared.without(running).len() } }
    }

    /// Pages are about to move, and [`end_moves`](Self::end_moves) comes after the one flush of where they
    /// were. The caller holds the mmap lock for writing until then. A flush that another thread needs in
    /// between is one of all addresses: a thread that unmaps a page at its new address does not know the old
    /// one, which TLBs may still hold.
    pub fn begin_moves(&self) {
        // Pairs with `is_moving`: a thread that finds a page at its new address, under the lock of the table,
        // finds this.
        self.moving.store(1, Ordering::Release);
    }

    /// The old places of all that moved are in no TLB.
    pub fn end_moves(&self) {
        self.moving.store(0, Ordering::Release);
    }

    /// Whether pages were moved whose old places are still to be flushed.
    pub fn is_moving(&self) -> bool {
        self.moving.load(Ordering::Acquire) != 0
    }

    /// The CPUs that run the space.
    pub fn running(&self) -> CpuMask {
        self.running.load()
    }

    /// The CPUs whose translations under the space's tag may be used without a flush first, on a quiet
    /// machine.
    pub fn live(&self, asid: Asid, cpu: CpuId) -> bool {
        let returns_without_a_flush = asid != Asid::NONE && self.fresh.contains(cpu);
        self.running.contains(cpu) || returns_without_a_flush
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::cell::Cell;

    fn cpu(number: usize) -> CpuId {
        CpuId::new(number).expect("a small number")
    }

    /// Enters and returns whether the CPU had to flush.
    fn enters_with_a_flush(cpus: &SpaceCpus, number: usize) -> bool {
        let flushed = Cell::new(false);
        cpus.enter(cpu(number), || flushed.set(true));
        flushed.get()
    }

    fn reach(cpus: &SpaceCpus, own: usize) -> (CpuMask, usize) {
        let Reach { running, spared } = cpus.reach(cpu(own));
        (running, spared)
    }

    #[test]
    fn a_cpu_flushes_on_first_use_and_after_a_flush_skipped_it() {
        let cpus = SpaceCpus::new();
        assert!(enters_with_a_flush(&cpus, 3), "the tag's previous space may have left entries");
        cpus.leave(cpu(3));
        assert!(!enters_with_a_flush(&cpus, 3), "nothing was flushed meanwhile");
        cpus.leave(cpu(3));
        assert_eq!(reach(&cpus, 0), (CpuMask::EMPTY, 1));
        assert_eq!(reach(&cpus, 0), (CpuMask::EMPTY, 0), "skipped once only");
        assert!(enters_with_a_flush(&cpus, 3));
    }

    #[test]
    fn only_the_cpu_that_flushes_keeps_its_bit() {
        let cpus = SpaceCpus::new();
        for number in [0, 1, 70] {
            assert!(enters_with_a_flush(&cpus, number));
        }
        cpus.leave(cpu(70));
        assert_eq!(reach(&cpus, 0), (CpuMask::first(2), 1));
        for number in [0, 1] {
            cpus.leave(cpu(number));
        }
        assert!(!enters_with_a_flush(&cpus, 0), "it has flushed itself");
        assert!(enters_with_a_flush(&cpus, 1), "its bit was cleared while it ran");
        assert!(enters_with_a_flush(&cpus, 70));
    }

    #[test]
    fn a_cpu_that_flushes_without_running_the_space_is_skipped_too() {
        let cpus = SpaceCpus::new();
        assert!(enters_with_a_flush(&cpus, 0));
        cpus.leave(cpu(0));
        assert_eq!(reach(&cpus, 0), (CpuMask::EMPTY, 1));
        assert!(enters_with_a_flush(&cpus, 0));
    }

    #[test]
    fn translations_are_live_where_they_can_be_used_without_a_flush() {
        let cpus = SpaceCpus::new();
        let live = |asid| [0, 1, 2].map(|number| cpus.live(asid, cpu(number)));
        for number in [0, 1] {
            assert!(enters_with_a_flush(&cpus, number));
        }
        cpus.leave(cpu(1));
        assert_eq!(live(Asid(1)), [true, true, false]);
        assert_eq!(live(Asid::NONE), [true, false, false]);
        assert_eq!(reach(&cpus, 2), (CpuMask::first(1), 1));
        assert_eq!(live(Asid(1)), [true, false, false]);
    }
}
