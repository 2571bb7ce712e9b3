//! Isolating folios for reclaim, and putting them back.

use super::MemcgFolios;
use crate::id::MemcgId;
use crate::lists::{Label, LruList};
use quire_arch::{NodeId, Pfn, Pin, Platform};
use quire_frame::FrameFlags;

/// Where a scan of a list starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    /// At the end, where the oldest folio is.
    Oldest,
    /// Where the last scan ended; again at the end once the front was reached.
    WhereLeft,
}

/// Where a scan of a list ends, if not at its front: with the folio that reaches one of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Most {
    /// Folios: no more than there is room for.
    pub folios: u32,
    /// Pages: a large folio may be beyond that.
    pub pages: u64,
}

impl Most {
    /// So many folios, of any size.
    pub const fn folios(folios: u32) -> Self {
        Self { folios, pages: u64::MAX }
    }
}

/// The result of a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Isolated {
    /// Pages scanned.
    pub scanned: u64,
    /// Pages isolated.
    pub taken: u64,
    /// Folios scanned.
    pub folios: u32,
}

impl<P: Platform> MemcgFolios<'_, P> {
    /// Scans `most` of a list, the oldest folio first, and isolates those for which `want` returns true: such
    /// a folio leaves the list and enters `out`, and the caller holds a reference to it. Others, and folios
    /// being freed, keep their place. `want` is called under the lists' lock; `out` has room for the folios.
    pub fn isolate(
        self,
        _pin: &Pin<'_, P>,
        (id, node, list): (MemcgId, NodeId, LruList),
        (begin, most): (Begin, Most),
        mut want: impl FnMut(Pfn) -> bool,
        out: &mut impl Extend<Pfn>,
    ) -> Isolated {
        let mut found = Isolated::default();
        let Some(lists) = self.tree.table.get(id).and_then(|memcg| memcg.lists(node)) else { return found };
        let map = self.tree.frames.map();
        let mut folios = lists.lock();
        let walked = &mut folios[list as usize];
        if begin == Begin::Oldest || walked.is_walk_over() {
            walked.begin_walk();
        }
        while found.folios < most.folios
            && found.scanned < most.pages
            && let Some(head) = folios[list as usize].walk_on(map)
        {
            let frame = map.known(head);
            let label = Label::of(frame);
            found.folios += 1;
            found.scanned += label.order().pages();
            // A folio without references is being freed by a CPU that waits for this lock to take it off.
            if want(head) && frame.try_get() {
                lists.remove(&mut folios, map, head, label);
                Label::NONE.put(frame);
                frame.clear_flags(FrameFlags::LRU);
                found.taken += label.order().pages();
                out.extend([head]);
            }
        }
        found
    }

    /// Puts an unlisted folio on `list` of its memcg and node, at the front or the back; on the file list of
    /// the kind if it was freed lazily, perhaps just now. The caller keeps it from being freed.
    pub fn put_back(self, pin: &Pin<'_, P>, head: Pfn, list: LruList, front: bool) {
        self.put_back_all(pin, [(head, list, front)]);
    }

    /// As [`put_back`](Self::put_back) for several: the lock is taken once for neighbours of one memcg and
    /// node.
    pub fn put_back_all(self, _pin: &Pin<'_, P>, folios: impl IntoIterator<Item = (Pfn, LruList, bool)>) {
        let map = self.tree.frames.map();
        let mut held = None;
        for (head, list, front) in folios {
            let frame = map.known(head);
            // Another CPU may have listed it meanwhile: the one that sets the flag does. A thread that frees
            // it lazily after that finds that it is listed, and moves it.
            let before = match frame.set_flags(FrameFlags::LRU) {
                Some(before) if !before.contains(FrameFlags::LRU) => before,
                _ => continue,
            };
            // With the flag, without which its memcg may change: it may be on no list for another reason.
            let Some(lists) = self.lists_of(frame) else {
                frame.clear_flags(FrameFlags::LRU);
                continue;
            };
            let (_, guard) = match held.take() {
                Some((last, guard)) if core::ptr::eq(last, lists) => held.insert((last, guard)),
                other => {
                    drop(other);
                    held.insert((lists, lists.lock()))
                }
            };
            lists.list(guard, map, head, (list.for_flags(before), front));
        }
    }
}
