//! `madvise` with MADV_WILLNEED.

use crate::caller::Caller;
use crate::error::Error;
use crate::spaces::HeldOpening;
use core::ops::ControlFlow;
use quire_arch::{Order, OrderSet, Platform, VirtRange};
use quire_fault::{Ahead, SwapIn};
use quire_pagetable::Walker;
use quire_swap::SlotId;
use quire_thp::HugeUse;
use quire_vma::{Backing, VmFlags, Vma};

/// Starts reading the swapped-out pages of `range`. Nothing is waited for, and nothing is mapped: a fault
/// on a page finds it in the swap cache. Where memory is short, or a device fails, the page stays swapped
/// out.
pub(crate) fn will_need<P: Platform>(caller: Caller<'_, P>, range: VirtRange) -> Result<(), Error> {
    let core = caller.core;
    let (mut at, mut hole, mut room) = (range.start(), false, true);
    while at < range.end() {
        // The mmap lock is released between VMAs, so that writers get their turn.
        let mappings = core.read_mappings(caller.spaces.platform());
        let next = mappings.first_ending_after(at);
        let vma = next.filter(|vma| vma.range().start() < range.end()).ok_or(Error::NotMapped)?;
        hole |= vma.range().start() > at;
        let part = vma.range().intersect(VirtRange::new(at, range.end()));
        at = part.end();
        let snapshot = vma.snapshot();
        // SAFETY: the VMA holds its opening, and stays while the mmap lock is held.
        let opening = unsafe { snapshot.backing.opening() };
        if let Some(opening) = opening {
            let held = HeldOpening::new(caller.spaces, opening);
            let first = snapshot.page_offset_at(part.start());
            // As in Linux, nothing is locked while the file is read.
            drop(mappings);
            held.read_ahead(caller.core, first..first.saturating_add(part.pages()));
            continue;
        }
        room = room && read_swapped(caller, vma, part).is_continue();
    }
    if hole { Err(Error::NotMapped) } else { Ok(()) }
}

/// The same for `part` of one mapping, whose folios are read as large as a fault could have them. Stops
/// when memory is short.
fn read_swapped<P: Platform>(caller: Caller<'_, P>, vma: &Vma, part: VirtRange) -> ControlFlow<()> {
    let snapshot = vma.snapshot();
    // As in Linux: of a file's mapping only the file is read.
    if snapshot.backing != Backing::ANONYMOUS || snapshot.flags.contains(VmFlags::SHARED) {
        return ControlFlow::Continue(());
    }
    let orders = if caller.spaces.swap().technique().leaves_when_mapped() {
        let policy = caller.spaces.huge().policy();
        policy.orders(HugeUse::Fault, snapshot.flags, caller.core.huge_disable.load())
    } else {
        OrderSet::EMPTY
    };
    let mut from = part.start();
    while let Some(run) = Walker::new(&caller.tables()).first_swapped(VirtRange::new(from, part.end())) {
        let mut nth = 0;
        while nth < run.pages {
            if caller.core.is_killed() {
                return ControlFlow::Break(());
            }
            let (slot, addr) = (SlotId::of(run.entry).plus(nth), run.page(nth));
            let fits = |order: &Order| {
                slot.number().is_multiple_of(order.pages())
                    && addr.0.is_multiple_of(order.bytes())
                    && nth + order.pages() <= run.pages
            };
            let orders = orders.iter().find(fits).map_or(OrderSet::EMPTY, |order| orders.up_to(order));
            match SwapIn::new(caller.spaces.memory(), &caller.core.tables.membership).begin_ahead(
                slot,
                orders,
                Ahead::Wanted,
            ) {
                Ok(pages) => nth += pages,
                Err((cause, need)) if caller.spaces.direct_reclaim().free_some(cause, need) => {}
                Err(_) => return ControlFlow::Break(()),
            }
        }
        from = run.page(run.pages);
    }
    ControlFlow::Continue(())
}
