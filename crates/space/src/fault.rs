//! Page faults.
//!
//! The usual fault takes no lock on the space: it looks the VMA up under the epoch, takes the VMA's own lock, finds
//! or makes the tables, gets a page, and installs it under the table's lock. Whatever does not fit (no VMA found,
//! one that a writer holds, the first private page of a VMA, a stack that must grow) goes the slow way, under the
//! mmap lock.

use crate::error::FaultError;
use crate::section::{Section, vma_key};
use crate::space::{Space, page_of};
use crate::table::{LockedTable, Tables};
use crate::vma::{AnonGroup, VmFlags, Vma, VmaFacts};
use quire_arch::{Access, Entry, Leaf, LeafFlags, Level, PagingFormat, Pfn, Pin, Platform, VirtAddr};
use quire_frame::{AllocError, AllocRequest, Kind, VmEvent};

/// Why a page could not be made available under the lock that was held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The program gets this.
    Fault(FaultError),
    /// The VMA needs its group first, and that takes the mmap lock.
    NeedsGroup,
}

impl From<FaultError> for Refusal {
    fn from(error: FaultError) -> Self {
        Self::Fault(error)
    }
}

impl From<AllocError> for Refusal {
    fn from(error: AllocError) -> Self {
        Self::Fault(FaultError::OutOfMemory(error))
    }
}

/// A VMA held shared by its own lock.
struct VmaHold<'s, P: Platform> {
    platform: &'s P,
    vma: &'s Vma,
}

impl<P: Platform> Drop for VmaHold<'_, P> {
    #[inline]
    fn drop(&mut self) {
        self.vma.lock.unlock_read(|| self.platform.unpark(vma_key(self.vma)));
    }
}

impl<P: Platform> Space<'_, P> {
    /// Makes the access `access` to `addr` possible, or says why it is not allowed. Called by a CPU whose MMU could
    /// not translate; the CPU then tries again.
    ///
    /// # Errors
    ///
    /// What the program gets instead: a signal, or the attention of the OOM killer.
    #[inline]
    pub fn fault(&self, addr: VirtAddr, access: Access) -> Result<(), FaultError> {
        {
            let pin = self.spaces.platform().pin();
            self.spaces.frames().events().add(&pin, VmEvent::Pgfault, 1);
            if let Some(hold) = self.hold_vma(&pin, addr) {
                match self.tables().resolve(&pin, hold.vma, addr, access) {
                    Ok(()) => return Ok(()),
                    Err(Refusal::Fault(error)) => return Err(error),
                    Err(Refusal::NeedsGroup) => {}
                }
            }
        }
        self.fault_locked(addr, access)
    }

    /// Finds the VMA of `addr` without a lock and holds it by its own.
    #[inline]
    fn hold_vma(&self, pin: &Pin<'_, P>, addr: VirtAddr) -> Option<VmaHold<'_, P>> {
        let core = self.core();
        let platform = self.spaces.platform();
        let epoch = self.spaces.frames().epoch().enter(pin);
        let found = core.vmas.find_lockless(addr, &epoch)?;
        // SAFETY: a VMA that was found under the epoch is not reused before the section of the epoch ends, and one
        // that is held shared is not retired before it is let go.
        let vma: &Vma = unsafe { &*found.as_ptr() };
        if !vma.lock.try_read(&core.sequence, || platform.unpark(vma_key(vma))) {
            return None;
        }
        let hold = VmaHold { platform, vma };
        // What the lookup saw may have been torn: only now, under the lock, is the range to be believed.
        vma.range().contains(addr).then_some(hold)
    }

    #[cold]
    fn fault_locked(&self, addr: VirtAddr, access: Access) -> Result<(), FaultError> {
        let core = self.core();
        loop {
            {
                let _guard = core.mmap_lock.read(self.spaces.platform());
                // SAFETY: the mmap lock is held.
                let view = unsafe { core.vmas.view() };
                let entry = view.first_ending_after(addr).ok_or(FaultError::NotMapped)?;
                // SAFETY: a VMA in the tree is live while the mmap lock is held.
                let vma = unsafe { entry.value.as_ref() };
                if entry.range.contains(addr) {
                    return self.resolve_locked(vma, addr, access);
                }
                if !vma.flags().is_stack() {
                    return Err(FaultError::NotMapped);
                }
            }
            // The mmap lock is dropped in between, so everything is looked up again afterwards.
            Section::begin(self.spaces, core).grow_stack(self, addr).map_err(|_| FaultError::NotMapped)?;
        }
    }

    /// Resolves a fault in `vma`. The mmap lock is held in some way.
    pub(crate) fn resolve_locked(&self, vma: &Vma, addr: VirtAddr, access: Access) -> Result<(), FaultError> {
        loop {
            let pin = self.spaces.platform().pin();
            match self.tables().resolve(&pin, vma, addr, access) {
                Ok(()) => return Ok(()),
                Err(Refusal::Fault(error)) => return Err(error),
                Err(Refusal::NeedsGroup) => self.give_group(vma),
            }
        }
    }

    /// Gives `vma` the group of its private pages: a neighbour's if the two could be one VMA but for their
    /// permissions, else a new one. The mmap lock is held in some way.
    pub(crate) fn give_group(&self, vma: &Vma) {
        let facts = vma.facts();
        if facts.anon.is_some() {
            return;
        }
        // SAFETY: the mmap lock is held.
        let view = unsafe { self.core().vmas.view() };
        let neighbours =
            [view.first_ending_after(facts.range.end()), view.last_starting_before(facts.range.start())];
        let shared = neighbours
            .into_iter()
            .flatten()
            // SAFETY: a VMA in the tree is live while the mmap lock is held.
            .map(|entry| unsafe { entry.value.as_ref() }.facts())
            .find_map(|neighbour| neighbour.group_to_share(&facts));
        vma.set_anon_once(shared.unwrap_or_else(|| self.spaces.new_group()));
    }
}

