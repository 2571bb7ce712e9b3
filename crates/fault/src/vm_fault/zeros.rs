//! A zero-filled page that one entry names is swapped in as a new page: there is nothing to read, nothing to
//! wait for, and no race in the cache. The frame is allocated before the table is locked; under its lock the
//! slot is freed and the page mapped.

use super::VmFault;
use crate::swap_in::SwapIn;
use quire_arch::{Access, Entry, Leaf, LeafFlags, Level, Order, PagingFormat, Pfn, Pin, Platform, SwapEntry};
use quire_frame::{AllocRequest, Kind};
use quire_memcg::MemcgId;
use quire_pagetable::{LockedTable, MemoryCore, Tables};
use quire_swap::SlotId;
use quire_sync::atomic::raw::Ordering;

/// A zeroed frame for an entry, charged for its slot.
#[must_use = "it is mapped or freed"]
struct Zeros {
    slot: SlotId,
    /// The slot's.
    memcg: MemcgId,
    frame: Pfn,
}

impl<P: Platform> VmFault<'_, P> {
    /// Maps a page of zeros by entry `index` of `table`, if that is still `raw`, which is `entry`, and names
    /// such a page that nothing else names. Returns whether it did: not either if memory is short, or if more
    /// than a page might be swapped in at once. Then it is swapped in as any other page.
    // A frame of its own: most faults find no swap entry.
    #[inline(never)]
    pub(crate) fn swap_zeros_in(
        &self,
        tables: &Tables<'_, P>,
        pin: &Pin<'_, P>,
        (table, index): (Pfn, usize),
        (raw, entry): (u64, SwapEntry),
    ) -> bool {
        let Some(zeros) = self.zeros_for(tables.memory(), pin, entry) else { return false };
        let is_mapped = {
            let locked = tables.lock(pin, table, Level::PTE);
            locked.entries[index].load(Ordering::Relaxed) == raw
                && self.map_zeros(tables, pin, (&locked, index), &zeros)
        };
        if !is_mapped {
            tables.memory().memcgs().folios().release_unused(pin, zeros.frame, Order::ZERO);
        }
        is_mapped
    }

    fn zeros_for(&self, memory: &MemoryCore<P>, pin: &Pin<'_, P>, entry: SwapEntry) -> Option<Zeros> {
        if self.swapped.is_some() || !self.orders().is_empty() || self.space.is_killed() {
            return None;
        }
        let slot = SlotId::of(entry);
        let seen = MemcgId::from_bits(memory.swap().cache().zeros(pin, slot)?);
        let frames = memory.frames();
        let frame = frames.allocate(pin, AllocRequest::anonymous().kind(Kind::Anonymous)).ok()?;
        let swap_in = SwapIn::new(memory, &self.space.tables.membership);
        let Ok(memcgs) = swap_in.charge_for_slot(pin, (slot, seen), Order::ZERO) else {
            memory.memcgs().folios().release_unused(pin, frame, Order::ZERO);
            return None;
        };
        frames.known(frame).as_folio().set_memcg(memcgs.charged.get());
        Some(Zeros { slot, memcg: memcgs.of_slot, frame })
    }

    /// Maps the frame in place of entry `index`, which names the slot, if that is unchanged.
    fn map_zeros(
        &self,
        tables: &Tables<'_, P>,
        pin: &Pin<'_, P>,
        (locked, index): (&LockedTable<'_, P>, usize),
        zeros: &Zeros,
    ) -> bool {
        let (memory, pfn) = (tables.memory(), zeros.frame);
        let Some(shadow) = memory.swap().cache().take_zeros(pin, zeros.slot, zeros.memcg.get()) else {
            return false;
        };
        let new = self.vma.new_page(self.addr);
        new.init_page(memory.frames().known(pfn));
        let mut flags = new.leaf | LeafFlags::ACCESSED;
        flags.set(LeafFlags::DIRTY, self.access == Access::Write);
        let leaf = P::Paging::encode(Entry::Leaf(Leaf { pfn, flags }), Level::PTE);
        // Release: a walker that reads it sees the page filled. The entry was live and is again.
        locked.entries[index].store(leaf, Ordering::Release);
        tables.space().residency.swap_gone(1);
        tables.space().residency.anonymous_mapped(1);
        // Under the lock: the page cannot be unmapped before it is on a list.
        SwapIn::new(memory, &tables.space().membership).note_zeros(pin, pfn, shadow);
        true
    }
}
