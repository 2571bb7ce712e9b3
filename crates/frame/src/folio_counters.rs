//! Counters for each size of large folio, one set per CPU.

// Counts order nothing, so no model has to see them.
use crate::kind::Kind;
use core::sync::atomic::{AtomicU64, Ordering};
use quire_arch::{Order, named_enum};

named_enum! {
    /// A file of `/sys/kernel/mm/transparent_hugepage/hugepages-*kB/stats`, by its name there: what is
    /// counted for folios of one order.
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
        /// A folio of shared memory came to exist.
        ShmemAlloc = "shmem_alloc",
        /// There was no folio of this order for shared memory, and a smaller one is tried.
        ShmemFallback = "shmem_fallback",
        /// Of these, the memcg charge failed.
        ShmemFallbackCharge = "shmem_fallback_charge",
    }
}

impl FolioCounter {
    /// Whether it counts folios of private memory only, which have more than two pages.
    pub const fn is_of_anonymous(self) -> bool {
        matches!(
            self,
            Self::AnonFaultAlloc
                | Self::AnonFaultFallback
                | Self::AnonFaultFallbackCharge
                | Self::SplitDeferred
                | Self::NrAnon
                | Self::NrAnonPartiallyMapped
        )
    }
}

/// Number of counters.
const COUNT: usize = FolioCounter::ALL.len();
/// Folios are large from this order on; anonymous ones have one more at least.
const FIRST: usize = 1;
/// Orders that are counted, up to the PMD's.
const ORDERS: usize = Order::PMD.index() + 1 - FIRST;

/// One CPU's counters. One that also counts down may be negative here: a folio is freed on its last user's
/// CPU. Only the sum over all CPUs, in wrapping arithmetic, is meaningful.
#[derive(Debug)]
pub(crate) struct FolioSet {
    counts: [[AtomicU64; COUNT]; ORDERS],
    /// Of anonymous memory, of files, and of shared memory.
    pmd_mapped: [AtomicU64; 3],
}

impl FolioSet {
    pub(crate) const fn new() -> Self {
        Self {
            counts: [const { [const { AtomicU64::new(0) }; COUNT] }; ORDERS],
            pmd_mapped: [const { AtomicU64::new(0) }; 3],
        }
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
        add(&self.pmd_mapped[place_of(kind)], change);
    }

    pub(crate) fn pmd_mapped(&self, kind: Kind) -> u64 {
        self.pmd_mapped[place_of(kind)].load(Ordering::Relaxed)
    }
}

/// Where folios of `kind` that PMD entries map are counted.
const fn place_of(kind: Kind) -> usize {
    match kind {
        Kind::File => 1,
        Kind::Shmem => 2,
        _ => 0,
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
        set.add_pmd_mapped(Kind::Shmem, 9);
        for order in Order::ALL {
            for (place, &counter) in FolioCounter::ALL.iter().enumerate() {
                let counted = (1..=9).contains(&order.get());
                let expected = if counted { (order.index() * COUNT + place + 1) as u64 } else { 0 };
                assert_eq!(set.read(order, counter), expected, "order {order}, {}", counter.name());
            }
        }
        assert_eq!([Kind::Anonymous, Kind::File, Kind::Shmem].map(|kind| set.pmd_mapped(kind)), [5, 7, 9]);
    }
}
