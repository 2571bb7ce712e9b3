//! Which frames programs wrote to, on a machine whose memory has no bytes.

use quire_arch::{Order, Pfn, PfnRange};
use quire_sync::atomic::raw::{AtomicU64, Ordering};

const BITS: u64 = u64::BITS as u64;

/// A bit for each frame: it may hold something other than zeros. A program's own accesses and those that find a
/// frame are ordered as its bytes would be, by what publishes the frame and by shootdowns, so the bits need no
/// order of their own.
#[derive(Debug)]
pub(crate) struct Written {
    /// The frame of bit 0: a multiple of the bits of a word, so that blocks fill whole words.
    first: Pfn,
    words: Box<[AtomicU64]>,
}

impl Written {
    /// For RAM in `ranges`, lowest first. Nothing is known of it: everything counts as written.
    pub(crate) fn new(ranges: &[PfnRange]) -> Self {
        let first = Pfn(ranges.first().map_or(0, |range| range.start().0) / BITS * BITS);
        let end = ranges.last().map_or(0, |range| range.end().0);
        let words = (end - first.0).div_ceil(BITS);
        Self { first, words: (0..words).map(|_| AtomicU64::new(u64::MAX)).collect() }
    }

    /// The words of a block, each with the bits of it that are the block's.
    fn parts(&self, pfn: Pfn, order: Order) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let (at, pages) = (pfn.0 - self.first.0, order.pages());
        let mask = if pages < BITS { ((1 << pages) - 1) << (at % BITS) } else { u64::MAX };
        let words = at / BITS..(at + pages).div_ceil(BITS);
        words.map(move |word| (&self.words[word as usize], mask))
    }

    /// A program writes to the frame.
    #[inline]
    pub(crate) fn note(&self, pfn: Pfn) {
        let at = pfn.0 - self.first.0;
        let (word, bit) = (&self.words[(at / BITS) as usize], 1 << (at % BITS));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// A block was filled with something, or with zeros.
    pub(crate) fn set(&self, pfn: Pfn, order: Order, written: bool) {
        for (word, mask) in self.parts(pfn, order) {
            if written {
                word.fetch_or(mask, Ordering::Relaxed);
            } else {
                word.fetch_and(!mask, Ordering::Relaxed);
            }
        }
    }

    /// A block was copied.
    pub(crate) fn copy(&self, from: Pfn, to: Pfn, order: Order) {
        for page in 0..order.pages() {
            let written = !self.is_zero(from.offset(page), Order::ZERO);
            self.set(to.offset(page), Order::ZERO, written);
        }
    }

    /// Whether nothing was written to a block since it was filled with zeros.
    pub(crate) fn is_zero(&self, pfn: Pfn, order: Order) -> bool {
        self.parts(pfn, order).all(|(word, mask)| word.load(Ordering::Relaxed) & mask == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_has_a_bit_of_its_own() {
        // RAM that begins within a word, with a hole.
        let ranges = [PfnRange::new(Pfn(260), Pfn(300)), PfnRange::new(Pfn(512), Pfn(1536))];
        let written = Written::new(&ranges);
        assert!([260, 299, 512, 1535].iter().all(|&pfn| !written.is_zero(Pfn(pfn), Order::ZERO)));
        written.set(Pfn(512), Order::PMD, false);
        assert!(written.is_zero(Pfn(512), Order::PMD) && !written.is_zero(Pfn(1024), Order::ZERO));
        written.note(Pfn(700));
        assert!(!written.is_zero(Pfn(512), Order::PMD) && !written.is_zero(Pfn(700), Order::ZERO));
        assert!(written.is_zero(Pfn(699), Order::ZERO) && written.is_zero(Pfn(701), Order::ZERO));
        written.copy(Pfn(512), Pfn(1024), Order::PMD);
        let found = (1024..1536).filter(|&pfn| !written.is_zero(Pfn(pfn), Order::ZERO));
        assert_eq!(found.collect::<Vec<_>>(), [1024 + 700 - 512]);
        written.set(Pfn(700), Order::new(2).unwrap_or_default(), false);
        assert!(written.is_zero(Pfn(512), Order::PMD));
        written.set(Pfn(704), Order::new(3).unwrap_or_default(), true);
        let found = (512..1024).filter(|&pfn| !written.is_zero(Pfn(pfn), Order::ZERO));
        assert_eq!(found.collect::<Vec<_>>(), (704..712).collect::<Vec<_>>());
    }
}