impl VmaFacts {
    /// This VMA's group, if `other`, its neighbour, may use it too.
    fn group_to_share(&self, other: &Self) -> Option<AnonGroup> {
        let (low, high) =
            if self.range.start() < other.range.start() { (self, other) } else { (other, self) };
        let alike = low.range.end() == high.range.start()
            && low.backing == high.backing
            && (low.flags ^ high.flags).difference(VmFlags::ACCESS).is_empty()
            && low.page_offset_at(high.range.start()) == high.page_offset;
        (alike && self.anon.is_some() && !self.anon.is_inherited()).then_some(self.anon)
    }
}

/// A frame that was allocated before the lock was taken. It goes back if it turns out not to be needed.
struct SpareFrame<'s, 'p, P: Platform> {
    tables: Tables<'s, P>,
    pin: &'s Pin<'p, P>,
    /// What it will be: this depends on the mapping and the access, not on the entry.
    kind: Kind,
    pfn: Option<Pfn>,
}

impl<P: Platform> SpareFrame<'_, '_, P> {
    fn fill(&mut self) -> Result<(), AllocError> {
        let frames = self.tables.spaces.frames();
        self.pfn = Some(frames.allocate(self.pin, AllocRequest::anonymous().kind(self.kind))?);
        Ok(())
    }
}

impl<P: Platform> Drop for SpareFrame<'_, '_, P> {
    fn drop(&mut self) {
        if let Some(pfn) = self.pfn {
            self.tables.spaces.release_unused(self.pin, pfn);
        }
    }
}

