//! Taking mappings away.

use super::{Prepared, Section, clip_end, clip_start};
use crate::cpus::FlushCause;
use crate::gather::Gather;
use crate::rmap::Family;
use crate::table::Hole;
use crate::vma::VmFlags;
use quire_arch::{PagingFormat, Platform, VirtAddr, VirtRange};

impl<'s, P: Platform> Section<'s, P> {
    /// Unmaps `range`: mappings, pages, tables and commit charges. Cannot fail: a VMA for the case that the range is
    /// inside of one was prepared ([`vmas_to_unmap`](Self::vmas_to_unmap)).
    pub(crate) fn unmap(&mut self, range: VirtRange, prepared: &mut Prepared<'_, P>) {
        let mut gather = Gather::new(self.spaces, self.core, FlushCause::Unmap);
        self.unmap_into(range, prepared, None, &mut gather);
        gather.finish();
    }

    /// The same with the caller's gather; and with the caller's hold on the family of all mappings in `range`, if it has one.
    pub(crate) fn unmap_into(
        &mut self,
        range: VirtRange,
        prepared: &mut Prepared<'_, P>,
        family: Option<&Family<'s, P>>,
        gather: &mut Gather<'s, P>,
    ) {
        let Some(removed) = self.remove_mappings(range, prepared, family) else { return };
        let below = self.last_starting_before(range.start()).map_or(VirtAddr(0), |vma| vma.range().end());
        let above = self
            .first_ending_after(removed.start())
            .map_or(P::Paging::table_range(VirtAddr(0), P::Paging::root_level()).end(), |vma| {
                vma.range().start()
            });
        self.tables().unmap(removed, Hole(VirtRange::new(below, above)), gather);
    }

    /// Takes the mappings in `range` out of the tree and answers the smallest range that holds them.
    fn remove_mappings(
        &mut self,
        range: VirtRange,
        prepared: &mut Prepared<'_, P>,
        family: Option<&Family<'s, P>>,
    ) -> Option<VirtRange> {
        let mut removed: Option<VirtRange> = None;
        let mut uncharged = 0;
        while let Some(vma) = self.first_in(range) {
            self.lock_vma(vma);
            let facts = vma.facts();
            let part = facts.range.intersect(range);
            removed = Some(removed.map_or(part, |before| VirtRange::new(before.start(), part.end())));
            self.core.usage.unmap(facts.flags, part.pages());
            if facts.flags.contains(VmFlags::ACCOUNT) {
                uncharged += part.pages();
            }
            let before = clip_end(facts, part.start());
            let after = clip_start(facts, part.end());
            let held;
            let family = match family {
                Some(family) => family,
                None => {
                    held = self.hold_family([facts.anon]);
                    &held
                }
            };
            match (before.range.is_empty(), after.range.is_empty()) {
                (true, true) => self.remove_vma(vma, family),
                (false, true) => self.set_vma(vma, before, family),
                (true, false) => self.set_vma(vma, after, family),
                (false, false) => {
                    self.set_vma(vma, before, family);
                    self.insert_vma(after, prepared, family);
                }
            }
        }
        if uncharged > 0 {
            self.spaces.commit().release(uncharged);
        }
        removed
    }

    /// Unmaps every mapping: the exit of the space.
    pub(crate) fn unmap_everything(&mut self) {
        let mut uncharged = 0;
        let mut gather = Gather::new(self.spaces, self.core, FlushCause::Exit);
        let ends = (self.tree.first(), self.tree.last());
        while let Some(entry) = self.tree.first() {
            let vma = self.vma(entry.value);
            self.lock_vma(vma);
            let facts = vma.facts();
            self.core.usage.unmap(facts.flags, facts.range.pages());
            if facts.flags.contains(VmFlags::ACCOUNT) {
                uncharged += facts.range.pages();
            }
            // No walker of the rmap comes here any more, so the tables may go.
            let family = self.hold_family([facts.anon]);
            self.remove_vma(vma, &family);
        }
        self.tree.clear();
        self.spaces.commit().release(uncharged);
        if let (Some(first), Some(last)) = ends {
            let all = VirtRange::new(first.range.start(), last.range.end());
            self.tables().unmap(all, Hole::everything(), &mut gather);
        }
        gather.finish();
    }
}
