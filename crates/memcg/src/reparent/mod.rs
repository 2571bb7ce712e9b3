//! What belongs to removed memcgs goes to those that inherit it, so that their numbers become free.
//!
//! A removed memcg's heir is the first one above it that was not removed. All that is charged to the removed
//! one is charged to its heir already, as to all memcgs above. So it is the folio, or the slot, that gets
//! another number, and the memcgs below the heir count less.
//!
//! The folios on the lists of a memcg are found there. Slots, and folios on no list, say whose they are, and
//! no memcg knows its own. They are looked for, all at once, when enough memcgs were removed.

mod rehome;

use crate::charge::MemcgCharges;
use crate::folios::MemcgFolios;
use crate::id::MemcgId;
use crate::lists::LruList;
use crate::memcg::Memcg;
use crate::splits::DeferredSplits;
use crate::stat::MemcgStat;
use crate::tree::MemcgTree;
use quire_arch::{NodeId, Order, Pfn, Platform};
use quire_frame::{FrameFlags, HeadGuard, Kind};
use quire_sync::atomic::Ordering;

/// So many removals there are between two searches for what is not listed, and so many removed memcgs are
/// kept at least when there is one.
const DUE: u32 = 1024;

quire_arch::part_of! {
    /// What removed memcgs leave.
    pub struct Reparenting { pub(crate) tree: MemcgTree }
}

impl<'g, P: Platform> Reparenting<'g, P> {
    /// The memcg that inherits from `id`, if that was removed. The caller is in a section of the epoch in
    /// which it found the number.
    pub fn heir(self, id: MemcgId) -> Option<MemcgId> {
        let removed =
            self.tree.table.get(id).filter(|memcg| !memcg.id.is_root() && memcg.life.is_removed())?;
        let heir = self.tree.up(removed.parent()).find(|above| above.life.is_online());
        Some(heir.map_or(MemcgId::ROOT, |heir| heir.id))
    }

    /// Whether it is time to look for all that belongs to removed memcgs: after so many removals, or if it
    /// is `wanted` and there are any: what was busy the last time may be free. The next time is counted from
    /// now then.
    pub fn begins_search(self, wanted: bool) -> bool {
        let _pin = self.tree.frames.platform().pin();
        let mut registry = self.tree.registry.lock();
        let kept = u32::from(registry.removals_kept);
        let begins = if wanted { kept > 0 } else { registry.removals >= DUE && kept >= DUE };
        if begins {
            registry.removals = 0;
        }
        begins
    }

    /// Memcgs that were removed and are kept.
    pub fn kept(self) -> usize {
        let _pin = self.tree.frames.platform().pin();
        usize::from(self.tree.registry.lock().removals_kept)
    }

    /// Calls `visit` with each of them, which does not leave the tree meanwhile.
    pub fn for_each_kept(self, mut visit: impl FnMut(MemcgId)) {
        self.tree.for_each_in_subtree(MemcgId::ROOT, |id| {
            if self.tree.table.get(id).is_some_and(|memcg| memcg.life.is_removed()) {
                visit(id);
            }
        });
    }

    /// Whether pages in memory are charged to removed memcgs, without those in the CPUs' stocks.
    pub fn have_pages(self) -> bool {
        let mut any = false;
        self.for_each_kept(|id| {
            any = any || {
                MemcgCharges::new(self.tree).drain_stocks_below(&self.tree.frames.platform().pin(), id);
                self.tree.table.get(id).is_some_and(|memcg| memcg.memory.usage() != 0)
            };
        });
        any
    }