impl<P: Platform> Tables<'_, P> {
    /// Makes `access` to `addr` in `vma` possible. The VMA is held by its own lock or by the mmap lock.
    #[inline]
    pub(crate) fn resolve(
        &self,
        pin: &Pin<'_, P>,
        vma: &Vma,
        addr: VirtAddr,
        access: Access,
    ) -> Result<(), Refusal> {
        let facts = vma.facts();
        let may = if access == Access::Write { VmFlags::WRITE } else { VmFlags::ACCESS };
        if !facts.flags.intersects(may) {
            return Err(FaultError::AccessDenied.into());
        }
        let shared = facts.flags.contains(VmFlags::SHARED);
        if access == Access::Write && !shared && !facts.anon.is_some() {
            return Err(Refusal::NeedsGroup);
        }
        let table = self.find_or_make(pin, addr)?;
        let index = P::Paging::index(addr, Level::PTE);
        // The frame is made ready before the lock is taken, going by a look without it.
        let kind = if access == Access::Write && !shared { Kind::Anonymous } else { Kind::File };
        let mut spare = SpareFrame { tables: *self, pin, kind, pfn: None };
        let seen = self.entries(table)[index].load(core::sync::atomic::Ordering::Relaxed);
        if needs_frame(&facts, access, P::Paging::decode(seen, Level::PTE)) {
            spare.fill()?;
        }
        loop {
            let locked = self.lock(pin, table, Level::PTE);
            let entry = locked.get(index);
            if needs_frame(&facts, access, entry) && spare.pfn.is_none() {
                // The entry changed since the look.
                drop(locked);
                spare.fill()?;
                continue;
            }
            if let Entry::Leaf(leaf) = entry
                && access == Access::Write
                && self.must_copy(&locked, index, leaf, &facts)
            {
                let held = self.hold(leaf.pfn);
                drop(locked);
                return held.map_or(Ok(()), |held| self.copy_on_write(&held, (table, index), &facts, addr));
            }
            return match entry {
                Entry::None => {
                    self.install_page(&locked, index, &facts, addr, access, spare.pfn.take());
                    Ok(())
                }
                Entry::Leaf(leaf) => self
                    .upgrade(&locked, index, leaf, &facts, addr, access, &mut spare)
                    .map_err(Refusal::from),
                Entry::Marker(quire_arch::paging::PteMarker::Guard) => Err(FaultError::NotMapped.into()),
                _ => Err(FaultError::Bus.into()),
            };
        }
    }

    /// Puts the page that `access` needs into an empty entry.
    #[inline]
    fn install_page(
        &self,
        locked: &LockedTable<'_, P>,
        index: usize,
        facts: &VmaFacts,
        addr: VirtAddr,
        access: Access,
        frame: Option<Pfn>,
    ) {
        let mut flags = facts.flags.leaf_flags() | LeafFlags::ACCESSED;
        let pfn = match frame {
            None => {
                flags = (flags - LeafFlags::WRITE) | LeafFlags::SPECIAL;
                self.spaces.zero_page()
            }
            Some(pfn) => {
                let private = !facts.flags.contains(VmFlags::SHARED);
                let anonymous = private && access == Access::Write;
                self.spaces.init_page(pfn, facts, addr);
                self.core.usage.page_mapped(anonymous);
                flags.set(LeafFlags::DIRTY, access == Access::Write);
                if private && !anonymous {
                    // The first write makes the page the program's own, so it must fault.
                    flags.remove(LeafFlags::WRITE);
                }
                pfn
            }
        };
        locked.install(index, Entry::Leaf(Leaf { pfn, flags }));
    }

    /// Makes a page that is there allow `access`.
    #[expect(clippy::too_many_arguments, reason = "the parts of one fault; a struct would only rename them")]
    fn upgrade(
        &self,
        locked: &LockedTable<'_, P>,
        index: usize,
        leaf: Leaf,
        facts: &VmaFacts,
        addr: VirtAddr,
        access: Access,
        spare: &mut SpareFrame<'_, '_, P>,
    ) -> Result<(), FaultError> {
        if leaf.flags.contains(access.needs()) {
            // Somebody else was faster, or the TLB held an older entry.
            return Ok(());
        }
        if access == Access::Execute && !facts.flags.contains(VmFlags::EXEC) {
            return Err(FaultError::AccessDenied);
        }
        if leaf.flags.contains(LeafFlags::SPECIAL) {
            if let Some(pfn) = spare.pfn.take() {
                // First nothing, then the flush, then the new page: no CPU may go on reading zeros from the shared
                // page after another has written to the new one.
                locked.replace(index, Entry::None);
                self.core.flush(spare.pin, page_of(addr));
                self.spaces.init_page(pfn, facts, addr);
                self.core.usage.page_mapped(true);
                let flags = facts.flags.leaf_flags() | LeafFlags::ACCESSED | LeafFlags::DIRTY;
                locked.replace(index, Entry::Leaf(Leaf { pfn, flags }));
            }
            return Ok(());
        }
        let frame = self.spaces.frames().folio(leaf.pfn).frame();
        if access == Access::Write && !facts.flags.contains(VmFlags::SHARED) {
            if frame.kind() == Kind::File {
                // Nobody else has the page (docs/differences.md), so it becomes anonymous where it is.
                let taken = frame.classify(Kind::Allocated).and_then(|()| frame.classify(Kind::Anonymous));
                debug_assert!(taken.is_ok(), "a file page could not become anonymous");
                self.core.usage.file_page_made_anonymous();
            }
            self.spaces.frames().events().add(spare.pin, VmEvent::Pgreuse, 1);
        }
        // More is allowed than before, so older translations do no harm: they fault and find this. What is not known to be
        // the program's own stays write-protected on a read.
        let mut allowed = facts.flags.leaf_flags();
        if access != Access::Write && !facts.flags.contains(VmFlags::SHARED) {
            allowed.remove(LeafFlags::WRITE);
        }
        locked.widen(index, allowed);
        Ok(())
    }
}

/// Whether `access` to a page in this state takes a frame of its own.
#[inline]
fn needs_frame(facts: &VmaFacts, access: Access, entry: Entry) -> bool {
    match entry {
        Entry::None => access == Access::Write || !facts.backing.is_anonymous(),
        Entry::Leaf(leaf) => access == Access::Write && leaf.flags.contains(LeafFlags::SPECIAL),
        _ => false,
    }
}
