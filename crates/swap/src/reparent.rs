//! What belongs to removed memcgs goes to those that inherit it: folios, in the swap cache or not, and slots.
//!
//! A folio moves under its folio lock, the lock of its slots' cluster if it has slots, and those of the LRU
//! lists. So what charges by the number that a folio or a slot names finds the charge there. A slot that is
//! on its device only moves under the lock of its cluster.

use crate::cache::SwapCache;
use crate::devices::{Device, SwapDevices};
use crate::held::Held;
use crate::slot::MAX_DEVICES;
use crate::word::SlotWord;
use quire_arch::{Pfn, Platform};
use quire_memcg::MemcgId;

quire_arch::part_of! {
    /// What removed memcgs leave, in memory and on swap devices.
    pub struct SwapReparenting { pub(crate) devices: SwapDevices }
}

impl<P: Platform> SwapReparenting<'_, P> {
    /// A memcg was removed: gives the folios on its LRU lists to the memcg that inherits them. From time to
    /// time, after many removals, looks for all that is left of removed memcgs, wherever it is: at the slots
    /// of all devices, and if there are pages that no list has, at all frames. Not pinned.
    pub fn after_removal(self, id: MemcgId) {
        self.move_listed(id);
        self.search(false);
    }

    /// The numbers of memcgs are short: looks for what is left of removed ones, if there are any, and frees
    /// their numbers. Returns whether it did. Not pinned.
    pub fn free_numbers(self) -> bool {
        let searched = self.search(true);
        if searched {
            let memcgs = self.devices.memcgs();
            // Each looks at a few of them.
            (0..memcgs.reparenting().kept()).for_each(|_| memcgs.lifecycle().sweep_one());
        }
        searched
    }

    fn search(self, wanted: bool) -> bool {
        let memcgs = self.devices.memcgs();
        if !memcgs.reparenting().begins_search(wanted) {
            return false;
        }
        // What other threads had isolated, or locked.
        memcgs.reparenting().for_each_kept(|id| self.move_listed(id));
        for index in 0..MAX_DEVICES {
            if let Some(device) = self.devices.use_device(index) {
                (0..device.clusters).for_each(|cluster| self.move_slots(&device, cluster));
            }
        }
        if memcgs.reparenting().have_pages() {
            self.devices.frames().audit().for_each_frame(|head, frame| {
                let memcg = MemcgId::from_bits(frame.as_folio().memcg());
                if !memcg.is_root() && memcgs.tree().is_removed(memcg) && frame.try_get_folio() {
                    self.move_folio(head);
                    memcgs.folios().release_folio(self.devices.frames().folio(head).head());
                }
            });
        }
        true
    }

    fn move_listed(self, id: MemcgId) {
        self.devices.memcgs().reparenting().for_each_listed(id, |head| self.move_folio(head));
    }

    /// Moves a folio to which the caller has a reference. False if another thread is busy with it, or if it
    /// is of no removed memcg.
    fn move_folio(self, head: Pfn) -> bool {
        let frames = self.devices.frames();
        let _pin = frames.platform().pin();
        let Some(_locked) = frames.folios().try_lock_folio(head) else { return false };
        let folio = frames.folios().lock_head(head);
        if folio.folio().head() != head {
            return false;
        }
        let reparenting = self.devices.memcgs().reparenting();
        reparenting.out_of_queue(&folio, || {
            let cached = SwapCache::new(self.devices).with_folio(head, |held, first, end| {
                let is_taken = reparenting.take_folio(&folio, u64::from(end - first));
                if is_taken {
                    let memcg = folio.folio().frame().as_folio().memcg();
                    held.recharged((first, end), MemcgId::from_bits(memcg));
                }
                is_taken
            });
            cached.unwrap_or_else(|| reparenting.take_folio(&folio, 0))
        })
    }

    /// Moves the slots of a cluster whose pages are not in memory. What is read past the cache is left out:
    /// its slot stays with its memcg until it is free.
    fn move_slots(self, device: &Device<P>, cluster: u32) {
        let pin = self.devices.platform().pin();
        let _section = self.devices.frames().epoch().enter(&pin);
        let mut held = Held::lock(self.devices, &pin, device, cluster);
        if held.guard.used == held.guard.cached {
            return;
        }
        let end = held.limit();
        held.each(0, end, |held, unit| {
            let Some(from) = unit.word.memcg().filter(|_| !unit.word.is_busy()) else { return };
            let from = MemcgId::from_bits(from);
            let heir = self.devices.memcgs().reparenting().take_slots(from, unit.pages.into());
            if let Some(heir) = heir {
                held.guard.store(unit, self.given_to(heir, unit.word));
                held.recharged((unit.first, unit.first + unit.pages), heir);
            }
        });
    }

    /// A word of a slot that is charged to another memcg now. A page that comes back is as far from its
    /// eviction as before, by the other memcg's clock.
    fn given_to(self, heir: MemcgId, word: SlotWord) -> SlotWord {
        let Some(shadow) = word.shadow() else { return word.charged_to(heir.get(), None) };
        let age = |memcg| self.devices.memcgs().folios().age(memcg, shadow.node());
        let distance = self.devices.ages().distance(age(MemcgId::from_bits(shadow.memcg())), shadow);
        let then = age(heir).wrapping_sub(distance);
        let moved = self.devices.ages().shadow(shadow.node(), heir.get(), shadow.workingset(), then);
        word.charged_to(heir.get(), Some(moved))
    }
}
