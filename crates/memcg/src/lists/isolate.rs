//! Folios that reclaim takes off a list, and those that it brings back.

use super::{Label, LruList};
use crate::Memcgs;
use crate::id::MemcgId;
use quire_arch::{NodeId, Pfn, Pin, Platform};
use quire_frame::FrameFlags;

/// Where a look at a list begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    /// At the end, where the oldest folio is.
    Oldest,
    /// Where the last scan ended; again at the end once the front was reached.
    WhereLeft,
}

/// What was found at the end of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Isolated {
    /// Pages of the folios that were looked at.
    pub scanned: u64,
    /// Pages of those that were taken.
    pub taken: u64,
    /// Folios that were looked at.
    pub folios: u32,
}

impl<P: Platform> Memcgs<P> {
    /// Looks at up to `most` folios of a list, the oldest first, and takes those that `want` wants: such a
    /// folio is listed no more, enters `out`, and the caller holds a reference to it. What is not wanted, or
    /// is just being given back, stays where it is: it grows no younger by the look. `want` is called under
    /// the lists' lock; `out` has room for `most`.
    pub fn isolate(
        &self,
        _pin: &Pin<'_, P>,
        (id, node, list): (MemcgId, NodeId, LruList),
        (begin, most): (Begin, u32),
        mut want: impl FnMut(Pfn) -> bool,
        out: &mut impl Extend<Pfn>,
    ) -> Isolated {
        let mut found = Isolated::default();
        let Some(lists) = self.table.get(id).and_then(|memcg| memcg.lists(node)) else { return found };
        let map = self.frames.map();
        let mut folios = lists.lock();
        let walked = &mut folios[list as usize];
        if begin == Begin::Oldest || walked.is_walk_over() {
            walked.begin_walk();
        }
        while found.folios < most
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

    /// Lists a folio that is not listed on `list` of its memcg and node, at the front or the back. The caller
    /// keeps it from being given back.
    pub fn put_back(&self, pin: &Pin<'_, P>, head: Pfn, list: LruList, front: bool) {
        self.put_back_all(pin, [(head, list, front)]);
    }

    /// As [`put_back`](Self::put_back) for several: the lock is taken once for neighbours of one memcg and
    /// node.
    pub fn put_back_all(&self, _pin: &Pin<'_, P>, folios: impl IntoIterator<Item = (Pfn, LruList, bool)>) {
        let map = self.frames.map();
        let mut held = None;
        for (head, list, front) in folios {
            let frame = map.known(head);
            let Some(lists) = self.lists_of(frame) else { continue };
            // Another CPU may have listed it meanwhile: the one that sets the flag does.
            if frame.set_flags(FrameFlags::LRU).is_none_or(|before| before.contains(FrameFlags::LRU)) {
                continue;
            }
            let (_, guard) = match held.take() {
                Some((last, guard)) if core::ptr::eq(last, lists) => held.insert((last, guard)),
                other => {
                    drop(other);
                    held.insert((lists, lists.lock()))
                }
            };
            lists.list(guard, map, head, (list, front));
        }
    }
}
