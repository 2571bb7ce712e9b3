//! A set of CPUs that many CPUs change at once.

use crate::atomic::{AtomicU64, Ordering, fence};
use quire_arch::{CpuId, CpuMask};

/// A set of CPUs that many CPUs change at once.
#[derive(Debug, Default)]
pub struct AtomicCpuMask([AtomicU64; CpuMask::WORDS]);

impl AtomicCpuMask {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `cpu`, with a full barrier, and returns whether it was absent.
    ///
    /// The barrier pairs with the one in [`load`](Self::load): a CPU announces itself before it walks the
    /// tables; a CPU that changes a table entry reads the set after the change. One of the two sees the
    /// other.
    #[inline]
    pub fn insert(&self, cpu: CpuId) -> bool {
        let bit = 1 << (cpu.index() % 64);
        let before = self.0[cpu.index() / 64].fetch_or(bit, Ordering::SeqCst);
        // The barrier that is promised. On x86 the locked instruction is one by itself.
        if cfg!(any(loom, not(target_arch = "x86_64"))) {
            fence(Ordering::SeqCst);
        }
        before & bit == 0
    }

    /// Removes `cpu`. What it did before happened before whatever is done by a CPU that finds it gone.
    #[inline]
    pub fn remove(&self, cpu: CpuId) {
        self.0[cpu.index() / 64].fetch_and(!(1 << (cpu.index() % 64)), Ordering::SeqCst);
    }

    /// Removes every CPU but `kept` and returns those.
    ///
    /// The set is read after every store before this call, as by [`load`](Self::load). Words that lose no CPU
    /// are not written, so that their cache line stays shared.
    #[inline]
    pub fn clear_except(&self, kept: CpuMask) -> CpuMask {
        fence(Ordering::SeqCst);
        let mut removed = [0; CpuMask::WORDS];
        for ((removed, kept), atomic) in removed.iter_mut().zip(kept.words()).zip(&self.0) {
            if atomic.load(Ordering::Relaxed) & !kept != 0 {
                *removed = atomic.fetch_and(kept, Ordering::SeqCst) & !kept;
            }
        }
        CpuMask::from_words(removed)
    }

    /// Whether `cpu` is in the set now.
    #[inline]
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.0[cpu.index() / 64].load(Ordering::Relaxed) & (1 << (cpu.index() % 64)) != 0
    }

    /// The set at this moment, read after every store before this call (see [`insert`](Self::insert)).
    #[inline]
    pub fn load(&self) -> CpuMask {
        fence(Ordering::SeqCst);
        let mut words = [0; CpuMask::WORDS];
        for (word, atomic) in words.iter_mut().zip(&self.0) {
            *word = atomic.load(Ordering::SeqCst);
        }
        CpuMask::from_words(words)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_shared_set_yields_the_cpus_that_were_put_in() {
        let atomic = AtomicCpuMask::new();
        let wanted: Vec<CpuId> = [0, 1, 63, 64, 130, 255].into_iter().filter_map(CpuId::new).collect();
        for &cpu in &wanted {
            assert!(atomic.insert(cpu));
            assert!(!atomic.insert(cpu));
        }
        assert_eq!(atomic.load().iter().collect::<Vec<_>>(), wanted);
        atomic.remove(wanted[2]);
        assert!(!atomic.load().contains(wanted[2]) && !atomic.contains(wanted[2]));
        let mut kept = CpuMask::first(1);
        kept.insert(wanted[2]);
        let removed = atomic.clear_except(kept);
        assert_eq!(removed.iter().collect::<Vec<_>>(), [wanted[1], wanted[3], wanted[4], wanted[5]]);
        assert_eq!(atomic.load(), CpuMask::first(1), "what is kept is not added");
        assert!(atomic.clear_except(CpuMask::first(1)).is_empty());
    }
}
