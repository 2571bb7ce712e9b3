//! The contents of a recording's pages, as far as sampled.

use super::contents::Distribution;
use quire_trace::event::{Compressibility, ContentSample, PageContents, PageSample};
use quire_trace::mix::mix;
use std::collections::HashMap;

const PAGE_SHIFT: u32 = 12;
/// What one page table maps: samples are of so much.
const REGION_SHIFT: u32 = 21;
/// Pages of that.
const REGION_PAGES: u64 = 1 << (REGION_SHIFT - PAGE_SHIFT);
/// Samples without pages are used for so many regions at most: the numbers in a trace are only claims.
const MOST_REGIONS: u64 = 512;
/// What it takes to keep a sample of a page that was sampled before, of another page, and of another region,
/// in bytes.
const LOOK_BYTES: u64 = 2 * size_of::<Look>() as u64;
const PAGE_BYTES: u64 = 96;
const REGION_BYTES: u64 = 192;
/// And a sample of a region without pages.
const MIX_BYTES: u64 = 2 * size_of::<(u64, Distribution)>() as u64;
/// The contents of a region have changed if its pages compress to so many bytes more or less, on average.
/// Less than that is noise: a sample has some 30 pages.
const REGION_CHANGE: u64 = 512;
/// The contents of a page have changed if it compresses to so many bytes more or less; less counts little.
const PAGE_CHANGE: u64 = 64;

/// The samples of a trace.
#[derive(Debug, Default)]
pub(super) struct SampledContents {
    /// Of whole address spaces.
    spaces: Compressibility,
    /// Of all regions: pages that are known one by one count once, whatever they held later. With the bytes
    /// of those that have a size.
    regions: Compressibility,
    compressed: u64,
    /// The compressed sizes of the same pages by LZ4 and zstd, where both were tried.
    both: [u64; 2],
    /// Of each region of each address space.
    by_region: HashMap<(usize, u64), Region>,
}

/// The samples of one region. Events are given by their number, and in their order.
#[derive(Debug, Default)]
struct Region {
    /// The frequency of contents, where pages are not given (files of versions 5 to 7).
    mixes: Vec<(u64, Distribution)>,
    /// The sampled pages, in the order of their places, and the contents of each over time.
    pages: Vec<(u64, Vec<Look>)>,
}

/// The contents of a page at the event of this number.
type Look = (u64, PageContents);

impl Region {
    /// Adds the contents of the page at `place`. Returns whether it was not sampled before.
    fn add(&mut self, place: u64, look: Look) -> bool {
        match self.pages.binary_search_by_key(&place, |(place, _)| *place) {
            Ok(found) => {
                self.pages[found].1.push(look);
                false
            }
            Err(before) => {
                self.pages.insert(before, (place, vec![look]));
                true
            }
        }
    }

    /// The samples of the page at `place`.
    fn looks(&self, place: u64) -> Option<&[Look]> {
        let found = self.pages.binary_search_by_key(&place, |(place, _)| *place).ok()?;
        Some(&self.pages[found].1)
    }

    /// The samples of a random page: each is equally likely, no matter how often it was sampled.
    fn any_looks(&self, id: u64) -> Option<&[Look]> {
        let chosen = mix(id).checked_rem(self.pages.len() as u64)?;
        Some(&self.pages[chosen as usize].1)
    }
}

/// The last sample before event number `event`, and the next one.
fn around<T: Copy>(seen: &[(u64, T)], event: u64) -> (Option<T>, Option<T>) {
    let before = seen.partition_point(|(at, _)| *at < event);
    let of = |place: Option<usize>| place.and_then(|place| seen.get(place)).map(|(_, what)| *what);
    (of(before.checked_sub(1)), of(Some(before)))
}

impl SampledContents {
    /// Adds a sample of a whole address space.
    pub(super) fn add_space(&mut self, sizes: &Compressibility) {
        self.spaces.add(sizes);
    }

