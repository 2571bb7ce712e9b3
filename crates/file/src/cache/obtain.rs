//! Bringing pages into the cache.

use super::PageCache;
use super::ahead::ReadAround;
use super::new_folio::{Fill, LargeOrders, NewFolio};
use super::unfilled::Unfilled;
use crate::cached_file::{CachedFile, NewFolioOrders, UnusedPages};
use crate::error::PageError;
use crate::file_core::{FileCore, Mapping};
use crate::index::{IndexRange, PageIndex};
use crate::locked_folio::LockedFolio;
use crate::slabs::NodesOn;
use crate::source::{Needs, Reserve};
use crate::store::InsertError;
use core::fmt;
use quire_arch::{Order, OrderSet, Pfn, Platform};
use quire_frame::{AllocError, FolioCounter, FolioGuard};
use quire_memcg::Membership;

/// What was brought in.
#[must_use = "the folio is locked"]
pub struct PagedIn<'m, P: Platform> {
    /// The folio, locked, with a reference.
    pub folio: LockedFolio<'m, P>,
    /// Whether this call has read it: a major fault.
    pub was_read: bool,
}

impl<P: Platform> fmt::Debug for PagedIn<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagedIn").field("folio", &self.folio).field("was_read", &self.was_read).finish()
    }
}

/// Whether a folio was cached before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Came {
    /// It was.
    Before,
    /// It was read.
    Read,
    /// It was put in as zeros, which is what shared memory begins as.
    Zeros,
    /// It was put in, with contents that are not good yet.
    Empty,
}

/// A page that is to be in the cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) index: PageIndex,
    /// What a folio that is made for it may be.
    pub(super) large: LargeOrders,
    pub(super) fill: Fill,
}

/// A step on the way to a page, made with Invalidate held.
enum Step<'m, P: Platform> {
    There(LockedFolio<'m, P>, Came),
    /// A folio is needed first, of one of these orders or of order 0.
    NeedsFolio(OrderSet),
    /// Nodes are needed first.
    NeedsNodes(Needs),
    /// Another thread was faster.
    Again,
}

