//! Moving listed folios between lists.

use super::{Held, MemcgFolios};
use crate::lists::{LruList, mark};
use quire_arch::{Pfn, Pin, Platform};
use quire_frame::{FrameFlags, HeadGuard, VmEvent};

const NONE: FrameFlags = FrameFlags::empty();

impl<P: Platform> MemcgFolios<'_, P> {
    /// Moves a listed folio to the list that `to` maps its list to, by its flags, to the front or the back.
    /// Returns false if it is not listed, or has no such list. A folio in a CPU's batch keeps its place.
    fn relist(self, head: Pfn, to: impl FnOnce(LruList) -> Option<LruList>, front: bool) -> bool {
        let map = self.tree.frames.map();
        let moved = self.with_listed(head, |frame, label, held| {
            let list = to(label.list())?.for_flags(frame.word().flags());
            let label_there = label.with(list, label.order());
            match held {
                Held::Incoming(_) => label_there.put(frame),
                Held::Main(lists, folios) => {
                    lists.remove(folios, map, head, label);
                    lists.insert(folios, map, head, (label_there, front));
                }
            }
            mark(frame, list);
            Some(())
        });
        moved.flatten().is_some()
    }

    /// Moves a listed folio to the active list of its type. Returns false if it is not listed.
    pub fn activate(self, _pin: &Pin<'_, P>, head: Pfn) -> bool {
        self.relist(head, |list| Some(list.active()), true)
    }

    /// Moves an active folio to the inactive list of its type. Returns false if it is on no active list.
    pub fn deactivate(self, _pin: &Pin<'_, P>, head: Pfn) -> bool {
        self.relist(head, |list| (list.inactive() != list).then_some(list.inactive()), true)
    }

    /// Makes a listed folio the oldest of its list. Returns false if it is not listed.
    pub fn move_to_back(self, _pin: &Pin<'_, P>, head: Pfn) -> bool {
        self.relist(head, Some, false)
    }

    /// Moves a listed folio to `list`, e.g. after MADV_FREE or mlock; to the file list of the kind if it was
    /// freed lazily. Returns false if it is not listed.
    pub fn move_to(self, _pin: &Pin<'_, P>, head: Pfn, list: LruList, front: bool) -> bool {
        self.relist(head, |_| Some(list), front)
    }

    /// A locked mapping no longer maps a page of `folio`; others may. The page was taken out of the mapping
    /// before: a thread that marks the folio for a locked mapping that it saw looks at the mappings once more
    /// (`quire_pageout::referenced`).
    pub fn munlock(self, pin: &Pin<'_, P>, folio: &HeadGuard<'_, P>) {
        if self.lists_anonymous() {
            self.set_mlocked(pin, folio, false);
        }
    }

    /// Marks a folio of private or shared memory as mlocked, or not, and puts it on the unevictable list, or
    /// back on an evictable one.
    pub fn set_mlocked(self, pin: &Pin<'_, P>, folio: &HeadGuard<'_, P>, locks: bool) {
        let (frame, head) = (folio.folio().frame(), folio.folio().head());
        if !folio.folio().kind().is_swap_backed() {
            return;
        }
        let events = self.tree.frames().events();
        let (list, marked, moved) = if locks {
            (LruList::Unevictable, VmEvent::UnevictablePgsMlocked, VmEvent::UnevictablePgsCulled)
        } else {
            // The file list, if it was freed lazily.
            (LruList::InactiveAnon, VmEvent::UnevictablePgsMunlocked, VmEvent::UnevictablePgsRescued)
        };
        let pages = folio.folio().order().pages();
        let (set, clear) = if locks { (FrameFlags::MLOCKED, NONE) } else { (NONE, FrameFlags::MLOCKED) };
        if frame.change_flags(set, clear).is_some_and(|was| was.contains(FrameFlags::MLOCKED) != locks) {
            events.add(pin, marked, pages);
        }
        // What reclaim has isolated at this moment it puts back on the right list, by the flag.
        let elsewhere = self.list_of(head).is_some_and(|now| (now == LruList::Unevictable) != locks);
        if elsewhere && self.move_to(pin, head, list, true) {
            events.add(pin, moved, pages);
        }
    }
}
