//! Making two folios of one in the cache of a file.

use super::FrameFolios;
use crate::map::FrameFlags;
use quire_arch::{Pfn, Platform};
use quire_sync::atomic::Ordering;

impl<P: Platform> FrameFolios<'_, P> {
    /// Makes two of the large folio of a file's cache at `head`, which nothing maps. The caller has the folio
    /// lock, and keeps it on the first half with the `refs` references that there are: its own and the
    /// cache's. The second half gets one, for the cache, and is not locked. Both have the flags, the owner
    /// and the memcg of the folio.
    ///
    /// `divide` makes the cache name both. While it runs no thread can take a reference to either. Where it
    /// returns false nothing has changed.
    ///
    /// Returns whether there are two. Not if others have references.
    pub fn halve_cached(self, head: Pfn, refs: u32, divide: impl FnOnce() -> bool) -> bool {
        let frame = self.frames.known(head);
        let order = frame.word().order();
        let Some(half) = order.smaller() else { return false };
        let is_unmapped = frame.kind().is_of_file() && frame.as_folio().maps() == 0;
        if !is_unmapped || !frame.freeze(refs, FrameFlags::empty()) {
            return false;
        }
        // Flags are changed by a thread that has a reference, so none is from here on.
        let word = frame.word();
        let is_divided = divide();
        if is_divided {
            let second = self.frames.known(head.offset(half.pages()));
            let load = Ordering::Relaxed;
            second.owner().store(frame.owner().load(load), load);
            second.index().store(frame.index().load(load) + half.pages(), load);
            second.memcg().store(frame.memcg().load(load), load);
            second.live().store(0, load);
            second.map_count().store(0, load);
            // The second one first: see `Frames::folio_of_tail`.
            let flags = word.flags() - (FrameFlags::LOCKED | FrameFlags::WAITERS);
            second.set_word(word.part(half, flags, 1));
        }
        frame.set_word(word.part(if is_divided { half } else { order }, word.flags(), refs));
        is_divided
    }
}
