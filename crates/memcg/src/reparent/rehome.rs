//! Folios that change their memcg: what a removed one had goes to the one that inherits it.

use super::Reparenting;
use crate::folios::{FILE, Held, MemcgFolios};
use crate::id::MemcgId;
use crate::lists::LruList;
use arrayvec::ArrayVec;
use quire_arch::{NodeId, Pfn, Pin, Platform};
use quire_frame::{Frame, FrameFlags, Kind};

/// Folios that are looked at under one hold of the lock of lists.
const AT_ONCE: usize = 32;

/// Whose a folio was before it changed its memcg.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rehomed {
    /// It counts as pages of a file.
    pub(super) is_file: bool,
}

impl<P: Platform> Reparenting<'_, P> {
    /// The youngest folios of a list, each with a reference; those that are being freed are left out.
    pub(super) fn youngest(
        self,
        _pin: &Pin<'_, P>,
        (id, node, list): (MemcgId, NodeId, LruList),
    ) -> ArrayVec<Pfn, AT_ONCE> {
        let Some(lists) = self.tree.table.get(id).and_then(|memcg| memcg.lists(node)) else {
            return ArrayVec::new();
        };
        let map = self.tree.frames.map();
        let folios = lists.lock();
        let some = folios[list as usize].iter(map).take(AT_ONCE);
        some.filter(|&head| map.known(head).try_get()).collect()
    }

    /// Gives a folio from one memcg to another above it, where it is the oldest of the list that it was on.
    /// `None` if another thread has isolated it. The caller has a reference and the folio lock, and is in a
    /// section of the epoch. What is charged and counted stays as it is.
    ///
    /// The locks of both memcgs' lists are held: the one that is below comes first.
    pub(super) fn rehome(
        self,
        pin: &Pin<'_, P>,
        head: Pfn,
        (from, to): (MemcgId, MemcgId),
    ) -> Option<Rehomed> {
        debug_assert!(self.tree.frames.epoch().is_entered(pin), "a memcg may be gone outside the epoch");
        let map = self.tree.frames.map();
        let listed = MemcgFolios::new(self.tree).with_listed(head, |frame, label, held| {
            let Held::Main(lists, folios) = held else { return Some(give(frame, to)) };
            let there = self.tree.table.get(to)?.lists(frame.zone().node())?;
            debug_assert!(from != to, "{head:?} stays with {from}");
            let mut folios_there = there.lock();
            lists.remove(folios, map, head, label);
            let rehomed = give(frame, to);
            there.insert(&mut folios_there, map, head, (label, false));
            Some(rehomed)
        });
        match listed {
            Some(rehomed) => rehomed,
            None => self.rehome_unlisted(head, to),
        }
    }

    /// The same for a folio that is on no list. Those of files are not listed, and before the first swap
    /// device only those that are freed lazily: as long as this section lasts
    /// ([`start_listing`](MemcgFolios::start_listing)).
    fn rehome_unlisted(self, head: Pfn, to: MemcgId) -> Option<Rehomed> {
        let (folios, frame) = (MemcgFolios::new(self.tree), self.tree.frames.known(head));
        if frame.kind() != Kind::File && folios.lists_anonymous() {
            return None;
        }
        // As a thread that lists it: no other one does until the flag is gone, and who wants to take it off
        // waits for a label.
        let before = frame.set_flags(FrameFlags::LRU)?;
        if before.contains(FrameFlags::LRU) {
            return None;
        }
        let is_isolated = before.contains(FrameFlags::LAZY_FREE);
        let rehomed = (!is_isolated).then(|| give(frame, to));
        let now = frame.change_flags(FrameFlags::empty(), FrameFlags::LRU)?;
        // Another thread may have been about to list it.
        if folios.lists_anonymous() || now.contains(FrameFlags::LAZY_FREE) {
            folios.list_if_mapped(head);
        }
        rehomed
    }
}

/// Gives a folio to another memcg. A program may make a page of a file its own meanwhile.
fn give(frame: &Frame, to: MemcgId) -> Rehomed {
    loop {
        let word = frame.as_folio().memcg();
        if frame.as_folio().replace_memcg(word, to.get() | word & FILE) {
            return Rehomed { is_file: word & FILE != 0 };
        }
    }
}
