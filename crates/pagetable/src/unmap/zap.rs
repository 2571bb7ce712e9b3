//! Zapping: removing pages from tables that stay.

use super::{Unmapper, Zap, make_absent};
use crate::memory::TablesTechnique;
use crate::residency::Residency;
use crate::table::{LockedTable, pages_from};
use crate::walk::{WalkEntry, WalkStep, Walker};
use core::sync::atomic::Ordering;
use quire_arch::paging::PteMarker;
use quire_arch::{Entry, Leaf, LeafFlags, Level, PagingFormat, Pfn, Pin, Platform, VirtAddr, VirtRange};
use quire_frame::{HeadGuard, Kind, MapsLeft};
use quire_memcg::{SinglesToChain, UnevictableFolios};
use quire_sync::atomic::raw::AtomicU64;

impl<P: Platform> Unmapper<'_, P> {
    /// Empties every entry in `range`. Nothing is allocated and nothing fails. Tables stay
    /// linked even if they are empty afterwards; see [`unmap`](Self::unmap).
    #[inline]
    pub fn zap(&mut self, range: VirtRange, what: Zap) {
        let tables = self.gather.tables;
        Walker::new(&tables).walk(range, &mut |place, part| match place {
            WalkEntry::Table(table) => {
                self.zap_in_table(table, part, what);
                WalkStep::Next
            }
            WalkEntry::Huge(slot) => self.zap_in_huge(slot, part, what),
        });
        self.gather.add_paged_out(range);
    }

    pub(crate) fn zap_in_table(&mut self, table: Pfn, part: VirtRange, what: Zap) {
        self.zap_below(None, table, part, what);
    }

    /// Empties the entries of `part` in one table. A table that would be empty after the flush can go before
    /// it, if the place of its entry is known.
    pub(super) fn zap_below(&mut self, place: Option<(Pfn, usize)>, table: Pfn, part: VirtRange, what: Zap) {
        let tables = self.gather.tables;
        let mut at = part.start();
        while at < part.end() {
            {
                let pin = tables.pin();
                let locked = tables.lock(&pin, table, Level::PTE);
                at = self.zap_until_full(&pin, &locked, VirtRange::new(at, part.end()), what);
                if at < part.end() && what == Zap::Mapping {
                    // One flush for all: the rest is taken out after it.
                    let rest = VirtRange::new(at, part.end());
                    let first = P::Paging::index(at, Level::PTE);
                    let entries = first..first + rest.pages() as usize;
                    if let Some((parent, index)) = place
                        && tables.memory().techniques().tables == TablesTechnique::Free
                        && locked.mark_dead_with(entries.clone())
                    {
                        drop(locked);
                        tables.lock(&pin, parent, Level::PMD).take(index);
                        self.gather.add_stale(rest);
                        self.gather.count_empty_table();
                        self.gather.add_unlinked(table, at);
                        return;
                    }
                    make_absent(&locked, entries);
                    self.gather.add_stale(rest);
                    self.gather.add_absent(rest);
                    return;
                }
            }
            if at < part.end() {
                self.gather.relieve();
            }
        }
    }

    /// Empties entries until the gather is full, and returns where to continue: at the end of `part` if all
    /// is done.
    fn zap_until_full(
        &mut self,
        pin: &Pin<'_, P>,
        locked: &LockedTable<'_, P>,
        part: VirtRange,
        what: Zap,
    ) -> VirtAddr {
        let first = P::Paging::index(part.start(), Level::PTE);
        let end = first + part.pages() as usize;
        let mut gone = Residency::default();
        let mut stale: Option<(usize, usize)> = None;
        let mut singles = SinglesToChain::new(self.gather.tables.memory().memcgs().folios());
        // Whether the last page was one of a run: the next one is, most likely.
        let mut is_large = false;
        let mut index = first;
        while index < end && !locked.is_empty() && self.gather.settle_singles(pin, &mut singles, false) {
            let raw = locked.entries[index].load(Ordering::Relaxed);
            if let Zap::Cached { copies, locked: munlocks } = what {
                // The file may keep its pages all the same, so they lose the mark of an mlock: one by one.
                let pages = if munlocks { 0 } else { self.zap_cached(&locked.entries[index..end]) };
                if pages > 0 {
                    locked.count_taken(pages);
                    // A mapping is of one file.
                    gone.add(self.kind_of(raw), pages as u64);
                    let (start, _) = stale.unwrap_or((index, index));
                    index += pages;
                    stale = Some((start, index));
                    continue;
                }
                if !copies && !self.maps_cached(raw) {
                    index += 1;
                    continue;
                }
            }
            if raw == 0 {
                index += 1;
                continue;
            }
            let pages = if P::Paging::is_present_leaf(raw, Level::PTE) {
                if what.is_plain() && !is_large {
                    let pages = self.gather.take_singles(pin, &mut singles, &locked.entries[index..end]);
                    if pages > 0 {
                        locked.count_taken(pages);
                        gone.anonymous += pages as u64;
                        let (start, _) = stale.unwrap_or((index, index));
                        index += pages;
                        stale = Some((start, index));
                        continue;
                    }
                }
                let pages = self.zap_run(locked, (index, end), raw, (what, &mut gone));
                is_large = pages > 1;
                let (start, _) = stale.unwrap_or((index, index));
                stale = Some((start, index + pages));
                pages
            } else {
                match P::Paging::decode(raw, Level::PTE) {
                    Entry::Marker(PteMarker::Guard) if what != Zap::Mapping => 1,
                    Entry::Leaf(_) => {
                        let pages = self.zap_run(locked, (index, end), raw, (what, &mut gone));
                        if matches!(what, Zap::Cached { .. }) {
                            // The mmap lock is not held: mprotect may not have flushed it yet.
                            let (start, _) = stale.unwrap_or((index, index));
                            stale = Some((start, index + pages));
                        }
                        pages
                    }
                    Entry::Swap(entry) => self.zap_swapped(locked, (index, end), entry),
                    _ => {
                        locked.take(index);
                        1
                    }
                }
            };
            index += pages;
        }
        let addr = |index: usize| pages_from(part.start(), index - first).end();
        if let Some((start, end)) = stale {
            self.gather.add_stale(VirtRange::new(addr(start), addr(end)));
        }
        let _ = self.gather.settle_singles(pin, &mut singles, true);
        self.gather.count_gone(gone);
        if index < end && !locked.is_empty() { addr(index) } else { part.end() }
    }

    /// Empties the first of these entries of a locked table that map single pages of the caches of files, up
    /// to another one, and returns how many; counted by the caller. Most of what a file loses is of this
    /// form.
    fn zap_cached(&self, entries: &[AtomicU64]) -> usize {
        let frames = self.gather.tables.memory().frames();
        let emptied = entries.iter().take_while(|entry| {
            let raw = entry.load(Ordering::Relaxed);
            if !P::Paging::is_present_leaf(raw, Level::PTE) {
                return false;
            }
            let Some(folio) = frames.folios().cached_page(P::Paging::frame_of(raw)) else { return false };
            // As in `LockedTable::clear`.
            entry.store(0, Ordering::Relaxed);
            Self::count_cached_gone(&folio, 1);
            true
        });
        emptied.count()
    }

    /// The kind of the single page that the entry `raw` mapped.
    fn kind_of(&self, raw: u64) -> Kind {
        self.gather.tables.memory().frames().known(P::Paging::frame_of(raw)).kind()
    }

    /// Pages of a file's cache are unmapped that are not flushed: the cache keeps them until then.
    #[inline]
    pub(super) fn count_cached_gone(folio: &HeadGuard<'_, P>, pages: u32) {
        if folio.remove_maps(pages) == MapsLeft::None {
            // The mappings' reference. The cache has one, too.
            let last = folio.folio().frame().put(1);
            debug_assert!(!last, "the cache has lost {:?} before it was unmapped", folio.folio().head());
        }
    }

    /// What is done besides where a file loses the run of `pages` that was emptied, or its mapping is
    /// mlocked. Returns whether they are of a file's cache, and are counted as unmapped.
    #[cold]
    fn zap_locked_or_cached(&self, folio: &HeadGuard<'_, P>, pages: u32, what: Zap) -> bool {
        let tables = self.gather.tables;
        if what.munlocks() {
            // As in `zap_whole_folio`.
            UnevictableFolios::of(tables.memory().memcgs().folios()).munlock(&tables.pin(), folio, || false);
        }
        let is_lost = matches!(what, Zap::Cached { .. }) && folio.folio().is_in_file_cache();
        if is_lost {
            Self::count_cached_gone(folio, pages);
        }
        is_lost
    }

    /// Whether the entry `raw` maps a page of a file's cache.
    #[cold]
    fn maps_cached(&self, raw: u64) -> bool {
        match P::Paging::decode(raw, Level::PTE) {
            Entry::Leaf(leaf) => self.gather.tables.maps_cached(leaf),
            _ => false,
        }
    }

    /// Empties the run that starts with the leaf `raw` at `index`, and returns its length.
    #[inline]
    fn zap_run(
        &mut self,
        locked: &LockedTable<'_, P>,
        (index, end): (usize, usize),
        raw: u64,
        (what, gone): (Zap, &mut Residency),
    ) -> usize {
        let tables = self.gather.tables;
        let Entry::Leaf(Leaf { pfn, flags }) = P::Paging::decode(raw, Level::PTE) else { return 1 };
        if flags.contains(LeafFlags::SPECIAL) {
            locked.take(index);
            return 1;
        }
        let folio = tables.memory().frames().folios().lock_head(pfn);
        let end = if flags.contains(LeafFlags::READ) { end } else { index + 1 };
        let pages = tables.run_length(locked.entries, (index, end), (raw, pfn), &folio);
        locked.clear(index, pages);
        if !what.is_plain() && self.zap_locked_or_cached(&folio, pages as u32, what) {
            gone.add(folio.folio().kind(), pages as u64);
            return pages;
        }
        // What may be mapped by others until the flush is counted after it.
        let whole = folio.maps() == pages as u32 && !folio.may_be_mapped_by_name();
        if whole {
            let _ = folio.remove_maps(pages as u32);
            tables.memory().memcgs().splits().undefer_split(&folio);
        }
        let (head, order, kind) = (folio.folio().head(), folio.folio().order(), folio.folio().kind());
        drop(folio);
        gone.add(kind, pages as u64);
        if whole {
            self.gather.add_folio(head, order);
        } else {
            self.gather.add_run(pfn, pages as u32);
        }
        pages
    }
}
