//! Mapping pages of the page cache.
//!
//! The caller is pinned, in a section of the epoch, and holds the VMA, so nothing here waits: a folio that is
//! not cached, that another thread has locked, or that is to be marked dirty first is left to the slow path,
//! which holds nothing ([`Refusal::File`]).
//!
//! A folio is mapped under its folio lock, after a look at the size. So a thread that removes a page or makes
//! the file smaller, and takes that lock then, finds the mapping; and an entry that may be written to is made
//! only while the folio is dirty, so that who makes it clean finds the entry.
//!
//! A large folio is mapped as a whole where Linux does so: where all of it is in the file, the mapping and
//! the table. One of the PMD's order gets a PMD leaf if no table is there ([`huge`]).

mod huge;
mod swapped;

use crate::cow::charge_new;
use crate::error::{FaultError, FilePage, Refusal};
use crate::step::Step;
use crate::vm_fault::VmFault;
use core::ops::Range;
use core::ptr::NonNull;
use quire_arch::{Entry, Leaf, LeafFlags, Level, Order, PAGE_SIZE, PagingFormat, Pfn, Pin, Platform};
use quire_file::{
    CachedFile, CachedPages, IndexRange, LargeOrders, LockedFolio, Lookup, NewFolioOrders, OpenFile,
    PageIndex, ShmemState, SwappedPage, UnusedPages,
};
use quire_frame::{AllocError, AllocRequest, FrameChain, Kind};
use quire_pagetable::{LockedTable, Residency, Tables, page_of};
use quire_sync::atomic::raw::{AtomicU64, Ordering};
use quire_thp::is_huge_disabled;
use quire_vma::{VmFlags, Vma};

/// Pages around a fault for reading that are mapped with it if they are cached: 64 KiB, as in Linux
/// (`fault_around_bytes`).
const AROUND: usize = 16;

/// A fault in a mapping of an open file.
pub(crate) struct FileFault<'a, 's, 'p, P: Platform> {
    tables: Tables<'s, P>,
    pin: &'a Pin<'p, P>,
    fault: &'a VmFault<'a, P>,
    file: &'a CachedFile<P>,
}

impl<'a, 's, 'p, P: Platform> FileFault<'a, 's, 'p, P> {
    /// `fault`, if its mapping is one of an open file. The VMA is held meanwhile.
    #[inline]
    pub(crate) fn of(tables: Tables<'s, P>, pin: &'a Pin<'p, P>, fault: &'a VmFault<'a, P>) -> Option<Self> {
        // SAFETY: the VMA is held (caller), and holds the opening.
        let opening = unsafe { fault.vma.backing.opening() }?;
        // SAFETY: the VMAs of a machine name openings of its files, which live as long as the openings do.
        let open = unsafe { OpenFile::<P, Vma>::of(NonNull::from(opening)) };
        Some(Self { tables, pin, fault, file: open.file() })
    }

    /// Maps the page where entry `index` of `table` is none, or a copy of it for a write to private memory.
    // A frame of its own: faults in private memory do not come here.
    #[inline(never)]
    pub(crate) fn resolve(&self, (table, index): (Pfn, usize)) -> Result<Step, Refusal> {
        let Self { tables, pin, fault, file } = *self;
        let page = PageIndex::new(fault.vma.page_offset_at(fault.addr)).ok_or(FaultError::PastEnd)?;
        let copies = fault.is_write() && fault.is_private();
        let dirties = self.dirties();
        // Until now it was not used, so that it is not mapped around itself.
        let is_unused = self.maps_around() && UnusedPages::of(file).has(tables.memory().frames(), page);
        // Before the folio is locked.
        let copy = if copies { Some(self.allocate_copy()?) } else { None };
        let installed = match file.find(tables.memory().memcgs(), page) {
            // As in Linux a large folio of shared memory is mapped across the end, by whichever page of it.
            Lookup::PastEnd if self.map_neighbours((table, index)) => Ok(Step::LookAgain),
            Lookup::PastEnd => Err(FaultError::PastEnd.into()),
            Lookup::Swapped(swapped) => self.resolve_swapped((table, index), swapped, copy),
            Lookup::Nothing | Lookup::Busy => {
                self.map_neighbours((table, index));
                Err(self.needs(page))
            }
            Lookup::Folio(folio) if dirties && !file.may_be_written(folio.frame().word().flags()) => {
                Err(self.needs(page))
            }
            Lookup::Folio(folio) => {
                if is_unused {
                    self.map_neighbours((table, index));
                }
                let around = self.maps_around() && !is_unused;
                let found = self.install_found((table, index), (&folio, page), copy, around);
                folio.unlock_cached();
                found
            }
        };
        if let (Some(copy), Ok(Step::LookAgain) | Err(_)) = (copy, installed) {
            tables.memory().memcgs().folios().release_unused(pin, copy, Order::ZERO);
        }
        installed
    }

