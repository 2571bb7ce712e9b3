//! Folios that are split while they are listed.

use super::{Held, MemcgFolios};
use crate::charge::MemcgCharges;
use crate::id::MemcgId;
use crate::lists::{Label, LruList};
use quire_arch::{Order, Pfn, Pin, Platform};
use quire_frame::{FolioSplit, FrameChain, FrameFlags, HeldParts, PartIs, SplitError};

impl<P: Platform> MemcgFolios<'_, P> {
    /// Ends a split as [`FolioSplit::finish`] does. If the folio is listed its parts are too, in front of it
    /// and as old, from the moment that another CPU can see them (Linux's `lru_add_split_folio`). What enters
    /// `unmapped` is uncharged from the folio's memcg. A caller that has isolated the folio, and splits it
    /// into single pages, may take a reference to each other mapped part: in `parts`, if they are on no list.
    ///
    /// # Errors
    ///
    /// As for [`FolioSplit::finish`].
    pub fn split_folio(
        self,
        pin: &Pin<'_, P>,
        split: FolioSplit<'_, P>,
        (to, held, unless_mapped): (Order, u32, bool),
        unmapped: &mut FrameChain,
        parts: Option<&mut HeldParts>,
    ) -> Result<(), SplitError> {
        let head = split.folio().head();
        let memcg = MemcgId::from_bits(self.tree.frames.known(head).as_folio().memcg());
        let before = unmapped.pages();
        let mut split = Some(split);
        let listed = self.with_listed(head, |_, label, held_lock| {
            let split = split.take()?;
            // Parts come from the last to the first, each in front of the one before, so they end in their
            // order.
            let mut beside = head;
            let done = split.finish_with(to, held, unless_mapped, unmapped, |part| {
                put_beside(self, (beside, part), label.with(label.list(), to), held_lock);
                beside = part;
                PartIs::Listed
            });
            if done.is_ok() {
                self.relabel(head, label, to, held_lock);
            }
            Some(done)
        });
        let done = match (listed.flatten(), split) {
            (Some(done), _) => done,
            (None, Some(split)) => {
                let order = split.folio().order();
                let split = match parts {
                    Some(parts) if to == Order::ZERO => {
                        split.finish_held(held, unless_mapped, unmapped, parts)
                    }
                    _ => split.finish(to, held, unless_mapped, unmapped),
                };
                // Another CPU may have listed it since the check, and dropped its reference. Then that CPU
                // found no parts to list.
                if split.is_ok() && self.folio_was_split(pin, head).is_some() {
                    let parts = (head.0..head.0 + order.pages()).step_by(to.pages() as usize).skip(1);
                    parts.for_each(|part| _ = self.list_if_mapped(Pfn(part)));
                }
                split
            }
            // The split is consumed either way.
            (None, None) => Err(SplitError::Busy),
        };
        MemcgCharges::new(self.tree).uncharge(pin, memcg, unmapped.pages() - before);
        done
    }

    /// Splits a folio of a file's cache as [`split_cached`](quire_frame::FrameFolios::split_cached) does. If
    /// it is listed the parts that are kept are, too, in front of it and as old.
    pub fn split_cached(
        self,
        head: Pfn,
        (to, refs, kept): (Order, u32, u64),
        divide: impl FnOnce() -> bool,
    ) -> bool {
        let folios = self.tree.frames.folios();
        let order = self.tree.frames.known(head).word().order();
        let mut divide = Some(divide);
        let listed = self.with_listed(head, |_, label, held| {
            let mut beside = head;
            let list_part = |part| {
                put_beside(self, (beside, part), label.with(label.list(), to), held);
                beside = part;
                true
            };
            let is_split = folios.split_cached(head, (to, refs, kept), divide.take()?, list_part);
            if is_split {
                self.relabel(head, label, to, held);
            }
            Some(is_split)
        });
        let (None, Some(divide)) = (listed.flatten(), divide) else {
            return listed.flatten().unwrap_or(false);
        };
        // Another CPU may have listed it since the check. While it is divided none can.
        let frame = self.tree.frames.known(head);
        let mut was_listed = false;
        let divide = || {
            was_listed = frame.word().flags().contains(FrameFlags::LRU);
            divide()
        };
        let is_split = folios.split_cached(head, (to, refs, kept), divide, |_| false);
        if is_split && was_listed {
            let _ = self.folio_was_split(&self.tree.frames.platform().pin(), head);
            let parts = (head.0..head.0 + order.pages().min(kept)).step_by(to.pages() as usize).skip(1);
            parts.for_each(|part| _ = self.list_if_mapped(Pfn(part)));
        }
        is_split
    }

    /// Counts a folio with `label` as one of order `now`.
    fn relabel(self, head: Pfn, label: Label, now: Order, held: &mut Held<'_, P>) {
        if let Held::Main(lists, _) = held {
            let change = now.pages() as i64 - label.order().pages() as i64;
            lists.count(label.list(), change);
        }
        label.with(label.list(), now).put(self.tree.frames.known(head));
    }

    /// A listed folio was split by [`FolioSplit::finish`], and its first part is what is listed now. Until
    /// this call it counts with its old size, wherever it moves. Returns the list, if it is still listed.
    pub fn folio_was_split(self, _pin: &Pin<'_, P>, head: Pfn) -> Option<LruList> {
        self.with_listed(head, |frame, label, held| {
            self.relabel(head, label, frame.word().order(), held);
            label.list()
        })
    }
}

/// Lists `part` that no other CPU can see yet, in front of `beside`.
fn put_beside<P: Platform>(
    memcg_folios: MemcgFolios<'_, P>,
    (beside, part): (Pfn, Pfn),
    label: Label,
    held: &mut Held<'_, P>,
) {
    let map = memcg_folios.tree.frames.map();
    label.put(map.known(part));
    match held {
        Held::Incoming(incoming) => incoming.folios.insert_before(map, beside, part),
        Held::Main(lists, folios) => {
            folios[label.list() as usize].insert_before(map, beside, part);
            lists.count(label.list(), label.order().pages() as i64);
        }
    }
}
