//! Holes.
//!
//! A hole keeps the size, so what is stored of it is freed while Invalidate keeps faults from reading it.
//! Where it begins or ends within a page, or in a folio that cannot be cut, zeros are written there.

use super::cut::{Cut, Cutter};
use super::new_folio::LargeOrders;
use super::seal::check_write;
use crate::backing::FileError;
use crate::cached_file::{CachedFile, Prepared, UnusedPages};
use crate::error::PageError;
use crate::file_core::Mapping;
use crate::index::{IndexRange, PageIndex};
use crate::slabs::NodesOn;
use crate::source::Reserve;
use arrayvec::ArrayVec;
use core::ops::Range;
use quire_arch::{Order, PAGE_SHIFT, PAGE_SIZE, Platform};
use quire_memcg::Membership;

/// A page at the edge of a hole, which was cached a moment ago, and the bytes of it that are in the hole.
pub(super) struct Edge {
    index: PageIndex,
    bytes: Range<u64>,
    prepared: Prepared,
}

/// The folios at both ends of a hole that cannot be cut there: they stay, with zeros. Before that there has
/// to be space for them.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Kept([Option<IndexRange>; 2]);

impl Kept {
    /// What of the whole pages of a hole leaves the cache.
    fn removed(self, whole: IndexRange) -> IndexRange {
        let [first, last] = self.0;
        let start = first.map_or(whole.start(), IndexRange::end);
        IndexRange::new(start, last.map_or(whole.end(), IndexRange::start))
    }

    /// Asks for space for them.
    fn ask_for_space<P: Platform>(self, file: &CachedFile<P>) -> Result<PreparedKept, FileError> {
        let ask = |folio: IndexRange| Ok((folio, file.prepare_write(folio)?));
        self.0.into_iter().flatten().map(ask).collect()
    }
}

type PreparedKept = ArrayVec<(IndexRange, Prepared), 2>;

/// A hole that is being made.
pub(super) struct Hole<'c, 'm, P: Platform, V>(pub(super) Cutter<'c, 'm, P, V>);

impl<P: Platform, V: Mapping> Hole<'_, '_, P, V> {
    /// Makes a hole of `bytes`: of the whole pages, and the bytes at its edges, that `find` returns; as far
    /// as the file has the pages.
    pub(super) fn make(
        &self,
        bytes: &Range<u64>,
        free: &mut dyn FnMut(Range<u64>) -> Result<(), FileError>,
        find: &mut dyn FnMut() -> Result<(ArrayVec<Edge, 2>, IndexRange), PageError>,
    ) -> Result<(), PageError> {
        let Cutter { cache, file, users } = self.0;
        let nodes = file.memory().nodes(cache.frames());
        let mut kept = Kept::default();
        loop {
            // Also before a page is brought in for a hole that is refused.
            check_write(file, 0)?;
            let (edges, pages) = find()?;
            let had_large = self.0.has_large();
            let mut reserve = self.0.reserve(&nodes, 2)?;
            let spaces = kept.ask_for_space(file)?;
            let _alone = file.invalidate.write(cache.platform());
            if self.0.has_large() != had_large {
                continue;
            }
            check_write(file, 0)?;
            // A call that makes the file larger comes before, or after this.
            // Shared memory may have pages behind its end that were allocated there.
            let whole = match file.is_shmem() {
                true => pages,
                false => pages.intersect(CachedFile::<P>::pages_of(0..file.size())),
            };
            let are_there = edges.iter().all(|edge| self.is_there(edge))
                && spaces.iter().all(|(folio, space)| file.is_prepared(*space, *folio));
            if !are_there {
                continue;
            }
            let found = self.cut_ends(bytes, whole, (&nodes, &mut reserve));
            // A folio in which the file ends, and which was held when that was made so, may have been cut:
            // what of it begins past the end goes.
            let past_end = IndexRange::new(file.size().div_ceil(PAGE_SIZE), IndexRange::ALL.end());
            if !file.is_shmem() {
                cache.remove_range(file, past_end, users);
            }
            if found != kept {
                kept = found;
                continue;
            }
            // From here on nothing fails before the pages are gone.
            if let Some(shmem) = file.shmem() {
                shmem.allocated.cut(whole);
            }
            if !whole.is_empty() {
                users.unmap(file, whole, false);
            }
            for edge in &edges {
                self.write_zeros(edge.index, &edge.bytes);
            }
            for folio in kept.0.into_iter().flatten() {
                if let Some(index) = PageIndex::new(folio.start()) {
                    self.write_zeros(index, &folio.intersect(whole).bytes());
                }
            }
            let removed = kept.removed(whole);
            if removed.is_empty() {
                return Ok(());
            }
            let _cut = file.cut();
            cache.remove_range(file, removed, users);
            return Ok(free(removed.bytes())?);
        }
    }

