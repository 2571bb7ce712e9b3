//! Holes.
//!
//! A hole keeps the size, so what is stored of it is freed while Invalidate keeps faults from reading it. Where
//! it begins or ends within a page, or in a folio that cannot be cut, zeros are written there.

use super::PageCache;
use super::cut::Cut;
use crate::backing::FileError;
use crate::cached_file::{CachedFile, Prepared};
use crate::error::PageError;
use crate::file_core::{FileCore, Mapping};
use crate::index::{IndexRange, PageIndex};
use crate::slabs::NodesOn;
use crate::source::Reserve;
use crate::users::FileUsers;
use arrayvec::ArrayVec;
use core::ops::Range;
use quire_arch::{Order, PAGE_SHIFT, PAGE_SIZE, Platform};
use quire_memcg::Membership;

/// A page at the edge of a hole, which was cached a moment ago, and the bytes of it that are in the hole.
struct Edge {
    index: PageIndex,
    bytes: Range<u64>,
    prepared: Prepared,
}

/// The folios at both ends of a hole that cannot be cut there: they stay, with zeros. Before that there has to
/// be space for them.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Kept([Option<IndexRange>; 2]);

impl Kept {
    /// What of the whole pages of a hole leaves the cache.
    fn removed(self, whole: IndexRange) -> IndexRange {
        let [first, last] = self.0;
        let start = first.map_or(whole.start(), |folio| folio.end());
        IndexRange::new(start, last.map_or(whole.end(), |folio| folio.start()))
    }

    /// Asks for space for them.
    fn ask_for_space<P: Platform>(self, file: &CachedFile<P>) -> Result<PreparedKept, FileError> {
        let ask = |folio: IndexRange| Ok((folio, file.prepare_write(folio)?));
        self.0.into_iter().flatten().map(ask).collect()
    }
}

type PreparedKept = ArrayVec<(IndexRange, Prepared), 2>;