    /// Adds a sample of a part of address space number `space`, which is event number `event`. `hold` says
    /// whether so many more bytes may be kept; `false` if not all may.
    pub(super) fn add_region(
        &mut self,
        space: usize,
        event: u64,
        sample: &ContentSample,
        mut hold: impl FnMut(u64) -> bool,
    ) -> bool {
        for (sum, bytes) in self.both.iter_mut().zip([sample.lz4_of_both, sample.zstd]) {
            *sum = sum.saturating_add(bytes);
        }
        for &PageSample { page, contents } in &sample.pages {
            let page = (sample.start >> PAGE_SHIFT) + u64::from(page);
            let key = (space, page / REGION_PAGES);
            let known = self.by_region.get(&key);
            let bytes = match known {
                None => REGION_BYTES + PAGE_BYTES,
                Some(region) if region.looks(page % REGION_PAGES).is_none() => PAGE_BYTES,
                Some(_) => LOOK_BYTES,
            };
            if !hold(bytes) {
                return false;
            }
            let region = self.by_region.entry(key).or_default();
            if region.add(page % REGION_PAGES, (event, contents)) {
                self.regions.count(contents);
                self.compressed = self.compressed.saturating_add(contents.bytes());
            }
        }
        if sample.pages.is_empty() {
            self.regions.add(&sample.sizes);
            self.compressed = self.compressed.saturating_add(sample.compressed);
            let first = sample.start >> REGION_SHIFT;
            let last = sample.start.saturating_add(sample.bytes.max(1) - 1) >> REGION_SHIFT;
            let distribution = Distribution::of_sample(sample);
            for region in first..=last.min(first + MOST_REGIONS) {
                let known = self.by_region.contains_key(&(space, region));
                if !hold(MIX_BYTES + if known { 0 } else { REGION_BYTES }) {
                    return false;
                }
                self.by_region.entry((space, region)).or_default().mixes.push((event, distribution));
            }
        }
        true
    }

    /// The sizes of all sampled pages.
    pub(super) fn sizes(&self) -> &Compressibility {
        if self.regions.pages() > 0 { &self.regions } else { &self.spaces }
    }

    /// The size by zstd as a share of that by LZ4. None where it was not tried.
    pub(super) fn zstd_of_lz4(&self) -> Option<f64> {
        let [lz4, zstd] = self.both;
        (lz4 > 0).then(|| zstd as f64 / lz4 as f64)
    }

    /// The contents of a page without samples of its own. In a recording without any samples all sizes are
    /// equally likely; zeros are not, since a page that is filled was written to.
    fn any(&self) -> Distribution {
        if self.regions.pages() > 0 {
            return Distribution::of_sum(self.regions, self.compressed);
        }
        let unknown = Compressibility { zero: 0, same: 1, sizes: [1; Compressibility::CLASSES] };
        Distribution::of(if self.spaces.pages() > 0 { self.spaces } else { unknown })
    }

    fn region(&self, space: usize, addr: u64) -> Option<&Region> {
        self.by_region.get(&(space, addr >> REGION_SHIFT))
    }

    /// The contents of the page at `addr` that is written at event number `event`: those of its next sample,
    /// or of the last one. A page without samples gets the contents of another page of its region.
    pub(super) fn of_page(&self, space: usize, addr: u64, event: u64) -> PageContents {
        let id = page_id(space, addr);
        let Some(region) = self.region(space, addr) else { return self.any().contents(id) };
        if let Some(looks) = region.looks(place(addr)).or_else(|| region.any_looks(id)) {
            let (last, next) = around(looks, event);
            return next.or(last).unwrap_or(PageContents::Zero);
        }
        let (last, next) = around(&region.mixes, event);
        next.or(last).unwrap_or_else(|| self.any()).contents(id)
    }

    /// Whether the page at `addr` is written without page faults after event number `event`: it, or its
    /// region where no page was given, has other contents in the next sample than in the last.
    pub(super) fn changes(&self, space: usize, addr: u64, event: u64) -> bool {
        let Some(region) = self.region(space, addr) else { return false };
        if let Some(looks) = region.looks(place(addr)) {
            return match around(looks, event) {
                (Some(last), Some(next)) => differ(last, next),
                _ => false,
            };
        }
        match around(&region.mixes, event) {
            (Some(last), Some(next)) => last.mean().abs_diff(next.mean()) > REGION_CHANGE,
            _ => false,
        }
    }
}

