//! CPU numbers and sets of CPUs.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// The most CPUs that one machine may have. It fixes the width of [`CpuMask`]; per-CPU memory is sized by the
/// machine's real count.
pub const MAX_CPUS: usize = 256;

const WORDS: usize = MAX_CPUS / 64;

/// The number of a CPU, below [`MAX_CPUS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct CpuId(u16);

impl CpuId {
    /// CPU `index`, or `None` at or above [`MAX_CPUS`].
    #[inline]
    pub const fn new(index: usize) -> Option<Self> {
        if index < MAX_CPUS { Some(Self(index as u16)) } else { None }
    }

    /// The number as an index into per-CPU arrays.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cpu{}", self.0)
    }
}

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A set of CPUs, as a value.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuMask([u64; WORDS]);

impl CpuMask {
    /// The empty set.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// The set of the first `count` CPUs.
    pub fn first(count: usize) -> Self {
        let mut mask = Self::EMPTY;
        for cpu in (0..count).filter_map(CpuId::new) {
            mask.insert(cpu);
        }
        mask
    }

    /// Adds `cpu`.
    #[inline]
    pub const fn insert(&mut self, cpu: CpuId) {
        self.0[cpu.index() / 64] |= 1 << (cpu.index() % 64);
    }

    /// Removes `cpu`.
    #[inline]
    pub const fn remove(&mut self, cpu: CpuId) {
        self.0[cpu.index() / 64] &= !(1 << (cpu.index() % 64));
    }

    /// Whether `cpu` is in the set.
    #[inline]
    pub const fn contains(&self, cpu: CpuId) -> bool {
        self.0[cpu.index() / 64] & (1 << (cpu.index() % 64)) != 0
    }

    /// Whether no CPU is in the set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// The CPUs in the set, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.0.iter().enumerate().flat_map(|(index, &word)| {
            let mut rest = word;
            core::iter::from_fn(move || {
                let bit = rest.trailing_zeros();
                rest &= rest.wrapping_sub(1);
                (bit < 64).then(|| index * 64 + bit as usize)
            })
            .filter_map(CpuId::new)
        })
    }
}

impl fmt::Debug for CpuMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// A set of CPUs that many CPUs change at once.
#[derive(Debug, Default)]
pub struct AtomicCpuMask([AtomicU64; WORDS]);

impl AtomicCpuMask {
    /// The empty set.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
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
        if cfg!(not(target_arch = "x86_64")) {
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
        let mut mask = CpuMask::EMPTY;
        for (word, atomic) in mask.0.iter_mut().zip(&self.0) {
            *word = atomic.load(Ordering::SeqCst);
        }
        mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_mask_yields_the_cpus_that_were_put_in() {
        let atomic = AtomicCpuMask::new();
        let wanted: Vec<CpuId> = [0, 1, 63, 64, 130, 255].into_iter().filter_map(CpuId::new).collect();
        for &cpu in &wanted {
            assert!(atomic.insert(cpu));
            assert!(!atomic.insert(cpu));
        }
        assert_eq!(atomic.load().iter().collect::<Vec<_>>(), wanted);
        atomic.remove(wanted[2]);
        assert!(!atomic.load().contains(wanted[2]));
        assert_eq!(CpuMask::first(3).iter().count(), 3);
        assert!(CpuId::new(MAX_CPUS).is_none());
    }
}
