//! A section under the mmap lock held for writing: the only place where mappings change.
//!
//! Every change is in two steps: [`MmapWriter::prepare`] gets all memory that the change can need, and may
//! fail with nothing changed; then the change itself cannot fail. VMAs that change are write-locked first, so
//! that no fault is in them, and stay so until the section ends.

mod extend;
mod hugetlb;
mod install;
mod limits;
mod prepared;
mod unmap;

pub(crate) use prepared::Prepared;

use crate::error::Error;
use crate::spaces::Spaces;
use core::ptr::{self, NonNull};
use quire_arch::{PAGE_SIZE, Platform, VirtAddr, VirtRange};
use quire_fault::Faults;
use quire_file::ClosingStack;
use quire_pagetable::{HugeLeaves, Tables};
use quire_sync::RwSleepWriteGuard;
use quire_vma::{
    AnonVmaRef, Backing, Emptied, Freed, Proposal, Rights, RmapLocks, SpaceCore, VmFlags, Vma, VmaSnapshot,
    may_split,
};
use quire_vma_tree::tree::Writer;

/// The mmap lock of one space, held for writing.
pub(crate) struct MmapWriter<'s, P: Platform> {
    pub(crate) spaces: &'s Spaces<P>,
    pub(crate) core: &'s SpaceCore,
    /// The caller's rights. None beyond the limits if it is the kernel itself.
    pub(crate) rights: Rights,
    tree: Writer<'s, Vma, Spaces<P>>,
    /// What VMAs have left in this section: released at its end, when their pages are out of the tables.
    emptied: Emptied<'s, P>,
    // Dropped last.
    _guard: RwSleepWriteGuard<'s, P>,
}

/// The neighbours that absorb a new mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neighbours<'s> {
    previous: Option<&'s Vma>,
    next: Option<&'s Vma>,
}

impl Neighbours<'_> {
    /// VMAs that the new mapping takes: none where a neighbour absorbs it.
    pub(crate) fn vmas_needed(&self) -> usize {
        usize::from(self.previous.is_none() && self.next.is_none())
    }
}

impl<'s, P: Platform> MmapWriter<'s, P> {
    /// Takes the mmap lock for a call whose caller may do what `rights` say. Open files that lose their last
    /// holder come to `closing`.
    #[inline]
    pub(crate) fn begin_with(
        (spaces, core): (&'s Spaces<P>, &'s SpaceCore),
        rights: Rights,
        closing: &'s ClosingStack<Vma>,
    ) -> Self {
        Self::with((spaces, core), rights, closing, core.mmap_lock.write(spaces.platform()))
    }

    /// Takes the mmap lock.
    #[inline]
    pub(crate) fn begin(spaces: &'s Spaces<P>, core: &'s SpaceCore) -> Self {
        Self::begin_with((spaces, core), Rights::empty(), spaces.rmap().closing())
    }

    /// The same if the lock can be taken at once.
    pub(crate) fn try_begin(spaces: &'s Spaces<P>, core: &'s SpaceCore) -> Option<Self> {
        core.mmap_lock
            .try_write(spaces.platform())
            .map(|guard| Self::with((spaces, core), Rights::empty(), spaces.rmap().closing(), guard))
    }

    #[inline]
    fn with(
        (spaces, core): (&'s Spaces<P>, &'s SpaceCore),
        rights: Rights,
        closing: &'s ClosingStack<Vma>,
        guard: RwSleepWriteGuard<'s, P>,
    ) -> Self {
        // SAFETY: the mmap lock is held for writing while the section lives, and views are made under it
        // only.
        let tree = unsafe { core.vmas.writer(spaces) };
        Self { spaces, core, rights, tree, emptied: Emptied::new(spaces.rmap(), closing), _guard: guard }
    }

