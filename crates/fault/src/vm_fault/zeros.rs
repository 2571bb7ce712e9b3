//! A zero-filled page that one entry names is swapped in as a new page: there is nothing to read, nothing to
//! wait for, and no race in the cache. The frame is allocated before the table is locked; under its lock the
//! slot is freed and the page mapped.

use super::VmFault;
use crate::swap_in::SwapIn;
use core::fmt;
use quire_arch::{Access, Entry, Leaf, LeafFlags, Level, Order, PagingFormat, Pfn, Pin, Platform, SwapEntry};
use quire_frame::{AllocRequest, Kind, VmEvent};
use quire_memcg::{MemcgId, MemcgStat};
use quire_pagetable::{LockedTable, MemoryCore, Tables};
use quire_swap::SlotId;
use quire_sync::atomic::raw::Ordering;

/// A zeroed frame for an entry, charged for its slot. It is freed if it is not needed.
pub(crate) struct Zeros<'s, 'p, P: Platform> {
    memory: &'s MemoryCore<P>,
    pin: &'s Pin<'p, P>,
    slot: SlotId,
    /// The slot's.
    memcg: MemcgId,
    frame: Option<Pfn>,
}

impl<P: Platform> Drop for Zeros<'_, '_, P> {
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.memory.memcgs().folios().release_unused(self.pin, frame, Order::ZERO);
        }
    }
}

impl<P: Platform> fmt::Debug for Zeros<'_, '_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zeros").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl<P: Platform> VmFault<'_, P> {
    /// A frame for what `entry` names, if that is a zero-filled page that nothing else names. Also `None` if
    /// memory is short, or if more than a page might be swapped in at once: then it is swapped in as any
    /// other page.
    #[cold]
    pub(crate) fn zeros_for<'s, 'p>(
        &self,
        memory: &'s MemoryCore<P>,
        pin: &'s Pin<'p, P>,
        entry: SwapEntry,
    ) -> Option<Zeros<'s, 'p, P>> {
        if self.swapped.is_some() || !self.orders().is_empty() || self.space.is_killed() {
            return None;
        }
        let slot = SlotId::of(entry);
        let seen = MemcgId::from_bits(memory.swap().cache().zeros(slot)?);
        let frames = memory.frames();
        let frame = frames.allocate(pin, AllocRequest::anonymous().kind(Kind::Anonymous)).ok()?;
        let swap_in = SwapIn::new(memory, &self.space.tables.membership);
        let Ok(memcgs) = swap_in.charge_for_slot(pin, (slot, seen), Order::ZERO) else {
            memory.memcgs().folios().release_unused(pin, frame, Order::ZERO);
            return None;
        };
        frames.known(frame).as_folio().set_memcg(memcgs.charged.get());
        Some(Zeros { memory, pin, slot, memcg: memcgs.of_slot, frame: Some(frame) })
    }

    /// Maps the frame in place of entry `index`, if that still names the slot, and the slot is unchanged.
    /// Returns whether it did.
    pub(crate) fn map_zeros(
        &self,
        tables: &Tables<'_, P>,
        locked: &LockedTable<'_, P>,
        (index, entry): (usize, SwapEntry),
        zeros: &mut Zeros<'_, '_, P>,
    ) -> bool {
        let memory = tables.memory();
        let Some(frame) = zeros.frame.filter(|_| SlotId::of(entry) == zeros.slot) else { return false };
        let Some(shadow) = memory.swap().cache().take_zeros(zeros.slot, zeros.memcg.get()) else {
            return false;
        };
        zeros.frame = None;
        let new = self.vma.new_page(self.addr);
        new.init_page(memory.frames().known(frame));
        let mut flags = new.leaf | LeafFlags::ACCESSED;
        flags.set(LeafFlags::DIRTY, self.access == Access::Write);
        let leaf = P::Paging::encode(Entry::Leaf(Leaf { pfn: frame, flags }), Level::PTE);
        // Release: a walker that reads it sees the page filled. The entry was live and is again.
        locked.entries[index].store(leaf, Ordering::Release);
        tables.space().residency.swap_gone(1);
        tables.space().residency.anonymous_mapped(1);
        // Under the lock: the page cannot be unmapped before it is on a list.
        memory.swap().io().count_pages(frame, VmEvent::SwpinZero, MemcgStat::SwpinZero);
        SwapIn::new(memory, &tables.space().membership).note_major(zeros.pin, frame, shadow);
        true
    }
}
