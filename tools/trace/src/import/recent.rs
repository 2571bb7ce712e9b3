//! Leaving out uses of recently used pages.

use crate::event::{ReuseAccess, ReuseRun};
use std::collections::VecDeque;

/// The number of remembered pages.
pub(super) const REMEMBERED: usize = 16;
const PAGE_SHIFT: u32 = 12;

/// The pages whose uses were kept last, the last one first, and the uses that are to be kept.
///
/// A use of a page that is among the last [`REMEMBERED`] kept ones is left out, and does not make it newer: a
/// page that is used all the time is kept again and again. Between a use that is left out and the one that
/// stands for it lie fewer than twice [`REMEMBERED`] different pages. So an LRU memory misses as often with
/// the kept uses as one that is at most that much smaller or larger would miss with all of them.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// Pages, and whether they were written.
    pages: VecDeque<(u64, bool)>,
    runs: Vec<ReuseRun>,
    kept: u64,
}

impl Recent {
    /// The page of this number is used.
    pub(super) fn add(&mut self, page: u64, write: bool) {
        if let Some(place) = self.pages.iter().position(|(known, _)| *known == page) {
            if !write || self.pages[place].1 {
                return;
            }
            self.pages.remove(place);
        }
        self.pages.truncate(REMEMBERED - 1);
        self.pages.push_front((page, write));
        self.keep(page, if write { ReuseAccess::Write } else { ReuseAccess::Read });
    }

    fn keep(&mut self, page: u64, access: ReuseAccess) {
        self.kept += 1;
        let start = page << PAGE_SHIFT;
        match self.runs.last_mut() {
            Some(last) if last.access == access && last.start + (last.pages << PAGE_SHIFT) == start => {
                last.pages += 1;
            }
            _ => self.runs.push(ReuseRun { start, pages: 1, access }),
        }
    }

    /// How many runs wait to be taken.
    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    /// How many uses were kept in all.
    pub(super) fn kept(&self) -> u64 {
        self.kept
    }

    /// The runs so far.
    pub(super) fn take(&mut self) -> Vec<ReuseRun> {
        std::mem::take(&mut self.runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn pages(runs: &[ReuseRun]) -> Vec<(u64, ReuseAccess)> {
        let run = |run: &ReuseRun| {
            (run.start >> PAGE_SHIFT..).take(run.pages as usize).zip(std::iter::repeat(run.access))
        };
        runs.iter().flat_map(run).collect()
    }

    #[test]
    fn only_what_is_new_or_newly_written_is_kept() {
        let (read, write) = (ReuseAccess::Read, ReuseAccess::Write);
        let mut recent = Recent::default();
        for (page, is_write) in [(1, false), (2, false), (1, false), (2, true), (2, true), (2, false)] {
            recent.add(page, is_write);
        }
        assert_eq!(recent.len(), 2);
        assert_eq!(pages(&recent.take()), [(1, read), (2, read), (2, write)]);
        // One more than are remembered: the first is new again.
        for page in 2..2 + REMEMBERED as u64 + 1 {
            recent.add(page, false);
        }
        recent.add(2, false);
        let kept = pages(&recent.take());
        assert_eq!((kept.first(), kept.last()), (Some(&(3, read)), Some(&(2, read))));
    }

    /// Misses of an LRU memory of so many pages.
    fn misses(uses: impl Iterator<Item = u64>, room: usize) -> usize {
        let mut memory: Vec<u64> = Vec::new();
        let mut misses = 0;
        for page in uses {
            match memory.iter().position(|known| *known == page) {
                Some(place) => drop(memory.remove(place)),
                None => misses += 1,
            }
            memory.insert(0, page);
            memory.truncate(room);
        }
        misses
    }

    proptest! {
        #[test]
        fn little_memory_makes_up_for_what_is_left_out(
            uses in vec((0_u64..90, 0_u64..9, any::<bool>()), 0..900),
            more in 0_usize..20,
        ) {
            // Some pages are used more often than others.
            let uses: Vec<(u64, bool)> =
                uses.into_iter().map(|(page, hot, write)| (if hot > 3 { hot } else { page }, write)).collect();
            let mut recent = Recent::default();
            for (page, write) in &uses {
                recent.add(*page, *write);
            }
            let kept = pages(&recent.take());
            prop_assert_eq!(kept.len() as u64, recent.kept());
            let slack = 2 * REMEMBERED;
            let room = slack + 1 + more;
            let all = |room| misses(uses.iter().map(|(page, _)| *page), room);
            let with_kept = misses(kept.iter().map(|(page, _)| *page), room);
            prop_assert!(all(room + slack) <= with_kept && with_kept <= all(room - slack));
        }
    }
}
