//! Effective protection: what reclaim has to leave to a memcg.
//!
//! `memory.min` and `memory.low` of a memcg are worth what its ancestors have to give: where the children of
//! a memcg claim more than it has itself, each gets its share by what it uses of its claim; where they claim
//! less, the rest goes to those that use more than they claimed, in proportion (Linux with
//! `memory_recursiveprot`).

use super::{MAX_DEPTH, MemcgTree};
use crate::id::MemcgId;
use crate::memcg::Memcg;
use crate::protected::Protected;
use arrayvec::ArrayVec;
use quire_arch::Platform;

/// Pages that are protected from a reclaim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Protection {
    /// While the memcg uses no more, it is not reclaimed from at all.
    pub min: u64,
    /// While the memcg uses no more, it is not reclaimed from as long as others have unprotected memory.
    pub low: u64,
}

/// The effective value of a claim, in pages: of a memcg that uses `usage`, below one that uses `parent_usage`
/// and whose own claim is worth `parent`.
fn effective(claim: &Protected, usage: u64, (above, parent_usage, parent): (&Protected, u64, u64)) -> u64 {
    let used = usage.min(claim.setting());
    let siblings = above.of_children();
    let share =
        |part: u64, of: u64, whole: u64| (u128::from(part) * u128::from(of) / u128::from(whole)) as u64;
    if siblings > parent {
        return share(used, parent, siblings);
    }
    if parent > siblings && parent_usage > siblings && usage > used {
        return used + share(parent - siblings, usage - used, parent_usage - siblings);
    }
    used
}

impl<P: Platform> MemcgTree<P> {
    /// The use of a memcg has changed.
    #[inline]
    pub(crate) fn note_protected(&self, memcg: &Memcg<P>, usage: u64) {
        if memcg.min.is_idle() && memcg.low.is_idle() {
            return;
        }
        if let Some(parent) = self.table.get(memcg.parent()) {
            memcg.min.note(usage, &parent.min);
            memcg.low.note(usage, &parent.low);
        }
    }

    /// Sets both claims, in pages.
    pub(crate) fn set_min_and_low(&self, memcg: &Memcg<P>, min: u64, low: u64) {
        memcg.min.set(min);
        memcg.low.set(low);
        self.note_protected(memcg, memcg.memory.usage());
    }

    /// What reclaim on behalf of `root` has to leave to the memcg. Nothing is left to `root` itself, nor to a
    /// memcg that is not below it.
    pub fn protection(&self, root: MemcgId, id: MemcgId) -> Protection {
        let mut path: ArrayVec<&Memcg<P>, MAX_DEPTH> = ArrayVec::new();
        path.extend(self.up(id).take_while(|memcg| memcg.id != root));
        let Some(first) = path.pop().filter(|first| first.parent() == root) else {
            return Protection::default();
        };
        // Directly below `root` a memcg's protection is its own claim: ancestors above do not limit it.
        let mut above = first;
        let mut worth = Protection { min: first.min.setting(), low: first.low.setting() };
        for memcg in path.into_iter().rev() {
            let (usage, parent_usage) = (memcg.memory.usage(), above.memory.usage());
            worth = Protection {
                min: effective(&memcg.min, usage, (&above.min, parent_usage, worth.min)),
                low: effective(&memcg.low, usage, (&above.low, parent_usage, worth.low)),
            };
            above = memcg;
        }
        worth
    }
}
