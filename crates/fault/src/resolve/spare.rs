//! A folio on its way to the entries of a fault.

use super::Resolver;
use crate::cow::charge_new;
use crate::error::Refusal;
use quire_arch::{Order, OrderSet, PagingFormat, Pfn, Platform};
use quire_frame::{AllocRequest, FolioCounter};
use quire_pagetable::{Entries, Tables};
use quire_sync::atomic::raw::Ordering;

/// A folio that was allocated before the lock was taken. It is freed if it turns out not to be needed.
pub(super) struct Spare<'r, 's, 'p, P: Platform> {
    resolver: &'r Resolver<'s, 'p, P>,
    pub(super) folio: Option<(Pfn, Order)>,
}

impl<'r, 's, 'p, P: Platform> Spare<'r, 's, 'p, P> {
    /// None yet.
    #[inline]
    pub(super) fn new(resolver: &'r Resolver<'s, 'p, P>) -> Self {
        Self { resolver, folio: None }
    }

    /// Gets a folio of the largest order that is allowed, fits the empty entries around `index`, and is
    /// available.
    #[inline]
    pub(super) fn fill(&mut self, entries: &Entries, index: usize) -> Result<(), Refusal> {
        self.empty();
        let Resolver { tables, pin, fault, .. } = self.resolver;
        let orders = fault.orders();
        if !orders.is_empty() && self.fill_large(orders, entries, index) {
            return Ok(());
        }
        let request = AllocRequest::anonymous().kind(fault.kind());
        let pfn = tables.memory().frames().allocate(pin, request)?;
        charge_new(tables, pin, pfn, Order::ZERO)?;
        self.folio = Some((pfn, Order::ZERO));
        Ok(())
    }

    #[cold]
    fn fill_large(&mut self, orders: OrderSet, entries: &Entries, index: usize) -> bool {
        let Resolver { tables, pin, fault, .. } = self.resolver;
        let frames = tables.memory().frames();
        let huge = Tables::<P>::huge_order().map_or(OrderSet::EMPTY, OrderSet::of);
        // Tables of some formats are smaller than the largest folio.
        let fitting = OrderSet::from_bits((2 << P::Paging::INDEX_BITS[0]) - 1);
        for order in orders.intersection(fitting).difference(huge).iter() {
            if !is_empty(entries, index, order) {
                continue;
            }
            if let Ok(pfn) = frames.allocate(pin, fault.large_request(order))
                && charge_new(tables, pin, pfn, order).is_ok()
            {
                self.folio = Some((pfn, order));
                return true;
            }
            frames.events().count_folio(pin, order, FolioCounter::AnonFaultFallback, 1);
        }
        false
    }

    /// Whether there is a folio, and the entries for all its pages are empty, or it is one page.
    #[inline]
    pub(super) fn fits(&self, entries: &Entries, index: usize) -> bool {
        self.folio.is_some_and(|(_, order)| order == Order::ZERO || is_empty(entries, index, order))
    }

    #[inline]
    fn empty(&mut self) {
        if let Some((pfn, order)) = self.folio.take() {
            let Resolver { tables, pin, .. } = self.resolver;
            tables.memory().memcgs().folios().release_unused(pin, pfn, order);
        }
    }
}

impl<P: Platform> Drop for Spare<'_, '_, '_, P> {
    fn drop(&mut self) {
        self.empty();
    }
}

/// Whether all entries of the aligned block of `order` around `index` are none.
fn is_empty(entries: &Entries, index: usize, order: Order) -> bool {
    let first = index & !(order.pages() as usize - 1);
    entries[first..first + order.pages() as usize].iter().all(|entry| entry.load(Ordering::Relaxed) == 0)
}
