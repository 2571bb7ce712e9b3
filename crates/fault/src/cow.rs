//! Copy-on-write: the first write to a private page that other processes may map.
//!
//! The last process that maps the page keeps it; the others get a copy. Which process is last is decided
//! under the table's lock from the folio's counts alone. A new mapping of a page is made only from an entry
//! that maps it already. So a page mapped only by the caller's entries stays so while their table is locked.
//!
//! Memory is allocated without that lock, and meanwhile the others may unmap the page. Then it is exclusive,
//! and a device may get it, by a fast pin even after the table was locked again. So pins are looked for once
//! more after the entry was cleared: a pinned page stays.
//!
//! The contents are copied last, when the entry is cleared and flushed. An earlier copy could be out of date
//! though the entry is as it was: while a device has the page the program writes to it in place, and a
//! page-out that finds the pin takes the permission to write away again.

use crate::error::Refusal;
use crate::step::Step;
use quire_arch::{Entry, Leaf, LeafFlags, Level, Order, PagingFormat, Pfn, Pin, Platform, VirtAddr};
use quire_file::KeptFolio;
use quire_frame::{AllocRequest, FrameFlags, HeadGuard, Kind};
use quire_memcg::{OverLimit, UnevictableFolios};
use quire_pagetable::{FlushCause, Gather, LockedTable, Tables, Unmapper, page_of};
use quire_swap::SlotId;
use quire_sync::atomic::raw::Ordering;
use quire_vma::{VmFlags, VmaSnapshot};

/// Charges a new folio to the memcg of the program. If that is at its limit the folio is freed.
#[inline]
pub(crate) fn charge_new<P: Platform>(
    tables: &Tables<'_, P>,
    pin: &Pin<'_, P>,
    head: Pfn,
    order: Order,
) -> Result<(), OverLimit> {
    tables.memory().memcgs().programs().charge_new(pin, &tables.space().membership, head, order)
}

/// A reference to a page, which is not reused while no lock is held. A held folio is not split.
/// [`copy_on_write`] drops the reference; else the caller does.
#[must_use = "nothing else drops the reference"]
#[derive(Debug)]
pub struct HeldPage {
    pfn: Pfn,
    head: Pfn,
    order: Order,
}

impl HeldPage {
    /// The first frame of its folio, to which the reference is.
    #[inline]
    pub fn head(&self) -> Pfn {
        self.head
    }

    /// Drops the reference with what `gather` frees.
    fn put<P: Platform>(self, gather: &mut Gather<'_, P>) {
        gather.put(self.head, self.order);
    }
}

/// Whether a write through `leaf`, which does not allow it, needs a copy of the page.
#[inline]
pub fn must_copy<P: Platform>(
    tables: &Tables<'_, P>,
    locked: &LockedTable<'_, P>,
    index: usize,
    leaf: Leaf,
    vma: &VmaSnapshot,
) -> bool {
    if leaf.flags.intersects(LeafFlags::WRITE | LeafFlags::SPECIAL) || vma.flags.contains(VmFlags::SHARED) {
        return false;
    }
    !is_own(tables, locked, index, leaf.pfn)
}

/// Whether the folio of the private page `pfn`, which entry `index` maps, is exclusive to this process.
pub fn is_own<P: Platform>(
    tables: &Tables<'_, P>,
    locked: &LockedTable<'_, P>,
    index: usize,
    pfn: Pfn,
) -> bool {
    let folio = tables.memory().frames().folios().lock_head(pfn);
    if folio.is_exclusive() || leaves_cache_to(tables, &folio) || is_own_in_cache(tables, &folio) {
        return true;
    }
    if !folio.folio().is_large() {
        return folio.claim(1);
    }
    // Entries of this table that map a page of the folio. If part of it was moved behind another table
    // they are too few.
    let head = folio.folio().head();
    let entries = P::Paging::entries(Level::PTE);
    let first = (index as u64).saturating_sub(pfn.0 - head.0) as usize;
    let last = (index + folio.folio().pages_from(pfn) as usize).min(entries);
    let mapped = (first..last).filter(|&index| match locked.get(index) {
        Entry::Leaf(leaf) => leaf.pfn.0.wrapping_sub(head.0) < folio.folio().order().pages(),
        _ => false,
    });
    folio.claim(mapped.count() as u32)
}

