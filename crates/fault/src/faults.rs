//! Attempts at a fault.
//!
//! An attempt looks the VMA up under the epoch and takes the VMA's own lock, or is made under the mmap lock.
//! It finds or makes the tables, gets a page, and installs it under the table's lock.

mod read_ahead;

use crate::error::Refusal;
use crate::new_page::{allocate_new_page, map_new_page, place_of_new_page};
use crate::resolve::Resolver;
use crate::step::Step;
use crate::swapped_in::SwappedIn;
use crate::vm_fault::VmFault;
use crate::vma_hold::VmaHold;
use core::fmt;
use quire_arch::{Access, Pin, Platform, VirtAddr};
use quire_frame::{AllocError, VmEvent};
use quire_memcg::MemcgStat;
use quire_pagetable::{Found, MemoryCore, Tables};
use quire_thp::Thp;
use quire_vma::{SpaceCore, Vma};

/// The faults of one space.
pub struct Faults<'s, P: Platform> {
    thp: Thp<'s, P>,
    core: &'s SpaceCore,
}

impl<'s, P: Platform> Faults<'s, P> {
    /// Those of the space of `core`, which is one of the machine of `thp`.
    #[inline]
    pub fn new(thp: Thp<'s, P>, core: &'s SpaceCore) -> Self {
        Self { thp, core }
    }

    #[inline]
    fn memory(&self) -> &'s MemoryCore<P> {
        self.thp.memory()
    }

    #[inline]
    fn tables(&self) -> Tables<'s, P> {
        Tables::new(self.memory(), &self.core.tables)
    }

    /// One attempt at a fault without the mmap lock, which is counted so many times: not at all if it is not
    /// the first one. `None` if that lock is needed.
    #[inline]
    pub fn attempt(
        &self,
        addr: VirtAddr,
        access: Access,
        counted: u64,
        swapped: Option<&SwappedIn<'_, P>>,
    ) -> Option<Result<(), Refusal>> {
        let memory = self.memory();
        let pin = memory.platform().pin();
        memory.frames().events().add(&pin, VmEvent::Pgfault, counted);
        // To the end: the lock of the VMA does not keep its tables, and its release still uses the VMA.
        let epoch = memory.frames().epoch().enter(&pin);
        let memcg = self.core.memcg();
        memory.memcgs().counters().add_stat(&pin, memcg, MemcgStat::Pgfault, counted as i64);
        let hold = VmaHold::find(memory.platform(), self.core, &epoch, addr)?;
        match self.resolve(&pin, hold.vma(), (addr, access), swapped) {
            Err(Refusal::NeedsAnonVma) => None,
            result => Some(result),
        }
    }

    /// One attempt at a fault in `vma`, which gets an anon_vma if it needs one.
    ///
    /// # Errors
    ///
    /// What prevents it.
    ///
    /// # Safety
    ///
    /// `vma` is in the tree of the space, whose mmap lock is held in some way until this returns.
    pub unsafe fn attempt_in(
        &self,
        vma: &Vma,
        addr: VirtAddr,
        access: Access,
        swapped: Option<&SwappedIn<'_, P>>,
    ) -> Result<(), Refusal> {
        loop {
            let resolved = {
                let pin = self.memory().platform().pin();
                let _section = self.memory().frames().epoch().enter(&pin);
                self.resolve(&pin, vma, (addr, access), swapped)
            };
            match resolved {
                // SAFETY: the caller's promise.
                Err(Refusal::NeedsAnonVma) => unsafe { self.give_anon_vma(vma) }?,
                result => return result,
            }
        }
    }

    /// Makes the access possible in `vma`, which is held by its own lock or by the mmap lock. The caller is
    /// in a section of the epoch.
    // As a call of its own it costs each fault twenty instructions, since what it passes on leaves registers.
    #[inline(always)]
    fn resolve(
        &self,
        pin: &Pin<'_, P>,
        vma: &Vma,
        (addr, access): (VirtAddr, Access),
        swapped: Option<&SwappedIn<'_, P>>,
    ) -> Result<(), Refusal> {
        let tables = self.tables();
        let found = tables.lookup(addr);
        if let Some(place) = place_of_new_page(&tables, (found, addr), access, vma, self.thp.controls()) {
            let page = (allocate_new_page(&tables, pin)?, vma.snapshot().new_page(addr));
            match map_new_page((&tables, self.core), pin, place, addr, page) {
                Ok(Step::Done) => return Ok(()),
                Ok(Step::LookAgain) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        self.resolve_other(pin, vma, (addr, access), swapped, found)
    }

    /// The same for all faults but the usual one; `found` is what leads to the page.
    #[inline(never)]
    fn resolve_other(
        &self,
        pin: &Pin<'_, P>,
        vma: &Vma,
        (addr, access): (VirtAddr, Access),
        swapped: Option<&SwappedIn<'_, P>>,
        found: Found,
    ) -> Result<(), Refusal> {
        let (space, huge) = (self.core, self.thp.controls());
        let window = &vma.swap_window;
        let fault = VmFault { space, vma: &vma.snapshot(), addr, access, swapped, window, huge };
        Resolver { tables: self.tables(), thp: self.thp, pin, fault }.resolve(found)
    }

    /// Gives `vma` the anon_vma of its private pages: a neighbour's if the two could be one VMA but for their
    /// permissions, else a new one. The caller is not pinned.
    ///
    /// # Errors
    ///
    /// When there is no memory for it.
    ///
    /// # Safety
    ///
    /// `vma` is in the tree of the space, whose mmap lock is held in some way until this returns.
    pub unsafe fn give_anon_vma(&self, vma: &Vma) -> Result<(), AllocError> {
        let snapshot = vma.snapshot();
        if snapshot.anon.is_some() {
            return Ok(());
        }
        // SAFETY: the caller's promise. If a writer has the lock, it changes nothing meanwhile.
        let view = unsafe { self.core.vmas.view() };
        let neighbours = [
            view.first_ending_after(snapshot.range.end()),
            view.last_starting_before(snapshot.range.start()),
        ];
        let shared = neighbours
            .into_iter()
            .flatten()
            // SAFETY: a VMA in the tree is live while the mmap lock is held.
            .map(|entry| unsafe { entry.value.as_ref() }.snapshot())
            .find_map(|neighbour| neighbour.anon_vma_to_share(&snapshot));
        self.thp.rmap().give_first_anon_vma(self.core, vma, shared)
    }
}

impl<P: Platform> fmt::Debug for Faults<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").field("space", &self.core.id()).finish_non_exhaustive()
    }
}