    /// Cuts the folios where the hole begins and ends, and returns those that stay. Invalidate is held
    /// exclusively.
    fn cut_ends<'n>(
        &self,
        bytes: &Range<u64>,
        whole: IndexRange,
        (nodes, reserve): (&NodesOn<'n, P>, &mut Reserve<'n, NodesOn<'n, P>>),
    ) -> Kept {
        let mut cuts = [Cut::Done; 2];
        if self.0.file.is_shmem() {
            cuts = self.0.isolate_ends(bytes, (nodes, &mut *reserve));
        }
        if whole.is_empty() {
            return Kept::default();
        }
        for (cut, at) in cuts.iter_mut().zip([whole.start(), whole.end()]) {
            if *cut == Cut::Done {
                *cut = self.0.cut_at(at, (nodes, Some(&mut *reserve)));
            }
        }
        Kept(cuts.map(|cut| match cut {
            Cut::Done => None,
            Cut::Kept(folio) => Some(folio),
        }))
    }

    /// Whether a page at the edge of a hole is still cached, with space for it. Invalidate is held
    /// exclusively.
    fn is_there(&self, edge: &Edge) -> bool {
        let folio = self.0.cache.lock_cached(self.0.file, edge.index).ok().flatten();
        folio.is_some_and(|folio| self.0.file.is_prepared(edge.prepared, folio.range()))
    }

    /// Writes zeros to bytes of the folio that has page `index`, which is cached, with space for it.
    /// Invalidate is held exclusively.
    fn write_zeros(&self, index: PageIndex, bytes: &Range<u64>) {
        let Cutter { cache, file, .. } = self.0;
        let folio = cache.lock_cached(file, index).ok().flatten();
        debug_assert!(folio.is_some(), "{index:?} left the cache while Invalidate was held");
        if let Some(folio) = folio {
            cache.transfers(file).wait_written(folio.head());
            folio.zero(bytes);
            file.mark_dirty(cache.frames(), folio.head());
        }
    }

    /// Reads the pages at the edges of a hole, and asks for space for their folios.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(super) fn bring_in_edges(
        &self,
        edges: impl Iterator<Item = Range<u64>>,
        program: &Membership,
    ) -> Result<ArrayVec<Edge, 2>, PageError> {
        let Cutter { cache, file, .. } = self.0;
        let mut brought_in = ArrayVec::new();
        for bytes in edges {
            let index = PageIndex::new(bytes.start >> PAGE_SHIFT).ok_or(PageError::TooLarge)?;
            let is_zeros = || {
                // As what there is behind the end, and what was allocated and not used, which stays so.
                file.is_hole(cache.frames(), index)
                    || file.ends_before(index)
                    || UnusedPages::of(file).has(cache.frames(), index)
            };
            if file.is_shmem() && is_zeros() {
                continue;
            }
            let mut pages = IndexRange::block(index, Order::ZERO);
            let prepared = loop {
                let prepared = file.prepare_write(pages)?;
                let folio = cache.page_in(file, (index, LargeOrders::NONE), pages, program)?.folio.range();
                if pages.covers(folio) {
                    break prepared;
                }
                pages = folio;
            };
            brought_in.push(Edge { index, bytes, prepared });
        }
        Ok(brought_in)
    }
}

/// The bytes of a hole that are not in its whole pages: those before these, and those behind.
pub(super) fn edges_of(start: u64, end: u64, whole: IndexRange) -> impl Iterator<Item = Range<u64>> {
    let (first, last) = (whole.start() << PAGE_SHIFT, whole.end() << PAGE_SHIFT);
    let (before, behind) = if whole.is_empty() && start >> PAGE_SHIFT == (end - 1) >> PAGE_SHIFT {
        (start..end, end..end)
    } else {
        (start..first, last.max(start)..end)
    };
    [before, behind].into_iter().filter(|edge| !edge.is_empty())
}
