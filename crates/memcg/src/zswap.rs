//! What compressed caches keep for memcgs.

use crate::counter::UNLIMITED;
use crate::counters::MemcgCounters;
use crate::id::MemcgId;
use crate::stat::MemcgStat;
use crate::tree::MemcgTree;
use quire_arch::{PAGE_SIZE, Pin, Platform};
use quire_sync::atomic::Ordering;

quire_arch::part_of! {
    /// What memcgs have in compressed caches. A caller's slot, or page, keeps the memcg.
    pub struct MemcgZswap { pub(crate) tree: MemcgTree }
}

impl<P: Platform> MemcgZswap<'_, P> {
    /// Whether a compressed cache may take a page for the memcg: not if that, or one above, has as much there
    /// as its `memory.zswap.max` allows.
    pub fn may_store(self, id: MemcgId) -> bool {
        self.tree.up(id).all(|memcg| {
            let most = memcg.zswap_max.load(Ordering::Relaxed);
            let bytes = || MemcgCounters::new(self.tree).stats(memcg.id)[MemcgStat::Zswap as usize].max(0);
            most == UNLIMITED || most > 0 && (bytes() as u64) / PAGE_SIZE < most
        })
    }

    /// Whether pages of the memcg may be written to the device behind a compressed cache: not if its
    /// `memory.zswap.writeback`, or that of one above, is off.
    pub fn writes_back(self, id: MemcgId) -> bool {
        self.tree.up_to_root(id).all(|memcg| memcg.zswap_writeback.load(Ordering::Relaxed))
    }

    /// Counts so many bytes, and pages, more.
    pub fn count(self, pin: &Pin<'_, P>, id: MemcgId, (bytes, pages): (i64, i64)) {
        let counters = MemcgCounters::new(self.tree);
        counters.add_stat(pin, id, MemcgStat::Zswap, bytes);
        counters.add_stat(pin, id, MemcgStat::Zswapped, pages);
    }
}
