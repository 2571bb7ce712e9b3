//! The orders that a file's folios may have.

use super::CachedFile;
use crate::huge::NewPage;
use crate::index::{IndexRange, PageIndex};
use crate::store::Filter;
use core::fmt;
use quire_arch::{Order, OrderSet, Platform};
use quire_frame::Frames;
use quire_sync::atomic::raw::Ordering;

impl<P: Platform> CachedFile<P> {
    /// The largest order of the folios that it may have by now.
    pub fn largest_order(&self) -> Order {
        match &self.shmem {
            Some(shmem) if shmem.has_large.load(Ordering::Relaxed) => Order::PMD,
            Some(_) => Order::ZERO,
            None if self.access.large() > 0 => Order::PMD,
            None => self.limits.folio_order(),
        }
    }
}

/// The orders that new folios of a file may have, besides order 0.
pub struct NewFolioOrders<'f, P: Platform>(&'f CachedFile<P>);

impl<'f, P: Platform> NewFolioOrders<'f, P> {
    /// Those of this file.
    #[inline]
    pub const fn of(file: &'f CachedFile<P>) -> Self {
        Self(file)
    }

    /// The largest of a folio that a call or a fault makes.
    pub(crate) fn largest(&self) -> Order {
        if self.0.is_shmem() { self.0.largest_order() } else { self.0.limits.folio_order() }
    }

    /// Those of a folio for page `index`, where a mapping with MADV_HUGEPAGE
    /// (`is_advised`) or without lacks it. As in Linux a mapping of a file on a disk asks for none else than
    /// the PMD's.
    pub fn mapped(&self, index: PageIndex, is_advised: bool) -> OrderSet {
        if self.0.is_shmem() {
            let size = self.0.size();
            let index = index.get();
            return self.shmem(NewPage { index, size, is_mapped: true, is_advised, is_forced: false });
        }
        if is_advised { OrderSet::ALL.up_to(self.0.limits.folio_order()) } else { OrderSet::EMPTY }
    }

    /// The same for shared memory of which a call writes or allocates what is before byte `end`.
    pub(crate) fn written(&self, index: PageIndex, end: u64) -> OrderSet {
        let size = self.0.size().max(end);
        let index = index.get();
        self.shmem(NewPage { index, size, is_mapped: false, is_advised: false, is_forced: false })
    }

    /// Those to which blocks may be collapsed where a mapping begins at page `index`: by khugepaged, as Linux
    /// looks only at its first block, or if it `is_forced` because a program asks for it. Of shared memory;
    /// of other files the policy of large folios decides.
    pub fn collapsed(&self, index: PageIndex, is_advised: bool, is_forced: bool) -> OrderSet {
        let (index, size) = (index.get(), self.0.size());
        self.shmem(NewPage { index, size, is_mapped: true, is_advised, is_forced })
            .intersection(OrderSet::PMD)
    }

    /// The folios for which Linux aligns a mapping of it among addresses, if it is shared memory.
    pub fn alignment(&self) -> Option<Order> {
        let shmem = self.0.shmem()?;
        self.0.memory().shmem_orders.get().alignment(Some(shmem.owner().huge()))
    }

    fn shmem(&self, page: NewPage) -> OrderSet {
        let huge = self.0.memory().shmem_orders.get();
        self.0.shmem().map_or(OrderSet::EMPTY, |shmem| huge.orders(shmem.owner().huge(), page))
    }

    /// Those of `orders` that a folio may have which is made for page `index`: nothing is kept of what it
    /// would have besides, and a file on a disk does not end in it if it `is_read`. A snapshot.
    pub(crate) fn free(
        &self,
        frames: &Frames<P>,
        (index, orders): (PageIndex, OrderSet),
        is_read: bool,
    ) -> OrderSet {
        let is_free = |order: &Order| {
            let block = IndexRange::block(index.block_start(*order), *order);
            (!is_read || self.0.is_shmem() || self.0.reaches(block)) && self.has_no_folio(frames, block)
        };
        let large = orders.difference(OrderSet::of(Order::ZERO));
        large.iter().find(is_free).map_or(OrderSet::EMPTY, |order| large.up_to(order))
    }

    /// Whether no page of the range is cached or swapped out, at a moment.
    fn has_no_folio(&self, frames: &Frames<P>, pages: IndexRange) -> bool {
        self.0.with_store(frames, |store| {
            let mut rest = pages;
            while let Some(stored) = store.next(rest, Filter::All) {
                if !stored.entry.is_shadow() {
                    return false;
                }
                rest = IndexRange::new(stored.range().end(), pages.end());
            }
            true
        })
    }
}

impl<P: Platform> fmt::Debug for NewFolioOrders<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NewFolioOrders").field(&self.0).finish()
    }
}
