//! Reads of folios of which the cache has only some pages: each of the others is read from the device.

use crate::device::{DeviceError, PageIo};
use arrayvec::ArrayVec;
use quire_arch::Order;

/// Such reads at once.
pub(super) const AT_ONCE: usize = 4;
/// Words of bits, one for each page of the largest folio.
const WORDS: usize = Order::PMD.pages() as usize / 64;

/// A set of pages of one folio.
pub(super) type Pages = [u64; WORDS];

/// Notes page `nth`.
pub(super) fn note(pages: &mut Pages, nth: u64) {
    pages[nth as usize / 64] |= 1 << (nth % 64);
}

/// A folio that is being read page by page.
#[derive(Clone, Copy, Debug)]
struct Parts {
    whole: PageIo,
    /// Pages not yet requested from the device.
    wanted: Pages,
    /// Pages not completed yet.
    missing: u32,
    result: Result<(), DeviceError>,
}

impl Parts {
    fn nth(&self, page: PageIo) -> Option<u64> {
        let nth = page.pfn.0.wrapping_sub(self.whole.pfn.0);
        let inside = nth < u64::from(self.whole.pages) && page.slot == self.whole.slot + nth;
        (inside && page.direction == self.whole.direction).then_some(nth)
    }
}

/// All reads in parts.
#[derive(Debug, Default)]
pub(super) struct PartReads(ArrayVec<Parts, AT_ONCE>);

impl PartReads {
    /// Notes that the pages `wanted` of `whole` are to be read. False if there are too many reads of this
    /// kind.
    pub(super) fn begin(&mut self, whole: PageIo, wanted: Pages) -> bool {
        let missing = wanted.iter().map(|word| word.count_ones()).sum();
        self.0.try_push(Parts { whole, wanted, missing, result: Ok(()) }).is_ok()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The next page for the caller to request from the device.
    pub(super) fn next(&mut self) -> Option<PageIo> {
        for parts in &mut self.0 {
            let found = parts.wanted.iter_mut().enumerate().find(|(_, word)| **word != 0);
            if let Some((at, word)) = found {
                let bit = word.trailing_zeros();
                *word &= *word - 1;
                let nth = at as u64 * 64 + u64::from(bit);
                let PageIo { direction, slot, pfn, .. } = parts.whole;
                return Some(PageIo { direction, slot: slot + nth, pfn: pfn.offset(nth), pages: 1 });
            }
        }
        None
    }

    /// The device did not take the page that [`next`](Self::next) gave.
    pub(super) fn put_back(&mut self, page: PageIo) {
        for parts in &mut self.0 {
            if let Some(nth) = parts.nth(page) {
                note(&mut parts.wanted, nth);
            }
        }
    }

    /// The device has completed a page. `None` if it is of no read in parts; else the whole read with its
    /// result, if this was the last page of it.
    pub(super) fn finish(
        &mut self,
        page: PageIo,
        result: Result<(), DeviceError>,
    ) -> Option<Option<(PageIo, Result<(), DeviceError>)>> {
        let at = self.0.iter().position(|parts| page.pages == 1 && parts.nth(page).is_some())?;
        let parts = &mut self.0[at];
        parts.result = parts.result.and(result);
        parts.missing -= 1;
        if parts.missing > 0 {
            return Some(None);
        }
        let Parts { whole, result, .. } = self.0.swap_remove(at);
        Some(Some((whole, result)))
    }
}
