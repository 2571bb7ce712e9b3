//! A set of pages of a file.

use quire_trace::event::IndexRun;
use std::collections::BTreeMap;

/// Pages by their indexes. Neighbours are one run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PageSet {
    /// The end of each run by its first page. Runs do not touch.
    runs: BTreeMap<u64, u64>,
}

impl PageSet {
    /// The set of these runs.
    pub(crate) fn of(runs: &[IndexRun]) -> Self {
        let mut set = Self::default();
        for run in runs {
            set.insert(*run);
        }
        set
    }

    /// All pages, in runs that ascend and do not touch.
    pub(crate) fn runs(&self) -> Vec<IndexRun> {
        self.runs.iter().map(|(&first, &end)| IndexRun { first, pages: end - first }).collect()
    }

    /// Adds pages. Returns whether one was not there.
    pub(crate) fn insert(&mut self, run: IndexRun) -> bool {
        let (mut first, mut end) = (run.first, run.end());
        if first >= end {
            return false;
        }
        if self.runs.range(..=first).next_back().is_some_and(|(_, &last)| last >= end) {
            return false;
        }
        // Those that it touches become one with it.
        while let Some((&other, &other_end)) = self.runs.range(..=end).next_back()
            && other_end >= first
        {
            (first, end) = (first.min(other), end.max(other_end));
            self.runs.remove(&other);
        }
        self.runs.insert(first, end);
        true
    }

    /// Takes pages away. Returns whether one was there.
    pub(crate) fn remove(&mut self, run: IndexRun) -> bool {
        let (first, end) = (run.first, run.end());
        if first >= end {
            return false;
        }
        let mut removed = false;
        while let Some((&other, &other_end)) = self.runs.range(..end).next_back()
            && other_end > first
        {
            removed = true;
            self.runs.remove(&other);
            if other < first {
                self.runs.insert(other, first);
            }
            if other_end > end {
                self.runs.insert(end, other_end);
            }
        }
        removed
    }

    /// The pages of this set that are not in the other.
    pub(crate) fn without(&self, other: &Self) -> Vec<IndexRun> {
        let mut left = self.clone();
        for run in other.runs() {
            left.remove(run);
        }
        left.runs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn run(first: u64, pages: u64) -> IndexRun {
        IndexRun { first, pages }
    }

    fn pages(set: &PageSet) -> BTreeSet<u64> {
        set.runs().iter().flat_map(|run| run.first..run.end()).collect()
    }

    proptest! {
        #[test]
        fn it_is_a_set_whose_runs_do_not_touch(steps in vec((any::<bool>(), 0_u64..60, 0_u64..9), 0..40)) {
            let (mut set, mut model) = (PageSet::default(), BTreeSet::new());
            let mut before = PageSet::default();
            for (adds, first, count) in steps {
                let old = model.len();
                if adds {
                    model.extend(first..first + count);
                    prop_assert_eq!(set.insert(run(first, count)), model.len() > old);
                } else {
                    model.retain(|page| !(first..first + count).contains(page));
                    prop_assert_eq!(set.remove(run(first, count)), model.len() < old);
                }
                prop_assert_eq!(pages(&set), model.clone());
                let runs = set.runs();
                prop_assert!(runs.windows(2).all(|pair| pair[0].end() < pair[1].first));
                let new: BTreeSet<u64> = model.difference(&pages(&before)).copied().collect();
                let found = PageSet::of(&set.without(&before));
                prop_assert_eq!(pages(&found), new);
                before = set.clone();
            }
        }
    }
}
