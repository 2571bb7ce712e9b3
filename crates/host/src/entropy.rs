//! Random numbers that replay.

use quire_sync::atomic::raw::{AtomicU64, Ordering};

/// The odd constant of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
/// 2014).
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64 over an atomic counter: the n-th number depends on the seed and n alone.
#[derive(Debug)]
pub(crate) struct Entropy(AtomicU64);

impl Entropy {
    pub(crate) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    pub(crate) fn next(&self) -> u64 {
        let mut mixed = self.0.fetch_add(GAMMA, Ordering::Relaxed).wrapping_add(GAMMA);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays() {
        let (one, other) = (Entropy::new(7), Entropy::new(7));
        let numbers: Vec<u64> = (0..8).map(|_| one.next()).collect();
        assert_eq!(numbers, (0..8).map(|_| other.next()).collect::<Vec<_>>());
        assert_ne!(numbers[0], numbers[1]);
        assert_ne!(numbers[0], Entropy::new(8).next());
    }
}
