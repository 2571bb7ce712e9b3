//! The end of a gather: the flush, and what waits for it.

use super::Tables;
use crate::gather::Gather;
use quire_arch::{Platform, VirtRange};

impl<P: Platform> Tables<'_, P> {
    /// Sets aside the pending flush, so that additions to it can be detected; see
    /// [`settle_since`](Self::settle_since).
    pub fn set_aside(&self, gather: &mut Gather<'_, P>) -> Option<VirtRange> {
        if gather.is_unsettled() {
            self.settle(gather);
        }
        gather.take_stale()
    }

    /// Flushes, as [`settle`](Self::settle), if something was added since `aside` was set aside. Otherwise
    /// the flush stays pending.
    pub fn settle_since(&self, aside: Option<VirtRange>, gather: &mut Gather<'_, P>) {
        let came = gather.has_stale() || gather.has_absent();
        if let Some(range) = aside {
            gather.add_stale(range);
        }
        if came {
            self.settle(gather);
        }
    }

    /// Flushes, and removes from the tables the entries that were made unusable.
    pub fn settle(&self, gather: &mut Gather<'_, P>) {
        {
            let pin = self.pin();
            gather.flush(&pin);
            gather.drop_noted();
        }
        if let Some(range) = gather.take_absent() {
            self.take_out_absent(range, gather);
            gather.drop_noted();
        }
        while let Some((slot, part)) = gather.pop_split() {
            self.cut_huge(slot, part, gather);
        }
        while let Some(range) = gather.pop_restored() {
            self.restore(range);
        }
    }

    /// Flushes the TLBs and frees everything: the gather is empty then. Cannot fail and allocates nothing.
    pub fn finish(&self, gather: &mut Gather<'_, P>) {
        if gather.holds_nothing() {
            if gather.has_counted() {
                gather.count(&self.pin());
            }
            gather.drop_cached();
            return;
        }
        self.settle(gather);
        gather.free_many();
        while let Some(table) = gather.pop_unlinked() {
            self.free_detached_table(table, gather);
        }
        gather.free_all();
    }
}