    /// The same for a page of shared memory that is on a swap device.
    fn resolve_swapped(
        &self,
        (table, index): (Pfn, usize),
        swapped: SwappedPage,
        copy: Option<Pfn>,
    ) -> Result<Step, Refusal> {
        match self.bring_back(swapped) {
            // Only now, as it is locked.
            Ok(_) if self.file.ends_before(swapped.index) => Err(FaultError::PastEnd.into()),
            Ok(folio) => {
                let found = (&*folio, swapped.index);
                let installed = self.install_found((table, index), found, copy, self.maps_around());
                folio.unlock_cached();
                installed
            }
            Err(refusal) => {
                self.map_neighbours((table, index));
                Err(refusal)
            }
        }
    }

    /// As [`resolve`](Self::resolve) for a fault for reading that maps nothing around the folio of the page.
    pub(crate) fn resolve_alone(&self, (table, index): (Pfn, usize)) -> Result<Step, Refusal> {
        let page =
            PageIndex::new(self.fault.vma.page_offset_at(self.fault.addr)).ok_or(FaultError::PastEnd)?;
        match self.file.find(self.tables.memory().memcgs(), page) {
            Lookup::Folio(folio) => self.install_found((table, index), (&folio, page), None, false),
            _ => Ok(Step::LookAgain),
        }
    }

    /// Whether the fault maps what is around its page, too.
    fn maps_around(&self) -> bool {
        !self.fault.is_write() && !self.maps_one_page()
    }

    /// Whether a fault maps its page and no other by a table: as in Linux of a segment of SysV shared memory.
    fn maps_one_page(&self) -> bool {
        self.file.shmem().is_some_and(ShmemState::is_segment)
    }

    /// Whether the fault writes to the file, which is to know of it.
    fn dirties(&self) -> bool {
        self.fault.is_write() && self.fault.vma.notices_writes()
    }

    /// The page is to be brought in, or marked dirty, first; and alone if the program said that it goes from
    /// place to place.
    fn needs(&self, index: PageIndex) -> Refusal {
        let is_random = self.fault.vma.flags.contains(VmFlags::RAND_READ);
        let around = if is_random { IndexRange::default() } else { IndexRange::ALL };
        Refusal::File(FilePage { index, dirties: self.dirties(), large: self.large_orders(index), around })
    }

    /// The large folios that it may come in: of shared memory only such as lie in the mapping.
    fn large_orders(&self, index: PageIndex) -> LargeOrders {
        let Self { fault, file, .. } = *self;
        let flags = fault.vma.flags;
        let orders = NewFolioOrders::of(file).mapped(index, flags.contains(VmFlags::HUGEPAGE));
        if orders.is_empty() || Tables::<P>::huge_order().is_none() {
            return LargeOrders::NONE;
        }
        if !file.is_shmem() {
            return LargeOrders::of(orders);
        }
        if is_huge_disabled(flags, fault.space.huge_disable.load()) {
            return LargeOrders::NONE;
        }
        let drains = fault.huge.policy().fault_effort(flags).may_drain();
        let orders = fault.vma.aligned_orders(orders).around(fault.addr, fault.vma.range);
        LargeOrders { orders, drains }
    }

