//! Reclaim control: priorities, targets, and when to give up.

use crate::age::Lists;
use crate::search::{Cause, Search};
use quire_arch::{NodeId, Platform};
use quire_memcg::{MemcgEvent, MemcgId};
use quire_space::{Need, Spaces};

/// The priority at which a round starts: a 4096th of each list.
const FIRST_PRIORITY: u32 = 12;
/// Pages that one direct reclaim tries to free.
const ENOUGH: u64 = 32;
/// Failed full rounds after which memory counts as exhausted.
const ROUNDS: u32 = 3;

/// Tries to free what is needed.
pub(crate) fn make_room<P: Platform>(spaces: &Spaces<P>, need: Need) -> u64 {
    match need {
        Need::Frames(order) => match reclaim(spaces, MemcgId::ROOT, order.pages().max(ENOUGH), Cause::Direct)
        {
            0 => spaces.swap().compact_devices(),
            freed => freed,
        },
        Need::Memcg(memcg, pages) => {
            spaces.memcgs().count(memcg, MemcgEvent::Max, 1);
            spaces.memcgs().drain_stocks(&spaces.platform().pin());
            if spaces.memcgs().pages_left(memcg) >= pages {
                return pages;
            }
            reclaim(spaces, memcg, pages.max(ENOUGH), Cause::Direct)
        }
    }
}

/// Frees about `pages` below a memcg, including active ones (`memory.reclaim`). Returns how many were freed.
pub fn reclaim_memcg<P: Platform>(spaces: &Spaces<P>, memcg: MemcgId, pages: u64) -> u64 {
    spaces.memcgs().drain_stocks(&spaces.platform().pin());
    reclaim(spaces, memcg, pages, Cause::Proactive)
}

/// Frees `wanted` pages below the memcg `root`, or as many as a few rounds find.
pub(crate) fn reclaim<P: Platform>(spaces: &Spaces<P>, root: MemcgId, wanted: u64, cause: Cause) -> u64 {
    let mut search = Search::new(root, cause);
    for _ in 0..ROUNDS {
        let freed = round(spaces, wanted, &search);
        if freed > 0 {
            return freed;
        }
        // Perhaps only pages under writeback are left to reclaim.
        spaces.swap().reap();
        search = search.starved();
    }
    0
}

/// Scans everything below `root` at increasing depth, until `wanted` pages were freed or everything was
/// scanned.
fn round<P: Platform>(spaces: &Spaces<P>, wanted: u64, search: &Search) -> u64 {
    let mut freed = 0;
    for priority in (0..=FIRST_PRIORITY).rev() {
        freed += scan_memcgs(spaces, priority, wanted - freed, search);
        if freed >= wanted {
            break;
        }
    }
    freed
}

/// One pass over all memcgs below the root. Protected ones are skipped while others have reclaimable pages.
fn scan_memcgs<P: Platform>(spaces: &Spaces<P>, priority: u32, wanted: u64, search: &Search) -> u64 {
    let (memcgs, root) = (spaces.memcgs(), search.root);
    let mut freed = 0;
    for reach_low in [false, true] {
        let mut low_left = false;
        let mut next = memcgs.next_in_subtree(root, None);
        while let Some(memcg) = next {
            next = memcgs.next_in_subtree(root, Some(memcg));
            let protection = memcgs.protection(root, memcg);
            let usage = memcgs.usage(memcg);
            if memcg != root && protection.min > 0 && usage <= protection.min {
                continue;
            }
            if memcg != root && protection.low > 0 && usage <= protection.low {
                if !reach_low {
                    low_left = true;
                    continue;
                }
                memcgs.count(memcg, MemcgEvent::Low, 1);
            } else if reach_low {
                continue;
            }
            for node in (0..spaces.platform().node_count()).filter_map(NodeId::new) {
                freed += Lists { spaces, memcg, node }.scan(priority, wanted - freed.min(wanted), search);
            }
            if freed >= wanted {
                return freed;
            }
        }
        if freed > 0 || !low_left || priority > 0 {
            break;
        }
    }
    freed
}

/// Throttles a program whose memcg is over its high limit: it reclaims itself.
pub(crate) fn throttle<P: Platform>(spaces: &Spaces<P>, memcg: MemcgId) {
    if memcg == MemcgId::ROOT {
        return;
    }
    let memcgs = spaces.memcgs();
    let Some(over) = memcgs.over_high(memcg) else { return };
    memcgs.count(over.memcg, MemcgEvent::High, 1);
    let wanted = over.pages.min(ENOUGH);
    let search = Search::new(over.memcg, Cause::Direct);
    let in_vain = [search, search.starved()].iter().all(|search| {
        let freed = round(spaces, wanted, search);
        spaces.swap().reap();
        freed == 0
    });
    if in_vain {
        // The next fault would fail to reclaim too: not again before the memcg has more.
        memcgs.forgive_high(memcg);
    }
}

/// The result of one step of background reclaim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KswapdStep {
    /// Pages freed.
    pub freed: u64,
    /// Pages that are still to be freed until every zone is above its high watermark.
    pub missing: u64,
}

/// One step of background reclaim (Linux's kswapd): once a zone is below its low watermark, until all are
/// above the high one. A machine's background thread calls it. It sleeps until the next wake-up when nothing
/// is missing or nothing was freed.
pub fn kswapd_step<P: Platform>(spaces: &Spaces<P>) -> KswapdStep {
    let target = spaces.frames().background_target();
    if target == 0 {
        return KswapdStep::default();
    }
    let mut freed = reap(spaces, target);
    if freed < target {
        freed += reclaim(spaces, MemcgId::ROOT, target - freed, Cause::Background);
    }
    if freed < target {
        freed += spaces.swap().compact_devices();
    }
    spaces.swap().discard_free_clusters();
    let missing = spaces.frames().background_target();
    if missing == 0 {
        spaces.frames().end_boost();
    }
    KswapdStep { freed, missing }
}

/// Frees what only waited for readers that are gone, before a program's pages are taken: about `wanted` frames. Pinned
/// for a portion at a time.
fn reap<P: Platform>(spaces: &Spaces<P>, wanted: u64) -> u64 {
    let mut freed = 0;
    while freed < wanted {
        match spaces.frames().reap_some(&spaces.platform().pin()) {
            0 => break,
            portion => freed += portion,
        }
    }
    freed
}
