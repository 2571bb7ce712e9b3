//! The OOM killer: which process is killed when nothing can be freed, or which memcg's processes.

use quire_arch::{Order, PAGE_SIZE, Platform};
use quire_frame::VmEvent;
use quire_memcg::{KeptMemcg, Limit, MemcgEvent, MemcgId};
use quire_space::{Need, OOM_SCORE_ADJ_NEVER, OomOutcome, Reap, ReclaimHandle, SpaceFigures, Spaces};

/// The OOM score of a program: its pages, and its owner's adjustment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OomScore(pub i64);

/// Linux's score: resident pages, swapped-out pages and page tables, plus a thousandth of all memory for each
/// point of the adjustment (`oom_score_adj`). `None` for a program that is never chosen.
pub fn badness(figures: &SpaceFigures, adjustment: i16, total_pages: u64) -> Option<OomScore> {
    if adjustment == OOM_SCORE_ADJ_NEVER {
        return None;
    }
    let bytes = figures.resident + figures.swapped + figures.page_tables;
    let pages = (bytes / PAGE_SIZE) as i64;
    Some(OomScore(pages + i64::from(adjustment) * (total_pages / 1000) as i64))
}

/// The pages that the adjustment is a part of, for a shortage in a memcg: its limits of memory and swap, as
/// far as there is swap (Linux's `mem_cgroup_get_max`).
fn pages_of_memcg<P: Platform>(spaces: &Spaces<P>, memcg: MemcgId) -> u64 {
    let limit = |limit| {
        let bytes = spaces.memcgs().files().limit(memcg, limit).unwrap_or(i64::MAX as u64);
        bytes / PAGE_SIZE
    };
    (limit(Limit::Max) + limit(Limit::SwapMax).min(spaces.swap().devices().total_slots())).max(1)
}

/// Kills the program with the highest score among those that the shortage concerns, and with it all of its
/// group if it is in one (`memory.oom.group`), unless there is memory again, or one that was killed before
/// may still free some, or is exiting. One that was reaped and has not exited is not waited for: what it
/// keeps, shared memory, may stay for ever.
pub(crate) fn out_of_memory<P: Platform>(spaces: &Spaces<P>, need: Need) -> OomOutcome {
    let memcgs = spaces.memcgs();
    let mut kept = None;
    if let Need::Memcg(over, _) = need {
        kept = memcgs.tree().keep(over);
        if kept.is_none() {
            // It is gone, and with it the shortage.
            return OomOutcome::Freed;
        }
    }
    let root = kept.as_ref().map_or(MemcgId::ROOT, KeptMemcg::id);
    if has_room(spaces, root, need) {
        return OomOutcome::Freed;
    }
    let total = match need {
        Need::Frames(_) => spaces.frames().reports().totals().managed + spaces.swap().devices().total_slots(),
        Need::Memcg(..) => pages_of_memcg(spaces, root),
    };
    let mut chosen: Option<(OomScore, ReclaimHandle<'_, P>)> = None;
    let (mut dying, mut victims) = (false, 0);
    let mut next = ReclaimHandle::next(spaces, None);
    while let Some(space) = next {
        next = ReclaimHandle::next(spaces, Some(&space));
        if !memcgs.tree().is_below(space.memcg(), root) {
            continue;
        }
        if space.oom().is_killed() {
            victims += 1;
            match space.oom().reap() {
                Reap::Done => return OomOutcome::Freed,
                Reap::Later => dying = true,
                Reap::Over => {}
            }
        } else if let Some(score) = badness(&space.figures(), space.oom().score_adj(), total)
            && chosen.as_ref().is_none_or(|(best, _)| score > *best)
        {
            chosen = Some((score, space));
        }
    }
    // Those that exit were not found. In this order: a killed program is counted until its exit is noted.
    let exiting = spaces.victims().count(root) > victims;
    if spaces.victims().has_one_exited() {
        return OomOutcome::Freed;
    }
    if dying || exiting {
        return OomOutcome::Expected;
    }
    let Some((_, space)) = chosen else { return OomOutcome::Nothing };
    let group = {
        let pin = spaces.platform().pin();
        // In it the number names the memcg that the space was in when it was read.
        let _section = spaces.frames().epoch().enter(&pin);
        memcgs.tree().keep_oom_group(space.memcg(), root)
    };
    // It was not killed by anything else meanwhile.
    if kill(spaces, &space)
        && let Some(group) = &group
    {
        memcgs.counters().count(group.id(), MemcgEvent::OomGroupKill, 1);
        kill_group(spaces, group);
    }
    OomOutcome::Freed
}

/// Kills a program, and frees its memory. Returns false if it was killed before.
fn kill<P: Platform>(spaces: &Spaces<P>, space: &ReclaimHandle<'_, P>) -> bool {
    let killed = space.oom().kill();
    if killed {
        let pin = spaces.platform().pin();
        // As above.
        let _section = spaces.frames().epoch().enter(&pin);
        spaces.frames().events().add(&pin, VmEvent::OomKill, 1);
        spaces.memcgs().counters().count(space.memcg(), MemcgEvent::OomKill, 1);
    }
    // If its lock is taken, the next shortage tries again.
    let _ = space.oom().reap();
    killed
}

/// Kills all programs of a group but those that are never chosen.
fn kill_group<P: Platform>(spaces: &Spaces<P>, group: &KeptMemcg<'_, P>) {
    // A walk does not come to what a program has forked since it began. One that was killed forks no more.
    while kill_those_of(spaces, group) {}
}

/// Kills those of them that a walk of all programs comes to. Returns whether there were any.
fn kill_those_of<P: Platform>(spaces: &Spaces<P>, group: &KeptMemcg<'_, P>) -> bool {
    let (mut next, mut any) = (ReclaimHandle::next(spaces, None), false);
    while let Some(space) = next {
        next = ReclaimHandle::next(spaces, Some(&space));
        let is_one = space.oom().score_adj() != OOM_SCORE_ADJ_NEVER && !space.oom().is_killed();
        if is_one && spaces.memcgs().tree().is_below(space.memcg(), group.id()) {
            any |= kill(spaces, &space);
        }
    }
    any
}

/// Whether there is room again: others have freed some since it was looked for. Linux's `mem_cgroup_margin`,
/// and the last attempt of an allocation before a kill.
fn has_room<P: Platform>(spaces: &Spaces<P>, memcg: MemcgId, need: Need) -> bool {
    match need {
        Need::Frames(order) => order == Order::ZERO && spaces.frames().watermarks().is_above_high(),
        Need::Memcg(_, pages) => {
            spaces.memcgs().charges().drain_stocks_below(&spaces.platform().pin(), memcg);
            spaces.memcgs().charges().margin(memcg) >= pages
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_is_pages_and_the_wish_of_the_owner() {
        let figures = SpaceFigures {
            resident: 4096 * 100,
            swapped: 4096 * 10,
            page_tables: 4096,
            ..Default::default()
        };
        assert_eq!(badness(&figures, 0, 1_000_000), Some(OomScore(111)));
        assert_eq!(badness(&figures, 500, 1_000_000), Some(OomScore(111 + 500_000)));
        assert_eq!(badness(&figures, -500, 1_000_000), Some(OomScore(111 - 500_000)));
        assert_eq!(badness(&figures, -1000, 1_000_000), None);
    }
}
