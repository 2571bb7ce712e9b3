//! Blocks returned by other CPUs, on a lock-free stack.
//!
//! A CPU that frees what another allocated would otherwise fill its own lists, spill them to the zone, and
//! the other CPU would fetch the same frames from there: two needless acquisitions of the zone's lock.
//! Instead surplus is pushed on the other CPU's stack, a run of blocks with one exchange. The owner takes the
//! whole stack with one exchange when its lists are empty, and so does a drain.
//!
//! The word holds the first frame and the number of base pages, so that the bound on the stack's size is
//! exact. Pushing compares the whole word. That the stack was taken and refilled with the same first frame
//! meanwhile (ABA) does no harm: the pusher links its last block to that frame and to nothing behind it.

use crate::map::{Frame, FrameIndex};
use quire_sync::atomic::{AtomicU64, Ordering};

/// The contents of the word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ReturnedWord(u64);

impl ReturnedWord {
    const EMPTY: Self = Self::new(FrameIndex::NONE, 0);

    const fn new(first: FrameIndex, pages: u32) -> Self {
        Self(first.0 as u64 | (pages as u64) << 32)
    }

    const fn first(self) -> FrameIndex {
        FrameIndex(self.0 as u32)
    }

    const fn pages(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// With `pages` more in front, or `None` if that is more than `limit` in all.
    fn push(self, first: FrameIndex, pages: u32, limit: u32) -> Option<Self> {
        let sum = self.pages().checked_add(pages).filter(|&sum| sum <= limit)?;
        Some(Self::new(first, sum))
    }
}

/// Blocks that are returned together, linked from the first to the last.
#[derive(Debug)]
pub(crate) struct ReturnChain<'m> {
    pub(crate) first: FrameIndex,
    pub(crate) last: &'m Frame,
    pub(crate) pages: u32,
}

/// The stack of one CPU and zone.
#[derive(Debug)]
pub(crate) struct Returned {
    word: AtomicU64,
    /// Base pages that the owner has use for. Only a bound on what is returned; nothing else depends on it.
    accepts: AtomicU64,
    /// The most base pages that were on the stack.
    peak: AtomicU64,
}

impl Returned {
    pub(crate) fn new() -> Self {
        Self {
            word: AtomicU64::new(ReturnedWord::EMPTY.0),
            accepts: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        }
    }

    /// Base pages on the stack now.
    #[inline]
    pub(crate) fn pages(&self) -> u64 {
        u64::from(ReturnedWord(self.word.load(Ordering::Relaxed)).pages())
    }

    /// The most base pages that were on the stack.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// The first block, for the auditor.
    pub(crate) fn first(&self) -> FrameIndex {
        ReturnedWord(self.word.load(Ordering::Acquire)).first()
    }

    /// Sets how much the owner has use for: nothing while its own lists suffice.
    #[inline]
    pub(crate) fn set_accepts(&self, pages: u64) {
        self.accepts.store(pages, Ordering::Relaxed);
    }

    /// Whether the owner has use for anything.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.accepts.load(Ordering::Relaxed) > self.pages()
    }

    /// Puts `chain` on the stack, unless there would then be more than the owner has use for.
    pub(crate) fn push(&self, chain: &ReturnChain<'_>) -> bool {
        let limit = u32::try_from(self.accepts.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        let mut now = ReturnedWord(self.word.load(Ordering::Relaxed));
        loop {
            let Some(next) = now.push(chain.first, chain.pages, limit) else { return false };
            chain.last.set_next(now.first());
            // Release: the blocks are described and linked before the owner can find them. Pairs with the
            // exchange in `take`; what other pushers released before stays visible through it, since every
            // change of the word is an exchange.
            match self.word.compare_exchange_weak(now.0, next.0, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => {
                    let pages = u64::from(next.pages());
                    if pages > self.peak.load(Ordering::Relaxed) {
                        self.peak.fetch_max(pages, Ordering::Relaxed);
                    }
                    return true;
                }
                Err(found) => now = ReturnedWord(found),
            }
        }
    }

    /// Takes everything: the first block, linked to the rest, and the number of base pages.
    #[inline]
    pub(crate) fn take(&self) -> Option<(FrameIndex, u64)> {
        if self.word.load(Ordering::Relaxed) == ReturnedWord::EMPTY.0 {
            return None;
        }
        let taken = ReturnedWord(self.word.swap(ReturnedWord::EMPTY.0, Ordering::Acquire));
        Some((taken.first().some()?, u64::from(taken.pages())))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::kind::Kind;
    use crate::zone_id::ZoneId;

    #[test]
    fn a_word_keeps_to_its_limit_and_does_not_overflow() {
        let word = ReturnedWord::EMPTY.push(FrameIndex(7), 512, 600).unwrap();
        assert_eq!((word.first(), word.pages()), (FrameIndex(7), 512));
        assert_eq!(word.push(FrameIndex(8), 89, 600), None);
        assert_eq!(word.push(FrameIndex(8), 88, 600), Some(ReturnedWord::new(FrameIndex(8), 600)));
        assert_eq!(ReturnedWord::new(FrameIndex(1), u32::MAX).push(FrameIndex(8), 1, u32::MAX), None);
        assert_eq!(ReturnedWord::EMPTY.first(), FrameIndex::NONE);
    }

    #[test]
    fn what_is_put_back_comes_out_together_and_only_when_it_is_wanted() {
        let frames: [Frame; 2] = core::array::from_fn(|_| Frame::new(Kind::Tail, ZoneId::default()));
        let chain =
            |index: usize| ReturnChain { first: FrameIndex(index as u32), last: &frames[index], pages: 1 };
        let returned = Returned::new();
        assert!(!returned.is_wanted() && !returned.push(&chain(0)));
        returned.set_accepts(2);
        assert!(returned.is_wanted());
        assert!(returned.push(&chain(0)) && returned.push(&chain(1)));
        assert!(!returned.is_wanted());
        assert_eq!(returned.take(), Some((FrameIndex(1), 2)));
        assert_eq!((frames[1].next(), frames[0].next()), (FrameIndex(0), FrameIndex::NONE));
        assert_eq!((returned.take(), returned.pages()), (None, 0));
    }
}
