//! The background step that collapses page tables into large leaves: what Linux's khugepaged does between two
//! sleeps.
//!
//! It scans the spaces of the machine and their mappings in turn, and continues the next time where it
//! stopped. Each block of a mapping that may have large leaves is checked under the mmap lock held shared.
//! Only for a block within the limits is the lock taken exclusively, and the block checked again.

use crate::mmap_writer::MmapWriter;
use crate::space::Space;
use crate::spaces::{Cursor, Spaces};
use core::mem;
use quire_arch::{Level, PAGE_SIZE, PagingFormat, Platform, VirtAddr, VirtRange};
use quire_pagetable::SpaceId;
use quire_thp::{CollapseError, CollapseLimits, HugeUse, KhugepagedSetting, huge_borders};

/// The result of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KhugepagedStep {
    /// Pages scanned.
    pub scanned: u64,
    /// Blocks that were collapsed.
    pub collapsed: u64,
    /// Whether there was no memory for a block: then Linux sleeps longer (`alloc_sleep_millisecs`).
    pub out_of_memory: bool,
}

/// Scans `pages_to_scan` pages, or all spaces once if they have fewer, and collapses the blocks within its
/// limits (`max_ptes_none`, `max_ptes_shared`; a block without referenced pages is skipped). Of two callers
/// at once, the second does nothing. The caller is not pinned and holds no lock.
pub fn khugepaged_step<P: Platform>(spaces: &Spaces<P>) -> KhugepagedStep {
    let mut step = KhugepagedStep::default();
    let limit = u64::from(spaces.huge().khugepaged(KhugepagedSetting::PagesToScan));
    let (mut at, mut passed) = (take_cursor(spaces).at, 0);
    // Each space is visited at most once, except the one in the middle of which the step begins.
    while step.scanned < limit && passed <= spaces.count() {
        let Some((space, from)) = space_at(spaces, at) else { break };
        passed += 1;
        let stopped = scan_space(spaces, &space, from, limit, &mut step);
        at = match stopped {
            Some(addr) => Some((space.id(), addr)),
            None => Space::next(spaces, Some(&space)).map(|next| (next.id(), VirtAddr(0))),
        };
        if at.is_none() {
            count_full_scan(spaces);
        }
        if step.out_of_memory {
            break;
        }
    }
    put_cursor(spaces, at, step.collapsed);
    step
}

/// Full scans of all spaces (`full_scans`), and collapsed blocks (`pages_collapsed`).
pub fn khugepaged_totals<P: Platform>(spaces: &Spaces<P>) -> (u64, u64) {
    let _pin = spaces.platform().pin();
    let cursor = spaces.khugepaged().lock();
    (cursor.full_scans, cursor.collapsed)
}

fn take_cursor<P: Platform>(spaces: &Spaces<P>) -> Cursor {
    let _pin = spaces.platform().pin();
    let mut cursor = spaces.khugepaged().lock();
    let at = mem::take(&mut cursor.at);
    Cursor { at, ..*cursor }
}

fn put_cursor<P: Platform>(spaces: &Spaces<P>, at: Option<(SpaceId, VirtAddr)>, collapsed: u64) {
    let _pin = spaces.platform().pin();
    let mut cursor = spaces.khugepaged().lock();
    cursor.at = at;
    cursor.collapsed += collapsed;
}

fn count_full_scan<P: Platform>(spaces: &Spaces<P>) {
    let _pin = spaces.platform().pin();
    spaces.khugepaged().lock().full_scans += 1;
}

/// The space where a scan continues, or the first one if that is gone.
fn space_at<P: Platform>(
    spaces: &Spaces<P>,
    at: Option<(SpaceId, VirtAddr)>,
) -> Option<(Space<'_, P>, VirtAddr)> {
    let mut next = Space::next(spaces, None);
    while let (Some(space), Some((id, addr))) = (&next, at) {
        if space.id() == id {
            return next.map(|space| (space, addr));
        }
        next = Space::next(spaces, Some(space));
    }
    Space::next(spaces, None).map(|space| (space, VirtAddr(0)))
}

/// Scans a space from `from` on, and returns where it stopped, if before the end.
fn scan_space<P: Platform>(
    spaces: &Spaces<P>,
    space: &Space<'_, P>,
    from: VirtAddr,
    limit: u64,
    step: &mut KhugepagedStep,
) -> Option<VirtAddr> {
    let limits = CollapseLimits {
        none: spaces.huge().khugepaged(KhugepagedSetting::MaxPtesNone),
        shared: spaces.huge().khugepaged(KhugepagedSetting::MaxPtesShared),
        swapped: spaces.huge().khugepaged(KhugepagedSetting::MaxPtesSwap),
        must_be_used: true,
    };
    let mut at = from;
    while let Some(block) = next_block(space, at, step) {
        if step.scanned >= limit || step.out_of_memory {
            return Some(block);
        }
        step.scanned += P::Paging::entry_bytes(Level::PMD) / PAGE_SIZE;
        at = VirtAddr(block.0 + P::Paging::entry_bytes(Level::PMD));
        if is_collapsible(space, block, limits) {
            match MmapWriter::begin(spaces, space.core()).collapse_if_allowed(block, limits) {
                Ok(true) => step.collapsed += 1,
                Err(CollapseError::OutOfMemory(_)) => step.out_of_memory = true,
                Ok(false) | Err(_) => {}
            }
        }
    }
    None
}

/// The first block at or after `from` in a mapping that khugepaged may collapse. A skipped mapping counts as
/// one page.
fn next_block<P: Platform>(
    space: &Space<'_, P>,
    from: VirtAddr,
    step: &mut KhugepagedStep,
) -> Option<VirtAddr> {
    let core = space.core();
    let mappings = core.read_mappings(space.spaces.platform());
    let mut at = from;
    loop {
        let snapshot = mappings.first_ending_after(at)?.snapshot();
        let orders = space.spaces.huge().policy().orders(
            HugeUse::Khugepaged,
            snapshot.flags,
            core.huge_disable.load(),
        );
        let (first, end) = huge_borders::<P>(at.max(snapshot.range.start()), snapshot.range.end());
        if snapshot.backing.is_anonymous() && snapshot.anon.is_some() && !orders.is_empty() && first < end {
            return Some(first);
        }
        step.scanned += 1;
        at = snapshot.range.end();
    }
}

/// Whether the block at `start` is within `limits` at this moment. Its swapped-out pages are swapped in
/// first.
fn is_collapsible<P: Platform>(space: &Space<'_, P>, start: VirtAddr, limits: CollapseLimits) -> bool {
    let mappings = space.core().read_mappings(space.spaces.platform());
    let Some(vma) = mappings.first_ending_after(start) else { return false };
    let block = VirtRange::new(start, VirtAddr(start.0 + P::Paging::entry_bytes(Level::PMD)));
    block.end() <= vma.range().end() && space.make_collapsible(vma, block, limits).is_ok()
}