    pub(crate) fn tables(&self) -> Tables<'s, P> {
        Tables::new(self.spaces.memory(), &self.core.tables)
    }

    /// Faults, with the mmap lock held as it is.
    pub(crate) fn faults(&self) -> Faults<'s, P> {
        Faults::new(self.spaces.thp(), self.core)
    }

    /// Number of mappings.
    pub(crate) fn mappings(&self) -> u64 {
        self.tree.len() as u64
    }

    fn vma(&self, vma: NonNull<Vma>) -> &'s Vma {
        // SAFETY: VMAs are freed only out of the tree and under the mmap lock, which this section holds;
        // callers pass what they found in the tree in this section.
        unsafe { vma.as_ref() }
    }

    /// The VMA that holds `addr`.
    pub(crate) fn find(&self, addr: VirtAddr) -> Option<&'s Vma> {
        self.tree.find(addr).map(|entry| self.vma(entry.value))
    }

    /// The lowest VMA that ends after `addr`.
    pub(crate) fn first_ending_after(&self, addr: VirtAddr) -> Option<&'s Vma> {
        self.tree.first_ending_after(addr).map(|entry| self.vma(entry.value))
    }

    /// The highest VMA that starts before `addr`.
    pub(crate) fn last_starting_before(&self, addr: VirtAddr) -> Option<&'s Vma> {
        self.tree.last_starting_before(addr).map(|entry| self.vma(entry.value))
    }

    /// The highest VMA that ends at or before `addr`, and the lowest that ends after it.
    pub(crate) fn beside(&self, addr: VirtAddr) -> (Option<&'s Vma>, Option<&'s Vma>) {
        let (below, above) = self.tree.beside(addr);
        (below.map(|entry| self.vma(entry.value)), above.map(|entry| self.vma(entry.value)))
    }

    /// The lowest VMA that shares an address with `range`; none does with an empty one, also inside of a VMA.
    #[inline]
    pub(crate) fn first_in(&self, range: VirtRange) -> Option<&'s Vma> {
        self.first_ending_after(range.start())
            .filter(|vma| !range.is_empty() && vma.range().start() < range.end())
    }

    /// The highest free range within `within` of at least `len` bytes, clipped to `within`.
    pub(crate) fn highest_gap(&self, len: u64, within: VirtRange) -> Option<VirtRange> {
        self.tree.highest_gap(len, within)
    }

    /// The lowest such range.
    pub(crate) fn lowest_gap(&self, len: u64, within: VirtRange) -> Option<VirtRange> {
        self.tree.lowest_gap(len, within)
    }

    /// Write-locks a VMA until the section ends.
    pub(crate) fn lock_vma(&self, vma: &Vma) {
        let platform = self.spaces.platform();
        vma.lock.write(&self.core.sequence, |readers| platform.park(vma.lock_key(), readers));
    }

    /// Takes the locks of the trees that lead from pages to VMAs that map `backing` and have one of these
    /// anon_vmas. They are held for all steps of one change of mappings, so that a walker of the rmap finds
    /// the mappings as they were before or as they are after. VMAs are write-locked before. A VMA in the
    /// tree names `backing`, or the caller holds it.
    pub(crate) fn lock_rmap(
        &self,
        backing: Backing,
        anon_vmas: impl IntoIterator<Item = AnonVmaRef>,
    ) -> RmapLocks<'s, P> {
        // SAFETY: what VMAs hold is released at the end of the section, after the locks.
        unsafe { RmapLocks::take(self.spaces.platform(), backing, anon_vmas) }
    }

    /// Changes a VMA that is in the tree; its place in the order stays.
    pub(crate) fn set_vma(&mut self, vma: &Vma, snapshot: VmaSnapshot, rmap_locks: &RmapLocks<'s, P>) {
        debug_assert!(vma.lock.is_write_locked(&self.core.sequence));
        debug_assert_eq!(vma.backing(), snapshot.backing, "a VMA maps one thing all its life");
        rmap_locks.place(self.core, vma, &snapshot, &self.emptied);
        let old = vma.range();
        if old != snapshot.range {
            let moved = self.tree.set_range(old.start(), snapshot.range);
            debug_assert!(moved.is_ok(), "a VMA's new range is wrong: {moved:?}");
        }
        vma.set(snapshot);
    }

    /// Gives the VMA that is about to absorb others their anon_vma: before they leave it, since an anon_vma
    /// that was left by its last VMA is being freed.
    fn give_taker_anon_vma(&mut self, taker: Option<&Vma>, anon: AnonVmaRef, rmap_locks: &RmapLocks<'s, P>) {
        if let Some(taker) = taker {
            self.set_vma(taker, VmaSnapshot { anon, ..taker.snapshot() }, rmap_locks);
        }
    }

    /// Puts a prepared VMA into the tree.
    pub(crate) fn insert_vma(
        &mut self,
        snapshot: VmaSnapshot,
        prepared: &mut Prepared<'_, P>,
        rmap_locks: &RmapLocks<'s, P>,
    ) -> Option<&'s Vma> {
        self.core.note_flags(snapshot.flags);
        let vma = prepared.take(snapshot);
        debug_assert!(vma.is_some(), "a change needed more VMAs than were prepared");
        let vma = vma?;
        // No fault may use it before the section ends.
        self.vma(vma).lock.write_lock_new(&self.core.sequence);
        let inserted = self.tree.insert(snapshot.range, vma);
        debug_assert!(inserted.is_ok(), "a VMA could not be inserted: {inserted:?}");
        rmap_locks.place(self.core, self.vma(vma), &snapshot, &self.emptied);
        self.core.usage.note_mappings(self.mappings());
        Some(self.vma(vma))
    }

    /// Takes a VMA out of the tree and frees it after the epoch: now, or at the end of the section. The
    /// caller has write-locked it.
    fn remove_vma(&mut self, vma: &Vma, rmap_locks: &RmapLocks<'s, P>) {
        let freed = rmap_locks.leave(vma, &self.emptied);
        let platform = self.spaces.platform();
        vma.lock.detach(|readers| platform.park(vma.lock_key(), readers));
        if let Some(entry) = self.tree.remove(vma.range().start()) {
            debug_assert!(ptr::eq(entry.value.as_ptr(), vma));
            if freed == Freed::AtTheEnd {
                return;
            }
            // SAFETY: every VMA in a tree came from `allocate`; it is detached and out of the tree, and
            // the reference that we hold is not used after this.
            unsafe { self.spaces.vmas().retire(entry.value) };
        }
    }

    /// Whether the address-space and data limits allow `pages` more of a mapping with `flags`.
    pub(crate) fn may_expand(&self, flags: VmFlags, pages: u64) -> Result<(), Error> {
        let limits = self.core.limits.load();
        let usage = &self.core.usage;
        let fits = |used: u64, limit: u64| used.saturating_add(pages) <= limit / PAGE_SIZE;
        if !fits(usage.mapped_pages(), limits.address_space) {
            return Err(Error::AddressSpaceLimit);
        }
        if flags.is_data() && !fits(usage.data_pages(), limits.data) {
            return Err(Error::DataLimit);
        }
        Ok(())
    }

    /// The neighbours that a new mapping of `proposal` would merge with, were everything in its range
    /// unmapped.
    pub(crate) fn neighbours_for(&self, proposal: &Proposal) -> Neighbours<'s> {
        let range = proposal.range;
        let previous = self.last_starting_before(range.start());
        let next = self.first_ending_after(range.end());
        Self::neighbours_of(proposal, (previous, next))
    }

    /// As [`neighbours_for`](Self::neighbours_for), where `previous` and `next` are the VMAs below and above.
    #[inline]
    pub(crate) fn neighbours_of(
        proposal: &Proposal,
        (previous, next): (Option<&'s Vma>, Option<&'s Vma>),
    ) -> Neighbours<'s> {
        let range = proposal.range;
        let choice = proposal.merges(
            previous.map(|vma| clip_end(vma.snapshot(), range.start())).as_ref(),
            next.map(|vma| clip_start(vma.snapshot(), range.end())).as_ref(),
        );
        Neighbours { previous: previous.filter(|_| choice.previous), next: next.filter(|_| choice.next) }
    }

    /// The VMAs that unmapping `range` needs: one if it is inside of a VMA.
    pub(crate) fn vmas_to_unmap(&self, range: VirtRange) -> usize {
        usize::from(
            self.find(range.start())
                .is_some_and(|vma| vma.range().start() < range.start() && range.end() < vma.range().end()),
        )
    }

    /// Maps `proposal` into a range that is free, merging it with `neighbours` (asked for while the range was
    /// free), and counts it. Returns the locks of the trees that it is in then: for as long as the
    /// caller holds them, no walker of the rmap sees the new mapping.
    pub(crate) fn map(
        &mut self,
        proposal: &Proposal,
        neighbours: Neighbours<'s>,
        prepared: &mut Prepared<'_, P>,
    ) -> RmapLocks<'s, P> {
        self.core.usage.map(proposal.flags, proposal.range.pages());
        let range = proposal.range;
        let Neighbours { previous, next } = neighbours;
        for vma in previous.iter().chain(next.iter()) {
            self.lock_vma(vma);
        }
        let anon = [previous, next]
            .into_iter()
            .flatten()
            .map(Vma::anon)
            .find(|anon| anon.is_some())
            .unwrap_or(proposal.anon);
        let rmap_locks = self.lock_rmap(proposal.backing, [anon]);
        self.give_taker_anon_vma(previous.or(next), anon, &rmap_locks);
        let sticky = sticky(proposal.flags, previous, next);
        let joined = |snapshot: VmaSnapshot| VmaSnapshot { flags: snapshot.flags | sticky, ..snapshot };
        match (previous, next) {
            (Some(previous), Some(next)) => {
                let end = next.range().end();
                self.remove_vma(next, &rmap_locks);
                let snapshot = joined(previous.snapshot());
                let range = VirtRange::new(snapshot.range.start(), end);
                self.set_vma(previous, VmaSnapshot { range, ..snapshot }, &rmap_locks);
            }
            (Some(previous), None) => {
                let snapshot = joined(previous.snapshot());
                let range = VirtRange::new(snapshot.range.start(), range.end());
                self.set_vma(previous, VmaSnapshot { range, ..snapshot }, &rmap_locks);
            }
            (None, Some(next)) => {
                let snapshot = joined(next.snapshot());
                let range = VirtRange::new(range.start(), snapshot.range.end());
                let page_offset = proposal.page_offset;
                self.set_vma(next, VmaSnapshot { range, page_offset, ..snapshot }, &rmap_locks);
            }
            (None, None) => {
                let Proposal { range, flags, page_offset, backing, anon } = *proposal;
                self.insert_vma(
                    VmaSnapshot { range, flags, page_offset, backing, anon },
                    prepared,
                    &rmap_locks,
                );
            }
        }
        rmap_locks
    }

    /// Gives `range`, which lies in `vma`, the flags `flags`: splits the VMA where only part of it changes
    /// and merges the part with equal neighbours. Returns the VMA that then holds the range.
    ///
    /// Pages keep their permissions: the caller changes them afterwards. Commit charges are the caller's too.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn modify(
        &mut self,
        vma: &'s Vma,
        range: VirtRange,
        flags: VmFlags,
    ) -> Result<&'s Vma, Error> {
        let snapshot = vma.snapshot();
        if snapshot.flags == flags {
            return Ok(vma);
        }
        let proposal = Proposal {
            range,
            flags,
            page_offset: snapshot.page_offset_at(range.start()),
            backing: snapshot.backing,
            anon: snapshot.anon,
        };
        let at_start = range.start() == snapshot.range.start();
        let at_end = range.end() == snapshot.range.end();
        let stays = at_start && at_end && flags.contains(VmFlags::COUNTED);
        let previous = if at_start && !stays { self.last_starting_before(range.start()) } else { None };
        let next = if at_end && !stays { self.first_ending_after(range.end()) } else { None };
        let choice = proposal.merges(previous.map(Vma::snapshot).as_ref(), next.map(Vma::snapshot).as_ref());
        let previous = previous.filter(|_| choice.previous);
        let next = next.filter(|_| choice.next);
        let merged = previous.is_some() || next.is_some();
        let splits = if merged { 0 } else { usize::from(!at_start) + usize::from(!at_end) };
        if splits > 0 {
            self.may_split_at(
                &snapshot,
                (!at_start).then_some(range.start()),
                (!at_end).then_some(range.end()),
            )?;
        }
        let mut prepared = self.prepare(splits)?;

        for vma in [Some(vma), previous, next].into_iter().flatten() {
            self.lock_vma(vma);
        }
        // A large leaf never crosses a border of mappings.
        HugeLeaves::new(&self.tables()).split_huge_at(range.start());
        HugeLeaves::new(&self.tables()).split_huge_at(range.end());
        self.core.usage.reclass(snapshot.flags, flags, range.pages());
        let anon = [Some(vma), previous, next]
            .into_iter()
            .flatten()
            .map(Vma::anon)
            .find(|anon| anon.is_some())
            .unwrap_or_default();
        let rmap_locks = self.lock_rmap(snapshot.backing, [anon]);
        self.give_taker_anon_vma(previous.or(next), anon, &rmap_locks);
        if let Some(taker) = self.apply_merge(vma, (previous, next), &proposal, &rmap_locks) {
            return Ok(taker);
        }
        let page_offset = proposal.page_offset;
        self.set_vma(vma, VmaSnapshot { range, flags, page_offset, ..snapshot }, &rmap_locks);
        if !at_start {
            self.insert_vma(clip_end(snapshot, range.start()), &mut prepared, &rmap_locks);
        }
        if !at_end {
            self.insert_vma(clip_start(snapshot, range.end()), &mut prepared, &rmap_locks);
        }
        Ok(vma)
    }

    /// Whether the VMA of `snapshot` may be split at these two places. Linux looks at the number of mappings
    /// and at the place for the first split, and then for the second.
    fn may_split_at(
        &self,
        snapshot: &VmaSnapshot,
        start: Option<VirtAddr>,
        end: Option<VirtAddr>,
    ) -> Result<(), Error> {
        let mut left = self.core.limits.load().mappings.saturating_sub(self.mappings());
        for at in [start, end].into_iter().flatten() {
            left = left.checked_sub(1).ok_or(Error::MapCountLimit)?;
            if !may_split(snapshot, at) {
                return Err(Error::BadArgument);
            }
        }
        Ok(())
    }

    /// Gives the range of `proposal`, which lies in `vma`, to the neighbours that it merges with. Returns the
    /// VMA that then holds it; `None`, with nothing changed, if it merges with none.
    fn apply_merge(
        &mut self,
        vma: &'s Vma,
        (previous, next): (Option<&'s Vma>, Option<&'s Vma>),
        proposal: &Proposal,
        rmap_locks: &RmapLocks<'s, P>,
    ) -> Option<&'s Vma> {
        let taker = previous.or(next)?;
        let sticky = sticky(proposal.flags, previous, next);
        let (range, snapshot) = (proposal.range, vma.snapshot());
        if range == snapshot.range {
            self.remove_vma(vma, rmap_locks);
        } else if previous.is_some() {
            self.set_vma(vma, clip_start(snapshot, range.end()), rmap_locks);
        } else {
            self.set_vma(vma, clip_end(snapshot, range.start()), rmap_locks);
        }
        let start = previous.map_or(range.start(), |previous| previous.range().start());
        let end = next.map_or(range.end(), |next| next.range().end());
        let page_offset = previous.map_or(proposal.page_offset, |previous| previous.snapshot().page_offset);
        if let (Some(_), Some(next)) = (previous, next) {
            self.remove_vma(next, rmap_locks);
        }
        let range = VirtRange::new(start, end);
        let snapshot = taker.snapshot();
        let flags = snapshot.flags | sticky;
        self.set_vma(taker, VmaSnapshot { range, page_offset, flags, ..snapshot }, rmap_locks);
        Some(taker)
    }

    /// Write-locks every VMA in `range`.
    pub(crate) fn lock_range(&self, range: VirtRange) {
        let mut at = range.start();
        while let Some(vma) = self.first_in(VirtRange::new(at, range.end())) {
            self.lock_vma(vma);
            at = vma.range().end();
        }
    }
}

