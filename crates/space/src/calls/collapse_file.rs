//! Collapsing a block of shared memory: first in its file, with nothing locked; then in the mapping.

use crate::caller::Caller;
use crate::calls::collapse::{ATTEMPTS, count_without_folio, file_of, may_collapse};
use crate::mmap_writer::MmapWriter;
use crate::spaces::HeldOpening;
use quire_arch::{Entry, Leaf, LeafFlags, Level, Order, PagingFormat, Pfn, Platform, VirtAddr};
use quire_fault::Need;
use quire_file::{Lookup, PageIndex};
use quire_frame::{AllocError, VmEvent};
use quire_pagetable::{FlushCause, Found, HugeLeaves, Tables, Unmapper, Zap};
use quire_thp::{CollapseError, CollapseLimits, HugeUse, Presence};
use quire_vma::{VmFlags, Vma};

/// A block of a file, which is held.
pub(crate) struct BlockOfFile<'s, P: Platform> {
    pub(crate) held: HeldOpening<'s, P>,
    pub(crate) start: PageIndex,
}

impl<'s, P: Platform> BlockOfFile<'s, P> {
    /// What the aligned block at `start` maps, if it may be collapsed and is of an open file.
    pub(crate) fn find(caller: Caller<'s, P>, start: VirtAddr, wanted_by: HugeUse) -> Option<Self> {
        let (spaces, core) = (caller.spaces, caller.core);
        let mappings = core.read_mappings(spaces.platform());
        let vma = mappings.first_ending_after(start)?.snapshot();
        if !may_collapse(spaces, core, &vma, start, wanted_by) {
            return None;
        }
        // SAFETY: the VMA holds its opening, and stays while the mmap lock is held.
        let opening = unsafe { vma.backing.opening() }?;
        let first = PageIndex::new(vma.page_offset_at(start))?;
        Some(Self { held: HeldOpening::new(spaces, opening), start: first })
    }
}

/// Makes one folio of what the aligned block at `start` maps, for a program's own request. As for private
/// memory, one reclaim is made for a block for which there is no free one, and no program is killed. The
/// caller maps it then. Without an error and a folio the mapping has changed.
#[inline(never)]
pub(crate) fn collapse_in_file<P: Platform>(
    caller: Caller<'_, P>,
    start: VirtAddr,
) -> Result<(), CollapseError> {
    let (spaces, order) = (caller.spaces, Order::PMD);
    let Some(block) = BlockOfFile::find(caller, start, HugeUse::Collapse) else { return Ok(()) };
    let mut has_reclaimed = false;
    loop {
        let mut left = ATTEMPTS;
        let make_room = &mut |need| {
            // What is read has attempts of its own.
            left -= u32::from(matches!(need, Need::Memcg(_, pages) if pages == order.pages()));
            left > 0 && spaces.direct_reclaim().free_some(AllocError::OutOfMemory, need)
        };
        match block.held.collapse(caller.core, (block.start, order), CollapseLimits::NONE, make_room) {
            Err(CollapseError::OutOfMemory(AllocError::OutOfMemory))
                if !has_reclaimed && spaces.direct_reclaim().free_for_wish(order) =>
            {
                has_reclaimed = true;
            }
            Err(CollapseError::OutOfMemory(cause)) => {
                count_without_folio(spaces);
                return Err(CollapseError::OutOfMemory(cause));
            }
            result => return result.map(|_| ()),
        }
    }
}

/// Makes place for one leaf for the aligned block at `start`, which lies in `vma`, a mapping of shared
/// memory: a table goes that has nothing but pages of the folio. If the call `installs` it the leaf is made,
/// else that is left to a fault. [`Presence::Partial`] if the file has no such folio for it, or another
/// thread has that locked.
#[inline(never)]
pub(crate) fn map_collapsed<'s, P: Platform>(
    writer: &mut MmapWriter<'s, P>,
    vma: &'s Vma,
    start: VirtAddr,
    installs: bool,
) -> Result<Presence, CollapseError> {
    if writer.core.is_killed() {
        return Err(CollapseError::Unfit);
    }
    let (tables, snapshot) = (writer.tables(), vma.snapshot());
    if let Found::Huge(_) = tables.lookup(start) {
        return Ok(Presence::Whole);
    }
    // SAFETY: the VMA is in the tree, and the mmap lock is held.
    let file = unsafe { file_of::<P>(&snapshot) };
    let (Some(file), Some(page)) = (file, PageIndex::new(snapshot.page_offset_at(start))) else {
        return Err(CollapseError::Unfit);
    };
    // No fault is in it, and none comes.
    writer.lock_vma(vma);
    let found = file.find(writer.spaces.memcgs(), page);
    let Lookup::Folio(folio) = found else { return Ok(Presence::Partial) };
    if Some(folio.order()) != Tables::<P>::huge_order() {
        return Ok(Presence::Partial);
    }
    if !maps_nothing_else(tables, start, folio.head()) {
        return Err(CollapseError::Refused);
    }
    let leaves = HugeLeaves::new(&tables);
    let place = if installs {
        // Where Linux has no table to deposit it refuses the block, too.
        let placed = leaves.place_huge(&tables.pin(), start).ok().flatten();
        Some(placed.ok_or(CollapseError::Refused)?)
    } else {
        None
    };
    let mut unmapper = Unmapper::new(tables, FlushCause::Discard);
    let is_locked = snapshot.flags.contains(VmFlags::LOCKED);
    let zap = if is_locked { Zap::LockedContents } else { Zap::Contents };
    unmapper.zap(Tables::<P>::huge_range(start), zap);
    unmapper.free_for_leaf(start);
    unmapper.finish();
    let Some((slot, deposit)) = place else { return Ok(Presence::Whole) };
    let mut flags = snapshot.leaf_flags() | LeafFlags::ACCESSED;
    if !snapshot.flags.contains(VmFlags::SHARED) {
        flags.remove(LeafFlags::WRITE);
    }
    let pin = tables.pin();
    let _section = tables.memory().frames().epoch().enter(&pin);
    let is_installed = {
        let locked = tables.lock_slot(&pin, slot);
        leaves.install_cached(&pin, (&locked, slot), Leaf { pfn: folio.head(), flags }, deposit)
    };
    if !is_installed {
        tables.memory().memcgs().folios().release_unused(&pin, deposit, Order::ZERO);
        return Err(CollapseError::Busy);
    }
    tables.memory().frames().events().add(&pin, VmEvent::ThpFileMapped, 1);
    Ok(Presence::Whole)
}

/// Whether the table for `start`, if there is one, maps each page of the folio at `head` in its place, or
/// nothing.
fn maps_nothing_else<P: Platform>(tables: Tables<'_, P>, start: VirtAddr, head: Pfn) -> bool {
    let pin = tables.pin();
    let _section = tables.memory().frames().epoch().enter(&pin);
    let Found::Table(table) = tables.lookup(start) else { return true };
    let locked = tables.lock(&pin, table, Level::PTE);
    (0..P::Paging::entries(Level::PTE)).all(|index| match locked.get(index) {
        Entry::None => true,
        Entry::Leaf(leaf) => {
            leaf.pfn == head.offset(index as u64) && !leaf.flags.contains(LeafFlags::SPECIAL)
        }
        _ => false,
    })
}
