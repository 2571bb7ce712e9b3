//! Regions of address spaces, and which of their pages are known.

use crate::merge::SpaceId;

pub(super) const PAGE: u64 = 4096;
/// Pages of a region.
pub(super) const REGION_PAGES: u64 = 512;

/// A region of an address space: its address by its size.
pub(super) type Region = (SpaceId, u64);

/// Which pages of a region were faulted in since it was paged out.
#[derive(Debug, Default)]
pub(super) struct RegionPages([u64; REGION_PAGES as usize / 64]);

impl RegionPages {
    /// Returns whether it is new.
    pub(super) fn insert(&mut self, page: u64) -> bool {
        let (word, bit) = (&mut self.0[page as usize / 64], 1 << (page % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    pub(super) fn has(&self, page: u64) -> bool {
        self.0[page as usize / 64] & 1 << (page % 64) != 0
    }

    pub(super) fn remove(&mut self, page: u64) -> bool {
        let (word, bit) = (&mut self.0[page as usize / 64], 1 << (page % 64));
        let was_there = *word & bit != 0;
        *word &= !bit;
        was_there
    }

    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}
