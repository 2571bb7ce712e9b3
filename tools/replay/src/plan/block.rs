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

    /// How many pages of it lie in the group of 2^`order` pages that a folio with `page` covers.
    fn count_in_group(&self, page: u64, order: usize) -> u64 {
        let word = page as usize / 64;
        if order < 6 {
            let first = ((page % 64) >> order) << order;
            let group = ((1_u64 << (1 << order)) - 1) << first;
            return u64::from((self.0[word] & group).count_ones());
        }
        let words = 1 << (order - 6);
        let first = word / words * words;
        self.0[first..first + words].iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The pages of it.
    pub(super) fn pages(self) -> impl Iterator<Item = u64> {
        (0..PAGES).filter(move |page| self.has(*page))
    }

    /// The pages of `self` that lie in the groups of each order in which there is a page of `touched`.
    fn around(&self, touched: &Self) -> [Self; ORDERS] {
        let mut groups = *touched;
        std::array::from_fn(|order| {
            if order > 0 {
                groups = groups.doubled(order - 1);
            }
            self.and(&groups)
        })
    }

    /// The groups of 2^`order` pages that hold one of this set.
    fn groups(&self, order: usize) -> Self {
        (0..order).fold(*self, |groups, order| groups.doubled(order))
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

/// For each way pages that are there, and around which nothing is touched any more.
type Rest = [Bits; WAYS];

/// The pages below one page table of an address space.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
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
    /// What stays where a part of a large folio is dropped. `None`: no page.
    rest: Option<Box<Rest>>,
    /// Pages that lay around others and are not mapped any more: their frames stay with those of their folio.
    unmapped: [Bits; 2],
}

impl Block {
    /// One in which nothing was touched.
    pub(super) fn of(large: [Bits; 2]) -> Self {
        Self { large, ..Self::default() }
    }

    /// What it needs.
    pub(super) fn demand(&self) -> Demand {
        let mut demand = Demand::default();
        let mut single = self.framed;
        for (place, pages) in demand.large.iter_mut().enumerate() {
            let own = self.large[place].without(&self.copied);
            // What is unmapped counts with what is there around it.
            if own.is_empty() {
                continue;
            }
            let present = self.present(place);
            let is_whole = self.rest.is_none() && self.unmapped[place].is_empty();
            *pages = std::array::from_fn(|way| {
                if is_whole {
                    return present[way].count();
                }
                own.or(&self.unmapped[place]).and(&present[way].groups(order_of(way))).count()
            });
            single = single.without(&own);
        }
        demand.single = single.count();
        demand
    }

    /// What is there of the pages around which others come in, by ways.
    fn present(&self, place: usize) -> Rest {
        let large = self.large[place].without(&self.copied);
        // Most blocks are all advised, or not at all.
        if large.is_empty() {
            return Rest::default();
        }
        let framed = large.around(&self.framed.and(&large));
        let huge = self.present_huge(&large);
        std::array::from_fn(|way| {
            let Some(around) = framed.get(way) else { return huge };
            self.rest.as_ref().map_or(*around, |rest| around.or(&rest[way].and(&large)))
        })
    }

    /// What is present in the last way, of the pages `large`: a folio of the largest order covers all.
    fn present_huge(&self, large: &Bits) -> Bits {
        let huge = if self.touched.and(large).is_empty() { Bits::default() } else { *large };
        self.rest.as_ref().map_or(huge, |rest| huge.or(&rest[WAYS - 1].and(large)))
    }

    /// `page` is touched; `framed`: it takes a frame. Returns what is needed more.
    pub(super) fn touch(&mut self, page: u64, framed: bool) -> Demand {
        if self.unmapped.iter().any(|unmapped| !unmapped.is_empty()) {
            // What is unmapped counts with a folio around it.
            let before = self.demand();
            self.note(page, framed);
            let mut more = self.demand();
            more.subtract(&before);
            return more;
        }
        let mut more = Demand::default();
        let (new, newly_framed) = (!self.touched.has(page), framed && !self.framed.has(page));
        if !new && !newly_framed {
            return more;
        }
        let place = self.large.iter().position(|large| large.has(page) && !self.copied.has(page));
        let Some(place) = place else {
            more.single = newly_framed.into();
            self.note(page, framed);
            return more;
        };
        let large = self.large[place].without(&self.copied);
        let is_there = |way: usize| {
            let rest = self.rest.as_ref().map(|rest| rest[way].and(&large));
            rest.is_some_and(|rest| rest.count_in_group(page, order_of(way)) > 0)
        };
        let ways = &mut more.large[place];
        if newly_framed {
            let framed = self.framed.and(&large);
            // Where one is there, so it is in each larger group.
            let empty = (0..ORDERS).take_while(|&order| framed.count_in_group(page, order) == 0);
            for way in empty.filter(|&way| !is_there(way)) {
                ways[way] = large.count_in_group(page, way);
            }
        }
        let huge = WAYS - 1;
        if new && self.touched.and(&large).is_empty() && !is_there(huge) {
            ways[huge] = large.count();
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

    /// These pages are gone. Of a large folio with one of them the others stay.
    pub(super) fn drop_pages(&mut self, gone: &Bits) {
        let all = self.touched.or(&self.large[0]).or(&self.large[1]);
        if self.rest.is_none() && all.without(gone).is_empty() {
            (self.touched, self.framed, self.copied) = Default::default();
            return;
        }
        let mut rest = self.rest.take().map_or_else(Rest::default, |rest| *rest);
        for place in 0..self.large.len() {
            for (rest, present) in rest.iter_mut().zip(self.present(place)) {
                *rest = rest.or(&present);
            }
        }
        self.touched = self.touched.without(gone);
        self.framed = self.framed.without(gone);
        self.copied = self.copied.without(gone);
        rest = rest.map(|rest| rest.without(gone));
        // What is touched is there in the first way, too.
        rest[0] = Bits::default();
        let seen = [0, 1].map(|place| self.present(place));
        let is_seen = |way: usize| rest[way].without(&seen[0][way]).without(&seen[1][way]).is_empty();
        self.rest = (!(0..WAYS).all(is_seen)).then(|| Box::new(rest));
    }

    /// Touches bring in others around these pages from now on.
    pub(super) fn set_large(&mut self, large: [Bits; 2]) {
        let mapped = large[0].or(&large[1]);
        let own = |place: usize| self.large[place].without(&self.copied);
        let there = [0, 1].map(|place| !self.present_huge(&own(place)).is_empty());
        for (place, unmapped) in self.unmapped.iter_mut().enumerate() {
            let known = if there[place] { unmapped.or(&self.large[place]) } else { Bits::default() };
            *unmapped = known.without(&mapped);
        }
        self.large = large;
    }

    /// Where touches bring in large folios, these pages are there.
    pub(super) fn fill_large(&mut self, pages: &Bits) {
        let rest = self.rest.get_or_insert_default();
        for rest in &mut rest[1..] {
            *rest = rest.or(pages);
        }
    }

    /// What another block has is here, too.
    pub(super) fn take(&mut self, other: &Self) {
        self.touched = self.touched.or(&other.touched);
        self.framed = self.framed.or(&other.framed);
        self.copied = self.copied.or(&other.copied);
        if let Some(others) = &other.rest {
            let rest = self.rest.get_or_insert_default();
            for (rest, others) in rest.iter_mut().zip(others.iter()) {
                *rest = rest.or(others);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touch_brings_in_its_group_as_far_as_it_is_mapped() {
        let mut block = Block::of([Bits::range(0, 500), Bits::default()]);
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
        let mut block = Block::of([Bits::default(), Bits::ALL]);
        let mut sum = block.touch(9, false);
        assert_eq!((sum.pages([0, 0]), sum.pages([0, 9]), sum.pages([10, 10])), (0, 0, 512));
        sum.add(&block.touch(9, true));
        assert_eq!((sum.pages([9, 0]), sum.pages([9, 9]), sum.pages([9, 10])), (1, 512, 512));
        assert_eq!(sum, block.demand());
    }

    /// A page of a large folio is dropped: the rest of the folio stays until it is dropped, too.
    #[test]
    fn what_is_dropped_leaves_the_rest_of_its_folio() {
        let mut block = Block::of([Bits::default(), Bits::ALL]);
        let pages = |block: &Block| block.demand().large[1];
        block.touch(5, true);
        block.drop_pages(&Bits::range(5, 6));
        assert_eq!(pages(&block), [0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 512]);
        // It comes in again, alone or with what is gone of its folio.
        let before = block.demand();
        let mut sum = block.touch(5, true);
        assert_eq!(sum.large[1], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        sum.add(&before);
        assert_eq!(sum, block.demand());
        block.drop_pages(&Bits::range(0, 16));
        assert_eq!(pages(&block), [0, 0, 0, 0, 0, 32, 64, 128, 256, 512, 512]);
        block.drop_pages(&Bits::range(16, 512));
        assert_eq!((pages(&block), block.rest.is_none()), ([0; WAYS], true));
        // What is still touched there needs no more than its group.
        block.touch(4, true);
        block.touch(5, true);
        block.drop_pages(&Bits::range(4, 5));
        assert_eq!((pages(&block)[0], pages(&block)[9], block.rest.is_none()), (1, 512, true));
    }

    /// All but one page of a large folio is unmapped.
    #[test]
    fn what_is_unmapped_leaves_its_folio_while_a_page_of_it_is_mapped() {
        let mut block = Block::of([Bits::ALL, Bits::default()]);
        block.touch(5, true);
        block.drop_pages(&Bits::range(0, 100));
        block.set_large([Bits::range(100, 512), Bits::default()]);
        assert_eq!((block.demand().large[0][9], block.demand().large[0][4]), (512, 0));
        block.drop_pages(&Bits::range(101, 512));
        block.set_large([Bits::range(100, 101), Bits::default()]);
        assert_eq!((block.demand().large[0][9], block.demand().large[0][8]), (512, 256));
        block.drop_pages(&Bits::range(100, 101));
        assert_eq!(block.demand(), Demand::default());
    }

    #[test]
    fn copies_come_in_one_by_one() {
        let mut block = Block::of([Bits::ALL, Bits::default()]);
        block.copy(77, true);
        let mut sum = block.demand();
        assert_eq!(sum.pages([9, 9]), 1);
        sum.add(&block.touch(78, true));
        assert_eq!((sum.pages([9, 9]), sum), (512, block.demand()));
    }
}
