//! An amount that belongs to one memcg, in one word: what a CPU holds back of a counter that all CPUs share.
//!
//! Each CPU has one such word for each counter, whatever the number of memcgs, and uses it for the memcg that
//! its program belongs to. The owner adds; any CPU may take the whole amount, to add it to the memcg.

use crate::id::MemcgId;
use quire_sync::atomic::{AtomicU64, Ordering};

const AMOUNT_BITS: u32 = 48;
/// Amounts beyond this are not held back. Far from what the field holds, so sums cannot overflow it.
const MOST: u64 = 1 << 40;

/// A word with a memcg in its upper 16 bits, and an amount with a sign below.
#[derive(Debug)]
pub(crate) struct TaggedAmount(AtomicU64);

impl Default for TaggedAmount {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

const fn pack(memcg: MemcgId, amount: i64) -> u64 {
    (memcg.get() as u64) << AMOUNT_BITS | amount as u64 & ((1 << AMOUNT_BITS) - 1)
}

const fn unpack(word: u64) -> (MemcgId, i64) {
    let amount = (word << (u64::BITS - AMOUNT_BITS)) as i64 >> (u64::BITS - AMOUNT_BITS);
    (MemcgId::from_bits((word >> AMOUNT_BITS) as u16), amount)
}

impl TaggedAmount {
    /// Whose it is, and how much.
    #[inline]
    pub(crate) fn get(&self) -> (MemcgId, i64) {
        unpack(self.0.load(Ordering::Relaxed))
    }

    /// Subtracts `amount` if the word holds that much for `memcg`.
    #[inline]
    pub(crate) fn take(&self, memcg: MemcgId, amount: i64) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (whose, now) = unpack(word);
            if whose != memcg || now < amount {
                return false;
            }
            // The memcg above stays: of as much, nothing is borrowed from it.
            match self.exchange(word, word - amount as u64) {
                Ok(()) => return true,
                Err(found) => word = found,
            }
        }
    }

    /// Adds `change` for `memcg`. Returns what had to make room; the caller adds that to its memcg.
    #[inline]
    pub(crate) fn add(&self, memcg: MemcgId, change: i64) -> Option<(MemcgId, i64)> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (whose, now) = unpack(word);
            let (next, out) = if whose != memcg {
                if change.unsigned_abs() > MOST {
                    return Some((memcg, change));
                }
                (pack(memcg, change), (now != 0).then_some((whose, now)))
            } else {
                let sum = now.saturating_add(change);
                if sum.unsigned_abs() > MOST { (0, Some((memcg, sum))) } else { (pack(memcg, sum), None) }
            };
            match self.exchange(word, next) {
                Ok(()) => return out,
                Err(found) => word = found,
            }
        }
    }

    /// Adds `change` if the word is `memcg`'s or empty, and the amount stays within `most`.
    #[inline]
    pub(crate) fn try_add(&self, memcg: MemcgId, change: i64, most: u64) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (whose, now) = unpack(word);
            if whose != memcg && now != 0 || (now + change).unsigned_abs() > most {
                return false;
            }
            match self.exchange(word, pack(memcg, now + change)) {
                Ok(()) => return true,
                Err(found) => word = found,
            }
        }
    }

    /// Takes all of it, if `wanted` returns true for its memcg.
    pub(crate) fn drain(&self, wanted: impl Fn(MemcgId) -> bool) -> Option<(MemcgId, i64)> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (whose, now) = unpack(word);
            if now == 0 || !wanted(whose) {
                return None;
            }
            match self.exchange(word, 0) {
                Ok(()) => return Some((whose, now)),
                Err(found) => word = found,
            }
        }
    }

    /// Release and acquire: a thread that finds that an amount was taken out of here sees what the thread
    /// that took it did before, e.g. that it entered an epoch.
    #[inline]
    fn exchange(&self, word: u64, next: u64) -> Result<(), u64> {
        self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed).map(|_| ())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const A: MemcgId = MemcgId::from_bits(1);
    const B: MemcgId = MemcgId::from_bits(0x7fff);

    #[test]
    fn memcgs_and_signed_amounts_survive_the_packing() {
        for memcg in [MemcgId::ROOT, A, B] {
            for amount in [0, 1, -1, 1 << 46, -(1 << 46)] {
                assert_eq!(unpack(pack(memcg, amount)), (memcg, amount));
            }
        }
    }

    #[test]
    fn an_amount_is_of_one_memcg() {
        let cell = TaggedAmount::default();
        assert_eq!(cell.add(A, 5), None);
        assert!(!cell.take(B, 1) && !cell.take(A, 6) && cell.take(A, 2));
        assert!(!cell.try_add(B, 1, 10) && !cell.try_add(A, 8, 10) && cell.try_add(A, 7, 10));
        assert_eq!(cell.add(B, -4), Some((A, 10)));
        assert_eq!(cell.drain(|memcg| memcg == A), None);
        assert_eq!(cell.drain(|memcg| memcg == B), Some((B, -4)));
        assert!(cell.try_add(A, 3, 3));
        assert_eq!(cell.get(), (A, 3));
    }

    #[test]
    fn what_is_too_much_is_not_held_back() {
        let cell = TaggedAmount::default();
        let much = 1i64 << 41;
        assert_eq!(cell.add(A, much), Some((A, much)));
        assert_eq!(cell.add(A, 1 << 40), None);
        assert_eq!(cell.add(A, 1), Some((A, (1 << 40) + 1)));
        assert_eq!(cell.add(A, 1), None);
        assert_eq!(cell.add(B, much), Some((B, much)));
        assert_eq!(cell.get(), (A, 1));
    }
}
