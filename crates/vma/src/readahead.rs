//! How many pages to read ahead in a mapping: estimated from the hits of earlier readahead (as in Linux's
//! `swapin_nr_pages`).

use quire_sync::atomic::raw::{AtomicU64, Ordering};

/// Pages in the largest window (Linux's `vm.page-cluster`, 3).
pub const READAHEAD_MOST: u64 = 8;

/// The readahead state of one mapping: the page of the last fault, the window then, and the readahead hits
/// since. All of it is a heuristic, so nothing orders it.
#[derive(Debug, Default)]
pub struct Readahead(AtomicU64);

/// The parts of the word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    /// Number of the page.
    page: u64,
    window: u64,
    hits: u64,
}

impl State {
    const PART: u32 = 6;
    const MASK: u64 = (1 << Self::PART) - 1;

    const fn unpack(word: u64) -> Self {
        Self {
            page: word >> (2 * Self::PART),
            window: word >> Self::PART & Self::MASK,
            hits: word & Self::MASK,
        }
    }

    const fn pack(self) -> u64 {
        let hits = if self.hits < Self::MASK { self.hits } else { Self::MASK };
        self.page << (2 * Self::PART) | self.window << Self::PART | hits
    }

    /// The window for a fault at `page`.
    fn next_window(self, page: u64) -> u64 {
        let wanted = match self.hits {
            // A fault next to the last one starts a window.
            0 if self.page.abs_diff(page) != 1 => 1,
            hits => (hits + 2).next_power_of_two().min(READAHEAD_MOST),
        };
        // It does not shrink at once.
        wanted.max(self.window / 2)
    }
}

impl Readahead {
    /// The pages to read for a fault at `page`, that among them.
    #[inline]
    pub fn window(&self, page: u64) -> (u64, u64) {
        let before = State::unpack(self.0.load(Ordering::Relaxed));
        let window = before.next_window(page);
        self.0.store(State { page, window, hits: 0 }.pack(), Ordering::Relaxed);
        let first = if page == before.page + 1 {
            page
        } else if page + 1 == before.page {
            (page + 1).saturating_sub(window)
        } else {
            page.saturating_sub(window / 2)
        };
        (first, window)
    }

    /// The page number `page`, which was read ahead, was hit.
    #[inline]
    pub fn hit(&self, page: u64) {
        let state = State::unpack(self.0.load(Ordering::Relaxed));
        self.0.store(State { page, hits: state.hits + 1, ..state }.pack(), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_window_grows_with_hits_and_shrinks_by_halves() {
        let readahead = Readahead::default();
        assert_eq!(readahead.window(1000), (1000, 1), "nothing is known");
        assert_eq!(readahead.window(1001), (1001, 2), "the next page: a beginning");
        readahead.hit(1002);
        assert_eq!(readahead.window(1003), (1003, 4));
        (1004..1007).for_each(|page| readahead.hit(page));
        assert_eq!(readahead.window(1007), (1007, 8));
        assert_eq!(readahead.window(5000), (4998, 4), "elsewhere, and nothing was used");
        assert_eq!(readahead.window(9000), (8999, 2));
        assert_eq!(readahead.window(3000), (3000, 1));
        assert_eq!(readahead.window(2999), (2998, 2), "backwards");
    }
}
