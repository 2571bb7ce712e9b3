//! Cutting large folios where a range begins or ends, before that leaves the cache.
//!
//! The folio is locked and unmapped, so that only the cache and the caller have it. Then it is halved, and
//! the half that has the place again, until a folio begins there. So what stays is of as few folios as can
//! be. Where others hold the folio it stays as it is, and the caller does with zeros.

use super::PageCache;
use crate::file_core::{FileCore, Mapping};
use crate::index::{IndexRange, PageIndex};
use crate::locked_folio::LockedFolio;
use crate::slabs::NodesOn;
use crate::source::{Needs, Reserve};
use crate::users::FileUsers;
use quire_arch::{Order, Platform};
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

    /// Cuts the folio that has page `at` and the one before it. Invalidate is held exclusively.
    pub(super) fn cut_at<'n>(
        &self,
        at: u64,
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
            let Some(folio) = folio.filter(|folio| folio.start() < index) else {
                let is_swapped = file.is_shmem() && reserve.is_some();
                if let Some(reserve) = reserve.as_mut().filter(|_| is_swapped)
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
        (nodes, reserve): (&NodesOn<'n, P>, &mut Reserve<'n, NodesOn<'n, P>>),
    ) -> bool {
        let (file, frames) = (self.file, self.cache.frames());
        let order = folio.order();
        let Some(half) = order.smaller() else { return false };
        let is_halved = file.with_store_on(nodes, frames, |store| {
            self.cache.memcgs.folios().split_cached(folio.head(), (half, ALONE), || {
                let split = store.split(folio.start(), half, reserve);
                debug_assert!(split.is_ok(), "nodes for a cut were not reserved: {split:?}");
                split.is_ok()
            })
        });
        if is_halved {
            file.count_split(self.cache.memcgs, folio.head(), order);
        }
        is_halved
    }

    fn count_cut(&self, order: Option<Order>, counter: FolioCounter) {
        if let Some(order) = order {
            let pin = self.cache.platform().pin();
            self.cache.frames().events().count_folio(&pin, order, counter, 1);
        }
    }
}
