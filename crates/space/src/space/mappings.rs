//! The mappings of a space, as `/proc/PID/maps` and its like show them.

mod pagemap;
mod smaps;

pub use pagemap::PageState;
pub use smaps::{AnonymousPlace, MappingFigures};

use super::Space;
use crate::calls::collapse::read_only_file_orders;
use crate::calls::mincore::mincore_of_mapping;
use crate::error::Error;
use crate::mapping::Mapping;
use arrayvec::ArrayVec;
use core::ptr::NonNull;
use quire_arch::{OrderSet, Platform, VirtAddr, part_of};
use quire_file::{NewFolioOrders, OpenFile, PageIndex};
use quire_thp::{HugeUse, is_huge_disabled};
use quire_vma::{VmFlags, Vma, VmaSnapshot};

/// Mappings that are looked at under one hold of the mmap lock, before a caller is told of them.
const MAPPINGS: usize = 16;

part_of! {
    /// The mappings of a space, to be looked at.
    pub struct SpaceMappings { pub(super) space: Space<'w> }
}

impl<P: Platform> SpaceMappings<'_, P> {
    /// Calls `visit` with every mapping, lowest first, and with no lock held. As in Linux, mappings that
    /// change meanwhile are visited as they were before or as they are then, and what is mapped all the time
    /// is visited.
    pub fn for_each(self, visit: impl FnMut(Mapping)) {
        self.for_each_in(VirtAddr(0), VirtAddr(u64::MAX), visit);
    }

    /// The same of mappings that meet the addresses from `start` to `end`.
    #[doc(hidden)]
    pub fn for_each_in(self, start: VirtAddr, end: VirtAddr, mut visit: impl FnMut(Mapping)) {
        let mut next = Some(start);
        while let Some(from) = next {
            let mut some = ArrayVec::<Mapping, MAPPINGS>::new();
            {
                let mappings = self.space.core().read_mappings(self.space.spaces.platform());
                let from_here = mappings.iter_from(from).take(MAPPINGS);
                // SAFETY: it is in the tree, whose lock is held.
                let from_here = from_here.map(|vma| unsafe { Mapping::of::<P>(&vma.snapshot()) });
                some.extend(from_here.take_while(|mapping| mapping.range.start() < end));
            }
            next = some.last().filter(|_| some.is_full()).map(|last| last.range.end());
            some.into_iter().for_each(&mut visit);
        }
    }

    /// Does `work` with the mmap lock held shared: for tests of what waits for it.
    #[cfg(feature = "internals")]
    pub fn while_held<R>(self, work: impl FnOnce() -> R) -> R {
        let _mappings = self.space.core().read_mappings(self.space.spaces.platform());
        work()
    }

    /// Calls `tell` for at least one and at most `pages` pages from `addr` on: those of the mapping that
    /// `addr` lies in. `addr` is the start of a page in user space. `tell` is called with the lock of a table
    /// held: it takes no lock, and does not access a program's memory.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`] if nothing is mapped at `addr`.
    #[doc(hidden)]
    pub fn mincore_of(self, addr: VirtAddr, pages: u64, tell: impl FnMut(bool)) -> Result<(), Error> {
        mincore_of_mapping(self.space.caller(), addr, pages, tell)
    }

    /// The orders that `purpose` may use for a block around `addr` at this moment; for [`HugeUse::Smaps`],
    /// anywhere in the mapping at `addr`. None where neither private anonymous nor shared memory is mapped.
    /// Present entries are not considered.
    #[doc(hidden)]
    pub fn huge_orders(self, purpose: HugeUse, addr: VirtAddr) -> OrderSet {
        let mappings = self.space.core().read_mappings(self.space.spaces.platform());
        let snapshot = mappings.find(addr).map(Vma::snapshot);
        snapshot.map_or(OrderSet::EMPTY, |snapshot| self.orders_in(purpose, addr, &snapshot))
    }

    /// The same for a mapping. The mmap lock is held.
    fn orders_in(self, purpose: HugeUse, addr: VirtAddr, snapshot: &VmaSnapshot) -> OrderSet {
        // Huge pages of the program's choice are in a file of their own.
        if snapshot.flags.contains(VmFlags::HUGETLB) {
            return OrderSet::EMPTY;
        }
        if let Some(orders) = self.file_orders(purpose, addr, snapshot) {
            return orders;
        }
        let core = self.space.core();
        let has_pages = snapshot.anon.is_some() || matches!(purpose, HugeUse::Fault | HugeUse::Smaps);
        if !snapshot.backing.is_anonymous() || !has_pages {
            return OrderSet::EMPTY;
        }
        let orders =
            self.space.spaces.huge().policy().orders(purpose, snapshot.flags, core.huge_disable.load());
        match purpose {
            HugeUse::Smaps => orders.fitting(snapshot.range),
            HugeUse::Fault | HugeUse::Khugepaged | HugeUse::Collapse => orders.around(addr, snapshot.range),
        }
    }

    /// The same of an open file; `None` of other mappings.
    fn file_orders(self, purpose: HugeUse, addr: VirtAddr, vma: &VmaSnapshot) -> Option<OrderSet> {
        // SAFETY: the VMA holds its opening, and stays while the mmap lock is held.
        let opening = unsafe { vma.backing.opening() }?;
        // SAFETY: the VMAs of a machine name openings of its files, which live as long as the openings do.
        let file = unsafe { OpenFile::<P, Vma>::of(NonNull::from(opening)) }.file();
        let (at, is_fitting) = match purpose {
            HugeUse::Smaps => (vma.range.start(), true),
            HugeUse::Fault | HugeUse::Khugepaged | HugeUse::Collapse => (addr, false),
        };
        let fitting = |orders: OrderSet| {
            if is_fitting { orders.fitting(vma.range) } else { orders.around(addr, vma.range) }
        };
        if !file.is_shmem() {
            let Space { spaces, .. } = self.space;
            return Some(fitting(read_only_file_orders(spaces, self.space.core(), (vma, file), purpose)));
        }
        if is_huge_disabled(vma.flags, self.space.core().huge_disable.load()) {
            return Some(OrderSet::EMPTY);
        }
        let is_advised = vma.flags.contains(VmFlags::HUGEPAGE);
        let index = PageIndex::new(vma.page_offset_at(at))?;
        Some(fitting(vma.aligned_orders(NewFolioOrders::of(file).mapped(index, is_advised))))
    }
}