/// Whether a page with the one and then the other contents counts as written.
fn differ(one: PageContents, other: PageContents) -> bool {
    std::mem::discriminant(&one) != std::mem::discriminant(&other)
        || one.bytes().abs_diff(other.bytes()) > PAGE_CHANGE
}

/// The place of a page in its region.
fn place(addr: u64) -> u64 {
    (addr >> PAGE_SHIFT) % REGION_PAGES
}

/// A number for the page at `addr`, another one in each address space.
pub(super) fn page_id(space: usize, addr: u64) -> u64 {
    mix(space as u64) ^ (addr >> PAGE_SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample without pages.
    fn mix_of(region: u64, class: usize) -> ContentSample {
        let mut sizes = Compressibility::default();
        sizes.sizes[class] = 30;
        let compressed = 30 * (class as u64 * 256 + 128);
        let (start, bytes) = (region << REGION_SHIFT, 1 << REGION_SHIFT);
        ContentSample { start, bytes, sizes, compressed, lz4_of_both: 100, zstd: 75, pages: Vec::new() }
    }

    fn pages_of(region: u64, pages: impl IntoIterator<Item = (u32, PageContents)>) -> ContentSample {
        let (start, bytes) = (region << REGION_SHIFT, 1 << REGION_SHIFT);
        let pages = pages.into_iter().map(|(page, contents)| PageSample { page, contents }).collect();
        ContentSample { start, bytes, pages, ..ContentSample::default() }
    }

    fn addr_of(region: u64, page: u64) -> u64 {
        (region << REGION_SHIFT) + (page << PAGE_SHIFT)
    }

    #[test]
    fn a_page_holds_what_its_region_holds_when_it_is_looked_at_next() {
        let mut contents = SampledContents::default();
        for (event, class) in [(10, 2), (20, 3), (30, 9)] {
            assert!(contents.add_region(0, event, &mix_of(5, class), |_| true));
        }
        assert!(contents.add_region(1, 40, &mix_of(5, 12), |_| true));
        let addr = addr_of(5, 1);
        let found = [0, 10, 11, 25, 31].map(|event| contents.of_page(0, addr, event));
        assert_eq!(found, [640, 640, 896, 2432, 2432].map(PageContents::Compressed));
        assert_eq!(contents.of_page(1, addr, 0), PageContents::Compressed(3200));
        assert_eq!(
            [5, 15, 25, 35].map(|event| contents.changes(0, addr, event)),
            [false, false, true, false]
        );
    }

    /// Pages of small objects, which are used all the time and compress badly, beside those of values, which
    /// are read once: these keep their size, and so does the estimate for the whole region.
    #[test]
    fn cold_pages_keep_their_size_beside_hot_ones() {
        let (value, object) = (PageContents::Compressed(600), PageContents::Compressed(1500));
        let is_hot = |page: u32| page.is_multiple_of(8);
        let all = (0..512).map(|page| (page, if is_hot(page) { object } else { value }));
        let mut contents = SampledContents::default();
        assert!(contents.add_region(0, 10, &pages_of(3, all), |_| true));
        for event in 11..100 {
            assert!(contents.add_region(
                0,
                event,
                &pages_of(3, (0..512).step_by(8).map(|page| (page, object))),
                |_| true
            ));
        }
        let held = |page: u32| contents.of_page(0, addr_of(3, page.into()), 50);
        assert!((0..512).all(|page| held(page) == if is_hot(page) { object } else { value }));
        // Elsewhere, too, hot pages count only once.
        let elsewhere: u64 = (0..512).map(|page| contents.of_page(0, addr_of(4, page), 50).bytes()).sum();
        let here: u64 = (0..512).map(|page| held(page).bytes()).sum();
        assert!((here.abs_diff(elsewhere) as f64) < here as f64 * 0.1, "{here} {elsewhere}");
        assert_eq!(contents.sizes().pages(), 512);
    }

    #[test]
    fn a_page_holds_what_it_holds_when_it_is_looked_at_next_itself() {
        let sizes = [PageContents::Zero, PageContents::Same]
            .into_iter()
            .chain([500, 560, 700].map(PageContents::Compressed));
        let mut contents = SampledContents::default();
        for (event, held) in (10..).step_by(10).zip(sizes) {
            assert!(contents.add_region(
                0,
                event,
                &pages_of(3, [(7, held), (8, PageContents::Compressed(3000))]),
                |_| true
            ));
        }
        let held = |event| contents.of_page(0, addr_of(3, 7), event);
        assert_eq!([0, 10].map(held), [PageContents::Zero; 2]);
        assert_eq!([11, 21, 31].map(held), [PageContents::Same, held(30), held(40)]);
        assert_eq!([30, 40, 41, 60].map(|event| held(event).bytes()), [500, 560, 700, 700]);
        let changes =
            |page| [5, 15, 25, 35, 45, 55].map(|event| contents.changes(0, addr_of(3, page), event));
        assert_eq!(changes(7), [false, true, true, false, true, false]);
        assert_eq!((changes(8), changes(9)), ([false; 6], [false; 6]));
    }

    #[test]
    fn a_page_that_was_never_looked_at_holds_what_another_of_its_region_does() {
        let mut contents = SampledContents::default();
        let of = |page: u32| PageContents::Compressed(100 + page as u16);
        assert!(contents.add_region(0, 10, &pages_of(3, (0..8).map(|page| (page, of(page)))), |_| true));
        // One of them changes, which counts for those that are like it.
        assert!(contents.add_region(0, 20, &pages_of(3, [(0, PageContents::Zero)]), |_| true));
        let count = |event, wanted| {
            (8..512).filter(|&page| contents.of_page(0, addr_of(3, page), event) == wanted).count()
        };
        for page in 0..8 {
            assert!(count(5, of(page)).abs_diff(63) < 30, "{page}: {}", count(5, of(page)));
        }
        assert_eq!((count(15, of(0)), count(15, PageContents::Zero)), (0, count(5, of(0))));
        assert!((8..512).all(|page| !contents.changes(0, addr_of(3, page), 15)));
    }

    #[test]
    fn what_was_not_looked_at_holds_what_the_rest_holds() {
        let mut contents = SampledContents::default();
        let found: Vec<PageContents> = (0..200).map(|page| contents.of_page(0, page << 12, 0)).collect();
        // A page that is filled was written to.
        assert!(!found.contains(&PageContents::Zero) && found.contains(&PageContents::Compressed(3968)));
        contents.add_space(&Compressibility { zero: 3, ..Compressibility::default() });
        assert_eq!(contents.of_page(0, 0, 0), PageContents::Zero);
        assert!(contents.add_region(0, 1, &mix_of(7, 4), |_| true));
        assert_eq!(contents.of_page(0, 0, 0), PageContents::Compressed(1152));
        assert_eq!(contents.sizes().sizes[4], 30);
        assert_eq!((contents.zstd_of_lz4(), SampledContents::default().zstd_of_lz4()), (Some(0.75), None));
        // Pages that are given have their own size, not the middle of their class.
        let mut contents = SampledContents::default();
        assert!(contents.add_region(
            0,
            1,
            &pages_of(7, (0..20).map(|page| (page, PageContents::Compressed(1030)))),
            |_| true
        ));
        assert_eq!(contents.of_page(0, 0, 0), PageContents::Compressed(1030));
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
            pages: Vec::new(),
        };
        assert!(contents.add_region(0, 0, &claim, |_| true));
        assert!(contents.add_region(
            0,
            0,
            &ContentSample { start: u64::MAX, bytes: 0, ..claim.clone() },
            |_| true
        ));
        assert!(contents.by_region.len() <= MOST_REGIONS as usize + 2);
        assert!(!contents.changes(0, 1 << 40, 0));
        // A sample with pages is used for these only.
        let page =
            PageSample { page: u32::MAX, contents: PageContents::Compressed(PageContents::MOST_BYTES) };
        let mut contents = SampledContents::default();
        assert!(
            contents.add_region(0, 0, &ContentSample { pages: vec![page; 3], ..claim.clone() }, |_| true)
        );
        assert!(contents.add_region(
            0,
            0,
            &ContentSample { start: u64::MAX, pages: vec![page], ..claim },
            |_| true
        ));
        assert_eq!((contents.by_region.len(), contents.sizes().pages()), (2, 2));
    }
}
