//! The folios of memcgs: on the LRU lists, and on their way back to the page-frame allocator.

mod incoming;
mod isolate;
mod moves;
mod put;
mod sizes;
mod split;
mod unevictable;
mod unlisted;

pub use isolate::{Begin, Isolated, Most};
pub(crate) use put::FILE;
pub use unevictable::UnevictableFolios;

use crate::id::MemcgId;
use crate::lists::{Incoming, LIST_FLAGS, Label, ListPlace, Lists, LruList, NodeLists, mark};
use crate::tree::MemcgTree;
use quire_arch::{Pfn, Pin, Platform};
use quire_frame::{Frame, FrameFlags};
use quire_sync::SpinGuard;
use quire_sync::atomic::Ordering;

/// The lock of the place where a folio is.
pub(crate) enum Held<'g, P: Platform> {
    Incoming(SpinGuard<'g, Incoming, P>),
    Main(&'g NodeLists<P>, SpinGuard<'g, Lists, P>),
}

#[cold]
#[inline(never)]
fn mark_slowly(frame: &Frame, list: LruList) {
    mark(frame, list);
}

quire_arch::part_of! {
    /// The folios of memcgs.
    pub struct MemcgFolios { pub(crate) tree: MemcgTree }
}

impl<'g, P: Platform> MemcgFolios<'g, P> {
    /// Whether anonymous folios are listed. Before the first swap device they are not, which saves the cost.
    /// A thread that maps a new folio asks in the section of the epoch in which it mapped it: either it finds
    /// that they are listed, or [`start_listing`](Self::start_listing) waits for it, and the folio is found
    /// then.
    #[inline]
    pub fn lists_anonymous(self) -> bool {
        self.tree.listing.load(Ordering::Relaxed)
    }

    /// From now on anonymous folios are listed, those that are there included. Returns how many these are.
    /// Called again it does nothing: what is on no list then was isolated by reclaim. The caller is not
    /// pinned.
    pub fn start_listing(self) -> u64 {
        if self.tree.listing.swap(true, Ordering::Relaxed) {
            return 0;
        }
        self.tree.frames.epoch().wait_for_sections::<P>();
        self.list_unlisted()
    }

    /// The lists of the memcg that the folio belongs to, for the node that it lies on.
    #[inline]
    pub(crate) fn lists_of(self, frame: &Frame) -> Option<&'g NodeLists<P>> {
        let memcg = MemcgId::from_bits(frame.as_folio().memcg());
        self.tree.table.get(memcg)?.lists(frame.zone().node())
    }

    /// Lists the folio that starts at `head`, which the caller keeps from being freed. Returns false if
    /// another CPU did or is about to. Takes a lock that is this CPU's own.
    #[inline]
    pub fn list_folio(self, pin: &Pin<'_, P>, head: Pfn, list: LruList) -> bool {
        self.list_by(pin, head, |_| list)
    }

    /// As [`list_folio`](Self::list_folio), on the list that `list` names for its flags. A thread that
    /// changes one of them finds either that it is listed, or that it will be by what it has made of them.
    #[inline(always)]
    pub(crate) fn list_by(
        self,
        pin: &Pin<'_, P>,
        head: Pfn,
        list: impl FnOnce(FrameFlags) -> LruList,
    ) -> bool {
        let frame = self.tree.frames.known(head);
        // The CPU that sets the flag lists the folio. Until there is a label no other CPU touches it.
        let Some(before) = frame.set_flags(FrameFlags::LRU) else { return false };
        if before.contains(FrameFlags::LRU) {
            return false;
        }
        let list = list(before);
        if (before & LIST_FLAGS) | FrameFlags::LRU != list.flags() {
            mark_slowly(frame, list);
        }
        let mut mine = self.tree.incoming.mine(pin).lock();
        Label::incoming(list, frame.word().order(), pin.cpu()).put(frame);
        mine.folios.push_front(self.tree.frames.map(), head);
        true
    }

    /// Unlists the folio that starts at `head`. Returns false if it is not listed.
    #[inline]
    pub fn unlist_folio(self, _pin: &Pin<'_, P>, head: Pfn) -> bool {
        let frame = self.tree.frames.known(head);
        if !frame.word().flags().contains(FrameFlags::LRU) {
            return false;
        }
        let unlisted = self.with_listed(head, |frame, label, held| {
            self.take_off(head, label, held);
            // Before the flag: the thread that sets it next finds no label.
            Label::NONE.put(frame);
            frame.clear_flags(FrameFlags::LRU);
        });
        unlisted.is_some()
    }

    #[inline]
    pub(crate) fn take_off(self, head: Pfn, label: Label, held: &mut Held<'_, P>) {
        let map = self.tree.frames.map();
        match held {
            Held::Incoming(incoming) => incoming.folios.remove(map, head),
            Held::Main(lists, folios) => lists.remove(folios, map, head, label),
        }
    }

    /// Calls `act` under the lock of the place where the folio is listed, with its label. `None` if it is not
    /// listed.
    #[inline]
    pub(crate) fn with_listed<R>(
        self,
        head: Pfn,
        act: impl FnOnce(&Frame, Label, &mut Held<'_, P>) -> R,
    ) -> Option<R> {
        let frame = self.tree.frames.known(head);
        let listed = || frame.word().flags().contains(FrameFlags::LRU);
        let mut attempt = 0;
        // A folio that keeps moving keeps this looping; each time another CPU has made progress.
        while listed() {
            let label = Label::of(frame);
            match label.place() {
                // It is just being listed.
                _ if !label.is_some() => {}
                ListPlace::Incoming(cpu) => {
                    let incoming = self.tree.incoming.get(cpu)?.lock();
                    // The flag is read before the label: a CPU that listed it elsewhere has set it after the
                    // label.
                    if listed() && Label::of(frame).place() == ListPlace::Incoming(cpu) {
                        return Some(act(frame, Label::of(frame), &mut Held::Incoming(incoming)));
                    }
                }
                ListPlace::Main => {
                    let lists = self.lists_of(frame)?;
                    let folios = lists.lock();
                    if listed()
                        && Label::of(frame).is_some()
                        && Label::of(frame).place() == ListPlace::Main
                        && self.lists_of(frame).is_some_and(|now| core::ptr::eq(now, lists))
                    {
                        return Some(act(frame, Label::of(frame), &mut Held::Main(lists, folios)));
                    }
                }
            }
            P::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
        None
    }

    /// The list that the folio is on or on its way to, if it is listed: a snapshot.
    pub fn list_of(self, head: Pfn) -> Option<LruList> {
        let frame = self.tree.frames.known(head);
        frame.word().flags().contains(FrameFlags::LRU).then(|| Label::of(frame).list())
    }
}
