//! The background step that collapses page tables into large leaves: what Linux's khugepaged does between two
//! sleeps.
//!
//! It scans the spaces of the machine and their mappings in turn, and continues the next time where it
//! stopped. If the space where it stopped exits, it continues with the one behind that. New spaces come to
//! the front of the list, so a round ends however many come, and each space has its turn. Each block of a
//! mapping that may have large leaves is checked under the mmap lock held shared. Only for a block within the
//! limits is the lock taken exclusively, and the block checked again.

use crate::calls::collapse::collapse_if_allowed;
use crate::calls::collapse::{collapse_orders, count_without_folio, may_collapse};
use crate::calls::collapse_file::{BlockOfFile, map_collapsed};
use crate::calls::swap_in::swap_in_block;
use crate::mmap_writer::MmapWriter;
use crate::space::Space;
use crate::spaces::Spaces;
use core::mem;
use quire_arch::{Level, Order, PAGE_SIZE, PagingFormat, Platform, VirtAddr};
use quire_fault::Need;
use quire_memcg::{MemcgEvent, OverLimit};
use quire_thp::{
    Collapse, CollapseError, CollapseLimits, HugeUse, KhugepagedSetting, NewFolio, Presence, huge_borders,
};

/// The result of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KhugepagedStep {
    /// Pages scanned. A space that is visited and a mapping that is skipped count as a page each.
    pub scanned: u64,
    /// Blocks that were collapsed.
    pub collapsed: u64,
    /// Full scans of all spaces that ended.
    pub rounds: u64,
    /// Whether there was no memory for a block: then Linux sleeps longer (`alloc_sleep_millisecs`).
    pub out_of_memory: bool,
}

/// Scans `pages_to_scan` pages, or all spaces once if they have fewer, and collapses the blocks within its
/// limits (`max_ptes_none`, `max_ptes_shared`; a block without referenced pages is skipped), of private and
/// of shared memory. Of two callers at once, the second does nothing. The caller is not pinned and holds no
/// lock.
pub fn khugepaged_step<P: Platform>(spaces: &Spaces<P>) -> KhugepagedStep {
    let mut step = KhugepagedStep::default();
    if !begin(spaces) {
        return step;
    }
    let limit = u64::from(spaces.huge().khugepaged(KhugepagedSetting::PagesToScan));
    let mut passed = 0;
    // Each space is visited at most once, except the one in the middle of which the step begins.
    while step.scanned < limit && passed <= spaces.count() && !step.out_of_memory {
        let Some((space, from)) = next_space(spaces, &mut step) else { break };
        passed += 1;
        match scan_space(spaces, &space, from, limit, &mut step) {
            Some(addr) => spaces.set_scanned(Some((space.place(), addr))),
            None => pass(spaces, &space, &mut step),
        }
    }
    end(spaces, step.collapsed);
    spaces.close_unused_files();
    step
}

/// Full scans of all spaces (`full_scans`), and collapsed blocks (`pages_collapsed`).
pub fn khugepaged_totals<P: Platform>(spaces: &Spaces<P>) -> (u64, u64) {
    let _pin = spaces.platform().pin();
    let scan = spaces.khugepaged().lock();
    (scan.full_scans, scan.collapsed)
}

/// Begins a step, unless one is under way.
fn begin<P: Platform>(spaces: &Spaces<P>) -> bool {
    let _pin = spaces.platform().pin();
    !mem::replace(&mut spaces.khugepaged().lock().running, true)
}

fn end<P: Platform>(spaces: &Spaces<P>, collapsed: u64) {
    let _pin = spaces.platform().pin();
    let mut scan = spaces.khugepaged().lock();
    scan.running = false;
    scan.collapsed += collapsed;
}

/// The space where the scan continues, and the address in it. A round that has come to its end is counted,
/// and the next one begins with the first space.
fn next_space<'s, P: Platform>(
    spaces: &'s Spaces<P>,
    step: &mut KhugepagedStep,
) -> Option<(Space<'s, P>, VirtAddr)> {
    if let Some((core, addr)) = spaces.hold_scanned() {
        return Some((Space::adopt(spaces, core), addr));
    }
    count_round(spaces, step);
    let first = Space::next(spaces, None)?;
    {
        let _pin = spaces.platform().pin();
        spaces.khugepaged().lock().in_round = true;
    }
    Some((first, VirtAddr(0)))
}

/// The scan has passed `space`.
fn pass<P: Platform>(spaces: &Spaces<P>, space: &Space<'_, P>, step: &mut KhugepagedStep) {
    let next = Space::next(spaces, Some(space));
    spaces.set_scanned(next.as_ref().map(|next| (next.place(), VirtAddr(0))));
    if next.is_none() {
        count_round(spaces, step);
    }
}

