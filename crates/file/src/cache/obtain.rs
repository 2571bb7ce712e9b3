//! Bringing pages into the cache.

use super::PageCache;
use crate::cached_file::CachedFile;
use crate::entry::{Entry, Stored};
use crate::error::PageError;
use crate::file_core::Mapping;
use crate::index::PageIndex;
use crate::locked_folio::LockedFolio;
use crate::slabs::NodesOn;
use crate::source::{Needs, Reserve};
use crate::store::InsertError;
use core::fmt;
use quire_arch::{Order, Pfn, Platform};
use quire_frame::{AllocError, AllocRequest, FailSite, FolioGuard, FrameFlags, Kind, Migratetype, OwnerWord};
use quire_memcg::{Membership, Memcgs};
use quire_sync::atomic::raw::Ordering;

/// The site of the cache's pages in fail plans.
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

/// A step on the way to a page, made with Invalidate held.
enum Step<'m, P: Platform> {
    There(LockedFolio<'m, P>, Came),
    /// A page is needed first.
    NeedsPage,
    /// Nodes are needed first.
    NeedsNodes(Needs),
    /// Another thread was faster.
    Again,
}

/// A page that is in no cache yet, charged. It is freed when this is dropped.
struct NewPage<'m, P: Platform> {
    memcgs: &'m Memcgs<P>,
    head: Pfn,
}

impl<P: Platform> NewPage<'_, P> {
    /// The page with its reference.
    fn into_head(self) -> Pfn {
        let head = self.head;
        core::mem::forget(self);
        head
    }
}

impl<P: Platform> Drop for NewPage<'_, P> {
    fn drop(&mut self) {
        let pin = self.memcgs.frames().platform().pin();
        self.memcgs.folios().release_unused(&pin, self.head, Order::ZERO);
    }
}

/// A locked page that was just put into the cache, whose contents are not good yet. When this is dropped the
/// page leaves the cache, and if it was to be read all that wait for its lock get an error: also where a
/// backing, or the program's side of a call, panics.
pub(super) struct Unfilled<'c, 'm, P: Platform, V: Mapping> {
    cache: PageCache<'m, P, V>,
    file: &'c CachedFile<P>,
    index: PageIndex,
    folio: &'c LockedFolio<'m, P>,
    is_good: bool,
    /// Whether the backing may be writing to it.
    in_transfer: bool,
}

impl<'c, 'm, P: Platform, V: Mapping> Unfilled<'c, 'm, P, V> {
    pub(super) const fn new(
        cache: PageCache<'m, P, V>,
        file: &'c CachedFile<P>,
        (index, folio): (PageIndex, &'c LockedFolio<'m, P>),
    ) -> Self {
        Self { cache, file, index, folio, is_good: false, in_transfer: false }
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
        self.cache.remove(self.file, self.index, self.folio);
        if self.in_transfer {
            // The backing has panicked, and nothing says that it is done with the frame, which is never
            // freed.
            frame.get(1);
        }
    }
}

