//! Reclaim control: priorities, targets, and when to give up.

use crate::age::{Kept, Lists};
use crate::search::{Cause, Search};
use quire_arch::{NodeId, Platform};
use quire_file::HeldFile;
use quire_memcg::{Limit, MemcgEvent, MemcgId, Protection};
use quire_pageout::FileMappers;
use quire_space::{Need, Spaces, finish_exits};

/// The priority at which a round starts: a 4096th of each list.
const FIRST_PRIORITY: u32 = 12;
/// Pages that one direct reclaim tries to free.
const ENOUGH: u64 = 32;
/// Failed full rounds after which memory counts as exhausted.
const ROUNDS: u32 = 3;
/// Freed clusters of swap devices, of 2 MiB, that one step of kswapd discards.
const DISCARDS: u32 = 16;

/// Tries to free what is needed.
pub(crate) fn make_room<P: Platform>(spaces: &Spaces<P>, need: Need) -> u64 {
    match need {
        Need::Frames(order) => {
            let wanted = order.pages().max(ENOUGH);
            match free_ends(spaces, wanted) + reclaim(spaces, MemcgId::ROOT, wanted, Cause::Direct) {
                0 => spaces.swap().reclaim().compact_devices(wanted),
                freed => freed,
            }
        }
        Need::Memcg(over, pages) => {
            // If it is gone, a new attempt charges another one.
            let Some(kept) = spaces.memcgs().tree().keep(over) else { return pages };
            let memcg = kept.id();
            spaces.memcgs().counters().count(memcg, MemcgEvent::Max, 1);
            spaces.memcgs().charges().drain_stocks(&spaces.platform().pin());
            if spaces.memcgs().charges().pages_left(memcg) >= pages {
                return pages;
            }
            reclaim(spaces, memcg, pages.max(ENOUGH), Cause::Direct)
        }
    }
}

/// Frees about `pages` below a memcg, including active ones (`memory.reclaim`). Returns how many were freed.
pub fn reclaim_memcg<P: Platform>(spaces: &Spaces<P>, memcg: MemcgId, pages: u64) -> u64 {
    let Some(_kept) = spaces.memcgs().tree().keep_present(memcg) else { return 0 };
    spaces.memcgs().charges().drain_stocks(&spaces.platform().pin());
    let freed = reclaim(spaces, memcg, pages, Cause::Proactive);
    finish_exits(spaces);
    spaces.close_unused_files();
    freed
}

/// Reclaims below a memcg that uses more than its new `memory.max` or `memory.high`, until it does not or
/// nothing more can be freed. The caller is not pinned and holds no lock, here as in the two other steps that
/// close files.
pub fn reclaim_to_limit<P: Platform>(spaces: &Spaces<P>, memcg: MemcgId, limit: Limit) {
    let Some(_kept) = spaces.memcgs().tree().keep_present(memcg) else { return };
    loop {
        // Others reclaim there too, the limit may change again, and what was just freed is in a stock.
        spaces.memcgs().charges().drain_stocks_below(&spaces.platform().pin(), memcg);
        let over = spaces.memcgs().files().pages_over(memcg, limit);
        if over == 0 || reclaim(spaces, memcg, over, Cause::Direct) + finish_exits(spaces) == 0 {
            spaces.close_unused_files();
            return;
        }
    }
}

/// Frees `wanted` pages below the memcg `root`, or as many as a few rounds find. What `memory.low` protects
/// is reclaimed only if nothing else can be, and never in the background.
pub(crate) fn reclaim<P: Platform>(spaces: &Spaces<P>, root: MemcgId, wanted: u64, cause: Cause) -> u64 {
    let _reclaiming = spaces.begin_reclaim();
    let first = Search::new(root, cause);
    for mut search in [first, first.breaking_low()] {
        let mut low_left = false;
        for _ in 0..ROUNDS {
            let found = round(spaces, wanted, &search);
            if found.freed > 0 {
                return found.freed;
            }
            low_left |= found.low_left;
            // Perhaps only pages under writeback are left to reclaim.
            spaces.swap().io().reap();
            search = search.starved();
        }
        if !low_left || cause == Cause::Background {
            break;
        }
    }
    0
}

/// What a scan of several memcgs found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Found {
    /// Pages freed.
    freed: u64,
    /// `memory.low` kept some.
    low_left: bool,
}

/// Scans everything below `root` at increasing depth, until `wanted` pages were freed or everything was
/// scanned.
fn round<P: Platform>(spaces: &Spaces<P>, wanted: u64, search: &Search) -> Found {
    let mut found = Found::default();
    for priority in (0..=FIRST_PRIORITY).rev() {
        scan_memcgs(spaces, priority, wanted, search, &mut found);
        if found.freed >= wanted {
            break;
        }
    }
    found
}

/// One pass over all memcgs below the root, until `wanted` pages were freed in all; the next one begins with
/// the memcg after that. Protected ones are skipped, or scanned less (Linux's `shrink_node_memcgs` and
/// `get_scan_count`).
fn scan_memcgs<P: Platform>(
    spaces: &Spaces<P>,
    priority: u32,
    wanted: u64,
    search: &Search,
    found: &mut Found,
) {
    let (memcgs, root) = (spaces.memcgs(), search.root);
    for memcg in memcgs.tree().visit_round(root) {
        let Some(kept) = kept(spaces, memcg, search, found) else { continue };
        // Pages that no program maps any more.
        let missing = wanted.saturating_sub(found.freed);
        let split = spaces.thp().split_deferred_of(memcg, priority, missing);
        spaces.note_reclaimed(split);
        found.freed += split;
        for node in (0..spaces.platform().node_count()).filter_map(NodeId::new) {
            let missing = wanted.saturating_sub(found.freed);
            found.freed += Lists { spaces, memcg, node, kept }.scan(priority, missing, search);
        }
        if found.freed >= wanted {
            return;
        }
    }
}