/// A round that had begun is over.
fn count_round<P: Platform>(spaces: &Spaces<P>, step: &mut KhugepagedStep) {
    let _pin = spaces.platform().pin();
    let mut scan = spaces.khugepaged().lock();
    if mem::take(&mut scan.in_round) {
        scan.full_scans += 1;
        step.rounds += 1;
    }
}

/// Scans a space from `from` on, and returns where it stopped, if before the end. The visit counts as a page:
/// spaces without mappings take time, too. The first block is scanned in any case, so each visit gets on.
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
    step.scanned += 1;
    let mut at = from;
    while let Some(block) = next_block(space, at, step) {
        if at > from && (step.scanned >= limit || step.out_of_memory) {
            return Some(block);
        }
        step.scanned += P::Paging::entry_bytes(Level::PMD) / PAGE_SIZE;
        at = VirtAddr(block.0 + P::Paging::entry_bytes(Level::PMD));
        if let Some(of_file) = BlockOfFile::find(space.caller(), block, HugeUse::Khugepaged) {
            collapse_of_file(space, (&of_file, block), limits, step);
            continue;
        }
        match prepare(space, block, limits) {
            Ok(Some(new)) => {
                let result = collapse_if_allowed(&mut MmapWriter::begin(spaces, space.core()), limits, new);
                step.collapsed += u64::from(result == Ok(true));
            }
            Err(CollapseError::OutOfMemory(_)) => {
                count_without_folio(spaces);
                step.out_of_memory = true;
            }
            Ok(None) | Err(_) => {}
        }
    }
    None
}

/// Makes one folio of a block of shared memory, which the space maps at `start`. As in Linux a block of which
/// the file has one already counts as collapsed each time; a table that maps it goes, and no leaf is made.
fn collapse_of_file<P: Platform>(
    space: &Space<'_, P>,
    (block, start): (&BlockOfFile<'_, P>, VirtAddr),
    limits: CollapseLimits,
    step: &mut KhugepagedStep,
) {
    let (spaces, core) = (space.spaces, space.core());
    if core.is_killed() {
        return;
    }
    let made = block.held.collapse(core, (block.start, Order::PMD), limits, &mut |need| {
        if let Need::Memcg(over, _) = need {
            count_refused(spaces, over);
        }
        false
    });
    let is_collapsed = match made {
        Ok(true) => true,
        Ok(false) => {
            let mut writer = MmapWriter::begin(spaces, core);
            let found = writer.find(start).filter(|vma| {
                let snapshot = vma.snapshot();
                snapshot.backing.is_opened()
                    && may_collapse(spaces, core, &snapshot, start, HugeUse::Khugepaged)
            });
            found.is_some_and(|vma| map_collapsed(&mut writer, vma, start, false) == Ok(Presence::Whole))
        }
        Err(CollapseError::OutOfMemory(_)) => {
            count_without_folio(spaces);
            step.out_of_memory = true;
            false
        }
        Err(_) => false,
    };
    step.collapsed += u64::from(is_collapsed);
}

/// No reclaim counts a charge that khugepaged does without.
fn count_refused<P: Platform>(spaces: &Spaces<P>, over: OverLimit) {
    if let Some(kept) = spaces.memcgs().tree().keep(over) {
        spaces.memcgs().counters().count(kept.id(), MemcgEvent::Max, 1);
    }
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
        let orders = collapse_orders(space.spaces, core, &snapshot, HugeUse::Khugepaged);
        let (first, end) = huge_borders::<P>(at.max(snapshot.range.start()), snapshot.range.end());
        if !orders.is_empty() && first < end {
            return Some(first);
        }
        step.scanned += 1;
        at = snapshot.range.end();
    }
}

/// A folio for the block at `start`, if it is within `limits` at this moment. Then its swapped-out pages are
/// swapped in; `None` if that fails, or if there is nothing to collapse.
fn prepare<'s, P: Platform>(
    space: &'s Space<'_, P>,
    start: VirtAddr,
    limits: CollapseLimits,
) -> Result<Option<NewFolio<'s, P>>, CollapseError> {
    let (spaces, core) = (space.spaces, space.core());
    let mappings = core.read_mappings(spaces.platform());
    let found = mappings.first_ending_after(start).filter(|vma| {
        let snapshot = vma.snapshot();
        snapshot.backing.is_anonymous()
            && may_collapse(spaces, core, &snapshot, start, HugeUse::Khugepaged)
            && !core.is_killed()
    });
    let Some(vma) = found else { return Ok(None) };
    let collapse = Collapse(space.caller().tables());
    let Some(presence) = collapse.check_block(start, limits)? else { return Ok(None) };
    let new = collapse.allocate(start, |over| {
        count_refused(spaces, over);
        false
    })?;
    let is_whole = presence == Presence::Whole || swap_in_block(space.caller(), vma, start);
    Ok(is_whole.then_some(new))
}