impl<P: Platform, V: Mapping> PageCache<'_, P, V> {
    /// Makes bytes of a file zeros (`FALLOC_FL_PUNCH_HOLE`, `FALLOC_FL_ZERO_RANGE`), also past its end in the
    /// last page. Pages that are all in the hole leave the cache; copies that programs have made stay. Where
    /// the hole begins or ends within a page that is written as zeros. The caller keeps other calls away that
    /// write to the file or change its size. May sleep. `program` pays.
    ///
    /// `free` frees what is stored of the bytes of whole pages that it is called with, of which the last may
    /// have the end of the file. It is called once, if there are such: when no page of them is cached or
    /// being written, and none can come, since Invalidate is held alone. So what it frees is neither read
    /// before nor written after.
    ///
    /// # Errors
    ///
    /// There is no memory; a page at the edge of the hole could not be had, or there is no space for it;
    /// nothing has changed then. Or `free` failed: the whole pages have what is stored.
    pub fn punch(
        self,
        file: &FileCore<P, V>,
        bytes: Range<u64>,
        program: &Membership,
        users: &dyn FileUsers<P, V>,
        free: &mut dyn FnMut(Range<u64>) -> Result<(), FileError>,
    ) -> Result<(), PageError> {
        // A program may have written past the end in the last page; there is nothing behind that.
        let (start, end) = (bytes.start, bytes.end.min(file.size().next_multiple_of(PAGE_SIZE)));
        if start >= end {
            return Ok(());
        }
        let whole = IndexRange::new(start.div_ceil(PAGE_SIZE), end >> PAGE_SHIFT);
        self.make_hole(file, users, free, &mut |cache| {
            Ok((cache.bring_in_edges(file, edges_of(start, end, whole), program)?, whole))
        })
    }

    /// Makes zeros of whole pages, of which the backing frees what it has stored; copies that programs have
    /// made stay. May sleep; nothing is locked.
    ///
    /// # Errors
    ///
    /// There is no memory, or no space for a folio that others hold; nothing has changed then. Or the
    /// backing's: the pages are what is stored.
    pub fn remove_pages(
        self,
        file: &FileCore<P, V>,
        bytes: Range<u64>,
        users: &dyn FileUsers<P, V>,
    ) -> Result<(), PageError> {
        let pages = CachedFile::<P>::pages_of(bytes);
        let free = &mut |bytes| file.backing().punch(bytes);
        self.make_hole(file, users, free, &mut |_| Ok((ArrayVec::new(), pages)))
    }

    /// Makes a hole of the whole pages, and the bytes at its edges, that `find` returns; as far as the file
    /// has the pages.
    fn make_hole(
        self,
        file: &FileCore<P, V>,
        users: &dyn FileUsers<P, V>,
        free: &mut dyn FnMut(Range<u64>) -> Result<(), FileError>,
        find: &mut dyn FnMut(Self) -> Result<(ArrayVec<Edge, 2>, IndexRange), PageError>,
    ) -> Result<(), PageError> {
        let nodes = file.memory().nodes(self.frames());
        let mut kept = Kept::default();
        loop {
            let (edges, pages) = find(self)?;
            let mut reserve = self.reserve_for_cuts(file, &nodes, 2)?;
            let spaces = kept.ask_for_space(file)?;
            let _alone = file.invalidate.write(self.platform());
            // A call that makes the file larger comes before, or after this.
            let whole = pages.intersect(CachedFile::<P>::pages_of(0..file.size()));
            let are_there = edges.iter().all(|edge| self.is_there(file, edge))
                && spaces.iter().all(|(folio, space)| file.is_prepared(*space, *folio));
            if !are_there {
                continue;
            }
            let found = self.cut_ends(file, whole, (&nodes, &mut reserve), users);
            if found != kept {
                kept = found;
                continue;
            }
            if !whole.is_empty() {
                users.unmap(file, whole, false);
            }
            for edge in &edges {
                self.write_zeros(file, edge.index, &edge.bytes);
            }
            for folio in kept.0.into_iter().flatten() {
                if let Some(index) = PageIndex::new(folio.start()) {
                    self.write_zeros(file, index, &folio.intersect(whole).bytes());
                }
            }
            let removed = kept.removed(whole);
            if removed.is_empty() {
                return Ok(());
            }
            let _cut = file.cut();
            self.remove_range(file, removed, users);
            return Ok(free(removed.bytes())?);
        }
    }

    /// Cuts the folios where the hole begins and ends, and returns those that stay. Invalidate is held
    /// exclusively.
    fn cut_ends<'n>(
        self,
        file: &FileCore<P, V>,
        whole: IndexRange,
        (nodes, reserve): (&NodesOn<'n, P>, &mut Reserve<'n, NodesOn<'n, P>>),
        users: &dyn FileUsers<P, V>,
    ) -> Kept {
        if whole.is_empty() {
            return Kept::default();
        }
        Kept([whole.start(), whole.end()].map(|at| {
            match self.cut_at(file, at, (nodes, Some(&mut *reserve)), users) {
                Cut::Done => None,
                Cut::Kept(folio) => Some(folio),
            }
        }))
    }

    /// Whether a page at the edge of a hole is still cached, with space for it. Invalidate is held
    /// exclusively.
    fn is_there(self, file: &CachedFile<P>, edge: &Edge) -> bool {
        let folio = self.lock_cached(file, edge.index).ok().flatten();
        folio.is_some_and(|folio| file.is_prepared(edge.prepared, folio.range()))
    }

    /// Writes zeros to bytes of the folio that has page `index`, which is cached, with space for it.
    /// Invalidate is held exclusively.
    fn write_zeros(self, file: &CachedFile<P>, index: PageIndex, bytes: &Range<u64>) {
        let folio = self.lock_cached(file, index).ok().flatten();
        debug_assert!(folio.is_some(), "{index:?} left the cache while Invalidate was held");
        if let Some(folio) = folio {
            self.transfers(file).wait_written(folio.head());
            self.zero_in(&folio, bytes);
            file.mark_dirty(self.frames(), folio.head());
        }
    }

    /// Reads the pages at the edges of a hole, and asks for space for their folios.
    #[cfg_attr(debug_assertions, track_caller)]
    fn bring_in_edges(
        self,
        file: &CachedFile<P>,
        edges: impl Iterator<Item = Range<u64>>,
        program: &Membership,
    ) -> Result<ArrayVec<Edge, 2>, PageError> {
        let mut brought_in = ArrayVec::new();
        for bytes in edges {
            let index = PageIndex::new(bytes.start >> PAGE_SHIFT).ok_or(PageError::TooLarge)?;
            let mut pages = IndexRange::block(index, Order::ZERO);
            let prepared = loop {
                let prepared = file.prepare_write(pages)?;
                let folio = self.page_in(file, (index, Order::ZERO), program)?.folio.range();
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
fn edges_of(start: u64, end: u64, whole: IndexRange) -> impl Iterator<Item = Range<u64>> {
    let (first, last) = (whole.start() << PAGE_SHIFT, whole.end() << PAGE_SHIFT);
    let (before, behind) = if whole.is_empty() && start >> PAGE_SHIFT == (end - 1) >> PAGE_SHIFT {
        (start..end, end..end)
    } else {
        (start..first, last.max(start)..end)
    };
    [before, behind].into_iter().filter(|edge| !edge.is_empty())
}