/// Whether a folio of one page is exclusive to the program once it has left the swap cache, where no
/// entry names its slot any more, and is no longer marked as shared by name. If so, it has left.
#[inline]
fn leaves_cache_to<P: Platform>(tables: &Tables<'_, P>, folio: &HeadGuard<'_, P>) -> bool {
    let flags = folio.folio().frame().word().flags();
    let named = flags.intersects(FrameFlags::SWAP_CACHE | FrameFlags::SHARED_BY_NAME);
    let anonymous = folio.folio().kind() == Kind::Anonymous;
    named && anonymous && !folio.folio().is_large() && leave_cache_to(tables, folio, flags)
}

/// Whether a folio that a device has pinned is exclusive to the program though it is in the swap cache, as
/// long as it is being written: nothing else maps it, and no entry names its slots. It must not be copied.
#[inline]
fn is_own_in_cache<P: Platform>(tables: &Tables<'_, P>, folio: &HeadGuard<'_, P>) -> bool {
    let flags = folio.folio().frame().word().flags();
    let named = flags & (FrameFlags::SWAP_CACHE | FrameFlags::SHARED_BY_NAME);
    named == FrameFlags::SWAP_CACHE && folio.folio().may_be_pinned() && is_unnamed(tables, folio, flags)
}

#[cold]
fn is_unnamed<P: Platform>(tables: &Tables<'_, P>, folio: &HeadGuard<'_, P>, flags: FrameFlags) -> bool {
    let slot = SlotId::from_raw(folio.folio().frame().as_folio().slot());
    let alone = if folio.folio().is_large() {
        flags.contains(FrameFlags::ANONYMOUS_EXCLUSIVE)
    } else {
        folio.maps() == 1
    };
    alone && tables.memory().swap().counts().is_cached_only(slot, folio.folio().order().pages() as u32)
}

#[cold]
fn leave_cache_to<P: Platform>(tables: &Tables<'_, P>, folio: &HeadGuard<'_, P>, flags: FrameFlags) -> bool {
    let head = folio.folio().head();
    // Once it has left the cache only the mappings hold it.
    folio.maps() == 1
        && (!flags.contains(FrameFlags::SWAP_CACHE) || tables.memory().swap().cache().leave_if_unnamed(head))
        && (folio.is_exclusive() || tables.memory().frames().folios().forget_names(head))
}

/// Whether a device has the page pinned while it is in the swap cache: it must not be copied, and the check
/// is to be repeated.
pub(crate) fn is_pinned_and_cached<P: Platform>(tables: &Tables<'_, P>, pfn: Pfn) -> bool {
    let folio = tables.memory().frames().folio(pfn);
    let is_cached = folio.frame().word().flags().contains(FrameFlags::SWAP_CACHE);
    folio.may_be_pinned() && is_cached && !folio.is_in_file_cache()
}

/// Takes a reference to the page `pfn`, which an entry of a locked table maps. `None` if the refcount would
/// overflow: the access is retried.
pub fn hold_page<P: Platform>(tables: &Tables<'_, P>, pfn: Pfn) -> Option<HeldPage> {
    let folio = tables.memory().frames().folios().lock_head(pfn);
    let held = folio.folio().frame().get(1);
    held.then(|| HeldPage { pfn, head: folio.folio().head(), order: folio.folio().order() })
}

