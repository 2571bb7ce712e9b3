//! Ageing and scanning the lists of one memcg on one node.

use crate::search::Search;
use crate::shrink::{BATCH, Isolated, shrink};
use quire_arch::{NodeId, Platform};
use quire_frame::{FrameFlags, VmEvent};
use quire_memcg::{Begin, LruList, MemcgId, MemcgStat};
use quire_space::{Spaces, referenced};

/// One memcg's lists on one node.
pub(crate) struct Lists<'s, P: Platform> {
    pub(crate) spaces: &'s Spaces<P>,
    pub(crate) memcg: MemcgId,
    pub(crate) node: NodeId,
}

/// Which folios of a list are isolated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Candidates {
    All,
    /// Those in the swap cache: there are no free slots for others.
    WithSlots,
}

/// The size of both lists up to which the inactive one must be at least a third; the larger both are, the
/// smaller its share may be.
const GIB_IN_PAGES: u64 = 1 << 18;

/// How many times larger than the inactive list the active one may be, for `pages` in both: the square root
/// of ten times their size in GiB (Linux's `inactive_is_low`).
fn inactive_ratio(pages: u64) -> u64 {
    (10 * (pages / GIB_IN_PAGES)).isqrt().max(1)
}

impl<P: Platform> Lists<'_, P> {
    /// Pages on a list.
    fn size(&self, list: LruList) -> u64 {
        self.spaces.memcgs().sizes(self.memcg, self.node)[list as usize]
    }

    /// Whether the inactive list is too short to distinguish reused pages from the rest.
    fn inactive_is_low(&self, inactive: LruList, active: LruList) -> bool {
        let (few, many) = (self.size(inactive), self.size(active));
        few * inactive_ratio(few + many) < many
    }

    /// Scans the lists as deep as `priority` says: each level down doubles the depth, and 0 scans everything.
    /// Stops after freeing `wanted` pages. Returns the pages freed.
    pub(crate) fn scan(&self, priority: u32, wanted: u64, search: &Search) -> u64 {
        let memcgs = self.spaces.memcgs();
        memcgs.take_in(&self.spaces.platform().pin(), None);
        let mut freed = 0;
        // First pages that are no longer needed.
        let pairs =
            [(LruList::InactiveFile, LruList::ActiveFile), (LruList::InactiveAnon, LruList::ActiveAnon)];
        for (inactive, active) in pairs {
            if freed >= wanted {
                break;
            }
            let Some(which) = self.candidates(inactive) else { continue };
            if self.inactive_is_low(inactive, active) {
                let depth = (self.size(active) >> priority).max(BATCH as u64);
                self.deactivate(active, which, depth);
            }
            let mut left = (self.size(inactive) >> priority).max((BATCH as u64).min(self.size(inactive)));
            while left > 0 && freed < wanted {
                let (scanned, pages) = self.shrink_inactive(inactive, which, search);
                freed += pages;
                left = left.saturating_sub(scanned);
                if scanned == 0 {
                    break;
                }
            }
        }
        freed
    }

    /// How many pages of a type could be reclaimed. `None` if none could.
    fn candidates(&self, inactive: LruList) -> Option<Candidates> {
        let swap = self.spaces.swap();
        if inactive != LruList::InactiveAnon {
            return Some(Candidates::All);
        }
        if swap.free_slots() > 0 && self.spaces.memcgs().swap_left(self.memcg) > 0 {
            return Some(Candidates::All);
        }
        swap.is_any_on().then_some(Candidates::WithSlots)
    }

    /// Scans the oldest folios of a list, and isolates those that could be freed. Returns the pages scanned.
    fn isolate(&self, list: LruList, which: Candidates, some: &mut Isolated) -> u64 {
        let pin = self.spaces.platform().pin();
        let could_go = |head| {
            let flags = || self.spaces.frames().known(head).word().flags();
            which == Candidates::All || flags().contains(FrameFlags::SWAP_CACHE)
        };
        let place = (self.memcg, self.node, list);
        // Skipped folios keep their place, and later batches should not skip them again.
        let begin = if which == Candidates::All { Begin::Oldest } else { Begin::WhereLeft };
        self.spaces.memcgs().isolate(&pin, place, (begin, BATCH as u32), could_go, some).scanned
    }

    /// Deactivates folios from the end of an active list. Being referenced does not keep them active: they
    /// have the length of the inactive list to be used again. One that was activated because it was used
    /// twice needs only one more use to be activated again: it keeps `REFERENCED`, as in Linux.
    fn deactivate(&self, active: LruList, which: Candidates, depth: u64) {
        let memcgs = self.spaces.memcgs();
        let inactive =
            if active == LruList::ActiveAnon { LruList::InactiveAnon } else { LruList::InactiveFile };
        let mut left = depth;
        while left > 0 {
            let mut some = Isolated::new();
            let scanned = self.isolate(active, which, &mut some);
            if scanned == 0 {
                return;
            }
            left = left.saturating_sub(scanned);
            for head in some.drain(..) {
                // The accessed bits are cleared.
                let _ = referenced(self.spaces.rmap(), head);
                let frame = self.spaces.frames().known(head);
                {
                    let pin = self.spaces.platform().pin();
                    let pages = self.spaces.frames().folio(head).order().pages();
                    let events = self.spaces.frames().events();
                    events.add(&pin, VmEvent::Pgdeactivate, pages);
                    events.add(&pin, VmEvent::Pgrefill, pages);
                    let memcg = MemcgId::from_bits(frame.as_folio().memcg());
                    memcgs.add_stat(&pin, memcg, MemcgStat::Pgdeactivate, pages as i64);
                    memcgs.add_stat(&pin, memcg, MemcgStat::Pgrefill, pages as i64);
                    frame.set_flags(FrameFlags::WORKINGSET);
                    memcgs.put_back(&pin, head, inactive, true);
                }
                self.spaces.memcgs().release_folio(head);
            }
        }
    }

    /// Reclaims a batch from the end of an inactive list. Returns the pages scanned and the pages freed.
    fn shrink_inactive(&self, inactive: LruList, which: Candidates, search: &Search) -> (u64, u64) {
        let mut some = Isolated::new();
        let scanned = self.isolate(inactive, which, &mut some);
        let freed = shrink(self.spaces, &mut some, search.pressure);
        search.count(self.spaces, (self.memcg, inactive), scanned, freed);
        (scanned, freed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in Linux's comment on the ratio: 1 GiB 3, 10 GiB 10, 100 GiB 31, 1 TiB 101.
    #[test]
    fn the_inactive_list_may_be_relatively_smaller_the_more_memory_there_is() {
        let ratio = |gib: u64| inactive_ratio(gib * GIB_IN_PAGES);
        assert_eq!([0, 1, 10, 100, 1024].map(ratio), [1, 3, 10, 31, 101]);
    }
}
