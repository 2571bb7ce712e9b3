//! Listing folios that are on no list: those mapped before anything could be reclaimed, and the parts of one
//! that was listed while it was split.

use super::MemcgFolios;
use crate::lists::LruList;
use quire_arch::{Pfn, Platform};
use quire_frame::{Frame, FrameFlags, Kind, MAX_REFS};

impl<P: Platform> MemcgFolios<'_, P> {
    /// Puts folios of private and shared memory that are on no list on one: those that were there before
    /// anything could be reclaimed, whatever else has references to them. Returns how many.
    pub fn list_unlisted(self) -> u64 {
        let mut listed = 0;
        self.tree.frames().audit().for_each_frame(|head, frame| {
            let flags = frame.word().flags();
            let left_out =
                is_listed_kind(frame) && !flags.intersects(FrameFlags::LRU | FrameFlags::UNEVICTABLE);
            if left_out && self.list_if_mapped(head) {
                listed += 1;
            }
        });
        listed
    }

    /// Lists the folio at `head`, if it is private memory that is mapped, or shared memory, and on no list:
    /// as inactive, unless it is marked otherwise. Returns whether it did. It may be freed at any time
    /// meanwhile.
    pub fn list_if_mapped(self, head: Pfn) -> bool {
        let frame = self.tree.frames().known(head);
        let mut attempt = 0;
        loop {
            let refs = frame.refs();
            if !is_listed_kind(frame) || refs >= MAX_REFS {
                return false;
            }
            // It may have been freed since, and be a table or a slab.
            if frame.try_get_folio() {
                break;
            }
            // It is being split at this moment. It must not be left out: its parts are on the list that it is
            // on.
            P::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
        // The reference keeps it stable. Another thread may be listing it too: the flag decides.
        let flags = frame.word().flags();
        let listed = is_listed_kind(frame) && !flags.contains(FrameFlags::UNEVICTABLE) && {
            let pin = self.tree.frames().platform().pin();
            self.list_by(&pin, head, list_of_marks)
        };
        self.release_folio(self.tree.frames().folio(head).head());
        listed
    }
}

/// The list of a folio of private or shared memory with `flags`.
fn list_of_marks(flags: FrameFlags) -> LruList {
    if flags.contains(FrameFlags::MLOCKED) {
        LruList::Unevictable
    } else if flags.contains(FrameFlags::LAZY_FREE) {
        LruList::InactiveFile
    } else {
        LruList::InactiveAnon
    }
}

fn is_listed_kind(frame: &Frame) -> bool {
    match frame.kind() {
        Kind::Anonymous => frame.as_folio().maps() > 0,
        // Shared memory stays in the cache of its file, mapped or not.
        Kind::Shmem => frame.word().flags().contains(FrameFlags::SHARED_BY_NAME),
        _ => false,
    }
}
