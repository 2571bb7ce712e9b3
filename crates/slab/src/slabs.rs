//! The slabs of a cache by how full they are, and the batches that wait in front of them.

use crate::geometry::{QUARTERS, Shape, SlabState};
use crate::slot::SlotList;
use quire_arch::Pfn;
use quire_frame::{FolioList, MemoryMap};

/// Batches that wait for the next CPU to need one.
pub(crate) const DEPOT_BATCHES: usize = 4;

/// The slabs of a cache, by how full they are; behind a lock of class `Slab`.
#[derive(Debug)]
pub(crate) struct Slabs {
    partial: [FolioList; QUARTERS],
    full: FolioList,
    empty: FolioList,
    pub(crate) depot: Depot,
    /// Room for objects on all slabs.
    pub(crate) slots: u64,
    /// Base pages of all slabs.
    pub(crate) pages: u64,
}

impl Slabs {
    pub(crate) const EMPTY: Self = Self {
        partial: [const { FolioList::new() }; QUARTERS],
        full: FolioList::new(),
        empty: FolioList::new(),
        depot: Depot { batches: [const { SlotList::EMPTY }; DEPOT_BATCHES], filled: 0 },
        slots: 0,
        pages: 0,
    };

    pub(crate) fn list(&mut self, state: SlabState) -> &mut FolioList {
        match state {
            SlabState::Full => &mut self.full,
            SlabState::Partial(quarter) => &mut self.partial[quarter],
            SlabState::Empty => &mut self.empty,
        }
    }

    /// Every list with its state.
    pub(crate) fn lists(&self) -> impl Iterator<Item = (SlabState, &FolioList)> {
        let partial =
            self.partial.iter().enumerate().map(|(quarter, list)| (SlabState::Partial(quarter), list));
        [(SlabState::Full, &self.full), (SlabState::Empty, &self.empty)].into_iter().chain(partial)
    }

    /// A slab with free slots; of the fullest, so that the others can become empty.
    pub(crate) fn fullest(&self, map: &MemoryMap) -> Option<Pfn> {
        self.partial.iter().chain([&self.empty]).find_map(|list| list.first(map))
    }

    /// Adds a slab whose slots are all free.
    pub(crate) fn add(&mut self, map: &MemoryMap, slab: Pfn, shape: Shape) {
        self.slots += u64::from(shape.objects);
        self.pages += shape.order.pages();
        self.empty.push_front(map, slab);
    }

    /// Takes an empty slab away if there are more than `keep`. `shape_of` returns the shape of a slab.
    pub(crate) fn take_empty(
        &mut self,
        map: &MemoryMap,
        keep: u32,
        shape_of: impl Fn(Pfn) -> Shape,
    ) -> Option<Pfn> {
        let slab = self.empty.first(map).filter(|_| self.empty.folios() > keep)?;
        self.empty.remove(map, slab);
        let shape = shape_of(slab);
        self.slots -= u64::from(shape.objects);
        self.pages -= shape.order.pages();
        Some(slab)
    }
}

/// Batches of free slots that no CPU has room for. Slots freed on one CPU and allocated on another pass
/// through here untouched.
#[derive(Debug)]
pub(crate) struct Depot {
    batches: [SlotList; DEPOT_BATCHES],
    filled: usize,
}

impl Depot {
    /// Adds a batch, or returns it if there is no room.
    pub(crate) fn push(&mut self, batch: SlotList) -> Result<(), SlotList> {
        match self.batches.get_mut(self.filled) {
            Some(place) => {
                *place = batch;
                self.filled += 1;
                Ok(())
            }
            None => Err(batch),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<SlotList> {
        self.filled = self.filled.checked_sub(1)?;
        Some(core::mem::take(&mut self.batches[self.filled]))
    }

    /// Every batch.
    pub(crate) fn lists(&self) -> impl Iterator<Item = &SlotList> {
        self.batches.iter().take(self.filled)
    }
}
