//! Mapping folios of the PMD's order by one leaf.

use super::FileFault;
use crate::error::{FaultError, Refusal};
use crate::step::HugeFault;
use quire_arch::{Leaf, LeafFlags, Level, Order, PagingFormat, Platform};
use quire_file::{IndexRange, LockedFolio, Lookup, PageIndex, UnusedPages};
use quire_frame::VmEvent;
use quire_pagetable::{HugeLeaves, Tables};
use quire_thp::is_huge_disabled;

impl<P: Platform> FileFault<'_, '_, '_, P> {
    /// Maps the folio that has the page by a PMD leaf where no table is, as Linux does: if all of it is in
    /// the mapping and in the file, with its borders at those of the table. What has to be brought in, or
    /// marked dirty, before is refused here, so that there is no table when the fault is tried again.
    ///
    /// A fault for reading maps what is around the page only if the first folio of that is not the one in
    /// which the file ends: so does Linux 6.18 where it has no table.
    #[inline(never)]
    pub(crate) fn resolve_huge(&self) -> Result<HugeFault, Refusal> {
        let Self { tables, fault, file, .. } = *self;
        let page = PageIndex::new(fault.vma.page_offset_at(fault.addr)).ok_or(FaultError::PastEnd)?;
        if !self.maps_around() {
            return match !fault.is_private() {
                true => self.resolve_page(page),
                false if file.ends_before(page) => Err(FaultError::PastEnd.into()),
                false => Ok(HugeFault::ByTable),
            };
        }
        match self.first_around() {
            Some(first) if file.is_mapped_large(first) => {
                let is_huge = first.contains(page) && self.may_be_huge();
                // The page may be past the end: the folio is mapped all the same, if it is shared memory.
                let near = PageIndex::new(first.start()).filter(|_| file.is_shmem()).unwrap_or(page);
                let found = if is_huge { Some(file.find(tables.memory().memcgs(), near)) } else { None };
                match found {
                    // As in Linux shared memory is mapped across the end of its file.
                    Some(Lookup::Folio(folio)) if file.is_shmem() || file.goes_past(folio.range()) => {
                        self.install_huge(&folio)
                    }
                    _ => Ok(HugeFault::ByTable),
                }
            }
            _ if file.ends_before(page) => Err(FaultError::PastEnd.into()),
            _ => self.resolve_page(page).map(|way| match way {
                HugeFault::ByTable => HugeFault::Alone,
                other => other,
            }),
        }
    }

    /// Maps the folio that has the page, if it may be mapped as a whole.
    fn resolve_page(&self, page: PageIndex) -> Result<HugeFault, Refusal> {
        let Self { tables, file, .. } = *self;
        match file.find(tables.memory().memcgs(), page) {
            Lookup::PastEnd => Err(FaultError::PastEnd.into()),
            Lookup::Nothing | Lookup::Swapped(_) | Lookup::Busy => Err(self.needs(page)),
            Lookup::Folio(folio) if self.dirties() && !file.may_be_written(folio.frame().word().flags()) => {
                Err(self.needs(page))
            }
            Lookup::Folio(folio) if self.may_be_huge() && file.may_map_whole(folio.range()) => {
                self.install_huge(&folio)
            }
            Lookup::Folio(_) => Ok(HugeFault::ByTable),
        }
    }

    /// The pages of the first folio that a fault for reading finds around the page.
    fn first_around(&self) -> Option<IndexRange> {
        let Self { tables, fault, file, .. } = *self;
        let index = P::Paging::index(fault.addr, Level::PTE) as u64;
        let page = fault.vma.page_offset_at(fault.addr);
        self.window(index as usize).find_map(|entry| {
            let near = PageIndex::new((page + entry as u64).wrapping_sub(index))?;
            if UnusedPages::of(file).has(tables.memory().frames(), near) {
                return None;
            }
            match file.find(tables.memory().memcgs(), near) {
                Lookup::Folio(folio) => Some(folio.range()),
                _ => None,
            }
        })
    }

    /// Whether a PMD leaf for a folio of the file can be around the address.
    fn may_be_huge(&self) -> bool {
        let Self { fault, file, .. } = *self;
        let Some(order) = Tables::<P>::huge_order() else { return false };
        let block = Tables::<P>::huge_range(fault.addr);
        fault.vma.range.covers(block)
            && fault.vma.page_offset_at(block.start()).is_multiple_of(order.pages())
            && file.largest_order() >= order
            && !is_huge_disabled(fault.vma.flags, fault.space.huge_disable.load())
    }

    /// Maps a locked folio, if it is of the PMD's order.
    fn install_huge(&self, folio: &LockedFolio<'_, P>) -> Result<HugeFault, Refusal> {
        let Self { tables, pin, fault, .. } = *self;
        if Some(folio.order()) != Tables::<P>::huge_order() {
            return Ok(HugeFault::ByTable);
        }
        let leaves = HugeLeaves::new(&tables);
        let Ok(Some((slot, deposit))) = leaves.place_huge(pin, fault.addr) else {
            return Ok(HugeFault::ByTable);
        };
        let mut flags = fault.vma.leaf_flags() | LeafFlags::ACCESSED;
        if fault.is_private() {
            flags.remove(LeafFlags::WRITE);
        }
        if fault.is_write() {
            flags |= LeafFlags::WRITE | LeafFlags::DIRTY;
            if self.file.is_shmem() {
                self.file.mark_dirty(tables.memory().frames(), folio.head());
            }
        }
        let leaf = Leaf { pfn: folio.head(), flags };
        let installed = {
            let locked = tables.lock_slot(pin, slot);
            !fault.space.is_killed() && leaves.install_cached(pin, (&locked, slot), leaf, deposit)
        };
        if installed {
            tables.memory().frames().events().add(pin, VmEvent::ThpFileMapped, 1);
            return Ok(HugeFault::Mapped);
        }
        tables.memory().memcgs().folios().release_unused(pin, deposit, Order::ZERO);
        Ok(HugeFault::ByTable)
    }
}
