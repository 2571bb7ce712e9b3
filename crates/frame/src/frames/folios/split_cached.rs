//! Splitting a folio in the cache of a file.

use super::FrameFolios;
use crate::map::{FrameFlags, OwnerWord};
use quire_arch::{Order, Pfn, Platform};
use quire_sync::atomic::Ordering;

impl<P: Platform> FrameFolios<'_, P> {
    /// Splits the large folio of a file's cache at `head`, which nothing maps, into folios of order `to`. The
    /// caller has the folio lock, and keeps it on the first part with the `refs` references that there are:
    /// its own and the cache's. The others get one each, for the cache, and are not locked. All have the
    /// flags, the owner and the memcg of the folio; but [`FrameFlags::LRU`] only those that were listed.
    ///
    /// `divide` makes the cache name all of them that begin in the first `kept` pages, and the first in any
    /// case. While it runs no thread can take a reference to one. Where it returns false nothing has changed.
    /// The others have left the cache: they have no owner, are on no list, and the reference to each is the
    /// caller's. `list_part` is called with each part that is kept but the first, from the last to the first,
    /// before any thread can see that it is one, and returns whether it has listed it.
    ///
    /// Returns whether it is split. Not if others have references.
    pub fn split_cached(
        self,
        head: Pfn,
        (to, refs, kept): (Order, u32, u64),
        divide: impl FnOnce() -> bool,
        mut list_part: impl FnMut(Pfn) -> bool,
    ) -> bool {
        let frame = self.frames.known(head);
        let order = frame.word().order();
        let is_unmapped = frame.kind().is_of_file() && frame.as_folio().maps() == 0;
        if to >= order || !is_unmapped || !frame.freeze(refs, FrameFlags::empty()) {
            return false;
        }
        // Flags are changed by a thread that has a reference, so none is from here on.
        let word = frame.word();
        let is_divided = divide();
        if is_divided {
            let load = Ordering::Relaxed;
            let mut flags = word.flags() - (FrameFlags::LOCKED | FrameFlags::WAITERS);
            // From the last part to the first: see `Frames::folio_of_tail`.
            for first in (1..order.pages() >> to.get()).rev().map(|nth| nth << to.get()) {
                let part = self.frames.known(head.offset(first));
                let owner = if first < kept { frame.owner().load(load) } else { OwnerWord::NONE.bits() };
                part.owner().store(owner, load);
                part.index().store(frame.index().load(load) + first, load);
                part.memcg().store(frame.memcg().load(load), load);
                part.live().store(0, load);
                part.map_count().store(0, load);
                if first < kept {
                    flags.set(FrameFlags::LRU, list_part(head.offset(first)));
                    part.set_word(word.part(to, flags, 1));
                } else {
                    part.set_word(word.part(to, flags - (FrameFlags::LRU | FrameFlags::SHARED_BY_NAME), 1));
                }
            }
        }
        frame.set_word(word.part(if is_divided { to } else { order }, word.flags(), refs));
        is_divided
    }
}
