//! Cutting large folios where a range begins or ends, before that leaves the cache.
//!
//! The folio is locked and unmapped, so that only the cache and the caller have it. Then it is halved, and
//! the half that has the place again, until a folio begins there. So what stays is of as few folios as can
//! be. Where others hold the folio it stays as it is, and the caller does with zeros.
//!
//! Of shared memory the pages at the ends of the range become folios of their own, as in Linux, wherever the
//! folio that they are in is not in the range as a whole: also where the range is a part of one page, and
//! where a folio begins with the range. What of it is past the end of the file goes then, so it shows.

use super::PageCache;
use super::split::{NotSplit, Splitter};
use crate::cached_file::UnusedPages;
use crate::file_core::{FileCore, Mapping};
use crate::index::{IndexRange, PageIndex};
use crate::locked_folio::LockedFolio;
use crate::slabs::NodesOn;
use crate::source::{Needs, Reserve};
use crate::users::FileUsers;
use core::ops::Range;
use quire_arch::{Order, PAGE_SHIFT, PAGE_SIZE, Platform};
use quire_frame::{AllocError, FolioCounter};

/// Times that a folio is tried that others hold.
const ATTEMPTS: u32 = 16;

/// References to a locked folio that nothing maps: the caller's and the cache's.
const ALONE: u32 = 2;

/// What came of a cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cut {
    /// No folio has the page before the place and the one behind it.
    Done,
    /// The folio of these pages has both, and is held.
    Kept(IndexRange),
}

/// What becomes of a page at which a folio is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// A folio begins there.
    Start,
    /// It is a folio.
    Alone,
}

/// The nodes for cuts.
pub(super) type CutNodes<'r, 'n, P> = Option<&'r mut Reserve<'n, NodesOn<'n, P>>>;

/// A file that is being cut.
pub(super) struct Cutter<'c, 'm, P: Platform, V> {
    pub(super) cache: PageCache<'m, P, V>,
    pub(super) file: &'c FileCore<P, V>,
    pub(super) users: &'c dyn FileUsers<P, V>,
}