impl<P: Platform> Drop for MmapWriter<'_, P> {
    fn drop(&mut self) {
        // Ends all VMA write locks; then the fields are dropped, in their order, the mmap lock last.
        self.core.sequence.end_section();
        while let Some(vma) = self.emptied.take_departed() {
            // SAFETY: as in `remove_vma`, which left it to the list.
            unsafe { self.spaces.vmas().retire(vma) };
        }
    }
}

/// The sticky flags of what merges: a range with `flags`, and its neighbours.
fn sticky(flags: VmFlags, previous: Option<&Vma>, next: Option<&Vma>) -> VmFlags {
    let neighbours = previous.into_iter().chain(next).map(Vma::flags);
    neighbours.fold(flags, |all, flags| all | flags) & VmFlags::STICKY
}

/// `snapshot` without what lies at or after `end`.
pub(crate) fn clip_end(snapshot: VmaSnapshot, end: VirtAddr) -> VmaSnapshot {
    VmaSnapshot { range: VirtRange::new(snapshot.range.start(), snapshot.range.end().min(end)), ..snapshot }
}

/// `snapshot` without what lies before `start`.
pub(crate) fn clip_start(snapshot: VmaSnapshot, start: VirtAddr) -> VmaSnapshot {
    let start = snapshot.range.start().max(start);
    VmaSnapshot {
        range: VirtRange::new(start, snapshot.range.end()),
        page_offset: snapshot.page_offset_at(start),
        ..snapshot
    }
}
