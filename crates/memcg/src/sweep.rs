//! Freeing removed memcgs.
//!
//! Pages, swap slots and children keep a removed memcg. Once there are none, only what CPUs hold back may
//! still be counted for it. That is flushed. Then an epoch has to pass, for threads in a section of the
//! epoch:
//!
//! - one that has taken such an amount out of its word and not added it anywhere yet;
//! - one that has uncharged the last page, and not noted yet what that means for the protection;
//! - one that has found the number, in a slot or in a space, and is about to charge or to count something
//!   ([`Memcgs::try_charge`]).
//!
//! After it comes a second check. If nothing was charged since the first one, the number is free.

use crate::Memcgs;
use crate::memcg::Memcg;
use crate::tree::linked;
use quire_arch::Platform;
use quire_sync::atomic::{Ordering, fence};

/// Memcgs checked at a time.
const MOST: usize = 16;

impl<P: Platform> Memcgs<P> {
    /// Checks a few of the removed memcgs, in turn, and frees those that nothing belongs to any more. Creating
    /// and removing memcgs does it too. The lock of the memcgs is not held while one is checked: until it is
    /// put back or freed no other thread checks it.
    pub fn sweep(&self) {
        let mut end = None;
        for _ in 0..MOST {
            let Some((memcg, visited)) = ({
                let _pin = self.frames.platform().pin();
                let mut registry = self.registry.lock();
                end = end.or(registry.removed.map(|(_, last)| last));
                self.pop_removed(&mut registry).map(|memcg| (memcg, memcg.is_visited()))
            }) else {
                return;
            };
            let over = !visited && self.is_over(memcg);
            let _pin = self.frames.platform().pin();
            let mut registry = self.registry.lock();
            // It gets no children any more, but may be visited again.
            if over && !memcg.is_visited() {
                self.unlink(&mut registry, memcg);
            } else {
                self.push_removed(&mut registry, memcg);
            }
            if Some(memcg.id) == end {
                return;
            }
        }
    }

    /// Whether nothing belongs to a removed memcg any more. Called by one thread at a time.
    fn is_over(&self, memcg: &Memcg<P>) -> bool {
        if linked(&memcg.links.first_child).is_some() {
            return false;
        }
        for cells in self.cpus.iter() {
            self.drain_stock(&self.frames.platform().pin(), cells, |id| id == memcg.id);
        }
        let rises = memcg.memory.rises();
        if memcg.is_charged() || memcg.all_lists().any(|lists| !lists.is_empty()) {
            return false;
        }
        let drain = || self.drain_stats_of(|whose| whose == memcg.id);
        let epoch = self.frames.epoch();
        let again = memcg.drained_rises.swap(rises, Ordering::Relaxed) != rises;
        if drain() || again || memcg.drained.load(Ordering::Relaxed) == 0 {
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
        // The count of rises is read after the usage: a charge that fails beside another one notes the rise of
        // both, before it gives back its own part.
        let charged = memcg.is_charged();
        let over = !charged && memcg.memory.rises() == rises && !drain();
        if !over {
            memcg.drained.store(0, Ordering::Relaxed);
        }
        over
    }
}
