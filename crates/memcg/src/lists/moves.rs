//! Moving listed folios between lists.

use super::{Held, LruList, mark};
use crate::Memcgs;
use quire_arch::{Pfn, Pin, Platform};

impl<P: Platform> Memcgs<P> {
    /// Moves a listed folio to the list that `to` maps its list to, by its flags, to the front or the back.
    /// Returns false if it is not listed. A folio in a CPU's batch keeps its place.
    fn relist(&self, head: Pfn, to: impl FnOnce(LruList) -> LruList, front: bool) -> bool {
        let map = self.frames.map();
        let moved = self.with_listed(head, |frame, label, held| {
            let list = to(label.list()).for_flags(frame.word().flags());
            let label_there = label.with(list, label.order());
            match held {
                Held::Incoming(_) => label_there.put(frame),
                Held::Main(lists, folios) => {
                    lists.remove(folios, map, head, label);
                    lists.insert(folios, map, head, (label_there, front));
                }
            }
            mark(frame, list);
        });
        moved.is_some()
    }

    /// Moves a listed folio to the active list of its type. Returns false if it is not listed.
    pub fn activate(&self, _pin: &Pin<'_, P>, head: Pfn) -> bool {
        self.relist(head, LruList::active, true)
    }

    /// Moves a listed folio to the inactive list of its type. Returns false if it is not listed.
    pub fn deactivate(&self, _pin: &Pin<'_, P>, head: Pfn) -> bool {
        self.relist(head, LruList::inactive, true)
    }

    /// Makes a listed folio the oldest of its list. Returns false if it is not listed.
    pub fn move_to_back(&self, _pin: &Pin<'_, P>, head: Pfn) -> bool {
        self.relist(head, |list| list, false)
    }

    /// Moves a listed folio to `list`, e.g. after MADV_FREE or mlock; to the file list of the kind if it was
    /// freed lazily. Returns false if it is not listed.
    pub fn move_to(&self, _pin: &Pin<'_, P>, head: Pfn, list: LruList, front: bool) -> bool {
        self.relist(head, |_| list, front)
    }
}
