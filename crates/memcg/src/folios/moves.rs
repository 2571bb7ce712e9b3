//! Moving listed folios between lists.

use super::{Held, MemcgFolios};
use crate::lists::{LruList, mark};
use quire_arch::{Pfn, Pin, Platform};

impl<P: Platform> MemcgFolios<'_, P> {
    /// Moves a listed folio to the list that `to` maps its list to, by its flags, to the front or the back.
    /// Returns false if it is not listed, or has no such list. A folio in a CPU's batch keeps its place.
    pub(super) fn relist(self, head: Pfn, to: impl FnOnce(LruList) -> Option<LruList>, front: bool) -> bool {
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
}
