//! Reads of folios of which the cache has only some pages: each of the others is read from the device.

use crate::device::{DeviceError, PageIo};
use arrayvec::ArrayVec;
use quire_arch::{Order, Platform};
use quire_frame::{Frame, Frames, InHand};

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

/// Removes page `nth`. False if it is not there.
fn take(pages: &mut Pages, nth: u64) -> bool {
    let (word, bit) = (&mut pages[nth as usize / 64], 1 << (nth % 64));
    let had = *word & bit != 0;
    *word &= !bit;
    had
}

/// A folio that is being read page by page.
#[derive(Clone, Copy, Debug)]
struct Parts {
    /// Of all such reads.
    number: u64,
    whole: PageIo,
    in_hand: InHand,
    /// Pages not yet requested from the device.
    wanted: Pages,
    /// Pages that are requested, and not completed yet. The device can complete no others.
    asked: Pages,
    result: Result<(), DeviceError>,
}

impl Parts {
    fn nth(&self, page: PageIo) -> Option<u64> {
        let nth = page.pfn.0.wrapping_sub(self.whole.pfn.0);
        let inside = nth < u64::from(self.whole.pages) && page.slot == self.whole.slot + nth;
        (page.pages == 1 && inside && page.direction == self.whole.direction).then_some(nth)
    }
}

/// A page that a thread requests from the device, of the read with this number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) page: PageIo,
    number: u64,
}

/// A read with its result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    pub(super) io: PageIo,
    pub(super) in_hand: InHand,
    pub(super) result: Result<(), DeviceError>,
}

/// The cache is through with what it had in hand.
pub(super) fn give_back_io(frame: &Frame, in_hand: InHand) {
    if in_hand == InHand::Taken {
        frame.io().give_back();
    }
}

impl Whole {
    /// Reports it.
    pub(super) fn report<P: Platform>(
        self,
        frames: &Frames<P>,
        done: &mut dyn FnMut(PageIo, Result<(), DeviceError>),
    ) {
        give_back_io(frames.known(self.io.pfn), self.in_hand);
        done(self.io, self.result);
    }
}

/// All reads in parts.
#[derive(Debug, Default)]
pub(super) struct PartReads {
    reads: ArrayVec<Parts, AT_ONCE>,
    /// Reads so far.
    begun: u64,
}

impl PartReads {
    /// Notes that the pages `wanted` of `whole` are to be read. False if there are too many reads of this
    /// kind.
    pub(super) fn begin(&mut self, (whole, in_hand): (PageIo, InHand), wanted: Pages) -> bool {
        self.begun = self.begun.wrapping_add(1);
        let (number, asked) = (self.begun, Pages::default());
        self.reads.try_push(Parts { number, whole, in_hand, wanted, asked, result: Ok(()) }).is_ok()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.reads.len()
    }

    /// The next page for the caller to request from the device.
    pub(super) fn next(&mut self) -> Option<Part> {
        for parts in &mut self.reads {
            let found = parts.wanted.iter_mut().enumerate().find(|(_, word)| **word != 0);
            if let Some((at, word)) = found {
                let bit = word.trailing_zeros();
                *word &= *word - 1;
                let nth = at as u64 * 64 + u64::from(bit);
                // The device may complete it before it has returned.
                note(&mut parts.asked, nth);
                let PageIo { direction, slot, pfn, .. } = parts.whole;
                let page = PageIo { direction, slot: slot + nth, pfn: pfn.offset(nth), pages: 1 };
                return Some(Part { page, number: parts.number });
            }
        }
        None
    }

    /// The device did not take the part. If it reported it all the same, that stands.
    pub(super) fn put_back(&mut self, part: Part) {
        for parts in self.reads.iter_mut().filter(|parts| parts.number == part.number) {
            if let Some(nth) = parts.nth(part.page)
                && take(&mut parts.asked, nth)
            {
                note(&mut parts.wanted, nth);
            }
        }
    }

    /// The device has done the part at once. The whole read, if this was the last page of it. A read that the
    /// device's report has ended may have been begun anew since: that is another one.
    pub(super) fn finish(&mut self, part: Part, result: Result<(), DeviceError>) -> Option<Whole> {
        let at = self.reads.iter().position(|parts| parts.number == part.number)?;
        let nth = self.reads[at].nth(part.page)?;
        self.end(at, nth, result)
    }

    /// The device reports a request as completed. `None` if it is of no read in parts; else the whole read,
    /// if this was the last page of it.
    pub(super) fn reported(&mut self, io: PageIo, result: Result<(), DeviceError>) -> Option<Option<Whole>> {
        let is_of = |parts: &Parts| parts.whole == io || parts.nth(io).is_some();
        let at = self.reads.iter().position(is_of)?;
        // The device was not asked for the whole.
        Some(self.reads[at].nth(io).and_then(|nth| self.end(at, nth, result)))
    }

    /// A page has come, if it was requested.
    fn end(&mut self, at: usize, nth: u64, result: Result<(), DeviceError>) -> Option<Whole> {
        let parts = &mut self.reads[at];
        if !take(&mut parts.asked, nth) {
            return None;
        }
        parts.result = parts.result.and(result);
        if parts.wanted.iter().chain(&parts.asked).any(|word| *word != 0) {
            return None;
        }
        let Parts { whole, in_hand, result, .. } = self.reads.swap_remove(at);
        Some(Whole { io: whole, in_hand, result })
    }
}
