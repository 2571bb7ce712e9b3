//! The usual fault: a write to private memory where no page ever was, which gets a page of its own.
//!
//! It is found out before the fault is a value ([`VmFault`](crate::VmFault)): most of what that holds is of
//! no use here.

use crate::cow::charge_new;
use crate::error::{FaultError, Refusal};
use crate::step::Step;
use quire_arch::{Access, Entry, Leaf, LeafFlags, Level, Order, PagingFormat, Pfn, Pin, Platform, VirtAddr};
use quire_frame::{AllocRequest, Kind};
use quire_pagetable::{Found, NewPage, Tables, page_of};
use quire_sync::atomic::raw::Ordering;
use quire_thp::HugeControls;
use quire_vma::{SpaceCore, VmFlags, Vma};

/// The bottom table, and the index of its entry, that `access` to `addr` in `vma` is to fill with a new page
/// of private memory. `None` if it may need anything else. `found` is what leads to the page.
#[inline(always)]
pub(crate) fn place_of_new_page<P: Platform>(
    tables: &Tables<'_, P>,
    (found, addr): (Found, VirtAddr),
    access: Access,
    vma: &Vma,
    huge: &HugeControls,
) -> Option<(Pfn, usize)> {
    const ASKED: VmFlags = VmFlags::WRITE.union(VmFlags::SHARED).union(VmFlags::HUGETLB);
    let Found::Table(table) = found else { return None };
    let index = P::Paging::index(addr, Level::PTE);
    let is_none = tables.entries(table)[index].load(Ordering::Relaxed) == 0;
    if !is_none || access != Access::Write {
        return None;
    }
    let flags = vma.flags();
    let is_usual = flags & ASKED == VmFlags::WRITE
        && !huge.any_size(flags)
        && !vma.backing().is_opened()
        && vma.anon().is_some();
    is_usual.then_some((table, index))
}

/// Allocates and charges a page of private memory, which [`map_new_page`] maps or frees.
#[inline(always)]
pub(crate) fn allocate_new_page<P: Platform>(
    tables: &Tables<'_, P>,
    pin: &Pin<'_, P>,
) -> Result<Pfn, Refusal> {
    let request = AllocRequest::anonymous().kind(Kind::Anonymous);
    let pfn = tables.memory().frames().allocate_inline(pin, request)?;
    charge_new(tables, pin, pfn, Order::ZERO)?;
    Ok(pfn)
}

/// Maps the `new` page at `pfn` by entry `index` of `table`, which was none. [`Step::LookAgain`] if it is not
/// any more, or the table is dead.
// Always: as a call of its own it costs each fault forty instructions.
#[inline(always)]
pub(crate) fn map_new_page<P: Platform>(
    (tables, space): (&Tables<'_, P>, &SpaceCore),
    pin: &Pin<'_, P>,
    (table, index): (Pfn, usize),
    addr: VirtAddr,
    (pfn, new): (Pfn, NewPage),
) -> Result<Step, Refusal> {
    let memory = tables.memory();
    let refused = {
        let locked = tables.lock(pin, table, Level::PTE);
        let is_none = locked.entries[index].load(Ordering::Relaxed) == 0 && !locked.is_dead();
        // Under the lock, under which the page of a program that is killed was removed.
        if is_none && !space.is_killed() {
            tables.space().flush_discarded(memory.frames(), pin, page_of(addr));
            new.init_page(memory.frames().known(pfn));
            tables.space().residency.page_mapped(true);
            let flags = new.leaf | LeafFlags::ACCESSED | LeafFlags::DIRTY;
            locked.install(index, Entry::Leaf(Leaf { pfn, flags }));
            memory.memcgs().folios().list_new(pin, pfn, new.locked);
            return Ok(Step::Done);
        }
        if is_none { Err(FaultError::Killed.into()) } else { Ok(Step::LookAgain) }
    };
    memory.memcgs().folios().release_unused(pin, pfn, Order::ZERO);
    refused
}
