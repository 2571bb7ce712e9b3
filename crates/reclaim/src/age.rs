//! Ageing and scanning the lists of one memcg on one node.

use crate::search::Search;
use crate::shrink::{BATCH, Isolated, shrink};
use quire_arch::{NodeId, Platform};
use quire_frame::{FrameFlags, VmEvent};
use quire_memcg::{Begin, LruList, MemcgId, MemcgStat, Most};
use quire_pageout::referenced;
use quire_space::Spaces;

/// One memcg's lists on one node.
pub(crate) struct Lists<'s, P: Platform> {
    pub(crate) spaces: &'s Spaces<P>,
    pub(crate) memcg: MemcgId,
    pub(crate) node: NodeId,
    pub(crate) kept: Kept,
}

/// How much of a memcg a scan has to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kept {
    /// Pages that are protected.
    pub(crate) protected: u64,
    /// Pages that it uses.
    pub(crate) usage: u64,
    /// It was removed: nothing protects what is left of it.
    pub(crate) removed: bool,
}

impl Kept {
    /// The number of pages to scan of a list of `size`, at a priority: each level down doubles it, and 0
    /// scans everything that is not protected. A list has the share in the protection that it has in the
    /// memcg (Linux's `get_scan_count`).
    fn depth(self, size: u64, priority: u32) -> u64 {
        let least = (BATCH as u64).min(size);
        if self.protected == 0 {
            return (size >> priority).max(least);
        }
        // Another thread may have reclaimed since the protection was read.
        let usage = self.usage.max(self.protected);
        let left = u128::from(size) * u128::from(self.protected) / (u128::from(usage) + 1);
        // At least a batch at the last priority, so that a little above the protection can be reached; not at
        // the others, where memcgs without protection are scanned first.
        let depth = ((size - left as u64).max(BATCH as u64) >> priority).min(size);
        if depth == 0 && self.removed { least } else { depth }
    }
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
        self.spaces.memcgs().folios().sizes(self.memcg, self.node)[list as usize]
    }

    /// Whether the inactive list is too short to distinguish reused pages from the rest.
    fn inactive_is_low(&self, inactive: LruList, active: LruList) -> bool {
        let (few, many) = (self.size(inactive), self.size(active));
        few * inactive_ratio(few + many) < many
    }

    /// Scans the lists as deep as `priority` and the protection say ([`Kept::depth`]). Stops after freeing
    /// `wanted` pages. Returns the pages freed.
    pub(crate) fn scan(&self, priority: u32, wanted: u64, search: &Search) -> u64 {
        let memcgs = self.spaces.memcgs();
        memcgs.folios().take_in(None);
        let mut freed = 0;
        // First pages that are no longer needed.
        let pairs =
            [(LruList::InactiveFile, LruList::ActiveFile), (LruList::InactiveAnon, LruList::ActiveAnon)];
        for (inactive, active) in pairs {
            if freed >= wanted {
                break;
            }
            let Some(which) = self.candidates(inactive, priority) else { continue };
            if self.inactive_is_low(inactive, active) {
                self.deactivate(active, which, self.kept.depth(self.size(active), priority), search);
            }
            let mut left = self.kept.depth(self.size(inactive), priority);
            while left > 0 && freed < wanted {
                // Large folios are as much as many small ones: no more of them than is still wanted.
                let some = left.min((wanted - freed).max(BATCH as u64));
                let (scanned, pages) = self.shrink_inactive(inactive, which, some, search);
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
    fn candidates(&self, inactive: LruList, priority: u32) -> Option<Candidates> {
        let swap = self.spaces.swap();
        let has_slots =
            || swap.devices().free_slots() > 0 && self.spaces.memcgs().charges().swap_left(self.memcg) > 0;
        if inactive != LruList::InactiveAnon || has_slots() {
            return Some(Candidates::All);
        }
        if !swap.devices().is_any_on() {
            return None;
        }
        let found = priority == 0 && self.free_unnamed_slots() && has_slots();
        Some(if found { Candidates::All } else { Candidates::WithSlots })
    }

    /// Frees slots of pages that are in memory again, whatever list and memcg these are of: that of the
    /// unevictable ones is not scanned. Returns whether there were any. Not inlined: its frame would lie
    /// below all that a page-out calls.
    #[cold]
    #[inline(never)]
    fn free_unnamed_slots(&self) -> bool {
        self.spaces
            .swap()
            .reclaim()
            .reclaim_unnamed(&mut |head| self.spaces.memcgs().splits().left_swap_cache(head))
            > 0
    }

    /// Scans the oldest folios of a list, up to a batch of folios or `most` pages, and isolates those that
    /// could be freed. Returns the pages scanned.
    fn isolate(&self, list: LruList, which: Candidates, most: u64, some: &mut Isolated) -> u64 {
        let pin = self.spaces.platform().pin();
        let could_go = |head| {
            let flags = || self.spaces.frames().known(head).word().flags();
            which == Candidates::All || flags().contains(FrameFlags::SWAP_CACHE)
        };
        let place = (self.memcg, self.node, list);
        // Skipped folios keep their place, and later batches should not skip them again.
        let begin = if which == Candidates::All { Begin::Oldest } else { Begin::WhereLeft };
        let most = Most { folios: BATCH as u32, pages: most };
        self.spaces.memcgs().folios().isolate(&pin, place, (begin, most), could_go, some).scanned
    }

    /// Deactivates folios from the end of an active list. Being referenced does not keep them active: they
    /// have the length of the inactive list to be used again. One that was activated because it was used
    /// twice needs only one more use to be activated again: it keeps `REFERENCED`, as in Linux.
    fn deactivate(&self, active: LruList, which: Candidates, depth: u64, search: &Search) {
        let memcgs = self.spaces.memcgs();
        let inactive = active.inactive();
        let mut left = depth;
        while left > 0 {
            let mut some = Isolated::new();
            let scanned = self.isolate(active, which, left, &mut some);
            if scanned == 0 {
                return;
            }
            search.count_refill(self.spaces, self.memcg, scanned);
            left = left.saturating_sub(scanned);
            for head in some.drain(..) {
                // The accessed bits are cleared.
                let _ = referenced(self.spaces.rmap(), head, None);
                let frame = self.spaces.frames().known(head);
                {
                    let pin = self.spaces.platform().pin();
                    let pages = self.spaces.frames().folio(head).order().pages();
                    self.spaces.frames().events().add(&pin, VmEvent::Pgdeactivate, pages);
                    let memcg = MemcgId::from_bits(frame.as_folio().memcg());
                    memcgs.counters().add_stat(&pin, memcg, MemcgStat::Pgdeactivate, pages as i64);
                    frame.set_flags(FrameFlags::WORKINGSET);
                    memcgs.folios().put_back(&pin, head, inactive, true);
                }
                self.spaces.memcgs().folios().release_folio(head);
            }
        }
    }

    /// Reclaims a batch from the end of an inactive list, of at most about `most` pages. Returns the pages
    /// scanned and the pages freed.
    fn shrink_inactive(
        &self,
        inactive: LruList,
        which: Candidates,
        most: u64,
        search: &Search,
    ) -> (u64, u64) {
        let mut some = Isolated::new();
        let scanned = self.isolate(inactive, which, most, &mut some);
        let freed = shrink(self.spaces, &mut some, search.pressure);
        self.spaces.note_reclaimed(freed);
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
