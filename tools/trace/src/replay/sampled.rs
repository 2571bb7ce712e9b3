//! What pages of a recording hold, as far as that was sampled.

use super::contents::{Distribution, PageKind};
use crate::event::{Compressibility, ContentSample};
use crate::mix::mix;
use std::collections::HashMap;

/// What one page table maps: samples are of so much.
const REGION_SHIFT: u32 = 21;
/// A sample is believed of so many regions at most: the numbers of a trace are only claims.
const MOST_REGIONS: u64 = 512;
/// What a region holds has changed if its pages come to so many bytes more or less, on average. Less than that is chance:
/// a sample has some 30 pages.
const CHANGE_BYTES: u64 = 512;

/// The samples of a trace.
#[derive(Debug, Default)]
pub(super) struct SampledContents {
    /// Of whole address spaces, and of all regions.
    spaces: Compressibility,
    all_regions: Compressibility,
    /// What LZ4 and zstd bring the same pages to, where both were tried.
    both: [u64; 2],
    /// Of each region of each address space, with the number of the event: in their order.
    regions: HashMap<(usize, u64), Vec<(u64, Distribution)>>,
}

impl SampledContents {
    /// Adds a sample of a whole address space.
    pub(super) fn add_space(&mut self, sizes: &Compressibility) {
        self.spaces.add(sizes);
    }

    /// Adds a sample of a part of address space number `space`, which is event number `event`.
    pub(super) fn add_region(&mut self, space: usize, event: u64, sample: &ContentSample) {
        self.all_regions.add(&sample.sizes);
        for (sum, bytes) in self.both.iter_mut().zip([sample.lz4_of_both, sample.zstd]) {
            *sum = sum.saturating_add(bytes);
        }
        let first = sample.start >> REGION_SHIFT;
        let last = sample.start.saturating_add(sample.bytes.max(1) - 1) >> REGION_SHIFT;
        let distribution = Distribution::of_sample(sample);
        for region in first..=last.min(first + MOST_REGIONS) {
            self.regions.entry((space, region)).or_default().push((event, distribution));
        }
    }

    /// The sizes of all pages that were looked at.
    pub(super) fn sizes(&self) -> &Compressibility {
        if self.all_regions.pages() > 0 { &self.all_regions } else { &self.spaces }
    }

    /// What zstd brings pages to, as a share of what LZ4 does. None where it was not tried.
    pub(super) fn zstd_of_lz4(&self) -> Option<f64> {
        let [lz4, zstd] = self.both;
        (lz4 > 0).then(|| zstd as f64 / lz4 as f64)
    }

    /// What a page of which nothing else is known holds. Of a recording without samples nothing is known at all, so that
    /// all sizes are equally likely.
    fn any(&self) -> Distribution {
        let unknown = Compressibility { zero: 1, same: 1, sizes: [1; Compressibility::CLASSES] };
        Distribution::of(if self.sizes().pages() > 0 { *self.sizes() } else { unknown })
    }

    /// The samples of the region of `addr`, and how many of them came before event number `event`.
    fn region(&self, space: usize, addr: u64, event: u64) -> (&[(u64, Distribution)], usize) {
        let samples = self.regions.get(&(space, addr >> REGION_SHIFT)).map_or(&[][..], Vec::as_slice);
        (samples, samples.partition_point(|(at, _)| *at < event))
    }

    /// What the page at `addr` holds that is written at event number `event`: what its region held when it was next
    /// looked at, or last.
    pub(super) fn kind(&self, space: usize, addr: u64, event: u64) -> PageKind {
        let (samples, before) = self.region(space, addr, event);
        let sample = samples.get(before).or(samples.last());
        sample.map_or_else(|| self.any(), |(_, distribution)| *distribution).kind(page_id(space, addr))
    }

    /// Whether the region of `addr` is written without page faults after event number `event`: it holds something else
    /// when it is next looked at than it did last.
    pub(super) fn changes(&self, space: usize, addr: u64, event: u64) -> bool {
        let (samples, before) = self.region(space, addr, event);
        let last = before.checked_sub(1).and_then(|last| samples.get(last));
        match (last, samples.get(before)) {
            (Some((_, last)), Some((_, next))) => last.mean().abs_diff(next.mean()) > CHANGE_BYTES,
            _ => false,
        }
    }
}

/// A number for the page at `addr`, another one in each address space.
pub(super) fn page_id(space: usize, addr: u64) -> u64 {
    mix(space as u64) ^ (addr >> 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(region: u64, class: usize) -> ContentSample {
        let mut sizes = Compressibility::default();
        sizes.sizes[class] = 30;
        let compressed = 30 * (class as u64 * 256 + 128);
        let (start, bytes) = (region << REGION_SHIFT, 1 << REGION_SHIFT);
        ContentSample { start, bytes, sizes, compressed, lz4_of_both: 100, zstd: 75 }
    }

    #[test]
    fn a_page_holds_what_its_region_holds_when_it_is_looked_at_next() {
        let mut contents = SampledContents::default();
        for (event, class) in [(10, 2), (20, 3), (30, 9)] {
            contents.add_region(0, event, &sample(5, class));
        }
        contents.add_region(1, 40, &sample(5, 12));
        let addr = (5 << REGION_SHIFT) + 4096;
        let kinds = [0, 10, 11, 25, 31].map(|event| contents.kind(0, addr, event));
        assert_eq!(kinds, [640, 640, 896, 2432, 2432].map(PageKind::Compressed));
        assert_eq!(contents.kind(1, addr, 0), PageKind::Compressed(3200));
        assert_eq!(
            [5, 15, 25, 35].map(|event| contents.changes(0, addr, event)),
            [false, false, true, false]
        );
    }

    #[test]
    fn what_was_not_looked_at_holds_what_the_rest_holds() {
        let mut contents = SampledContents::default();
        let kinds: Vec<PageKind> = (0..200).map(|page| contents.kind(0, page << 12, 0)).collect();
        assert!(kinds.contains(&PageKind::Zero) && kinds.contains(&PageKind::Compressed(3968)));
        contents.add_space(&Compressibility { zero: 3, ..Compressibility::default() });
        assert_eq!(contents.kind(0, 0, 0), PageKind::Zero);
        contents.add_region(0, 1, &sample(7, 4));
        assert_eq!(contents.kind(0, 0, 0), PageKind::Compressed(1152));
        assert_eq!(contents.sizes().sizes[4], 30);
        assert_eq!((contents.zstd_of_lz4(), SampledContents::default().zstd_of_lz4()), (Some(0.75), None));
    }

    #[test]
    fn claims_without_bounds_are_believed_of_some_regions_only() {
        let mut contents = SampledContents::default();
        let sizes = Compressibility { zero: u32::MAX, same: 1, sizes: [u32::MAX; 16] };
        let most = u64::MAX;
        let claim = ContentSample {
            start: 1 << 40,
            bytes: most,
            sizes,
            compressed: most,
            lz4_of_both: most,
            zstd: most,
        };
        contents.add_region(0, 0, &claim);
        contents.add_region(0, 0, &ContentSample { start: u64::MAX, bytes: 0, ..claim });
        assert!(contents.regions.len() <= MOST_REGIONS as usize + 2);
        assert!(!contents.changes(0, 1 << 40, 0));
    }
}