    /// Calls `give` with each folio on the lists of a removed memcg, which has a reference to it and is not
    /// pinned. It is to call [`take_folio`](Self::take_folio); a folio for which it returns false becomes the
    /// oldest of its list, and stays.
    pub fn for_each_listed(self, id: MemcgId, mut give: impl FnMut(Pfn) -> bool) {
        // Where it is gone its number may be another one's.
        let Some(_kept) = self.tree.keep_removed(id) else { return };
        let folios = MemcgFolios::new(self.tree);
        folios.take_in(None);
        for node in (0..self.tree.frames.platform().node_count()).filter_map(NodeId::new) {
            for &list in LruList::ALL {
                let mut pages = folios.sizes(id, node)[list as usize];
                while pages > 0 {
                    let some = self.youngest(&self.tree.frames.platform().pin(), (id, node, list));
                    if some.is_empty() {
                        break;
                    }
                    for head in some {
                        pages = pages.saturating_sub(self.tree.frames.folio(head).order().pages());
                        if !give(head) {
                            folios.move_to_back(&self.tree.frames.platform().pin(), head);
                        }
                        folios.release_folio(head);
                    }
                }
            }
        }
    }

    /// Calls `give`, which may give a folio to another memcg. Where the folio waits to be split it is in no
    /// queue meanwhile, and then at the end of that of the memcg that it has. The lock of the queues comes
    /// before that of a cluster. The caller has a reference and the folio lock.
    pub fn out_of_queue<R>(self, locked: &HeadGuard<'_, P>, give: impl FnOnce() -> R) -> R {
        let splits = DeferredSplits::new(self.tree);
        let flags = locked.folio().frame().word().flags();
        let waits = locked.folio().is_large() && flags.contains(FrameFlags::PARTLY_MAPPED);
        if waits {
            splits.undefer_split(locked);
        }
        let given = give();
        if waits {
            splits.queue(locked);
        }
        given
    }

    /// Gives a folio of a removed memcg to that one's heir, with its charge, and with that of `slots` slots:
    /// its own, if it is in the swap cache. Returns false if it is of no removed memcg, or if another thread
    /// has isolated it. The caller has a reference, the folio lock, and the lock of the slots' cluster, and
    /// has taken it [out of its queue](Self::out_of_queue).
    pub fn take_folio(self, locked: &HeadGuard<'_, P>, slots: u64) -> bool {
        let (head, frame) = (locked.folio().head(), locked.folio().frame());
        let pin = self.tree.frames.platform().pin();
        let _section = self.tree.frames.epoch().enter(&pin);
        let from = MemcgId::from_bits(frame.as_folio().memcg());
        let Some(to) = self.heir(from) else { return false };
        let Some(rehomed) = self.rehome(&pin, head, (from, to)) else { return false };
        let order = locked.folio().order();
        let pages = order.pages();
        // Under the folio lock it stays in the cache of its file, or outside.
        let is_cached = frame.kind().is_of_file() && frame.as_folio().file().is_some();
        let (is_shmem, is_huge) =
            (is_cached && frame.kind() == Kind::Shmem, is_cached && order == Order::PMD);
        for memcg in self.below(from, to) {
            let left = memcg.memory.sub(pages);
            self.tree.note_protected(memcg, left);
            memcg.swap.sub(slots);
            let counted = [
                (MemcgStat::File, rehomed.is_file),
                (MemcgStat::Shmem, is_shmem),
                (MemcgStat::FileThp, is_huge && !is_shmem),
                (MemcgStat::ShmemThp, is_huge && is_shmem),
            ];
            for (stat, _) in counted.into_iter().filter(|&(_, counts)| counts) {
                memcg.stats[stat as usize].fetch_sub(pages as i64, Ordering::Relaxed);
            }
        }
        true
    }

    /// Gives the charge of `slots` slots to the heir of `from`, if that was removed, and returns the heir.
    /// The caller has the lock of the slots' cluster, and is in a section of the epoch.
    pub fn take_slots(self, from: MemcgId, slots: u64) -> Option<MemcgId> {
        let to = self.heir(from)?;
        for memcg in self.below(from, to) {
            memcg.swap.sub(slots);
        }
        Some(to)
    }

    /// A removed memcg, and those between it and its heir.
    fn below(self, from: MemcgId, heir: MemcgId) -> impl Iterator<Item = &'g Memcg<P>> {
        self.tree.up(from).take_while(move |memcg| memcg.id != heir)
    }
}
