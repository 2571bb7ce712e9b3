//! Collapsing a block of a mapping.

use crate::mmap_writer::MmapWriter;
use crate::spaces::Spaces;
use core::ptr::NonNull;
use quire_arch::{Level, Order, OrderSet, PagingFormat, Platform, VirtAddr, VirtRange};
use quire_fault::Need;
use quire_file::{CachedFile, NewFolioOrders, OnlyRead, OpenFile, PageIndex};
use quire_frame::{AllocError, VmEvent};
use quire_pagetable::{FlushCause, Found, HugeSlot, Tables, Unmapper};
use quire_thp::{Collapse, CollapseError, CollapseLimits, HugeUse, NewFolio, Presence, is_huge_disabled};
use quire_vma::{SpaceCore, VmFlags, Vma, VmaSnapshot};

/// Attempts to charge a folio, as Linux makes with direct reclaim between them.
pub(crate) const ATTEMPTS: u32 = 16;

/// The file that a VMA maps, if it is one that is open.
///
/// # Safety
///
/// The VMA is one of a machine of this platform, and holds its opening as long as the result is used.
pub(crate) unsafe fn file_of<'f, P: Platform>(vma: &VmaSnapshot) -> Option<&'f CachedFile<P>> {
    // SAFETY: the VMA holds its opening (caller).
    let opening = unsafe { vma.backing.opening() }?;
    // SAFETY: VMAs name openings of their machine's files only, which live as long as these.
    Some(unsafe { OpenFile::<P, Vma>::of(NonNull::from(opening)) }.file())
}

/// The orders to which blocks of `vma`, which maps an open file, may be collapsed. The mmap lock is held.
fn file_collapse_orders<P: Platform>(
    spaces: &Spaces<P>,
    core: &SpaceCore,
    vma: &VmaSnapshot,
    wanted_by: HugeUse,
) -> OrderSet {
    // SAFETY: the VMA is in the tree (caller).
    let file = unsafe { file_of::<P>(vma) };
    let (Some(file), Some(first)) = (file, PageIndex::new(vma.page_offset)) else { return OrderSet::EMPTY };
    if !file.is_shmem() {
        return read_only_file_orders(spaces, core, (vma, file), wanted_by);
    }
    let is_forced = wanted_by == HugeUse::Collapse;
    let disable = core.huge_disable.load();
    let is_refused = if is_forced {
        spaces.huge().policy().orders(wanted_by, vma.flags, disable).is_empty()
    } else {
        is_huge_disabled(vma.flags, disable) || vma.flags.intersects(VmFlags::SPECIAL)
    };
    if is_refused || Tables::<P>::huge_order() != Some(Order::PMD) {
        return OrderSet::EMPTY;
    }
    let is_advised = vma.flags.contains(VmFlags::HUGEPAGE);
    vma.aligned_orders(NewFolioOrders::of(file).collapsed(first, is_advised, is_forced))
}

/// The orders that blocks of `vma` may be collapsed to, or that smaps shows, as it maps `file`, which is not
/// shared memory (Linux's `file_thp_enabled`). Any such file is a regular one. The mmap lock is held.
pub(crate) fn read_only_file_orders<P: Platform>(
    spaces: &Spaces<P>,
    core: &SpaceCore,
    (vma, file): (&VmaSnapshot, &CachedFile<P>),
    wanted_by: HugeUse,
) -> OrderSet {
    if !spaces.huge().read_only_files()
        || OnlyRead::of(file).is_open_for_writing()
        || Tables::<P>::huge_order() != Some(Order::PMD)
    {
        return OrderSet::EMPTY;
    }
    let disable = core.huge_disable.load();
    vma.aligned_orders(spaces.huge().policy().read_only_file_orders(wanted_by, vma.flags, disable))
}

/// The orders to which blocks of `vma` may be collapsed: none unless it is private anonymous memory with an
/// anon_vma, or maps shared memory, or a file that none has open for writing. The mmap lock is held.
pub(crate) fn collapse_orders<P: Platform>(
    spaces: &Spaces<P>,
    core: &SpaceCore,
    vma: &VmaSnapshot,
    wanted_by: HugeUse,
) -> OrderSet {
    if vma.backing.is_opened() {
        return file_collapse_orders(spaces, core, vma, wanted_by);
    }
    if !vma.backing.is_anonymous() || !vma.anon.is_some() {
        return OrderSet::EMPTY;
    }
    spaces.huge().policy().orders(wanted_by, vma.flags, core.huge_disable.load())
}

/// Whether the aligned block at `start` is in `vma`, and may be collapsed.
pub(crate) fn may_collapse<P: Platform>(
    spaces: &Spaces<P>,
    core: &SpaceCore,
    vma: &VmaSnapshot,
    start: VirtAddr,
    wanted_by: HugeUse,
) -> bool {
    VirtRange::from_len(start, P::Paging::entry_bytes(Level::PMD))
        .is_some_and(|block| vma.range.covers(block))
        && !collapse_orders(spaces, core, vma, wanted_by).is_empty()
}

