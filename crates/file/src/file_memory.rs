//! What the files of a machine share, apart from their VMAs.

use crate::committed::Committed;
use crate::huge::ShmemHugeControls;
use crate::slabs::{NodeSlabs, NodesOn};
use quire_arch::{Order, Pin, Platform};
use quire_frame::{AllocError, Frames, Kind};
use quire_sync::atomic::raw::{AtomicU64, Ordering};

/// Pages of all files of a machine, as `/proc/meminfo` has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileTotals {
    /// Pages that are cached, shared memory among them (`Cached`).
    pub cached: u64,
    /// Of these, pages of folios of the PMD's order of files (`FileHugePages`).
    pub huge: u64,
    /// Of the cached ones, pages of shared memory (`Shmem`).
    pub shmem: u64,
    /// Of these, pages of folios of the PMD's order (`ShmemHugePages`).
    pub shmem_huge: u64,
    /// Pages of shared memory that count as committed.
    pub promised: u64,
    /// Of the cached ones, pages that are to be written back (`Dirty`).
    pub dirty: u64,
    /// Of these, pages that are being written back (`Writeback`).
    pub writeback: u64,
    /// Files that were closed for good with an error of writeback that no opening has seen.
    pub lost_errors: u64,
}

/// What the files of a machine share: the nodes of their stores, and the totals.
pub(crate) struct FileMemory<P: Platform> {
    nodes: NodeSlabs<P>,
    pub(crate) shmem_orders: ShmemHugeControls,
    cached: AtomicU64,
    huge: AtomicU64,
    shmem: AtomicU64,
    shmem_huge: AtomicU64,
    pub(crate) committed: Committed,
    pub(crate) dirty: AtomicU64,
    pub(crate) writeback: AtomicU64,
    pub(crate) lost_errors: AtomicU64,
}

/// The number of the next request. Of all machines: files of two of them may have one queue, and what ends on
/// one must not be taken for a request of the other.
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);

/// A number that no request has had.
pub(crate) fn new_token() -> u64 {
    NEXT_TOKEN.fetch_add(1, Ordering::Relaxed)
}

impl<P: Platform> FileMemory<P> {
    /// Nothing yet.
    ///
    /// # Errors
    ///
    /// When there is no frame for the caches.
    #[cfg_attr(debug_assertions, track_caller)]
    #[inline(never)]
    pub(crate) fn new(frames: &Frames<P>, pin: &Pin<'_, P>) -> Result<Self, AllocError> {
        Ok(Self {
            nodes: NodeSlabs::new(frames, pin)?,
            shmem_orders: ShmemHugeControls::new(),
            cached: AtomicU64::new(0),
            huge: AtomicU64::new(0),
            shmem: AtomicU64::new(0),
            shmem_huge: AtomicU64::new(0),
            committed: Committed::new(),
            dirty: AtomicU64::new(0),
            writeback: AtomicU64::new(0),
            lost_errors: AtomicU64::new(0),
        })
    }

    /// The nodes of all stores.
    pub(crate) fn nodes<'f>(&'f self, frames: &'f Frames<P>) -> NodesOn<'f, P> {
        self.nodes.on(frames)
    }

    /// Counts a folio of this kind and `order` that has come to a cache.
    pub(crate) fn count_came(&self, kind: Kind, order: Order) {
        self.counts(kind, order).for_each(|count| {
            count.fetch_add(order.pages(), Ordering::Relaxed);
        });
    }

    /// Counts a folio of this kind and `order` that has gone.
    pub(crate) fn count_gone(&self, kind: Kind, order: Order) {
        self.counts(kind, order).for_each(|count| {
            count.fetch_sub(order.pages(), Ordering::Relaxed);
        });
    }

    /// Counts that a folio of this kind and `order` was split: it has as many pages as before.
    pub(crate) fn count_split(&self, kind: Kind, order: Order) {
        if order == Order::PMD {
            self.huge_count(kind).fetch_sub(order.pages(), Ordering::Relaxed);
        }
    }

    /// The count of pages of the PMD's order.
    fn huge_count(&self, kind: Kind) -> &AtomicU64 {
        if kind == Kind::Shmem { &self.shmem_huge } else { &self.huge }
    }

    /// The counts that have such a folio.
    fn counts(&self, kind: Kind, order: Order) -> impl Iterator<Item = &AtomicU64> {
        let (is_shmem, is_huge) = (kind == Kind::Shmem, order == Order::PMD);
        let huge = is_huge.then(|| self.huge_count(kind));
        [Some(&self.cached), is_shmem.then_some(&self.shmem), huge].into_iter().flatten()
    }

    pub(crate) fn totals(&self) -> FileTotals {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        FileTotals {
            cached: read(&self.cached),
            huge: read(&self.huge),
            shmem: read(&self.shmem),
            shmem_huge: read(&self.shmem_huge),
            promised: self.committed.shared(),
            dirty: read(&self.dirty),
            writeback: read(&self.writeback),
            lost_errors: read(&self.lost_errors),
        }
    }
}