impl<'m, P: Platform, V: Mapping> Cutter<'_, 'm, P, V> {
    /// Nodes for so many cuts. Nothing is held.
    ///
    /// # Errors
    ///
    /// There is no memory for them.
    pub(super) fn reserve<'n>(
        &self,
        nodes: &'n NodesOn<'n, P>,
        cuts: u8,
    ) -> Result<Reserve<'n, NodesOn<'n, P>>, AllocError> {
        // SAFETY: the stores of a machine's files are locked with its nodes.
        let mut reserve = unsafe { Reserve::new(nodes) };
        if self.has_large() {
            reserve.fill(Needs::of_cuts(cuts))?;
        }
        Ok(reserve)
    }

    /// Whether the file may have large folios by now. Who finds it changed when Invalidate is held looks for
    /// nodes again.
    pub(super) fn has_large(&self) -> bool {
        self.file.largest_order() > Order::ZERO
    }

    /// Makes the pages at the ends of `bytes` of shared memory folios of their own, where the folios that
    /// they are in are large and not in these bytes as a whole. Returns what could not be, at the first end
    /// and at the other. Invalidate is held exclusively.
    pub(super) fn isolate_ends<'n>(
        &self,
        bytes: &Range<u64>,
        (nodes, reserve): (&NodesOn<'n, P>, &mut Reserve<'n, NodesOn<'n, P>>),
    ) -> [Cut; 2] {
        let mut cuts = [Cut::Done; 2];
        if bytes.is_empty() || !self.has_large() {
            return cuts;
        }
        let whole = IndexRange::new(bytes.start.div_ceil(PAGE_SIZE), bytes.end >> PAGE_SHIFT);
        let (first, last, behind) = (bytes.start >> PAGE_SHIFT, (bytes.end - 1) >> PAGE_SHIFT, whole.end());
        let mut cut = |at| self.cut(at, Place::Alone, (nodes, Some(&mut *reserve)));
        // The parts go at the end: until then they keep the nodes that were reserved.
        let head = self.block_of(first);
        if !whole.covers(head) {
            cuts[0] = cut(first);
            if cuts[0] == Cut::Done {
                if behind < head.end() {
                    cuts[1] = cut(behind);
                }
                self.drop_past_end(head);
            }
        }
        let tail = self.block_of(last);
        if last >= head.end() && !whole.covers(tail) {
            cuts[1] = cut(tail.start());
            if cuts[1] == Cut::Done {
                if behind < tail.end() {
                    cuts[1] = cut(behind);
                }
                self.drop_past_end(tail);
            }
        }
        cuts
    }

    /// Removes what lies past the end of the file of the folio that had these pages and was cut; but for its
    /// first part, as in Linux.
    fn drop_past_end(&self, folio: IndexRange) {
        let Self { cache, file, users } = *self;
        let kept = UnusedPages::of(file).kept();
        if kept < folio.end() {
            let start = kept.max(self.block_of(folio.start()).end());
            cache.remove_range(file, IndexRange::new(start, folio.end()), users);
        }
    }

    /// The pages of the folio that has page `at`, or this page.
    fn block_of(&self, at: u64) -> IndexRange {
        let folio =
            PageIndex::new(at).and_then(|index| self.cache.lock_cached(self.file, index).ok().flatten());
        folio.map_or(IndexRange::new(at, at + 1), |folio| folio.range())
    }

    /// Cuts the folio that has page `at` and the one before it. Invalidate is held exclusively.
    pub(super) fn cut_at<'n>(&self, at: u64, nodes: (&NodesOn<'n, P>, CutNodes<'_, 'n, P>)) -> Cut {
        self.cut(at, Place::Start, nodes)
    }

    fn is_to_be_halved(&self, folio: &LockedFolio<'m, P>, index: PageIndex, place: Place) -> bool {
        match place {
            Place::Start => folio.start() < index,
            Place::Alone => folio.order() > Order::ZERO,
        }
    }

    fn cut<'n>(
        &self,
        at: u64,
        place: Place,
        (nodes, mut reserve): (&NodesOn<'n, P>, CutNodes<'_, 'n, P>),
    ) -> Cut {
        let Self { cache, file, users } = *self;
        if !self.has_large() {
            return Cut::Done;
        }
        let Some(index) = PageIndex::new(at) else { return Cut::Done };
        let (mut attempt, mut split) = (0, None);
        loop {
            let folio = cache.lock_cached(file, index).ok().flatten();
            let Some(folio) = folio.filter(|folio| self.is_to_be_halved(folio, index, place)) else {
                let is_swapped = file.is_shmem() && reserve.is_some();
                if let Some(reserve) = reserve.as_mut().filter(|_| is_swapped && place == Place::Start)
                    && !cache.shmem().divide(file, index, (nodes, reserve))
                {
                    // It was swapped in meanwhile.
                    continue;
                }
                self.count_cut(split, FolioCounter::Split);
                return Cut::Done;
            };
            let order = folio.order();
            if file.is_shmem() {
                let _ = cache.shmem().leaves_swap_cache(folio.head());
            } else {
                cache.transfers(file).wait_written(folio.head());
            }
            cache.unmap_locked(file, &folio, users);
            if reserve.as_mut().is_some_and(|reserve| self.halve(&folio, (nodes, reserve))) {
                split.get_or_insert(order);
                continue;
            }
            attempt += 1;
            if reserve.is_none() || attempt == ATTEMPTS {
                self.count_cut(Some(order), FolioCounter::SplitFailed);
                return Cut::Kept(folio.range());
            }
            // Who holds it may want the lock.
            drop(folio);
            P::relax(attempt);
        }
    }

    /// Makes two of a locked folio that nothing maps, unless others hold it.
    fn halve<'n>(
        &self,
        folio: &LockedFolio<'m, P>,
        nodes: (&NodesOn<'n, P>, &mut Reserve<'n, NodesOn<'n, P>>),
    ) -> bool {
        let Some(half) = folio.order().smaller() else { return false };
        let split = Splitter { cache: self.cache, file: self.file };
        let split = split.split_locked((folio.head(), half, ALONE), u64::MAX, nodes);
        debug_assert!(!matches!(split, Err(NotSplit::NeedsNodes(_))), "nodes for a cut were not reserved");
        split.is_ok()
    }

    fn count_cut(&self, order: Option<Order>, counter: FolioCounter) {
        if let Some(order) = order {
            let pin = self.cache.platform().pin();
            self.cache.frames().events().count_folio(&pin, order, counter, 1);
        }
    }
}
