//! A set of pages that is as small as it has runs.

use std::collections::BTreeMap;
use std::ops::Range;

/// Pages by their numbers.
#[derive(Debug, Default)]
pub(super) struct PageSet {
    /// The end of each run by its start. No two of them touch.
    runs: BTreeMap<u64, u64>,
    pages: u64,
}

impl PageSet {
    /// How many there are.
    pub(super) fn len(&self) -> u64 {
        self.pages
    }

    /// Adds these.
    pub(super) fn add(&mut self, pages: Range<u64>) {
        if pages.is_empty() || self.has_all(&pages) {
            return;
        }
        let (mut start, mut end) = (pages.start, pages.end);
        // Those that it touches become one with it.
        while let Some((&from, &to)) = self.runs.range(..=end).next_back().filter(|(_, to)| **to >= start) {
            self.runs.remove(&from);
            self.pages -= to - from;
            (start, end) = (start.min(from), end.max(to));
        }
        self.runs.insert(start, end);
        self.pages += end - start;
    }

    /// Removes these.
    pub(super) fn remove(&mut self, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        while let Some((&from, &to)) =
            self.runs.range(..pages.end).next_back().filter(|(_, to)| **to > pages.start)
        {
            self.runs.remove(&from);
            self.pages -= to - from;
            for (start, end) in [(from, pages.start), (pages.end, to)] {
                if start < end {
                    self.runs.insert(start, end);
                    self.pages += end - start;
                }
            }
        }
    }

    /// Whether this one is in it.
    pub(super) fn has(&self, page: u64) -> bool {
        self.runs.range(..=page).next_back().is_some_and(|(_, end)| *end > page)
    }

    /// Whether all of these are, of which there is at least one.
    pub(super) fn has_all(&self, pages: &Range<u64>) -> bool {
        self.runs.range(..=pages.start).next_back().is_some_and(|(_, end)| *end >= pages.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_has_what_a_set_of_each_page_has(
            steps in prop::collection::vec((any::<bool>(), 0..60_u64, 0..12_u64), 0..60)
        ) {
            let (mut set, mut each) = (PageSet::default(), BTreeSet::new());
            for (adds, start, len) in steps {
                let pages = start..start + len;
                if adds {
                    set.add(pages.clone());
                    each.extend(pages);
                } else {
                    set.remove(pages.clone());
                    each.retain(|page| !pages.contains(page));
                }
                let all: Vec<u64> = set.runs.iter().flat_map(|(&start, &end)| start..end).collect();
                prop_assert_eq!(&all, &Vec::from_iter(each.iter().copied()));
                prop_assert_eq!(set.len(), all.len() as u64);
                prop_assert!((0..80).all(|page| set.has(page) == each.contains(&page)));
                let ends = set.runs.values().zip(set.runs.keys().skip(1));
                prop_assert!(ends.into_iter().all(|(end, next)| end < next), "{:?}", set);
            }
        }
    }

    #[test]
    fn a_long_run_takes_no_more_than_a_short_one() {
        let mut set = PageSet::default();
        set.add(0..1 << 40);
        set.add(5..1 << 50);
        assert_eq!((set.len(), set.runs.len()), (1 << 50, 1));
    }
}
