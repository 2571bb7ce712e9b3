//! Unmapping. What is unmapped is in the gather of the caller's [`Unmapper`], and in the TLBs until that
//! finishes.

use super::{MmapWriter, Prepared, clip_end, clip_start};
use crate::error::Error;
use quire_arch::{PagingFormat, Platform, VirtAddr, VirtRange};
use quire_pageout::set_mlocked;
use quire_pagetable::{FreeableRange, Unmapper, Zap};
use quire_vma::{VmFlags, Vma};

impl<'s, P: Platform> MmapWriter<'s, P> {
    /// Unmaps `range`: mappings, pages, tables and commit charges. Cannot fail: a VMA for the case that the
    /// range is inside of one was prepared ([`vmas_to_unmap`](Self::vmas_to_unmap)).
    pub(crate) fn unmap(
        &mut self,
        range: VirtRange,
        prepared: &mut Prepared<'_, P>,
        unmapper: &mut Unmapper<'s, P>,
    ) {
        self.unmap_from(self.first_in(range), range, prepared, unmapper);
    }

    /// The same, where `first` is the lowest VMA in the range.
    fn unmap_from(
        &mut self,
        first: Option<&'s Vma>,
        range: VirtRange,
        prepared: &mut Prepared<'_, P>,
        unmapper: &mut Unmapper<'s, P>,
    ) {
        if unmapper.gather().has_absent() {
            // From an earlier part of the same call. Entries to be removed after the flush are noted as one
            // range, and those between that part and this one stay.
            unmapper.settle();
        }
        if let Some(removed) = self.remove_mappings(first, range, prepared) {
            unmapper.unmap(removed, FreeableRange(self.gap_around(removed)));
        }
    }

    /// The gap from the end of the mapping below `range`, in which there is none, to the start of the one
    /// above.
    pub(crate) fn gap_around(&self, range: VirtRange) -> VirtRange {
        let (below, above) = self.beside(range.start());
        let everything = P::Paging::table_range(VirtAddr(0), P::Paging::root_level());
        VirtRange::new(
            below.map_or(VirtAddr(0), |vma| vma.range().end()),
            above.map_or(everything.end(), |vma| vma.range().start()),
        )
    }

    /// Removes the mappings in `range`, of which `first` is the lowest, from the tree and returns the
    /// smallest range that holds them.
    fn remove_mappings(
        &mut self,
        first: Option<&'s Vma>,
        range: VirtRange,
        prepared: &mut Prepared<'_, P>,
    ) -> Option<VirtRange> {
        let mut removed: Option<VirtRange> = None;
        let mut uncharged = 0;
        let mut next = first;
        while let Some(vma) = next {
            self.lock_vma(vma);
            let snapshot = vma.snapshot();
            let part = snapshot.range.intersect(range);
            removed = Some(removed.map_or(part, |before| VirtRange::new(before.start(), part.end())));
            self.core.usage.unmap(snapshot.flags, part.pages());
            if snapshot.flags.contains(VmFlags::ACCOUNT) {
                uncharged += part.pages();
            }
            let before = clip_end(snapshot, part.start());
            let after = clip_start(snapshot, part.end());
            let rmap_locks = self.lock_rmap(snapshot.backing, [snapshot.anon]);
            match (before.range.is_empty(), after.range.is_empty()) {
                (true, true) => self.remove_vma(vma, &rmap_locks),
                (false, true) => self.set_vma(vma, before, &rmap_locks),
                (true, false) => self.set_vma(vma, after, &rmap_locks),
                (false, false) => {
                    self.set_vma(vma, before, &rmap_locks);
                    self.insert_vma(after, prepared, &rmap_locks);
                }
            }
            drop(rmap_locks);
            if snapshot.flags.contains(VmFlags::LOCKED) {
                // Pages that others map too may be reclaimed again. No rmap walk finds them mlocked here any
                // more.
                set_mlocked(&self.tables(), part, false);
            }
            if part.end() == range.end() {
                break;
            }
            next = self.first_in(range);
        }
        if uncharged > 0 {
            self.spaces.commit().release(uncharged);
        }
        removed
    }

    /// Frees the pages of all private mappings, mlocked ones too, as Linux's reaper does. The mappings stay.
    pub(crate) fn discard_private(&self, unmapper: &mut Unmapper<'s, P>) {
        let mut at = VirtAddr(0);
        while let Some(vma) = self.first_ending_after(at) {
            let snapshot = vma.snapshot();
            at = snapshot.range.end();
            if !snapshot.flags.intersects(VmFlags::SHARED | VmFlags::SPECIAL) {
                let locked = snapshot.flags.contains(VmFlags::LOCKED);
                let zap = if locked { Zap::LockedContents } else { Zap::Contents };
                unmapper.zap(snapshot.range, zap);
            }
        }
    }

    /// Unmaps every mapping: the exit of the space.
    pub(crate) fn unmap_everything(&mut self, unmapper: &mut Unmapper<'s, P>) {
        let mut uncharged = 0;
        let ends = (self.tree.first(), self.tree.last());
        while let Some(entry) = self.tree.first() {
            let vma = self.vma(entry.value);
            self.lock_vma(vma);
            let snapshot = vma.snapshot();
            self.core.usage.unmap(snapshot.flags, snapshot.range.pages());
            if snapshot.flags.contains(VmFlags::ACCOUNT) {
                uncharged += snapshot.range.pages();
            }
            // No walker of the rmap finds this VMA any more, so the tables may be freed.
            let rmap_locks = self.lock_rmap(snapshot.backing, [snapshot.anon]);
            self.remove_vma(vma, &rmap_locks);
            drop(rmap_locks);
            if snapshot.flags.contains(VmFlags::LOCKED) {
                // Pages that others map too may be reclaimed again. No rmap walk finds them mlocked here any
                // more.
                set_mlocked(&self.tables(), snapshot.range, false);
            }
        }
        self.tree.clear();
        self.spaces.commit().release(uncharged);
        if let (Some(first), Some(last)) = ends {
            let all = VirtRange::new(first.range.start(), last.range.end());
            unmapper.unmap(all, FreeableRange::everything());
        }
    }

    /// Unmaps `range` with everything that can fail first.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn unmap_checked(
        &mut self,
        range: VirtRange,
        unmapper: &mut Unmapper<'s, P>,
    ) -> Result<(), Error> {
        let Some(first) = self.first_in(range) else { return Ok(()) };
        let whole = first.range();
        let splits = usize::from(whole.start() < range.start() && range.end() < whole.end());
        if splits > 0 && self.mappings() >= self.core.limits.load().mappings {
            return Err(Error::MapCountLimit);
        }
        self.may_cut(range)?;
        let mut prepared = self.prepare(splits)?;
        self.unmap_from(Some(first), range, &mut prepared, unmapper);
        Ok(())
    }
}
