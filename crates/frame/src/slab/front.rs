//! What one CPU keeps of a cache.

use super::slot::SlotList;
use quire_sync::{Epoch, Stamp};

/// Buckets of retired objects; see the limbo for why three.
const BUCKETS: usize = crate::limbo::BUCKETS;

/// One CPU's free and retired objects, behind a lock of class `Slab`.
#[derive(Debug, Default)]
pub(super) struct Front {
    pub(super) free: SlotList,
    retired: [(Stamp, SlotList); BUCKETS],
    /// Retired objects whose readers are gone.
    ready: SlotList,
    /// Objects given out through this CPU less those that came back through it: the sum over all CPUs is what is in
    /// use, one CPU's share may be below zero.
    pub(super) in_use: i64,
}

impl Front {
    /// Takes a slot whose object was unlinked just before.
    ///
    /// # Safety
    ///
    /// The front takes the slot over; its cache has its links at `offset`.
    pub(super) unsafe fn retire(&mut self, epoch: &Epoch, slot: super::slot::SlotPtr, offset: usize) {
        let stamp = epoch.stamp();
        let (bucket_stamp, bucket) = &mut self.retired[(stamp.get() % BUCKETS as u64) as usize];
        if *bucket_stamp != stamp {
            // Same place, other stamp: at least three epochs older, so it has passed.
            debug_assert!(bucket.is_empty() || epoch.has_passed(*bucket_stamp));
            // SAFETY: the slots of both lists are this front's.
            unsafe { self.ready.prepend(bucket, offset) };
            *bucket_stamp = stamp;
        }
        // SAFETY: the caller hands the slot over.
        unsafe { bucket.push(slot, offset) };
    }

    /// Takes up to `limit` retired objects whose readers are gone.
    ///
    /// # Safety
    ///
    /// The links of the cache's slots are at `offset`.
    pub(super) unsafe fn collect(&mut self, epoch: &Epoch, limit: u32, offset: usize) -> SlotList {
        for (stamp, bucket) in &mut self.retired {
            if !bucket.is_empty() && epoch.has_passed(*stamp) {
                // SAFETY: the slots of both lists are this front's.
                unsafe { self.ready.prepend(bucket, offset) };
            }
        }
        // SAFETY: as above.
        unsafe { self.ready.split(limit, offset) }
    }

    /// Objects that wait for readers, or to be freed after them.
    pub(super) fn retired(&self) -> u64 {
        self.retired_lists().map(|list| u64::from(list.count())).sum()
    }

    /// Every list of retired objects.
    pub(super) fn retired_lists(&self) -> impl Iterator<Item = &SlotList> {
        self.retired.iter().map(|(_, list)| list).chain(core::iter::once(&self.ready))
    }
}
