//! Pinning pages for devices.

mod fast;

pub(crate) use fast::pin_page_fast;

use crate::caller::Caller;
use crate::calls::fault::resolve_locked;
use crate::spaces::{Attempts, HeldOpening, Spaces};
use core::fmt;
use quire_arch::{Access, Entry, LeafFlags, Level, PagingFormat, Pfn, Platform, VirtAddr};
use quire_fault::{FaultError, Refusal, copy_on_write, hold_page, is_own, must_copy};
use quire_file::CachedFile;
use quire_frame::{AllocError, FrameChain, FrameFlags};
use quire_pagetable::{FlushCause, Found, HugeLeaves, HugeSlot, Tables, page_of};
use quire_vma::{VmFlags, Vma, VmaSnapshot};

/// A page of a space that a device may read and write until this is dropped. It stays in place, and the
/// program sees the device's writes until it unmaps the page. After a `fork` the child has a copy, but of a
/// page of a file. A pin for writing of one of those keeps the file open, and to drop it may sleep.
#[must_use = "the pin ends when this is dropped"]
pub struct PinnedPage<'m, P: Platform> {
    spaces: &'m Spaces<P>,
    pfn: Pfn,
    /// Whether the device may write to it.
    writes: bool,
    /// What the device writes goes to this file. Dropped last, when the page is no longer pinned.
    _file: Option<HeldOpening<'m, P>>,
}

/// A page that a call has pinned, and the open file that is to be held meanwhile.
pub(crate) struct Pinned<'m, P: Platform> {
    pub(crate) pfn: Pfn,
    pub(crate) file: Option<HeldOpening<'m, P>>,
}

impl<'m, P: Platform> PinnedPage<'m, P> {
    /// The page that the caller has pinned for `access`.
    #[inline]
    pub(crate) fn new(spaces: &'m Spaces<P>, pinned: Pinned<'m, P>, access: Access) -> Self {
        Self { spaces, pfn: pinned.pfn, writes: access == Access::Write, _file: pinned.file }
    }

    /// Its frame.
    pub fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// Marks the page dirty. One of a file's cache is marked there, too, which takes the folio lock.
    fn mark_written(&self) {
        let frames = self.spaces.frames();
        let folio = frames.folio(self.pfn);
        if !folio.is_in_file_cache() {
            folio.frame().set_flags(FrameFlags::DIRTY);
            return;
        }
        let Some(_locked) = frames.folios().lock_folio(folio.head()) else { return };
        // SAFETY: the folio is locked. Truncation may have taken it out of the cache: then no file is found.
        if let Some(file) = unsafe { CachedFile::<P>::of_folio(frames, folio.head()) } {
            file.mark_dirty(frames, folio.head());
        }
    }

    /// Ends a pin. The folio enters `chain` if this was the last reference.
    pub(super) fn unpin(spaces: &Spaces<P>, chain: &mut FrameChain, pfn: Pfn) {
        let (head, order) = spaces.frames().folios().unpin_folio(pfn);
        spaces.memcgs().folios().put_folio(chain, head, order);
    }
}

impl<P: Platform> Drop for PinnedPage<'_, P> {
    fn drop(&mut self) {
        if self.pfn == self.spaces.zero_page() {
            return;
        }
        if self.writes {
            // No entry says what the device wrote. Before the pin ends: reclaim, which finds no pin then,
            // finds the mark.
            self.mark_written();
        }
        let pin = self.spaces.platform().pin();
        let mut chain = FrameChain::new();
        PinnedPage::unpin(self.spaces, &mut chain, self.pfn);
        self.spaces.frames().free_chain(&pin, chain);
    }
}

impl<P: Platform> fmt::Debug for PinnedPage<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PinnedPage").field(&self.pfn).finish()
    }
}

/// The outcome of one attempt to pin a page.
enum Attempt {
    Pinned(Pfn),
    /// What is mapped there has changed, or does so now.
    Changed,
    /// The refcount would overflow: as in Linux it fails as if without memory, and none is freed for that.
    Overflow,
}

/// Pins the page for a caller that keeps it as long as `spaces`, its machine's, are there.
pub(crate) fn pin_page<'m, P: Platform>(
    caller: Caller<'_, P>,
    spaces: &'m Spaces<P>,
    addr: VirtAddr,
    access: Access,
) -> Result<Pinned<'m, P>, FaultError> {
    if let Some(pfn) = pin_page_fast(caller, addr, access) {
        return Ok(Pinned { pfn, file: None });
    }
    let core = caller.core;
    let mut attempts = Attempts::new();
    let mut attempt = 0;
    loop {
        {
            let mappings = core.read_mappings(caller.spaces.platform());
            let vma = mappings.find(addr).ok_or(FaultError::NotMapped)?;
            resolve_locked(caller.spaces, core, vma, addr, access)?;
            let attempt = match pin_mapped(caller, vma, addr, access) {
                Err(Refusal::NeedsAnonVma) => {
                    // SAFETY: `mappings`, where it was found, holds the mmap lock.
                    let given = unsafe { caller.faults().give_anon_vma(vma) };
                    given.map(|()| Attempt::Changed).map_err(Refusal::from)
                }
                attempt => attempt,
            };
            match attempt {
                Ok(Attempt::Pinned(pfn)) => {
                    let backing = vma.snapshot().notices_writes().then(|| vma.backing());
                    // SAFETY: the VMA holds its opening, and stays while the mmap lock is held.
                    let opening = backing.and_then(|backing| unsafe { backing.opening() });
                    let written = opening.filter(|_| access == Access::Write);
                    let file = written.map(|opening| HeldOpening::new(spaces, opening));
                    return Ok(Pinned { pfn, file });
                }
                Ok(Attempt::Overflow) => return Err(AllocError::OutOfMemory.into()),
                Ok(Attempt::Changed) => {}
                Err(_) if core.is_killed() => return Err(FaultError::Killed),
                // As for a fault: memory is freed for it.
                Err(refusal) => {
                    caller.spaces.direct_reclaim().resolve_refusal(core, refusal, &mut attempts)?;
                }
            }
        }
        P::relax(attempt);
        attempt = attempt.saturating_add(1);
    }
}