impl<'m, P: Platform, V: Mapping> PageCache<'m, P, V> {
    /// The folio of page `index`, read if it is not cached. Nothing is held; may sleep. `program` pays.
    ///
    /// # Errors
    ///
    /// The file ends before the page; it could not be read; or there is no memory: then the caller reclaims,
    /// and tries again.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn page_in(
        self,
        file: &CachedFile<P>,
        index: PageIndex,
        program: &Membership,
    ) -> Result<PagedIn<'m, P>, PageError> {
        if let Some(folio) = self.lock_cached(file, index)? {
            // Only now: the size is stored before folios are removed.
            if file.ends_before(index) {
                return Err(PageError::PastEnd);
            }
            return Ok(PagedIn { folio, was_read: false });
        }
        self.obtain(file, index, program, Fill::Read, |folio, came| PagedIn {
            folio,
            was_read: came == Came::Read,
        })
    }

    /// As [`page_in`](Self::page_in), for a program that is about to write to the page by a mapping: it is
    /// marked dirty.
    ///
    /// # Errors
    ///
    /// Also what the backing says to the page becoming dirty.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn page_in_to_write(
        self,
        file: &CachedFile<P>,
        index: PageIndex,
        program: &Membership,
    ) -> Result<PagedIn<'m, P>, PageError> {
        let mut was_read = false;
        loop {
            if file.ends_before(index) {
                return Err(PageError::PastEnd);
            }
            let prepared = file.prepare_write(index)?;
            let paged_in = self.page_in(file, index, program)?;
            was_read |= paged_in.was_read;
            self.wait_stable(file, &paged_in.folio);
            if file.is_prepared(prepared) {
                file.mark_dirty(self.frames(), paged_in.folio.head());
                return Ok(PagedIn { was_read, ..paged_in });
            }
        }
    }

    /// Calls `work` with the folio of page `index`, while Invalidate is held shared.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(super) fn obtain<R>(
        self,
        file: &CachedFile<P>,
        index: PageIndex,
        program: &Membership,
        fill: Fill,
        work: impl FnOnce(LockedFolio<'m, P>, Came) -> R,
    ) -> Result<R, PageError> {
        let nodes = file.memory().nodes(self.frames());
        // SAFETY: the stores of a machine's files are locked with its nodes.
        let mut reserve = unsafe { Reserve::new(&nodes) };
        let mut page = None;
        loop {
            // Memory comes from here, where nothing is held.
            let needs = {
                let _shared = file.invalidate.read(self.platform());
                match self.step(file, index, fill, (&mut page, &nodes, &mut reserve))? {
                    Step::There(folio, came) => return Ok(work(folio, came)),
                    Step::NeedsPage => None,
                    Step::NeedsNodes(needs) => Some(needs),
                    Step::Again => continue,
                }
            };
            match needs {
                None => page = Some(self.allocate_page(program)?),
                Some(needs) => reserve.fill(needs)?,
            }
        }
    }

    /// A page for a file, charged.
    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate_page(self, program: &Membership) -> Result<NewPage<'m, P>, PageError> {
        let request = AllocRequest::new(Order::ZERO, SITE).movability(Migratetype::Movable).kind(Kind::File);
        let pin = self.platform().pin();
        let head = self.frames().allocate(&pin, request)?;
        self.frames().known(head).as_folio().set_owner(OwnerWord::NONE);
        self.memcgs.programs().charge_new(&pin, program, head, Order::ZERO)?;
        Ok(NewPage { memcgs: self.memcgs, head })
    }

    fn step<'n>(
        self,
        file: &CachedFile<P>,
        index: PageIndex,
        fill: Fill,
        (page, nodes, reserve): (
            &mut Option<NewPage<'m, P>>,
            &NodesOn<'n, P>,
            &mut Reserve<'_, NodesOn<'n, P>>,
        ),
    ) -> Result<Step<'m, P>, PageError> {
        if fill == Fill::Read && file.ends_before(index) {
            return Err(PageError::PastEnd);
        }
        match self.lock_cached(file, index) {
            Ok(Some(folio)) => return Ok(Step::There(folio, Came::Before)),
            // Who fills the page needs not what another thread could not read.
            Err(error) if fill == Fill::Read => return Err(error.into()),
            Ok(None) | Err(_) => {}
        }
        let Some(new) = page.take() else { return Ok(Step::NeedsPage) };
        let head = new.head;
        let Some(guard) = self.frames().folios().try_lock_folio(head) else {
            // A thread that looked for what the frame was before has locked it for a moment.
            *page = Some(new);
            P::relax(0);
            return Ok(Step::Again);
        };
        match self.insert(file, (index, head), fill, (nodes, reserve)) {
            Ok(()) => self.fill(file, (index, new.into_head()), fill, guard),
            Err(refusal) => {
                drop(guard);
                *page = Some(new);
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

    /// Puts a new page, whose lock the caller has, into the cache, or changes nothing.
    fn insert<'n>(
        self,
        file: &CachedFile<P>,
        (index, head): (PageIndex, Pfn),
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
        frame.as_folio().set_index(index.get());
        frame.as_folio().set_owner(file.owner_word());
        let got = frame.get(1);
        debug_assert!(got, "a new page has one reference");
        let stored = Stored { start: index, order: Order::ZERO, entry: Entry::Folio(head) };
        let inserted = file.with_store_on(nodes, self.frames(), |store| store.insert(stored, reserve));
        match inserted {
            Ok(_shadow) => {
                file.memory().cached.fetch_add(Order::ZERO.pages(), Ordering::Relaxed);
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

    /// Gives a page that was just put into the cache its contents.
    fn fill(
        self,
        file: &CachedFile<P>,
        (index, head): (PageIndex, Pfn),
        fill: Fill,
        guard: FolioGuard<'m, P>,
    ) -> Result<Step<'m, P>, PageError> {
        let folio = LockedFolio::new(self.memcgs, head, guard);
        if fill == Fill::ByCaller {
            return Ok(Step::There(folio, Came::Empty));
        }
        let mut new = Unfilled::new(self, file, (index, &folio));
        new.in_transfer = true;
        // SAFETY: the page is new and locked, and is never freed if this panics.
        let read = unsafe { self.transfers(file).read_page(index, head) };
        new.in_transfer = false;
        read?;
        new.filled();
        Ok(Step::There(folio, Came::Read))
    }
}
