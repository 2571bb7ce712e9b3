//! The background step that collapses page tables into large leaves: what Linux's khugepaged does between two
//! sleeps.
//!
//! It goes through the spaces of the machine and their mappings in turn, and goes on the next time where it
//! stopped. Each block of a mapping that may have large leaves is looked at under the mmap lock held shared;
//! only one that fits the limits is worth the lock held exclusively, under which it is looked at again.

use crate::collapse::{CollapseError, CollapseLimits, huge_borders};
use crate::huge::{HugeUse, KhugepagedSetting};
use crate::mmap_writer::MmapWriter;
use crate::space::{Space, SpaceId};
use crate::spaces::{Cursor, Spaces};
use crate::table::Tables;
use core::mem;
use quire_arch::{Level, PAGE_SIZE, PagingFormat, Platform, VirtAddr};

/// What a step did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KhugepagedStep {
    /// Pages that were looked at.
    pub scanned: u64,
    /// Blocks that were collapsed.
    pub collapsed: u64,
    /// Whether there was no memory for a block: then Linux sleeps longer (`alloc_sleep_millisecs`).
    pub out_of_memory: bool,
}

impl<P: Platform> Spaces<P> {
    /// Looks at as many pages as `pages_to_scan` says, or at all spaces once if they have fewer, and
    /// collapses the blocks that fit its limits (`max_ptes_none`, `max_ptes_shared`; a block none of whose
    /// pages was used is left alone). Of two callers at once, the second does nothing. The caller is not
    /// pinned and holds no lock.
    pub fn khugepaged_step(&self) -> KhugepagedStep {
        let mut step = KhugepagedStep::default();
        let limit = u64::from(self.huge().khugepaged(KhugepagedSetting::PagesToScan));
        let (mut at, mut passed) = (self.take_cursor().at, 0);
        // Each space is visited at most once, but for the one that the step begins in the middle of.
        while step.scanned < limit && passed <= self.count() {
            let Some((space, from)) = self.space_at(at) else { break };
            passed += 1;
            let stopped = self.scan_space(&space, from, limit, &mut step);
            at = match stopped {
                Some(addr) => Some((space.id(), addr)),
                None => self.space_after(Some(&space)).map(|next| (next.id(), VirtAddr(0))),
            };
            if at.is_none() {
                self.count_full_scan();
            }
            if step.out_of_memory {
                break;
            }
        }
        self.put_cursor(at, step.collapsed);
        step
    }

    /// Times that all spaces were gone through (`full_scans`), and blocks that were collapsed
    /// (`pages_collapsed`).
    pub fn khugepaged_totals(&self) -> (u64, u64) {
        let _pin = self.platform().pin();
        let cursor = self.khugepaged().lock();
        (cursor.full_scans, cursor.collapsed)
    }

    fn take_cursor(&self) -> Cursor {
        let _pin = self.platform().pin();
        let mut cursor = self.khugepaged().lock();
        let at = mem::take(&mut cursor.at);
        Cursor { at, ..*cursor }
    }

    fn put_cursor(&self, at: Option<(SpaceId, VirtAddr)>, collapsed: u64) {
        let _pin = self.platform().pin();
        let mut cursor = self.khugepaged().lock();
        cursor.at = at;
        cursor.collapsed += collapsed;
    }

    fn count_full_scan(&self) {
        let _pin = self.platform().pin();
        self.khugepaged().lock().full_scans += 1;
    }

    /// The space where a scan goes on, or the first one if that is gone.
    fn space_at(&self, at: Option<(SpaceId, VirtAddr)>) -> Option<(Space<'_, P>, VirtAddr)> {
        let mut next = self.space_after(None);
        while let (Some(space), Some((id, addr))) = (&next, at) {
            if space.id() == id {
                return next.map(|space| (space, addr));
            }
            next = self.space_after(Some(space));
        }
        self.space_after(None).map(|space| (space, VirtAddr(0)))
    }

    /// Scans a space from `from` on, and returns where it stopped, if before the end.
    fn scan_space(
        &self,
        space: &Space<'_, P>,
        from: VirtAddr,
        limit: u64,
        step: &mut KhugepagedStep,
    ) -> Option<VirtAddr> {
        let limits = CollapseLimits {
            none: self.huge().khugepaged(KhugepagedSetting::MaxPtesNone),
            shared: self.huge().khugepaged(KhugepagedSetting::MaxPtesShared),
            must_be_used: true,
        };
        let mut at = from;
        while let Some(block) = space.next_block(at, step) {
            if step.scanned >= limit || step.out_of_memory {
                return Some(block);
            }
            step.scanned += P::Paging::entry_bytes(Level::PMD) / PAGE_SIZE;
            at = VirtAddr(block.0 + P::Paging::entry_bytes(Level::PMD));
            if space.is_collapsible(block, limits) {
                match MmapWriter::begin(self, space.core()).collapse_if_allowed(block, limits) {
                    Ok(true) => step.collapsed += 1,
                    Err(CollapseError::OutOfMemory(_)) => step.out_of_memory = true,
                    Ok(false) | Err(_) => {}
                }
            }
        }
        None
    }
}

impl<P: Platform> Space<'_, P> {
    /// The first block at or after `from` in a mapping that khugepaged may collapse. Mappings that it passes
    /// over count as one page.
    fn next_block(&self, from: VirtAddr, step: &mut KhugepagedStep) -> Option<VirtAddr> {
        let core = self.core();
        let _guard = core.mmap_lock.read(self.spaces.platform());
        // SAFETY: the mmap lock is held.
        let view = unsafe { core.vmas.view() };
        let mut at = from;
        loop {
            let entry = view.first_ending_after(at)?;
            // SAFETY: a VMA in the tree is live while the mmap lock is held.
            let facts = unsafe { entry.value.as_ref() }.facts();
            let orders = self.spaces.huge().policy().orders(
                HugeUse::Khugepaged,
                facts.flags,
                core.huge_disable.load(),
            );
            let (first, end) = huge_borders::<P>(at.max(entry.range.start()), entry.range.end());
            if facts.backing.is_anonymous() && facts.anon.is_some() && !orders.is_empty() && first < end {
                return Some(first);
            }
            step.scanned += 1;
            at = entry.range.end();
        }
    }

    /// Whether the block at `start` fits `limits` at this moment.
    fn is_collapsible(&self, start: VirtAddr, limits: CollapseLimits) -> bool {
        let _guard = self.core().mmap_lock.read(self.spaces.platform());
        let tables: Tables<'_, P> = self.tables();
        tables.find(start).is_some_and(|table| tables.check_collapse(table, limits).is_ok())
    }
}

impl<P: Platform> MmapWriter<'_, P> {
    /// Collapses the block at `start` if it is, still, in a mapping that khugepaged may collapse. Returns
    /// whether it did.
    fn collapse_if_allowed(
        &mut self,
        start: VirtAddr,
        limits: CollapseLimits,
    ) -> Result<bool, CollapseError> {
        let Some(vma) = self.find(start) else { return Ok(false) };
        let facts = vma.facts();
        let end = VirtAddr(start.0 + P::Paging::entry_bytes(Level::PMD));
        let orders = self.spaces.huge().policy().orders(
            HugeUse::Khugepaged,
            facts.flags,
            self.core.huge_disable.load(),
        );
        let fits = facts.backing.is_anonymous() && facts.anon.is_some() && end <= facts.range.end();
        if !fits || orders.is_empty() || self.tables().find(start).is_none() {
            return Ok(false);
        }
        self.collapse_block(vma, start, limits).map(|()| true)
    }
}