/// Pins what `addr` maps, if it allows `access`. The mmap lock is held in some way.
///
/// # Errors
///
/// What is missing for the copy that it takes.
fn pin_mapped<P: Platform>(
    caller: Caller<'_, P>,
    vma: &Vma,
    addr: VirtAddr,
    access: Access,
) -> Result<Attempt, Refusal> {
    let tables = caller.tables();
    let snapshot = vma.snapshot();
    let index = P::Paging::index(addr, Level::PTE);
    let pin = caller.spaces.platform().pin();
    let table = match tables.lookup(addr) {
        Found::Table(table) => table,
        Found::Huge(slot) => return pin_huge(caller, slot, (addr, index as u64), &snapshot, access),
        Found::Nothing => return Ok(Attempt::Changed),
    };
    let locked = tables.lock(&pin, table, Level::PTE);
    let Entry::Leaf(leaf) = locked.get(index) else { return Ok(Attempt::Changed) };
    if !leaf.flags.contains(access.needs()) {
        return Ok(Attempt::Changed);
    }
    if leaf.flags.contains(LeafFlags::SPECIAL) {
        return Ok(Attempt::Pinned(leaf.pfn));
    }
    let private = may_have_copies(&snapshot);
    if private
        && leaf.flags.contains(LeafFlags::WRITE)
        && caller.spaces.frames().folio(leaf.pfn).is_large()
        && !is_own(&tables, &locked, index, leaf.pfn)
    {
        // A part of the folio is shared with a child that did not get this part. A pinned page must stay
        // the program's own on a later write, so it is copied.
        locked.write_protect(index);
        tables.space().flush(caller.spaces.frames(), &pin, page_of(addr), FlushCause::CopyOnWrite);
        return Ok(Attempt::Changed);
    }
    if private && must_copy(&tables, &locked, index, leaf, &snapshot) {
        if !snapshot.anon.is_some() {
            // A page of a file that a fork has shared for the guard pages beside it.
            return Err(Refusal::NeedsAnonVma);
        }
        let Some(held) = hold_page(&tables, leaf.pfn) else { return Ok(Attempt::Changed) };
        drop(locked);
        return copy_on_write(&tables, held, (table, index), &snapshot, addr).map(|_| Attempt::Changed);
    }
    Ok(pin_once_more(caller, leaf.pfn))
}

/// The same for `addr`, page `nth` of what a large leaf maps. A folio that others see is split first.
fn pin_huge<P: Platform>(
    caller: Caller<'_, P>,
    slot: HugeSlot,
    (addr, nth): (VirtAddr, u64),
    snapshot: &VmaSnapshot,
    access: Access,
) -> Result<Attempt, Refusal> {
    let tables = caller.tables();
    let frames = caller.spaces.frames();
    let pin = caller.spaces.platform().pin();
    let locked = tables.lock_slot(&pin, slot);
    let Some(leaf) = Tables::huge_leaf(&locked, slot) else { return Ok(Attempt::Changed) };
    if !leaf.flags.contains(access.needs()) {
        return Ok(Attempt::Changed);
    }
    if leaf.flags.contains(LeafFlags::SPECIAL) {
        // It reads the same, and always exists.
        return Ok(Attempt::Pinned(caller.spaces.zero_page()));
    }
    let own = !may_have_copies(snapshot) || {
        let folio = frames.folios().lock_head(leaf.pfn);
        folio.is_exclusive() || folio.claim(Tables::<P>::huge_pages())
    };
    if !own {
        let is_of_file = tables.maps_cached(leaf);
        drop(locked);
        HugeLeaves::new(&tables).split_huge(slot);
        if is_of_file {
            // That took it out. With a table in its place the fault does not map it so again.
            let _ = tables.make(&pin, addr, Level::PTE)?;
        }
        return Ok(Attempt::Changed);
    }
    Ok(pin_once_more(caller, leaf.pfn.offset(nth)))
}

/// Whether the program can have pages of its own in the mapping. As in Linux, what is shared of a file that
/// is open for reading only is neither SHARED nor MAYWRITE.
fn may_have_copies(vma: &VmaSnapshot) -> bool {
    vma.flags & (VmFlags::SHARED | VmFlags::MAYWRITE) == VmFlags::MAYWRITE
}

/// Adds a pin.
fn pin_once_more<P: Platform>(caller: Caller<'_, P>, pfn: Pfn) -> Attempt {
    if caller.spaces.frames().folios().pin_folio(pfn) { Attempt::Pinned(pfn) } else { Attempt::Overflow }
}
