//! Bringing pages into the cache.

use super::PageCache;
use crate::backing::FileError;
use crate::cached_file::CachedFile;
use crate::entry::{Entry, Stored};
use crate::error::PageError;
use crate::file_core::Mapping;
use crate::index::{IndexRange, PageIndex};
use crate::locked_folio::LockedFolio;
use crate::slabs::NodesOn;
use crate::source::{Needs, Reserve};
use crate::store::InsertError;
use core::fmt;
use quire_arch::{Order, Pfn, Platform};
use quire_frame::{AllocError, AllocRequest, FailSite, FolioGuard, FrameFlags, Kind, Migratetype, OwnerWord};
use quire_memcg::{Membership, Memcgs};

/// The site of the cache's folios in fail plans.
const SITE: FailSite = FailSite::new("file");

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

/// What becomes of a page that is not cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fill {
    /// It is read. The file must not end before it.
    Read,
    /// It is put in as it is: the caller fills it, or takes it out again.
    ByCaller,
}

/// Whether a folio was cached before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Came {
    /// It was.
    Before,
    /// It was read.
    Read,
    /// It was put in, with contents that are not good yet.
    Empty,
}

/// A page that is to be in the cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) index: PageIndex,
    /// The largest order of a folio that is made for it.
    pub(super) order: Order,
    pub(super) fill: Fill,
}

/// A step on the way to a page, made with Invalidate held.
enum Step<'m, P: Platform> {
    There(LockedFolio<'m, P>, Came),
    /// A folio is needed first, of this order at most.
    NeedsFolio(Order),
    /// Nodes are needed first.
    NeedsNodes(Needs),
    /// Another thread was faster.
    Again,
}

/// A folio that is in no cache yet, charged. It is freed when this is dropped.
struct NewFolio<'m, P: Platform> {
    memcgs: &'m Memcgs<P>,
    head: Pfn,
    order: Order,
}

impl<P: Platform> NewFolio<'_, P> {
    /// The folio with its reference.
    fn into_head(self) -> Pfn {
        let head = self.head;
        core::mem::forget(self);
        head
    }
}

impl<P: Platform> Drop for NewFolio<'_, P> {
    fn drop(&mut self) {
        let pin = self.memcgs.frames().platform().pin();
        self.memcgs.folios().release_unused(&pin, self.head, self.order);
    }
}

/// A locked folio that was just put into the cache, whose contents are not good yet. When this is dropped the
/// folio leaves the cache, and if it was to be read all that wait for its lock get an error: also where a
/// backing, or the program's side of a call, panics.
pub(super) struct Unfilled<'c, 'm, P: Platform, V: Mapping> {
    cache: PageCache<'m, P, V>,
    file: &'c CachedFile<P>,
    folio: &'c LockedFolio<'m, P>,
    is_good: bool,
    /// Whether the backing may be writing to it.
    in_transfer: bool,
}

impl<'c, 'm, P: Platform, V: Mapping> Unfilled<'c, 'm, P, V> {
    pub(super) const fn new(
        cache: PageCache<'m, P, V>,
        file: &'c CachedFile<P>,
        folio: &'c LockedFolio<'m, P>,
    ) -> Self {
        Self { cache, file, folio, is_good: false, in_transfer: false }
    }

    /// Reads the first pages of it, a block of `order`.
    ///
    /// # Errors
    ///
    /// The backing's.
    pub(super) fn read(&mut self, order: Order) -> Result<(), FileError> {
        debug_assert!(order <= self.folio.order());
        self.in_transfer = true;
        let transfers = self.cache.transfers(self.file);
        // SAFETY: the folio is new and locked, and is never freed if this panics.
        let read = unsafe { transfers.read_block(self.folio.start(), (self.folio.head(), order)) };
        self.in_transfer = false;
        read
    }

    /// Its contents are good.
    pub(super) fn filled(mut self) {
        self.folio.frame().clear_flags(FrameFlags::READING);
        self.is_good = true;
    }
}

impl<P: Platform, V: Mapping> Drop for Unfilled<'_, '_, P, V> {
    fn drop(&mut self) {
        if self.is_good {
            return;
        }
        let frame = self.folio.frame();
        if frame.word().flags().contains(FrameFlags::READING) {
            frame.change_flags(FrameFlags::READ_FAILED, FrameFlags::READING);
        }
        self.cache.remove(self.file, self.folio);
        if self.in_transfer {
            // The backing has panicked, and nothing says that it is done with the frames, which are never
            // freed.
            frame.get(1);
        }
    }
}

