//! Fork: sharing pages with a child.

use crate::attributes::{NewPage, Permissions};
use crate::gather::Gather;
use crate::huge::HugeLeaves;
use crate::huge_slot::HugeSlot;
use crate::memory::GatherTechnique;
use crate::residency::Residency;
use crate::table::{LockedTable, Tables, pages_from};
use crate::walk::{WalkEntry, WalkStep, Walker};
use core::fmt;
use quire_arch::{
    Entry, Leaf, LeafFlags, Level, Order, PagingFormat, Pfn, Pin, Platform, SwapEntry, VirtAddr, VirtRange,
};
use quire_frame::{AllocError, AllocRequest, Folio, HeadGuard, Kind, OwnerWord};
use quire_swap::SlotId;
use quire_sync::atomic::raw::{AtomicU64, Ordering};

/// The source of a child's mapping.
pub struct Copying<'v> {
    /// The addresses of both mappings.
    pub range: VirtRange,
    /// The permissions of the parent's mapping.
    pub parent: Permissions,
    /// Whether it maps an open file: its pages may be those of the file's cache.
    pub of_file: bool,
    /// What a page that the child gets at an address begins as.
    pub child: &'v dyn Fn(VirtAddr) -> NewPage,
}

impl fmt::Debug for Copying<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copying")
            .field("range", &self.range)
            .field("parent", &self.parent)
            .field("of_file", &self.of_file)
            .finish_non_exhaustive()
    }
}

/// Why the sharing of one table's pages stopped before its end.
enum Stop {
    /// The page at this index is pinned: what the device writes is the parent's, so the child gets a copy at
    /// once. There is a reference to its folio: the pin may end, and the page be paged out, before it is
    /// copied.
    Pinned(usize, Leaf),
    /// The map count of a folio would overflow.
    Overflow,
}

/// Takes a reference to the folio of a pinned page, for the copy of it.
#[cold]
fn hold_pinned<P: Platform>(folio: &HeadGuard<'_, P>, (index, leaf): (usize, Leaf)) -> Stop {
    if folio.folio().frame().get(1) { Stop::Pinned(index, leaf) } else { Stop::Overflow }
}

/// Gives the child's entry what the parent's holds, which keeps its own bits.
#[inline]
fn share_entry<P: Platform>(own: &AtomicU64, childs: &AtomicU64, raw: u64, protects: bool, inherited: u64) {
    let kept = if protects { LockedTable::<P>::protect_entry(own, raw) } else { raw };
    childs.store(kept & inherited, Ordering::Release);
}

/// Shares the entries that go on with the run of an entry before them, in one pass, and returns how many.
// Always: what the caller has in registers is a fifth of its work for a run of eight.
#[inline(always)]
fn share_rest<P: Platform>(
    own: &[AtomicU64],
    childs: &[AtomicU64],
    before: u64,
    protects: bool,
    inherited: u64,
) -> usize {
    let mut expected = before;
    for (pages, (own, childs)) in own.iter().zip(childs).enumerate() {
        let raw = own.load(Ordering::Relaxed);
        expected = P::Paging::frames_on(expected, 1);
        if raw & P::Paging::IDENTITY != expected {
            return pages;
        }
        share_entry::<P>(own, childs, raw, protects, inherited);
    }
    own.len()
}

/// Shares the pages of a parent with its child.
#[derive(Debug)]
pub struct Forker<'w, P: Platform> {
    /// The tables of the parent.
    pub parent: &'w Tables<'w, P>,
    /// Those of the child.
    pub child: &'w Tables<'w, P>,
}

impl<P: Platform> Clone for Forker<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Forker<'_, P> {}

