//! What of the most anonymous memory that there was at one moment is used again after it.

use quire_arch::{PAGE_SHIFT, PAGE_SIZE};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Pages of an element of the map, and of a word of its bits.
const BLOCK: u64 = 512;
const WORD: u64 = 64;

/// The most anonymous memory of all programs, and uses after that, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeakUse {
    /// The most that was mapped at one moment.
    pub peak: u64,
    /// Of it, what was touched again.
    pub used: u64,
    /// What several processes had mapped since a fork, for longer than a moment. Of a recording under pressure
    /// its later uses are not known.
    pub shared: u64,
}

/// The pages of a block that were touched since a peak.
#[derive(Debug, Default)]
struct TouchedBlock {
    /// The number of the peak.
    peak: u64,
    bits: [u64; (BLOCK / WORD) as usize],
}

/// Follows them. A new peak begins anew: what the blocks have is of an older one then.
#[derive(Debug, Default)]
pub(super) struct Again {
    peak: u64,
    peaks: u64,
    /// By address space and block.
    touched: HashMap<(usize, u64), TouchedBlock>,
    pages: u64,
}

impl Again {
    /// So much is mapped now. Returns whether it never was as much.
    pub(super) fn has(&mut self, bytes: u64) -> bool {
        if bytes <= self.peak {
            return false;
        }
        (self.peak, self.pages) = (bytes, 0);
        self.peaks += 1;
        true
    }

    /// Address space number `number` touched `addr`; the page `is_there` before. What was there when its
    /// first touch came was there at the peak: what comes since comes by a touch.
    pub(super) fn touch(&mut self, number: usize, addr: u64, is_there: bool) {
        let page = addr >> PAGE_SHIFT;
        let block = self.touched.entry((number, page / BLOCK)).or_default();
        if block.peak != self.peaks {
            *block = TouchedBlock { peak: self.peaks, ..TouchedBlock::default() };
        }
        let (word, bit) = ((page % BLOCK / WORD) as usize, 1 << (page % WORD));
        self.pages += u64::from(is_there && block.bits[word] & bit == 0);
        block.bits[word] |= bit;
    }

    /// So much was `shared`.
    pub(super) fn finish(&self, shared: u64) -> PeakUse {
        PeakUse { peak: self.peak, used: self.pages * PAGE_SIZE, shared }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_was_there_counts_once_and_one_that_comes_later_does_not() {
        let mut again = Again::default();
        assert!(again.has(9 * PAGE_SIZE));
        again.touch(0, 2 * PAGE_SIZE, true);
        assert!(again.has(10 * PAGE_SIZE) && !again.has(10 * PAGE_SIZE));
        let uses =
            [(0, 2, true), (0, 2, true), (0, 3, false), (0, 3, true), (1, 2, true), (0, 2 + BLOCK, true)];
        for (number, page, is_there) in uses {
            again.touch(number, page * PAGE_SIZE, is_there);
        }
        assert_eq!(again.finish(5), PeakUse { peak: 10 * PAGE_SIZE, used: 3 * PAGE_SIZE, shared: 5 });
    }
}
