//! A page of zeros that one entry names is swapped in as a new page: there is nothing to read, so nothing to
//! wait for and no race in the cache. The frame is allocated before the table is locked; under its lock the
//! slot is freed and the page mapped.

use crate::resolve::Fault;
use crate::table::{LockedTable, Tables};
use core::fmt;
use quire_arch::{Access, Entry, Leaf, LeafFlags, Level, Order, PagingFormat, Pfn, Pin, Platform, SwapEntry};
use quire_frame::{AllocRequest, Kind, VmEvent};
use quire_memcg::{MemcgId, MemcgStat};
use quire_swap::SlotId;
use quire_sync::atomic::raw::Ordering;

/// A frame of zeros for an entry, charged to the memcg of its slot. It is freed if it is not needed.
pub(crate) struct Zeros<'s, 'p, P: Platform> {
    tables: Tables<'s, P>,
    pin: &'s Pin<'p, P>,
    slot: SlotId,
    group: MemcgId,
    frame: Option<Pfn>,
}

impl<P: Platform> Drop for Zeros<'_, '_, P> {
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.tables.spaces.memcgs().release_unused(self.pin, frame, Order::ZERO);
        }
    }
}

impl<P: Platform> fmt::Debug for Zeros<'_, '_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zeros").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl<'s, P: Platform> Tables<'s, P> {
    /// A frame for what `entry` names, if that is a page of zeros that nothing else names. None also where
    /// memory is short, or where more than a page might be swapped in at once: then it is swapped in as any
    /// other page.
    #[cold]
    pub(crate) fn zeros_for<'p>(
        &self,
        pin: &'s Pin<'p, P>,
        entry: SwapEntry,
        fault: &Fault<'_, P>,
    ) -> Option<Zeros<'s, 'p, P>> {
        if fault.swapped.is_some() || !self.orders(fault).is_empty() || self.core.is_killed() {
            return None;
        }
        let slot = SlotId::of(entry);
        let seen = MemcgId::from_bits(self.spaces.swap().zeros(slot)?);
        let frames = self.spaces.frames();
        let frame = frames.allocate(pin, AllocRequest::anonymous().kind(Kind::Anonymous)).ok()?;
        let Ok(group) = self.spaces.charge_for_slot(pin, (slot, seen), Order::ZERO) else {
            self.spaces.memcgs().release_unused(pin, frame, Order::ZERO);
            return None;
        };
        frames.known(frame).memcg().store(group.get(), Ordering::Relaxed);
        Some(Zeros { tables: *self, pin, slot, group, frame: Some(frame) })
    }

    /// Maps the frame in the place of entry `index`, if that still names the slot, and the slot is still what
    /// it was. Returns whether it did.
    pub(crate) fn map_zeros(
        &self,
        locked: &LockedTable<'_, P>,
        (index, entry): (usize, SwapEntry),
        zeros: &mut Zeros<'_, '_, P>,
        fault: &Fault<'_, P>,
    ) -> bool {
        let Some(frame) = zeros.frame.filter(|_| SlotId::of(entry) == zeros.slot) else { return false };
        let Some(shadow) = self.spaces.swap().take_zeros(zeros.slot, zeros.group.get()) else { return false };
        zeros.frame = None;
        self.spaces.init_page(frame, fault.facts, fault.addr);
        let mut flags = fault.facts.flags.leaf_flags() | LeafFlags::ACCESSED;
        flags.set(LeafFlags::DIRTY, fault.access == Access::Write);
        let leaf = P::Paging::encode(Entry::Leaf(Leaf { pfn: frame, flags }), Level::PTE);
        // Release: a walker that reads it sees the page filled. The entry was live and is again.
        locked.entries[index].store(leaf, Ordering::Release);
        self.core.usage.swap_gone(1);
        self.core.usage.anonymous_mapped(1);
        // Under the lock: the page cannot be unmapped before it is on a list.
        self.spaces.swap().count_pages(frame, VmEvent::SwpinZero, MemcgStat::SwpinZero);
        self.spaces.note_major(zeros.pin, frame, shadow);
        true
    }
}