impl<P: Platform> Forker<'_, P> {
    /// Gives the child every page that the mapping has here. What is private is shared until one of the two
    /// writes to it: both lose the permission, and the parent's translations that allowed writes are noted in
    /// `gather`. On failure the child holds part of them, which its exit unmaps.
    ///
    /// The caller holds this space's mmap lock for writing and has write-locked the VMA, so no fault changes
    /// entries here; the child does not run yet.
    pub fn copy_to(self, copying: &Copying<'_>, gather: &mut Gather<'_, P>) -> Result<(), AllocError> {
        let mut result = Ok(());
        Walker::new(self.parent).walk(copying.range, &mut |place, part| {
            let copied = match place {
                WalkEntry::Table(table) => {
                    self.copy_table(table, part, copying, gather).map(|()| WalkStep::Next)
                }
                WalkEntry::Huge(slot) if part != self.parent.slot_range(slot) => Ok(WalkStep::Split),
                WalkEntry::Huge(slot) => self.copy_huge(slot, copying, gather),
            };
            copied.unwrap_or_else(|error| {
                result = Err(error);
                WalkStep::Stop
            })
        });
        gather.add_paged_out(copying.range);
        result
    }

    fn copy_table(
        self,
        table: Pfn,
        part: VirtRange,
        copying: &Copying<'_>,
        gather: &mut Gather<'_, P>,
    ) -> Result<(), AllocError> {
        if self.parent.is_empty(table) {
            return Ok(());
        }
        // Nothing large was mapped in the child yet: it has no other mapping here.
        let Some(target) = self.child.find_or_make(&self.parent.pin(), part.start())? else { return Ok(()) };
        // Noted first: entries write-protected before a failure must be flushed too.
        if !copying.parent.shared && copying.parent.leaf.contains(LeafFlags::WRITE) {
            gather.add_stale(part);
        }
        let first = P::Paging::index(part.start(), Level::PTE);
        let end = first + part.pages() as usize;
        let mut from = first;
        loop {
            let stop = {
                let pin = self.parent.pin();
                self.share_until(&pin, (table, target), (from, end), copying)
            };
            match stop {
                None => break,
                Some(Stop::Overflow) => return Err(AllocError::OutOfMemory),
                Some(Stop::Pinned(index, leaf)) => {
                    let addr = pages_from(part.start(), index - first).end();
                    let new = (copying.child)(addr);
                    let copied = if new.owner == OwnerWord::NONE {
                        // A page of a file in a mapping without an anon_vma, which is copied for its guard
                        // pages: the child can read it again.
                        Ok(())
                    } else {
                        self.copy_pinned((target, index), leaf, &new)
                    };
                    // The reference kept it from being split.
                    let memory = self.parent.memory();
                    memory.memcgs().folios().release_folio(memory.frames().folio(leaf.pfn).head());
                    copied?;
                    from = index + 1;
                }
            }
        }
        Ok(())
    }

    /// Shares a folio that one leaf maps, unless it is pinned: then it is split, and copied page by page.
    fn copy_huge(
        self,
        slot: HugeSlot,
        copying: &Copying<'_>,
        gather: &mut Gather<'_, P>,
    ) -> Result<WalkStep, AllocError> {
        let pin = self.parent.pin();
        let range = self.parent.slot_range(slot);
        let leaf = Tables::<P>::huge_leaf(&self.parent.lock_slot(&pin, slot), slot);
        if leaf.is_some_and(|leaf| self.parent.maps_cached(leaf)) {
            // As in Linux: the child finds it in the cache.
            return Ok(WalkStep::Next);
        }
        let Some((target, deposit)) = HugeLeaves::new(self.child).place_huge(&pin, range.start())? else {
            return Ok(WalkStep::Next);
        };
        let step = {
            let (here, there);
            if slot.table < target.table {
                here = self.parent.lock(&pin, slot.table, Level::PMD);
                there = self.child.lock(&pin, target.table, Level::PMD);
            } else {
                there = self.child.lock(&pin, target.table, Level::PMD);
                here = self.parent.lock(&pin, slot.table, Level::PMD);
            }
            match Tables::<P>::huge_leaf(&here, slot) {
                None => Ok(WalkStep::Again),
                Some(leaf) => match self.share_huge((&here, slot), leaf, copying) {
                    Ok(Some(raw)) => {
                        if leaf.flags.contains(LeafFlags::WRITE) {
                            gather.add_stale(range);
                        }
                        HugeLeaves::new(self.child).deposit(target, deposit);
                        LockedTable::<P>::put_raw(&there.entries[target.index], raw);
                        there.count_installed(1);
                        self.child.space().residency.table_made();
                        return Ok(WalkStep::Next);
                    }
                    Ok(None) => Ok(WalkStep::Split),
                    Err(error) => Err(error),
                },
            }
        };
        self.parent.memory().memcgs().folios().release_unused(&pin, deposit, Order::ZERO);
        step
    }

    /// Counts what the large leaf at `slot` maps as mapped by the child too, and returns the child's leaf, or
    /// none if it is to be copied page by page.
    fn share_huge(
        self,
        (here, slot): (&LockedTable<'_, P>, HugeSlot),
        leaf: Leaf,
        copying: &Copying<'_>,
    ) -> Result<Option<u64>, AllocError> {
        let raw = here.entries[slot.index].load(Ordering::Relaxed);
        if leaf.flags.contains(LeafFlags::SPECIAL) {
            // The child has not used it yet.
            let unused = if leaf.flags.contains(LeafFlags::READ) { raw & !P::Paging::ACCESSED } else { raw };
            return Ok(self.parent.memory().hold_huge_zero_again(leaf.pfn).then_some(unused));
        }
        let folio = self.parent.memory().frames().folios().lock_head(leaf.pfn);
        if folio.folio().may_be_pinned() {
            return Ok(None);
        }
        if !folio.add_maps(Tables::<P>::huge_pages()) {
            return Err(AllocError::OutOfMemory);
        }
        let private = !copying.parent.shared;
        if private {
            folio.no_longer_exclusive();
        }
        let kind = folio.folio().kind();
        self.child.space().residency.pages_mapped(Residency::of(kind, u64::from(Tables::<P>::huge_pages())));
        HugeLeaves::new(self.child).count_whole_map(&self.parent.pin(), leaf.pfn);
        let protects = private && leaf.flags.contains(LeafFlags::READ);
        Ok(Some(if protects { here.write_protect(slot.index) } else { raw }))
    }

    /// Shares the pages of entries `from..end` of the parent's table with the child's, and returns why it
    /// stopped, if it did.
    #[inline(always)]
    fn share_until(
        self,
        pin: &Pin<'_, P>,
        (table, target): (Pfn, Pfn),
        (from, end): (usize, usize),
        copying: &Copying<'_>,
    ) -> Option<Stop> {
        // Not by `lock_pair`, as in `copy_huge`: with that, a fork of 64 KiB folios takes 5 % more
        // instructions.
        let (here, there);
        if table < target {
            here = self.parent.lock(pin, table, Level::PTE);
            there = self.child.lock(pin, target, Level::PTE);
        } else {
            there = self.child.lock(pin, target, Level::PTE);
            here = self.parent.lock(pin, table, Level::PTE);
        }
        let mut shared = Residency::default();
        let mut stop = None;
        let folios = self.parent.memory().frames().folios();
        let has_private_pages = !copying.parent.shared && !copying.of_file;
        // Whether the last page was one of a larger folio: the next one is, most likely.
        let mut is_large = false;
        let mut index = from;
        loop {
            if has_private_pages && !is_large {
                // What most memory is, in few steps; all else, and pages that are pinned, as below.
                let first = index;
                for (own, childs) in here.entries[first..end].iter().zip(&there.entries[first..end]) {
                    let raw = own.load(Ordering::Relaxed);
                    if !P::Paging::is_present_leaf(raw, Level::PTE)
                        || !folios.share_single(P::Paging::frame_of(raw))
                    {
                        break;
                    }
                    self.parent.fetch_ahead(here.entries, index, 1);
                    share_entry::<P>(own, childs, raw, true, !P::Paging::ACCESSED);
                    index += 1;
                }
                shared.anonymous += (index - first) as u64;
            }
            if index >= end {
                break;
            }
            let raw = here.entries[index].load(Ordering::Relaxed);
            index += match P::Paging::decode(raw, Level::PTE) {
                Entry::None => 1,
                Entry::Leaf(leaf) if !leaf.flags.contains(LeafFlags::SPECIAL) => {
                    let counts = (&mut shared, &mut is_large);
                    match self.share_run((&here, &there), (index, end), (raw, leaf), copying, counts) {
                        Ok(pages) => pages,
                        Err(found) => {
                            stop = Some(found);
                            break;
                        }
                    }
                }
                Entry::Swap(entry) => self.share_swapped((&here, &there), (index, end), entry),
                other => {
                    there.install(index, other);
                    1
                }
            };
        }
        there.count_installed(shared.pages() as usize);
        self.child.space().residency.pages_mapped(shared);
        stop
    }

    /// Shares the run that starts with `leaf` at `index`, and returns its length. The caller counts what is
    /// shared as installed before it unlocks, and is told whether the folio is large.
    #[inline]
    fn share_run(
        self,
        (here, there): (&LockedTable<'_, P>, &LockedTable<'_, P>),
        (index, end): (usize, usize),
        (raw, leaf): (u64, Leaf),
        copying: &Copying<'_>,
        counts: (&mut Residency, &mut bool),
    ) -> Result<usize, Stop> {
        if copying.of_file {
            return self.share_of_file((here, there), (index, end), (raw, leaf), copying, counts);
        }
        self.share_locked((here, there), (index, end), (raw, leaf), copying, counts)
    }

    /// The same in a mapping of an open file. Who makes a folio of its cache clean counts what maps it: while
    /// it is locked no entry comes, and the child finds the page in the cache.
    #[cold]
    fn share_of_file(
        self,
        (here, there): (&LockedTable<'_, P>, &LockedTable<'_, P>),
        (index, end): (usize, usize),
        (raw, leaf): (u64, Leaf),
        copying: &Copying<'_>,
        counts: (&mut Residency, &mut bool),
    ) -> Result<usize, Stop> {
        let folio = self.parent.memory().frames().folio(leaf.pfn);
        let _locked = if folio.is_in_file_cache() {
            let locked = self.parent.memory().frames().folios().try_lock_folio(folio.head());
            let Some(locked) = locked else { return Ok(1) };
            Some(locked)
        } else {
            None
        };
        self.share_locked((here, there), (index, end), (raw, leaf), copying, counts)
    }

    /// The same, of a folio that no one makes clean.
    // Always: as a call of its own it costs each page forty instructions.
    #[inline(always)]
    fn share_locked(
        self,
        (here, there): (&LockedTable<'_, P>, &LockedTable<'_, P>),
        (index, end): (usize, usize),
        (raw, leaf): (u64, Leaf),
        copying: &Copying<'_>,
        (shared, is_large): (&mut Residency, &mut bool),
    ) -> Result<usize, Stop> {
        let present = leaf.flags.contains(LeafFlags::READ);
        let folio = self.parent.memory().frames().folios().lock_head(leaf.pfn);
        let private = !copying.parent.shared;
        // Also a page of a numbered file that was not written to yet: a pinned one becomes the program's own
        // where it is. One of a file's cache stays the file's.
        if private && folio.folio().may_be_pinned() && !is_cached(folio.folio()) {
            return Err(hold_pinned(&folio, (index, leaf)));
        }
        // The child has not used the page yet.
        let (protects, inherited) = (private && present, if present { !P::Paging::ACCESSED } else { !0 });
        *is_large = folio.folio().is_large();
        if !*is_large {
            if !folio.add_maps(1) {
                return Err(Stop::Overflow);
            }
            self.parent.fetch_ahead(here.entries, index, 1);
            share_entry::<P>(&here.entries[index], &there.entries[index], raw, protects, inherited);
            shared.add(folio.folio().kind(), 1);
            return Ok(1);
        }
        let end = if present { end } else { index + 1 };
        let most = self.parent.run_bound((index, end), leaf.pfn, &folio);
        if !folio.may_add(most as u32) {
            return Err(Stop::Overflow);
        }
        if private {
            folio.no_longer_exclusive();
        }
        // Where no run is longer than a page, each unmapping is of a part, and queues the folio.
        if private && most == 1 && self.parent.memory().techniques().gather == GatherTechnique::Runs {
            self.parent.memory().memcgs().splits().mapped_in_part(&folio);
        }
        self.parent.fetch_ahead(here.entries, index, most);
        share_entry::<P>(&here.entries[index], &there.entries[index], raw, protects, inherited);
        let mut pages = 1;
        if most > 1 {
            let rest = index + 1..index + most;
            let (own, childs) = (&here.entries[rest.clone()], &there.entries[rest]);
            let before = raw & P::Paging::IDENTITY;
            // Asked here: in the loop it costs two instructions a page.
            pages += match protects {
                true => share_rest::<P>(own, childs, before, true, inherited),
                false => share_rest::<P>(own, childs, before, false, inherited),
            };
            if private && (pages as u64) < folio.folio().order().pages() {
                self.parent.memory().memcgs().splits().mapped_in_part(&folio);
            }
        }
        let added = folio.add_maps(pages as u32);
        debug_assert!(added, "there was room for more");
        shared.add(folio.folio().kind(), pages as u64);
        Ok(pages)
    }

    /// Gives the child a copy of a pinned page, whose owner may go on writing it. The caller has a reference.
    fn copy_pinned(self, (target, index): (Pfn, usize), leaf: Leaf, new: &NewPage) -> Result<(), AllocError> {
        let frames = self.parent.memory().frames();
        let pin = self.parent.pin();
        let request = AllocRequest::anonymous().uninitialised().kind(Kind::Anonymous);
        let copy = frames.allocate(&pin, request)?;
        self.child.memory().memcgs().programs().charge_anyway(
            &pin,
            &self.child.space().membership,
            copy,
            Order::ZERO,
        );
        // SAFETY: the copy is new and ours; the caller's reference keeps the original in RAM. It may be
        // written to meanwhile, as `Platform::copy` allows.
        unsafe { frames.platform().copy_user(leaf.pfn, copy, Order::ZERO) };
        new.init_page(frames.known(copy));
        let _section = frames.epoch().enter(&pin);
        // Before reclaim can find the page and subtract it.
        self.child.space().residency.page_mapped(true);
        let there = self.child.lock(&pin, target, Level::PTE);
        // Dirty, whatever the entry of the original says: a device may have written what was copied.
        there.install(index, Entry::Leaf(Leaf { pfn: copy, flags: leaf.flags | LeafFlags::DIRTY }));
        self.child.memory().memcgs().folios().list_new(&pin, copy, new.locked);
        Ok(())
    }

    /// Gives the child's table the run that starts with `first` at `index` of the parent's, and returns its
    /// length. The pages are exclusive to neither from then on.
    fn share_swapped(
        self,
        (here, there): (&LockedTable<'_, P>, &LockedTable<'_, P>),
        (index, end): (usize, usize),
        first: SwapEntry,
    ) -> usize {
        let pages = Tables::<P>::swap_run(here.entries, (index, end), first);
        self.parent.memory().swap().counts().add_counts(SlotId::of(first), pages as u32);
        let pairs = here.entries[index..index + pages].iter().zip(&there.entries[index..index + pages]);
        for ((own, childs), nth) in pairs.zip(0..) {
            let shared = SwapEntry { slot: first.slot + nth, exclusive: false, ..first };
            let raw = P::Paging::encode(Entry::Swap(shared), Level::PTE);
            if first.exclusive {
                own.store(raw, Ordering::Relaxed);
            }
            LockedTable::<P>::put_raw(childs, raw);
        }
        there.count_installed(pages);
        self.child.space().residency.swapped_out(pages as u64);
        pages
    }
}

/// Whether the folio is of a file's cache. Out of the way: few pages are pinned.
#[cold]
#[inline(never)]
fn is_cached(folio: Folio<'_>) -> bool {
    folio.is_in_file_cache()
}
