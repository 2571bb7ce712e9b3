//! Listing folios that are on no list: those mapped before anything could be reclaimed, and the parts of a
//! folio that was split while isolated.

use crate::Memcgs;
use crate::lists::LruList;
use quire_arch::{Pfn, Platform};
use quire_frame::{Frame, FrameFlags, Kind};

impl<P: Platform> Memcgs<P> {
    /// Puts private folios that are on no list on one: those that were there before anything could be
    /// reclaimed. Returns how many.
    pub fn list_unlisted(&self) -> u64 {
        let mut listed = 0;
        self.frames().for_each_frame(|head, frame| {
            let flags = frame.word().flags();
            let left_out = is_mapped(frame) && !flags.intersects(FrameFlags::LRU | FrameFlags::UNEVICTABLE);
            if left_out && frame.refs() == 1 && self.list_if_mapped(head) {
                listed += 1;
            }
        });
        listed
    }

    /// Lists the anonymous folio at `head` as inactive, if there is one and it is mapped and on no list.
    /// Returns whether it did. It may be freed at any time meanwhile.
    pub fn list_if_mapped(&self, head: Pfn) -> bool {
        let frame = self.frames().known(head);
        if !is_mapped(frame) || !frame.try_get() {
            return false;
        }
        // The reference keeps it stable. Another thread may be listing it too: the flag decides.
        let flags = frame.word().flags();
        let listed = is_mapped(frame) && !flags.contains(FrameFlags::UNEVICTABLE) && {
            let pin = self.frames().platform().pin();
            self.list_folio(&pin, head, LruList::InactiveAnon)
        };
        self.release_folio(self.frames().folio(head).head());
        listed
    }
}

fn is_mapped(frame: &Frame) -> bool {
    frame.kind() == Kind::Anonymous && frame.as_folio().maps() > 0
}
