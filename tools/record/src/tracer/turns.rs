//! Which pages are compressed before they are paged out.

use super::region::REGION_PAGES;
use quire_trace::mix::mix;

/// How many times a new page is compressed before it is paged out: it may have been only partly filled the
/// first time. That takes some 4 to 10 us each time.
const FIRST_TURNS: u8 = 2;
/// Later it is compressed at one turn in this many.
const SAMPLED: u64 = 8;

/// How many turns each page of a region had since it was new.
#[derive(Debug)]
pub(super) struct Turns([u8; REGION_PAGES as usize]);

impl Default for Turns {
    fn default() -> Self {
        Self([0; REGION_PAGES as usize])
    }
}

impl Turns {
    /// The page is paged out in this round. Returns whether it is to be compressed before.
    pub(super) fn add(&mut self, page: u64, round: u64) -> bool {
        let turns = &mut self.0[(page % REGION_PAGES) as usize];
        let is_due = *turns < FIRST_TURNS || mix(mix(round) ^ page).is_multiple_of(SAMPLED);
        *turns = turns.saturating_add(1);
        is_due
    }

    /// The page has new contents.
    pub(super) fn renew(&mut self, page: u64) {
        self.0[(page % REGION_PAGES) as usize] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_looked_at_when_it_is_new_and_now_and_then() {
        let mut turns = Turns::default();
        for page in [7, REGION_PAGES + 8] {
            assert!((0..u64::from(FIRST_TURNS)).all(|round| turns.add(page, round)));
            let found = (100..1000).filter(|&round| turns.add(page, round)).count();
            assert!(found.abs_diff(900 / SAMPLED as usize) < 40, "{found}");
        }
        // Not all pages in the same rounds.
        let due = |turns: &mut Turns, page| -> Vec<u64> {
            (0..100).filter(|&round| turns.add(page, round)).collect()
        };
        assert!(due(&mut turns, 7) != due(&mut turns, 8));
        turns.renew(7);
        assert!((0..u64::from(FIRST_TURNS)).all(|round| turns.add(7, round)));
    }
}
