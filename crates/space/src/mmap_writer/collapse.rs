//! Collapsing a block of a mapping.

use super::MmapWriter;
use quire_arch::{Level, PagingFormat, Platform, VirtAddr};
use quire_frame::AllocError;
use quire_memcg::MemcgEvent;
use quire_pagetable::{FlushCause, Found, Gather, HugeSlot, Tables};
use quire_paging::Need;
use quire_rmap::Vma;
use quire_thp::HugeUse;
use quire_thp::{Collapse, CollapseError, CollapseLimits};

/// Attempts to charge a folio, as Linux makes with direct reclaim between them.
const ATTEMPTS: u32 = 16;

impl<'s, P: Platform> MmapWriter<'s, P> {
    /// Collapses the aligned block at `start`, which lies in `vma`, private anonymous memory with an
    /// anon_vma. A block that one leaf maps already is left as it is.
    pub(crate) fn collapse_block(
        &mut self,
        vma: &'s Vma,
        start: VirtAddr,
        limits: CollapseLimits,
    ) -> Result<(), CollapseError> {
        if self.core.is_killed() {
            // Its pages may have been removed; none is filled with zeros again. The mmap lock keeps a removal
            // away.
            return Err(CollapseError::Unfit);
        }
        let tables = self.tables();
        let table = match tables.lookup(start) {
            Found::Huge(_) => return Ok(()),
            Found::Nothing => return Err(CollapseError::NoTable),
            Found::Table(table) => table,
        };
        let Some((order, pmd)) = Tables::<P>::huge_order().zip(tables.find_pmd(start)) else {
            return Err(CollapseError::Unfit);
        };
        let (collapse, snapshot) = (Collapse(tables), vma.snapshot());
        // A first check is cheap if it fails.
        collapse.check(table, limits)?;
        self.lock_vma(vma);
        let _family = self.lock_anon_vmas([snapshot.anon]);
        collapse.check(table, limits)?;
        let (head, deposit) = collapse.allocate(start, order)?;
        let slot = HugeSlot { table: pmd, index: P::Paging::index(start, Level::PMD) };
        let mut gather = Gather::new(self.spaces.memory(), &self.core.tables, FlushCause::Collapse);
        let result =
            collapse.replace_by_leaf(slot, table, (head, deposit), &snapshot.new_page(start), &mut gather);
        self.tables().finish(&mut gather);
        result
    }

    /// The same for a program's own request: where its memcg has no room for the folio, pages are reclaimed
    /// there, as Linux does.
    pub(crate) fn collapse_with_room(&mut self, vma: &'s Vma, start: VirtAddr) -> Result<(), CollapseError> {
        let pages = u64::from(Tables::<P>::huge_pages());
        let mut attempt = 1;
        loop {
            let over = match self.collapse_block(vma, start, CollapseLimits::NONE) {
                Err(CollapseError::OverLimit(over)) => over,
                // Pages of the block itself were reclaimed. The next call swaps them in.
                Err(CollapseError::Swapped) if attempt > 1 => return Err(CollapseError::Busy),
                result => return result,
            };
            let need = Need::Memcg(over, pages);
            if attempt == ATTEMPTS || !self.spaces.free_some(AllocError::OutOfMemory, need) {
                return Err(CollapseError::OverLimit(over));
            }
            attempt += 1;
        }
    }

    /// Collapses the block at `start` if it is still in a mapping that khugepaged may collapse. Returns
    /// whether it did.
    pub(crate) fn collapse_if_allowed(
        &mut self,
        start: VirtAddr,
        limits: CollapseLimits,
    ) -> Result<bool, CollapseError> {
        let Some(vma) = self.find(start) else { return Ok(false) };
        let snapshot = vma.snapshot();
        let end = VirtAddr(start.0 + P::Paging::entry_bytes(Level::PMD));
        let orders = self.spaces.huge().policy().orders(
            HugeUse::Khugepaged,
            snapshot.flags,
            self.core.huge_disable.load(),
        );
        let fits = snapshot.backing.is_anonymous() && snapshot.anon.is_some() && end <= snapshot.range.end();
        if !fits || orders.is_empty() || self.tables().find(start).is_none() {
            return Ok(false);
        }
        let result = self.collapse_block(vma, start, limits);
        if let Err(CollapseError::OverLimit(over)) = result
            && let Some(kept) = self.spaces.memcgs().keep(over)
        {
            // No reclaim counts it.
            self.spaces.memcgs().count(kept.id(), MemcgEvent::Max, 1);
        }
        result.map(|()| true)
    }
}