    /// A page for a copy, charged to the program.
    fn allocate_copy(&self) -> Result<Pfn, Refusal> {
        let Self { tables, pin, .. } = *self;
        let request = AllocRequest::anonymous().uninitialised().kind(Kind::Anonymous);
        let copy = tables.memory().frames().allocate(pin, request)?;
        charge_new(&tables, pin, copy, Order::ZERO)?;
        Ok(copy)
    }

    /// Maps page `page` of the locked `folio`, with what is `around` it or all of the folio, or its `copy`.
    /// With [`Step::LookAgain`] or an error nothing is mapped.
    fn install_found(
        &self,
        (table, index): (Pfn, usize),
        (folio, page): (&LockedFolio<'_, P>, PageIndex),
        copy: Option<Pfn>,
        around: bool,
    ) -> Result<Step, Refusal> {
        let Self { tables, pin, fault, .. } = *self;
        if let Some(copy) = copy {
            // SAFETY: the copy is new and this call's; the folio is held, and its contents are a program's,
            // which may be written to meanwhile.
            unsafe { tables.memory().platform().copy_user(folio.frame_of(page), copy, Order::ZERO) };
        }
        let locked = tables.lock(pin, table, Level::PTE);
        if locked.is_dead() || locked.entries[index].load(Ordering::Relaxed) != 0 {
            return Ok(Step::LookAgain);
        }
        if fault.space.is_killed() {
            return Err(FaultError::Killed.into());
        }
        if tables.space().pageouts.is_discarding() {
            tables.space().flush_discarded(tables.memory().frames(), pin, page_of(fault.addr));
        }
        match copy {
            Some(copy) => self.install_copy(&locked, index, copy),
            None if !around => {
                let whole = self.whole_run(folio, (page, index)).filter(|run| {
                    let is_none = |entry: &AtomicU64| entry.load(Ordering::Relaxed) == 0;
                    !self.maps_one_page()
                        && self.file.may_map_whole(folio.range())
                        && locked.entries[run.clone()].iter().all(is_none)
                });
                let run = whole.unwrap_or(index..index + 1);
                self.install_cached(&locked, run, (folio, page, index), LeafFlags::ACCESSED)?;
            }
            None => {
                let run = self.run_around(folio, (page, index), self.window(index));
                if !run.contains(&index) {
                    // The file has become smaller since the folio was found.
                    return Ok(Step::LookAgain);
                }
                self.install_cached(&locked, run, (folio, page, index), LeafFlags::ACCESSED)?;
                let freed = self.map_around(&locked, index);
                drop(locked);
                if !freed.is_empty() {
                    tables.memory().frames().free_chain(pin, freed);
                }
            }
        }
        Ok(Step::Done)
    }

    /// The entries of all pages of a folio, of which entry `index` is for `page`, if they are in the mapping
    /// and in the table.
    fn whole_run(
        &self,
        folio: &LockedFolio<'_, P>,
        (page, index): (PageIndex, usize),
    ) -> Option<Range<usize>> {
        let pages = folio.range();
        let first = index.checked_sub((page.get() - pages.start()) as usize)?;
        let run = first..first + pages.pages() as usize;
        let (lowest, end) = self.entries_of_mapping();
        let is_inside = run.start >= lowest && run.end <= end.min(P::Paging::entries(Level::PTE));
        is_inside.then_some(run)
    }

    /// The entries that a fault for reading maps of a folio, of which entry `index` is for `page`: all, or
    /// those of the window.
    fn run_around(
        &self,
        folio: &LockedFolio<'_, P>,
        (page, index): (PageIndex, usize),
        window: Range<usize>,
    ) -> Range<usize> {
        if folio.order() == Order::ZERO {
            return index..index + usize::from(!self.file.ends_before(page));
        }
        let pages = folio.range();
        if self.file.is_mapped_large(pages)
            && let Some(whole) = self.whole_run(folio, (page, index))
        {
            return whole;
        }
        // Up to the end of the file, which may be in the folio, and before the page by now.
        let end = pages.end().min(self.file.size().div_ceil(PAGE_SIZE));
        let first = pages.start().max(page.get() - (index - window.start) as u64);
        let end = end.min(page.get() + (window.end - index) as u64).max(first);
        let start = index - (page.get() - first) as usize;
        start..start + (end - first) as usize
    }

    /// The entries of the fault's table that are of the mapping: the first, and the end, which may be past
    /// the table.
    fn entries_of_mapping(&self) -> (usize, usize) {
        let (addr, range) = (self.fault.addr.page_start(), self.fault.vma.range);
        let index = P::Paging::index(addr, Level::PTE);
        let before = (addr.0 - range.start().0) / PAGE_SIZE;
        let behind = (range.end().0 - addr.0) / PAGE_SIZE;
        (index - index.min(before as usize), index + behind as usize)
    }

    /// The entries that a fault for reading at entry `index` looks at.
    fn window(&self, index: usize) -> Range<usize> {
        let (lowest, end) = self.entries_of_mapping();
        let first = (index & !(AROUND - 1)).max(lowest);
        first..(first + AROUND).min(P::Paging::entries(Level::PTE)).min(end)
    }

    fn install_copy(&self, locked: &LockedTable<'_, P>, index: usize, copy: Pfn) {
        let Self { tables, pin, fault, .. } = *self;
        let new = fault.vma.new_page(fault.addr);
        new.init_page(tables.memory().frames().known(copy));
        tables.space().residency.page_mapped(true);
        let flags = new.leaf | LeafFlags::ACCESSED | LeafFlags::DIRTY;
        locked.install(index, Entry::Leaf(Leaf { pfn: copy, flags }));
        tables.memory().memcgs().folios().list_new(pin, copy, new.locked);
    }

    /// Maps pages of the locked `folio` at those entries of `run` that are empty, marked as `used` says.
    /// Entry `index` is for its page `page`.
    fn install_cached(
        &self,
        locked: &LockedTable<'_, P>,
        run: Range<usize>,
        (folio, page, index): (&LockedFolio<'_, P>, PageIndex, usize),
        used: LeafFlags,
    ) -> Result<(), Refusal> {
        let Self { tables, fault, .. } = *self;
        let entries = &locked.entries[run.clone()];
        let is_none = |entry: &&AtomicU64| entry.load(Ordering::Relaxed) == 0;
        let pages = entries.iter().filter(is_none).count() as u32;
        if pages == 0 {
            return Ok(());
        }
        let counted = tables.memory().frames().folios().lock_head(folio.head());
        // The mappings' reference, before they are made.
        if !counted.may_add(pages) || !folio.frame().get(1) {
            return Err(FaultError::OutOfMemory(AllocError::OutOfMemory).into());
        }
        if !counted.add_cached_maps(pages) {
            // They had one; and so has the caller.
            folio.frame().put(1);
        }
        let mut flags = fault.vma.leaf_flags() | used;
        if fault.is_private() {
            flags.remove(LeafFlags::WRITE);
        }
        if fault.is_write() {
            flags |= LeafFlags::WRITE | LeafFlags::DIRTY;
            if self.file.is_shmem() {
                self.file.mark_dirty(tables.memory().frames(), folio.head());
            }
        }
        tables.space().residency.pages_mapped(Residency::of(folio.frame().kind(), u64::from(pages)));
        let first = Pfn(folio.frame_of(page).0 - (index - run.start) as u64);
        let raw = P::Paging::encode(Entry::Leaf(Leaf { pfn: first, flags }), Level::PTE);
        for (entry, nth) in entries.iter().zip(0..).filter(|(entry, _)| is_none(entry)) {
            LockedTable::<P>::put_raw(entry, P::Paging::frames_on(raw, nth));
        }
        locked.count_installed(pages as usize);
        Ok(())
    }

    /// Maps what is around a page that is not there yet, or never: Linux does so before it looks for the page
    /// itself, and once more when it has been read. Returns whether the page has an entry then.
    #[cold]
    fn map_neighbours(&self, (table, index): (Pfn, usize)) -> bool {
        let Self { tables, pin, fault, .. } = *self;
        if !self.maps_around() || fault.space.is_killed() {
            return false;
        }
        let locked = tables.lock(pin, table, Level::PTE);
        if locked.is_dead() {
            return false;
        }
        if tables.space().pageouts.is_discarding() {
            tables.space().flush_discarded(tables.memory().frames(), pin, page_of(fault.addr));
        }
        let freed = self.map_around(&locked, index);
        let is_mapped = locked.get(index) != Entry::None;
        drop(locked);
        tables.memory().frames().free_chain(pin, freed);
        is_mapped
    }

    /// Maps pages around entry `index` of the locked table that are cached and not locked, as Linux's
    /// `do_fault_around` chooses them. They count as not accessed. Returns what is to be freed once the table
    /// is unlocked.
    fn map_around(&self, locked: &LockedTable<'_, P>, index: usize) -> FrameChain {
        let mut freed = FrameChain::new();
        let Self { tables, pin, fault, file } = *self;
        let window = self.window(index);
        // Most neighbours are mapped already. The lock is held, so entries change here only.
        let empty = |bits: u32, entry: &AtomicU64| bits << 1 | u32::from(entry.load(Ordering::Relaxed) == 0);
        let empty = locked.entries[window.clone()].iter().rev().fold(0, empty);
        let first = fault.vma.page_offset_at(fault.addr).wrapping_sub((index - window.start) as u64);
        let Some(first) = PageIndex::new(first).filter(|_| empty != 0) else { return freed };
        let mut left = CachedPages::of(file).among(pin, tables.memory().frames(), first, empty);
        while left != 0 {
            let nth = left.trailing_zeros() as usize;
            let at = window.start + nth;
            left &= left - 1;
            let Some(page) = PageIndex::new(first.get() + nth as u64) else { break };
            if let Some(folio) = file.find_for_table(tables.memory().memcgs(), page, &mut freed) {
                let run = self.run_around(&folio, (page, at), window.clone());
                let behind = u32::try_from(run.end.saturating_sub(window.start)).unwrap_or(u32::BITS);
                left &= u32::MAX.checked_shl(behind).unwrap_or(0);
                let installed = self.install_cached(locked, run, (&folio, page, at), LeafFlags::empty());
                folio.unlock_cached();
                if installed.is_err() {
                    break;
                }
            }
        }
        freed
    }

    /// Allows writes through `leaf`, entry `index` of the locked table, to a page of a shared file, if its
    /// folio is dirty; else the fault marks it dirty first.
    pub(crate) fn notice_write(
        &self,
        locked: &LockedTable<'_, P>,
        index: usize,
        leaf: Leaf,
    ) -> Result<(), Refusal> {
        let Self { tables, fault, .. } = *self;
        let page = PageIndex::new(fault.vma.page_offset_at(fault.addr)).ok_or(FaultError::PastEnd)?;
        // The entry keeps it from being split.
        let head = tables.memory().frames().folio(leaf.pfn).head();
        let locked_folio = tables.memory().frames().folios().try_lock_folio(head);
        let flags = tables.memory().frames().known(head).word().flags();
        if locked_folio.is_none() || !self.file.may_be_written(flags) {
            return Err(self.needs(page));
        }
        // Under the folio lock: who makes the folio clean finds the entry as it is now, or has cleared the
        // mark.
        locked.widen(index, LeafFlags::WRITE | LeafFlags::DIRTY | LeafFlags::ACCESSED);
        Ok(())
    }
}
