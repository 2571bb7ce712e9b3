//! The pages below one page table, and how many of them touches bring in.

use quire_mm::thp::HugePolicy;

/// Pages below one page table, which a folio of the largest order covers.
pub(super) const PAGES: u64 = 512;
/// Orders of anonymous folios, 0 to that of a PMD entry.
pub(super) const ORDERS: usize = 10;
/// Ways in which touches bring in pages. Each order is one; the last one is huge pages for reads, too, where
/// there is no huge zero page.
pub(super) const WAYS: usize = ORDERS + 1;
/// Words of a set.
const WORDS: usize = (PAGES / 64) as usize;

/// The way in which touches bring in pages under `policy`, in memory that is advised to have large folios or
/// in memory that is not.
pub(super) fn way(policy: HugePolicy, advised: bool) -> usize {
    let largest = policy.enabled_orders(advised).largest();
    match largest.map_or(0, |order| usize::from(order.get())) {
        order if order + 1 < ORDERS => order,
        _ if policy.zero_page() => ORDERS - 1,
        _ => WAYS - 1,
    }
}

/// The order of the folios that come in this way.
pub(super) fn order_of(way: usize) -> usize {
    way.min(ORDERS - 1)
}

/// A set of pages of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Bits([u64; WORDS]);

impl Bits {
    /// All pages.
    #[cfg(test)]
    const ALL: Self = Self([u64::MAX; WORDS]);

    /// The pages from `first` to before `end`, which is at most [`PAGES`].
    pub(super) fn range(first: u64, end: u64) -> Self {
        Self(std::array::from_fn(|word| {
            let start = word as u64 * 64;
            let (from, to) = (first.clamp(start, start + 64) - start, end.clamp(start, start + 64) - start);
            let below = |place: u64| if place == 64 { u64::MAX } else { (1 << place) - 1 };
            below(to) & !below(from)
        }))
    }

    /// The group of 2^`order` pages that a folio with `page` covers.
    fn group(page: u64, order: usize) -> Self {
        let first = page >> order << order;
        Self::range(first, first + (1 << order))
    }

    pub(super) fn has(&self, page: u64) -> bool {
        self.0[page as usize / 64] >> (page % 64) & 1 != 0
    }

