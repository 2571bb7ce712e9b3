//! Which frames programs wrote to, on a machine whose memory has no bytes.

use quire_arch::{Order, Pfn, PfnRange};
use quire_sync::atomic::raw::{AtomicBool, Ordering};

/// A flag for each frame: it may hold something other than zeros. A program's own accesses and those that
/// find a frame are ordered as its bytes would be, by what publishes the frame and by shootdowns, so the
/// flags need no order of their own. No two frames share a byte, so that a plain store sets one.
#[derive(Debug)]
pub(crate) struct Written {
    /// The frame of flag 0.
    first: Pfn,
    flags: Box<[AtomicBool]>,
}

impl Written {
    /// For RAM in `ranges`, lowest first. Nothing is known of it: everything counts as written.
    pub(crate) fn new(ranges: &[PfnRange]) -> Self {
        let first = ranges.first().map_or(Pfn(0), |range| range.start());
        let end = ranges.last().map_or(first, |range| range.end());
        Self { first, flags: (first.0..end.0).map(|_| AtomicBool::new(true)).collect() }
    }

    /// The flags of a block.
    #[inline]
    fn block(&self, pfn: Pfn, order: Order) -> &[AtomicBool] {
        let at = (pfn.0 - self.first.0) as usize;
        &self.flags[at..at + order.pages() as usize]
    }

    /// A program writes to the frame.
    #[inline]
    pub(crate) fn note(&self, pfn: Pfn) {
        self.flags[(pfn.0 - self.first.0) as usize].store(true, Ordering::Relaxed);
    }

    /// A block was filled with something, or with zeros.
    #[inline]
    pub(crate) fn set(&self, pfn: Pfn, order: Order, written: bool) {
        if order == Order::ZERO {
            return self.flags[(pfn.0 - self.first.0) as usize].store(written, Ordering::Relaxed);
        }
        for flag in self.block(pfn, order) {
            flag.store(written, Ordering::Relaxed);
        }
    }

    /// A block was copied.
    pub(crate) fn copy(&self, from: Pfn, to: Pfn, order: Order) {
        for (from, to) in self.block(from, order).iter().zip(self.block(to, order)) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Whether nothing was written to a block since it was filled with zeros.
    pub(crate) fn is_zero(&self, pfn: Pfn, order: Order) -> bool {
        !self.block(pfn, order).iter().any(|flag| flag.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_has_a_flag_of_its_own() {
        // RAM with a hole.
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
