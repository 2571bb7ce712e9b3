//! Counters for each size of large folio, one set per CPU.

// Counts order nothing, so no model has to see them.
use crate::kind::Kind;
use core::sync::atomic::{AtomicU64, Ordering};
use quire_arch::{Order, named_enum};

named_enum! {
    /// A file of `/sys/kernel/mm/transparent_hugepage/hugepages-*kB/stats`, by its name there: what is
    /// counted for anonymous folios of one order. Linux's other counters there are about shared memory and
    /// compressed caches.
    #[repr(usize)]
    pub enum FolioCounter {
        /// A fault mapped a new folio.
        AnonFaultAlloc = "anon_fault_alloc",
        /// A fault tried to allocate one, failed, and tries a smaller order.
        AnonFaultFallback = "anon_fault_fallback",
        /// Of these, the memcg charge failed.
        AnonFaultFallbackCharge = "anon_fault_fallback_charge",
        /// A folio was swapped out whole. A zero-filled one is not written.
        Swpout = "swpout",
        /// A folio was split for swap-out, since no device had enough contiguous slots.
        SwpoutFallback = "swpout_fallback",
        /// A folio was stored in a compressed cache whole.
        Zswpout = "zswpout",
        /// A folio was swapped in whole.
        Swpin = "swpin",
        /// A swap-in fell back to a smaller folio: no block of that order was free, or the memcg charge
        /// failed.
        SwpinFallback = "swpin_fallback",
        /// Of these, the memcg charge failed.
        SwpinFallbackCharge = "swpin_fallback_charge",
        /// A folio was split. Counted under its old order, as in Linux.
        Split = "split",
        /// A split failed because the folio was in use.
        SplitFailed = "split_failed",
        /// A folio was partially unmapped and put on the deferred split list.
        SplitDeferred = "split_deferred",
        /// Existing folios: one more when a fault or a collapse maps one, one less when it is freed or split.
        NrAnon = "nr_anon",
        /// Of these, partially unmapped folios: one less when such a folio is freed, split or collapsed.
        NrAnonPartiallyMapped = "nr_anon_partially_mapped",
    }
}

/// Number of counters.
const COUNT: usize = FolioCounter::ALL.len();
/// Anonymous folios are large from this order on.
const FIRST: usize = 2;
/// Orders that are counted, up to the PMD's.
const ORDERS: usize = Order::PMD.index() + 1 - FIRST;

/// One CPU's counters. One that also counts down may be negative here: a folio is freed on its last user's
/// CPU. Only the sum over all CPUs, in wrapping arithmetic, is meaningful.
#[derive(Debug)]
pub(crate) struct FolioSet {
    counts: [[AtomicU64; COUNT]; ORDERS],
    /// Of anonymous memory, and of files.
    pmd_mapped: [AtomicU64; 2],
}

impl FolioSet {
    pub(crate) fn new() -> Self {
        let zeros = |_| core::array::from_fn(|_| AtomicU64::new(0));
        Self { counts: core::array::from_fn(zeros), pmd_mapped: [AtomicU64::new(0), AtomicU64::new(0)] }
    }

    /// The counter, or `None` for an order that nothing is counted for.
    fn place(&self, order: Order, counter: FolioCounter) -> Option<&AtomicU64> {
        let counts = self.counts.get(order.index().wrapping_sub(FIRST))?;
        Some(&counts[counter as usize])
    }

    pub(crate) fn add(&self, order: Order, counter: FolioCounter, change: i64) {
        if let Some(place) = self.place(order, counter) {
            add(place, change);
        }
    }

    pub(crate) fn read(&self, order: Order, counter: FolioCounter) -> u64 {
        self.place(order, counter).map_or(0, |place| place.load(Ordering::Relaxed))
    }

    pub(crate) fn add_pmd_mapped(&self, kind: Kind, change: i64) {
        add(&self.pmd_mapped[usize::from(kind.is_of_file())], change);
    }

    pub(crate) fn pmd_mapped(&self, kind: Kind) -> u64 {
        self.pmd_mapped[usize::from(kind.is_of_file())].load(Ordering::Relaxed)
    }
}

/// A load and a store: only the pinned owner of the CPU writes, others read.
fn add(count: &AtomicU64, change: i64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add_signed(change), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_of_every_large_order_has_its_own_place() {
        let set = FolioSet::new();
        for order in Order::ALL {
            for (place, &counter) in FolioCounter::ALL.iter().enumerate() {
                assert_eq!(counter as usize, place);
                let change = (order.index() * COUNT + place) as i64;
                set.add(order, counter, change);
                set.add(order, counter, 1);
            }
        }
        set.add_pmd_mapped(Kind::Anonymous, 5);
        set.add_pmd_mapped(Kind::File, 7);
        for order in Order::ALL {
            for (place, &counter) in FolioCounter::ALL.iter().enumerate() {
                let counted = (2..=9).contains(&order.get());
                let expected = if counted { (order.index() * COUNT + place + 1) as u64 } else { 0 };
                assert_eq!(set.read(order, counter), expected, "order {order}, {}", counter.name());
            }
        }
        assert_eq!((set.pmd_mapped(Kind::Anonymous), set.pmd_mapped(Kind::File)), (5, 7));
    }
}
