//! What a gather counts until it is finished: one addition to the counters of the CPU for all of it.

use core::mem;
use quire_arch::{Order, Pin, Platform};
use quire_frame::{FolioCounter, Frames, VmEvent};

/// What is not in the counters of the machine yet.
#[derive(Clone, Copy, Default)]
pub(crate) struct GatherCounts {
    /// Removals of mappings from folios' counts.
    pub(super) removals: u64,
    /// Folios that were freed.
    pub(super) freed: u64,
    /// Entries that were moved.
    pub(super) moved: u64,
    /// Tables that were freed because they were empty.
    pub(super) empty_tables: u64,
    /// Large folios that were freed and were of no file, and the order of all of them.
    large: (Order, i64),
}

impl GatherCounts {
    /// Counts single pages that were unmapped, and those of them that were taken from their user.
    #[inline]
    pub(crate) fn add_singles(&mut self, unmapped: u64, taken: u64) {
        self.removals += unmapped;
        self.freed += taken;
    }

    /// A page that was counted so when it was found on its list was not taken: it is unmapped again.
    #[inline]
    pub(crate) fn refuse_single(&mut self) {
        self.removals -= 1;
        self.freed -= 1;
    }

    /// Counts a large folio that was freed and was of no file. Most of a gather have the same order.
    #[inline]
    pub(super) fn add_large<P: Platform>(&mut self, frames: &Frames<P>, order: Order) {
        if self.large.0 != order {
            self.next_order(frames, order);
        }
        self.large.1 += 1;
    }

    /// Those that follow are of `order`.
    #[cold]
    fn next_order<P: Platform>(&mut self, frames: &Frames<P>, order: Order) {
        self.write_large(frames, &frames.platform().pin());
        self.large.0 = order;
    }

    #[cold]
    fn write_large<P: Platform>(&mut self, frames: &Frames<P>, pin: &Pin<'_, P>) {
        let (order, folios) = mem::take(&mut self.large);
        frames.events().count_folio(pin, order, FolioCounter::NrAnon, -folios);
    }

    /// Adds all to the counters of the machine.
    pub(super) fn write<P: Platform>(&mut self, frames: &Frames<P>, pin: &Pin<'_, P>) {
        if self.large.1 > 0 {
            self.write_large(frames, pin);
        }
        let Self { removals, freed, moved, empty_tables, .. } = mem::take(self);
        let counts = [
            (VmEvent::RmapRemove, removals),
            (VmEvent::UnmapDescriptor, removals + freed),
            (VmEvent::MremapEntry, moved),
            (VmEvent::EmptyTableFreed, empty_tables),
        ];
        frames.events().add_each(pin, counts);
    }
}