    pub(super) fn add(&mut self, page: u64) {
        self.0[page as usize / 64] |= 1 << (page % 64);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    pub(super) fn and(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    pub(super) fn or(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    pub(super) fn without(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// The pages of it.
    pub(super) fn pages(self) -> impl Iterator<Item = u64> {
        (0..PAGES).filter(move |page| self.has(*page))
    }

    /// How many pages of `self` lie in the groups of each order in which there is a page of `touched`.
    fn around(&self, touched: &Self) -> [u64; ORDERS] {
        let mut groups = *touched;
        std::array::from_fn(|order| {
            if order > 0 {
                groups = groups.doubled(order - 1);
            }
            self.and(&groups).count()
        })
    }

    /// The groups of twice the size that hold a group of 2^`order` pages of this set.
    fn doubled(&self, order: usize) -> Self {
        let step = 1 << order;
        if step >= 64 {
            let words = step / 64;
            return Self(std::array::from_fn(|word| self.0[word] | self.0[word ^ words]));
        }
        // The lower half of each pair of groups.
        let lower = u64::MAX / ((1_u64 << step) + 1);
        Self(std::array::from_fn(|word| {
            let bits = self.0[word];
            bits | (bits & lower) << step | bits >> step & lower
        }))
    }
}

/// Pages that are needed, by the order of the folios that a touch brings in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Demand {
    /// Whatever the order is: of files, page tables, and copies of shared pages.
    pub(super) single: u64,
    /// For each way those of memory that is not advised to have large folios, and of memory that is.
    pub(super) large: [[u64; WAYS]; 2],
}

impl Demand {
    pub(super) fn add(&mut self, other: &Self) {
        self.combine(other, u64::saturating_add);
    }

    pub(super) fn subtract(&mut self, other: &Self) {
        self.combine(other, u64::saturating_sub);
    }

    fn combine(&mut self, other: &Self, with: impl Fn(u64, u64) -> u64) {
        self.single = with(self.single, other.single);
        for (own, others) in self.large.iter_mut().zip(&other.large) {
            for (pages, more) in own.iter_mut().zip(others) {
                *pages = with(*pages, *more);
            }
        }
    }

    /// Pages where a touch brings in folios in these ways, in memory that is not advised and in memory that
    /// is.
    pub(super) fn pages(&self, [plain, advised]: [usize; 2]) -> u64 {
        self.single.saturating_add(self.large[0][plain]).saturating_add(self.large[1][advised])
    }
}

/// The pages below one page table of an address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Block {
    /// Pages that were touched.
    pub(super) touched: Bits,
    /// Of these, those that take a frame of their own. Anonymous memory that was only read does not, unless a
    /// huge page comes in that is not the huge zero page.
    pub(super) framed: Bits,
    /// Pages around which a touch can bring in others: anonymous memory, not advised and advised.
    pub(super) large: [Bits; 2],
    /// Pages that come in one by one all the same: copies of what another process has, too.
    pub(super) copied: Bits,
}

impl Block {
    /// What it needs.
    pub(super) fn demand(&self) -> Demand {
        let mut demand = Demand::default();
        let mut single = self.framed;
        for (pages, large) in demand.large.iter_mut().zip(&self.large) {
            let large = large.without(&self.copied);
            pages[..ORDERS].copy_from_slice(&large.around(&self.framed.and(&large)));
            pages[WAYS - 1] = large.around(&self.touched.and(&large))[ORDERS - 1];
            single = single.without(&large);
        }
        demand.single = single.count();
        demand
    }

    /// `page` is touched; `framed`: it takes a frame. Returns what is needed more.
    pub(super) fn touch(&mut self, page: u64, framed: bool) -> Demand {
        let mut more = Demand::default();
        let (new, newly_framed) = (!self.touched.has(page), framed && !self.framed.has(page));
        let place = self.large.iter().position(|large| large.has(page) && !self.copied.has(page));
        let Some(place) = place else {
            more.single = newly_framed.into();
            self.note(page, framed);
            return more;
        };
        let large = self.large[place].without(&self.copied);
        for (way, pages) in more.large[place].iter_mut().enumerate() {
            let (is_new, seen) =
                if way == WAYS - 1 { (new, &self.touched) } else { (newly_framed, &self.framed) };
            if is_new {
                let group = large.and(&Bits::group(page, order_of(way)));
                if seen.and(&group).is_empty() {
                    *pages = group.count();
                }
            }
        }
        self.note(page, framed);
        more
    }

    /// `page` is a copy of what another process has, too.
    pub(super) fn copy(&mut self, page: u64, framed: bool) {
        self.copied.add(page);
        self.note(page, framed);
    }

    fn note(&mut self, page: u64, framed: bool) {
        self.touched.add(page);
        if framed {
            self.framed.add(page);
        }
    }

    /// These pages are gone.
    pub(super) fn drop_pages(&mut self, gone: &Bits) {
        self.touched = self.touched.without(gone);
        self.framed = self.framed.without(gone);
        self.copied = self.copied.without(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touch_brings_in_its_group_as_far_as_it_is_mapped() {
        let mut block = Block { large: [Bits::range(0, 500), Bits::default()], ..Block::default() };
        let mut sum = block.touch(3, true);
        assert_eq!(sum.large[0], [1, 2, 4, 8, 16, 32, 64, 128, 256, 500, 500]);
        sum.add(&block.touch(2, true));
        assert_eq!(sum.large[0], [2, 2, 4, 8, 16, 32, 64, 128, 256, 500, 500]);
        sum.add(&block.touch(499, false));
        sum.add(&block.touch(498, true));
        // The last group ends with the mapping.
        assert_eq!(sum.large[0], [3, 4, 8, 12, 20, 52, 116, 244, 500, 500, 500]);
        // What is not anonymous comes in one by one.
        sum.add(&block.touch(510, true));
        assert_eq!(sum.single, 1);
        assert_eq!(sum, block.demand());
        block.drop_pages(&Bits::ALL);
        assert_eq!(block.demand(), Demand::default());
    }

    #[test]
    fn what_is_read_takes_no_frame_unless_it_is_huge_and_not_the_zero_page() {
        let mut block = Block { large: [Bits::default(), Bits::ALL], ..Block::default() };
        let mut sum = block.touch(9, false);
        assert_eq!((sum.pages([0, 0]), sum.pages([0, 9]), sum.pages([10, 10])), (0, 0, 512));
        sum.add(&block.touch(9, true));
        assert_eq!((sum.pages([9, 0]), sum.pages([9, 9]), sum.pages([9, 10])), (1, 512, 512));
        assert_eq!(sum, block.demand());
    }

    #[test]
    fn copies_come_in_one_by_one() {
        let mut block = Block { large: [Bits::ALL, Bits::default()], ..Block::default() };
        block.copy(77, true);
        let mut sum = block.demand();
        assert_eq!(sum.pages([9, 9]), 1);
        sum.add(&block.touch(78, true));
        assert_eq!((sum.pages([9, 9]), sum), (512, block.demand()));
    }
}
