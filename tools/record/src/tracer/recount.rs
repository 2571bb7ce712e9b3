//! Finding resident pages that no page fault told of, so that they are paged out like the others.
//!
//! A call that populates brings pages in, `mremap` takes them to other addresses, a child has those of its
//! maker, and a sample may be lost. Linux's count of anonymous memory tells that there are more pages than
//! known; then the kernel is asked which. Pages that several processes have mapped are left out: they cannot
//! be paged out, and a server has those of all its children.

use super::Tracer;
use super::region::PAGE;
use super::state::users;
use crate::proc::pagemap::Pagemap;
use crate::proc::status::anonymous_pages;
use crate::sys::time::{next_look, now};

/// It is counted at most this often, and the pause is at least so many times as long as it took.
const EVERY_NS: u64 = 100_000_000;
const SHARE: u64 = 50;

impl Tracer<'_> {
    /// Looks for resident pages that are not known, from time to time.
    pub(super) fn recount(&mut self) {
        let Some(rotation) = &mut self.rotation else { return };
        let before = now();
        if !self.begun || before < rotation.next_count {
            return;
        }
        let users = users(&self.tasks);
        let counts: Vec<u64> = users.values().map(|(_, pid)| anonymous_pages(*pid)).collect();
        rotation.note_anonymous(counts.iter().max().map_or(0, |most| most * PAGE));
        if rotation.lacks(counts.iter().sum()) {
            for (space, (_, pid)) in users {
                let Some(pagemap) = Pagemap::open(pid) else { continue };
                // Older kernels cannot be asked, and the words of all pages would take too long to read.
                pagemap.anonymous(|run| {
                    if rotation.lacks_one_of(space, run) {
                        pagemap.own(run).into_iter().for_each(|own| rotation.note_resident(space, own));
                    }
                });
            }
        }
        rotation.next_count = next_look(before, now(), SHARE, EVERY_NS);
    }
}

#[cfg(test)]
mod tests {
    use crate::merge::SpaceId;
    use crate::tracer::region::{PAGE, REGION_PAGES};
    use crate::tracer::rotation::Rotation;
    use quire_trace::event::PageRun;
    use quire_trace::format::Pressure;

    #[test]
    fn what_no_fault_told_of_has_its_turn() {
        let run = |page: u64, pages| PageRun { start: page * PAGE, pages, file: false };
        let (one, other) = (SpaceId(0), SpaceId(1));
        let mut rotation = Rotation::new(Pressure::of(16 * PAGE));
        assert!(rotation.lacks(3) && !rotation.lacks(2));
        rotation.note_resident(one, run(REGION_PAGES - 2, REGION_PAGES + 4));
        rotation.note_resident(other, run(0, 1));
        assert_eq!(rotation.pages, REGION_PAGES + 5);
        assert!(rotation.lacks_one_of(one, run(REGION_PAGES - 3, 2)));
        rotation.note_resident(one, run(REGION_PAGES - 3, 2));
        assert!(!rotation.lacks_one_of(one, run(REGION_PAGES - 3, REGION_PAGES + 5)));
        assert!(rotation.lacks_one_of(other, run(1, 1)) && rotation.lacks_one_of(one, run(9000, 1)));
        assert!(rotation.pages == REGION_PAGES + 6 && !rotation.lacks(REGION_PAGES + 8));
        let regions = std::iter::from_fn(|| rotation.next()).map(|(region, _)| region);
        assert_eq!(regions.collect::<Vec<_>>(), [(one, 0), (one, 1), (one, 2), (other, 0)]);
        assert_eq!(rotation.pages, 0);
        // Of a sample some blocks.
        let mut rotation = Rotation::new(Pressure::of_sample(64 * PAGE, 4, 9));
        rotation.note_resident(one, run(0, 400 * REGION_PAGES));
        let quarter = 100 * REGION_PAGES;
        assert!(rotation.pages.abs_diff(quarter) < quarter / 2, "{}", rotation.pages);
        assert!(!rotation.lacks(4 * rotation.pages) && rotation.lacks(8 * rotation.pages));
    }
}
