//! Keeping a memcg for a thread that works for it for long, and which of its programs are killed.

use super::MemcgTree;
use crate::error::OverLimit;
use crate::id::MemcgId;
use crate::memcg::Memcg;
use core::fmt;
use quire_arch::Platform;
use quire_sync::atomic::Ordering;

/// A memcg that does not leave the tree while this exists: its number names no other one.
#[must_use = "the memcg may go as soon as this is dropped"]
pub struct KeptMemcg<'g, P: Platform> {
    tree: &'g MemcgTree<P>,
    memcg: &'g Memcg<P>,
}

impl<P: Platform> KeptMemcg<'_, P> {
    /// Its number.
    pub fn id(&self) -> MemcgId {
        self.memcg.id
    }
}

impl<P: Platform> MemcgTree<P> {
    /// Keeps the memcg at whose limit a charge failed. `None` if it is gone since: then its number may name
    /// another one, and a new attempt charges something else.
    pub fn keep(&self, over: OverLimit) -> Option<KeptMemcg<'_, P>> {
        self.keep_if(over.memcg, |memcg| memcg.refusal() == over)
    }

    /// Keeps the memcg that has this number now, if one has.
    pub fn keep_present(&self, id: MemcgId) -> Option<KeptMemcg<'_, P>> {
        self.keep_if(id, |_| true)
    }

    /// Keeps the memcg that has this number now, if that was removed.
    pub(crate) fn keep_removed(&self, id: MemcgId) -> Option<KeptMemcg<'_, P>> {
        self.keep_if(id, |memcg| memcg.life.is_removed())
    }

    fn keep_if(&self, id: MemcgId, is_it: impl Fn(&Memcg<P>) -> bool) -> Option<KeptMemcg<'_, P>> {
        let _pin = self.frames().platform().pin();
        let _registry = self.registry.lock();
        let memcg = self.table.get(id).filter(|memcg| memcg.life.is_there() && is_it(memcg))?;
        memcg.change_visits(true);
        Some(KeptMemcg { tree: self, memcg })
    }

    /// Keeps the memcg whose programs are all killed with one in `id`, for a shortage in `within`: the
    /// topmost one with `memory.oom.group` set, from `within` down to `id`. The root's own programs are
    /// killed one by one. The caller knows that `id` names this memcg, as for
    /// [`count_killed`](Self::count_killed).
    pub fn keep_oom_group(&self, id: MemcgId, within: MemcgId) -> Option<KeptMemcg<'_, P>> {
        if !self.is_below(id, within) {
            return None;
        }
        let above = if within.is_root() { None } else { self.parent(within) };
        let inside = self.up(id).take_while(|memcg| Some(memcg.id) != above);
        let group = inside.filter(|memcg| memcg.oom_group.load(Ordering::Relaxed)).last()?;
        self.keep_present(group.id)
    }

    /// One more killed program is in the memcg, or one fewer. The caller knows that the number names this
    /// memcg: a space is in it, or was in this section of the epoch.
    pub fn count_killed(&self, id: MemcgId, more: bool) {
        for memcg in self.up(id) {
            if more {
                memcg.killed.fetch_add(1, Ordering::Relaxed);
            } else {
                // Release: who does not find it here any more finds that its exit was noted.
                memcg.killed.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Killed programs in the memcg and below it that have not exited; not counted for the root. Acquire:
    /// pairs with the release above.
    pub fn killed(&self, id: MemcgId) -> u32 {
        self.table.get(id).map_or(0, |memcg| memcg.killed.load(Ordering::Acquire))
    }
}

impl<P: Platform> Drop for KeptMemcg<'_, P> {
    fn drop(&mut self) {
        let _pin = self.tree.frames().platform().pin();
        let _registry = self.tree.registry.lock();
        self.memcg.change_visits(false);
    }
}

impl<P: Platform> fmt::Debug for KeptMemcg<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeptMemcg").field(&self.memcg.id).finish()
    }
}
