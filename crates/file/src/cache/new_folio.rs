//! Folios that are not in the cache yet.

use crate::cached_file::CachedFile;
use crate::entry::{Entry, Stored};
use crate::error::PageError;
use crate::index::PageIndex;
use crate::slabs::NodesOn;
use crate::source::Reserve;
use crate::store::InsertError;
use quire_arch::{Order, OrderSet, Pfn, Platform};
use quire_frame::{AllocRequest, FailSite, FolioCounter, FrameFlags, Migratetype, OwnerWord};
use quire_memcg::{Membership, Memcgs};
use quire_sync::atomic::raw::Ordering;

/// The site of the cache's folios in fail plans.
pub(super) const SITE: FailSite = FailSite::new("file");

/// What becomes of a page that is not cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fill {
    /// It is read. The file must not end before it.
    Read,
    /// It is put in as it is: the caller fills it, or takes it out again.
    ByCaller,
}

/// The large folios that a page may come in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LargeOrders {
    /// Their orders, besides order 0. The largest that there is memory for is made.
    pub orders: OrderSet,
    /// Whether the lists of CPUs are drained for one.
    pub drains: bool,
}

impl LargeOrders {
    /// None.
    pub const NONE: Self = Self::of(OrderSet::EMPTY);

    /// Those of these orders that take what is free.
    pub const fn of(orders: OrderSet) -> Self {
        Self { orders, drains: false }
    }
}

/// A folio that is in no cache yet, charged, of pages that the file has taken. It is freed when this is
/// dropped.
pub(super) struct NewFolio<'c, 'm, P: Platform> {
    memcgs: &'m Memcgs<P>,
    file: &'c CachedFile<P>,
    pub(super) head: Pfn,
    pub(super) order: Order,
}

impl<'c, 'm, P: Platform> NewFolio<'c, 'm, P> {
    /// A folio for a file, charged: of the largest of `orders` that there is memory for without an effort, or
    /// of order 0; so also where its owner has no space for the largest.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(super) fn allocate_folio(
        at: (&'m Memcgs<P>, &'c CachedFile<P>),
        large: LargeOrders,
        program: &Membership,
    ) -> Result<Self, PageError> {
        Self::allocate_large(at, large, program).map_or_else(|| Self::allocate_page(at, program), Ok)
    }

    /// One of the large ones.
    fn allocate_large(
        at: (&'m Memcgs<P>, &'c CachedFile<P>),
        LargeOrders { orders, drains }: LargeOrders,
        program: &Membership,
    ) -> Option<Self> {
        for order in orders.iter().take_while(|order| *order > Order::ZERO) {
            let request = AllocRequest::new(order, SITE);
            let request = if drains { request } else { request.without_drain() };
            match Self::allocate_charged(at, request, order, program) {
                Ok(made) => return Some(made),
                // There is no space for it: as Linux, which takes a page then, and does not count that.
                Err(PageError::File(_)) => break,
                Err(error) => count_fallback(at, order, &error),
            }
        }
        None
    }

    /// A page that the caller needs.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(super) fn allocate_page(
        at: (&'m Memcgs<P>, &'c CachedFile<P>),
        program: &Membership,
    ) -> Result<Self, PageError> {
        Self::allocate_charged(at, AllocRequest::new(Order::ZERO, SITE), Order::ZERO, program)
    }

    /// A folio of `order`, by this request.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(super) fn allocate_charged(
        (memcgs, file): (&'m Memcgs<P>, &'c CachedFile<P>),
        request: AllocRequest,
        order: Order,
        program: &Membership,
    ) -> Result<Self, PageError> {
        let request = request.movability(Migratetype::Movable).kind(file.kind());
        // A page of shared memory that was never written is zeros.
        let request = if file.is_shmem() { request.zeroed_for_programs() } else { request };
        file.take_pages(order.pages())?;
        Self::allocate_taken((memcgs, file), request, order, program)
            .inspect_err(|_| file.give_back_pages(order.pages()))
    }

    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate_taken(
        (memcgs, file): (&'m Memcgs<P>, &'c CachedFile<P>),
        request: AllocRequest,
        order: Order,
        program: &Membership,
    ) -> Result<Self, PageError> {
        let pin = memcgs.frames().platform().pin();
        let head = memcgs.frames().allocate(&pin, request)?;
        memcgs.frames().known(head).as_folio().set_owner(OwnerWord::NONE);
        memcgs.programs().charge_new(&pin, program, head, order)?;
        Ok(Self { memcgs, file, head, order })
    }

    /// Puts it, whose lock the caller has, into the cache from page `start` on, or changes nothing.
    pub(super) fn insert<'n>(
        &self,
        start: PageIndex,
        fill: Fill,
        (nodes, reserve): (&NodesOn<'n, P>, &mut Reserve<'_, NodesOn<'n, P>>),
    ) -> Result<(), InsertError> {
        let (frames, file) = (self.memcgs.frames(), self.file);
        let frame = frames.known(self.head);
        let stored = Stored { start, order: self.order, entry: Entry::Folio(self.head) };
        if self.order > Order::ZERO
            && let Some(shmem) = file.shmem()
        {
            shmem.has_large.store(true, Ordering::Relaxed);
        }
        // A thread that finds it may map it at any time, so its maps are counted as those of a page that is
        // named.
        let mut marks = FrameFlags::SHARED_BY_NAME;
        if file.is_shmem() {
            // Where a fault for reading makes it, it is a hole as long as it is not written to.
            if fill == Fill::ByCaller {
                marks |= FrameFlags::DIRTY;
            }
        } else if fill == Fill::Read {
            marks |= FrameFlags::READING;
        }
        frame.set_flags(marks);
        frame.as_folio().set_index(start.get());
        frame.as_folio().set_owner(file.owner_word());
        let got = frame.get(1);
        debug_assert!(got, "a new folio has one reference");
        let inserted = file.with_store_on(nodes, frames, |store| store.insert(stored, reserve));
        match inserted {
            Ok(_shadow) => {
                file.count_came(self.memcgs, self.head, self.order);
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

    /// The folio with its reference.
    pub(super) fn into_head(self) -> Pfn {
        let head = self.head;
        core::mem::forget(self);
        head
    }
}

impl<P: Platform> Drop for NewFolio<'_, '_, P> {
    fn drop(&mut self) {
        let pin = self.memcgs.frames().platform().pin();
        self.memcgs.folios().release_unused(&pin, self.head, self.order);
        self.file.give_back_pages(self.order.pages());
    }
}

/// Counts that there is no folio of `order` for shared memory.
fn count_fallback<P: Platform>(
    (memcgs, file): (&Memcgs<P>, &CachedFile<P>),
    order: Order,
    error: &PageError,
) {
    // What its owner, or the limit of what is committed, has no room for is not counted in Linux.
    if !file.is_shmem() || matches!(error, PageError::File(_)) {
        return;
    }
    let (events, pin) = (memcgs.frames().events(), memcgs.frames().platform().pin());
    events.count_folio(&pin, order, FolioCounter::ShmemFallback, 1);
    if matches!(error, PageError::OverLimit(_)) {
        events.count_folio(&pin, order, FolioCounter::ShmemFallbackCharge, 1);
    }
}