impl<'m, P: Platform, V: Mapping> PageCache<'m, P, V> {
    /// The folio that has page `index`, read if it is not cached: one of the `large` ones, which a file on a
    /// disk does not end in, or one page. With that come those `around` it, as far as the
    /// [limits](crate::IoLimits::readahead) and memory allow. Nothing is held; may sleep. `program` pays.
    ///
    /// # Errors
    ///
    /// The file ends before the page; it could not be read; or there is no memory: then the caller reclaims,
    /// and tries again.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn page_in(
        self,
        file: &CachedFile<P>,
        (index, large): (PageIndex, LargeOrders),
        around: IndexRange,
        program: &Membership,
    ) -> Result<PagedIn<'m, P>, PageError> {
        if let Some(folio) = self.lock_cached(file, index)? {
            // Only now: the size is stored before folios are removed.
            if file.ends_before(index) {
                return Err(PageError::PastEnd);
            }
            UnusedPages::of(file).note_use(self.frames(), index);
            return Ok(PagedIn { folio, was_read: false });
        }
        self.shmem().check(file, index)?;
        // Shared memory has what its policy says.
        let most = if file.is_shmem() { Order::PMD } else { NewFolioOrders::of(file).largest() };
        let large = LargeOrders { orders: large.orders.up_to(most), ..large };
        if large.orders.most() == Order::ZERO
            && let Some(folio) = (ReadAround { cache: self, file }).read_around((index, around), program)?
        {
            return Ok(PagedIn { folio, was_read: true });
        }
        self.obtain(file, Wanted { index, large, fill: Fill::Read }, program, |folio, came| {
            UnusedPages::of(file).note_use(self.frames(), index);
            Ok(PagedIn { folio, was_read: came == Came::Read })
        })
    }

    /// As [`page_in`](Self::page_in), for a program that is about to write to the page by a mapping: its
    /// folio is marked dirty.
    ///
    /// # Errors
    ///
    /// Also what the backing says to the folio becoming dirty.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn page_in_to_write(
        self,
        file: &CachedFile<P>,
        wanted: (PageIndex, LargeOrders),
        around: IndexRange,
        program: &Membership,
    ) -> Result<PagedIn<'m, P>, PageError> {
        let (mut was_read, mut last) = (false, IndexRange::block(wanted.0, Order::ZERO));
        loop {
            if file.ends_before(wanted.0) {
                return Err(PageError::PastEnd);
            }
            let prepared = file.prepare_write(last)?;
            let paged_in = self.page_in(file, wanted, around, program)?;
            was_read |= paged_in.was_read;
            self.wait_stable(file, &paged_in.folio);
            last = paged_in.folio.range();
            if file.is_prepared(prepared, last) {
                file.mark_dirty(self.frames(), paged_in.folio.head());
                return Ok(PagedIn { was_read, ..paged_in });
            }
        }
    }

    /// Calls `work` with the folio that has a page, while Invalidate is held shared.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(super) fn obtain<R>(
        self,
        file: &CachedFile<P>,
        wanted: Wanted,
        program: &Membership,
        work: impl FnOnce(LockedFolio<'m, P>, Came) -> Result<R, PageError>,
    ) -> Result<R, PageError> {
        let nodes = file.memory().nodes(self.frames());
        // SAFETY: the stores of a machine's files are locked with its nodes.
        let mut reserve = unsafe { Reserve::new(&nodes) };
        let mut new = None;
        loop {
            enum Missing {
                Folio(OrderSet),
                Nodes(Needs),
            }
            // Memory comes from here, where nothing is held.
            let missing = {
                let _shared = file.invalidate.read(self.platform());
                match self.step(file, wanted, (&mut new, &nodes, &mut reserve))? {
                    Step::There(folio, came) => return work(folio, came),
                    Step::NeedsFolio(orders) => Missing::Folio(orders),
                    Step::NeedsNodes(needs) => Missing::Nodes(needs),
                    Step::Again => continue,
                }
            };
            match missing {
                Missing::Folio(orders) => {
                    // Before: one is freed with nothing held, too.
                    drop(new.take());
                    let large = LargeOrders { orders, ..wanted.large };
                    new = Some(NewFolio::allocate_folio((self.memcgs, file), large, program)?);
                }
                Missing::Nodes(needs) => reserve.fill(needs)?,
            }
        }
    }

    fn step<'c, 'n>(
        self,
        file: &'c CachedFile<P>,
        wanted: Wanted,
        (slot, nodes, reserve): (
            &mut Option<NewFolio<'c, 'm, P>>,
            &NodesOn<'n, P>,
            &mut Reserve<'_, NodesOn<'n, P>>,
        ),
    ) -> Result<Step<'m, P>, PageError> {
        let Wanted { index, fill, .. } = wanted;
        if fill == Fill::Read && file.ends_before(index) {
            return Err(PageError::PastEnd);
        }
        match self.lock_cached(file, index) {
            Ok(Some(folio)) => return Ok(Step::There(folio, Came::Before)),
            // Who fills the page needs not what another thread could not read.
            Err(error) if fill == Fill::Read => return Err(error.into()),
            Ok(None) | Err(_) => {}
        }
        self.shmem().check(file, index)?;
        let orders =
            NewFolioOrders::of(file).free(self.frames(), (index, wanted.large.orders), fill == Fill::Read);
        let Some(new) = slot.take() else { return Ok(Step::NeedsFolio(orders)) };
        if new.order > orders.most() {
            *slot = Some(new);
            return Ok(Step::NeedsFolio(orders));
        }
        let (head, start) = (new.head, index.block_start(new.order));
        let Some(guard) = self.frames().folios().try_lock_folio(head) else {
            // A thread that looked for what the frame was before has locked it for a moment.
            *slot = Some(new);
            P::relax(0);
            return Ok(Step::Again);
        };
        match new.insert(start, fill, (nodes, reserve)) {
            Ok(()) => self.fill(file, new.into_head(), fill, guard),
            Err(refusal) => {
                drop(guard);
                *slot = Some(new);
                match refusal {
                    InsertError::NeedsNodes(needs) => Ok(Step::NeedsNodes(needs)),
                    InsertError::Occupied(_) => Ok(Step::Again),
                    // Page numbers and frame numbers have fewer bits.
                    InsertError::TooLarge | InsertError::Misaligned => {
                        Err(PageError::NoMemory(AllocError::OutOfMemory))
                    }
                }
            }
        }
    }

    /// Gives a folio that was just put into the cache its contents.
    fn fill(
        self,
        file: &CachedFile<P>,
        head: Pfn,
        fill: Fill,
        guard: FolioGuard<'m, P>,
    ) -> Result<Step<'m, P>, PageError> {
        let folio = LockedFolio::new(self.memcgs, head, guard);
        if file.is_shmem() {
            // It came as zeros.
            let (events, pin) = (self.frames().events(), self.platform().pin());
            events.count_folio(&pin, folio.order(), FolioCounter::ShmemAlloc, 1);
            self.shmem().list(file, head);
            if folio.order() > Order::ZERO && !file.reaches(folio.range()) {
                // SAFETY: all files of the page cache are of these types, and this one lives.
                self.files.note_end(self.frames(), unsafe { FileCore::of_cached(file) });
            }
            return Ok(Step::There(folio, Came::Zeros));
        }
        if fill == Fill::ByCaller {
            return Ok(Step::There(folio, Came::Empty));
        }
        let mut new = Unfilled::new(self, file, &folio);
        new.read(folio.order())?;
        new.filled();
        Ok(Step::There(folio, Came::Read))
    }
}
