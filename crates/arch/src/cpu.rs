//! CPU numbers and sets of CPUs.

use core::fmt;

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

/// The most NUMA nodes that one machine may have.
pub const MAX_NODES: usize = 8;

/// The number of a NUMA node, below [`MAX_NODES`]: RAM and CPUs that are near each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct NodeId(u8);

impl NodeId {
    /// The first node, which every machine has.
    pub const FIRST: Self = Self(0);

    /// Node `index`, or `None` at or above [`MAX_NODES`].
    #[inline]
    pub const fn new(index: usize) -> Option<Self> {
        if index < MAX_NODES { Some(Self(index as u8)) } else { None }
    }

    /// The number as an index into per-node arrays.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node{}", self.0)
    }
}

impl fmt::Display for NodeId {
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

    /// Words that hold a set.
    pub const WORDS: usize = WORDS;

    /// The set whose bit `n % 64` in word `n / 64` stands for CPU `n`.
    #[doc(hidden)]
    #[inline]
    pub const fn from_words(words: [u64; Self::WORDS]) -> Self {
        Self(words)
    }

    /// The set of the first `count` CPUs.
    #[doc(hidden)]
    pub fn first(count: usize) -> Self {
        let mut mask = Self::EMPTY;
        for cpu in (0..count).filter_map(CpuId::new) {
            mask.insert(cpu);
        }
        mask
    }

    /// Adds `cpu`.
    #[doc(hidden)]
    #[inline]
    pub const fn insert(&mut self, cpu: CpuId) {
        self.0[cpu.index() / 64] |= 1 << (cpu.index() % 64);
    }

    /// Removes `cpu`.
    #[doc(hidden)]
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
    #[doc(hidden)]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.iter().fold(0, |all, &word| all | word) == 0
    }

    /// Number of CPUs in the set.
    #[doc(hidden)]
    #[inline]
    pub fn len(&self) -> usize {
        // Most words are empty, and without an instruction for it to count takes a dozen.
        self.0.iter().filter(|&&word| word != 0).map(|word| word.count_ones() as usize).sum()
    }

    /// The CPUs of this set that are not in `other`.
    #[doc(hidden)]
    #[inline]
    pub fn without(self, other: Self) -> Self {
        Self(core::array::from_fn(|index| self.0[index] & !other.0[index]))
    }

    /// The set as words; see [`from_words`](Self::from_words).
    #[doc(hidden)]
    #[inline]
    pub const fn words(&self) -> [u64; Self::WORDS] {
        self.0
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_mask_yields_the_cpus_that_were_put_in() {
        let mut mask = CpuMask::EMPTY;
        let wanted: Vec<CpuId> = [0, 1, 63, 64, 130, 255].into_iter().filter_map(CpuId::new).collect();
        wanted.iter().for_each(|&cpu| mask.insert(cpu));
        assert_eq!(mask.iter().collect::<Vec<_>>(), wanted);
        mask.remove(wanted[2]);
        assert!(!mask.contains(wanted[2]) && mask.contains(wanted[3]));
        assert_eq!((mask.len(), CpuMask::first(3).len()), (wanted.len() - 1, 3));
        let rest: Vec<_> = mask.without(CpuMask::first(64)).iter().collect();
        assert_eq!(rest, wanted[3..]);
        assert!(mask.without(mask).is_empty());
        assert!(CpuId::new(MAX_CPUS).is_none());
    }
}