/// A folio for the block at `start`. Where the memcg of the program has no room for it pages are
/// reclaimed there, as Linux does, and no program is killed.
#[cfg_attr(debug_assertions, track_caller)]
fn allocate_with_room<'s, P: Platform>(
    spaces: &Spaces<P>,
    collapse: &Collapse<'s, P>,
    start: VirtAddr,
) -> Result<NewFolio<'s, P>, CollapseError> {
    let pages = u64::from(Tables::<P>::huge_pages());
    let mut left = ATTEMPTS;
    collapse.allocate(start, |over| {
        left -= 1;
        left > 0 && spaces.direct_reclaim().free_some(AllocError::OutOfMemory, Need::Memcg(over, pages))
    })
}

/// Counts a block for which there was no folio, also after a reclaim.
pub(crate) fn count_without_folio<P: Platform>(spaces: &Spaces<P>) {
    spaces.frames().events().add(&spaces.platform().pin(), VmEvent::ThpCollapseAllocFailed, 1);
}

/// Puts the folio `new` in the place of the pages of its block, which lies in `vma`, private anonymous
/// memory with an anon_vma. A block that one leaf maps already is left as it is.
fn replace_block<'s, P: Platform>(
    writer: &mut MmapWriter<'s, P>,
    vma: &'s Vma,
    limits: CollapseLimits,
    new: NewFolio<'_, P>,
) -> Result<(), CollapseError> {
    if writer.core.is_killed() {
        // Its pages may have been removed; none is filled with zeros again. The mmap lock keeps a removal
        // away.
        return Err(CollapseError::Unfit);
    }
    let (tables, start) = (writer.tables(), new.start());
    let table = match tables.lookup(start) {
        Found::Huge(_) => return Ok(()),
        Found::Nothing => return Err(CollapseError::NoTable),
        Found::Table(table) => table,
    };
    let pmd = tables.find_pmd(start).ok_or(CollapseError::Unfit)?;
    let (collapse, snapshot) = (Collapse(tables), vma.snapshot());
    writer.lock_vma(vma);
    let _family = writer.lock_rmap(snapshot.backing, [snapshot.anon]);
    if collapse.check(table, limits)? == Presence::Partial {
        // Pages that were there, or were swapped in for it, were reclaimed since, or guards were installed.
        return Err(CollapseError::Unfit);
    }
    let slot = HugeSlot { table: pmd, index: P::Paging::index(start, Level::PMD) };
    let mut unmapper = Unmapper::new(writer.tables(), FlushCause::Collapse);
    let result = collapse.replace_by_leaf(slot, table, new, &snapshot.new_page(start), unmapper.gather());
    unmapper.finish();
    result.inspect(|()| writer.spaces.thp().count_collapsed())
}

/// Collapses the aligned block at `start`, which lies in `vma`, private anonymous memory with an
/// anon_vma, for a program's own request. A block that one leaf maps already is left as it is. Returns
/// [`Presence::Partial`] with a folio in `new` where pages are to be swapped in first: the next call goes
/// on with that.
pub(crate) fn collapse_block<'s, P: Platform>(
    writer: &mut MmapWriter<'s, P>,
    vma: &'s Vma,
    start: VirtAddr,
    new: &mut Option<NewFolio<'s, P>>,
) -> Result<Presence, CollapseError> {
    let folio = match new.take().filter(|new| new.start() == start) {
        Some(folio) => folio,
        None => {
            if writer.core.is_killed() {
                return Err(CollapseError::Unfit);
            }
            let collapse = Collapse(writer.tables());
            let Some(presence) = collapse.check_block(start, CollapseLimits::NONE)? else {
                return Ok(Presence::Whole);
            };
            let folio = allocate_with_room(writer.spaces, &collapse, start)?;
            if presence == Presence::Partial {
                *new = Some(folio);
                return Ok(Presence::Partial);
            }
            folio
        }
    };
    replace_block(writer, vma, CollapseLimits::NONE, folio).map(|()| Presence::Whole)
}

/// Puts the folio `new` in the place of the pages of its block, if that is still in a mapping that
/// khugepaged may collapse. Returns whether it did.
pub(crate) fn collapse_if_allowed<P: Platform>(
    writer: &mut MmapWriter<'_, P>,
    limits: CollapseLimits,
    new: NewFolio<'_, P>,
) -> Result<bool, CollapseError> {
    let Some(vma) = writer.find(new.start()) else { return Ok(false) };
    let allowed = may_collapse(writer.spaces, writer.core, &vma.snapshot(), new.start(), HugeUse::Khugepaged);
    // Another mapping may be there by now.
    let is_private = vma.snapshot().backing.is_anonymous();
    if !allowed || !is_private || writer.tables().find(new.start()).is_none() {
        return Ok(false);
    }
    replace_block(writer, vma, limits, new).map(|()| true)
}
