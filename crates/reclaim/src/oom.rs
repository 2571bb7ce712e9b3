//! The OOM killer: which process is killed when nothing can be freed.

use quire_arch::Platform;
use quire_frame::VmEvent;
use quire_memcg::{MemcgEvent, MemcgId};
use quire_space::{Need, Space, SpaceFigures, SpaceId, Spaces};

/// The OOM score of a program: its pages, and its owner's adjustment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OomScore(pub i64);

/// The adjustment that exempts a program from the OOM killer.
const NEVER: i16 = -1000;

/// Linux's score: resident pages, swapped-out pages and page tables, plus a thousandth of all memory for each
/// point of the adjustment (`oom_score_adj`). `None` for a program that is never chosen.
pub fn badness(figures: &SpaceFigures, adjustment: i16, total_pages: u64) -> Option<OomScore> {
    if adjustment == NEVER {
        return None;
    }
    let bytes = figures.resident + figures.swapped + figures.page_tables;
    let pages = (bytes / quire_arch::PAGE_SIZE) as i64;
    Some(OomScore(pages + i64::from(adjustment) * (total_pages / 1000) as i64))
}

/// Kills the program with the highest score among those that the shortage concerns. Returns whether there was
/// one, or one is already exiting.
pub(crate) fn out_of_memory<P: Platform>(spaces: &Spaces<P>, need: Need) -> bool {
    let memcgs = spaces.memcgs();
    let root = match need {
        Need::Frames(_) => MemcgId::ROOT,
        Need::Memcg(memcg, _) => memcg,
    };
    let total = spaces.frames().totals().managed + spaces.swap().total_slots();
    let mut chosen: Option<(OomScore, SpaceId)> = None;
    let mut dying = false;
    let mut next = Space::next(spaces, None);
    while let Some(space) = next {
        if memcgs.is_below(space.memcg(), root) {
            if space.is_killed() {
                // Its memory is freed when it has exited.
                dying |= space.figures().resident > 0;
            } else if let Some(score) = badness(&space.figures(), space.oom_score_adj(), total)
                && chosen.is_none_or(|(best, _)| score > best)
            {
                chosen = Some((score, space.id()));
            }
        }
        next = Space::next(spaces, Some(&space));
    }
    if dying {
        return true;
    }
    let Some((_, id)) = chosen else { return false };
    kill(spaces, id)
}

/// Kills the program of a space: it gets no more memory, and its private memory is freed at once where
/// possible.
fn kill<P: Platform>(spaces: &Spaces<P>, id: SpaceId) -> bool {
    let mut next = Space::next(spaces, None);
    while let Some(space) = next {
        if space.id() == id {
            spaces.frames().events().add(&spaces.platform().pin(), VmEvent::OomKill, 1);
            spaces.memcgs().count(space.memcg(), MemcgEvent::OomKill, 1);
            space.kill();
            reap(&space);
            return true;
        }
        next = Space::next(spaces, Some(&space));
    }
    false
}

/// Frees the private memory of a killed space, which no program will access any more.
fn reap<P: Platform>(space: &Space<'_, P>) {
    space.reap();
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
