//! Mapping pages of the page cache.
//!
//! The caller is pinned, in a section of the epoch, and holds the VMA, so nothing here waits: a folio that is
//! not cached, that another thread has locked, or that is to be marked dirty first is left to the slow path,
//! which holds nothing ([`Refusal::File`]).
//!
//! A folio is mapped under its folio lock, after a look at the size. So a thread that removes a page or makes
//! the file smaller, and takes that lock then, finds the mapping; and an entry that may be written to is made
//! only while the folio is dirty, so that who makes it clean finds the entry.

use crate::cow::charge_new;
use crate::error::{FaultError, FilePage, Refusal};
use crate::step::Step;
use crate::vm_fault::VmFault;
use core::ptr::NonNull;
use quire_arch::{
    Entry, Leaf, LeafFlags, Level, Order, PAGE_SIZE, PagingFormat, Pfn, Pin, Platform, VirtAddr,
};
use quire_file::{CachedFile, LockedFolio, Lookup, OpenFile, PageIndex};
use quire_frame::{AllocError, AllocRequest, FrameChain, Kind};
use quire_pagetable::{LockedTable, Tables, page_of};
use quire_sync::atomic::raw::Ordering;
use quire_vma::Vma;

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
        let dirties = fault.is_write() && !copies;
        // Before the folio is locked.
        let copy = if copies { Some(self.allocate_copy()?) } else { None };
        let installed = match file.find(tables.memory().memcgs(), page) {
            Lookup::PastEnd => {
                self.map_neighbours((table, index));
                Err(FaultError::PastEnd.into())
            }
            Lookup::Nothing | Lookup::Busy => {
                self.map_neighbours((table, index));
                Err(Refusal::File(FilePage { index: page, dirties }))
            }
            Lookup::Folio(folio) if dirties && !file.may_be_written(folio.frame().word().flags()) => {
                Err(Refusal::File(FilePage { index: page, dirties }))
            }
            Lookup::Folio(folio) => self.install_found((table, index), &folio, copy),
        };
        if let (Some(copy), Ok(Step::LookAgain) | Err(_)) = (copy, installed) {
            tables.memory().memcgs().folios().release_unused(pin, copy, Order::ZERO);
        }
        installed
    }

    /// A page for a copy, charged to the program.
    fn allocate_copy(&self) -> Result<Pfn, Refusal> {
        let Self { tables, pin, .. } = *self;
        let request = AllocRequest::anonymous().uninitialised().kind(Kind::Anonymous);
        let copy = tables.memory().frames().allocate(pin, request)?;
        charge_new(&tables, pin, copy, Order::ZERO)?;
        Ok(copy)
    }

    /// Maps the locked `folio`, or its `copy`. With [`Step::LookAgain`] or an error nothing is mapped.
    fn install_found(
        &self,
        (table, index): (Pfn, usize),
        folio: &LockedFolio<'_, P>,
        copy: Option<Pfn>,
    ) -> Result<Step, Refusal> {
        let Self { tables, pin, fault, .. } = *self;
        if let Some(copy) = copy {
            // SAFETY: the copy is new and this call's; the folio is held, and its contents are a program's,
            // which may be written to meanwhile.
            unsafe { tables.memory().platform().copy_user(folio.head(), copy, Order::ZERO) };
        }
        let locked = tables.lock(pin, table, Level::PTE);
        if locked.is_dead() || locked.get(index) != Entry::None {
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
            None => {
                self.install_cached(&locked, index, folio, LeafFlags::ACCESSED)?;
                if !fault.is_write() {
                    let freed = self.map_around(&locked, index);
                    drop(locked);
                    tables.memory().frames().free_chain(pin, freed);
                }
            }
        }
        Ok(Step::Done)
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

    /// Maps the locked `folio` at the empty entry `index`, marked as `used` says.
    fn install_cached(
        &self,
        locked: &LockedTable<'_, P>,
        index: usize,
        folio: &LockedFolio<'_, P>,
        used: LeafFlags,
    ) -> Result<(), Refusal> {
        let Self { tables, fault, .. } = *self;
        let frame = folio.frame();
        let counted = tables.memory().frames().folios().lock_head(folio.head());
        // The mappings' reference, before they are made.
        if !counted.may_add(1) || !frame.get(1) {
            return Err(FaultError::OutOfMemory(AllocError::OutOfMemory).into());
        }
        if !counted.add_cached_maps(1) {
            // They had one; and so has the caller.
            frame.put(1);
        }
        let mut flags = fault.vma.leaf_flags() | used;
        if fault.is_private() {
            flags.remove(LeafFlags::WRITE);
        }
        if fault.is_write() {
            flags |= LeafFlags::WRITE | LeafFlags::DIRTY;
        }
        tables.space().residency.page_mapped(false);
        locked.install(index, Entry::Leaf(Leaf { pfn: folio.head(), flags }));
        Ok(())
    }

    /// Maps what is around a page that is not there yet, or never: Linux does so before it looks for the page
    /// itself, and once more when it has been read.
    #[cold]
    fn map_neighbours(&self, (table, index): (Pfn, usize)) {
        let Self { tables, pin, fault, .. } = *self;
        if fault.is_write() || fault.space.is_killed() {
            return;
        }
        let locked = tables.lock(pin, table, Level::PTE);
        if locked.is_dead() {
            return;
        }
        if tables.space().pageouts.is_discarding() {
            tables.space().flush_discarded(tables.memory().frames(), pin, page_of(fault.addr));
        }
        let freed = self.map_around(&locked, index);
        drop(locked);
        tables.memory().frames().free_chain(pin, freed);
    }

    /// Maps pages around entry `index` of the locked table that are cached and not locked, as Linux's
    /// `do_fault_around` chooses them. They count as not accessed. Returns what is to be freed once the table
    /// is unlocked.
    fn map_around(&self, locked: &LockedTable<'_, P>, index: usize) -> FrameChain {
        let mut freed = FrameChain::new();
        let Self { tables, fault, file, .. } = *self;
        let vma = fault.vma;
        let before = (fault.addr.page_start().0 - vma.range.start().0) / PAGE_SIZE;
        let behind = vma.range.pages() - before;
        let first = (index & !(AROUND - 1)).max(index - index.min(before as usize));
        let last = (first + AROUND).min(P::Paging::entries(Level::PTE)).min(index + behind as usize);
        for at in first..last {
            let addr = VirtAddr(fault.addr.page_start().0 - index as u64 * PAGE_SIZE + at as u64 * PAGE_SIZE);
            let Some(page) = PageIndex::new(vma.page_offset_at(addr)) else { break };
            // Readers without the lock see entries come, so this is not the whole truth for them; the lock is
            // held here.
            if locked.entries[at].load(Ordering::Relaxed) != 0 {
                continue;
            }
            if let Some(folio) = file.find_for_table(tables.memory().memcgs(), page, &mut freed) {
                let installed = self.install_cached(locked, at, &folio, LeafFlags::empty());
                folio.unlock_cached();
                if installed.is_err() {
                    break;
                }
            }
        }
        freed
    }

    /// Allows writes through `leaf`, entry `index` of the locked table, to a page of a shared file, if the
    /// page is dirty; else the fault marks it dirty first.
    pub(crate) fn notice_write(
        &self,
        locked: &LockedTable<'_, P>,
        index: usize,
        leaf: Leaf,
    ) -> Result<(), Refusal> {
        let Self { tables, fault, .. } = *self;
        let page = PageIndex::new(fault.vma.page_offset_at(fault.addr)).ok_or(FaultError::PastEnd)?;
        let locked_folio = tables.memory().frames().folios().try_lock_folio(leaf.pfn);
        let flags = tables.memory().frames().known(leaf.pfn).word().flags();
        if locked_folio.is_none() || !self.file.may_be_written(flags) {
            return Err(Refusal::File(FilePage { index: page, dirties: true }));
        }
        // Under the folio lock: who makes the folio clean finds the entry as it is now, or has cleared the
        // mark.
        locked.widen(index, LeafFlags::WRITE | LeafFlags::DIRTY | LeafFlags::ACCESSED);
        Ok(())
    }
}