/// Gives the program a copy of a page of its own in the place of `held`, which entry `index` of `table` maps.
/// [`Step::LookAgain`], with nothing done, if that changed meanwhile or the page was pinned.
#[cold]
#[cfg_attr(debug_assertions, track_caller)]
pub fn copy_on_write<P: Platform>(
    tables: &Tables<'_, P>,
    held: HeldPage,
    (table, index): (Pfn, usize),
    vma: &VmaSnapshot,
    addr: VirtAddr,
) -> Result<Step, Refusal> {
    let mut unmapper = Unmapper::new(*tables, FlushCause::CopyOnWrite);
    let result = replace_by_copy(tables, &held, (table, index), vma, addr, unmapper.gather());
    held.put(unmapper.gather());
    unmapper.finish();
    result
}

#[cfg_attr(debug_assertions, track_caller)]
fn replace_by_copy<P: Platform>(
    tables: &Tables<'_, P>,
    held: &HeldPage,
    (table, index): (Pfn, usize),
    vma: &VmaSnapshot,
    addr: VirtAddr,
    gather: &mut Gather<'_, P>,
) -> Result<Step, Refusal> {
    let frames = tables.memory().frames();
    let pin = tables.pin();
    let request = AllocRequest::anonymous().uninitialised().kind(Kind::Anonymous);
    let copy = frames.allocate(&pin, request)?;
    charge_new(tables, &pin, copy, Order::ZERO)?;
    let _section = frames.epoch().enter(&pin);
    let locked = tables.lock(&pin, table, Level::PTE);
    let Some(kind) = take_old_page(tables, held, &locked, index, vma) else {
        drop(locked);
        tables.memory().memcgs().folios().release_unused(&pin, copy, Order::ZERO);
        return Ok(Step::LookAgain);
    };
    tables.space().flush(frames, &pin, page_of(addr), FlushCause::CopyOnWrite);
    // SAFETY: the copy is new and ours; the page is held, so it is not reused. It is still counted as mapped here, so
    // no other process may write to it.
    unsafe { frames.platform().copy_user(held.pfn, copy, Order::ZERO) };
    let new = vma.new_page(addr);
    new.init_page(frames.known(copy));
    let flags = new.leaf | LeafFlags::ACCESSED | LeafFlags::DIRTY;
    locked.replace(index, Entry::Leaf(Leaf { pfn: copy, flags }));
    tables.memory().memcgs().folios().list_new(&pin, copy, new.locked);
    if kind.is_of_file() {
        // Under the lock: when the copy is unmapped, it is subtracted as an anonymous page.
        tables.space().residency.file_page_made_anonymous(kind);
    }
    drop(locked);
    gather.unmap_flushed(held.pfn, 1);
    Ok(Step::Done)
}

/// Clears entry `index` of the locked table and returns the kind of the page that it mapped, if that is the
/// one that was copied and no device has it.
fn take_old_page<P: Platform>(
    tables: &Tables<'_, P>,
    held: &HeldPage,
    locked: &LockedTable<'_, P>,
    index: usize,
    vma: &VmaSnapshot,
) -> Option<Kind> {
    match locked.get(index) {
        Entry::Leaf(leaf) if leaf.pfn == held.pfn && !leaf.flags.contains(LeafFlags::WRITE) => {}
        _ => return None,
    }
    let folio = tables.memory().frames().folios().lock_head(held.pfn);
    // First empty, then the flush, then the copy: no CPU may still read the old page after another has
    // written to the new one.
    let raw = locked.entries[index].swap(0, Ordering::AcqRel);
    // Who has pinned a page of a file's cache wants the file's.
    if !folio.folio().is_in_file_cache() && folio.folio().may_be_pinned_after_unmap() {
        // No write was allowed, so translations that are cached are right again.
        locked.entries[index].store(raw, Ordering::Release);
        return None;
    }
    if vma.is_locked() {
        // SAFETY: the VMA is held, and holds its open file.
        let stays = || unsafe { KeptFolio::<P>::stays(tables.memory().frames(), folio.folio().head()) };
        UnevictableFolios::of(tables.memory().memcgs().folios()).munlock(&tables.pin(), &folio, stays);
    }
    Some(folio.folio().kind())
}
