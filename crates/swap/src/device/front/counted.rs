//! Which memcg a page of the cache counts for.

use super::CompressedCache;
use super::lru::Lru;
use crate::device::{DeviceMemory, SwapDevice};
use core::ops::Range;
use quire_arch::Platform;
use quire_memcg::MemcgId;

impl<P: Platform, D: SwapDevice<P>> CompressedCache<P, D> {
    /// A page of the slot counts for `memcg` from now on, or for none if that is the root. Under the lock:
    /// what the slot has does not change meanwhile. Its charge keeps the memcg that it counts for now.
    pub(super) fn count_for(&self, memory: DeviceMemory<'_, P>, lru: &mut Lru, slot: u64, memcg: MemcgId) {
        let (frames, before) = (memory.frames(), lru.memcg(memory.frames(), slot));
        let Some(memcgs) = memory.memcgs().filter(|_| before != memcg) else { return };
        lru.set_memcg(frames, slot, memcg);
        let (pin, bytes) = (frames.platform().pin(), self.store.length(frames, slot).cast_signed());
        for (id, sign) in [(before, -1), (memcg, 1)] {
            memcgs.zswap().count(&pin, id, (sign * bytes, sign));
        }
    }

    /// What the cache has of these slots counts for `to` from now on.
    pub(super) fn count_elsewhere(&self, memory: DeviceMemory<'_, P>, slots: Range<u64>, to: MemcgId) {
        let frames = memory.frames();
        self.in_holds(frames, &slots, |back, some| {
            for slot in some {
                if !back.lru.memcg(frames, slot).is_root() {
                    self.count_for(memory, &mut back.lru, slot, to);
                }
            }
        });
    }
}
