//! Swap readahead: pages that a program will probably need next are read while it waits for the one that it
//! needs now.
//!
//! Only asynchronous devices are read ahead; a synchronous one returns a page at once. On a rotational device
//! the window is an aligned block of its slots; else it is the surrounding pages of the VMA, ahead of a
//! sequential program. The number depends on how many of the pages read ahead before were used (as in Linux's
//! `swapin_nr_pages`).
//!
//! A page that is read ahead goes into the swap cache by the same insertion as any other, and is not mapped.
//! It stays under its folio lock until the device has completed the read. The thread that reaps the
//! completion unlocks it, since no thread waits for it
//! ([`SwapIo::read_unattended`](quire_swap::SwapIo::read_unattended)). MADV_WILLNEED reads in the same way, from
//! any device.

use arrayvec::ArrayVec;
use quire_arch::{Entry, Level, PAGE_SHIFT, PAGE_SIZE, PagingFormat, Platform, VirtAddr, VirtRange};
use quire_pagetable::{Found, Tables};
use quire_swap::SlotId;
use quire_vma::{READAHEAD_MOST, Vma};

/// Slots to read ahead.
pub(crate) type ReadaheadSlots = ArrayVec<SlotId, { READAHEAD_MOST as usize }>;

/// The slots that the entries of a window around `addr` name, in its mapping and in its table.
pub(crate) fn swapped_around<P: Platform>(
    tables: &Tables<'_, P>,
    vma: &Vma,
    (first, pages): (u64, u64),
    addr: VirtAddr,
) -> ReadaheadSlots {
    let mut ahead = ReadaheadSlots::new();
    let start = first << PAGE_SHIFT;
    let window = VirtRange::new(VirtAddr(start), VirtAddr(start.saturating_add(pages * PAGE_SIZE)));
    let window = window.intersect(vma.range()).intersect(P::Paging::table_range(addr, Level::PTE));
    if window.is_empty() {
        return ahead;
    }
    let Found::Table(table) = tables.lookup(addr) else { return ahead };
    let pin = tables.pin();
    let locked = tables.lock(&pin, table, Level::PTE);
    for (index, _) in Tables::<P>::pages(window) {
        if let Entry::Swap(entry) = locked.get(index) {
            let _ = ahead.try_push(SlotId::of(entry));
        }
    }
    ahead
}