impl<'m, P: Platform, V: Mapping> PageCache<'m, P, V> {
    /// The folio that has page `index`, read if it is not cached: in a folio of `order` at most, of those
    /// that the file may have, and does not end in. Nothing is held; may sleep. `program` pays.
    ///
    /// # Errors
    ///
    /// The file ends before the page; it could not be read; or there is no memory: then the caller reclaims,
    /// and tries again.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn page_in(
        self,
        file: &CachedFile<P>,
        (index, order): (PageIndex, Order),
        program: &Membership,
    ) -> Result<PagedIn<'m, P>, PageError> {
        if let Some(folio) = self.lock_cached(file, index)? {
            // Only now: the size is stored before folios are removed.
            if file.ends_before(index) {
                return Err(PageError::PastEnd);
            }
            return Ok(PagedIn { folio, was_read: false });
        }
        let order = order.min(file.largest_order());
        self.obtain(file, Wanted { index, order, fill: Fill::Read }, program, |folio, came| {
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
        wanted: (PageIndex, Order),
        program: &Membership,
    ) -> Result<PagedIn<'m, P>, PageError> {
        let (mut was_read, mut last) = (false, IndexRange::block(wanted.0, Order::ZERO));
        loop {
            if file.ends_before(wanted.0) {
                return Err(PageError::PastEnd);
            }
            let prepared = file.prepare_write(last)?;
            let paged_in = self.page_in(file, wanted, program)?;
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
                Folio(Order),
                Nodes(Needs),
            }
            // Memory comes from here, where nothing is held.
            let missing = {
                let _shared = file.invalidate.read(self.platform());
                match self.step(file, wanted, (&mut new, &nodes, &mut reserve))? {
                    Step::There(folio, came) => return work(folio, came),
                    Step::NeedsFolio(order) => Missing::Folio(order),
                    Step::NeedsNodes(needs) => Missing::Nodes(needs),
                    Step::Again => continue,
                }
            };
            match missing {
                Missing::Folio(order) => {
                    // Before: one is freed with nothing held, too.
                    drop(new.take());
                    new = Some(self.allocate_folio(order, program)?);
                }
                Missing::Nodes(needs) => reserve.fill(needs)?,
            }
        }
    }

    /// A folio for a file, charged: of `order`, or as large a one as there is memory for without an effort.
    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate_folio(self, order: Order, program: &Membership) -> Result<NewFolio<'m, P>, PageError> {
        let large = if order > Order::ZERO { self.allocate_large(order, program) } else { None };
        large.map_or_else(|| self.allocate_charged(Order::ZERO, program), Ok)
    }

    /// One of `order` or a smaller one, but no page.
    fn allocate_large(self, order: Order, program: &Membership) -> Option<NewFolio<'m, P>> {
        let smaller = core::iter::successors(Some(order), |order| order.smaller());
        let mut large = smaller.take_while(|order| *order > Order::ZERO);
        large.find_map(|order| self.allocate_charged(order, program).ok())
    }

    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate_charged(self, order: Order, program: &Membership) -> Result<NewFolio<'m, P>, PageError> {
        let request = AllocRequest::new(order, SITE).movability(Migratetype::Movable).kind(Kind::File);
        let request = if order > Order::ZERO { request.without_drain() } else { request };
        let pin = self.platform().pin();
        let head = self.frames().allocate(&pin, request)?;
        self.frames().known(head).as_folio().set_owner(OwnerWord::NONE);
        self.memcgs.programs().charge_new(&pin, program, head, order)?;
        Ok(NewFolio { memcgs: self.memcgs, head, order })
    }

    fn step<'n>(
        self,
        file: &CachedFile<P>,
        wanted: Wanted,
        (slot, nodes, reserve): (
            &mut Option<NewFolio<'m, P>>,
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
        let largest = file.free_order(self.frames(), (index, wanted.order), fill == Fill::Read);
        let Some(new) = slot.take() else { return Ok(Step::NeedsFolio(largest)) };
        if new.order > largest {
            *slot = Some(new);
            return Ok(Step::NeedsFolio(largest));
        }
        let (head, start) = (new.head, index.block_start(new.order));
        let Some(guard) = self.frames().folios().try_lock_folio(head) else {
            // A thread that looked for what the frame was before has locked it for a moment.
            *slot = Some(new);
            P::relax(0);
            return Ok(Step::Again);
        };
        let stored = Stored { start, order: new.order, entry: Entry::Folio(head) };
        match self.insert(file, (stored, head), fill, (nodes, reserve)) {
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

    /// Puts a new folio, whose lock the caller has, into the cache, or changes nothing.
    fn insert<'n>(
        self,
        file: &CachedFile<P>,
        (stored, head): (Stored, Pfn),
        fill: Fill,
        (nodes, reserve): (&NodesOn<'n, P>, &mut Reserve<'_, NodesOn<'n, P>>),
    ) -> Result<(), InsertError> {
        let frame = self.frames().known(head);
        // A thread that finds it may map it at any time, so its maps are counted as those of a page that is
        // named.
        let mut marks = FrameFlags::SHARED_BY_NAME;
        if fill == Fill::Read {
            marks |= FrameFlags::READING;
        }
        frame.set_flags(marks);
        frame.as_folio().set_index(stored.start.get());
        frame.as_folio().set_owner(file.owner_word());
        let got = frame.get(1);
        debug_assert!(got, "a new folio has one reference");
        let inserted = file.with_store_on(nodes, self.frames(), |store| store.insert(stored, reserve));
        match inserted {
            Ok(_shadow) => {
                file.memory().count_came(stored.order);
                Ok(())
            }
            Err(refusal) => {
                frame.put(1);
                frame.as_folio().set_owner(OwnerWord::NONE);
                frame.clear_flags(marks);
                Err(refusal)
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
        if fill == Fill::ByCaller {
            return Ok(Step::There(folio, Came::Empty));
        }
        let mut new = Unfilled::new(self, file, &folio);
        new.read(folio.order())?;
        new.filled();
        Ok(Step::There(folio, Came::Read))
    }
}
