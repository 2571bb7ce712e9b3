//! Freeing removed memcgs.
//!
//! Pages, swap slots and children keep a removed memcg. Once there are none, only what CPUs hold back may
//! still be counted for it. That is flushed. Then an epoch has to pass, for threads in a section of the
//! epoch:
//!
//! - one that has taken such an amount out of its word and not added it anywhere yet;
//! - one that has uncharged the last page, and not noted yet what that means for the protection;
//! - one that has found the number, in a slot or in a space, and is about to charge or to count something
//!   ([`MemcgCharges::try_charge`]).
//!
//! After it comes a second check. If nothing was charged since the first one, no thread finds the number any
//! more. But the last of those may have left an amount on its CPU, and a thread in a section that began later
//! may have taken it out of its word, for the amount of another memcg, and not added it yet. So the CPUs are
//! flushed again, and a second epoch has to pass. Nothing is put into the words any more, and what was taken
//! out is added: the number is free.

use super::MemcgLifecycle;
use crate::charge::MemcgCharges;
use crate::counters::MemcgCounters;
use crate::memcg::Memcg;
use crate::tree::linked;
use quire_arch::Platform;
use quire_sync::atomic::{Ordering, fence};

/// Memcgs checked at a time.
const MOST: usize = 16;

impl<P: Platform> MemcgLifecycle<'_, P> {
    /// Checks a few of the removed memcgs, in turn, and frees those that nothing belongs to any more.
    /// Creating and removing memcgs does it too. The lock of the memcgs is not held while one is checked:
    /// until it is put back or freed no other thread checks it.
    pub fn sweep(self) {
        self.sweep_some(MOST);
    }

    /// As [`sweep`](Self::sweep), for one of them: for a caller that is pinned. All CPUs are looked at for it.
    pub fn sweep_one(self) {
        self.sweep_some(1);
    }

    fn sweep_some(self, most: usize) {
        let mut end = None;
        for _ in 0..most {
            let Some((memcg, visited)) = ({
                let _pin = self.tree.frames.platform().pin();
                let mut registry = self.tree.registry.lock();
                end = end.or(registry.removed.map(|(_, last)| last));
                self.tree.pop_removed(&mut registry).map(|memcg| (memcg, memcg.is_visited()))
            }) else {
                return;
            };
            let over = !visited && self.is_over(memcg);
            let _pin = self.tree.frames.platform().pin();
            let mut registry = self.tree.registry.lock();
            // It gets no children any more, but may be visited again.
            if over && !memcg.is_visited() {
                self.tree.unlink(&mut registry, memcg);
            } else {
                self.tree.push_removed(&mut registry, memcg);
            }
            if Some(memcg.id) == end {
                return;
            }
        }
    }

    /// Whether nothing belongs to a removed memcg any more. Called by one thread at a time.
    fn is_over(self, memcg: &Memcg<P>) -> bool {
        if linked(&memcg.links.first_child).is_some() {
            return false;
        }
        for cells in self.tree.cpus.iter() {
            MemcgCharges::new(self.tree)
                .drain_stock(&self.tree.frames.platform().pin(), cells, |id| id == memcg.id);
        }
        let rises = memcg.memory.rises();
        if memcg.is_charged() || memcg.all_lists().any(|lists| !lists.is_empty()) {
            return false;
        }
        let drain = || MemcgCounters::new(self.tree).drain_stats_of(|whose| whose == memcg.id);
        let again = memcg.drained_rises.swap(rises, Ordering::Relaxed) != rises;
        if drain() || again || memcg.drained.load(Ordering::Relaxed) == 0 {
            self.note_drained(memcg, false);
        }
        while self.has_passed(memcg) {
            // The count of rises is read after the usage: a charge that fails beside another one notes the rise of
            // both, before it gives back its own part.
            let charged = memcg.is_charged() || memcg.memory.rises() != rises;
            let found = drain();
            let second = memcg.drained_again.load(Ordering::Relaxed);
            if charged || second && found {
                memcg.drained.store(0, Ordering::Relaxed);
                return false;
            }
            if second {
                return true;
            }
            self.note_drained(memcg, true);
        }
        false
    }

    /// Notes that no CPU holds anything back for the memcg now: for the `second` time, after an epoch.
    fn note_drained(self, memcg: &Memcg<P>, second: bool) {
        memcg.drained.store(self.tree.frames.epoch().stamp().get() + 1, Ordering::Relaxed);
        memcg.drained_again.store(second, Ordering::Relaxed);
    }

    /// Whether an epoch has passed since that was noted.
    fn has_passed(self, memcg: &Memcg<P>) -> bool {
        let epoch = self.tree.frames.epoch();
        // Two steps are what it takes if no CPU is in a section; one that is cannot be waited for here.
        epoch.advance();
        epoch.advance();
        let passed = epoch.stamp().get() + 1 >= memcg.drained.load(Ordering::Relaxed) + 2;
        // Sees what was done in those sections. Pairs with the exchange that moved the epoch.
        fence(Ordering::Acquire);
        passed
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::testing::{self, Machine};
    use crate::{MemcgId, MemcgStat, Memcgs};
    use quire_arch::Platform;
    use quire_frame::PcpTechnique;

    /// Hazard: a thread has found the number of a memcg before its removal, and counts something. Then a
    /// thread in a section that begins later takes that out of the CPU's word, and has not added it when an
    /// epoch has passed.
    #[test]
    fn an_amount_that_was_taken_out_of_its_word_keeps_the_number() {
        let machine = Machine::new(&[(0, 2048)], 2);
        let memcgs = Memcgs::new(testing::frames_of(machine, PcpTechnique::All)).unwrap();
        let [old, other] =
            ["old", "other"].map(|name| memcgs.lifecycle().create(MemcgId::ROOT, name).unwrap());
        let epoch = memcgs.frames().epoch();
        let pin = memcgs.frames().platform().pin();
        let stat = MemcgStat::Pgfault;

        let earlier = epoch.enter(&pin);
        memcgs.lifecycle().remove(old).unwrap();
        memcgs.counters().add_stat(&pin, old, stat, 7);
        drop(earlier);
        let later = epoch.enter(&pin);
        let taken = memcgs.tree().cpus.mine(&pin).stats[stat as usize].add(other, 1);
        assert_eq!(taken, Some((old, 7)));
        memcgs.lifecycle().sweep();
        assert_eq!(
            memcgs.tree().next_in_subtree(old, None),
            Some(old),
            "the amount is added to the next memcg"
        );
        memcgs.counters().put_stat(old, stat, 7);
        drop(later);
        memcgs.lifecycle().sweep();
        assert_eq!(memcgs.tree().next_in_subtree(old, None), None, "it is over");
        assert_eq!(memcgs.counters().stats(MemcgId::ROOT)[stat as usize], 8);
    }
}
