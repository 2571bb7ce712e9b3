//! Growing a mapping where it is.

use super::{MmapWriter, sticky};
use quire_arch::{Platform, VirtAddr, VirtRange};
use quire_vma::{Proposal, Vma, VmaSnapshot};

impl<'s, P: Platform> MmapWriter<'s, P> {
    /// Moves the start of a stack VMA down to `start`; the gap is free and the limits were checked.
    pub(crate) fn extend_down(&mut self, vma: &'s Vma, start: VirtAddr) {
        self.lock_vma(vma);
        let snapshot = vma.snapshot();
        let range = VirtRange::new(start, snapshot.range.end());
        let pages = range.pages() - snapshot.range.pages();
        self.core.usage.map(snapshot.flags, pages);
        let page_offset = snapshot.page_offset_at(start);
        let rmap_locks = self.lock_rmap(snapshot.backing, [snapshot.anon]);
        self.set_vma(vma, VmaSnapshot { range, page_offset, ..snapshot }, &rmap_locks);
    }

    /// Moves the end of a VMA up to `end`; the gap is free and the limits were checked. Merges with what
    /// follows if that became possible.
    pub(crate) fn extend_up(&mut self, vma: &'s Vma, end: VirtAddr) {
        let snapshot = vma.snapshot();
        let proposal = Proposal {
            range: VirtRange::new(snapshot.range.end(), end),
            flags: snapshot.flags,
            page_offset: snapshot.page_offset_at(snapshot.range.end()),
            backing: snapshot.backing,
            anon: snapshot.anon,
        };
        self.core.usage.map(snapshot.flags, proposal.range.pages());
        let next = self
            .first_ending_after(end)
            .filter(|next| proposal.merges(Some(&snapshot), Some(&next.snapshot())).next);
        self.lock_vma(vma);
        let mut anon = snapshot.anon;
        let mut end = end;
        if let Some(next) = next {
            self.lock_vma(next);
            end = next.range().end();
            anon = if anon.is_some() { anon } else { next.anon() };
        }
        let rmap_locks = self.lock_rmap(snapshot.backing, [anon]);
        self.give_taker_anon_vma(Some(vma), anon, &rmap_locks);
        let flags = snapshot.flags | sticky(snapshot.flags, None, next);
        if let Some(next) = next {
            self.remove_vma(next, &rmap_locks);
        }
        let range = VirtRange::new(snapshot.range.start(), end);
        self.set_vma(vma, VmaSnapshot { range, flags, anon, ..snapshot }, &rmap_locks);
    }
}
