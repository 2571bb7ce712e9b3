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

    /// Adds `cpu`, with a full barrier, and tells whether it was absent.
    ///
    /// The barrier pairs with the one in [`load`](Self::load): a CPU announces itself before it walks the tables;
    /// whoever changes a table entry reads the set after the change. One of the two sees the other.
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

    /// Removes `cpu`. The caller has made sure that this CPU holds no translation that anyone must flush.
    #[inline]
    pub fn remove(&self, cpu: CpuId) {
        self.0[cpu.index() / 64].fetch_and(!(1 << (cpu.index() % 64)), Ordering::SeqCst);
    }

    /// Whether `cpu` is in the set just now.
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
    }
}