/// How much a scan has to leave to the memcg; `None` if all of it. Not inlined: its frame, of a KiB, would
/// lie below all that a page-out calls.
#[inline(never)]
fn kept<P: Platform>(spaces: &Spaces<P>, memcg: MemcgId, search: &Search, found: &mut Found) -> Option<Kept> {
    let memcgs = spaces.memcgs();
    let removed = memcgs.tree().is_removed(memcg);
    let mut protection = memcgs.tree().protection(search.root, memcg);
    if memcg == search.root || protection == Protection::default() {
        return Some(Kept { protected: 0, usage: 0, removed });
    }
    // What was reclaimed last may be in a stock: it is charged, but not there to be reclaimed.
    memcgs.charges().drain_stocks_below(&spaces.platform().pin(), memcg);
    protection = memcgs.tree().protection(search.root, memcg);
    let usage = memcgs.charges().usage(memcg);
    if usage <= protection.min {
        return None;
    }
    if search.breaks_low {
        if usage <= protection.low {
            memcgs.counters().count(memcg, MemcgEvent::Low, 1);
        }
        return Some(Kept { protected: protection.min, usage, removed });
    }
    found.low_left |= protection.low > protection.min;
    let protected = protection.min.max(protection.low);
    (usage > protected).then_some(Kept { protected, usage, removed })
}

/// Throttles a program whose memcg, or one above it, is over its high limit: it reclaims itself, in each of
/// these.
pub(crate) fn throttle<P: Platform>(spaces: &Spaces<P>, memcg: MemcgId) {
    if memcg == MemcgId::ROOT {
        return;
    }
    let memcgs = spaces.memcgs();
    let mut next = memcgs.charges().over_high(memcg);
    let (mut any, mut freed) = (false, 0);
    while let Some(over) = next {
        let Some(_kept) = memcgs.tree().keep_present(over.memcg) else { break };
        any = true;
        memcgs.counters().count(over.memcg, MemcgEvent::High, 1);
        freed += reclaim(spaces, over.memcg, over.pages.min(ENOUGH), Cause::Direct);
        next = memcgs.tree().parent(over.memcg).and_then(|above| memcgs.charges().first_over_high(above));
    }
    if any && freed == 0 {
        // The next fault would fail to reclaim too: not again before the memcg has more.
        memcgs.charges().forgive_high(memcg);
    }
}

/// The result of one step of background reclaim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KswapdStep {
    /// Pages freed.
    pub freed: u64,
    /// Pages that are still to be freed until a zone is above its high watermark.
    pub missing: u64,
}

/// One step of background reclaim (Linux's kswapd): once all zones are below their low watermarks, until one
/// is above its high one. A machine's background thread calls it. It sleeps until the next wake-up when
/// nothing is missing or nothing was freed. Each step also discards some freed clusters of swap devices, and
/// gives the zones what the last tick left on the lists of CPUs, and closes the files whose last mapping went
/// with a space that reclaim was the last to have: that may sleep.
pub fn kswapd_step<P: Platform>(spaces: &Spaces<P>) -> KswapdStep {
    let step = balance(spaces);
    // Also of spaces that a walk of a file's mappings was the last to hold.
    finish_exits(spaces);
    spaces.close_unused_files();
    step
}

fn balance<P: Platform>(spaces: &Spaces<P>) -> KswapdStep {
    spaces.frames().pcp().give_back_in_portions();
    let target = spaces.frames().watermarks().background_target();
    if target == 0 {
        spaces.swap().discard().discard_free_clusters(DISCARDS);
        return KswapdStep::default();
    }
    let reclaiming = spaces.begin_reclaim();
    let mut freed = reap(spaces, target);
    if freed < target {
        freed += free_ends(spaces, target - freed);
    }
    spaces.note_reclaimed(freed);
    if freed < target {
        freed += reclaim(spaces, MemcgId::ROOT, target - freed, Cause::Background) + finish_exits(spaces);
    }
    if freed < target {
        freed += spaces.swap().reclaim().compact_devices(target - freed);
    }
    // A device may take long to discard, and frees no frame so.
    drop(reclaiming);
    spaces.swap().discard().discard_free_clusters(DISCARDS);
    let missing = spaces.frames().watermarks().background_target();
    if missing == 0 {
        spaces.frames().watermarks().end_boost();
    }
    KswapdStep { freed, missing }
}

/// Frees what large folios of shared memory have past the end of their files: about `wanted` frames. A split
/// needs memory for nodes, so it is background reclaim that finds most.
fn free_ends<P: Platform>(spaces: &Spaces<P>, wanted: u64) -> u64 {
    let users = FileMappers::new(spaces.rmap());
    HeldFile::free_ends(spaces.page_cache(), None, wanted, &users)
}

/// Frees what only waited for readers that are gone, before a program's pages are taken: about `wanted`
/// frames. Pinned for a portion at a time.
fn reap<P: Platform>(spaces: &Spaces<P>, wanted: u64) -> u64 {
    let (mut freed, mut idle) = (0, 0);
    while freed < wanted && idle < spaces.frames().limbo().reap_turns() {
        match spaces.frames().limbo().reap_some(&spaces.platform().pin()) {
            0 => idle += 1,
            portion => (freed, idle) = (freed + portion, 0),
        }
    }
    freed
}
