//! Freeing removed memcgs.
//!
//! Pages, swap slots and children keep a removed memcg. Once there are none, only what CPUs hold back may
//! still be counted for it. That is flushed. Then an epoch has to pass, for threads in a section of the
//! epoch:
//!
//! - one that has taken such an amount out of its word and not added it anywhere yet;
//! - one that has found the number, in a slot or in a space, and is about to charge or to count something
//!   ([`Memcgs::try_charge`]).
//!
//! After it comes a second check. If nothing was charged since the first one, the counts go to the parent,
//! and the number is free.

use crate::Memcgs;
use crate::memcg::Memcg;
use crate::tree::linked;
use quire_arch::{Pin, Platform};
use quire_sync::atomic::{Ordering, fence};

impl<P: Platform> Memcgs<P> {
    /// Checks some of the removed memcgs, and frees those that nothing belongs to any more. Creating and
    /// removing memcgs does it too.
    pub fn sweep(&self) {
        let pin = self.frames.platform().pin();
        self.sweep_locked(&pin, &mut self.registry.lock());
    }

    /// Whether nothing belongs to a removed memcg any more. Called under the lock of the memcgs.
    pub(crate) fn is_over(&self, pin: &Pin<'_, P>, memcg: &Memcg<P>) -> bool {
        if linked(&memcg.links.first_child).is_some() {
            return false;
        }
        self.drain_stocks_of(pin, |id| id == memcg.id);
        let rises = memcg.memory.rises();
        if memcg.is_charged() || memcg.all_lists().any(|lists| !lists.is_empty()) {
            return false;
        }
        let epoch = self.frames.epoch();
        let again = memcg.drained_rises.swap(rises, Ordering::Relaxed) != rises;
        if self.drain_stats_of(memcg.id) || again || memcg.drained.load(Ordering::Relaxed) == 0 {
            memcg.drained.store(epoch.stamp().get() + 1, Ordering::Relaxed);
        }
        // Two steps are what it takes if no CPU is in a section; one that is cannot be waited for here.
        epoch.advance();
        epoch.advance();
        if epoch.stamp().get() + 1 < memcg.drained.load(Ordering::Relaxed) + 2 {
            return false;
        }
        // Sees what was done in those sections. Pairs with the exchange that moved the epoch.
        fence(Ordering::Acquire);
        let over = memcg.memory.rises() == rises && !self.drain_stats_of(memcg.id);
        if !over {
            memcg.drained.store(0, Ordering::Relaxed);
        }
        over
    }

    /// Adds a memcg's counts to its parent.
    pub(crate) fn fold(&self, memcg: &Memcg<P>) {
        let Some(parent) = self.table.get(memcg.parent()) else { return };
        for (to, from) in parent.stats.iter().zip(&memcg.stats) {
            to.fetch_add(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        for (nth, to) in parent.events_of_gone.iter().enumerate() {
            let events = memcg.events[nth].load(Ordering::Relaxed);
            to.fetch_add(events + memcg.events_of_gone[nth].load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}
